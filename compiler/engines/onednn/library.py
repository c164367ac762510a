"""oneDNN's shared library: where it is, and its C functions with checked statuses.

The names, numbers and argument types are those of oneAPI Deep Neural Network Library 3 (its C API,
dnnl.h and dnnl_types.h; https://oneapi-src.github.io/oneDNN). Nothing is loaded before it is asked
for.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import importlib.metadata
import os
from collections.abc import Iterator
from ctypes import POINTER, c_char_p, c_float, c_int, c_size_t, c_uint, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from compiler.errors import UnsupportedError

PATH_VARIABLE = "DTYPELAB_ONEDNN"
"""Environment variable that names the library's file."""
INSTALL = f"pip install 'dtypelab[onednn]', or let {PATH_VARIABLE} name libdnnl.so of oneDNN 3"
MAJOR = 3
STATUSES = {
    1: "is out of memory",
    2: "says that the arguments do not fit together",
    3: "does not implement this",
    4: "has no further implementation",
    5: "failed as it ran",
    6: "says that this is not needed",
}
UNIMPLEMENTED = (2, 3, 4)
"""Statuses of what is refused, rather than failed."""
_DESC, _PD, _DIMS = c_void_p, c_void_p, c_void_p

#: name -> types of arguments; all return a status but those of _PLAIN.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "engine_create": (POINTER(c_void_p), c_int, c_size_t),
    "stream_create": (POINTER(c_void_p), c_void_p, c_uint),
    "stream_wait": (c_void_p,),
    "memory_desc_create_with_strides": (POINTER(c_void_p), c_int, _DIMS, c_int, _DIMS),
    "memory_desc_create_with_tag": (POINTER(c_void_p), c_int, _DIMS, c_int, c_int),
    "memory_desc_reshape": (POINTER(c_void_p), _DESC, c_int, _DIMS),
    "memory_desc_permute_axes": (POINTER(c_void_p), _DESC, c_void_p),
    "memory_desc_clone": (POINTER(c_void_p), _DESC),
    "memory_desc_query": (_DESC, c_int, c_void_p),
    "memory_desc_destroy": (_DESC,),
    "memory_create": (POINTER(c_void_p), _DESC, c_void_p, c_void_p),
    "memory_set_data_handle": (c_void_p, c_void_p),
    "memory_destroy": (c_void_p,),
    "primitive_attr_create": (POINTER(c_void_p),),
    "primitive_attr_destroy": (c_void_p,),
    "primitive_attr_set_scratchpad_mode": (c_void_p, c_int),
    "primitive_attr_set_zero_points_mask": (c_void_p, c_int, c_int),
    "primitive_attr_set_scales_mask": (c_void_p, c_int, c_int),
    "primitive_attr_set_post_ops": (c_void_p, c_void_p),
    "post_ops_create": (POINTER(c_void_p),),
    "post_ops_destroy": (c_void_p,),
    "post_ops_append_eltwise": (c_void_p, c_int, c_float, c_float),
    "post_ops_append_binary": (c_void_p, c_int, _DESC),
    "post_ops_append_sum": (c_void_p, c_float, ctypes.c_int32, c_int),
    "primitive_desc_query": (_PD, c_int, c_int, c_void_p),
    "primitive_desc_destroy": (_PD,),
    "primitive_create": (POINTER(c_void_p), _PD),
    "primitive_destroy": (c_void_p,),
    "primitive_execute": (c_void_p, c_void_p, c_int, c_void_p),
    "convolution_forward_primitive_desc_create": (
        *(POINTER(c_void_p), c_void_p, c_int, c_int, _DESC, _DESC, _DESC, _DESC),
        *(_DIMS, _DIMS, _DIMS, _DIMS, c_void_p),
    ),
    "matmul_primitive_desc_create": (
        *(POINTER(c_void_p), c_void_p, _DESC, _DESC, _DESC, _DESC, c_void_p),
    ),
    "binary_primitive_desc_create": (
        *(POINTER(c_void_p), c_void_p, c_int, _DESC, _DESC, _DESC, c_void_p),
    ),
    "eltwise_forward_primitive_desc_create": (
        *(POINTER(c_void_p), c_void_p, c_int, c_int, _DESC, _DESC, c_float, c_float, c_void_p),
    ),
    "softmax_forward_primitive_desc_create": (
        *(POINTER(c_void_p), c_void_p, c_int, c_int, _DESC, _DESC, c_int, c_void_p),
    ),
    "layer_normalization_forward_primitive_desc_create": (
        *(POINTER(c_void_p), c_void_p, c_int, _DESC, _DESC, _DESC, c_float, c_uint, c_void_p),
    ),
    "pooling_forward_primitive_desc_create": (
        *(POINTER(c_void_p), c_void_p, c_int, c_int, _DESC, _DESC),
        *(_DIMS, _DIMS, _DIMS, _DIMS, _DIMS, c_void_p),
    ),
    "concat_primitive_desc_create": (
        *(POINTER(c_void_p), c_void_p, _DESC, c_int, c_int, c_void_p, c_void_p),
    ),
    "reorder_primitive_desc_create": (
        *(POINTER(c_void_p), _DESC, c_void_p, _DESC, c_void_p, c_void_p),
    ),
}
_PLAIN: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "memory_desc_equal": (c_int, (_DESC, _DESC)),
    "memory_desc_get_size": (c_size_t, (_DESC,)),
    "primitive_desc_query_md": (c_void_p, (_PD, c_int, c_int)),
    "get_effective_cpu_isa": (c_int, ()),
}


class _Version(ctypes.Structure):
    _fields_ = (
        ("major", c_int),
        ("minor", c_int),
        ("patch", c_int),
        ("hash", c_char_p),
        ("cpu_runtime", c_uint),
        ("gpu_runtime", c_uint),
    )


class Refused(UnsupportedError):
    """oneDNN does not do what it was asked for."""


class Library:
    """oneDNN's functions: `library.memory_create(...)` is dnnl_memory_create, and raises if that
    fails. `handle` has them all, unchecked."""

    def __init__(self, path: str):
        self.path = path
        self.handle = ctypes.CDLL(path)
        self.handle.dnnl_version.restype = POINTER(_Version)
        v = self.handle.dnnl_version().contents
        self.version = (v.major, v.minor, v.patch)
        if v.major != MAJOR:
            text = ".".join(map(str, self.version))
            raise UnsupportedError(f"{path} is oneDNN {text}, and oneDNN {MAJOR} is needed")
        for name, types in _FUNCTIONS.items():
            self._prepare(name, c_int, types)
        for name, (result, types) in _PLAIN.items():
            setattr(self, name, self._prepare(name, result, types))
        set_threads = ctypes.CFUNCTYPE(None, c_int)
        get_threads = ctypes.CFUNCTYPE(c_int)
        omp = _openmp(self.handle)
        self.set_threads = set_threads(("omp_set_num_threads", omp))
        self.get_threads = get_threads(("omp_get_max_threads", omp))

    def _prepare(self, name: str, result: Any, types: tuple[Any, ...]) -> Any:
        f = getattr(self.handle, f"dnnl_{name}")
        f.restype, f.argtypes = result, types
        return f

    def __getattr__(self, name: str) -> Any:
        if name not in _FUNCTIONS:
            raise AttributeError(name)
        f = getattr(self.handle, f"dnnl_{name}")

        def checked(*args: Any) -> None:
            status = f(*args)
            if status:
                what = f"oneDNN {STATUSES.get(status, f'returned {status}')} (dnnl_{name})"
                raise (Refused if status in UNIMPLEMENTED else UnsupportedError)(what)

        setattr(self, name, checked)
        return checked


def _openmp(handle: ctypes.CDLL) -> ctypes.CDLL:
    """The OpenMP runtime that oneDNN runs on: symbols of libraries that one depends on are found
    through it."""
    try:
        handle.omp_set_num_threads  # noqa: B018
    except AttributeError:
        raise UnsupportedError(
            "this oneDNN does not run on OpenMP, whose threads are the ones that can be counted: "
            + INSTALL
        ) from None
    return handle


@cache
def _search() -> Library | str:
    """The library, or why there is none."""
    said = ""
    for path in _candidates():
        try:
            return Library(path)
        except (OSError, UnsupportedError, AttributeError) as error:
            said = said or f"{path}: {error}"
    return f"{said}; {INSTALL}" if said else f"oneDNN is not installed: {INSTALL}"


def _candidates() -> Iterator[str]:
    """Files that may be the library: only the named one, if one is named."""
    if given := os.environ.get(PATH_VARIABLE):
        yield given
        return
    try:
        files = importlib.metadata.files("onednn-cpu-gomp") or ()
        named = (f for f in files if f.name == f"libdnnl.so.{MAJOR}")
        yield from (str(Path(f.locate()).resolve()) for f in named)
    except importlib.metadata.PackageNotFoundError:
        pass
    if found := ctypes.util.find_library("dnnl"):
        yield found


@contextlib.contextmanager
def on_threads(count: int) -> Iterator[None]:
    """Let oneDNN have so many threads, of this thread's calls. Primitives are made for as many as
    there are then, and must run on no other number."""
    lib = library()
    before = lib.get_threads()
    if before == count:
        yield
        return
    lib.set_threads(count)
    try:
        yield
    finally:
        lib.set_threads(before)


def missing() -> str:
    """A sentence that says what to install; '' if oneDNN is there."""
    found = _search()
    return found if isinstance(found, str) else ""


def library() -> Library:
    """The library.

    Raises:
        UnsupportedError: there is none; says what to install.
    """
    found = _search()
    if isinstance(found, str):
        raise UnsupportedError(found)
    return found
