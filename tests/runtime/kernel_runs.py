"""Running the kernels of an executable alone: on the machine, and in the scalar interpreter."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np

import compiler
from compiler.codegen.llvm import jit
from compiler.interpret import loop_nests
from compiler.runtime.kernels import Kernel, aligned_copy
from compiler.symbolic import Index, Var
from compiler.tensor.stmt import SLACK
from compiler.types.dtypes import Array, DType

Dims = Mapping[Var, int]


def random(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> Array:
    """Normal floats; integers of the whole range, within 2^20."""
    if dtype.is_integer:
        info = np.iinfo(dtype.storage)
        low, high = max(info.min, -(2**20)), min(info.max, 2**20)
        return rng.integers(low, high + 1, shape).astype(dtype.storage)
    return rng.normal(size=shape).astype(dtype.storage)


def operands(kernel: Kernel, dims: Dims | None = None, seed: int = 0) -> list[Array]:
    """Random inputs, the kernel's own constants, and zeroed outputs."""
    arrays = []
    rng = np.random.default_rng(seed)
    for k, b in enumerate(kernel.func.params):
        given = kernel.arguments[k].array if k < len(kernel.arguments) else None
        shape = tuple(int(Index.of(n).value(dims or {})) for n in b.shape)
        if k >= len(kernel.arguments):
            given = np.zeros(shape, b.dtype.storage)
        arrays.append(aligned_copy(random(rng, shape, b.dtype) if given is None else given))
    return arrays


def machine(
    kernel: Kernel, arrays: list[Array], dims: Dims | None = None, target: str = "llvm"
) -> list[Array]:
    """Outputs of the machine code."""
    env = dict(dims or {})
    temps = [aligned_copy(np.zeros(int(n.value(env)) + SLACK, np.uint8)) for n in kernel.temps]
    pointers = [*arrays, *temps, *kernel.tables]
    for s in kernel.stages:
        values: list[Any] = [ctypes.c_void_p(a.ctypes.data) for a in pointers]
        values += [ctypes.c_int64(env[v]) for v in kernel.dims]
        if s.extent is not None:
            values += [ctypes.c_int64(0), ctypes.c_int64(int(s.extent.value(env)))]
        address = jit.address(s.symbol, compiler.Target.parse(target))
        ctypes.CFUNCTYPE(None, *map(type, values))(address)(*values)
    return arrays[len(kernel.arguments) :]


def interpreted(kernel: Kernel, arrays: list[Array], dims: Dims | None = None) -> list[Array]:
    """Outputs of the scalar interpreter, which walks the same scheduled loops."""
    given = [a.copy() for a in arrays]
    with np.errstate(all="ignore"):
        loop_nests.run(kernel.func, given, dims)
    return given[len(kernel.arguments) :]


def assert_same_bits(kernel: Kernel, dims: Dims | None = None, target: str = "llvm") -> None:
    """The interpreter's and the machine's outputs are equal, bit for bit."""
    arrays = operands(kernel, dims)
    want = interpreted(kernel, arrays, dims)
    for a, b in zip(want, machine(kernel, arrays, dims, target), strict=True):
        assert a.tobytes() == b.tobytes(), kernel.func.name
