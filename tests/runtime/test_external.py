"""Python and C functions called by compiled programs, on the programs' own memory."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import compiler
import datatypes
from compiler.boundary import external
from compiler.boundary.external import register_func
from compiler.errors import DtypelabError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.ir.function_calls import call_dps_packed, call_packed
from compiler.symbolic import Var
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType

SOURCE = """
#include <stdint.h>
typedef struct { int32_t type, id; } DLDevice;
typedef struct { uint8_t code, bits; uint16_t lanes; } DLDataType;
typedef struct {
  void *data; DLDevice device; int32_t ndim; DLDataType dtype;
  int64_t *shape, *strides; uint64_t byte_offset;
} DLTensor;

void affine(DLTensor *x, DLTensor *w, DLTensor *y) {
  const float *a = x->data, *b = w->data;
  float *out = y->data;
  for (int64_t i = 0; i < x->shape[0]; ++i)
    for (int64_t j = 0; j < x->shape[1]; ++j)
      out[i * y->strides[0] + j * y->strides[1]] = a[i * x->strides[0] + j] * b[j] + 1;
}

void describe(DLTensor *x, DLTensor *y) {
  int64_t *out = y->data;
  out[0] = x->ndim; out[1] = x->dtype.code; out[2] = x->dtype.bits; out[3] = x->dtype.lanes;
  out[4] = x->device.type; out[5] = x->byte_offset; out[6] = x->shape[0]; out[7] = x->strides[0];
}
"""


@pytest.fixture(autouse=True)
def _own_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external, "_functions", {})


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    cc = shutil.which("cc")
    if cc is None:
        pytest.skip("there is no C compiler")
    folder: Path = tmp_path_factory.mktemp("external")
    (folder / "f.c").write_text(SOURCE)
    subprocess.run([cc, "-O1", "-shared", "-fPIC", "-o", "f.so", "f.c"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "f.so"))


def one_call(
    name: str, shapes: list[tuple[object, ...]], out: TensorType, dtype: str = "float32"
) -> IRModule:
    """relu of each operand, the function, and relu of its result where that is a float."""
    b = FunctionBuilder()
    params = [b.param(f"x{k}", s, dtype) for k, s in enumerate(shapes)]
    args = [b.call("nn.relu", p) for p in params] if dtype == "float32" else params
    y = b.bind(call_dps_packed(name, args, out))
    return IRModule({"main": b.finish(b.call("nn.relu", y) if str(out.dtype) == "float32" else y)})


def test_a_c_function_gets_dlpack_tensors_of_run_time_sizes(library: ctypes.CDLL) -> None:
    register_func("c.affine", library.affine)
    n = Var("n")
    mod = one_call("c.affine", [(n, 4), (4,)], TensorType.of((n, 4), "float32"))
    exe = compiler.build(mod)
    w = np.array([1, 2, -3, 4], np.float32)
    for rows in (1, 5):
        x = np.random.default_rng(rows).normal(size=(rows, 4)).astype(np.float32)
        want = np.maximum(np.maximum(x, 0) * np.maximum(w, 0) + np.float32(1), 0)
        np.testing.assert_array_equal(exe(x, w), want)
        np.testing.assert_array_equal(compiler.evaluate(mod, x, w), want)


@pytest.mark.parametrize(
    ("dtype", "code"),
    [("int8", 0), ("int64", 0), ("uint16", 1), ("float16", 2), ("float64", 2), ("bool", 6)],
)
def test_dlpack_says_what_the_tensor_is(library: ctypes.CDLL, dtype: str, code: int) -> None:
    register_func("c.describe", library.describe)
    mod = one_call("c.describe", [(3, 2)], TensorType.of((8,), "int64"), dtype=dtype)
    x = np.ones((3, 2), dtype)
    bits = 8 * x.itemsize
    for got in (compiler.build(mod)(x), compiler.evaluate(mod, x)):
        assert list(got) == [2, code, bits, 1, 1, 0, 3, 2]


def test_tensors_are_shared_and_not_copied() -> None:
    seen: dict[str, list[int]] = {"in": [], "out": []}

    def look(x: Array, y: Array) -> None:
        taken, filled = np.from_dlpack(x), np.from_dlpack(y)
        seen["in"].append(taken.ctypes.data)
        seen["out"].append(filled.ctypes.data)
        filled[...] = taken

    register_func("py.look", look)
    b = FunctionBuilder()
    x = b.param("x", (64,))
    y = b.bind(call_dps_packed("py.look", (x,), TensorType.of((64,), "float32")))
    exe = compiler.build(IRModule({"main": b.finish(y)}))
    given = np.arange(64, dtype=np.float32)
    made = exe(given)
    assert seen["in"] == [given.ctypes.data]  # the caller's own array
    assert seen["out"] == [made.ctypes.data]  # the array that the caller gets
    np.testing.assert_array_equal(made, given)


def test_torch_takes_tensors_over_without_copying() -> None:
    torch = pytest.importorskip("torch")
    addresses: list[int] = []

    def twice(x: Array, y: Array) -> None:
        taken = torch.from_dlpack(x)
        addresses.append(taken.data_ptr())
        torch.mul(taken, 2, out=torch.from_dlpack(y))

    register_func("py.twice", twice)
    b = FunctionBuilder()
    x = b.param("x", (4,))
    y = b.bind(call_dps_packed("py.twice", (x,), TensorType.of((4,), "float32")))
    given = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(compiler.build(IRModule({"main": b.finish(y)}))(given), 2 * given)
    assert addresses == [given.ctypes.data]


def test_read_only_inputs_and_constants_are_taken_too() -> None:
    register_func("py.add", lambda a, b, y: np.add(np.from_dlpack(a), np.from_dlpack(b), out=y))
    b = FunctionBuilder()
    x = b.param("x", (3,))
    one = b.const(np.ones(3, np.float32))
    y = b.bind(call_dps_packed("py.add", (x, one), TensorType.of((3,), "float32")))
    given = np.arange(3, dtype=np.float32)
    given.flags.writeable = False
    result = compiler.build(IRModule({"main": b.finish(y)}))(given)
    np.testing.assert_array_equal(result, [1, 2, 3])


def test_functions_take_and_give_codes_of_custom_datatypes() -> None:
    def middle(x: Array, y: Array) -> None:
        assert x.dtype == y.dtype == np.uint16
        y[...] = datatypes.encode("posit16_es1", datatypes.decode("posit16_es1", x) / 2)

    register_func("py.half", middle)
    b = FunctionBuilder()
    x = b.param("x", (5,), "posit16_es1")
    d = b.call("multiply", x, x)
    h = b.bind(call_dps_packed("py.half", (d,), TensorType.of((5,), "posit16_es1")))
    mod = IRModule({"main": b.finish(b.call("add", h, d))})
    codes = datatypes.encode("posit16_es1", np.array([1.5, -2.0, 0.25, 100.0, 0.0]))
    want = compiler.evaluate(mod, codes)
    for lowering in (None, "library", "vector"):
        np.testing.assert_array_equal(compiler.build(mod, dtype_lowering=lowering)(codes), want)


def test_functions_are_looked_up_when_a_program_runs() -> None:
    mod = one_call("py.later", [(2,)], TensorType.of((2,), "float32"))
    exe = compiler.build(mod)
    x = np.ones(2, np.float32)
    for run in (exe, lambda a: compiler.evaluate(mod, a)):
        with pytest.raises(DtypelabError, match="register it with"):
            run(x)
    register_func("py.later", lambda x, y: np.multiply(x, 3, out=y))
    assert list(exe(x)) == [3, 3]
    with pytest.raises(DtypelabError, match="already registered: pass override=True"):
        register_func("py.later", lambda x, y: None)
    register_func("py.later", lambda x, y: np.multiply(x, 4, out=y), override=True)
    assert list(exe(x)) == [4, 4]


def test_register_func_decorates_and_refuses_what_cannot_be_called() -> None:
    @register_func("py.same")
    def same(x: Array, y: Array) -> None:
        np.copyto(y, x)

    assert external.get_func("py.same") is same
    with pytest.raises(DtypelabError, match="a function must be given, not int"):
        register_func("py.three", 3)


def test_nothing_is_called_behind_an_exception_and_the_program_stays_usable() -> None:
    calls: list[str] = []

    def fail(x: Array) -> None:
        calls.append("fail")
        if x[0] < 0:
            raise ValueError("negative")

    register_func("py.fail", fail)
    register_func("py.next", lambda x: calls.append("next"))
    b = FunctionBuilder()
    x = b.param("x", (2,))
    b.bind(call_packed("py.fail", (x,)))
    b.bind(call_packed("py.next", (x,)))
    exe = compiler.build(IRModule({"main": b.finish(b.call("nn.relu", x))}))
    with pytest.raises(ValueError, match="negative"):
        exe(np.array([-1, 1], np.float32))
    assert calls == ["fail"]
    assert list(exe(np.array([1, 1], np.float32))) == [1, 1]
    assert calls == ["fail", "fail", "next"]


def recursive() -> tuple[IRModule, Callable[[Array], Array]]:
    """A program whose function runs the program again, on less."""
    n = Var("n")
    b = FunctionBuilder()
    x = b.param("x", (n, 8))
    doubled = b.call("add", x, x)
    tail = b.bind(call_dps_packed("py.tail", (x,), TensorType.of((n, 8), "float32")))
    halved = b.call("nn.relu", doubled)
    mod = IRModule({"main": b.finish(b.call("add", halved, tail))})

    def meant(a: Array) -> Array:
        rest = meant(a[1:]) if len(a) > 1 else np.zeros((0, 8), np.float32)
        return np.maximum(a + a, 0) + np.concatenate([rest, np.ones((1, 8), np.float32)])

    return mod, meant


def test_a_function_may_run_the_program_that_calls_it_in_several_threads() -> None:
    mod, meant = recursive()
    exe = compiler.build(mod)

    def tail(x: Array, y: Array) -> None:
        y[-1] = 1
        if len(x) > 1:
            y[:-1] = exe(x[1:])

    register_func("py.tail", tail)
    failures: list[object] = []

    def work(seed: int) -> None:
        for rows in (3, 5):
            x = np.random.default_rng(seed).normal(size=(rows, 8)).astype(np.float32)
            if not (exe(x) == meant(x)).all():
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures
