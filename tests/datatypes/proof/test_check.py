"""Checks of formats pass, cover what they say, and report what they find."""

from __future__ import annotations

import json

import numpy as np
import pytest

import datatypes
from compiler.errors import DtypelabError, InputError
from datatypes.formats import get
from datatypes.proof import Progress, check_format, checking
from datatypes.proof.report import compared
from datatypes.proof.subject import FUNCTIONS, OPERATORS, runnable_targets
from experiments.cli.main import run_command

EIGHT = ["posit8_es0", "float8_e4m3fn"]
OTHERS = [name for name in datatypes.list_formats() if name not in EIGHT]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("posit8_es0", runnable_targets()),
        ("float8_e4m3fn", ["llvm"]),
        pytest.param("float8_e4m3fn", runnable_targets(), marks=pytest.mark.slow),
    ],
)
def test_eight_bit_formats_pass_on_all_pairs(name: str, targets: list[str]) -> None:
    report = check_format(name, targets=targets)
    assert [row for row in report.rows if row.wrong] == []
    assert report.passed
    assert report.missing == {}
    cases = {(row.name, row.target): row.cases for row in report.rows}
    for target in targets:
        for op in OPERATORS:
            assert cases[f"{op} of pairs", target] == 65536
        for fn in FUNCTIONS:
            assert cases[f"{fn} of codes", target] == 256
        assert cases["nn.dense, 97 terms", target] > 1000
        assert cases["Fma of triples", target] == 65536
        assert cases["fused nn.dense, 97 terms", target] > 1000
        assert cases["cast to float16", target] == 256
        assert cases["cast from float16", target] == 65536


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "lowering"),
    [("posit16_es1", "library"), pytest.param("bfloat16", None, marks=pytest.mark.slow)],
)
def test_a_sixteen_bit_format_passes_on_one_target(name: str, lowering: str | None) -> None:
    report = check_format(name, lowering, targets=["llvm"])
    assert [row for row in report.rows if row.wrong] == []
    cases = {row.name: row.cases for row in report.rows if row.target}
    assert cases["Mul of pairs"] > 3_000_000
    assert cases["exp of codes"] == 65536


@pytest.mark.slow
@pytest.mark.parametrize("lowering", ["library", None])
@pytest.mark.parametrize("name", OTHERS)
def test_every_listed_format_passes(name: str, lowering: str | None) -> None:
    report = check_format(name, lowering)
    assert [row for row in report.rows if row.wrong] == []
    assert report.missing == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["posit16_es1", "posit16_es2"])
def test_all_pairs_of_sixteen_bits_pass(name: str) -> None:
    report = check_format(name, exhaustive=True, targets=["llvm"])
    assert [row for row in report.rows if row.wrong] == []
    exhaustive = {row.name: row.cases for row in report.rows if row.name.endswith("all pairs")}
    assert exhaustive == {"Add of all pairs": 2**32, "Mul of all pairs": 2**32}


@pytest.mark.thorough
def test_progress_goes_from_nothing_to_all() -> None:
    seen: list[Progress] = []
    check_format("float4_e2m1fn", "table", targets=["llvm"], watch=seen.append)
    assert seen[0].done == 0
    assert seen[-1].done == seen[-1].total == len(seen) - 1


@pytest.mark.thorough
def test_the_same_seed_gives_the_same_cases() -> None:
    first, second = (
        check_format("posit6_es1", "table", targets=["llvm"], seed=3) for _ in range(2)
    )
    assert [(r.name, r.cases) for r in first.rows] == [(r.name, r.cases) for r in second.rows]


def test_what_differs_is_counted_and_shown() -> None:
    fmt = get("posit8_es0")
    a, want = np.arange(4, dtype=np.uint8), np.array([1, 2, 3, 0x40], np.uint8)
    row = compared("x", [(fmt, a)], fmt, np.array([1, 7, 3, 0x80], np.uint8), want, "y", "z")
    assert (row.cases, row.wrong) == (4, 2)
    assert row.examples[1].operands == ("0x03 = 0.046875",)
    assert (row.examples[1].got, row.examples[1].expected) == ("0x80 = nan", "0x40 = 1.0")


def test_zeros_of_different_sign_differ_and_nans_do_not() -> None:
    got, want = np.array([0.0, np.nan, 1.0]), np.array([-0.0, np.nan, 1.0])
    assert compared("x", [(None, want)], None, got, want, "y").wrong == 1


def test_bad_requests_are_refused() -> None:
    with pytest.raises(InputError, match="exhaustive checks are for 16 bits"):
        check_format("posit8_es0", exhaustive=True)
    with pytest.raises(DtypelabError, match="unknown format"):
        check_format("posit16_es9x")
    with pytest.raises(InputError, match="unknown datatype lowering 'fast'"):
        check_format("posit8_es0", "fast")
    with pytest.raises(InputError, match="seed must not be negative, not -1"):
        check_format("posit8_es0", seed=-1)


# ---- the command ---------------------------------------------------------------------------------
@pytest.mark.thorough
def test_the_command_prints_a_table_and_a_verdict(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "runnable_targets", lambda: ["llvm"])
    assert run_command(["dtype", "check", "float6_e3m2fn", "--lowering", "library"]) == 0
    out = capsys.readouterr().out
    assert "nn.dense, 97 terms" in out
    assert "not compared: float6_e3m2fn Div (the sign of a NaN" in out
    assert out.splitlines()[-1].startswith("float6_e3m2fn, library lowering: passed (")


@pytest.mark.thorough
def test_the_command_prints_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    cheap = ["--lowering", "table", "--seed", "2"]
    assert run_command(["dtype", "check", "posit5_es1", "--json", *cheap]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["passed"] is True
    assert {"name", "cases", "wrong", "against", "target", "seconds"} <= set(report["rows"][0])
    assert {row["target"] for row in report["rows"]} >= set(runnable_targets())


def test_the_command_refuses_what_cannot_be_exhausted(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["dtype", "check", "posit8_es0", "--exhaustive"]) == 2
    assert "exhaustive checks are for 16 bits" in capsys.readouterr().err
