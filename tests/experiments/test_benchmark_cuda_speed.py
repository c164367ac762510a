"""The benchmark of GPUs, as far as it runs without one: on the interpreter of PTX, whose times say
nothing."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

import compiler
from compiler.codegen.ptx.assembler import assemble, assembler
from compiler.errors import MachineError, UnsupportedError
from compiler.runtime.cuda.device import Device, opened
from compiler.runtime.cuda.emulated import EmulatedDriver
from compiler.target.cuda import CHIPS
from compiler.types.tensor_types import TensorType
from experiments.benchmarks import cuda_limits, cuda_networks, cuda_speed
from experiments.benchmarks.__main__ import main
from experiments.benchmarks.transformer_graphs import Graph

INSTRUCTIONS = pytest.mark.parametrize("i", cuda_limits.INSTRUCTIONS, ids=lambda i: i.name)


@INSTRUCTIONS
def test_loops_of_one_instruction_run(i: cuda_limits.Instruction) -> None:
    chip = CHIPS["sm_80"]
    assert cuda_limits.limit(i, opened("ptx"), chip, runs=1, blocks=1, times=1) > 0
    text = cuda_limits.text(i, chip)
    (body,) = (part for part in text.split("$again:")[1:])
    loop = body.split("bra $again")[0]
    assert loop.count(i.opcode) == cuda_limits.CHAINS * cuda_limits.UNROLLED
    assert "ld." not in loop


def test_the_loop_of_dp4a_adds_what_it_says() -> None:
    """Nothing of the work is left out: the sums are those of all turns."""
    (i,) = (x for x in cuda_limits.INSTRUCTIONS if x.name == "dp4a")
    device = opened("ptx")
    function = device.module(cuda_limits.text(i, CHIPS["sm_80"]).encode()).function("loop")
    driver, times = device.driver, 3
    out, stream = driver.allocate(4 * 256), driver.stream()
    driver.launch(function, (1, 1, 1), (256, 1, 1), [out, times], 0, stream)
    got = np.zeros(256, np.int32)
    driver.download(got.ctypes.data, out, got.nbytes, stream)
    driver.synchronize(stream)
    a0, a1, b0, b1 = (np.arange(256, dtype=np.int32) + 7 * k for k in range(4))

    def dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        x, y = (v.view(np.int8).reshape(-1, 4).astype(np.int64) for v in (a, b))
        return (x * y).sum(1)

    turns = [(t, c) for t in range(cuda_limits.UNROLLED) for c in range(cuda_limits.CHAINS)]
    want = sum(dot((a0, a1)[t % 2], (b0, b1)[(t + c) % 2]) for t, c in turns) * times
    np.testing.assert_array_equal(got, want)


@pytest.mark.thorough
@INSTRUCTIONS
@pytest.mark.parametrize("chip", CHIPS)
def test_ptxas_takes_the_loops(i: cuda_limits.Instruction, chip: str) -> None:
    if not assembler():
        pytest.skip("ptxas is not installed: pip install nvidia-cuda-nvcc")
    if i.least > CHIPS[chip].capability:
        pytest.skip(f"{chip} does not have it")
    ((took,), _) = assemble(cuda_limits.text(i, CHIPS[chip]).encode(), chip)
    assert took.spills == 0
    assert took.registers >= i.sums * cuda_limits.CHAINS


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["int8", "float32", "posit16_es1"])
def test_products_are_checked_and_timed(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = "cuda -arch=sm_80 -runner=ptx"
    assert cuda_speed.timed_product(16, dtype, target, 1) > 0
    if dtype == "posit16_es1":
        return
    wrong = cuda_speed._built

    def off(mod: compiler.ir.expr.IRModule, target: str) -> object:
        exe = wrong(mod, target)
        run = exe.run
        monkeypatch.setattr(exe, "run", lambda *a, **k: [x + 1 for x in run(*a, **k)])
        return exe

    monkeypatch.setattr(cuda_speed, "_built", off)
    with pytest.raises(MachineError, match=f"the product of {dtype} matrices of 16 is wrong"):
        cuda_speed.timed_product(16, dtype, target, 1)


def _small() -> bytes:
    g = Graph()
    x = g.op("Relu", g.conv("x", 3, 8, 3))
    return g.model({"x": np.zeros((1, 3, 8, 8), np.float32)}, g.conv(x, 8, 8, 3))


@pytest.mark.thorough
def test_the_whole_runs_where_a_device_is_emulated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def written(batch: int, files: object) -> compiler.ir.expr.IRModule:
        return compiler.from_onnx(_small(), shapes={"x": (batch, 3, 8, 8)})

    monkeypatch.setattr(cuda_speed, "SIZE", 32)
    monkeypatch.setattr(cuda_speed, "SMALLER", 16)
    monkeypatch.setattr(cuda_speed, "RUNS", 1)
    monkeypatch.setattr(cuda_speed, "BATCHES", (2,))
    monkeypatch.setattr(cuda_speed, "TABLE", (1, 2))
    monkeypatch.setattr(cuda_limits, "TIMES", 1)
    monkeypatch.setattr(cuda_limits, "BLOCKS", 1)
    monkeypatch.setattr(cuda_networks, "NETWORKS", {"resnet50": written})
    cuda_speed.run(False, {}, "ptx")
    said = capsys.readouterr().out
    assert "the interpreter of PTX" in said
    for what in ("int8 32^3 by dp4a", "posit16_es1 16^3", "resnet50, batch 2, int8 vs float32"):
        assert what in said
    table = said.split("dp4a against float32")[1].splitlines()[1:]
    assert [line.split()[:2] for line in table if line] == [["resnet50", "1"], ["resnet50", "2"]]


def test_chips_are_the_newest_that_the_device_runs() -> None:
    driver = EmulatedDriver()
    assert cuda_speed.chip_of(Device(driver)).name == "sm_90a"
    found = []
    for capability in ((8, 7), (7, 5), (10, 0)):
        object.__setattr__(driver.properties, "capability", capability)
        found.append(cuda_speed.chip_of(Device(driver)).name)
    assert found == ["sm_86", "sm_75", "sm_90"]
    object.__setattr__(driver.properties, "capability", (6, 1))
    with pytest.raises(UnsupportedError, match="needs sm_75 or newer"):
        cuda_speed.chip_of(Device(driver))


def test_without_a_gpu_a_sentence_says_so() -> None:
    try:
        opened("driver")
    except UnsupportedError:
        pass
    else:
        pytest.skip("there is a GPU here")
    result = CliRunner().invoke(main, ["cuda"])
    assert result.exit_code == 2
    assert "no NVIDIA driver is found" in result.output
    assert "Traceback" not in result.output


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["resnext50", "drn_c_26", "deformable"])
def test_networks_are_taken_in_batches_of_any_size(name: str) -> None:
    mod = cuda_networks.NETWORKS[name](2, {})
    (x,) = cuda_networks.inputs(mod, 1, seed=0)
    assert x.shape[0] == 2
    out = mod["main"].type.result
    assert isinstance(out, TensorType)
    assert out.shape[0] == 2
    assert out.shape[1] == (64 if name == "deformable" else cuda_networks.CLASSES)
