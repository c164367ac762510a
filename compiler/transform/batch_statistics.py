"""Batch norms as training computes them: with the mean and variance of the batch (Ioffe and
Szegedy, Batch Normalization, 2015), and running ones that follow them."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.errors import InputError
from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Function,
    IRModule,
    Var,
    calls,
    names_in,
    tensor_type,
)
from compiler.ir.expression import Operand, call
from compiler.ir.substitution import substitute
from compiler.op.nn.norm import BATCH_NORM
from compiler.passes.infer_type import InferType
from compiler.transform.gradient_step import Bindings, CallStep, constant
from compiler.transform.parameters import as_parameters, named_constants


def with_batch_statistics(mod: IRModule, momentum: float = 0.1) -> tuple[IRModule, tuple[str, ...]]:
    """`mod` whose batch norms use the statistics of their batch, and the names of the running ones.

    With m the mean over all axes but that of channels, d = x - m and v the mean of d * d, the
    result is (d / sqrt(v + epsilon)) * gamma + beta. The running mean and variance that a batch
    norm had become parameters of `main`, behind its others; their new values are results, behind
    its others, in the same order, which is that of the names: old * (1 - momentum) + new *
    momentum, where the new variance is that of a sample, v * (n / (n - 1)) (as PyTorch has it).

    Raises:
        InputError: a batch norm's statistics are no constants or parameters.
    """
    mod = InferType()(mod)
    known: dict[Atom, str] = {c: name for name, c in named_constants(mod.main).items()}
    known |= {p: p.name for p in mod.main.params}
    names: dict[str, None] = {}
    for b, v in calls(mod.main, BATCH_NORM.name):
        for a in v.args[3:]:
            if a not in known:
                raise InputError(f"node {b.var}: its statistics are no constants or parameters")
            names[known[a]] = None
    mod = as_parameters(mod, list(names))
    return InferType()(mod.with_function("main", _rewritten(mod.main, momentum))), tuple(names)


def _rewritten(f: Function, momentum: float) -> Function:
    bindings = Bindings(names_in(f))
    new: dict[Var, Atom] = {}
    running: dict[Var, Atom] = {}
    for b in f.bindings:
        value = substitute(b.value, new)
        if not isinstance(value, Call) or value.op is not BATCH_NORM:
            bindings.done.append(Binding(b.var, value, b.origins))
            continue
        y, statistics = _normalized(b, value, momentum)
        new[b.var] = bindings.atom(y, b.var.name, b.origins)
        for old, follows in zip(value.args[3:], statistics, strict=True):
            assert isinstance(old, Var)
            running[old] = bindings.atom(follows, f"new_{old.name}", b.origins)
    results = tuple(new.get(r, r) if isinstance(r, Var) else r for r in f.results)
    return f.with_body(bindings.done, (*results, *running.values()))


def _normalized(b: Binding, v: Call, momentum: float) -> tuple[Operand, Sequence[Operand]]:
    """What a batch norm gives, and the statistics that follow."""
    x, gamma, beta, mean, variance = v.args
    t = tensor_type(x)
    axis = v.attrs.axis % t.rank
    axes = tuple(k for k in range(t.rank) if k != axis)
    step = CallStep(f"node {b.var}", v.attrs, v.args, b.var, (x,), ())
    shape = (t.shape[axis], *(1 for _ in t.shape[axis + 1 :]))

    def along(p: Operand) -> Operand:
        return call("reshape", p, newshape=shape)

    def follows(old: Operand, now: Operand) -> Operand:
        kept = call("multiply", old, constant(1 - momentum, t.dtype))
        return call("add", kept, call("multiply", now, constant(momentum, t.dtype)))

    m = call("mean", x, axis=axes)
    d = call("subtract", x, along(m))
    squares = call("mean_products", d, d, axis=axes)
    root = call("sqrt", call("add", squares, constant(v.attrs.epsilon, t.dtype)))
    scaled = call("multiply", call("divide", d, along(root)), along(gamma))
    n = step.count(x, axes)
    sample = call("multiply", squares, call("divide", n, call("subtract", n, constant(1, t.dtype))))
    return call("add", scaled, along(beta)), (follows(mean, m), follows(variance, sample))
