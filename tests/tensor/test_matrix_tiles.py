"""Products of bytes by instructions on tiles: the same bits as without them, their text, and that
they are left out where the process may not use them."""

import math
import os
import random
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensor_support import interpret

import compiler
from compiler.errors import ScheduleError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Call, Function, IRModule
from compiler.lowering.legalize import Legalized, legalize
from compiler.runtime.kernels import KernelSource, compile_kernel
from compiler.scheduling.choices import Choice, decision_from_json
from compiler.scheduling.matrix_choice import MatrixChoice
from compiler.scheduling.matrix_products import SIDE
from compiler.scheduling.matrix_tiles import AHEAD, TOGETHER
from compiler.target import registry
from compiler.target.cpus import LINE, cpus
from compiler.target.granted import tiles_granted
from compiler.target.intrinsics import for_target, named_intrinsics
from compiler.target.intrinsics.emission import emitted, program_text
from compiler.target.intrinsics.x86_tiles import INTRINSICS
from compiler.target.registry import Target
from compiler.tensor.parser import parse_primfunc
from compiler.tuning.kernel_run import KernelRun, random_arrays
from compiler.tuning.matrix_space import OTHERS, MatrixSpace
from compiler.tuning.space import NestSpace
from compiler.tuning.tasks import tasks_of

HERE = Target.parse("llvm")
needs_tiles = pytest.mark.skipif(
    "amx-int8" not in HERE.enabled, reason="this CPU has no AMX, or Linux does not grant it"
)
WITHOUT = "llvm -mattr=-amx-int8"


def weights_of(rng: np.random.Generator, units: int, inputs: int) -> np.ndarray:
    return rng.integers(-128, 128, (units, inputs)).astype(np.int8)


def dense(
    rows: tuple[int, ...], units: int, inputs: int, dtype: str, after: str, seed: int = 0
) -> tuple[IRModule, np.ndarray]:
    """A dense layer over bytes, and what follows it."""
    rng = np.random.default_rng(seed)
    b = FunctionBuilder()
    x = b.param("x", (*rows, inputs), dtype)
    w = b.const(weights_of(rng, units, inputs))
    y = b.call("nn.dense", x, w, out_dtype="int32")
    scale = rng.uniform(1e-4, 3e-3, units).astype(np.float32)
    if after == "requantize":
        y = b.call("qnn.requantize", y, b.const(scale), axis=len(rows), output_zero_point=3,
                   out_dtype="uint8")  # fmt: skip
    elif after == "add":
        y = b.call("qnn.dequantize", y, b.const(scale), axis=len(rows))
        y = b.call("nn.gelu" if seed % 2 else "nn.relu", b.call("add", y, y))
    data = rng.integers(0, 256, (*rows, inputs)).astype(np.uint8).view(dtype)
    return IRModule({"main": b.finish(y)}), data


def matmul(
    batch: tuple[int, ...], m: int, n: int, k: int, dtypes: tuple[str, str], seed: int
) -> tuple[IRModule, list[np.ndarray]]:
    """A product of two computed matrices of bytes."""
    rng = np.random.default_rng(seed)
    b = FunctionBuilder()
    x, y = b.param("x", (*batch, m, k), dtypes[0]), b.param("y", (*batch, k, n), dtypes[1])
    z = b.call("nn.matmul", x, y, out_dtype="int32")
    shapes = ((*batch, m, k), (*batch, k, n))
    data = [
        rng.integers(0, 256, s).astype(np.uint8).view(d)
        for s, d in zip(shapes, dtypes, strict=True)
    ]
    return IRModule({"main": b.finish(z)}), data


def worth(rows: int, columns: int, depth: int, rounds: int = 1) -> bool:
    """Whether tiles take fewer cycles than dot products, of which two with 64 products are done in
    one: a product of tiles takes 16, the sums of a tile 50 beside that, a row that is filled up 20,
    and the begin 300."""
    steps = math.ceil(depth / 64)
    tiles = rounds * math.ceil(rows / 16) * math.ceil(columns / 16)
    filled = 20 * rows * steps if depth % 64 else 0
    return rounds * rows * columns * depth // 128 > 300 + tiles * (50 + 16 * steps) + filled


def with_tiles() -> Target:
    """A CPU that grants them, wherever this runs: its code can be read."""
    cpu = cpus()["sapphirerapids"]
    return Target("llvm", "x86_64-unknown-linux-gnu", cpu.name, cpu.flags, cpu.features)


def legal_of(mod: IRModule, target: Target) -> Legalized:
    """The loops of a network of one kernel."""
    bindings = compiler.optimize(mod, target).main.bindings
    called = [b.value.op for b in bindings if isinstance(b.value, Call)]
    (legal,) = (legalize(f) for f in called if isinstance(f, Function))
    return legal


@needs_tiles
@pytest.mark.parametrize(
    "count",
    [1, pytest.param(40, marks=pytest.mark.thorough), pytest.param(400, marks=pytest.mark.slow)],
)
def test_dense_layers_of_all_shapes_give_the_same_bits(count: int) -> None:
    tiled: list[bool] = []

    @settings(
        max_examples=count, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(
        st.tuples(st.integers(16, 90)) | st.tuples(st.integers(1, 3), st.integers(16, 70)),
        st.integers(16, 100), st.sampled_from([512, 64, 128, 192, 320]),
        st.sampled_from(["uint8", "int8"]), st.sampled_from(["", "requantize", "add"]),
        st.integers(0, 99), st.sampled_from([1, 2]),
    )  # fmt: skip
    def check(
        rows: tuple[int, ...], units: int, inputs: int, dtype: str, after: str, seed: int, n: int
    ) -> None:
        mod, data = dense(rows, units, inputs, dtype, after, seed)
        exe = compiler.build(mod, threads=n)
        tiled.append("tdpb" in exe.as_text())
        assert tiled[-1] == worth(math.prod(rows), units, inputs)
        assert exe(data).tobytes() == compiler.build(mod, target=WITHOUT)(data).tobytes()
        if not after:
            weights = weights_of(np.random.default_rng(seed), units, inputs).astype(np.int32)
            assert np.array_equal(exe(data), data.astype(np.int32) @ weights.T)

    check()
    assert np.mean(tiled) >= 0.5


@needs_tiles
@pytest.mark.parametrize("count", [1, pytest.param(30, marks=pytest.mark.thorough)])
def test_products_of_computed_matrices_give_the_same_bits(count: int) -> None:
    tiled: list[bool] = []
    of_bytes = st.sampled_from(["uint8", "int8"])

    @settings(
        max_examples=count, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(
        st.sampled_from([(), (3,), (1, 2)]), st.integers(32, 70), st.integers(16, 70),
        st.sampled_from([512, 64, 128]) | st.integers(1, 150), st.tuples(of_bytes, of_bytes),
        st.integers(0, 99),
    )  # fmt: skip
    def check(
        batch: tuple[int, ...], m: int, n: int, k: int, dtypes: tuple[str, str], seed: int
    ) -> None:
        mod, data = matmul(batch, m, n, k, dtypes, seed)
        exe = compiler.build(mod)
        tiled.append("tdpb" in exe.as_text())
        assert tiled[-1] == worth(m, n, k, math.prod(batch))
        want = np.matmul(*(x.astype(np.int32) for x in data))
        assert np.array_equal(exe(*data), want)

    check()
    assert any(tiled)


@pytest.mark.parametrize(("units", "inputs", "fetched"), [(64, 1024, True), (64, 512, False)])
def test_weights_that_are_not_near_are_fetched_ahead(
    units: int, inputs: int, fetched: bool
) -> None:
    """Each line of a tile of weights once, where all of them are more than the nearest cache has;
    never the data, which is there."""
    target = with_tiles()
    mod, _ = dense((64,), units, inputs, "uint8", "requantize")
    made = KernelSource(legal_of(mod, target), target, None).scheduled()
    assert (units * inputs > target.architecture.caches.near) == fetched
    packed = {b.name.endswith("_packed"): n for b, n in made.func.prefetch.items()}
    assert packed == ({True: AHEAD} if fetched else {})
    text = made.code(target).text
    weights = text.count("tdpbusd.internal(i16") // SIDE
    there = re.findall(r"(%\w+) = getelementptr inbounds i8, ptr (%\w+), i64 (\d+)\n"
                       r"  call void @llvm.prefetch.p0\(ptr \1, i32 0, i32 3", text)  # fmt: skip
    assert weights == SIDE
    assert text.count("call void @llvm.prefetch") == len(there)
    lines = [AHEAD + LINE * k for k in range(16)] * weights if fetched else []
    assert [int(at) for _, _, at in there] == lines
    assert len({tile for _, tile, _ in there}) == (weights if fetched else 0)


@needs_tiles
@pytest.mark.thorough
def test_features_can_be_switched_off() -> None:
    mod, data = dense((40,), 48, 64, "uint8", "requantize")
    want = compiler.build(mod)(data)
    for off in (WITHOUT, "llvm -mattr=-amx-tile", "llvm -mcpu=cascadelake"):
        exe = compiler.build(mod, target=off)
        assert "tdpb" not in exe.as_text()
        assert exe(data).tobytes() == want.tobytes()
    exe = compiler.build(mod, target="llvm -mcpu=sapphirerapids")
    assert "tdpbusd" in exe.as_text()
    assert exe(data).tobytes() == want.tobytes()


@needs_tiles
@pytest.mark.thorough
def test_few_rows_columns_or_steps_take_dot_products() -> None:
    for rows, units, inputs in ((15, 32, 640), (32, 15, 640), (64, 64, 639), (64, 64, 672)):
        mod, data = dense((rows,), units, inputs, "uint8", "")
        exe = compiler.build(mod)
        assert "tdpb" not in exe.as_text()
        assert np.array_equal(exe(data), compiler.evaluate(mod, data))


@needs_tiles
@pytest.mark.thorough
def test_tiles_are_taken_where_they_take_fewer_cycles() -> None:
    for rows, units, inputs, tiled in (
        (16, 16, 64, False), (48, 16, 64, False), (32, 32, 64, False), (20, 48, 64, False),
        (64, 64, 64, True), (16, 64, 128, True), (32, 32, 256, True),
    ):  # fmt: skip
        assert worth(rows, units, inputs) == tiled
        mod, _ = dense((rows,), units, inputs, "uint8", "requantize")
        assert ("tdpb" in compiler.build(mod).as_text()) == tiled


@needs_tiles
@pytest.mark.thorough
def test_programs_that_stand_alone_do_without(tmp_path: Path) -> None:
    mod, data = dense((40,), 48, 64, "uint8", "requantize")
    made = compiler.export(mod, "llvm", tmp_path / "net")
    assert b"tilerelease" not in made.library.read_bytes()
    held = compiler.load(made.library)
    assert "amx-int8" not in held.target.enabled
    assert held(data).tobytes() == compiler.build(mod)(data).tobytes()


def test_targets_of_code_that_stands_alone_have_no_tiles() -> None:
    here = with_tiles()
    alone = here.unasked
    assert here.enabled - alone.enabled == {"amx-tile", "amx-int8"}
    assert alone.features.endswith(",-amx-int8,-amx-tile")
    assert alone.unasked is alone
    assert not any(i in for_target(alone) for i in INTRINSICS)


def test_what_the_system_refuses_is_no_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    registry._host.cache_clear()
    try:
        monkeypatch.setattr(registry, "tiles_granted", lambda: False)
        found = registry.host()
        assert not any(f.startswith("amx-") for f in found.enabled)
        assert "+amx-" not in found.features
    finally:
        monkeypatch.undo()
        registry._host.cache_clear()


@needs_tiles
def test_threads_that_were_there_may_use_tiles() -> None:
    assert tiles_granted()
    assert tiles_granted()  # asking again is no mistake


def golden(name: str, text: str) -> None:
    path = Path(__file__).with_name("golden") / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_the_text_of_the_instructions() -> None:
    golden("x86_tiles.txt", "\n\n".join(f"{i.name}:\n{emitted(i)}" for i in INTRINSICS) + "\n")


def test_their_names_are_known_to_texts() -> None:
    assert {i.name for i in INTRINSICS} <= {*named_intrinsics()}


@needs_tiles
@pytest.mark.thorough
def test_scheduled_loops_mean_the_same_and_read_back() -> None:
    mod, data = dense((50,), 17, 256, "uint8", "")
    (kernel,) = compiler.build(mod).program.kernels
    func = kernel.func
    assert str(func).count("tdpbusd<") == 2
    again = parse_primfunc(str(func), named_intrinsics())
    assert program_text(again) == program_text(func)
    weights = weights_of(np.random.default_rng(0), 17, 256)
    want = data.astype(np.int32) @ weights.astype(np.int32).T
    assert np.array_equal(interpret(func, [data, weights, want * 0]), want)


@pytest.mark.parametrize(
    ("rows", "units", "inputs", "columns_first"),
    [
        (64, 96, 128, True),  # the cache holds all: fewer results than data
        (64, 256, 128, False),
        (64, 128, 128, False),
        (128, 3072, 768, True),  # weights that it does not hold are walked once
        (4096, 64, 1024, False),  # and so are such data
    ],
)
def test_what_goes_first(rows: int, units: int, inputs: int, columns_first: bool) -> None:
    target = with_tiles()
    mod, _ = dense((rows,), units, inputs, "uint8", "requantize")
    func = KernelSource(legal_of(mod, target), target, None).scheduled().func
    loops = re.findall(r"for requantized_s.i(\d)o in", str(func))
    assert loops == (["1", "0"] if columns_first else ["0", "1"])


@pytest.mark.parametrize(
    ("rows", "together"), [(64, [TOGETHER]), (58, [TOGETHER, 2]), (35, [TOGETHER, 1])]
)
def test_what_follows_takes_several_rows_at_once(rows: int, together: list[int]) -> None:
    """Of a pair of tiles, and of the rows that are left over."""
    target = with_tiles()
    mod, _ = dense((rows,), 96, 128, "uint8", "requantize")
    text = str(KernelSource(legal_of(mod, target), target, None).scheduled().func)
    found = re.findall(r"unroll for near in (\d+):.*\n +unroll for", text)
    assert list(map(int, found)) == together


def test_how_products_are_walked_can_be_chosen() -> None:
    """In a target's text, wherever this runs: which tiles go first, and what is fetched ahead."""
    target = with_tiles()
    mod, _ = dense((64,), 96, 1024, "uint8", "requantize")
    (task,) = tasks_of(compiler.optimize(mod, target), target)
    assert isinstance(task.space, NestSpace)
    assert task.space.stages == {"mac": MatrixSpace()}
    for c in OTHERS:
        assert decision_from_json(c.to_json()) == c
        func = task.scheduled({"mac": c})
        loops = re.findall(r"for requantized_s.i(\d)o in", str(func))
        assert loops == (["0", "1"] if c.columns_first is False else ["1", "0"])
        assert [*func.prefetch.values()] == (
            [AHEAD] if c.ahead is None else [c.ahead] * (c.ahead > 0)
        )
    seen = {task.seen({"mac": c})[0] for c in OTHERS}
    assert len(seen) == 12  # two orders by six distances: the rules' are among them
    rng = random.Random(0)
    near = task.space.neighbours()
    for c in (task.space.sample(rng), task.space.mutate({}, rng), task.space.cross(*near[:2], rng)):
        assert not c or c["mac"] in OTHERS


def test_choices_about_other_products_are_refused() -> None:
    target = with_tiles()
    for wrong in (
        {"columns_first": 1},
        {"ahead": True},
        {"ahead": -64},
        {"ahead": 1 << 30},
        {"a": 1},
    ):
        with pytest.raises(ScheduleError, match="a product of matrices has no choice"):
            decision_from_json({"matrices": 1, **wrong})
    mod, _ = matmul((), 64, 64, 512, ("uint8", "int8"), 0)
    (task, *_) = tasks_of(compiler.optimize(mod, target), target)
    assert task.scheduled({"mac": MatrixChoice(columns_first=False)})
    with pytest.raises(ScheduleError, match="are near anyway"):
        task.scheduled({"mac": MatrixChoice(ahead=2048)})
    other = replace(task, target=Target.anywhere("llvm -mcpu=haswell"))
    with pytest.raises(ScheduleError, match="no instructions on matrices compute mac"):
        other.scheduled({"mac": MatrixChoice(True)})


@needs_tiles
@pytest.mark.parametrize("count", [2, pytest.param(len(OTHERS), marks=pytest.mark.thorough)])
def test_however_they_are_walked_bits_stay(count: int) -> None:
    mod, _ = dense((70,), 100, 1024, "int8", "requantize")
    found = tasks_of(compiler.optimize(mod), HERE)
    (task,) = (t for t in found if isinstance(t.space, NestSpace) and "mac" in t.space.stages)
    inputs = random_arrays(legalize(task.function), 1)
    choices: list[Choice] = [{}, *({"mac": x} for x in OTHERS[-count:])]
    kernels = [compile_kernel(legalize(task.function), HERE, c) for c in choices]
    results = {KernelRun(k, HERE, inputs).result() for k in kernels}
    assert len(results) == 1


@needs_tiles
def test_a_tile_that_is_chosen_goes_before_matrices() -> None:
    """As by a log: nothing that was asked for is passed over without a word."""
    mod, _ = dense((64,), 64, 128, "uint8", "requantize")
    (task, *_) = tasks_of(compiler.optimize(mod, WITHOUT), Target.parse(WITHOUT))
    choice = next(c for c in task.space.neighbours() if c)

    def scheduled(choice: Choice) -> str:
        return program_text(replace(task, target=HERE).scheduled(choice))

    assert "tdpb" in scheduled({})
    assert "tdpb" not in scheduled(choice)
