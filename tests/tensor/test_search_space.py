"""The space of choices for a loop nest: what it gives applies, and computes the same bits."""

import random
from collections.abc import Callable, Iterator

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
from compiler.tuning.measure import KernelRun, random_arrays
from compiler.tuning.space import Space, space_of

RNG = np.random.default_rng(5)
HOST = Target.parse("llvm")


def convolution() -> IRModule:
    b = FunctionBuilder()
    x = b.param("x", (1, 16, 9, 9))
    weight = b.const(RNG.normal(size=(24, 16, 3, 3)).astype(np.float32))
    y = b.call("nn.conv2d", x, weight, padding=(1, 1, 1, 1))
    return IRModule({"main": b.finish(b.call("nn.relu", y))})


def dense() -> IRModule:
    b = FunctionBuilder()
    weight = b.const(RNG.normal(size=(40, 100)).astype(np.float32))
    return IRModule({"main": b.finish(b.call("nn.dense", b.param("x", (3, 100)), weight))})


NETS: dict[str, Callable[[], IRModule]] = {"convolution": convolution, "dense": dense}


def kernels(mod: IRModule) -> Iterator[tuple[Function, Space]]:
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


@pytest.mark.parametrize("net", NETS)
def test_choices_give_the_same_bits(net: str) -> None:
    tried = 0
    for f, space in kernels(NETS[net]()):
        legal = legalize(f)
        inputs = random_arrays(legal, 1)
        want = KernelRun(compile_kernel(legal, HOST), HOST, inputs).result()
        for choice in some(space, net, 2):
            try:
                kernel = compile_kernel(legalize(f), HOST, choice)
            except ScheduleError:
                continue
            assert KernelRun(kernel, HOST, inputs).result() == want, choice
            tried += 1
    assert tried > 5


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
