"""Instructions of other CPUs' code, counted by emulators: how many a multiply-accumulate takes.

An int8 product of two matrices of 256 x 256 on AArch64 and RISC-V CPUs, beside plain loops in LLVM
text; and networks, whose int8 results must be those of this machine. Instructions are not cycles.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np

from experiments.benchmarks import models
from experiments.benchmarks.models import Array
from experiments.benchmarks.report import Row

if TYPE_CHECKING:
    from compiler.ir.expr import IRModule

SIZE = 256
NAIVE: Mapping[str, float] = {
    "cortex-a53": 0.71,
    "cortex-a76": 0.35,
    "neoverse-v1": 0.35,
    "generic-rv64": 8.0,
    "generic-rv64gcv": 1.55,
}
"""CPU -> instructions of three loops in LLVM text, vectorized along one axis; of Neoverse V1, which
was not counted, those of Cortex-A76."""
NETWORKS = ("mnist_resnet8", "efficientnet_lite0", "pp_ocrv4_rec")
CPUS = ("cortex-a53", "cortex-a76", "neoverse-v1", "generic-rv64gcv")
"""On which networks run."""
_ENDS = {"uint8": (0, 256), "int8": (-128, 128)}


def run(selected: Collection[str], given: Mapping[str, Path]) -> bool:
    """Count, print rows, and tell whether all pass. Networks whose files are not there, and CPUs
    that nothing runs here, are named.

    Raises:
        ConfigError: a file that is named is not there.
    """
    passed = True
    click.echo(f"int8 product of {SIZE} x {SIZE} x {SIZE}: instructions a multiply-accumulate")
    for cpu, naive in NAIVE.items():
        for data in ("uint8", "int8"):
            x = np.random.default_rng(1).integers(*_ENDS[data], (SIZE, SIZE)).astype(data)
            passed &= _row(f"{cpu}, {data}", product(data), x, cpu, naive)
    for name in [n for n in NETWORKS if not selected or n in selected]:
        path = models.locate(name, given)
        if path is None:
            click.echo(f"{name} is left out: {models.MODELS[name].hint}")
            continue
        click.echo(f"{name}, int8, one call: instructions a multiply-accumulate")
        module = _integers(name, path)
        for cpu in CPUS:
            passed &= _row(cpu, module, models.MODELS[name].evaluation()[0], cpu, None)
    return passed


def product(data: str) -> IRModule:
    """int8 weights times activations of a dtype, summed in int32."""
    from compiler.ir.builder import FunctionBuilder
    from compiler.ir.expr import IRModule

    b, rng = FunctionBuilder(), np.random.default_rng(0)
    w = rng.integers(-128, 128, (SIZE, SIZE)).astype(np.int8)
    y = b.call("nn.dense", b.param("x", (SIZE, SIZE), data), b.const(w), out_dtype="int32")
    return IRModule({"main": b.finish(y)})


def _integers(name: str, path: Path) -> IRModule:
    import compiler
    import quantize

    model = models.MODELS[name]
    module = compiler.from_onnx(path, shapes={models.input_name(path): model.shape})
    return quantize.quantize(module, model.calibration())


def _row(title: str, module: IRModule, x: Array, cpu: str, naive: float | None) -> bool:
    import compiler
    from compiler.errors import UnsupportedError
    from compiler.runtime.elsewhere import ElsewhereExecutable
    from compiler.transform.analysis import cost

    try:
        there = compiler.build(module, target=f"llvm -mcpu={cpu}")
    except UnsupportedError as error:
        click.echo(f"  {title} is left out: {error}")
        return True
    same = np.array_equal(there(x), compiler.build(module)(x))
    assert isinstance(there, ElsewhereExecutable)
    if there.instructions is None:
        click.echo(f"  {title} is left out: {there.machine.name} counts no instructions here")
        return same
    row = Row(title, there.instructions / cost(module).macs, "/ MAC", most=naive)
    click.echo(f"{row}{'' if same else '  FAIL: its results are others than those here'}")
    return same and row.passed
