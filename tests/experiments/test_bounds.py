"""What a loop nest takes at least: the parts of its work, and the longest of their times."""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace

import numpy as np
import pytest

import compiler
from compiler.codegen.llvm import jit
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Call, Constant, Function, IRModule
from compiler.lowering.legalize import legalize
from compiler.target.registry import Target
from experiments.benchmarks import peak as peaks
from experiments.benchmarks.bandwidth import _moving_text, mover
from experiments.benchmarks.bounds import Machine, Work, work_of
from experiments.benchmarks.peak import operation

HOST = Target.parse("llvm")
MACHINE = Machine(2e6, 8e6, ((1000, 4e6), (10**9, 1e6)), ((1000, 2e6),), ((1000, 1e6),), 1e5, 1e-6)


def work(mod: IRModule) -> Work:
    """Of the one kernel of a module."""
    (call,) = [b.value for b in compiler.optimize(mod).main.bindings]
    assert isinstance(call, Call)
    assert isinstance(call.op, Function)
    legal = legalize(call.op)
    pairs = zip(legal.func.params, legal.inputs, strict=False)
    return work_of(legal.func, {b for b, a in pairs if isinstance(a, Constant)})


def of(op: str, shape: tuple[int, ...], dtype: str = "float32", **attrs: object) -> Work:
    b = FunctionBuilder()
    return work(IRModule({"main": b.finish(b.call(op, b.param("x", shape, dtype), **attrs))}))


def test_sums_of_floats_wait_for_their_own_additions() -> None:
    assert of("sum", (4, 100), axis=1).chain == 100
    assert of("sum", (4, 100), axis=0).chain == 4
    assert of("sum", (4, 100), "int32", axis=1).chain == 0  # in any order
    assert of("max", (4, 100), axis=1).chain == 0
    assert of("nn.relu", (4, 100)).chain == 0
    assert of("nn.softmax", (4, 100), axis=1).chain == 100


def test_a_variance_waits_for_the_mean() -> None:
    b = FunctionBuilder()
    x = b.param("x", (4, 100))
    y = b.call("nn.layer_norm", x, b.const(np.ones(100, np.float32)), axis=-1)
    found = work(IRModule({"main": b.finish(y)}))
    assert found.chain == 200
    assert found.divisions == 400 + 4  # and a square root a row; those by a number are none


def test_the_peak_of_pairs_is_their_instruction_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for each sum in a turn: LLVM takes none of them out of the loop."""
    target = Target.anywhere("llvm -mcpu=haswell")
    texts = []

    def timed(t: Target, name: str, text: str, chains: int, operations: int) -> peaks.Peak:
        texts.append((text, chains))
        return real(t, name, text, chains, operations) if t.runnable else peaks.Peak(name, 0, int)

    real = peaks._timed
    monkeypatch.setattr(peaks, "_timed", timed)
    found = peaks.peak(target)
    ((text, chains),) = texts
    assembly = jit.assembly(text, target)
    (inside,) = re.findall(r"^\.LBB0_1:.*?j\w+\s+\.LBB0_1$", assembly, re.DOTALL | re.MULTILINE)
    assert len(re.findall(r"\bvpmaddwd\b", inside)) == chains
    assert "rsp" not in inside
    found.call()
    if target.runnable:
        assert found.operations % (2 * 2 * 8 * chains) == 0


def test_quotients_and_functions_made_of_them() -> None:
    b = FunctionBuilder()
    x, y = b.param("x", (10,)), b.param("y", (10,))
    assert work(IRModule({"main": b.finish(b.call("divide", x, y))})).divisions == 10
    b = FunctionBuilder()
    x, three = b.param("x", (10,)), b.const(np.float32(3))
    assert work(IRModule({"main": b.finish(b.call("divide", x, three))})).divisions == 0
    assert of("sigmoid", (10,)).divisions == 10
    assert of("sqrt", (10,)).divisions == 10
    assert of("exp", (10,)).divisions == 0


def test_of_a_table_only_the_rows_that_are_taken_are_fetched() -> None:
    b = FunctionBuilder()
    table = b.const(np.ones((1000, 8), np.float32))
    taken = b.call("take", table, b.param("i", (2,), "int64"), axis=0)
    found = work(IRModule({"main": b.finish(taken)}))
    assert found.constants <= 2 * 8 * 4
    assert found.written == 2 * 8 * 4


@pytest.mark.parametrize(
    ("change", "ms"),
    [
        ({}, 100 / 4e6),
        ({"float32": 1000}, 1000 / 2e6),
        ({"divisions": 1000}, 1000 / 1e5),
        ({"chain": 1000}, 1000 * 1e-6),
        ({"written": 50}, 100 / 2e6),  # copied
        ({"written": 90}, 90 / 1e6),  # filled: of what is copied there is little
        ({"bytes": 2000, "written": 100}, 2000 / 1e6),
    ],
)
def test_the_bound_is_what_takes_longest(change: dict[str, float], ms: float) -> None:
    assert MACHINE.least_ms(replace(Work(0, 0, 100), **change)) == pytest.approx(ms)


def test_constants_from_afar() -> None:
    machine = replace(MACHINE, bytes=((1000, 4e6), (10**9, 1e5)))
    assert machine.least_ms(Work(0, 0, 900)) == pytest.approx(900 / 4e6)
    assert machine.least_ms(Work(0, 0, 900), 800) == pytest.approx(800 / 1e5)


@pytest.mark.thorough
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("copy", [False, True])
def test_what_is_timed_writes_all_of_an_array(copy: bool, past: bool) -> None:
    text = _moving_text(copy, past)
    symbol = f"moves_{copy}_{past}"
    address = jit.compile_text(text.replace("@move(", f"@{symbol}("), symbol, HOST)
    raw = np.arange(4096, dtype=np.uint8)
    start = -raw.ctypes.data % 64
    a = raw[start : start + 1024]
    held = np.zeros(4096, np.uint8)
    first = -held.ctypes.data % 64
    b = held[first : first + 1024]
    kinds = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 2
    ctypes.CFUNCTYPE(None, *kinds)(address)(a.ctypes.data, b.ctypes.data, 2, 1)
    np.testing.assert_array_equal(b, a if copy else np.tile(a[:64], 16))
    mover(1 << 12, HOST, 2, copy, past)()


def test_operations_of_chains() -> None:
    found = operation("fadd", 4, 3, HOST)
    assert found.operations % (3 * 8) == 0
    found.call()
