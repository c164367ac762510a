"""oneDNN's objects in Python: descriptions of memory, attributes with post-operations, primitives.

Everything here is immutable once made, freed with the Python object, and may be used from several
threads at once.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from ctypes import byref, c_int, c_int64, c_void_p
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any

import numpy as np

from compiler.engines.onednn.library import Refused, library
from compiler.types.dtypes import Array, DType

CPU, IN_ORDER, ANY_TAG, USER_SCRATCHPAD, INFERENCE = 1, 1, 1, 1, 96
SRC, SRC_1, DST, WEIGHTS, BIAS, SCALE, SHIFT = 1, 2, 17, 33, 41, 51, 52
SCRATCHPAD, ZERO_POINTS, POST_OPS = 80, 8192, 32768
"""Numbers of operands; of a zero point it is added to its operand's, POST_OPS * (k + 1) is that of
post-operation k."""
DTYPES = {"float32": 3, "int32": 4, "int8": 5, "uint8": 6}
_NUMPY = {number: np.dtype(name) for name, number in DTYPES.items()}
_NDIMS, _DIMS, _DATA_TYPE = 256, 257, 258


class Object:
    """What the library made, by its address; freed with this."""

    def __init__(self, address: int | None, free: Callable[[Any], Any]):
        self.address = address
        end = weakref.finalize(self, free, c_void_p(address))
        end.atexit = False  # the library may be gone by then


def made(create: Callable[..., None], *args: Any) -> int:
    """The address that a function of the library gives through its first argument."""
    out = c_void_p()
    create(byref(out), *args)
    assert out.value is not None
    return out.value


@cache
def cpu() -> int:
    """The engine on which everything runs."""
    return made(library().engine_create, CPU, 0)


def stream() -> int:
    """A new stream, in which primitives run one after the other. A thread needs its own."""
    return made(library().stream_create, cpu(), IN_ORDER)


def dims(values: Sequence[int]) -> Any:
    """A table of sizes, as the library takes it."""
    return (c_int64 * 12)(*values)


# ---- descriptions of memory ----------------------------------------------------------------------
class Desc(Object):
    """Shape, dtype and order in memory of a tensor.

    Attributes:
        shape: its sizes.
        dtype: of its elements, in numpy's words.
        size: bytes that it takes.
    """

    def __init__(self, address: int):
        lib = library()
        super().__init__(address, lib.handle.dnnl_memory_desc_destroy)
        sizes, rank, number = ctypes.POINTER(c_int64)(), c_int(), c_int()
        lib.memory_desc_query(address, _NDIMS, byref(rank))
        lib.memory_desc_query(address, _DIMS, byref(sizes))
        lib.memory_desc_query(address, _DATA_TYPE, byref(number))
        self.shape = tuple(sizes[k] for k in range(rank.value))
        self.dtype = _NUMPY[number.value]
        self.size = int(lib.memory_desc_get_size(address))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Desc) and bool(
            library().memory_desc_equal(self.address, other.address)
        )

    __hash__ = None  # type: ignore[assignment]

    @staticmethod
    def plain(shape: Sequence[int], dtype: Any, strides: Sequence[int] | None = None) -> Desc:
        """A tensor in C order, or with these strides (in elements).

        Raises:
            Refused: a dtype that oneDNN does not have, a rank it does not take, or no elements.
        """
        _check(shape)
        steps = strides or [int(np.prod(shape[k + 1 :])) for k in range(len(shape))]
        create = library().memory_desc_create_with_strides
        return Desc(made(create, len(shape), dims(shape), _number(dtype), dims(steps)))

    @staticmethod
    def any(shape: Sequence[int], dtype: Any) -> Desc:
        """A tensor in whatever order a primitive likes best."""
        _check(shape)
        create = library().memory_desc_create_with_tag
        return Desc(made(create, len(shape), dims(shape), _number(dtype), ANY_TAG))

    def reshaped(self, shape: Sequence[int]) -> Desc:
        """The same memory as a tensor of another shape.

        Raises:
            Refused: its order does not allow for that.
        """
        create = library().memory_desc_reshape
        return Desc(made(create, self.address, len(shape), dims(shape)))

    def permuted(self, axes: Sequence[int]) -> Desc:
        """The same memory, axis k of which is axis axes[k] of this (as numpy.transpose)."""
        to = [0] * len(axes)
        for k, axis in enumerate(axes):
            to[axis] = k
        create = library().memory_desc_permute_axes
        return Desc(made(create, self.address, (c_int * 12)(*to)))


def _number(dtype: Any) -> int:
    name = str(np.dtype(dtype)) if not isinstance(dtype, DType) else str(dtype)
    if name not in DTYPES:
        raise Refused(f"oneDNN has no {name} here, only {', '.join(DTYPES)}")
    return DTYPES[name]


def _check(shape: Sequence[int]) -> None:
    if not 1 <= len(shape) <= 6 or 0 in shape:
        raise Refused(f"oneDNN takes tensors of 1 to 6 dimensions with elements, not {shape}")


# ---- attributes ----------------------------------------------------------------------------------
class Kind(IntEnum):
    """Functions of one number, by oneDNN's numbers. CLIP is the second version, which keeps NaN."""

    RELU = 32
    TANH = 33
    ABS = 36
    SQRT = 37
    LINEAR = 38
    HARD_SIGMOID = 40
    LOGISTIC = 41
    EXP = 42
    GELU_TANH = 43
    CLIP = 47
    GELU_ERF = 49
    ROUND = 50
    HARD_SWISH = 52


class Pair(IntEnum):
    """Functions of two numbers, by oneDNN's numbers."""

    ADD = 131056
    MUL = 131057
    MAX = 131058
    MIN = 131059
    DIV = 131060
    SUB = 131061


@dataclass(frozen=True)
class Eltwise:
    """Post-operation: a function of one number; `alpha` and `beta` as oneDNN defines them."""

    kind: Kind
    alpha: float = 0.0
    beta: float = 0.0


@dataclass(frozen=True)
class Binary:
    """Post-operation: the value and another tensor, which broadcasts to it (1 or the same size)."""

    kind: Pair
    other: Desc


@dataclass(frozen=True)
class Sum:
    """Post-operation: the value + (what the result's memory held - zero_point) * scale."""

    scale: float = 1.0
    zero_point: int = 0


PostOp = Eltwise | Binary | Sum


@dataclass(frozen=True)
class Attributes:
    """How a primitive departs from its plain form: what is done with its results, in order, and
    the operands (SRC, WEIGHTS) that have a zero point, one number for all."""

    post_ops: tuple[PostOp, ...] = ()
    zero_points: tuple[int, ...] = ()

    def build(self) -> Object:
        """The library's object. Scratch memory is the caller's."""
        lib = library()
        attr = Object(made(lib.primitive_attr_create), lib.handle.dnnl_primitive_attr_destroy)
        lib.primitive_attr_set_scratchpad_mode(attr.address, USER_SCRATCHPAD)
        for operand in self.zero_points:
            lib.primitive_attr_set_zero_points_mask(attr.address, operand, 0)
        ops = Object(made(lib.post_ops_create), lib.handle.dnnl_post_ops_destroy)
        for op in self.post_ops:
            if isinstance(op, Eltwise):
                lib.post_ops_append_eltwise(ops.address, op.kind, op.alpha, op.beta)
            elif isinstance(op, Binary):
                lib.post_ops_append_binary(ops.address, op.kind, op.other.address)
            else:
                lib.post_ops_append_sum(ops.address, op.scale, op.zero_point, 0)
        lib.primitive_attr_set_post_ops(attr.address, ops.address)
        return attr


# ---- primitives ----------------------------------------------------------------------------------
_QUERIES = {SRC: (129, 0), SRC_1: (129, 1), WEIGHTS: (131, 0), BIAS: (131, 1), DST: (133, 0)}
_SCRATCHPAD_QUERY, _NAME_QUERY, _ANY_QUERY = 136, 8, 255


class Primitive:
    """A primitive: its implementation is chosen when it is made, its code when it is first needed.

    Attributes:
        name: of the implementation, e.g. `brgconv:avx512_core_vnni`.
    """

    def __init__(self, create: str, *args: Any, attributes: Attributes | None = None):
        lib, attr = library(), (attributes or Attributes()).build()
        make = getattr(lib, f"{create}_primitive_desc_create")
        self._desc = Object(made(make, *args, attr.address), lib.handle.dnnl_primitive_desc_destroy)
        name = ctypes.c_char_p()
        lib.primitive_desc_query(self._desc.address, _NAME_QUERY, 0, byref(name))
        self.name = (name.value or b"").decode()
        self._made: Object | None = None

    @property
    def reference(self) -> bool:
        """Whether only oneDNN's plain loops do this, which are slow."""
        return "ref" in self.name.replace("_", ":").split(":") and not self.name.startswith(
            "simple"
        )

    def desc(self, operand: int) -> Desc:
        """How an operand must be held."""
        what, index = _QUERIES.get(operand, (_ANY_QUERY, operand))
        return self._queried(what, index)

    @property
    def scratchpad(self) -> int:
        """Bytes of memory that it needs while it runs."""
        address = library().primitive_desc_query_md(self._desc.address, _SCRATCHPAD_QUERY, 0)
        return int(library().memory_desc_get_size(address)) if address else 0

    def scratchpad_desc(self) -> Desc:
        """How that is held."""
        return self._queried(_SCRATCHPAD_QUERY, 0)

    @property
    def address(self) -> int | None:
        """The primitive itself; its code is generated now, if it was not before."""
        if self._made is None:
            lib = library()
            created = made(lib.primitive_create, self._desc.address)
            self._made = Object(created, lib.handle.dnnl_primitive_destroy)
        return self._made.address

    def _queried(self, what: int, index: int) -> Desc:
        lib = library()
        address = lib.primitive_desc_query_md(self._desc.address, what, index)
        return Desc(made(lib.memory_desc_clone, address))


class _Argument(ctypes.Structure):
    _fields_ = (("operand", c_int), ("memory", c_void_p))


class Memory(Object):
    """Memory at an address that somebody else owns, as a tensor."""

    def __init__(self, desc: Desc, address: int | None = None):
        lib = library()
        create = lib.memory_create
        # Address 0 would let the library own memory: -1 is none yet.
        held = c_void_p(address if address is not None else None)
        super().__init__(made(create, desc.address, cpu(), held), lib.handle.dnnl_memory_destroy)


def arguments(memories: dict[int, Memory]) -> Any:
    """A table of operands, as `execute` takes it; the memories must outlive it."""
    table = (_Argument * len(memories))()
    for entry, (operand, memory) in zip(table, memories.items(), strict=True):
        entry.operand, entry.memory = operand, memory.address
    return table


def run_once(primitive: Primitive, operands: dict[int, tuple[Desc, Array]]) -> None:
    """Run a primitive now, on arrays that are held as the descriptions say."""
    memories = {k: Memory(d, a.ctypes.data) for k, (d, a) in operands.items()}
    scratch = np.empty(max(primitive.scratchpad, 1), np.uint8)
    if primitive.scratchpad:
        memories[SCRATCHPAD] = Memory(primitive.scratchpad_desc(), scratch.ctypes.data)
    where = stream()
    lib = library()
    lib.primitive_execute(primitive.address, where, len(memories), arguments(memories))
    lib.stream_wait(where)
    lib.handle.dnnl_stream_destroy(c_void_p(where))
