"""The space of choices for a loop nest: what it gives applies, and computes the same bits."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import compiler
from compiler.errors import ScheduleError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Call, Constant, Function, IRModule
from compiler.lowering.legalize import legalize
from compiler.runtime.kernels import compile_kernel
from compiler.scheduling.choices import Choice, Sketch, decision_from_json
from compiler.target.registry import Target
from compiler.tuning.kernel_run import KernelRun, random_arrays
from compiler.tuning.space import NestSpace, Space, space_of
from compiler.tuning.tile_space import TileSpace

RNG = np.random.default_rng(5)
HOST = Target.parse("llvm")


def convolution() -> IRModule:
    b = FunctionBuilder()
    x = b.param("x", (1, 16, 5, 5))
    weight = b.const(RNG.normal(size=(24, 16, 1, 1)).astype(np.float32))
    y = b.call("nn.conv2d", x, weight)
    return IRModule({"main": b.finish(b.call("nn.relu", y))})


def dense() -> IRModule:
    b = FunctionBuilder()
    weight = b.const(RNG.normal(size=(40, 100)).astype(np.float32))
    return IRModule({"main": b.finish(b.call("nn.dense", b.param("x", (3, 100)), weight))})


NETS: dict[str, Callable[[], IRModule]] = {"convolution": convolution, "dense": dense}


def kernels(mod: IRModule) -> Iterator[tuple[Function, NestSpace]]:
    """The primitive functions of a module about which there is something to choose."""
    for b in compiler.optimize(mod, HOST).main.bindings:
        if isinstance(b.value, Call) and isinstance(b.value.op, Function):
            legal = legalize(b.value.op)
            pairs = zip(legal.func.params, legal.inputs, strict=False)
            before = str(legal.func)
            space = space_of(legal.func, HOST, {p for p, a in pairs if isinstance(a, Constant)})
            assert str(legal.func) == before
            if space is not None:
                yield b.value.op, space


def some(space: Space, seed: str, count: int) -> list[Choice]:
    """Choices by every way in which a space gives them."""
    rng = random.Random(seed)
    first = [space.sample(rng) for _ in range(count)]
    changed = [space.mutate(c, rng) for c in ({}, *first)]
    crossed = [space.cross(*rng.sample([*first, *changed], 2), rng) for _ in range(count)]
    return [*first, *changed, *crossed, *space.neighbours()[:count]]


@pytest.mark.parametrize("net", ["dense", pytest.param("convolution", marks=pytest.mark.thorough)])
def test_choices_give_the_same_bits(net: str) -> None:
    tried = 0
    for f, space in kernels(NETS[net]()):
        legal = legalize(f)
        inputs = random_arrays(legal, 1)
        want = KernelRun(compile_kernel(legal, HOST), HOST, inputs).result()
        for choice in some(space, net, 1):
            try:
                kernel = compile_kernel(legalize(f), HOST, choice)
            except ScheduleError:
                continue
            assert KernelRun(kernel, HOST, inputs).result() == want, choice
            tried += 1
    assert tried > 3


@pytest.mark.parametrize("net", NETS)
def test_choices_survive_json_and_follow_the_seed(net: str) -> None:
    for _, space in kernels(NETS[net]()):
        every = some(space, net, 5)
        assert every == some(space, net, 5) != some(space, "another", 5)
        for choice in every:
            plain = {k: c.to_json() for k, c in choice.items()}
            assert {k: decision_from_json(c) for k, c in plain.items()} == choice


def test_what_is_no_choice_is_refused() -> None:
    sketch = Sketch(tiles=((1, 4),), lanes=((1, 2),), apart=("a",), rows=512)
    assert Sketch.from_json(sketch.to_json()) == sketch
    for wrong in ({"apart": "a"}, {"apart": [1]}, {"other": 1}, {"rows": -1}):
        with pytest.raises(ScheduleError, match="a sketch has no field"):
            decision_from_json({"sketch": 1, **wrong})
    ((f, space),) = kernels(dense())
    (tile,) = space.neighbours()[0].values()
    with pytest.raises(ScheduleError, match="is a sketch, no tile"):
        compile_kernel(legalize(f), HOST, {"": tile})


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        ({"walk": 0}, True),
        ({"group": 2}, True),
        ({"ahead": 2048}, True),
        ({"lane_axis": 1, "block_axis": 0, "lanes": 8, "blocks": 2, "widths": ()}, True),
        ({"group": 99}, False),
        ({"walk": 2}, False),
        ({"lane_axis": 5}, False),
        ({"ahead": 1 << 30}, False),
        ({"lanes": 3}, False),
    ],
)
def test_a_tile_says_how_its_operands_are_walked(change: dict[str, Any], fits: bool) -> None:
    b = FunctionBuilder()
    # So many columns that no tile is short, whether it has two, three or four vectors of any CPU.
    weight = b.const(RNG.normal(size=(192, 64)).astype(np.float32))
    mod = IRModule({"main": b.finish(b.call("nn.dense", b.param("x", (72, 64)), weight))})
    ((f, space),) = kernels(mod)
    ((stage, of_tiles),) = space.stages.items()
    assert isinstance(of_tiles, TileSpace)
    choice = {stage: replace(of_tiles.rule, **change)}
    if not fits:
        with pytest.raises(ScheduleError):
            compile_kernel(legalize(f), HOST, choice)
        return
    inputs = random_arrays(legalize(f), 0)
    default, chosen = (compile_kernel(legalize(f), HOST, c) for c in (None, choice))
    assert default.as_text() != chosen.as_text()
    found = [KernelRun(k, HOST, inputs).result() for k in (default, chosen)]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("sketch", "message"),
    [
        (Sketch(order=(0, 0)), "order must have each of its 2 loops once"),
        (Sketch(tiles=((1, 99),)), "tiles of loop 1 must be within 1 and 40, not 99"),
        (Sketch(lanes=((2, 4),)), "lanes must name different loops"),
        (Sketch(tiles=((1, 4),), lanes=((1, 8),)), "lanes of loop 1 must be within 1 and 4"),
        (Sketch(lanes=((0, 16), (1, 32))), "512 lanes of 2 loops are too many"),
        (Sketch(fused=3), "it has 2 loops, not 3 to fuse"),
        (Sketch(unrolled=1), "it has 0 tiles, of which 1 cannot be unrolled"),
        (Sketch(rows=9), "rows can be chosen for the whole loop nest only"),
        (Sketch(tiles=((0, 9), (1, 40)), unrolled=2), "360 statements are too many"),
    ],
)
def test_a_sketch_that_does_not_fit_says_why(sketch: Sketch, message: str) -> None:
    b = FunctionBuilder()
    mod = IRModule({"main": b.finish(b.call("exp", b.param("x", (20, 40))))})
    ((f, _),) = kernels(mod)
    with pytest.raises(ScheduleError, match=message):
        compile_kernel(legalize(f), HOST, {"exp_s": sketch})
    with pytest.raises(ScheduleError):
        compile_kernel(legalize(f), HOST, {"another": Sketch(lanes=((1, 8),))})
    with pytest.raises(ScheduleError, match="can be chosen for stages only"):
        compile_kernel(legalize(f), HOST, {"": Sketch(lanes=((1, 8),))})
    with pytest.raises(ScheduleError, match="has no stages other"):
        compile_kernel(legalize(f), HOST, {"": Sketch(apart=("other",))})
