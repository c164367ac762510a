"""Whatever a space of choices gives for a program, the program then computes the bits that it
computes by the rules, or the choice is refused as one that does not fit."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from op_case import F32, Case, values
from op_cases import CASES

import compiler
import datatypes
from compiler.errors import DtypelabError, ScheduleError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Call, Constant, Function, IRModule
from compiler.lowering.legalize import Legalized, legalize
from compiler.runtime.kernels import compile_kernel
from compiler.scheduling.choices import Choice, decision_from_json
from compiler.target.registry import Target
from compiler.tuning.kernel_run import KernelRun, random_arrays
from compiler.tuning.space import NestSpace, space_of
from compiler.types.tensor_types import TensorType, TupleType

HOST = Target.parse("llvm")
FORMATS = (None, None, "posit16_es1", "float8_e4m3fn", "bfloat16")
RUNS = [(c, d) for c in CASES for d in c.dtypes]


def program(case: Case, which: Any, rng: random.Random) -> IRModule:
    """A call of an operator, with some operands constant and functions of its result."""
    n = rng.choice((1, 2, 5, 8, 17, 33))
    b = FunctionBuilder()
    arrays = np.random.default_rng(rng.randrange(1 << 30))
    operands = []
    for k, (given_shape, dtype) in enumerate(
        zip(case.shapes, case.operand_dtypes(which), strict=True)
    ):
        t = TensorType.of([n if d == "n" else d for d in given_shape], dtype)
        if k and not dtype.is_custom and rng.random() < 0.5:
            operands.append(b.const(values(arrays, t, case.low, case.high)))
        else:
            operands.append(b.param(f"p{k}", t.shape, dtype))
    y = b.call(case.op, *operands, **case.attrs)
    if isinstance(y.type, TupleType):
        return IRModule({"main": b.finish(*(b.get(y, k) for k in range(len(y.type.fields))))})
    assert isinstance(y.type, TensorType)
    while y.type.dtype == F32 and rng.random() < 0.5:
        name = rng.choice(("nn.relu", "negative", "exp", "multiply"))
        y = b.call(name, *(y,) * (2 if name == "multiply" else 1))
    return IRModule({"main": b.finish(y)})


def kernels(mod: IRModule) -> list[Function]:
    """The primitive functions of a module."""
    bound = [b.value for b in compiler.optimize(mod, HOST).main.bindings]
    return [v.op for v in bound if isinstance(v, Call) and isinstance(v.op, Function)]


def space_for(legal: Legalized) -> NestSpace | None:
    pairs = zip(legal.func.params, legal.inputs, strict=False)
    return space_of(legal.func, HOST, {p for p, a in pairs if isinstance(a, Constant)})


def one_of(space: NestSpace, pool: list[Choice], rng: random.Random) -> Choice:
    """A choice by one of the ways in which a space gives them."""
    way = rng.randrange(5)
    if way == 0:
        return space.sample(rng)
    if way == 1:
        return space.cross(rng.choice(pool), rng.choice(pool), rng)
    if way == 2:
        return rng.choice([{}, *space.neighbours()])
    return space.mutate(rng.choice(pool), rng) if way < 4 else rng.choice(space.grains(pool[-1]))


def check(f: Function, rng: random.Random, count: int) -> int:
    """Try some choices for a primitive function; how many fitted."""
    legal = legalize(f)
    before = str(legal.func)
    space = space_for(legal)
    assert str(legal.func) == before
    if space is None:
        return 0
    inputs = random_arrays(legal, 0)
    want = KernelRun(compile_kernel(legalize(f), HOST), HOST, inputs).result()
    pool: list[Choice] = [{}]
    for _ in range(count):
        choice = one_of(space, pool, rng)
        text = json.dumps({k: c.to_json() for k, c in choice.items()})
        assert {k: decision_from_json(c) for k, c in json.loads(text).items()} == choice
        try:
            kernel = compile_kernel(legalize(f), HOST, choice)
        except ScheduleError:
            continue
        assert KernelRun(kernel, HOST, inputs).result() == want, text
        pool.append(choice)
    return len(pool) - 1


def tried(draw: tuple[Case, Any], fmt: str | None, seed: int, count: int) -> int:
    """How many choices fitted a random program of one operator."""
    case, which = draw
    rng = random.Random(seed)
    try:
        mod = program(case, which, rng)
        if fmt and set(case.operand_dtypes(which)) == {F32}:
            mod = datatypes.change_dtype(mod, "float32", fmt)
        found = kernels(mod)
        for f in found:
            compile_kernel(legalize(f), HOST)
    except DtypelabError:  # no such program, whatever its schedule
        return 0
    return sum(check(f, rng, count) for f in found)


@settings(max_examples=4)
@given(st.sampled_from(RUNS), st.sampled_from(FORMATS), st.integers(0, 1 << 30))
def test_random_choices_keep_every_bit(draw: tuple[Case, Any], fmt: str | None, seed: int) -> None:
    tried(draw, fmt, seed, 3)


@pytest.mark.thorough
@settings(max_examples=250)
@given(st.sampled_from(RUNS), st.sampled_from(FORMATS), st.integers(0, 1 << 30))
def test_many_random_choices_keep_every_bit(
    draw: tuple[Case, Any], fmt: str | None, seed: int
) -> None:
    tried(draw, fmt, seed, 5)


def test_most_choices_fit() -> None:
    runs = [r for r in RUNS if r[0].op in ("nn.softmax", "transpose", "nn.dense", "image.resize2d")]
    fitted = [tried(r, None, k, 3) for k, r in enumerate(runs[:4])]
    assert sum(fitted) > len(fitted)
