"""Instructions, schedule rules and layout rules from outside the package run whole networks."""

import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compiler
import quantize
from compiler.build import optimize
from compiler.errors import DtypelabError, InputError, ScheduleError, UnsupportedError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Call, Function, IRModule
from compiler.scheduling import Schedule, rules
from compiler.target import intrinsics
from compiler.target.emit import Emitter, Val
from compiler.tensor.expr import Buffer
from compiler.tensor.stmt import Intrin, walk_stmts
from compiler.transform import layout_rules
from experiments.examples.new_instruction import DOT8, in_eights, tiled

ZOO = Path(__file__).parents[2] / "experiments" / "zoo"


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intrinsics, "_registered", [])
    monkeypatch.setattr(rules, "_registered", [])
    monkeypatch.setattr(layout_rules, "_rules", dict(layout_rules._rules))


def convolution(channels: int, outputs: int, kernel: int = 3, groups: int = 1) -> IRModule:
    rng = np.random.default_rng(channels * outputs)
    b = FunctionBuilder()
    x = b.param("x", (2, channels, 6, 7), "uint8")
    w = rng.integers(-128, 128, (outputs, channels // groups, kernel, kernel)).astype(np.int8)
    bias = b.const(rng.integers(-999, 999, outputs).astype(np.int32))
    y = b.call(
        "nn.conv2d", x, b.const(w), bias, padding=(1, 1, 0, 1), groups=groups,
        out_dtype="int32", input_zero_point=77,
    )  # fmt: skip
    scale = b.const(rng.uniform(1e-4, 3e-3, outputs).astype(np.float32))
    y = b.call("qnn.requantize", y, scale, output_zero_point=9, out_dtype="uint8")
    return IRModule({"main": b.finish(y)})


def data(mod: IRModule) -> np.ndarray:
    shape = mod.main.params[0].type.shape
    return np.random.default_rng(1).integers(0, 256, shape).astype(np.uint8)


def instructions(exe: compiler.Executable) -> dict[str, int]:
    """Name of a dot product -> how often it stands in the kernels."""
    found: dict[str, int] = {}
    for k in exe.program.kernels:
        for s, _, _ in walk_stmts(k.func.body):
            if isinstance(s, Intrin) and s.intrin.steps:
                found[s.intrin.name] = found.get(s.intrin.name, 0) + 1
    return found


@pytest.mark.sampled(9)
@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=haswell", "llvm -mcpu=x86-64-v2"])
@pytest.mark.parametrize(("channels", "outputs"), [(16, 32), (40, 19), (24, 16)])
def test_an_invented_instruction_runs_a_convolution(
    channels: int, outputs: int, target: str
) -> None:
    mod = convolution(channels, outputs)
    x = data(mod)
    try:
        usual = compiler.build(mod, target=target)
    except UnsupportedError as e:
        pytest.skip(str(e))
    compiler.register_intrinsic(DOT8)
    mine = compiler.build(mod, target=target)
    assert "dot8" not in instructions(usual)
    assert set(instructions(mine)) == {"dot8"}
    assert "dot8<" in mine.as_text()
    assert mine(x).tobytes() == usual(x).tobytes() == compiler.evaluate(mod, x).tobytes()


@pytest.mark.thorough
def test_what_is_emitted_is_what_runs() -> None:
    def wrong(e: Emitter, c: Val, a: list[Val], b: list[Val]) -> Val:
        return e.bin("add", DOT8.emit(e, c, a, b), e.const(1, "i32", 16))

    mod = convolution(16, 32)
    x = data(mod)
    compiler.register_intrinsic(compiler.dot_product("wrong8", 16, wrong, steps=8))
    assert (compiler.build(mod)(x) != compiler.evaluate(mod, x)).any()
    compiler.register_intrinsic(compiler.dot_product("wrong8", 16, DOT8.emit, steps=8))
    assert (compiler.build(mod)(x) == compiler.evaluate(mod, x)).all()


@pytest.mark.thorough
@pytest.mark.parametrize("net", ["resnet8", "dwsep"])
def test_a_whole_network_runs_with_it(net: str) -> None:
    mod = compiler.from_onnx(ZOO / f"mnist_{net}.onnx")
    images = np.random.default_rng(0).random((4, 1, 28, 28)).astype(np.float32)
    mod = quantize.quantize(mod, [images])
    usual = compiler.build(mod)(images)
    compiler.register_intrinsic(DOT8)
    compiler.register_alter_op_layout("nn.conv2d", in_eights)
    compiler.register_schedule_rule(tiled, op="nn.conv2d")
    mine = compiler.build(mod)
    assert instructions(mine)["dot8"] >= 2
    assert mine(images).tobytes() == usual.tobytes()
    assert mine(images[:1]).tobytes() == compiler.evaluate(mod, images[:1]).tobytes()


def by_hand(s: Schedule, stage: str, _: compiler.Target, constants: Collection[Buffer]) -> bool:
    """A schedule of primitives alone, for 16 output channels a block: 5 pixels of a row a tile."""
    ((store, path, _), *more) = s.stage_stores(stage)
    if more or not store.update:
        return False
    assert [f.var.name[4:] for f in path] == ["n", "c", "y", "x", "b", "ic", "kh", "kw"]
    (reader,) = [t for t in s.stages() if t != stage and t.startswith("requantize")]
    (weight,) = [b for b in s.func.params if b in constants and len(b.shape) == 4]
    x, lane = s.loops(reader)[3:]
    outer, inner = s.split(x, 5)
    s.compute_at(stage, outer)
    s.split("mac.ic", 8, ("mac.ic8", "mac.i"))
    s.reorder("mac.ic8", "mac.kh", "mac.kw", "mac.x", "mac.b", "mac.i")
    s.decompose_reduction(stage, "mac.ic8")
    s.pack(stage, weight)
    s.tensorize(stage, DOT8)
    s.vectorize("mac.b.init", lane)
    s.peel(outer)
    s.unroll("mac.x", "mac.x.init", inner)
    return True


def in_sixteens(*_: Any) -> compiler.OpLayout:
    """Blocks of 16 channels, which DOT8 computes, however wide the vectors of the target are."""
    return compiler.OpLayout(16, 16)


@pytest.mark.thorough
def test_a_rule_of_primitives_schedules_a_convolution() -> None:
    mod = convolution(16, 32)
    compiler.register_alter_op_layout("nn.conv2d", in_sixteens)
    x = data(mod)
    usual = compiler.build(mod)
    compiler.register_schedule_rule(by_hand, op="nn.conv2d")
    mine = compiler.build(mod)
    assert instructions(mine) == {"dot8": 2}  # five pixels, and what is left of the row
    packed = "[requantized_s.i1<2, mac.ic8<2, mac.kh<3, mac.kw<3, mac.b<16, mac.i<8] = "
    assert packed in mine.as_text()
    assert mine(x).tobytes() == usual(x).tobytes()


def test_rules_are_asked_for_their_operator_and_target_only() -> None:
    asked: list[tuple[str, str]] = []

    def ask(s: Schedule, stage: str, target: compiler.Target, _: Collection[Buffer]) -> bool:
        asked.append((s.func.attrs["operators"][stage], str(target)))
        return False

    mod = convolution(16, 32)
    compiler.register_schedule_rule(ask, op="nn.conv2d", target="llvm")
    compiler.build(mod)
    assert set(asked) == {("nn.conv2d", "llvm")}
    asked.clear()
    compiler.register_schedule_rule(ask, op="nn.dense")
    compiler.build(mod)
    assert not asked
    compiler.register_schedule_rule(ask, target="llvm -mcpu=x86-64-v2")
    compiler.build(mod)
    assert not asked


def test_the_rule_registered_last_goes_first() -> None:
    order: list[str] = []

    def rule(name: str) -> rules.ScheduleRule:
        def ask(s: Schedule, stage: str, t: compiler.Target, _: Collection[Buffer]) -> bool:
            order.append(name)
            return False

        return ask

    for name in ("first", "second"):
        compiler.register_schedule_rule(rule(name), op="nn.conv2d")
    compiler.build(convolution(16, 32))
    assert order[:2] == ["second", "first"]


@pytest.mark.thorough
def test_an_instruction_that_does_not_fit_is_passed_over() -> None:
    compiler.register_intrinsic(DOT8)
    mod = convolution(12, 16)  # channels by fours, not by eights
    exe = compiler.build(mod)
    assert "dot8" not in instructions(exe)
    assert instructions(exe)
    compiler.register_alter_op_layout("nn.conv2d", in_eights)
    x = data(mod)
    exe = compiler.build(mod)
    assert set(instructions(exe)) == {"dot8"}
    assert exe(x).tobytes() == compiler.evaluate(mod, x).tobytes()


@pytest.mark.thorough
def test_depthwise_windows_fill_up_to_the_steps() -> None:
    b = FunctionBuilder()
    x = b.param("x", (1, 16, 6, 7), "uint8")
    rng = np.random.default_rng(0)
    for kernel in (3, 5):
        w = b.const(rng.integers(-128, 128, (16, 1, kernel, kernel)).astype(np.int8))
        pad = (kernel // 2,) * 4
        y = b.call("nn.conv2d", x, w, padding=pad, groups=16, out_dtype="int32")
        scale = b.const(rng.uniform(1e-4, 3e-3, 16).astype(np.float32))
        x = b.call("qnn.requantize", y, scale, out_dtype="uint8")
    mod = IRModule({"main": b.finish(x)})
    compiler.register_intrinsic(DOT8)
    compiler.register_alter_op_layout("nn.conv2d", in_sixteens)
    exe = compiler.build(mod)
    assert set(instructions(exe)) == {"dot8"}
    assert exe(data(mod)).tobytes() == compiler.evaluate(mod, data(mod)).tobytes()


def test_bad_registrations_are_refused() -> None:
    with pytest.raises(DtypelabError, match="did you mean"):
        compiler.register_schedule_rule(by_hand, op="nn.conv2")
    with pytest.raises(UnsupportedError, match="target"):
        compiler.register_schedule_rule(by_hand, target="riscv")
    with pytest.raises(ScheduleError, match="take another name"):
        compiler.register_intrinsic(compiler.dot_product("vpdpbusd.512", 16, DOT8.emit))
    with pytest.raises(InputError, match="NCHW only"):
        compiler.register_alter_op_layout("nn.softmax", in_eights)
    with pytest.raises(InputError, match="multiple of 8"):
        compiler.OpLayout(4, 16, steps=8)
    assert not rules._registered
    assert not intrinsics._registered


# ---- layouts -------------------------------------------------------------------------------------
def pooled() -> IRModule:
    b = FunctionBuilder()
    x = b.param("x", (1, 16, 8, 8), "float32")
    w = b.const(np.random.default_rng(0).normal(size=(16, 16, 1, 1)).astype(np.float32))
    y = b.call("nn.relu", b.call("nn.conv2d", x, w))
    y = b.call("nn.max_pool2d", y, pool_size=(2, 2), strides=(2, 2))
    return IRModule({"main": b.finish(b.call("nn.conv2d", y, w))})


def layouts(mod: IRModule, target: str = "llvm") -> list[str]:
    """Shapes of what pooling gives."""
    inner = [b.value.op for b in optimize(mod, target).main.bindings if isinstance(b.value, Call)]
    bodies = [b for f in inner if isinstance(f, Function) for b in f.bindings]
    pools = [b for b in bodies if isinstance(b.value, Call) and "max_pool" in str(b.value.op)]
    return [str(b.var.type) for b in pools]


def test_a_layout_rule_keeps_an_operator_in_nchw() -> None:
    mod = pooled()
    x = np.random.default_rng(2).normal(size=(1, 16, 8, 8)).astype(np.float32)
    want = compiler.build(mod)(x)
    assert "(1, 16, 4, 4)" not in layouts(mod)[0]
    compiler.register_alter_op_layout("nn.max_pool2d", lambda *_: None)
    assert "(1, 16, 4, 4)" in layouts(mod)[0]
    assert compiler.build(mod)(x).tobytes() == want.tobytes()


def test_a_layout_rule_gives_an_operator_other_blocks() -> None:
    mod = pooled()
    x = np.random.default_rng(2).normal(size=(1, 16, 8, 8)).astype(np.float32)
    want = compiler.build(mod)(x)
    compiler.register_alter_op_layout("nn.max_pool2d", lambda *_: compiler.OpLayout(8, 8))
    assert "(1, 2, 4, 4, 8)" in layouts(mod)[0]
    assert compiler.build(mod)(x).tobytes() == want.tobytes()


def test_a_layout_rule_may_be_for_one_target() -> None:
    mod = pooled()
    compiler.register_alter_op_layout(
        "nn.conv2d", lambda *_: compiler.OpLayout(4, 4), target="llvm -mcpu=x86-64-v2"
    )
    assert "(1, 4, 4, 4, 4)" in layouts(mod, "llvm -mcpu=x86-64-v2")[0]
    assert "(1, 4, 4, 4, 4)" not in layouts(mod)[0]


@pytest.mark.thorough
def test_the_example_runs() -> None:
    script = ZOO.parent / "examples" / "new_instruction.py"
    done = subprocess.run(
        [sys.executable, "-W", "error", script], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert "dot products of eights" in done.stdout
    assert not done.stdout.startswith("0 ")
