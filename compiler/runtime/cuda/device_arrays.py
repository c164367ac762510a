"""Tensors in a device's memory, which other libraries take over and give by DLPack, without copies
(https://dmlc.github.io/dlpack, dlpack.h)."""

from __future__ import annotations

import ctypes
import itertools
import math
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.boundary.external import DLTensor
from compiler.errors import InputError
from compiler.runtime.addresses import address
from compiler.runtime.cuda.device import Device
from compiler.runtime.cuda.memory import Block, Pool
from compiler.types.dtypes import Array

_NEW, _TAKEN = b"dltensor", b"used_dltensor"
_KNOWN = {(kind, bits) for kind in "iu" for bits in (8, 16, 32, 64)} | {
    ("b", 8), ("f", 16), ("f", 32), ("f", 64),
}  # fmt: skip
_BFLOAT = 4
"""DLPack's code of bfloat16, of which numpy has no dtype: they are `uint16` codes here."""


class _Managed(ctypes.Structure):
    """DLManagedTensor: a tensor, and what to call when nobody needs it any more."""

    _fields_ = (
        ("tensor", DLTensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


def _python(name: str, result: Any, *arguments: Any) -> Any:
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_new = _python("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_is = _python("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_is_dying = _python("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_pointer = _python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_pointer_dying = _python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
_rename = _python("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)

_exported: dict[int, tuple[Any, ...]] = {}
"""What others hold: where its description is -> what is kept for it."""


def _deleted(at: int) -> None:
    _exported.pop(at, None)


def _destroyed(capsule: int) -> None:
    if _is_dying(capsule, _NEW):  # nobody has taken it
        _exported.pop(_pointer_dying(capsule, _NEW), None)


_delete, _destroy = _Deleter(_deleted), _Destructor(_destroyed)


@dataclass
class _Owned:
    """A block of memory, and whether others have read it, who may not have come to their end."""

    block: Block | None
    exported: bool = False

    def give(self, pool: Pool) -> None:
        """Give it back, once."""
        if self.block is not None:
            pool.give(self.block, settled=not self.exported)
            self.block = None


class DeviceArray:
    """A tensor in C order in a device's memory, which is given back when nobody holds this, or what
    was made of it by `__dlpack__`, any more.

    Attributes:
        shape, dtype: of its elements, as numpy says it; of custom formats they are codes.
        address: where it is on the device.
    """

    def __init__(self, device: Device, shape: tuple[int, ...], dtype: Any, room: int = 0):
        """Memory for a tensor, with anything in it, and `room` more bytes behind it."""
        self._device, self.shape = device, shape
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self._owned = _Owned(device.pool.take(self.nbytes + room, f"a tensor of shape {shape}"))
        assert self._owned.block is not None
        self.address = self._owned.block.address
        weakref.finalize(self, self._owned.give, device.pool).atexit = False

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    def numpy(self) -> Array:
        """The elements as an array, which is a copy."""
        out = np.empty(self.shape, self.dtype)
        if out.nbytes:
            driver = self._device.driver
            stream = driver.stream()
            try:
                driver.download(address(out), self.address, out.nbytes, stream)
                driver.synchronize(stream)
            finally:
                driver.close_stream(stream)
        return out

    def __dlpack_device__(self) -> tuple[int, int]:
        """Type and number of the device."""
        place = self._device.driver.place
        if place is None:
            raise BufferError(f"nobody can read the memory of {self._device.driver.emulated}")
        return place

    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: object = None,
        dl_device: object = None,
        copy: bool | None = None,
    ) -> Any:
        """The tensor for others, in a capsule. What computed it has ended, so that no `stream` has
        to wait for it.

        Raises:
            BufferError: a copy, or another device, is asked for.
        """
        place = self.__dlpack_device__()
        if copy or dl_device not in (None, place):
            raise BufferError("the tensor is given as it is, where it is")
        count = len(self.shape)
        shape = (ctypes.c_int64 * max(1, count))(*self.shape)
        strides = (ctypes.c_int64 * max(1, count))(*_strides(self.shape))
        managed = _Managed()
        t = managed.tensor
        t.data, t.ndim, t.shape, t.strides = self.address, count, shape, strides
        t.device.device_type, t.device.device_id = place
        t.dtype.code, t.dtype.bits = DLTensor.CODES[self.dtype.kind], 8 * self.dtype.itemsize
        t.dtype.lanes = 1
        managed.deleter = ctypes.cast(_delete, ctypes.c_void_p)
        at = ctypes.addressof(managed)
        capsule = _new(at, _NEW, ctypes.cast(_destroy, ctypes.c_void_p))
        self._owned.exported = True
        _exported[at] = self, managed, shape, strides
        return capsule

    def __repr__(self) -> str:
        where = self._device.driver.properties.name
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype.name}, on {where})"


@dataclass
class Given:
    """A tensor on the device that somebody gives: where, what, and what keeps it there."""

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    keep: object

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.shape) * self.dtype.itemsize


def on_a_device(x: object) -> bool:
    """Whether `x` is a tensor that is not in this process's memory, as far as it says so."""
    if isinstance(x, DeviceArray):
        return True
    ask = getattr(x, "__dlpack_device__", None)
    return ask is not None and not isinstance(x, np.ndarray) and ask()[0] != DLTensor.CPU


def given(name: str, x: Any, device: Device, stream: int) -> Given:
    """What is on the device as it is; work on `stream` waits for who computes it.

    Raises:
        InputError: it is elsewhere, or not in C order, or of an element type that numpy has not.
    """
    if isinstance(x, DeviceArray):
        if x._device is not device:
            raise InputError(f"input {name!r} is in the memory of another device")
        return Given(x.address, x.shape, x.dtype, x)
    place = tuple(map(int, x.__dlpack_device__()))
    if place != device.driver.place:
        raise InputError(
            f"input {name!r} is on DLPack's device {place}, and the program runs on "
            f"{device.driver.properties.name}, {device.driver.place}"
        )
    capsule = x.__dlpack__(stream=stream)
    if not _is(capsule, _NEW):
        raise InputError(f"input {name!r} is no tensor of DLPack that can be taken")
    at = _pointer(capsule, _NEW)
    keep = _Taken(at, capsule)
    t = keep.managed.tensor
    shape = tuple(t.shape[k] for k in range(t.ndim))
    bits, code, lanes = t.dtype.bits, t.dtype.code, t.dtype.lanes
    kinds = {c: kind for kind, c in DLTensor.CODES.items()}
    kind = "u" if (code, bits) == (_BFLOAT, 16) else kinds.get(code)
    if kind is None or lanes != 1 or (kind, bits) not in _KNOWN:
        raise InputError(
            f"input {name!r} has elements of {bits} bits that are not known (DLPack code {code})"
        )
    if bool(t.strides) and 0 not in shape:
        told = tuple(t.strides[k] for k in range(t.ndim))
        same = zip(shape, told, _strides(shape), strict=True)
        if not all(n == 1 or a == b for n, a, b in same):
            raise InputError(f"input {name!r} is not in C order: make it contiguous")
    dtype = np.dtype(bool) if kind == "b" else np.dtype(f"{kind}{bits // 8}")
    return Given((t.data or 0) + t.byte_offset, shape, dtype, keep)


class _Taken:
    """A tensor that was taken over; its owner is told when nobody needs it any more."""

    def __init__(self, at: int, capsule: object):
        self.managed = _Managed.from_address(at)
        _rename(capsule, _TAKEN)
        if deleter := self.managed.deleter:
            weakref.finalize(self, _Deleter(deleter), at)


def _strides(shape: tuple[int, ...]) -> list[int]:
    """Elements from one position to the next along every axis, in C order."""
    behind = itertools.accumulate(reversed(shape[1:]), lambda a, b: a * b, initial=1)
    return [*behind][::-1][: len(shape)]
