"""Programs that people write are compiled to what they say, in whatever form they are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written_programs import N, programs

import compiler
from compiler.interpret import loop_nests
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.ir.function_calls import call_tir
from compiler.scheduling.user_schedules import conventional
from compiler.symbolic import Index
from compiler.tensor.parser import parse_primfunc
from compiler.tensor.stmt import PrimFunc
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType, TupleType


def around(f: PrimFunc) -> IRModule:
    """A module whose main calls `f`."""
    b = FunctionBuilder()
    types = [TensorType.of(p.shape, p.dtype) for p in f.params]
    params = [b.param(p.name, t.shape, t.dtype) for p, t in zip(f.params, types, strict=True)]
    inputs = params[: len(params) - f.outputs]
    outs = TupleType(tuple(types[len(inputs) :]))
    t = b.bind(call_tir("f", inputs, outs))
    return IRModule({"f": f, "main": b.finish(*(b.get(t, k) for k in range(f.outputs)))})


def arrays(f: PrimFunc, n: int, seed: int) -> list[Array]:
    rng = np.random.default_rng(seed)
    shapes = [tuple(int(Index.of(d).value({N: n})) for d in b.shape) for b in f.params]
    return [rng.integers(-4, 5, s).astype(np.int32) for s in shapes]


def check(f: PrimFunc, g: PrimFunc, n: int, seed: int) -> None:
    """`g`, compiled, gives what walking through `f` gives."""
    mod = around(g)
    compiler.verify(mod)
    given = arrays(f, n, seed)
    walked = [a.copy() for a in given]
    loop_nests.run(f, walked, {N: n})
    got = compiler.build(mod)(*given)
    outs = got if isinstance(got, list) else [got]
    for have, want in zip(outs, walked[len(walked) - f.outputs :], strict=True):
        np.testing.assert_array_equal(have, want)


@settings(max_examples=50, deadline=None)
@given(programs(), st.integers(1, 6), st.integers(0, 99))
def test_compiled_programs_do_what_they_say(f: PrimFunc, n: int, seed: int) -> None:
    check(f, f, n, seed)


@settings(max_examples=80, deadline=None)
@given(programs())
def test_written_programs_read_back(f: PrimFunc) -> None:
    again = parse_primfunc(str(f))
    assert str(again) == str(f)
    assert conventional(again) == conventional(f)


@pytest.mark.thorough
@settings(max_examples=25, deadline=None)
@given(programs(), st.data())
def test_schedules_keep_what_written_programs_compute(f: PrimFunc, data: st.DataObject) -> None:
    s = compiler.schedule(around(f), "f")
    for turn in ("split", "split", "unroll"):
        loops = s.loops(data.draw(st.sampled_from(s.stages())))
        if not loops:
            continue
        name = data.draw(st.sampled_from(loops))
        if turn == "split":
            s.split(name, data.draw(st.sampled_from([2, 3, 4])))
        elif all(x.extent.constant() is not None for x, _, _ in s.find(name)):
            s.unroll(name)
    assert str(parse_primfunc(str(s.func))) == str(s.func)
    check(f, s.func, data.draw(st.integers(1, 5)), 1)
