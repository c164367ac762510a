"""On a GPU of NVIDIA's, where there is one: the bits of the CPU, graphs, errors, torch's tensors.

Without one all of this is skipped, and says what lacks.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compiler
from compiler.errors import LoweringError, OutOfMemoryError, UnsupportedError
from compiler.runtime.cuda.device import Device, opened
from compiler.runtime.cuda.driver import CudaError
from compiler.runtime.cuda.executable import CudaExecutable
from compiler.runtime.cuda.timing import kernel_figures
from compiler.runtime.profile import profile
from compiler.symbolic import Var
from compiler.target.cuda import CHIPS

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "codegen"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "elsewhere"))

from op_runs import RUNS, Case, check_on, label
from test_c_networks import FORMATS, dense, images, network, rows


@pytest.fixture(scope="module")
def device() -> Device:
    try:
        return opened("driver")
    except UnsupportedError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def target(device: Device) -> str:
    """For the newest chip whose code runs here."""
    major, minor = device.driver.properties.capability
    own = 10 * major + minor
    known = [c for c in CHIPS.values() if not c.exact and c.capability <= own]
    return f"cuda -arch={max(known, key=lambda c: c.capability).name}"


def built(mod: Any, target: str) -> CudaExecutable:
    exe = compiler.build(mod, target=target)
    assert isinstance(exe, CudaExecutable)
    return exe


@pytest.mark.thorough
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("name", ["mnist_mlp", "mnist_dwsep", "mnist_resnet8"])
def test_networks(target: str, name: str, fmt: str) -> None:
    """The bits of the interpreter, and of the same grids on this CPU."""
    mod, x = network(name, fmt), images(20, 3)
    exe = built(mod, target)
    first, graph = exe(x), None
    for _ in range(3):
        graph = exe(x)
        np.testing.assert_array_equal(graph, first)
    want = compiler.evaluate(mod, x)
    if fmt == "float32":
        np.testing.assert_allclose(first, want, rtol=1e-4, atol=1e-4)
    else:
        np.testing.assert_array_equal(first, want)
    assert exe.emulated == ""


@pytest.mark.thorough
@pytest.mark.parametrize("run", RUNS, ids=label)
def test_operators(target: str, run: tuple[Case, Any]) -> None:
    check_on(target, run)


def test_any_number_of_rows(target: str) -> None:
    mod = dense("posit8_es2")
    exe = built(mod, target)
    for n in (5, 1, 700, 0, 5, 5, 700):
        np.testing.assert_array_equal(exe(rows(n)), compiler.evaluate(mod, rows(n)))


def test_a_kernel_that_is_not_launched_names_its_operator(target: str) -> None:
    exe = built(dense(), target)
    want, dims = exe(rows(5)), {Var("n"): 5}
    (key,) = exe._plans
    right = exe._plans[key]
    exe.stepwise = True
    exe._plans[key] = [replace(right[0], block=(4096, 1, 1)), *right[1:]]
    symbol = exe.program.kernels[0].stages[0].symbol
    with pytest.raises(CudaError, match=rf"^{symbol}\b.*CUDA_ERROR_INVALID_VALUE") as caught:
        exe.run([rows(5)], dims)
    assert not caught.value.dead
    exe._plans[key] = right
    np.testing.assert_array_equal(exe(rows(5)), want)


def test_more_memory_than_there_is(target: str, device: Device) -> None:
    exe = built(dense(), target)
    want = exe(rows(5))
    used = device.pool.statistics().used
    with pytest.raises(
        OutOfMemoryError, match=r"^no memory on .* for .* GiB of a test: .* are free"
    ):
        device.pool.take(1 << 50, "a test")
    assert device.pool.statistics().used <= used
    np.testing.assert_array_equal(exe(rows(5)), want)


def test_rejected_code(device: Device) -> None:
    with pytest.raises(LoweringError, match="NVIDIA's driver rejects the code: CUDA_ERROR_"):
        device.driver.module(b".version 7.0\n.target sm_80\n.address_size 64\n.nonsense\n")


def test_times_and_figures(target: str) -> None:
    exe = built(dense(), target)
    assert all(t.milliseconds > 0 for t in profile(exe, rows(64), runs=3))
    assert min(exe.call_times([rows(64)], {Var("n"): 64}, 5)) > 0
    for f in kernel_figures(exe, n=64):
        assert f.registers > 0
        assert f.blocks >= 1


@pytest.mark.thorough
def test_torch_gives_and_takes_tensors_without_copies(target: str) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    exe, x = built(dense(), target), rows(40)
    t = torch.from_numpy(x).cuda()
    out = torch.from_dlpack(exe.on_device(t))
    assert out.is_cuda
    np.testing.assert_array_equal(out.cpu().numpy(), exe(x))
    again = torch.from_dlpack(exe.on_device(t * 2))  # which torch's stream is yet to compute
    np.testing.assert_array_equal(again.cpu().numpy(), exe(x * 2))


_ILLEGAL = """
import sys
sys.path[:0] = {path!r}
from test_c_networks import dense, rows
import compiler
from compiler.errors import MachineError
from compiler.symbolic import Var
exe = compiler.build(dense(), target={target!r})
exe(rows(5))
exe.stepwise = True
(key,) = exe._plans
exe._weights = tuple(64 for _ in exe._weights)
for _ in range(2):
    try:
        exe.run([rows(5)], {{Var("n"): 5}})
    except MachineError as error:
        print(error)
"""


@pytest.mark.thorough  # another process
def test_an_illegal_address_ends_everything(target: str) -> None:
    text = _ILLEGAL.format(path=[p for p in sys.path if p], target=target)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120)
    first, second = done.stdout.splitlines()
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in first
    assert second.startswith("since an earlier call: CUDA_ERROR_ILLEGAL_ADDRESS")
