"""The printed, scheduled loop nests are the kernels: interpreted, they give the machine code's
bits."""

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compiler
import quantize
from compiler.codegen import jit
from compiler.dtypes import Array
from compiler.runtime.kernels import Kernel, aligned_copy
from compiler.symbolic import Index
from compiler.tensor import interp
from compiler.tensor.expr import BinOp, IntImm
from compiler.tensor.stmt import stores

ZOO = Path(__file__).parents[2] / "experiments" / "zoo"
RNG = np.random.default_rng(0)


def random(shape: tuple[int, ...], dtype: Any) -> Array:
    if dtype.is_integer:
        info = np.iinfo(dtype.storage)
        low, high = max(info.min, -(2**20)), min(info.max, 2**20)
        return RNG.integers(low, high + 1, shape).astype(dtype.storage)
    return RNG.normal(size=shape).astype(dtype.storage)


def operands(kernel: Kernel) -> list[Array]:
    """Random inputs, the kernel's own constants, and zeroed outputs."""
    arrays = []
    for k, b in enumerate(kernel.func.params):
        given = kernel.arguments[k].array if k < len(kernel.arguments) else None
        shape = tuple(int(Index.of(n).const) for n in b.shape)
        if k >= len(kernel.arguments):
            given = np.zeros(shape, b.dtype.storage)
        arrays.append(aligned_copy(random(shape, b.dtype) if given is None else given))
    return arrays


def machine(kernel: Kernel, arrays: list[Array]) -> list[Array]:
    temps = [aligned_copy(np.zeros(int(n.const) + 256, np.uint8)) for n in kernel.temps]
    pointers = [*arrays, *temps, *kernel.tables]
    for s in kernel.stages:
        values: list[Any] = [ctypes.c_void_p(a.ctypes.data) for a in pointers]
        if s.extent is not None:
            values += [ctypes.c_int64(0), ctypes.c_int64(int(s.extent.const))]
        address = jit.address(s.symbol, compiler.Target.parse("llvm"))
        ctypes.CFUNCTYPE(None, *map(type, values))(address)(*values)
    return arrays[len(kernel.arguments) :]


def kernels(net: str, size: int, int8: bool) -> list[Kernel]:
    mod = compiler.from_onnx(ZOO / f"mnist_{net}.onnx", shapes={"input": (1, 1, size, size)})
    if int8:
        mod = quantize.quantize(
            mod, [random((4, 1, size, size), compiler.DType.parse("float32"))[:1]]
        )
    distinct = {k.func.name: k for k in compiler.build(mod).program.kernels}
    return list(distinct.values())


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize(
    ("net", "size"),
    [
        ("dwsep", 5),
        pytest.param("resnet8", 6, marks=pytest.mark.slow),
        pytest.param("dwsep", 12, marks=pytest.mark.slow),
    ],
)
def test_interpreted_equals_machine_code(net: str, size: int, int8: bool) -> None:
    for kernel in kernels(net, size, int8):
        arrays = operands(kernel)
        slow = [a.copy() for a in arrays]
        with np.errstate(all="ignore"):
            interp.run(kernel.func, slow)
        fast = machine(kernel, arrays)
        for a, b in zip(slow[len(kernel.arguments) :], fast, strict=True):
            assert a.tobytes() == b.tobytes(), kernel.func.name


def test_changing_an_expression_changes_the_result() -> None:
    kernel = next(k for k in kernels("dwsep", 5, True) if "requantize" in k.func.name)
    arrays = operands(kernel)
    before = [a.copy() for a in arrays]
    interp.run(kernel.func, before)
    *_, last = stores(kernel.func.body)
    last.value = BinOp("Xor", last.value, IntImm(1, last.value.dtype), last.value.dtype)
    after = [a.copy() for a in arrays]
    interp.run(kernel.func, after)
    assert (before[-1] != after[-1]).any()
