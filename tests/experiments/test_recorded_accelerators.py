"""The recorded sweep of accelerators: what its README says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_recorded import assert_covers

import experiments
from compiler.target.accelerator import Design

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture(scope="module")
def rows() -> dict[tuple[str, str], dict[str, Any]]:
    """(scheme without its options, target) -> row."""
    found = experiments.read_results(RESULTS / "accelerators.csv")
    assert len(found) == 24
    return {(r["scheme"].split("[")[0], r["target"]): r for r in found.to_dict("records")}


def test_the_table_covers_its_specification() -> None:
    assert_covers(experiments.read_results(RESULTS / "accelerators.csv"), "accelerators")
    assert (RESULTS / "accelerators.svg").read_text().startswith("<svg")


def test_designs_of_int32_have_the_same_answers(rows: dict[tuple[str, str], Any]) -> None:
    same = [
        r
        for (scheme, target), r in rows.items()
        if scheme == "int8_channel" and Design.parse(target).accumulator == "int32"
        and Design.parse(target).weight_bits == 8
    ]  # fmt: skip
    assert len(same) == 12
    assert len({(r["metric"], r["sqnr_db"]) for r in same}) == 1


def test_cycles_follow_the_design(rows: dict[tuple[str, str], Any]) -> None:
    def cycles(options: str, scheme: str = "int8_channel") -> float:
        return float(rows[scheme, f"accel {options}".strip()]["cycles"])

    assert cycles("-bandwidth=4") > cycles("-bandwidth=8") > cycles("") > cycles("-bandwidth=64")
    assert cycles("-block=8") > 3 * cycles("") > 3 * cycles("-block=32")
    assert cycles("-block=32 -bandwidth=64") < cycles("-block=32")
    assert cycles("-weight_bits=4") < cycles("")
    # An accumulator changes answers; of cycles only those in which biases of its width are loaded,
    # and those of the mean, which the host makes where sums have fewer bits than its own.
    for accumulator in ("int16_wrap", "int16_saturate", "int17_saturate", "int18_saturate"):
        assert -510 < cycles(f"-accumulator={accumulator}") - cycles("") < -450
    # Larger buffers are never slower than smaller ones, but for what the model misjudges.
    large = cycles("-input=128K -weight=1M -acc=512K")
    assert large < 1.01 * cycles("")
    assert cycles("") < 1.01 * cycles("-input=4K -weight=16K -acc=16K")


def test_accumulators_decide_accuracy(rows: dict[tuple[str, str], Any]) -> None:
    drops = {
        bits: rows["int8_channel", f"accel -accumulator={bits}"]["metric_drop"]
        for bits in ("int18_saturate", "int17_saturate", "int16_saturate", "int16_wrap")
    }
    assert abs(drops["int18_saturate"]) <= 0.003
    assert drops["int18_saturate"] <= drops["int17_saturate"] < drops["int16_saturate"]
    assert drops["int16_saturate"] < drops["int16_wrap"]
    assert drops["int16_wrap"] > 0.8


def test_utilization_is_what_the_cycles_say(rows: dict[tuple[str, str], Any]) -> None:
    for (_, target), r in rows.items():
        peak = Design.parse(target).peak
        assert r["utilization"] == pytest.approx(r["macs"] / (r["cycles"] * peak), rel=1e-6)
        assert (r["machine"], r["emulated"]) == ("simulator", "yes")
