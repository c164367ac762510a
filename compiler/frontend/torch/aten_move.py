"""Converters of operators that move elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from compiler.frontend.node import Results
from compiler.frontend.torch.node import Ref, TorchNode, aten, whole
from compiler.frontend.values import Imported, transposed
from compiler.ir.expr import Atom, Constant, tensor_type
from compiler.symbolic import Dim, Index, dim
from compiler.types.dtypes import INT64

_LAST = 2**62
"""torch's ends of slices from here on mean "to the end"."""


@aten("view", "reshape", "_unsafe_view", "_reshape_alias", "view_copy")
def view(n: TorchNode) -> Results:
    """Other sizes, -1 what remains; or (a dtype) the same bits as other numbers."""
    if n.arg("dtype") is not None:
        return n.call("bitcast", n.x(), dtype=str(n.dtype))
    name = "shape" if "shape" in n.args else "size"
    return n.spelled("Reshape", n.tensor("self"), whole(n.sizes(name)), allowzero=1)


@aten("permute", "permute_copy")
def permute(n: TorchNode) -> Results:
    """Axes in another order."""
    x = n.x()
    rank = tensor_type(x).rank
    return n.call("transpose", x, axes=tuple(n.front(a, rank) for a in n.arg("dims")))


@aten("transpose", "t", "mT")
def transpose(n: TorchNode) -> Results:
    """Two axes exchanged."""
    x = n.x()
    rank = tensor_type(x).rank
    if rank < 2:
        return x
    a, b = (
        n.front(n.number(k), rank) if k in n.args else d
        for k, d in (("dim0", rank - 2), ("dim1", rank - 1))
    )
    if isinstance(x, Constant) and rank == 2 and a != b:
        return transposed(x)
    order = list(range(rank))
    order[a], order[b] = b, a
    return n.call("transpose", x, axes=tuple(order))


@aten("expand", "expand_copy", "broadcast_to")
def expand(n: TorchNode) -> Results:
    """Broadcast; -1 keeps a size."""
    x = n.x()
    old = tensor_type(x).shape
    new = list(n.sizes("size"))
    for k, d in enumerate(old, start=len(new) - len(old)):
        new[k] = d if new[k] == -1 else new[k]
    return x if tuple(new) == old else n.call("broadcast_to", x, shape=tuple(new))


@aten("squeeze", "squeeze_copy")
def squeeze(n: TorchNode) -> Results:
    """Without axes of size 1: those named, or all."""
    x = n.x()
    t = tensor_type(x)
    given = n.arg("dim")
    axes = range(t.rank) if given is None else given if isinstance(given, list) else [given]
    front = tuple(sorted({n.front(a, t.rank) for a in axes if t.rank}))
    ones = tuple(a for a in front if t.shape[a] == 1)
    return n.call("squeeze", x, axis=ones) if ones else x


@aten("unsqueeze", "unsqueeze_copy")
def unsqueeze(n: TorchNode) -> Results:
    """A new axis."""
    x = n.x()
    axis = n.front(n.number("dim"), tensor_type(x).rank + 1)
    return n.call("expand_dims", x, axes=(axis,))


@aten("cat", "concatenate")
def cat(n: TorchNode) -> Results:
    """Along one axis; vectors of no elements are left out, as torch does."""
    parts = [n.made(n.imported(t)) for t in n.arg("tensors")]
    kept = [p for p in parts if tensor_type(p).shape != (0,)] or parts[:1]
    kept = [n.converted(p, n.dtype) for p in kept]
    return n.spelled("Concat", *kept, axis=n.number("dim"))


@aten("stack")
def stack(n: TorchNode) -> Results:
    """Along a new axis."""
    parts = [n.converted(n.made(n.imported(t)), n.dtype) for t in n.arg("tensors")]
    axis = n.front(n.number("dim"), tensor_type(parts[0]).rank + 1)
    apart = [n.step("expand_dims", p, axes=(axis,)) for p in parts]
    return n.call("concatenate", *apart, axis=axis) if len(apart) > 1 else apart[0]


@aten("split_with_sizes", "split", "chunk", "unsafe_split", "split_with_sizes_copy")
def split(n: TorchNode) -> Results:
    """Parts along an axis."""
    x = n.x()
    t = tensor_type(x)
    axis = n.front(n.number("dim"), t.rank)
    if n.arg("split_sizes") is not None:
        sizes = list(n.sizes("split_sizes"))
    else:
        total = t.shape[axis]
        if not isinstance(total, int):
            raise n.unsupported(f"parts of the symbolic size {total}")
        part = (
            -(-total // n.number("chunks")) if "chunks" in n.args else n.size(n.arg("split_size"))
        )
        assert isinstance(part, int)
        sizes = [min(part, total - k) for k in range(0, total, part)]
    if all(isinstance(s, int) for s in sizes):
        numbers = Constant.of(np.array([int(str(s)) for s in sizes]), INT64)
        return n.spelled("Split", x, numbers, axis=axis)
    parts, start = [], Index.of(0)
    for s in sizes:
        parts.append(n.made(_slice(n, x, axis, dim(start), dim(start + s), 1)))
        start = start + s
    return parts


@aten("unbind", "unbind_copy")
def unbind(n: TorchNode) -> Results:
    """Every position along an axis."""
    x = n.x()
    axis = n.front(n.number("dim"), tensor_type(x).rank)
    return [
        n.step("take", x, Constant.of(np.int64(k), INT64), axis=axis) if name else x
        for k, name in enumerate(n.outputs)
    ]


@aten("slice", "slice_copy")
def slice_(n: TorchNode) -> Results:
    """From a start up to an end, by steps."""
    x = n.x()
    t = tensor_type(x)
    axis = n.front(n.number("dim"), t.rank)
    start, end = _position(n, "start", 0), _position(n, "end", _LAST)
    step = n.number("step")
    if start == 0 and step == 1 and (end == t.shape[axis] or _is_last(end)):
        return x
    return n.spelled("Slice", x, *_ends(n, axis, start, end, step))


def _is_last(end: Dim | Imported) -> bool:
    return isinstance(end, int) and end >= _LAST


def _position(n: TorchNode, name: str, default: int) -> Dim | Imported:
    """A start or an end: a number, a symbolic one, or one that the program computes."""
    given = n.arg(name)
    if given is None:
        return default
    return n.graph.value(given.name) if isinstance(given, Ref) else int(given)


def _ends(n: TorchNode, axis: int, start: Dim | Imported, end: Dim | Imported, step: int
          ) -> list[Imported]:  # fmt: skip
    """Operands of a Slice along one axis."""
    return [_vector(n, start), _vector(n, end), whole([axis]), whole([step])]


def _vector(n: TorchNode, x: Dim | Imported) -> Imported:
    """One number as a vector of int64."""
    if isinstance(x, (int, Index)):
        return whole([x])
    return n.spelled_step("Reshape", x, whole([1]))


def _slice(n: TorchNode, x: Imported, axis: int, start: Dim, end: Dim, step: int) -> Imported:
    return n.spelled_step("Slice", x, *_ends(n, axis, start, end, step))


@aten("diagonal", "diagonal_copy")
def diagonal(n: TorchNode) -> Results:
    """A diagonal of two axes, along a new last one."""
    x = n.x()
    t = tensor_type(x)
    a, b = (n.front(n.number(name), t.rank) for name in ("dim1", "dim2"))
    rest = [k for k in range(t.rank) if k not in (a, b)]
    rows, columns, offset = t.shape[a], t.shape[b], n.number("offset")
    if not isinstance(rows, int) or not isinstance(columns, int):
        raise n.unsupported(f"a matrix of the symbolic size {rows} x {columns}")
    count = max(0, min(rows + min(offset, 0), columns - max(offset, 0)))
    at = np.arange(count) * (columns + 1) + max(offset, 0) - min(offset, 0) * columns
    last = n.step("transpose", x, axes=(*rest, a, b))
    flat = n.step("reshape", last, newshape=(*(t.shape[k] for k in rest), rows * columns))
    return n.call("take", flat, Constant.of(at, INT64), axis=len(rest))


@aten("narrow")
def narrow(n: TorchNode) -> Results:
    """So many elements from a start."""
    start, length = n.size(n.arg("start")), n.size(n.arg("length"))
    axis = n.front(n.number("dim"), tensor_type(n.x()).rank)
    return _slice(n, n.x(), axis, start, dim(Index.of(start) + length), 1)


@aten("select", "select_copy")
def select(n: TorchNode) -> Results:
    """One position of an axis."""
    x = n.x()
    axis = n.front(n.number("dim"), tensor_type(x).rank)
    given = n.arg("index")
    at = n.imported(given)
    if isinstance(given, int):
        at = Constant.of(np.int64(given), INT64)
    return n.spelled("Gather", x, at, axis=axis)


@aten("flip")
def flip(n: TorchNode) -> Results:
    """Axes in reversed order."""
    x = n.x()
    axes = n.axes("dims", tensor_type(x).rank)
    return n.call(
        "strided_slice", x, axes=axes, begin=(-1,) * len(axes), end=(-_LAST,) * len(axes),
        strides=(-1,) * len(axes),
    )  # fmt: skip


@aten("roll")
def roll(n: TorchNode) -> Results:
    """Elements shifted around along axes; along none, of the flattened tensor."""
    x = n.x()
    shape = tensor_type(x).shape
    shifts, axes = n.numbers("shifts", 1), n.arg("dims") or []
    if not axes:
        flat = n.step("reshape", x, newshape=(-1,))
        return n.call("reshape", _rolled(n, flat, 0, shifts[0]), newshape=shape)
    for axis, shift in zip(axes, shifts, strict=True):
        x = _rolled(n, x, n.front(axis, len(shape)), shift)
    return x


def _rolled(n: TorchNode, x: Atom, axis: int, shift: int) -> Atom:
    size = tensor_type(x).shape[axis]
    if not isinstance(size, int):
        raise n.unsupported(f"the symbolic size {size}")
    shift %= max(size, 1)
    if shift == 0:
        return x
    cut = size - shift
    a, b = (
        n.step("strided_slice", x, begin=(k,), end=(end,), axes=(axis,))
        for k, end in ((cut, size), (0, cut))
    )
    return n.step("concatenate", a, b, axis=axis)


@aten("as_strided")
def as_strided(n: TorchNode) -> Results:
    """Elements at distances in torch's memory, where neighbours are as far apart as the strides of
    the data say: of data that fills its memory, of known sizes."""
    x, given, offset = n.x(), n.arg("self"), n.arg("storage_offset")
    t = tensor_type(x)
    wanted, apart = n.sizes("size"), n.sizes("stride")
    both = zip(t.shape, given.strides, apart, strict=False)
    if wanted == t.shape and all(size == 1 or a == b for size, a, b in both) and not offset:
        return x
    if not all(isinstance(k, int) for k in (*t.shape, *given.strides)):
        raise n.unsupported(f"data of the symbolic sizes {t}")
    shape, size = t.static_shape, math.prod(t.static_shape)
    long = [k for k in range(t.rank) if shape[k] != 1]  # strides of others say nothing
    order = sorted(long, key=lambda k: -int(given.strides[k]))
    inner = [math.prod(shape[j] for j in order[i + 1 :]) for i in range(len(order))]
    if [given.strides[k] for k in order] != inner or offset:
        raise n.unsupported("views of a part of a tensor's memory")
    sizes, strides = n.numbers("size", 0), n.numbers("stride", 0)
    n.reserve(*sizes)
    at = np.zeros(sizes, np.int64)
    for k, stride in enumerate(strides):
        at += np.arange(sizes[k]).reshape(-1, *(1 for _ in sizes[k + 1 :])) * stride
    if at.size and at.max() >= size:
        raise n.unsupported(f"positions beyond the {size} elements of its data")
    inverse = np.arange(size).reshape([shape[k] for k in order]).transpose(np.argsort(order))
    if at.size == size and (at.reshape(-1) == inverse.reshape(-1)).all():
        return n.call("reshape", x, newshape=sizes)  # in the order that the data has
    one = [k for k in range(t.rank) if k not in order]
    flat = n.step("transpose", x, axes=(*one, *order)) if [*one, *order] != [*range(t.rank)] else x
    flat = n.step("reshape", flat, newshape=(-1,))
    if at.size == size and (at.reshape(-1) == np.arange(size)).all():
        return n.call("reshape", flat, newshape=sizes)
    return n.call("take", flat, Constant.of(at, INT64), axis=0)


@aten("repeat")
def repeat(n: TorchNode) -> Results:
    """Tiles; more numbers than axes make new ones in front."""
    x = n.x()
    times = n.sizes("repeats")
    more = len(times) - tensor_type(x).rank
    if more > 0:
        x = n.step("expand_dims", x, axes=tuple(range(more)))
    return n.spelled("Tile", x, whole(times))


@aten("unfold")
def unfold(n: TorchNode) -> Results:
    """Windows along an axis, their elements along a new last one."""
    x = n.x()
    t = tensor_type(x)
    axis = n.front(n.number("dimension"), t.rank)
    size, step, total = n.number("size"), n.number("step"), t.shape[axis]
    if not isinstance(total, int):
        raise n.unsupported(f"the symbolic size {total}")
    at = np.arange(0, total - size + 1, step)[:, None] + np.arange(size)
    taken = n.step("take", x, Constant.of(at, INT64), axis=axis)
    order = [k for k in range(t.rank + 1) if k != axis + 1]
    return n.call("transpose", taken, axes=(*order, axis + 1))


def moved_first(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """An order in which `axes` come first."""
    return (*axes, *(k for k in range(rank) if k not in axes))
