"""Converters of what torch's autograd writes into backward graphs: what flows back through
convolutions, pooling and softmax, by the rules of our operators (`OpDef.gradient`). What torch has
decompositions of arrives as other operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compiler.frontend.node import Results
from compiler.frontend.torch.node import TorchNode, aten
from compiler.frontend.values import constant_of
from compiler.ir.expr import Atom, tensor_type
from compiler.ir.expression import Expr, Operand
from compiler.op.library import get_op
from compiler.symbolic import dim, product
from compiler.transform.gradient_step import CallStep


def flowing(
    n: TorchNode,
    op: str,
    args: Sequence[Atom],
    result: Atom,
    flows: Atom,
    wants: Sequence[bool],
    **attrs: Any,
) -> list[Atom | None]:
    """What flows back into each operand of our operator `op` whose gradient is wanted, where
    `flows` flows back into its result. Rules that need no more than the result's type may get
    anything of that type for it.

    Raises:
        UnsupportedError: the call has no gradient.
    """
    definition = get_op(op)
    assert callable(definition.gradient)
    step = CallStep(n.label, definition.make_attrs(**attrs), args, result, (flows,), wants)
    bound: dict[Expr, Atom] = {}
    parts = definition.gradient(step)
    return [
        _bound(n, p, bound) if wanted and p is not None else None
        for p, wanted in zip(parts, wants, strict=True)
    ]


def _bound(n: TorchNode, x: Operand, bound: dict[Expr, Atom]) -> Atom:
    """An expression as bindings of the program."""
    if not isinstance(x, Expr):
        return x
    if x not in bound:
        atoms = [_bound(n, e, bound) for e in x.needs]
        name = n.graph.intermediate(f"{n.graph.printable(n.name)}_part")
        bound[x] = n.graph.bind(x.make(atoms, ()), name, n.origin)
    return bound[x]


@aten("convolution_backward")
def convolution(n: TorchNode) -> Results:
    """To data, weights and bias. A transposed convolution is what flows back into the data of a
    convolution: what flows back through it is that convolution, and into its weights, what flows
    into that one's from the data as cotangent."""
    dy, x, w = (n.x(name) for name in ("grad_output", "input", "weight"))
    rank = tensor_type(x).rank
    if rank not in (3, 4):
        raise n.unsupported(f"{rank - 2} axes of a plane; 1 and 2 are supported")
    if rank == 3:
        dy, x, w = (n.step("expand_dims", v, axes=(2,)) for v in (dy, x, w))
    strides, pads, dilation = (
        ((1,) * (4 - rank) if name != "padding" else (0,) * (4 - rank)) + n.numbers(name, rank - 2)
        for name in ("stride", "padding", "dilation")
    )
    how: dict[str, Any] = {
        "strides": strides, "padding": (*pads, *pads), "dilation": dilation,
        "groups": n.number("groups"),
    }  # fmt: skip
    data, weights, bias = (bool(k) for k in n.arg("output_mask"))
    into: list[Atom | None]
    if n.arg("transposed"):
        into = [n.step("nn.conv2d", dy, w, **how)] if data else [None]
        into += flowing(n, "nn.conv2d", (dy, w), x, x, (False, weights), **how)[1:]
    else:
        into = flowing(n, "nn.conv2d", (x, w), dy, dy, (data, weights), **how)
    if rank == 3:
        into = [None if v is None else n.step("squeeze", v, axis=(2,)) for v in into]
    into.append(n.step("sum", dy, axis=(0, 2, 3), keepdims=False) if bias else None)
    return [dy if v is None else v for v in into]  # (nobody reads what is not wanted)


@aten("max_pool2d_with_indices_backward")
def max_pool(n: TorchNode) -> Results:
    """Added up at the positions in each plane that the forward graph has found."""
    dy, t, places = n.x("grad_output"), tensor_type(n.x()), n.x("indices")
    if t.rank != 4:
        raise n.unsupported("data without a batch")
    lead, plane = t.shape[:2], dim(product(t.shape[2:]))
    windows = dim(product(tensor_type(dy).shape[2:]))
    flat, at = (n.step("reshape", v, newshape=(*lead, windows)) for v in (dy, places))
    zeros = n.step("broadcast_to", constant_of(0, t.dtype), shape=(*lead, plane))
    total = n.step("scatter_elements", zeros, at, flat, axis=2, reduction="add")
    return n.call("reshape", total, newshape=t.shape)


@aten("avg_pool2d_backward")
def mean_pool(n: TorchNode) -> Results:
    """An equal share to each element of a window."""
    dy, x = n.x("grad_output"), n.x()
    if n.arg("divisor_override") is not None:
        raise n.unsupported(f"divisor_override={n.arg('divisor_override')}")
    if tensor_type(x).rank != 4:
        raise n.unsupported("data without a batch")
    kernel, pads = n.numbers("kernel_size", 2), n.numbers("padding", 2)
    (into,) = flowing(
        n, "nn.avg_pool2d", (x,), dy, dy, (True,), pool_size=kernel,
        strides=n.numbers("stride", 2) if n.arg("stride") else kernel, padding=(*pads, *pads),
        ceil_mode=bool(n.arg("ceil_mode")), count_include_pad=bool(n.arg("count_include_pad")),
    )  # fmt: skip
    return [x if into is None else into]


@aten("_adaptive_avg_pool2d_backward")
def adaptive_mean_pool(n: TorchNode) -> Results:
    """Of windows that do not overlap: an equal share to each element."""
    dy, t = n.x("grad_output"), tensor_type(n.x())
    sizes, wanted = t.shape[-2:], tensor_type(dy).shape[-2:]
    windows = []
    for size, w in zip(sizes, wanted, strict=True):
        if not isinstance(size, int) or not isinstance(w, int) or size % w:
            raise n.unsupported(f"windows of {size} elements in {w}; it must divide them")
        windows.append(size // w)
    lead, (high, wide) = t.shape[:-2], windows
    share = n.step("divide", dy, constant_of(high * wide, t.dtype))
    apart = n.step("reshape", share, newshape=(*lead, wanted[0], 1, wanted[1], 1))
    spread = n.step("broadcast_to", apart, shape=(*lead, wanted[0], high, wanted[1], wide))
    return n.call("reshape", spread, newshape=t.shape)


@aten("_softmax_backward_data", "_log_softmax_backward_data")
def softmax(n: TorchNode) -> Results:
    """By what the softmax has given."""
    dy, y = n.x("grad_output"), n.x("output")
    op = "nn.log_softmax" if "log" in n.op else "nn.softmax"
    axis = n.front(n.number("dim"), max(tensor_type(y).rank, 1))
    (into,) = flowing(n, op, (y,), y, dy, (True,), axis=axis)
    return n.converted(dy if into is None else into, n.dtype)
