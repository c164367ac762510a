"""CUDA's driver API through ctypes: it needs the library of NVIDIA's driver, and nothing else."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from compiler.errors import LoweringError, OutOfMemoryError, UnsupportedError
from compiler.runtime.cuda import signatures as cu
from compiler.runtime.cuda.driver import CudaError, Extent, Figures, Properties

LIBRARY = "nvcuda.dll" if os.name == "nt" else "libcuda.so.1"
WITHOUT = "use -runner=simt, which runs the same grids of threads on the CPU"
_LOG = 16 << 10
"""Bytes of what the driver's compiler says that are kept."""
_DLPACK_CUDA = 2
"""DLPack's type of device (kDLCUDA, dlpack.h)."""


def library() -> Any:
    """NVIDIA's library.

    Raises:
        UnsupportedError: there is none.
    """
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise UnsupportedError(f"no NVIDIA driver is found ({error}): {WITHOUT}") from None


class LibCuda:
    """See `compiler.runtime.cuda.driver.Driver`. It uses the primary context, as torch does, so
    that addresses mean the same to both, and makes it the current one of each thread that calls.

    Args:
        ordinal: which device.
        found: the library; tests give one of their own.

    Raises:
        UnsupportedError: there is no driver, no device, or the driver does not start.
    """

    emulated = ""

    def __init__(self, ordinal: int = 0, found: Any = None):
        self._library = library() if found is None else found
        self._functions: dict[str, Callable[..., int]] = {}
        self._dead: CudaError | None = None
        self._current = threading.local()
        self._begin()
        self.place: tuple[int, int] | None = (_DLPACK_CUDA, ordinal)
        device = ctypes.c_int()
        self._ask("cuDeviceGet", ctypes.byref(device), ordinal)
        self.properties = self._properties(device.value)
        context = ctypes.c_void_p()
        self._ask("cuDevicePrimaryCtxRetain", ctypes.byref(context), device.value)
        self._context = context.value
        _instances.add(self)

    def _begin(self) -> None:
        code = self._function("cuInit")(0)
        count = ctypes.c_int()
        if code == cu.SUCCESS:
            self._ask("cuDeviceGetCount", ctypes.byref(count))
        if code == cu.NO_DEVICE or (code == cu.SUCCESS and not count.value):
            raise UnsupportedError(f"NVIDIA's driver finds no device: {WITHOUT}")
        if code != cu.SUCCESS:
            name, words = self._words(code)
            raise UnsupportedError(f"NVIDIA's driver does not start ({name}: {words}): {WITHOUT}")

    def _properties(self, device: int) -> Properties:
        name, memory = ctypes.create_string_buffer(256), ctypes.c_size_t()
        self._ask("cuDeviceGetName", name, len(name), device)
        self._ask("cuDeviceTotalMem_v2", ctypes.byref(memory), device)

        def attribute(which: int) -> int:
            value = ctypes.c_int()
            self._ask("cuDeviceGetAttribute", ctypes.byref(value), which, device)
            return value.value

        return Properties(
            name.value.decode(errors="replace"),
            (attribute(cu.MAJOR), attribute(cu.MINOR)),
            attribute(cu.MULTIPROCESSORS),
            memory.value,
            attribute(cu.THREADS_PER_BLOCK),
            attribute(cu.REGISTERS_PER_BLOCK),
            attribute(cu.SHARED_PER_BLOCK_OPTIN),
            attribute(cu.THREADS_PER_MULTIPROCESSOR),
            attribute(cu.CLOCK_RATE) // 1000,
        )

    # ---- calls -----------------------------------------------------------------------------------
    def _function(self, name: str) -> Callable[..., int]:
        if name not in self._functions:
            try:
                found = getattr(self._library, name)
            except AttributeError:
                raise CudaError(
                    f"NVIDIA's driver is too old: it has no {name}, of CUDA 11.4"
                ) from None
            found.argtypes, found.restype = cu.SIGNATURES[name], ctypes.c_int
            self._functions[name] = found
        return self._functions[name]

    def _words(self, code: int) -> tuple[str, str]:
        """CUDA's name of an error, and what it says of it."""
        said = []
        for function in ("cuGetErrorName", "cuGetErrorString"):
            text = ctypes.c_char_p()
            failed = self._function(function)(code, ctypes.byref(text))
            said.append("" if failed or text.value is None else text.value.decode())
        return said[0] or f"CUDA error {code}", said[1] or "which this driver does not know"

    def _ask(self, name: str, *arguments: Any) -> None:
        if code := self._function(name)(*arguments):
            raise self._error(name, code)

    def _error(self, name: str, code: int) -> CudaError | OutOfMemoryError:
        called, words = self._words(code)
        if code == cu.OUT_OF_MEMORY:
            return OutOfMemoryError(f"{called}: {words}")
        if code in cu.DEADLY:
            said = f"{called}: {words}; nothing can run on the device in this process any more"
            self._dead = CudaError(f"{said}: start another one", called, dead=True)
            return CudaError(said, called, dead=True)
        return CudaError(f"{called}: {words} ({name})", called)

    def _do(self, name: str, *arguments: Any) -> None:
        """Call a function with the device's context as the thread's own."""
        if self._dead is not None:
            raise CudaError(f"since an earlier call: {self._dead}", self._dead.name, dead=True)
        self._ask("cuCtxSetCurrent", self._context)
        self._ask(name, *arguments)

    def _drop(self, name: str, *arguments: Any) -> None:
        """Let go of something, which where nothing can run any more is gone already."""
        if self._dead is None:
            self._do(name, *arguments)

    def _made(self, name: str, *arguments: Any) -> int:
        """The handle that a function makes."""
        handle = ctypes.c_void_p()
        self._do(name, ctypes.byref(handle), *arguments)
        return handle.value or 0

    # ---- memory ----------------------------------------------------------------------------------
    def free_bytes(self) -> int:
        """See Driver."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._do("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def allocate(self, nbytes: int) -> int:
        """See Driver."""
        return self._made("cuMemAlloc_v2", nbytes)

    def free(self, address: int) -> None:
        """See Driver."""
        self._drop("cuMemFree_v2", address)

    def zero(self, address: int, nbytes: int, stream: int) -> None:
        """See Driver."""
        self._do("cuMemsetD8Async", address, 0, nbytes, stream)

    def upload(self, address: int, host: int, nbytes: int, stream: int) -> None:
        """See Driver."""
        self._do("cuMemcpyHtoDAsync_v2", address, host, nbytes, stream)

    def download(self, host: int, address: int, nbytes: int, stream: int) -> None:
        """See Driver."""
        self._do("cuMemcpyDtoHAsync_v2", host, address, nbytes, stream)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """See Driver."""
        self._do("cuMemcpyDtoDAsync_v2", target, source, nbytes, stream)

    # ---- code ------------------------------------------------------------------------------------
    def module(self, text: bytes) -> int:
        """See Driver."""
        log = ctypes.create_string_buffer(_LOG)
        options = (ctypes.c_int * 2)(cu.ERROR_LOG, cu.ERROR_LOG_BYTES)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), _LOG)
        image = ctypes.create_string_buffer(text)  # which ends with a zero
        try:
            return self._made("cuModuleLoadDataEx", image, 2, options, values)
        except CudaError as error:
            said = " ".join(log.value.decode(errors="replace").split())
            if error.name in self._rejections():
                raise LoweringError(
                    f"NVIDIA's driver rejects the code: {error}{said and ': '}{said}"
                ) from None
            raise

    def _rejections(self) -> set[str]:
        return {self._words(code)[0] for code in cu.REJECTED}

    def unload(self, module: int) -> None:
        """See Driver."""
        self._drop("cuModuleUnload", module)

    def function(self, module: int, name: str, shared: int = 0) -> int:
        """See Driver."""
        found = self._made("cuModuleGetFunction", module, name.encode())
        if shared:
            self._do("cuFuncSetAttribute", found, cu.MAX_DYNAMIC_SHARED, shared)
        return found

    def figures(self, function: int) -> Figures:
        """See Driver."""
        values = []
        for which in (cu.REGISTERS, cu.SHARED_SIZE, cu.LOCAL_SIZE):
            value = ctypes.c_int()
            self._do("cuFuncGetAttribute", ctypes.byref(value), which, function)
            values.append(value.value)
        return Figures(*values)

    def occupancy(self, function: int, threads: int, shared: int = 0) -> int:
        """See Driver."""
        blocks = ctypes.c_int()
        name = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        self._do(name, ctypes.byref(blocks), function, threads, shared)
        return blocks.value

    def launch(
        self,
        function: int,
        grid: Extent,
        block: Extent,
        arguments: Sequence[int],
        shared: int,
        stream: int,
    ) -> None:
        """See Driver."""
        count = len(arguments)
        values = (ctypes.c_uint64 * max(1, count))(*arguments)
        first = ctypes.addressof(values)
        table = (ctypes.c_void_p * max(1, count))(*range(first, first + 8 * count, 8))
        self._do("cuLaunchKernel", function, *grid, *block, shared, stream, table, None)

    # ---- order and time --------------------------------------------------------------------------
    def stream(self) -> int:
        """See Driver."""
        return self._made("cuStreamCreate", cu.NON_BLOCKING)

    def close_stream(self, stream: int) -> None:
        """See Driver."""
        self._drop("cuStreamDestroy_v2", stream)

    def synchronize(self, stream: int | None) -> None:
        """See Driver."""
        if stream is None:
            self._do("cuCtxSynchronize")
        else:
            self._do("cuStreamSynchronize", stream)

    def event(self) -> int:
        """See Driver."""
        return self._made("cuEventCreate", 0)

    def close_event(self, event: int) -> None:
        """See Driver."""
        self._drop("cuEventDestroy_v2", event)

    def record(self, event: int, stream: int) -> None:
        """See Driver."""
        self._do("cuEventRecord", event, stream)

    def milliseconds(self, first: int, second: int) -> float:
        """See Driver."""
        self._do("cuEventSynchronize", second)
        found = ctypes.c_float()
        self._do("cuEventElapsedTime", ctypes.byref(found), first, second)
        return found.value

    def begin_capture(self, stream: int) -> None:
        """See Driver."""
        self._do("cuStreamBeginCapture_v2", stream, cu.RELAXED)

    def end_capture(self, stream: int) -> int:
        """See Driver."""
        graph = ctypes.c_void_p()
        self._do("cuStreamEndCapture", stream, ctypes.byref(graph))
        try:
            return self._made("cuGraphInstantiateWithFlags", graph, 0)
        finally:
            self._drop("cuGraphDestroy", graph)

    def abandon_capture(self, stream: int) -> None:
        """See Driver."""
        if self._dead is not None:
            return
        graph = ctypes.c_void_p()
        self._ask("cuCtxSetCurrent", self._context)
        # An error is what one expects of a capture that is not valid: there is no graph then.
        self._function("cuStreamEndCapture")(stream, ctypes.byref(graph))
        if graph.value:
            self._drop("cuGraphDestroy", graph)

    def launch_graph(self, graph: int, stream: int) -> None:
        """See Driver."""
        self._do("cuGraphLaunch", graph, stream)

    def close_graph(self, graph: int) -> None:
        """See Driver."""
        self._drop("cuGraphExecDestroy", graph)

    def _forked(self) -> None:
        said = "a process that forks takes no device along: start another one"
        self._dead = CudaError(said, "CUDA_ERROR_NOT_INITIALIZED", dead=True)


_instances: weakref.WeakSet[LibCuda] = weakref.WeakSet()


def _after_fork() -> None:
    for each in _instances:
        each._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
