"""External functions: Python and C functions that compiled programs call in destination-passing
style, on the tensors' own memory.

A Python function gets numpy arrays, which other libraries take over by DLPack without copying
(`torch.from_dlpack(x)`); a C function, given as a ctypes function pointer, gets a `DLTensor *` for
each (https://dmlc.github.io/dlpack). The operands come first, then the tensors to fill. They are
there for the time of the call.
"""

from __future__ import annotations

import _ctypes
import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.boundary.homes import FUNCTIONS
from compiler.errors import DtypelabError, unknown
from compiler.symbolic import Index, Var
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType

ExternalFunction = Callable[..., Any]
_functions: dict[str, ExternalFunction] = {}
THUNK = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int64))
"""What compiled code calls: with a table of the tensors' addresses, and the symbolic dimensions."""


def register_func(name: str, f: ExternalFunction | None = None, override: bool = False) -> Any:
    """Make `f` callable from programs under `name`; without `f`, a decorator.

    `f(*operands, *results)` fills the results, and leaves the operands as they are. Programs look
    it up each time they run.

    Raises:
        DtypelabError: the name is taken and `override` is false, or `f` cannot be called.
    """
    if f is None:
        return lambda g: register_func(name, g, override)
    if not callable(f):
        raise DtypelabError(f"{name!r}: a function must be given, not {type(f).__name__}")
    if name in _functions and not override:
        raise DtypelabError(f"function {name!r} is already registered: pass override=True")
    _functions[name] = f
    return f


def get_func(name: str) -> ExternalFunction:
    """The function registered as `name`.

    Raises:
        DtypelabError: there is none.
    """
    if name not in _functions:
        FUNCTIONS.fetch(name)
    if name not in _functions:
        hint = f"; register it with compiler.register_func({name!r}, f)"
        raise DtypelabError(unknown("external function", name, _functions) + hint)
    return _functions[name]


def remove_func(name: str) -> None:
    """Forget the function registered as `name`, if there is one."""
    _functions.pop(name, None)


def call_func(name: str, arrays: Sequence[Array]) -> None:
    """Call the function registered as `name` on operands and results."""
    f = get_func(name)
    if isinstance(f, _ctypes.CFuncPtr):
        f(*(ctypes.byref(DLTensor.of(a)) for a in arrays))
    else:
        f(*arrays)


class _DLDevice(ctypes.Structure):
    _fields_ = (("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32))


class _DLDataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class DLTensor(ctypes.Structure):
    """DLPack's description of a tensor in memory (dlpack.h)."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", _DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )
    CPU = 1
    CODES: Mapping[str, int] = {"i": 0, "u": 1, "f": 2, "b": 6}

    @staticmethod
    def of(a: Array) -> DLTensor:
        """The description of an array, which must outlive it."""
        shape = (ctypes.c_int64 * a.ndim)(*a.shape)
        strides = (ctypes.c_int64 * a.ndim)(*(s // a.itemsize for s in a.strides))
        dtype = _DLDataType(DLTensor.CODES[a.dtype.kind], 8 * a.itemsize, 1)
        device = _DLDevice(DLTensor.CPU, 0)
        return DLTensor(a.ctypes.data, device, a.ndim, dtype, shape, strides, 0)


@dataclass(frozen=True)
class External:
    """A call of a registered function in a compiled program.

    Attributes:
        name: what it is registered as.
        types: of its operands, then of its results.
        constant: which constant of the program holds the address that compiled code calls.
    """

    name: str
    types: tuple[TensorType, ...]
    constant: int


class Linkage:
    """The addresses that a program's external calls go through, and what they raised.

    An exception cannot pass through compiled code: the first one in a thread is kept, no further
    external function is called, and `check` raises it when the program has ended.
    """

    def __init__(self, calls: Sequence[External], dims: Sequence[Var]):
        self.calls, self.dims = tuple(calls), tuple(dims)
        self._raised = threading.local()
        self._thunks = [THUNK(self._thunk(c)) for c in calls]

    @property
    def addresses(self) -> dict[int, Array]:
        """Constant -> an array that holds the address to call."""
        out = {}
        for c, thunk in zip(self.calls, self._thunks, strict=True):
            pointer = ctypes.cast(thunk, ctypes.c_void_p).value
            out[c.constant] = np.array([pointer], np.uint64)
        return out

    def require(self) -> None:
        """Raise DtypelabError if a function is not registered."""
        for c in self.calls:
            get_func(c.name)

    def check(self) -> None:
        """Raise what an external function raised in this thread."""
        error: BaseException | None = getattr(self._raised, "error", None)
        if error is not None:
            self._raised.error = None
            raise error

    def _thunk(self, c: External) -> Callable[..., None]:
        def call(pointers: Any, dims: Any) -> None:
            if getattr(self._raised, "error", None) is not None:
                return
            try:
                known = {v: int(dims[k]) for k, v in enumerate(self.dims)}
                views = [_view(pointers[k], t, known) for k, t in enumerate(c.types)]
                call_func(c.name, views)
            except BaseException as e:
                self._raised.error = e

        return call


def _view(pointer: int, t: TensorType, dims: Mapping[Var, int]) -> Array:
    """The tensor at an address, as an array on the same memory."""
    shape = tuple(d.value(dims) if isinstance(d, Index) else d for d in t.shape)
    size = int(np.prod(shape, dtype=np.int64)) * t.dtype.nbytes
    if size == 0:
        return np.empty(shape, t.dtype.storage)
    memory = (ctypes.c_uint8 * size).from_address(pointer)
    return np.frombuffer(memoryview(memory), t.dtype.storage).reshape(shape)
