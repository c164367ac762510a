"""Parts of circuits that are too large to be synthesized at once; sums from their leading one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verilog_reader import modules, ports

from compiler.errors import DtypelabError
from datatypes.hardware import synthesis, tools
from datatypes.hardware.accumulators import Exact, number_of
from datatypes.hardware.generate import design
from datatypes.hardware.netlist import Circuit

needs_yosys = pytest.mark.skipif(bool(tools.missing()), reason=tools.missing())
Modules = dict[str, Callable[..., int]]


@settings(max_examples=30)
@given(st.data())
def test_sums_are_read_from_their_leading_one_on(data: st.DataObject) -> None:
    """The upper bits of a size, of which the last says whether anything is below."""
    width, kept = data.draw(st.integers(2, 90)), data.draw(st.integers(3, 30))
    c = Circuit("read", "")
    x = number_of(c, c.input("acc", width + 1), Exact(-7, width), kept)
    c.output("y", c.joint(x.sign, x.exponent, x.significand))
    span, read = x.exponent.width, modules(c.text())["read"]
    most = 1 << (width - 1)
    ends = [-most, most - 1, -1, 1, -most + 1, *(-1 << k for k in range(width))]
    totals = [*ends, *data.draw(st.lists(st.integers(-most, most - 1), max_size=5))]
    for total in filter(None, totals):
        acc = total & (1 << width) - 1
        size = abs(total)
        top = size.bit_length() - 1
        cut = max(top + 1 - (kept - 1), 0)
        want = (size >> cut << max(kept - 1 - (top + 1), 0)) << 1 | (size & (1 << cut) - 1 != 0)
        exponent = top - 7 & (1 << span) - 1
        assert read(acc=acc) == ((total < 0) << span | exponent) << kept | want


@pytest.mark.parametrize("mode", ["h100_fp8", "b200_fp8"])
def test_a_group_is_made_of_its_parts(mode: str) -> None:
    name = "float8_e4m3fn"
    made = design(name, mode)
    read, width = modules(made.verilog), ports(made.verilog)
    assert made.parts["mac"][0] == (("product", 32), ("held", 1))
    n = width[f"{name}_largest"]["y"][1]
    one = width[f"{name}_align"]["y"][1]
    rng = np.random.default_rng(4)
    for row in range(12):
        codes = rng.integers(0, 256 if row % 2 else 120, (2, 32)).tolist()
        acc = int(rng.integers(0, 1 << made.accumulator_bits))
        a, b = (sum(code << 8 * k for k, code in enumerate(side)) for side in codes)
        parts = [read[f"{name}_product"](a=x, b=y) for x, y in zip(*codes, strict=True)]
        sizes = [width[f"{name}_{what}"]["y"][1] for what in ("product", "held")]
        parts.append(read[f"{name}_held"](acc=acc))
        bits = [*[sizes[0]] * 32, sizes[1]]
        split = [_flags(part, size) for part, size in zip(parts, bits, strict=True)]
        exponents = [
            part >> size - 4 - n & (1 << n) - 1 for part, size in zip(parts, bits, strict=True)
        ]
        largest = read[f"{name}_largest"](exponents=_joined(exponents, n))
        terms = [read[f"{name}_align"](parts=part, largest=largest) for part in parts[:32]]
        terms.append(read[f"{name}_align_held"](parts=parts[32], largest=largest))
        flags = {what: _joined([f[what] for f in split], 1) for what in ("nan", "plus", "minus")}
        total = read[f"{name}_total"](terms=_joined(terms, one), largest=largest, **flags)
        assert total == read[f"{name}_mac"](a=a, b=b, acc=acc)


def _flags(part: int, width: int) -> dict[str, int]:
    nan, inf, sign = (part >> width - place & 1 for place in (1, 2, 4))
    return {"nan": nan, "plus": inf & (1 - sign), "minus": inf & sign}


def _joined(values: list[int], width: int) -> int:
    return sum(value << width * k for k, value in enumerate(values))


def test_a_tree_is_made_of_its_parts() -> None:
    name, mode = "posit8_es2", '{format = "float16", order = "tree8"}'
    made = design(name, mode)
    read = modules(made.verilog)
    assert made.parts["mac"] == (
        (("product", 8),), (("pair", 4),), (("node", 2),), (("node", 1),), (("node", 1),),
    )  # fmt: skip
    for words in np.random.default_rng(4).integers(0, 256, (20, 2, 8)).tolist():
        a, b = (_joined(side, 8) for side in words)
        codes = [read[f"{name}_product"](a=x, b=y) for x, y in zip(*words, strict=True)]
        for what in ("pair", "node", "node"):
            work = read[f"{name}_{what}"]
            codes = [work(a=x, b=y) for x, y in zip(codes[::2], codes[1::2], strict=True)]
        want = read[f"{name}_mac"](a=a, b=b, acc=15360)
        assert read[f"{name}_node"](a=codes[0], b=15360) == want


def test_short_steps_and_pipelines_are_whole() -> None:
    for made in (
        design("float16", "v100_fp16"),
        design("float8_e5m2", "h100_fp8", pipeline=1),
        design("float8_e5m2", '{format = "float16", order = "tree4"}'),
    ):
        assert not made.parts
        assert set(made.circuits) == {"decode", "encode", "add", "mul", "mac", "round"}


def test_a_synthesis_that_takes_too_long_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, ...]] = []

    def slow(script: str, folder: Path, limit: float) -> None:
        seen.append(("ran", limit))
        raise tools.TookTooLongError(f"Yosys took longer than {limit:g} s")

    monkeypatch.setattr(tools, "yosys", slow)
    made = design("float8_e5m2", "h100_fp8")
    message = r"^Yosys took longer than 7 s to synthesize float8_e5m2_product; allow more \(time_l"
    with pytest.raises(DtypelabError, match=message):
        synthesis.synthesized(made, ["mac"], time_limit=7, watch=lambda *told: seen.append(told))
    assert seen == [("float8_e5m2_product", 0, 6), ("ran", 7)]
    for seconds in (0.0, -1.0, float("nan")):
        with pytest.raises(DtypelabError, match="it is seconds, and more than 0"):
            synthesis.synthesized(made, time_limit=seconds)


@needs_yosys
@pytest.mark.thorough
def test_the_cost_of_a_tree_is_that_of_its_parts() -> None:
    made = design("float4_e2m1fn", '{format = "float8_e4m3fn", order = "tree8"}')
    told: list[tuple[str, int, int]] = []
    costs = synthesis.synthesized(
        made, ["product", "pair", "node", "mac"], watch=lambda *now: told.append(now)
    )
    by = {cost.module: cost for cost in costs}
    product, pair, node, mac = (by[what] for what in ("product", "pair", "node", "mac"))
    assert mac.cells == 8 * product.cells + 4 * pair.cells + 4 * node.cells
    assert mac.depth == product.depth + pair.depth + 3 * node.depth
    assert [row[1:] for row in told] == [(0, 3), (1, 3), (2, 3)]
