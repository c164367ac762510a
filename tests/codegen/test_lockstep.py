"""Unrolled statements that take turns: the order of their lines, and the same bits."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
from compiler.codegen.llvm.lockstep import LONG, TOGETHER, in_lockstep


def statement(k, length, shared):
    """Lines of a chain that reads `shared` in its middle, as statement k writes it."""
    names = [f"%s{k}.{j}" for j in range(length)]
    lines = [f"  {names[0]} = load float, ptr %p{k}, align 4"]
    for before, after in itertools.pairwise(names):
        lines.append(f"  {after} = fmul float {before}, {shared}")
    return [*lines, f"  store float {names[-1]}, ptr %out{k}, align 4"]


@given(st.lists(st.integers(LONG, 2 * LONG), min_size=1, max_size=9), st.data())
@settings(deadline=None, max_examples=60)
def test_no_line_comes_before_what_it_uses(lengths, data):
    """Later statements use values of earlier ones (loads that are not repeated)."""
    every, ends, known = [], [], "%outside"
    for k, length in enumerate(lengths):
        mine = statement(k, length, known)
        every += mine
        ends.append(len(every))
        known = data.draw(st.sampled_from([known, f"%s{k}.{length - 1}", f"%s{k}.0"]))
    got = in_lockstep(every, ends)
    assert sorted(got) == sorted(every)
    defined = {line.split(" = ")[0].strip() for line in every if " = " in line}
    seen = set()
    for line in got:
        name, _, value = line.partition(" = ")
        used = set(re.findall(r"%[\w.]+", value or line)) & defined
        assert used <= seen
        seen.add(name.strip())


def test_so_many_take_turns_and_short_ones_do_not():
    long = [line for k in range(2 * TOGETHER) for line in statement(k, LONG, "%c")]
    ends = [(LONG + 1) * (k + 1) for k in range(2 * TOGETHER)]
    got = in_lockstep(long, ends)
    assert [line.split()[0] for line in got[:TOGETHER]] == [f"%s{k}.0" for k in range(TOGETHER)]
    short = [line for k in range(3) for line in statement(k, LONG - 2, "%c")]
    assert in_lockstep(short, [LONG - 1, 2 * LONG - 2, 3 * LONG - 3]) == short


@pytest.mark.sampled(2)
@pytest.mark.parametrize("function", ["erf", "tanh", "sigmoid"])
def test_functions_after_a_dense_layer(function):
    """Of integers: the same bits as the interpreter, and several sums are under way at once."""
    rng = np.random.default_rng(3)
    x = compiler.var("x", (5, 16), "uint8")
    weight = rng.integers(-128, 128, (40, 16)).astype(np.int8)
    scale = np.float32(3e-4)
    acc = compiler.call("nn.dense", x, weight, out_dtype="int32")
    real = compiler.call("qnn.dequantize", acc, scale)
    out = compiler.call("qnn.quantize", compiler.call(function, real) * real, np.float32(0.01))
    mod = compiler.IRModule({"main": compiler.function([x], out)})
    data = rng.integers(0, 256, (5, 16)).astype(np.uint8)
    exe = compiler.build(mod, target="llvm -mcpu=x86-64-v3")
    np.testing.assert_array_equal(exe(data), compiler.evaluate(mod, data))
    found = (re.search("sitofp|store <", line) for line in exe.source.splitlines())
    assert "sitofp" * TOGETHER in "".join(m[0] for m in found if m)
