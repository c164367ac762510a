"""Every property of a proof catches a lowering that is broken in the way it is there for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from compiler.arithmetic.scalar_functions import UNARY
from compiler.lowering.tables import table
from compiler.tensor.expr import BinOp, Cast, Expr, Gather, cast, select
from compiler.types.dtypes import BOOL, Array, DType
from datatypes import builtin, registry
from datatypes.arithmetic import mathfun
from datatypes.builtin import through_float64
from datatypes.formats import Binades, get
from datatypes.lowering import stored
from datatypes.proof import check_format, checking, elementwise, fused, peers, samples, sums
from datatypes.proof.judge import Judge
from datatypes.proof.report import Row
from datatypes.proof.subject import Subject
from experiments.cli.main import run_command

FMT = get("posit8_es0")
UINT8 = DType("uint", 8)
Mutant = Callable[[Expr], Expr]


def correct(node: Expr) -> Expr:
    lowered = builtin.lower(FMT, node)
    assert lowered is not None
    return lowered


def off_in_one_binade(node: Expr) -> Expr:
    """One code too far for a fourth of the results between 1 and 2."""
    code = correct(node)
    return select((code & 0xE3).equal(0x43), code + 1, code)


def nar_is_zero(node: Expr) -> Expr:
    code = correct(node)
    return select(code.equal(FMT.nan_code), code ^ code, code)


def nar_equals_nothing(node: Expr) -> Expr:
    assert isinstance(node, BinOp)
    nar = (stored(node.a) ^ FMT.nan_code).equal(0)
    return correct(node) & (nar ^ cast(nar.equal(nar), BOOL))


def truncated(node: Expr) -> Expr:
    """Ties and above go down, in one binade."""
    assert isinstance(node, Cast)
    code = correct(node)
    below = correct(Cast(node.value * 0.99, node.dtype))
    return select((code >= 0x60) & (code < 0x70), below, code)


@pytest.fixture
def mutate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Registers a broken lowering function for a built-in format, for the time of a test."""

    def put(mutant: Mutant, op: str, source: str = FMT.name, **rest: str) -> None:
        operation = registry.Operation(op, "llvm", source, **rest)
        monkeypatch.setitem(registry._lowerings, operation, mutant)
        monkeypatch.setattr(registry, "_changes", registry.changes() + 1)

    yield put
    registry._changes += 1


def subject() -> Subject:
    return Subject(FMT, "llvm", "library")


def pairs(op: str) -> list[Row]:
    judge, (a, b) = Judge(FMT), samples.pairs(FMT, op, np.random.default_rng(0))
    want = elementwise.meaning(judge, op, (a, b))
    return list(elementwise.binary(subject(), judge, op, a, b, want))


def unary(fn: str) -> list[Row]:
    codes = samples.codes(FMT, np.random.default_rng(0))
    return list(elementwise.unary(subject(), Judge(FMT), fn, codes))


def dense() -> list[Row]:
    return list(sums.dense(subject(), Judge(FMT), np.random.default_rng(0)))


def convolution(which: int) -> list[Row]:
    rng = np.random.default_rng(0)
    return list(sums.convolution(sums.CONVOLUTIONS[which], subject(), Judge(FMT), rng))


def wrong(rows: list[Row]) -> int:
    return sum(row.wrong for row in rows)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Max", "Min"])
def test_one_wrong_result_and_mishandled_nar_are_caught_in_pairs(op: str, mutate: Any) -> None:
    assert wrong(pairs(op)) == 0
    for mutant in (off_in_one_binade, nar_is_zero):
        mutate(mutant, op)
        assert wrong(pairs(op)) > 0, mutant


def test_nar_that_equals_nothing_is_caught(mutate: Any) -> None:
    mutate(nar_equals_nothing, "EQ")
    assert wrong(pairs("EQ")) == 1
    mutate(nar_equals_nothing, "LT")
    assert wrong(pairs("LT")) == 255


@pytest.mark.thorough
@pytest.mark.parametrize("op", ["Add", "Mul"])
def test_broken_arithmetic_is_caught_in_sums(op: str, mutate: Any) -> None:
    for mutant in (off_in_one_binade, nar_is_zero):
        mutate(mutant, op)
        assert wrong(dense()) > 0
        for which in range(len(sums.CONVOLUTIONS)):
            assert wrong(convolution(which)) > 0, sums.CONVOLUTIONS[which].name


@pytest.mark.parametrize(("fn", "op"), [("negative", "Sub"), ("abs", "Max"), ("nn.relu", "Max")])
def test_broken_arithmetic_is_caught_in_what_is_made_of_it(fn: str, op: str, mutate: Any) -> None:
    mutate(nar_is_zero, op)
    assert wrong(unary(fn)) == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fn", [f.name for f in UNARY.values() if f.in_formats])
def test_one_wrong_result_of_a_function_is_caught(fn: str, mutate: Any) -> None:
    assert wrong(unary(fn)) == 0
    entries = np.array(Judge(FMT).function(fn, np.arange(256, dtype=np.uint8)))
    entries[0x48] ^= 1
    broken = table("broken", entries)
    mutate(lambda n: Gather(broken, cast(stored(n.args[0]), DType("int", 64))), "Call", function=fn)
    assert wrong(unary(fn)) == 1


def test_a_wrong_table_of_a_function_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    original = mathfun.table

    def broken(fmt: Any, fn: str) -> Any:
        return np.where(original(fmt, fn) == 0x48, 0x49, original(fmt, fn))

    judge = Judge(FMT)
    assert wrong(list(elementwise.functions_judged(judge, "exp", np.random.default_rng(0)))) == 0
    monkeypatch.setattr(mathfun, "table", broken)
    assert wrong(list(elementwise.functions_judged(judge, "exp", np.random.default_rng(0)))) > 0


def test_a_cast_that_does_not_round_is_caught(mutate: Any) -> None:
    mutate(truncated, "Cast", "float", dest=FMT.name)
    numbers = samples.Numbers.of(FMT, np.random.default_rng(0))
    rows = {r.name: r.wrong for r in elementwise.casts_to(subject(), Judge(FMT), numbers)}
    assert rows["cast from float64"] > 0
    assert rows["cast from float32"] > 0


def test_a_cast_of_one_wrong_code_is_caught(mutate: Any) -> None:
    mutate(lambda n: correct(n) + cast(stored(n.value).equal(0x41), n.dtype), "Cast", dest="float")
    codes = np.arange(256, dtype=np.uint8)
    rows = {r.name: r.wrong for r in elementwise.casts_from(subject(), Judge(FMT), codes)}
    assert rows["cast to float64"] == rows["cast to float32"] == 1


@pytest.mark.thorough
def test_one_wrong_result_and_mishandled_nar_are_caught_in_fused_multiply_adds(mutate: Any) -> None:
    def fused_rows() -> list[Row]:
        rng = np.random.default_rng(0)
        rows = list(fused.fma(subject(), Judge(FMT), rng))
        return [*rows, *sums.dense(subject(), Judge(FMT), rng, "fma")]

    assert [row.wrong for row in fused_rows()] == [0, 0, 0]
    for mutant in (off_in_one_binade, nar_is_zero):
        mutate(mutant, "Call", function="fma")
        assert all(row.wrong for row in fused_rows()), mutant


@pytest.mark.thorough
def test_wrong_casts_between_formats_are_caught(mutate: Any) -> None:
    def rows() -> dict[str, int]:
        codes, rng = np.arange(256, dtype=np.uint8), np.random.default_rng(0)
        return {r.name: r.wrong for r in fused.casts(subject(), Judge(FMT), codes, rng)}

    def to_half(node: Expr) -> Expr:
        lowered = builtin.lower(get("float16"), node)
        assert lowered is not None
        return select(lowered.equal(0x3C00), lowered + 1, lowered)  # 1.0

    assert set(rows().values()) == {0}
    mutate(off_in_one_binade, "Cast", "float16", dest=FMT.name)
    assert rows()["cast from float16"] > 0
    mutate(to_half, "Cast", dest="float16")
    assert rows()["cast to float16"] == 1


def test_a_broken_array_codec_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    judge, rng = Judge(FMT), np.random.default_rng(0)
    codes, numbers = np.arange(256, dtype=np.uint8), samples.Numbers.of(FMT, rng)
    assert wrong(list(elementwise.array_codec(judge, codes, numbers))) == 0
    monkeypatch.setattr(elementwise, "encode", lambda fmt, x: np.full(x.shape, 0x40, np.uint8))
    monkeypatch.setattr(elementwise, "decode", lambda fmt, x: np.ones(x.shape))
    decoded, encoded = elementwise.array_codec(judge, codes, numbers)
    assert decoded.wrong
    assert encoded.wrong


def test_a_broken_judge_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    judge, rng = Judge(FMT), np.random.default_rng(0)
    original = judge.arithmetic

    def broken(op: str, *codes: Array) -> Array:
        return original(op, *codes) ^ (codes[0] == 0x7F)

    monkeypatch.setattr(Judge, "arithmetic", staticmethod(broken))
    monkeypatch.setattr(Judge, "encode", lambda self, x: np.full(x.shape, 0x40, np.uint8))
    assert wrong(list(elementwise.judged(judge, "Add", rng))) > 0
    assert wrong(list(elementwise.peer(judge, "Add", samples.pairs(FMT, "Add", rng)))) > 0
    first, _ = elementwise.round_trips(judge, np.arange(256, dtype=np.uint8), rng)
    assert first.wrong == 255


@pytest.mark.thorough
def test_ties_that_go_to_the_odd_in_one_binade_of_sixteen_bits_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fmt = get("posit16_es2")
    original = through_float64.binades

    def broken(wanted: Any) -> Binades | None:
        found = original(wanted)
        if wanted != fmt or found is None:
            return found
        shift, base = found.shift.copy(), found.base.copy()
        entry = -9 - found.first  # 2**-9 .. 2**-8
        shift[entry] = 1 - shift[entry]
        base[entry] += 2 * shift[entry] - 1
        return replace(found, shift=shift, base=base)

    monkeypatch.setattr(through_float64, "binades", broken)
    through_float64.tables.cache_clear()
    try:
        judge, accused = Judge(fmt), Subject(fmt, "llvm", "library")
        for op in ("Add", "Mul"):
            a, b = samples.pairs(fmt, op, np.random.default_rng(0))
            (row,) = elementwise.binary(accused, judge, op, a, b, judge.arithmetic(op, a, b))
            assert 0 < row.wrong < row.cases / 100
    finally:
        through_float64.tables.cache_clear()


@pytest.mark.thorough
def test_the_command_fails_and_shows_counterexamples(
    mutate: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(off_in_one_binade, "Mul")
    monkeypatch.setattr(checking, "runnable_targets", lambda: ["llvm"])
    report = check_format(FMT, "library", targets=["llvm"])
    assert not report.passed
    assert {"Mul of pairs", "nn.dense, 5 terms"} <= {row.name for row in report.rows if row.wrong}
    assert run_command(["dtype", "check", FMT.name, "--lowering", "library"]) == 1
    captured = capsys.readouterr()
    assert "got 0x44 = 1.125, expected 0x43 = 1.09375 (integers)" in captured.out
    assert "FAILED in" in captured.out
    assert captured.err == ""


def test_peers_are_asked_about_the_format_itself() -> None:
    """A peer that always agreed would prove nothing."""
    codes = np.arange(256, dtype=np.uint8)
    peer = peers.find(FMT, "Add")
    assert peer is not None
    assert (peer.apply(codes, codes) != codes).sum() > 200
