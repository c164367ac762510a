"""Converters of recurrent networks: torch's order of gates as ONNX's, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compiler.frontend.node import Results
from compiler.frontend.torch.node import TorchNode, aten
from compiler.frontend.values import Imported
from compiler.ir.expr import Atom, tensor_type

_GATES = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}
"""Positions of ONNX's gates among torch's: of i, o, f, c among i, f, g, o; of z, r, h among r, z,
n."""


@aten("lstm", "gru", "rnn_tanh", "rnn_relu")
def recurrent(n: TorchNode) -> Results:
    """Layers, each in one or both directions; the states of all of them are stacked."""
    kind = {"aten.lstm": "LSTM", "aten.gru": "GRU"}.get(n.op, "RNN")
    if "data" in n.args:
        raise n.unsupported("packed sequences")
    if n.arg("train") and n.number("dropout"):
        raise n.unsupported("dropout in training; call module.eval() first")
    x = n.x("input")
    if n.arg("batch_first"):
        x = n.step("transpose", x, axes=(1, 0, 2))
    states = [n.made(n.imported(h)) for h in (n.arg("hx") if kind == "LSTM" else [n.arg("hx")])]
    params = [n.made(n.imported(p)) for p in n.arg("params")]
    both = bool(n.arg("bidirectional"))
    last: list[list[Atom]] = [[] for _ in states]
    each = len(params) // int(n.number("num_layers"))
    for layer in range(int(n.number("num_layers"))):
        weights = params[layer * each : (layer + 1) * each]
        count = 1 + both
        first = [_layers(n, s, layer * count, count) for s in states]
        x, *ends = _layer(n, kind, x, weights, first, both)
        for found, end in zip(last, ends, strict=True):
            found.append(end)
    if n.arg("batch_first"):
        x = n.step("transpose", x, axes=(1, 0, 2))
    stacked = [n.step("concatenate", *e, axis=0) if len(e) > 1 else e[0] for e in last]
    return [x, *stacked]


def _layers(n: TorchNode, states: Atom, start: int, count: int) -> Atom:
    if tensor_type(states).shape[0] == count:
        return states
    return n.step("strided_slice", states, begin=(start,), end=(start + count,), axes=(0,))


def _layer(
    n: TorchNode, kind: str, x: Atom, weights: Sequence[Atom], states: Sequence[Atom], both: bool
) -> list[Atom]:
    """[steps, batch, directions * hidden], and the states [directions, batch, hidden]."""
    directions = 1 + both
    each = len(weights) // directions
    ways = [weights[k * each : (k + 1) * each] for k in range(directions)]
    w, r = (_joined(n, [_ordered(n, way[k], kind) for way in ways]) for k in (0, 1))
    bias: Imported | None = None
    if each == 4:
        bias = _joined(
            n,
            [
                n.step("concatenate", *(_ordered(n, b, kind) for b in way[2:]), axis=0)
                for way in ways
            ],
        )
    hidden = tensor_type(r).shape[-1]
    attrs: dict[str, Any] = {
        "hidden_size": hidden,
        "direction": "bidirectional" if both else "forward",
    }
    if kind == "GRU":
        attrs["linear_before_reset"] = 1
    if n.op == "aten.rnn_relu":
        attrs["activations"] = ("Relu",) * directions
    count = 1 + len(states)
    y, *ends = n.spelled_steps(kind, count, x, w, r, bias, None, *states, **attrs)
    if directions == 1:
        return [n.step("squeeze", y, axis=(1,)), *ends]
    steps, _, batch, _ = tensor_type(y).shape
    y = n.step("transpose", y, axes=(0, 2, 1, 3))
    return [n.step("reshape", y, newshape=(steps, batch, directions * hidden)), *ends]


def _ordered(n: TorchNode, w: Atom, kind: str) -> Atom:
    """Rows of gates in ONNX's order."""
    order = _GATES[kind]
    if len(order) == 1:
        return w
    hidden = tensor_type(w).static_shape[0] // len(order)
    parts = [
        n.step("strided_slice", w, begin=(k * hidden,), end=((k + 1) * hidden,), axes=(0,))
        for k in order
    ]
    return n.step("concatenate", *parts, axis=0)


def _joined(n: TorchNode, parts: Sequence[Atom]) -> Atom:
    """The directions as a new first axis."""
    apart = [n.step("expand_dims", p, axes=(0,)) for p in parts]
    return n.step("concatenate", *apart, axis=0) if len(apart) > 1 else apart[0]
