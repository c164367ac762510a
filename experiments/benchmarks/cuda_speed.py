"""Speed on the NVIDIA GPU of this machine: products of matrices against what the chip's
instructions reach on registers alone, and networks in int8 against float32, and against torch.

All times are the device's, by its events: calls are graphs, copies to and from it are not counted.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from compiler.errors import MachineError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.runtime.cuda.device import Device, opened, unlike
from compiler.target import cuda
from compiler.target.cuda import CHIPS, Chip
from compiler.types.dtypes import DType
from experiments.benchmarks import cuda_limits, cuda_networks
from experiments.benchmarks.report import Row

if TYPE_CHECKING:
    from pathlib import Path

    from compiler.runtime.cuda.executable import CudaExecutable

SIZE, SMALLER = 8192, 2048
"""Of square matrices; of those in formats that each thread computes."""
SHARE = 0.9
"""Least share of what an instruction reaches on registers."""
SLOWER = 12.0
"""Most times that products in posit16 take, of float32's."""
FASTER, TORCH = 8.0, 1.0
"""Least speed of ResNet-50 in int8, of ours in float32, and of torch in float16."""
BATCHES = (16, 64)
"""Of ResNet-50; those of the table of networks are `TABLE`."""
TABLE = (1, 16)
RUNS, CHECKED = 20, 4
"""Calls that are timed; rows of a product that are checked."""


def chip_of(device: Device) -> Chip:
    """The newest chip that code for the device can be made for.

    Raises:
        UnsupportedError: there is none.
    """
    found = [c for c in CHIPS.values() if not unlike(c, device.driver.properties)]
    if not found:
        from compiler.target.registry import Target

        device.refuse(Target.parse(f"{cuda.KIND} -arch={next(iter(CHIPS))}"))
    return max(found, key=lambda c: (c.capability, c.exact))


def product(size: int, dtype: str) -> IRModule:
    """A module that multiplies matrices `a` and `b`, transposed; bytes are added up in int32."""
    b = FunctionBuilder()
    given = [b.param(n, (size, size), DType.parse(dtype)) for n in "ab"]
    more = {"out_dtype": "int32"} if dtype == "int8" else {}
    return IRModule({"main": b.finish(b.call("nn.dense", *given, **more))})


def milliseconds(exe: CudaExecutable, arrays: Sequence[Any], runs: int) -> float:
    """Median time of a call on the device."""
    return statistics.median(exe.call_times(arrays, {}, runs))


def _built(mod: IRModule, target: str) -> CudaExecutable:
    import compiler
    from compiler.runtime.cuda.executable import CudaExecutable

    exe = compiler.build(mod, target=target)
    assert isinstance(exe, CudaExecutable)
    return exe


def timed_product(size: int, dtype: str, target: str, runs: int) -> float:
    """Multiply-adds a second of a product of square matrices, of which some rows are checked.

    Raises:
        MachineError: they are wrong.
    """
    rng = np.random.default_rng(0)
    if dtype == "int8":
        given = [rng.integers(-128, 128, (size, size)).astype(np.int8) for _ in "ab"]
        mod = product(size, dtype)
    else:
        given = [rng.normal(size=(size, size)).astype(np.float32) for _ in "ab"]
        mod = product(size, "float32")
        if dtype != "float32":
            import datatypes

            mod = datatypes.change_dtype(mod, "float32", dtype)
    exe = _built(mod, target)
    arrays = [np.ascontiguousarray(x) for x in given]
    out = np.asarray(exe(*arrays))
    if dtype in ("int8", "float32"):
        rows = rng.integers(0, size, CHECKED)
        want = given[0][rows].astype(np.float64) @ given[1].T.astype(np.float64)
        tolerance = 0.0 if dtype == "int8" else 1e-6 * size
        if np.abs(out[rows] - want).max() > tolerance:
            raise MachineError(f"the product of {dtype} matrices of {size} is wrong on {target}")
    return float(size) ** 3 / milliseconds(exe, arrays, runs) * 1e3


def products(
    device: Device, targets: tuple[str, str], sizes: tuple[int, int], runs: int
) -> list[Row]:
    """Products of matrices; `targets`: with the chip's matrix units, and without."""
    full, without = targets
    chip = CHIPS[full.split("-arch=")[1].split()[0]]
    reached = cuda_limits.limits(device, chip, runs)
    rows = [Row(f"{n}, on registers", v / 1e12, "T/s") for n, v in reached.items()]
    large, small = sizes
    cases = [
        ("mma int8" if chip.capability >= 80 else "mma int8 (m8n8k16)", "int8", full, SHARE),
        ("dp4a", "int8", without, SHARE),
        ("float32 fma", "float32", full, None),
    ]
    for of, dtype, target, least in cases:
        speed = timed_product(large, dtype, target, runs)
        rows.append(Row(f"{dtype} {large}^3 by {of}", speed / 1e12, "T/s"))
        rows.append(Row(f"  share of that on registers: {of}", speed / reached[of], "", least))
    plain = timed_product(small, "float32", full, runs)
    posit = timed_product(small, "posit16_es1", full, runs)
    rows.append(
        Row(f"posit16_es1 {small}^3 in times of float32's", plain / posit, "x", most=SLOWER)
    )
    return rows


def network_times(name: str, batch: int, targets: dict[str, str], runs: int, files: Any) -> Any:
    """Name of a contender -> milliseconds; those called int8... are quantized."""
    plain = cuda_networks.NETWORKS[name](batch, files)
    small = cuda_networks.in_int8(plain) if any("int8" in t for t in targets) else plain
    (x,) = cuda_networks.inputs(plain, 1, seed=2)
    times = {}
    for what, target in targets.items():
        exe = _built(small if "int8" in what else plain, target)
        times[what] = milliseconds(exe, [x], runs)
    return times


def torch_float16(batch: int, runs: int) -> float | None:
    """Milliseconds of torchvision's ResNet-50 by cuDNN in float16, as a graph; None: torch or a
    GPU that it knows is missing."""
    try:
        import torch
        from torchvision import models
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    torch.backends.cudnn.benchmark = True
    network = models.resnet50(weights=None).cuda().half().eval()
    network = network.to(memory_format=torch.channels_last)
    side = cuda_networks.SIDE
    x = torch.randn(batch, 3, side, side, device="cuda", dtype=torch.float16)
    x = x.to(memory_format=torch.channels_last)
    with torch.inference_mode():
        for _ in range(3):
            network(x)
        torch.cuda.synchronize()
        graph: Any = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            network(x)
        times: list[float] = []
        for _ in range(runs):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            graph.replay()
            last.record()
            torch.cuda.synchronize()
            times.append(first.elapsed_time(last))
    return statistics.median(times)


def _resnet50(full: str, batches: Sequence[int], runs: int, files: Any) -> list[Row]:
    rows = []
    for batch in batches:
        times = network_times("resnet50", batch, {"int8": full, "float32": full}, runs, files)
        what = f"resnet50, batch {batch}, int8"
        rows.append(Row(f"{what}: milliseconds", times["int8"], "ms"))
        rows.append(Row(f"{what} vs float32", times["float32"] / times["int8"], "x", FASTER))
        torch = torch_float16(batch, runs)
        if torch is None:
            click.echo("  torch with CUDA and torchvision are not installed: no row for them")
        else:
            rows.append(Row(f"{what} vs torch float16", torch / times["int8"], "x", TORCH))
    return rows


def _table(without: str, names: Sequence[str], batches: Sequence[int], runs: int, f: Any) -> None:
    click.echo(f"  {'dp4a against float32':<24} batch    float32       int8  ratio")
    for name in names:
        for batch in batches:
            times = network_times(name, batch, {"float32": without, "int8": without}, runs, f)
            a, b = times["float32"], times["int8"]
            click.echo(f"  {name:<24} {batch:5} {a:7.3f} ms {b:7.3f} ms {a / b:6.2f}")


def run(
    quick: bool,
    files: dict[str, Path],
    runner: str = cuda.DRIVER,
    show: Callable[[str], None] = click.echo,
) -> bool:
    """Measure, print rows, and tell whether all pass. `quick`: smaller matrices, fewer networks.

    Raises:
        UnsupportedError: there is no GPU, or none that code is made for.
    """
    device = opened(runner)
    chip = chip_of(device)
    full = f"{cuda.KIND} -arch={chip.name} -runner={runner}"
    without = f"{full} -mattr=-mma"
    found = device.driver.properties
    show(f"{found.name}, {found.multiprocessors} multiprocessors, code for {chip.name}")
    runs = RUNS // 4 if quick else RUNS
    sizes = (SMALLER, SMALLER // 2) if quick else (SIZE, SMALLER)
    rows = products(device, (full, without), sizes, runs)
    show("\n".join(map(str, rows)))
    nets = _resnet50(full, BATCHES[:1] if quick else BATCHES, runs, files)
    show("\n".join(map(str, nets)))
    names = ["resnet50"] if quick else list(cuda_networks.NETWORKS)
    _table(without, names, TABLE, runs, files)
    return all(r.passed for r in (*rows, *nets))
