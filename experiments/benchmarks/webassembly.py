"""Our code for WebAssembly beside that of onnxruntime-web, in Node, one thread: a product of
matrices of 256 x 256 and efficientnet-lite0, in int8 and float32, and in int8 with activations of
7 bits, which relaxed SIMD multiplies; wasmtime's time and that of native code for comparison.

onnxruntime-web is a package of npm: `npm install onnxruntime-web` in a folder that the environment
variable DTYPELAB_NPM names. Calls in Node are timed in Node: the way through the pipe is not in it.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from compiler.errors import ConfigError, MachineError
from compiler.ir.expr import IRModule
from compiler.runtime.executable import Executable
from compiler.runtime.machines.registry import missing
from compiler.target.registry import Target
from experiments.benchmarks import models
from experiments.benchmarks.networks import Row
from experiments.benchmarks.turns import Effort
from experiments.measure.disturbance import pinned

VARIABLE = "DTYPELAB_NPM"
PACKAGE = "onnxruntime-web"
LEAST = 1.5
"""How many times as long onnxruntime-web must take in int8."""
SIZE = 256
SEVEN = "int8 of 7 bits"
"""Weights of 8 bits, activations of 7."""
RELAXED = " -mattr=+relaxed-simd"
Array = NDArray[Any]
Times = Callable[[int], list[float]]
"""Calls something so many times, and gives the milliseconds of each."""

_SCRIPT = """
const ort = require(process.argv[1]), fs = require('fs'), readline = require('readline');
ort.env.wasm.numThreads = 1;
(async () => {
  const [model, input, shape] = process.argv.slice(2);
  const how = { executionProviders: ['wasm'], graphOptimizationLevel: 'all' };
  const session = await ort.InferenceSession.create(fs.readFileSync(model), how);
  const bytes = fs.readFileSync(input);
  const data = new Float32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4);
  const given = { [session.inputNames[0]]: new ort.Tensor('float32', data, JSON.parse(shape)) };
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const times = [];
    for (let k = 0; k < Number(line); ++k) {
      const begin = performance.now();
      await session.run(given);
      times.push(performance.now() - begin);
    }
    console.log(JSON.stringify(times));
  }
})();
"""


@dataclass(frozen=True)
class Case:
    """A network with an input, in float32, int8 and SEVEN, and the files that onnxruntime runs."""

    title: str
    x: Array
    modules: Mapping[str, IRModule]
    files: Mapping[str, Path]


def run(effort: Effort, given: Mapping[str, Path]) -> bool:
    """Measure, print rows, and tell whether all pass.

    Raises:
        UnsupportedError: nothing runs WebAssembly here; says what to install.
        ConfigError: onnxruntime-web is not where it was said to be.
    """
    package, passed = onnxruntime_web(), True
    with tempfile.TemporaryDirectory(prefix="dtypelab-") as folder:
        for case in cases(Path(folder), given):
            passed &= _compared(case, package, effort)
    return passed


def onnxruntime_web() -> Path:
    """The folder of the package.

    Raises:
        ConfigError: it is not there.
    """
    named = os.environ.get(VARIABLE, "")
    package = Path(named or ".", "node_modules", PACKAGE).resolve()
    if not named or not package.is_dir():
        raise ConfigError(
            f"the group wasm needs {PACKAGE}: `npm install {PACKAGE}` in a folder, and name it by "
            f"the environment variable {VARIABLE}"
        )
    return package


def cases(folder: Path, given: Mapping[str, Path]) -> list[Case]:
    """The product of matrices, and the network if its file is there."""
    import compiler

    rng = np.random.default_rng(0)
    files = [_product(folder / "gemm.onnx", rng)]
    inputs = [[rng.normal(size=(SIZE, SIZE)).astype(np.float32) for _ in range(4)]]
    titles = [f"{SIZE} x {SIZE} x {SIZE}"]
    network = models.MODELS["efficientnet_lite0"]
    path = models.locate(network.name, given)
    if path is None:
        click.echo(f"  skipped {network.name}: {network.hint}")
    else:
        files.append(path)
        inputs.append(network.calibration())
        titles.append(network.name)
    found = []
    for title, file, batches in zip(titles, files, inputs, strict=True):
        shapes = {models.input_name(file): batches[0].shape}
        plain = compiler.from_onnx(file, shapes=shapes)
        found.append(_case(title, file, plain, batches, folder))
    return found


def _product(path: Path, rng: np.random.Generator) -> Path:
    from onnx import helper, numpy_helper, save

    w = numpy_helper.from_array(rng.normal(size=(SIZE, SIZE)).astype(np.float32), "w")
    x, y = (helper.make_tensor_value_info(n, 1, (SIZE, SIZE)) for n in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [w])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def _case(title: str, file: Path, plain: IRModule, batches: list[Array], folder: Path) -> Case:
    import quantize

    modules, files = {"float32": plain}, {"float32": file}
    for name, bits in (("int8", 8), (SEVEN, 7)):
        if name == SEVEN and (why := _lacks_relaxed()):
            click.echo(f"  skipped {title} {SEVEN}: {why}")
            continue
        plan = quantize.calibrate(plain, batches, quantize.QConfig(activation_bits=bits))
        files[name] = folder / f"{file.stem}_{bits}.onnx"
        quantize.export_onnx(plain, plan, files[name])
        modules[name] = quantize.realize(plain, plan)
    return Case(title, batches[0], modules, files)


def _lacks_relaxed() -> str:
    """Why relaxed SIMD does not run here; empty: it does."""
    targets = (Target.anywhere(f"wasm32{RELAXED} -runner={m}") for m in ("wasmtime", "node"))
    return next(filter(None, map(missing, targets)), "")


def _compared(case: Case, package: Path, effort: Effort) -> bool:
    """One case: all its contenders in turns."""
    import compiler

    with ExitStack() as stack:
        contenders: dict[str, Times] = {}
        problem = ""
        for dtype, module in case.modules.items():
            features = RELAXED if dtype == SEVEN else ""
            built = {
                name: compiler.build(module, target=target)
                for name, target in (
                    ("native", "llvm"),
                    ("wasmtime", f"wasm32{features} -runner=wasmtime"),
                    ("node", f"wasm32{features} -runner=node"),
                )
            }
            made = {name: exe(case.x) for name, exe in built.items()}
            if not np.array_equal(made["node"], made["wasmtime"]):
                problem = "Node and wasmtime differ"
            if dtype != "float32" and not np.array_equal(made["node"], made["native"]):
                problem = "its bits are others than those of native code"
            for name, exe in built.items():
                contenders[f"ours {dtype}, {name}"] = timed(exe, case.x)
            name = f"{PACKAGE} {dtype}, node"
            contenders[name] = stack.enter_context(_Peer(package, case.files[dtype], case.x)).times
        with pinned(1):
            times = _medians(contenders, effort)
    click.echo(f"{case.title}, ms")
    for name, value in times.items():
        click.echo(f"  {name:<34} {value:9.3f}")
    passed = True
    for dtype in case.modules:
        ratio = times[f"{PACKAGE} {dtype}, node"] / times[f"ours {dtype}, node"]
        least = LEAST if dtype == "int8" else None
        row = Row(f"{case.title} {dtype}: ours vs {PACKAGE}, in Node", ratio, least, problem)
        click.echo(str(row))
        passed &= row.passed
    return passed


def timed(exe: Executable, x: Array) -> Times:
    """What times calls of an executable: in Node where it is there."""
    from compiler.runtime.elsewhere import ElsewhereExecutable
    from compiler.runtime.machines.node import Instance

    if isinstance(exe, ElsewhereExecutable) and isinstance(exe.loaded, Instance):
        outs, arena = exe.run([x], {}), exe.workspace_bytes()
        there = exe.loaded
        return lambda count: there.timed([x], outs, [], arena, count)

    def times(count: int) -> list[float]:
        found = []
        for _ in range(count):
            begin = time.perf_counter_ns()
            exe(x)
            found.append((time.perf_counter_ns() - begin) / 1e6)
        return found

    return times


def _medians(contenders: Mapping[str, Times], effort: Effort) -> dict[str, float]:
    """Median milliseconds a call, over rounds in which each has a turn of as many calls as fit."""
    wanted = -(-effort.runs // effort.rounds)
    every: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(effort.rounds):
        for name, times in contenders.items():
            (first,) = times(1)
            fit = int(1e3 * effort.warm_s / max(first, 1e-3))
            times(min(fit, 1000)) if fit else None
            more = int(1e3 * effort.slice_s / max(first, 1e-3))
            every[name] += times(max(wanted, min(more, 1000)))
    return {name: float(np.median(values)) for name, values in every.items()}


class _Peer:
    """onnxruntime-web with a model, in a Node of its own."""

    def __init__(self, package: Path, model: Path, x: Array):
        self._folder = tempfile.TemporaryDirectory(prefix="dtypelab-")
        data = Path(self._folder.name, "x.bin")
        data.write_bytes(np.ascontiguousarray(x, np.float32).tobytes())
        call = ["node", "-e", _SCRIPT, str(package), str(model), str(data), json.dumps(x.shape)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            call, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
        )

    def __enter__(self) -> _Peer:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.communicate()
        self._folder.cleanup()

    def times(self, count: int) -> list[float]:
        """See Times."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{count}\n")
            self._process.stdin.flush()
            return list(json.loads(self._process.stdout.readline()))
        except (OSError, json.JSONDecodeError):
            raise MachineError(f"{PACKAGE} has stopped, or does not take the model") from None
