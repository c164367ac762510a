"""Converters of recurrent networks: a few known steps are written out, others are a loop.

Equations, gate orders and defaults are those of the operators RNN, GRU and LSTM of ONNX.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from compiler.frontend.branches import over_steps
from compiler.frontend.node import Node, converts
from compiler.frontend.values import Imported, scalar, transposed
from compiler.ir.expr import Atom, Constant, tensor_type
from compiler.symbolic import Dim
from compiler.types.dtypes import BOOL, INT64
from compiler.types.tensor_types import TensorType, require_equal, shape_text

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_DEFAULTS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
_ACTIVATIONS = {"Sigmoid": "sigmoid", "Tanh": "tanh", "Relu": "nn.relu"}
MOST_STEPS = 1024
"""Longer sequences are a loop: the written-out program would be too large."""

Function = Callable[[Atom], Atom]
State = tuple[Atom, ...]


@dataclass(frozen=True)
class _Layer:
    """One direction: weights [inputs, gates * hidden] and the like, and what acts on gates.
    `rounded`: states are rounded to 8 bits before they meet the weights."""

    n: Node
    hidden: int
    weight: Atom
    recurrent: Atom
    biases: tuple[Atom, Atom] | None
    peepholes: tuple[Atom, ...]
    functions: tuple[Function, ...]
    clip: float
    rounded: bool = False

    def gate(self, x: Atom, k: int) -> Atom:
        """Columns of gate `k` of [batch, gates * hidden]."""
        if tensor_type(x).shape[-1] == self.hidden:
            return x
        begin, end = (k * self.hidden,), ((k + 1) * self.hidden,)
        return self.n.step("strided_slice", x, begin=begin, end=end, axes=(1,))

    def act(self, f: int, x: Atom) -> Atom:
        """Activation `f` of `x` clipped to the threshold."""
        if self.clip:
            x = self.n.step("clip", x, a_min=-self.clip, a_max=self.clip)
        return self.functions[f](x)

    def add(self, *xs: Atom) -> Atom:
        """The sum, from the left."""
        total = xs[0]
        for x in xs[1:]:
            total = self.n.step("add", total, x)
        return total

    def mul(self, a: Atom, b: Atom) -> Atom:
        """a * b."""
        return self.n.step("multiply", a, b)


# ---- one step ------------------------------------------------------------------------------------
def _rnn(s: _Layer, x: Atom, state: State) -> State:
    """H = f(X W + H R + b)."""
    return (s.act(0, s.add(x, _from_state(s, state[0]))),)


def _lstm(s: _Layer, x: Atom, state: State) -> State:
    """i, o, f = f(.); c = g(.); C = f C + i c; H = o h(C), with peepholes from C to the gates."""
    h, c = state
    gates = s.add(x, _from_state(s, h))
    i, o, f, cell = (s.gate(gates, k) for k in range(4))
    if s.peepholes:
        i, f = s.add(i, s.mul(s.peepholes[0], c)), s.add(f, s.mul(s.peepholes[2], c))
    i, f, cell = s.act(0, i), s.act(0, f), s.act(1, cell)
    new = s.add(s.mul(f, c), s.mul(i, cell))
    if s.peepholes:
        o = s.add(o, s.mul(s.peepholes[1], new))
    return s.mul(s.act(0, o), s.functions[2](new)), new


def _gru(s: _Layer, x: Atom, state: State) -> State:
    """z, r = f(.); h = g(X W + (r H) R + b), or r (H R + b); H = (1 - z) h + z H."""
    (h,) = state
    past = _from_state(s, h)
    z, r = (s.act(0, s.add(s.gate(x, k), s.gate(past, k))) for k in (0, 1))
    if s.n.attr("linear_before_reset", 0):
        inner = s.mul(r, s.gate(past, 2))
    else:
        weight = s.gate(s.recurrent, 2)
        inner = s.n.step("nn.matmul", s.mul(r, h), weight)
        if s.biases:
            inner = s.add(inner, s.gate(s.biases[1], 2))
    new = s.act(1, s.add(s.gate(x, 2), inner))
    one = scalar(1, tensor_type(z))
    return (s.add(s.mul(s.n.step("subtract", one, z), new), s.mul(z, h)),)


def _from_state(s: _Layer, h: Atom) -> Atom:
    h = rounded_to_bytes(s.n, h) if s.rounded else h
    y = s.n.step("nn.matmul", h, s.recurrent)
    return s.add(y, s.biases[1]) if s.biases else y


_STEPS = {"RNN": _rnn, "GRU": _gru, "LSTM": _lstm}


# ---- the operators -------------------------------------------------------------------------------
@dataclass(frozen=True)
class QuantizedWeights:
    """Weights [directions, inputs, gates * hidden] and [directions, hidden, gates * hidden] that
    inputs and states are rounded to 8 bits for."""

    weight: Constant
    recurrent: Constant


def rounded_to_bytes(n: Node, x: Atom) -> Atom:
    """x rounded to a grid of 256 numbers over its range, 0 included: DynamicQuantizeLinear, and
    back."""
    t = tensor_type(x)
    axes, zero = tuple(range(t.rank)), scalar(0, t)
    low = n.step("minimum", n.step("min", x, axis=axes), zero)
    high = n.step("maximum", n.step("max", x, axis=axes), zero)
    step = n.step("divide", n.step("subtract", high, low), scalar(255, t))
    step = n.step("where", n.step("equal", step, zero), scalar(1, t), step)

    def clipped(v: Atom) -> Atom:
        return n.step("clip", v, a_min=0.0, a_max=255.0)

    offset = n.step("round", clipped(n.step("divide", n.step("negative", low), step)))
    q = clipped(n.step("add", n.step("round", n.step("divide", x, step)), offset))
    return n.step("multiply", n.step("subtract", q, offset), step)


@converts("RNN", "GRU", "LSTM")
def recurrent_network(n: Node) -> Sequence[Imported]:
    """See `recurrent`."""
    return recurrent(n)


def recurrent(n: Node, quantized: QuantizedWeights | None = None) -> Sequence[Imported]:
    """All directions and layouts. `quantized` are the weights if those of the node are integers."""
    direction = n.expect("direction", "forward", "forward", "reverse", "bidirectional")
    batch_first = bool(n.expect("layout", 0, 0, 1))
    n.expect("input_forget", 0, 0)
    n.rank_of(0, 3)
    if n.op == "LSTM" and n.attr("clip", 0.0):
        raise n.unsupported("clip: runtimes disagree on whether the cell is clipped")
    x = n.atom(0)
    if batch_first:
        x = n.step("transpose", x, axes=(1, 0, 2))
    steps, batch, _ = tensor_type(x).shape
    written = isinstance(steps, int) and steps <= MOST_STEPS
    written = written and (not n.has(4) or n.constant(4) is not None)
    lengths = _lengths(n, steps) if written and isinstance(steps, int) else None
    run_time_lengths = None if written or not n.has(4) else _run_time_lengths(n, batch)
    hidden = int(n.type(2).static_shape[2])
    if quantized is not None:
        x, hidden = rounded_to_bytes(n, x), int(quantized.recurrent.data.shape[1])
    backward = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
    outputs, stacks, finals = [], [], []
    for d, back in enumerate(backward):
        layer = _layer(n, d, hidden, len(backward), quantized)
        state = tuple(_start(n, i, d, (batch, hidden)) for i in _state_inputs(n))
        if written and isinstance(steps, int):
            ys, final = _run(layer, x, state, steps, back, lengths)
            outputs.append(ys)
        else:
            rows, final = _looped(layer, x, state, steps, back, run_time_lengths)
            stacks.append(rows)
        finals.append(final)
    first = _joined(n, stacks, batch_first) if stacks else _written(n, outputs, batch_first)
    return _results(n, first, finals, batch_first)


def _state_inputs(n: Node) -> tuple[int, ...]:
    return (5, 6) if n.op == "LSTM" else (5,)


def _lengths(n: Node, steps: int) -> tuple[int, ...] | None:
    """Length of each sequence of the batch; None if all have every step."""
    if not n.has(4):
        return None
    known = tuple(int(v) for v in n.known(4, "sequence_lens").reshape(-1))
    if min(known) < 1 or max(known) > steps:
        raise n.unsupported(f"sequence_lens={known} for {steps} steps")
    return None if min(known) == steps else known


def _part(n: Node, i: int, d: int) -> Atom:
    """Input `i` of direction `d`, without the axis of directions."""
    v = n.atom(i)
    if isinstance(v, Constant):
        return Constant(np.ascontiguousarray(v.data[d]), v.dtype)
    return n.step(
        "squeeze", n.step("strided_slice", v, begin=(d,), end=(d + 1,), axes=(0,)), axis=(0,)
    )


def _transposed(n: Node, w: Atom) -> Atom:
    return transposed(w) if isinstance(w, Constant) else n.step("transpose", w, axes=(1, 0))


def _layer(
    n: Node, d: int, hidden: int, directions: int, quantized: QuantizedWeights | None
) -> _Layer:
    gates = _GATES[n.op]
    weight: Atom
    past: Atom
    if quantized is None:
        weight, past = (_transposed(n, _part(n, i, d)) for i in (1, 2))
    else:
        weight, past = (
            Constant(np.ascontiguousarray(c.data[d]), c.dtype)
            for c in (quantized.weight, quantized.recurrent)
        )
    biases: tuple[Atom, Atom] | None = None
    peepholes: tuple[Atom, ...] = ()
    if n.has(3):
        row = n.step("reshape", _part(n, 3, d), newshape=(1, 2 * gates * hidden))
        cuts = [(0, gates * hidden), (gates * hidden, 2 * gates * hidden)]
        first, second = (
            n.step("strided_slice", row, begin=(a,), end=(b,), axes=(1,)) for a, b in cuts
        )
        biases = (first, second)
    if n.op == "LSTM" and n.has(7):
        row = n.step("reshape", _part(n, 7, d), newshape=(1, 3 * hidden))
        peepholes = tuple(
            n.step("strided_slice", row, begin=(k * hidden,), end=((k + 1) * hidden,), axes=(1,))
            for k in range(3)
        )
    return _Layer(
        n, hidden, weight, past, biases, peepholes, _functions(n, d, directions),
        float(n.attr("clip", 0.0)), quantized is not None,
    )  # fmt: skip


def _functions(n: Node, d: int, directions: int) -> tuple[Function, ...]:
    defaults = _DEFAULTS[n.op]
    names = tuple(n.attr("activations", defaults * directions))
    if len(names) != len(defaults) * directions:
        raise n.unsupported(f"activations={names}: {len(defaults) * directions} are needed")
    mine = names[d * len(defaults) : (d + 1) * len(defaults)]
    for name in mine:
        if name not in _ACTIVATIONS:
            raise n.unsupported(f"the activation {name}; supported: {', '.join(_ACTIVATIONS)}")
    return tuple(lambda x, op=_ACTIVATIONS[name]: n.step(op, x) for name in mine)


def _start(n: Node, i: int, d: int, shape: Sequence[Dim]) -> Atom:
    """The initial state [batch, hidden], by default 0."""
    if not n.has(i):
        return n.step("broadcast_to", scalar(0, n.type(0)), shape=tuple(shape))
    if n.attr("layout", 0):
        v = n.step("transpose", n.atom(i), axes=(1, 0, 2))
        cut = n.step("strided_slice", v, begin=(d,), end=(d + 1,), axes=(0,))
        state = n.step("squeeze", cut, axis=(0,))
    else:
        state = _part(n, i, d)
    given = tensor_type(state).shape
    text = f"an initial state of shape {shape_text(given)}, not {shape_text(shape)}"
    require_equal(zip(given, shape, strict=True), text)
    return state


def _run(
    s: _Layer, x: Atom, state: State, steps: int, back: bool, lengths: tuple[int, ...] | None
) -> tuple[list[Atom], State]:
    """Results of every step [batch, hidden], in the order of the input; and the last state.

    A sequence that has ended keeps its state and gives zeros; backward, it starts at its own end.
    """
    n, done = s.n, []
    for t in range(steps)[::-1] if back else range(steps):
        cut = n.step("strided_slice", x, begin=(t,), end=(t + 1,), axes=(0,))
        row = n.step("nn.matmul", n.step("squeeze", cut, axis=(0,)), s.weight)
        if s.biases:
            row = s.add(row, s.biases[0])
        new = _STEPS[n.op](s, row, state)
        shown = new[0]
        if lengths is not None and min(lengths) <= t:
            alive = Constant(np.array([[t < k] for k in lengths]), BOOL)
            new = tuple(n.step("where", alive, a, b) for a, b in zip(new, state, strict=True))
            shown = n.step("where", alive, shown, scalar(0, tensor_type(shown)))
        state = new
        done.append(shown)
    return done[::-1] if back else done, state


def _looped(
    s: _Layer, x: Atom, state: State, steps: Dim, back: bool, lengths: Atom | None
) -> tuple[Atom, State]:
    """As `_run`, with the results as [steps, batch, hidden]; `lengths`: int64 [batch]."""
    n = s.n
    inputs = n.step("nn.matmul", x, s.weight)
    if s.biases:
        inputs = s.add(inputs, s.biases[0])

    def step(at: Atom, past: Sequence[Atom]) -> list[Imported]:
        row = n.step("take", inputs, at, axis=0)
        new = _STEPS[n.op](s, row, tuple(past))
        shown = new[0]
        if lengths is not None:
            alive = n.step("expand_dims", n.step("less", at, lengths), axes=(1,))
            new = tuple(n.step("where", alive, a, b) for a, b in zip(new, past, strict=True))
            shown = n.step("where", alive, shown, scalar(0, tensor_type(shown)))
        return [*new, shown]

    *final, rows = over_steps(n, steps, state, step, back)
    if lengths is not None:  # as in onnxruntime, a sequence without steps ends with zeros
        some = n.step("less", Constant.of(np.int64(0), INT64), lengths)
        some = n.step("expand_dims", some, axes=(1,))
        final = [n.step("where", some, a, scalar(0, tensor_type(a))) for a in final]
    return rows, tuple(final)


def _run_time_lengths(n: Node, batch: Dim) -> Atom:
    lengths = n.atom(4)
    require_equal(zip(tensor_type(lengths).shape, (batch,), strict=True), "sequence_lens")
    if tensor_type(lengths).dtype != INT64:
        lengths = n.step("cast", lengths, dtype="int64")
    return lengths


def _stacked(n: Node, parts: Sequence[Atom], axis: int) -> Atom:
    wide = [n.step("expand_dims", p, axes=(axis,)) for p in parts]
    return wide[0] if len(wide) == 1 else n.step("concatenate", *wide, axis=axis)


def _written(n: Node, outputs: Sequence[Sequence[Atom]], batch_first: bool) -> list[Atom]:
    """What Y [steps, directions, batch, hidden] consists of, step by step."""
    where = 1 if batch_first else 0
    steps = [_stacked(n, at, where) for at in zip(*outputs, strict=True)] if n.wants(0) else []
    return [n.step("expand_dims", p, axes=(where,)) for p in steps]


def _joined(n: Node, stacks: Sequence[Atom], batch_first: bool) -> list[Atom]:
    """Y of what each direction gives for all steps."""
    if not n.wants(0):
        return []
    if batch_first:
        stacks = [n.step("transpose", y, axes=(1, 0, 2)) for y in stacks]
    return [_stacked(n, stacks, 2 if batch_first else 1)]


def _results(
    n: Node, first: Sequence[Atom], finals: Sequence[State], batch_first: bool
) -> list[Imported]:
    """Y [steps, directions, batch, hidden], of its parts along the steps, and the final states
    [directions, batch, hidden]."""
    results: list[Imported] = []
    where = 1 if batch_first else 0
    if n.wants(0):
        results.append(_named(n, 0, first, where))
    for i in range(len(_state_inputs(n))):
        if n.wants(1 + i):
            wide = [n.step("expand_dims", f[i], axes=(where,)) for f in finals]
            results += [wide[0]] * (1 + i - len(results))
            results.append(_named(n, 1 + i, wide, where))
    return results


def _named(n: Node, i: int, parts: Sequence[Atom], axis: int) -> Atom:
    """Output `i`: the parts joined along `axis`."""
    if len(parts) == 1:
        t: TensorType = tensor_type(parts[0])
        return n.result(i, "reshape", parts[0], newshape=t.shape)
    return n.result(i, "concatenate", *parts, axis=axis)
