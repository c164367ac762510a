"""Reverse-mode differentiation: a function becomes one that gives its results and gradients."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.errors import InputError
from compiler.ir.expr import Atom, Function, IRModule, Var, atom_type, names_in
from compiler.ir.inference import infer_module
from compiler.passes.live import live
from compiler.transform.called_functions import without_called_functions
from compiler.transform.first_order import first_order
from compiler.transform.gradient_step import constant, differentiable
from compiler.transform.inline import Inline
from compiler.transform.parameters import as_parameters
from compiler.transform.tapes import Functions, Taped
from compiler.types.tensor_types import TensorType


def gradient(
    mod: IRModule, wrt: Sequence[str], cotangent: str | Sequence[str] | None = None
) -> IRModule:
    """The module whose `main` gives the results of `mod`'s, and behind them gradients.

    Its parameters are those of `mod`'s `main`, then the constants that are asked for, in the order
    asked, then the cotangents. Its results are those of `mod`'s `main`, then one gradient for each
    name, of the type of what has that name: of data with what flows into each of its tensors in the
    place of that, and with all that is no float as it is. Values that flow back have the origins of
    the values whose gradients they are, with "/gradient" behind them.

    Args:
        mod: a module, as imported or transformed, before it is built.
        wrt: names of parameters of `main`, or of constants (see `compiler.parameters`), which
            become parameters.
        cotangent: names of extra parameters, one for each result, of its type: what flows back into
            them; one name, of one result. None: the first result is a scalar, and its gradient is
            taken; results behind it only come along.

    Raises:
        InputError: a name is unknown, is asked for twice, or is not of floats; or there is no
            cotangent for results that are no scalar.
        UnsupportedError: an operator on the way from a name to the result has no gradient.
    """
    mod = as_parameters(Inline()(infer_module(mod)), wrt)
    mod = first_order(without_called_functions(mod))
    f = mod.main
    params = {p.name: p for p in f.params}
    asked = [params[name] for name in wrt]
    extra, seeds = _seeds(f, cotangent)
    functions = Functions(mod)
    for p in asked:
        if not functions.follows(t := atom_type(p)):
            raise InputError(f"%{p.name} has no gradient: it is {t}")
    backward = Taped(f, asked, names_in(f) | {p.name for p in extra}, functions)
    for result, flows in seeds:
        backward.flow(result, flows, ())
    backward.run()
    gradients = [backward.filled(p) for p in asked]
    bindings = (*backward.forward.done, *backward.bindings.done)
    made = Function((*f.params, *extra), bindings, (*f.results, *gradients), dict(f.attrs))
    return infer_module(functions.added(mod.with_function("main", live(made))))


def _seeds(
    f: Function, cotangent: str | Sequence[str] | None
) -> tuple[list[Var], list[tuple[Atom, Atom]]]:
    """Extra parameters, and what flows back into which result."""
    results = [atom_type(r) for r in f.results]
    if cotangent is None:
        first = results[0]
        if not isinstance(first, TensorType) or first.shape or not differentiable(first.dtype):
            raise InputError(
                f"the first result is no scalar of floats, but {first}: give names of cotangents, "
                "or add a loss"
            )
        return [], [(f.results[0], constant(1, first.dtype))]
    names = [cotangent] if isinstance(cotangent, str) else list(cotangent)
    if len(names) != len(results):
        raise InputError(f"there are {len(results)} results, and {len(names)} names of cotangents")
    taken = {p.name for p in f.params}
    extra = []
    for name, t in zip(names, results, strict=True):
        if not isinstance(t, TensorType) or not differentiable(t.dtype):
            raise InputError(f"nothing flows back into a result of type {t}, but into tensors")
        if name in taken:
            raise InputError(f"there is a parameter %{name} already: give the cotangent another")
        taken.add(name)
        extra.append(Var(name, t))
    return extra, list(zip(f.results, extra, strict=True))
