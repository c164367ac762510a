"""Kernels from the cache: found without scheduling, and never the wrong ones."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import compiler
import quantize
from compiler.build import optimize
from compiler.codegen import cache
from compiler.codegen.kernel_abi import KernelAbi, Stage
from compiler.errors import LoweringError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Constant, IRModule
from compiler.lowering.legalize import Legalized, legalize
from compiler.runtime import kernels
from compiler.runtime.kernels import KernelSource
from compiler.scheduling import rules
from compiler.scheduling.tile_config import TileChoice
from compiler.symbolic import Index, Var, imin
from compiler.target.registry import Target
from compiler.tensor.packed_arrays import IndexMap, pack_array

ZOO = Path(__file__).parents[2] / "experiments" / "zoo"
HOST = Target.parse("llvm")
RNG = np.random.default_rng(0)

# Builds a convolutional network, with everything that makes code out of order if told so, and
# prints a hash of its result and of the text of its kernels, and how often it compiled.
BUILD = """
import hashlib, sys
import numpy as np, compiler
from compiler.codegen import cache
from compiler.codegen.llvm import backend
from compiler.runtime import nests
def broken(*_): raise AssertionError("a warm process must not come here")
if sys.argv[1] == "warm":
    schedule, nests.schedule_for = nests.schedule_for, lambda _: broken
    backend.lower_primfunc = broken
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
rng = np.random.default_rng(0)
b = FunctionBuilder()
x = y = b.param("x", (1, 3, 9, 9))
for k, n in enumerate((3, 20, 20)):
    w = rng.standard_normal((20, n, 3, 3)).astype(np.float32)
    y = b.call("nn.relu", b.call("nn.conv2d", y, b.const(w), padding=(1, 1, 1, 1)))
exe = compiler.build(IRModule({"main": b.finish(y)}))
out = exe(rng.standard_normal((1, 3, 9, 9)).astype(np.float32))
if sys.argv[1] == "warm":
    nests.schedule_for = schedule
text = exe.as_text()
print(*(hashlib.sha256(t).hexdigest() for t in (out.tobytes(), text.encode())),
      cache.statistics()["compiled"], "pack" in text)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    monkeypatch.setattr(kernels, "_known", {})
    return tmp_path


def convolution(channels: int = 16, scale: float = 0.5) -> IRModule:
    b = FunctionBuilder()
    x = b.param("x", (1, channels, 6, 6))
    w = np.full((16, channels, 3, 3), scale, np.float32)
    return IRModule({"main": b.finish(b.call("nn.conv2d", x, b.const(w)))})


def loops(mod: IRModule) -> Legalized:
    (binding,) = (b for b in optimize(mod).main.bindings if "conv2d" in str(b.value))
    return legalize(binding.value.op)


# ---- what is kept --------------------------------------------------------------------------------
def test_a_warm_process_neither_schedules_nor_lowers(folder: Path) -> None:
    def run(how: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", BUILD, how], capture_output=True, text=True, check=True
        )
        return done.stdout.split()

    cold = run("cold")
    assert int(cold[2]) > 0
    assert cold[3] == "True"
    assert run("warm") == [*cold[:2], "0", "True"]


@pytest.mark.thorough
@pytest.mark.parametrize("int8", [False, True])
def test_what_is_kept_of_a_kernel_comes_back(folder: Path, int8: bool) -> None:
    mod = compiler.from_onnx(ZOO / "mnist_dwsep.onnx")
    if int8:
        mod = quantize.quantize(mod, [RNG.standard_normal((4, 1, 28, 28)).astype(np.float32)])
    packed = 0
    for k in compiler.build(mod).program.kernels:
        again = KernelAbi.from_json(k.abi.to_json())
        assert again.to_json() == k.abi.to_json()
        assert [str(s) for s in again.stages] == [str(s) for s in k.stages]
        assert [str(t) for t in again.temps] == [str(t) for t in k.temps]
        for number, order in k.abi.packed.items():
            p = k.func.packed[k.func.params[number]]
            source = RNG.integers(0, 99, [int(n.const) for n in p.source.shape])
            np.testing.assert_array_equal(
                pack_array(again.packed[number], source), pack_array(order, source)
            )
            packed += 1
    assert packed > 3


N = Var("n")


@st.composite
def indices(draw: st.DrawFn, variables: tuple[Var, ...], depth: int = 2) -> Index:
    out = Index.of(draw(st.integers(-50, 50)))
    for v in variables:
        out = out + v * draw(st.integers(-3, 3))
    if depth:
        inner = draw(indices(variables, depth - 1))
        k = draw(st.integers(2, 7))
        other = draw(indices(variables, depth - 1))
        out = out + draw(
            st.sampled_from([inner // k, inner % k, imin(inner, other), inner * other])
        )
    return out


@pytest.mark.thorough
@given(indices((N, Var("m"))), st.integers(1, 99), st.integers(1, 99))
def test_sizes_mean_the_same_after_they_were_kept(size: Index, n: int, m: int) -> None:
    native = KernelAbi((Stage("f", size, size, True), Stage("g", None, size)), {}, (size,))
    again = KernelAbi.from_json(native.to_json())
    env = {N: n, Var("m"): m}
    (first, second), (temp,) = again.stages, again.temps
    assert first.extent is not None
    assert second.extent is None
    assert (first.joins, second.joins) == (True, False)
    for got in (first.extent, first.work, second.work, temp):
        assert got == size
        assert got.value(env) == size.value(env)


LOOPS = (Var("i", 4), Var("j", 6))


@pytest.mark.thorough
@given(indices(LOOPS), indices(LOOPS))
def test_index_maps_mean_the_same_after_they_were_kept(a: Index, b: Index) -> None:
    order = IndexMap(LOOPS, (a, b))
    again = KernelAbi.from_json(KernelAbi((), {3: order}, ()).to_json()).packed[3]
    source = np.arange(1, 99 * 40 + 1, dtype=np.int32).reshape(99, 40)
    np.testing.assert_array_equal(pack_array(again, source), pack_array(order, source))


# ---- keys ----------------------------------------------------------------------------------------
def test_the_values_of_constants_are_not_in_the_key(folder: Path) -> None:
    before = cache.statistics()["compiled"]
    first = compiler.build(convolution(scale=0.5))
    made = cache.statistics()["compiled"] - before
    second = compiler.build(convolution(scale=0.25))
    x = RNG.standard_normal((1, 16, 6, 6)).astype(np.float32)
    np.testing.assert_array_equal(first(x), second(x) * 2)
    assert cache.statistics()["compiled"] - before == made


def test_keys_tell_everything_apart_that_changes_code() -> None:
    def key(
        channels: int = 16,
        target: Target = HOST,
        choices: dict[str, TileChoice] | None = None,
        change: Callable[[Legalized], Legalized] = lambda legal: legal,
    ) -> str:
        return KernelSource(change(loops(convolution(channels))), target, choices).key

    def weight_as_input(legal: Legalized) -> Legalized:
        atoms = tuple(
            compiler.Var("w", a.type) if isinstance(a, Constant) else a for a in legal.inputs
        )
        return Legalized(legal.func, atoms)

    def choice(lanes: int) -> dict[str, TileChoice]:
        return {"mac": TileChoice(lanes, 1, ((3, 4),), 0, 1, False)}

    keys = [
        key(),
        key(17),
        key(target=Target.parse("llvm -mcpu=x86-64-v2")),
        key(choices=choice(8)),
        key(choices=choice(4)),
        key(choices={"mac2": choice(4)["mac"]}),
        key(change=weight_as_input),
    ]
    assert len(set(keys)) == len(keys)
    assert key() == keys[0]


def test_rules_from_outside_have_keys_of_what_they_make(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rule may change its mind between processes: only what it made counts."""
    monkeypatch.setattr(rules, "_registered", [])
    keys, texts = [KernelSource(loops(convolution()), HOST, None).key], []
    for unrolled in (False, True, True):

        def rule(s, stage, target, constants, unrolled=unrolled):
            if unrolled:
                s.unroll(s.loops(stage)[-1])
            return True

        compiler.register_schedule_rule(rule, op="nn.conv2d")
        program = KernelSource(loops(convolution()), HOST, None)
        keys.append(program.key)
        texts.append(str(program.scheduled().func))
        rules._registered.clear()
    assert texts[0] != texts[1] == texts[2]
    assert keys[2] == keys[3]
    assert len(set(keys)) == 3


def test_a_schedule_that_was_not_built_is_not_shown(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "_registered", [])
    compiler.build(convolution())
    warm = compiler.build(convolution())  # scheduled by nobody yet
    compiler.register_schedule_rule(lambda *_: True, op="nn.conv2d")
    with pytest.raises(LoweringError, match="build it again"):
        warm.as_text()
    rules._registered.clear()


def test_entries_say_how_to_call_their_code_in_one_line(folder: Path) -> None:
    compiler.build(convolution())
    heads = [f.read_bytes()[32:].partition(b"\n")[0] for f in folder.iterdir()]
    told = [json.loads(h) for h in heads if h.startswith(b"{")]
    assert any(t["packed"] for t in told)
    assert all(set(t) == {"stages", "packed", "temps"} for t in told)
