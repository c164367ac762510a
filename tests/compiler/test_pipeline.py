"""The one table of passes: what it prints is what runs, and nothing else orders passes."""

import ast
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compiler
import compiler.transform
import quantize
from compiler.codegen import cache
from compiler.codegen.backend import BACKENDS
from compiler.codegen.llvm.backend import LLVM
from compiler.errors import ConfigError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.passes import manager
from compiler.passes.manager import Pass, PassContext, PassInstrument, Sequential
from compiler.passes.pipeline import Step, pipeline
from compiler.passes.record import PipelineRecord, runs
from compiler.runtime import kernels, loader, object_code
from compiler.runtime.host import HOST
from compiler.symbolic import Var as Dim
from datatypes import change_dtype
from quantize.onnx.export import to_model

ROOT = Path(__file__).parents[2]
RNG = np.random.default_rng(0)
LOOPS = ("legalize", "check_independent", "start_reductions", "schedule_default",
         "lower_custom_dtypes", "kernel")  # fmt: skip


class Seen(PassInstrument):
    """Names of passes and functions as they begin, but for what runs inside others."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._inside = 0

    def before(self, mod: IRModule, pass_: Pass) -> None:
        self._begin(pass_.name, isinstance(pass_, Sequential))

    def after(self, mod: IRModule, pass_: Pass) -> None:
        self._inside -= not isinstance(pass_, Sequential)

    def before_step(self, step: Step, subject: Any) -> None:
        self._begin(step.name, step.name == "lower")  # regions are compiled inside it

    def after_step(self, step: Step, given: Any) -> None:
        self._inside -= step.name != "lower"

    def _begin(self, name: str, group: bool) -> None:
        if not self._inside and not (group and name != "lower"):
            self.names.append(name)
        self._inside += not group


# ---- models --------------------------------------------------------------------------------------
def convolution(rows: int | Dim = 2) -> IRModule:
    b = FunctionBuilder()
    x = b.param("x", (rows, 3, 6, 6))
    w = np.random.default_rng(1).standard_normal((8, 3, 3, 3)).astype(np.float32)
    y = b.call("nn.relu", b.call("nn.conv2d", x, b.const(w)))
    mean, one = np.zeros(8, np.float32), np.ones(8, np.float32)
    y = b.call("nn.batch_norm", y, *map(b.const, (one, mean, mean, one)))
    z = b.call("add", b.call("exp", y), b.call("exp", y))
    return IRModule({"main": b.finish(z)})


@lru_cache
def int8() -> IRModule:
    return quantize.quantize(convolution(), [{"x": RNG.random((2, 3, 6, 6), np.float32)}])


def posit() -> IRModule:
    b = FunctionBuilder()
    x = b.param("x", (2, 4))
    y = b.call("nn.relu", b.call("nn.dense", x, b.const(np.ones((3, 4), np.float32))))
    return change_dtype(IRModule({"main": b.finish(y)}), "float32", "posit8_es1")


def control() -> IRModule:
    x, times = compiler.var("x", ("n", 4)), compiler.var("times", (), "int64")
    _, y = compiler.while_loop(
        lambda k, state: k < times,
        lambda k, state: (k + 1, compiler.call("exp", state) + x),
        init=(compiler.const(0), x),
    )
    y = compiler.if_else(times > 3, y * 0.5, y)
    return IRModule({"main": compiler.function([x, times], y)})


MODELS: dict[str, Callable[[], IRModule]] = {
    "float32": convolution, "int8": int8, "posit": posit, "control": control
}  # fmt: skip


# ---- the table -----------------------------------------------------------------------------------
def ran(rows: list[dict[str, Any]]) -> list[str]:
    return [r["step"] for r in rows if r["times"]]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("level", range(5))
@pytest.mark.parametrize("model", ["float32", "int8", "posit"])
def test_the_table_of_a_build_is_what_an_instrument_sees(model: str, level: int) -> None:
    record, seen = PipelineRecord(), Seen()
    mod = MODELS[model]()
    context = PassContext(opt_level=level, instruments=[record, seen])
    with context:
        compiler.build(mod)
    rows = record.rows(context)
    graph = [n for n in seen.names if n not in LOOPS]
    assert [n for n in ran(rows) if n not in LOOPS] == graph
    assert record.log == seen.names
    # Kernel after kernel; one that was compiled before is legalized, and scheduled if custom
    # datatypes are in it, but no code is written.
    loops = [n for n in seen.names if n in LOOPS]
    each = " ".join(loops).split("legalize")[1:]
    assert {k.split()[-1] for k in each if k.split()} <= set(LOOPS[-2:])
    assert [n for n in ran(rows) if n in LOOPS] == [n for n in LOOPS if n in loops]
    # What the table of the context promises is what ran.
    done = {(r["stage"], r["step"]): r["times"] for r in rows}
    for stage, step in pipeline().steps():
        if step.is_pass and stage.name != "import":
            assert (runs(step, context) == "yes") == (done[stage.name, step.name] > 0), step.name
    assert ("CanonicalizeOps" in graph) == (level >= 3)
    assert ("AlterOpLayout" in graph) == (level >= 2)


def test_what_the_importer_runs_is_the_first_stage() -> None:
    mod = convolution()
    model = to_model(mod, quantize.calibrate(mod, [{"x": RNG.random((2, 3, 6, 6), np.float32)}]))
    for disabled, log in ([], ["InferType", "UseIntegers"]), (["UseIntegers"], []):
        record, seen = PipelineRecord(), Seen()
        with PassContext(disabled_pass=disabled, instruments=[record, seen]) as context:
            mod = compiler.from_onnx(model)
        assert record.log == seen.names == log
        assert ran(record.rows(context)) == log
        assert ("_acc = nn.conv2d" in str(mod)) == bool(log)


@pytest.mark.parametrize("level", [0, 2, 4])
def test_regions_of_the_virtual_machine_go_through_the_same_table(level: int) -> None:
    record, seen = PipelineRecord(), Seen()
    context = PassContext(opt_level=level, instruments=[record, seen])
    with context:
        exe = compiler.build(control())
    names = [n for n in seen.names if n not in LOOPS]
    at = names.index("lower")
    rows = [r for r in record.rows(context) if r["times"] and r["step"] not in LOOPS]
    before = next(k for k, r in enumerate(rows) if r["step"] == "lower")
    assert names[: at + 1] == [r["step"] for r in rows[: before + 1]]
    regions = len(exe.image.regions)  # type: ignore[attr-defined]
    assert regions > 1
    assert names[at + 1 :] == [r["step"] for r in rows[before + 1 :]] * regions
    assert {r["times"] for r in rows[before + 1 :]} == {regions}


class Logged:
    """A backend or loader that notes which methods of the table are called."""

    def __init__(self, inner: Any, log: list[str]) -> None:
        self._inner, self._log = inner, log

    def __getattr__(self, name: str) -> Any:
        if name in ("kernel", "object", "link", "entry", "load"):
            self._log.append(name)
        return getattr(self._inner, name)


def test_backend_and_loader_are_called_in_the_order_of_the_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []
    monkeypatch.setenv(cache.VARIABLE, "0")
    monkeypatch.setattr(kernels, "_known", {})
    monkeypatch.setattr(object_code, "_objects", {})
    monkeypatch.setitem(BACKENDS, "llvm", partial(Logged, LLVM, log))
    monkeypatch.setitem(loader._loaders, "llvm", partial(Logged, HOST, log))
    compiler.build(convolution())
    steps = [s for stage in ("code", "machine code", "program") for s in pipeline()[stage].steps]
    assert list(dict.fromkeys(log)) == [s.name for s in steps]


def test_operators_before_and_after_are_counted() -> None:
    record = PipelineRecord()
    with PassContext(instruments=[record]) as context:
        compiler.build(convolution())
    rows = {(r["stage"], r["step"]): r for r in record.rows(context)}
    fused = rows["fusion", "FuseOps"]
    assert fused["changed"]
    assert "kernels" in fused["effect"]
    assert not rows["custom datatypes", "RepresentCustomDtypes"]["changed"]
    simplified = rows["prepare", "SimplifyInference"]
    assert simplified["operators_before"] < simplified["operators_after"]  # of batch_norm
    assert all(r["ms"] > 0 for r in rows.values() if r["times"])


def test_a_context_prints_the_table() -> None:
    context = PassContext(
        opt_level=1, disabled_pass=["FoldZeroPoint"], required_pass=["CombineParallelDense"]
    )
    lines = {line[27:53].split()[0]: line for line in str(context).splitlines()[1:-1]}
    assert [line[27:53].split()[0] for line in str(context).splitlines()[1:-1]] == [
        step.name for _, step in pipeline().steps()
    ]
    assert lines["FoldZeroPoint"].endswith("disabled")
    assert lines["CombineParallelDense"].endswith("required")
    assert "no, at level 1" in lines["AlterOpLayout"]
    assert lines["entry"].endswith("by the target")
    assert lines["SplitExact"].endswith("yes")
    assert str(context) == context.table()


def test_a_disabled_fusion_still_makes_kernels() -> None:
    record = PipelineRecord()
    with PassContext(disabled_pass=["FuseOps"], instruments=[record]) as context:
        exe = compiler.build(convolution())
    (row,) = (r for r in record.rows(context) if r["step"] == "FuseOps")
    assert row["times"] == 1
    assert len(exe.kernels) == row["operators_after"]


def test_unknown_names_are_checked_against_the_table() -> None:
    with pytest.raises(ConfigError, match="did you mean 'FuseOps'"):
        PassContext(disabled_pass=["FuseOp"])
    for step in [*(s for _, s in pipeline().steps() if s.is_pass), *pipeline().on_request]:
        PassContext(disabled_pass=[step.name])


# ---- nothing else --------------------------------------------------------------------------------
def test_every_pass_is_in_the_table() -> None:
    for module in pkgutil.iter_modules(compiler.transform.__path__):
        importlib.import_module(f"compiler.transform.{module.name}")
    own = {n for n, p in manager._passes.items() if p.__module__.startswith("compiler.") and n}
    table = {s.name for _, s in pipeline().steps() if s.is_pass}
    assert own == table | {s.name for s in pipeline().on_request}
    assert not table & {s.name for s in pipeline().on_request}
    for stage, step in pipeline().steps():
        assert callable(step.load())
        if step.is_pass:
            level = manager._passes[step.name].opt_level
            assert level >= stage.level  # else the stage would hide it


def called(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            yield node.func.id if isinstance(node.func, ast.Name) else node.func.attr


@pytest.mark.thorough
def test_no_other_file_orders_passes() -> None:
    names = {s.name for _, s in pipeline().steps()} | {s.name for s in pipeline().on_request}
    names -= {"lower", "kernel", "object", "link", "entry", "load"}  # of other things too
    mentioned = re.compile(rf"\b({'|'.join(names)})\b")
    # What the table calls, each from a function of its own; how a module is partitioned.
    most = {"runtime/nests.py": 4, "build.py": 3}
    others = {"stages.py", "transform/__init__.py"}  # the table, and names for imports
    looked_at = 0
    for package in ("compiler", "quantize", "datatypes", "experiments"):
        for path in (ROOT / package).rglob("*.py"):
            text, file = path.read_text("utf-8"), str(path.relative_to(ROOT))
            if len({*mentioned.findall(text)}) < 2 or file in {f"compiler/{f}" for f in others}:
                continue
            looked_at += 1
            tree = ast.parse(text)
            made = {n for n in called(tree) if n in names}
            assert len(made) <= most.get(file.removeprefix("compiler/"), 1), (file, made)
            for node in ast.walk(tree):
                if isinstance(node, ast.List | ast.Tuple):
                    listed = [str(e.value) for e in node.elts if isinstance(e, ast.Constant)]
                    assert len(names.intersection(listed)) < 2, (file, listed)
    assert looked_at > 5
