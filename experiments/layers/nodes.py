"""Where a quantization hurts: at every node, the error that has come so far and what it adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import InputError
from experiments.measure.metrics import cosine, farthest, sqnr_db

if TYPE_CHECKING:
    from compiler.ir.expr import Atom, Binding, IRModule
    from quantize import Plan
    from quantize.plan.params import ValueParams

Array = NDArray[Any]
BINS = 32
"""Of the histograms."""


@dataclass(frozen=True)
class NodeError:
    """What became of one value.

    Attributes:
        value: its name in the prepared module.
        operator, origins, shape: of what computes it.
        sqnr_db, cosine, max_abs_error: against the float32 network, all errors before it included.
        own_sqnr_db, own_cosine, own_max_abs_error: against float32 arithmetic on the inputs that
            the node had in the quantized network, so what it adds by itself.
        saturated: share of its values that lay beyond the range of its integers; None if it has no
            range of its own.
        low, high: ends of the histograms: of all that is finite.
        float32, quantized: numbers of values in BINS bins of equal width.
    """

    value: str
    operator: str
    origins: tuple[str, ...]
    shape: tuple[int, ...]
    sqnr_db: float
    cosine: float
    max_abs_error: float
    own_sqnr_db: float
    own_cosine: float
    own_max_abs_error: float
    saturated: float | None
    low: float
    high: float
    float32: tuple[int, ...]
    quantized: tuple[int, ...]


def node_errors(module: IRModule, plan: Plan, inputs: Sequence[Array]) -> list[NodeError]:
    """One for every value that the quantized network has too, in program order.

    The quantized network is the simulated one. Where a plan rescales channels, both are compared
    rescaled.

    Args:
        module: the prepared module.
        plan: made for it.
        inputs: in order.

    Raises:
        ConfigError: the plan is another model's.
        InputError: the inputs do not fit, or no value is common to both networks.
    """
    import quantize
    from compiler.interpret.graph import trace
    from quantize.plan.adapted import adapted

    simulated = quantize.simulate(module, plan)
    base = adapted(module, plan)
    given = {p.name: x for p, x in zip(base.main.params, inputs, strict=False)}
    ran = given | {b.var.name: value for b, value in trace(simulated, *inputs)}
    alone = _Alone(base, ran, inputs)
    found = []
    for b, exact in trace(base, *inputs):
        values: Any = ran.get(b.var.name)
        if isinstance(values, np.ndarray):
            alone.learn(b, values)
        if not _is_real(exact) or not _is_real(values) or exact.shape != values.shape:
            continue
        found.append(_compared(b, exact, values, alone.value(b), plan.values.get(b.var.name)))
    if not found:
        raise InputError("the two networks have no value of the same name")
    return found


def _is_real(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.size > 0


class _Alone:
    """Float32 values of nodes on the inputs that they had in the quantized network."""

    def __init__(self, module: IRModule, ran: Mapping[str, Any], inputs: Sequence[Array]):
        from compiler.boundary.inputs import bind_inputs
        from compiler.ir.expr import tensor_type

        self.module, self.inputs = module, inputs
        self.at = {b.var: b for b in module.main.bindings}
        self.ran = ran
        self.known: dict[Binding, Any] = {}
        typed = [(p.name, tensor_type(p)) for p in module.main.params]
        self.sizes = bind_inputs(typed, tuple(inputs), {})[1]

    def learn(self, b: Binding, value: Any) -> None:
        """Take over sizes that the quantized network found while it ran, of a value that it has."""
        from compiler.boundary.shapes import bind_dims
        from compiler.ir.expr import atom_type
        from compiler.types.tensor_types import TensorType

        t = atom_type(b.var)
        if isinstance(t, TensorType) and np.ndim(value) == t.rank:
            bind_dims(t, value, self.sizes, f"%{b.var.name}")

    def value(self, b: Binding) -> Any:
        """The value of a binding; what the quantized network never had is computed as well."""
        from compiler.interpret.graph import call_reference, value_on
        from compiler.ir.expr import Call, Tuple, TupleGetItem, Var, operands
        from compiler.ir.function_calls import is_callee
        from compiler.op.opdef import OpDef

        if b not in self.known:
            args = [self._operand(a) for a in operands(b.value)]
            plain = isinstance(b.value, Call) and isinstance(b.value.op, OpDef)
            if isinstance(b.value, Call) and plain and not is_callee(b.value):
                self.known[b] = call_reference(b.value, args, b.var, self.sizes)
            elif isinstance(b.value, TupleGetItem):
                self.known[b] = args[0][b.value.index]
            elif isinstance(b.value, Tuple):
                self.known[b] = tuple(args)
            else:
                # Branches, loops, and calls of functions, ours or others', with what they capture.
                read = zip(operands(b.value), args, strict=True)
                values = {a: x for a, x in read if isinstance(a, Var)}
                self.known[b] = value_on(self.module, b, values, *self.inputs, found=self.sizes)
        return self.known[b]

    def _operand(self, a: Atom) -> Any:
        from compiler.ir.expr import Constant, Var

        if isinstance(a, Constant):
            return a.data
        assert isinstance(a, Var)
        return self.ran[a.name] if a.name in self.ran else self.value(self.at[a])


def _compared(
    b: Binding, exact: Array, values: Array, alone: Array, params: ValueParams | None
) -> NodeError:
    low, high, counts = _histograms(exact, values)
    return NodeError(
        value=b.var.name,
        operator=str(getattr(getattr(b.value, "op", None), "name", type(b.value).__name__)),
        origins=b.origins,
        shape=values.shape,
        sqnr_db=sqnr_db(values, exact),
        cosine=cosine(values, exact),
        max_abs_error=farthest(values, exact),
        own_sqnr_db=sqnr_db(values, alone),
        own_cosine=cosine(values, alone),
        own_max_abs_error=farthest(values, alone),
        saturated=None if params is None else _beyond(alone, params),
        low=low,
        high=high,
        float32=tuple(map(int, counts[0])),
        quantized=tuple(map(int, counts[1])),
    )


def _histograms(*arrays: Array) -> tuple[float, float, list[NDArray[Any]]]:
    """The least and the largest of the finite values (0 and 0 where there are none), and of each
    array how many lie in each bin between them."""
    finite = [a[np.isfinite(a)] for a in arrays]
    low = min((float(a.min()) for a in finite if a.size), default=0.0)
    high = max((float(a.max()) for a in finite if a.size), default=0.0)
    return low, high, [_counts(a.astype(np.float64), low, high) for a in finite]


def _counts(a: Array, low: float, high: float) -> NDArray[Any]:
    """How many numbers lie in each bin of equal width from `low` to `high`; equal ends are the
    middle of one. numpy's refuse ends that are as far apart as masks and scores are, or as near as
    the smallest numbers."""
    scale = max(abs(low), abs(high)) or 1.0
    first, width = low / scale, high / scale - low / scale
    at = (a / scale - first) / width if width else np.full(a.shape, 0.5)
    return np.bincount(np.clip(at * BINS, 0, BINS - 1).astype(np.int64).ravel(), minlength=BINS)


def _beyond(values: Array, params: ValueParams) -> float:
    """Share of the values that are farther than half a step outside the range of the integers."""
    low = (params.qmin - params.zero_point - 0.5) * params.scale
    high = (params.qmax - params.zero_point + 0.5) * params.scale
    return float(np.mean((values < low) | (values > high))) if values.size else 0.0
