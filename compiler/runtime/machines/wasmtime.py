"""WebAssembly in this process, by the package wasmtime."""

from __future__ import annotations

import atexit
import ctypes
import functools
import importlib.util
import weakref
from collections.abc import Sequence
from typing import Any

from compiler.codegen import linking
from compiler.errors import MachineError
from compiler.runtime.machines.image import NAME, Image
from compiler.runtime.machines.linear_memory import PAGE, Layout, no_memory
from compiler.target.registry import Target
from compiler.types.dtypes import Array

INSTALL = "the package wasmtime runs WebAssembly: pip install 'dtypelab[wasm]'"


class Wasmtime:
    """See `compiler.runtime.machines.machine.Machine`."""

    name = "wasmtime"
    emulated = False

    def missing(self, target: Target) -> str:
        """See Machine."""
        try:
            found = importlib.util.find_spec("wasmtime")
        except (ImportError, ValueError):
            found = None
        return INSTALL if found is None else linking.missing(target)

    def load(self, image: Image) -> Instance:
        """See Machine."""
        module = linking.wasm_module(image.objects(), [f"{NAME}_run"])
        return Instance(module, image.weights)


@functools.cache
def _engine() -> Any:
    import wasmtime

    config = wasmtime.Config()
    config.wasm_simd = True
    config.wasm_relaxed_simd = True
    return wasmtime.Engine(config)


_instances: weakref.WeakSet[Instance] = weakref.WeakSet()


@atexit.register
def _end() -> None:
    """Let go of everything while the package can still do that."""
    for instance in _instances:
        instance.close()
    _engine.cache_clear()


class Instance:
    """A module with a memory of its own, which weights are put into once."""

    def __init__(self, module: bytes, weights: bytes):
        import wasmtime

        try:
            compiled = wasmtime.Module(_engine(), module)
            self._store = wasmtime.Store(_engine())
            exports = wasmtime.Instance(self._store, compiled, []).exports(self._store)
        except wasmtime.WasmtimeError as error:
            raise MachineError(f"wasmtime rejects the program: {_first(error)}") from None
        self._memory, self._run = exports["memory"], exports[f"{NAME}_run"]
        self._layout = Layout(int(exports["__heap_base"].value(self._store)), len(weights))
        self._reserve(self._layout.floor)
        self._write(self._layout.weights, weights)
        _instances.add(self)

    def close(self) -> None:
        """Give the memory back."""
        self._run = self._memory = self._store = None

    def run(
        self, inputs: Sequence[Array], outputs: Sequence[Array], dims: Sequence[int], arena: int
    ) -> None:
        """See Loaded; instructions are not counted."""
        import wasmtime

        call = self._layout.call(inputs, outputs, dims, arena)
        self._reserve(call.end)
        self._write(call.at, call.tables)
        base = self._base()
        for a, at in zip(inputs, call.inputs, strict=True):
            ctypes.memmove(base + at, a.ctypes.data, a.nbytes)
        try:
            failed = self._run(self._store, *call.arguments)
        except (wasmtime.Trap, wasmtime.WasmtimeError) as error:
            raise MachineError(f"the program fails in wasmtime: {_first(error)}") from None
        if failed:
            raise MachineError(f"the program returns {failed} in wasmtime")
        base = self._base()
        for a, at in zip(outputs, call.outputs, strict=True):
            ctypes.memmove(a.ctypes.data, base + at, a.nbytes)

    def _base(self) -> int:
        found = ctypes.cast(self._memory.data_ptr(self._store), ctypes.c_void_p).value
        assert found is not None
        return found

    def _write(self, at: int, content: bytes) -> None:
        if content:
            ctypes.memmove(self._base() + at, content, len(content))

    def _reserve(self, end: int) -> None:
        import wasmtime

        lacking = end - self._memory.data_len(self._store)
        if lacking <= 0:
            return
        try:
            self._memory.grow(self._store, -(-lacking // PAGE))
        except (wasmtime.WasmtimeError, OverflowError):
            raise no_memory(end) from None


def _first(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


WASMTIME = Wasmtime()
