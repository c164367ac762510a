"""Dot products of blocks and approximate multipliers as Verilog: read back, and simulated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from verilog_reader import modules, ports

import datatypes
from compiler.errors import UnsupportedError
from datatypes.arithmetic import oracle
from datatypes.formats import get, minifloat
from datatypes.formats.tables import operation_tables
from datatypes.hardware import tools
from datatypes.hardware.blocks import Blocks
from datatypes.hardware.generate import design, hardware
from datatypes.hardware.lookup import looked_up, pairs_looked_up
from datatypes.hardware.netlist import Circuit
from datatypes.hardware.simulation import Simulation
from datatypes.hardware.synthesis import synthesized

needs_tools = pytest.mark.skipif(
    bool(tools.missing() or tools.missing_compiler()),
    reason=tools.missing() or tools.missing_compiler(),
)
POWERS = "float8_e8m0fnu"
needs_yosys = pytest.mark.skipif(bool(tools.missing()), reason=tools.missing())
BLOCKS = [
    ("float4_e2m1fn", POWERS, 5),
    ("float8_e5m2", "float8_e4m3fn", 3),
    ("fixed8_6", POWERS, 2),
    ("nf4", "posit8_es2", 3),
    ("float8_e4m3fn", "float32_e8m23", 1),
]
Codes = npt.NDArray[np.int64]


def of(element: str, scale: str, length: int) -> Blocks:
    return Blocks("block", get(element), get(scale), length)


def cases(blocks: Blocks, into: str, count: int) -> dict[str, Codes]:
    """Codes of every port, elements [count, length]; scales of a million million to one."""
    rng = np.random.default_rng(blocks.length)
    elements = rng.integers(0, blocks.element.mask + 1, (2, count, blocks.length))
    if blocks.scale.name == POWERS:
        scales = rng.integers(107, 148, (2, count))
        scales[0, :2] = 255
    else:
        scales = rng.integers(0, blocks.scale.mask + 1, (2, count))
    acc = datatypes.encode(into, rng.normal(size=count) * 2.0 ** rng.integers(-20, 20, count))
    ports = {"a": elements[0], "b": elements[1], "scale_a": scales[0], "scale_b": scales[1]}
    return {**ports, "acc": acc.astype(np.int64)}


def wanted(blocks: Blocks, into: str, x: dict[str, Codes]) -> Codes:
    """acc + scales * dot product, rounded once; float64 holds both factors."""
    element, wide = blocks.element, get(into)
    with np.errstate(all="ignore"):
        a, b = (datatypes.decode(element, x[name]) for name in ("a", "b"))
        dots = (a * b).sum(axis=1)
        scales = [datatypes.decode(blocks.scale, x[f"scale_{name}"]) for name in ("a", "b")]
        total = oracle.multiply_add(
            wide, dots, scales[0] * scales[1], datatypes.decode(wide, x["acc"])
        )
    return datatypes.encode(wide, total).astype(np.int64)


def packed(blocks: Blocks, codes: Codes) -> npt.NDArray[np.object_]:
    """Codes of a block side by side, the first one lowest."""
    places = [blocks.element.nbits * k for k in range(blocks.length)]
    return np.array([sum(int(v) << k for v, k in zip(row, places, strict=True)) for row in codes])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("into", ["float32_e8m23", "posit16_es1"])
@pytest.mark.parametrize(("element", "scale", "length"), BLOCKS)
def test_a_block_is_added_with_one_rounding(
    element: str, scale: str, length: int, into: str
) -> None:
    blocks = of(element, scale, length)
    work = modules(hardware(blocks, into))["block_mac"]
    x = cases(blocks, into, 40)
    rows = {**x, "a": packed(blocks, x["a"]), "b": packed(blocks, x["b"])}
    found = [
        work(**{name: int(row) for name, row in zip(rows, values, strict=True)})
        for values in zip(*rows.values(), strict=True)
    ]
    assert found == wanted(blocks, into, x).tolist()


def test_ports_of_a_block() -> None:
    found = ports(hardware(of("float4_e2m1fn", POWERS, 32), "float32"))
    held = {
        **dict.fromkeys(("scale_a", "scale_b"), ("input", 8)),
        "acc": ("input", 32),
        "y": ("output", 32),
    }
    assert found["block_mac"] == {**dict.fromkeys(("a", "b"), ("input", 128)), **held}
    product = found["block_product"]["y"][1]  # in quarters up to 36, a sign and a flag
    assert found["block_total"] == {"products": ("input", 32 * product), **held}
    assert product == 10
    assert design(of("float4_e2m1fn", POWERS, 32), "float32").terms == 32


def test_a_block_is_made_of_its_parts() -> None:
    blocks = of("float8_e5m2", POWERS, 3)
    made, x = (
        modules(hardware(blocks, "float32")),
        cases(of("float8_e5m2", POWERS, 3), "float32_e8m23", 20),
    )
    width = ports(hardware(blocks, "float32"))["block_product"]["y"][1]
    for k, (a, b) in enumerate(zip(x["a"].tolist(), x["b"].tolist(), strict=True)):
        rest = {name: int(x[name][k]) for name in ("scale_a", "scale_b", "acc")}
        products = [made["block_product"](a=p, b=q) for p, q in zip(a, b, strict=True)]
        every = sum(p << width * place for place, p in enumerate(products))
        whole = {name: int(packed(blocks, x[name])[k]) for name in ("a", "b")}
        assert made["block_total"](products=every, **rest) == made["block_mac"](**whole, **rest)


@needs_yosys
@pytest.mark.thorough
def test_the_cost_of_a_block_is_that_of_its_parts() -> None:
    product, total, mac = synthesized(design(of("float4_e2m1fn", POWERS, 4), "float32"))
    assert [c.module for c in (product, total, mac)] == ["product", "total", "mac"]
    assert mac.cells == 4 * product.cells + total.cells
    assert mac.depth == product.depth + total.depth
    assert 0 < 4 * product.nand2 < total.nand2 < mac.nand2


@pytest.mark.parametrize("rows", [1, 2])
def test_blocks_wait_in_registers(rows: int) -> None:
    made = design(of("float8_e5m2", POWERS, 3), "bfloat16", pipeline=rows)
    assert made.circuits["mac"].cuts == rows


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: hardware(of("float8_e5m2", POWERS, 3)), "with one rounding, not in 'exact'"),
        (lambda: hardware(of("nf4", POWERS, 3), "sequential"), "nearest is accumulate='float32'"),
        (lambda: hardware(of("float8_e5m2", POWERS, 3), "float4_e2m1fn"), "4 bits .* is narrower"),
        (lambda: of("nf4", POWERS, 128), "blocks have 128 elements, and circuits at most 64"),
        (lambda: hardware(of("nf4", "nf4", 4), "float32"), "nf4, the format of its scales, has no"),
        (lambda: hardware(of("takum8", POWERS, 32), "float32"), "take 963 bits, .* at most 256; "),
        (lambda: hardware(of("lns8_3", POWERS, 4), "float32"), "lns8_3 has only sequential"),
    ],
)
def test_blocks_without_circuits_are_refused(build: Callable[[], object], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        build()


@needs_tools
@pytest.mark.thorough
@pytest.mark.parametrize(("element", "scale", "length"), [*BLOCKS, ("float6_e2m3fn", POWERS, 32)])
def test_simulated_blocks(element: str, scale: str, length: int) -> None:
    blocks, into = of(element, scale, length), "float32_e8m23"
    x = cases(blocks, into, 100_000)
    rows = {**x, "a": packed(blocks, x["a"]), "b": packed(blocks, x["b"])}
    with Simulation(design(blocks, into), ["mac"]) as circuit:
        found = circuit.run("mac", **rows)
    assert np.array_equal(found.astype(np.int64), wanted(blocks, into, x))


def test_only_tables_are_looked_up() -> None:
    """Of an approximate multiplier: sums are what they are without its table."""
    codes = np.arange(64)
    table = (codes[:, None] + codes + 20) & 63
    fmt = replace(
        minifloat(3, 2, name="added_codes"), tables=operation_tables("", 6, {"Mul": table})
    )
    text = hardware(fmt, "sequential")
    made = modules(text)
    plain = modules(hardware(replace(fmt, tables=()), "sequential"))["added_codes_add"]
    for a, b in np.random.default_rng(2).integers(0, 64, (100, 2)).tolist():
        assert made["added_codes_mul"](a=a, b=b) == table[a, b]
        assert made["added_codes_add"](a=a, b=b) == plain(a=a, b=b)
        assert made["added_codes_mac"](a=a, b=b, acc=a) == plain(a=a, b=int(table[a, b]))
    for accumulate in ("exact", "float32", "fma"):
        with pytest.raises(UnsupportedError, match="added_codes has only sequential"):
            hardware(fmt, accumulate)


def test_tables_take_the_better_order_of_their_bits() -> None:
    """Sums of codes have short diagrams if the bits of both come in turn."""
    codes = np.arange(64)
    c = Circuit("sums", "")
    table = (codes[:, None] + codes) & 63
    c.output("y", pairs_looked_up(c, c.input("a", 6), c.input("b", 6), table.ravel(), 6))
    plain = Circuit("plain", "")
    looked_up(plain, plain.input("ab", 12), table.ravel(), 6)
    assert 2 * c.text().count("?") < plain.text().count("?")
    work = modules(c.text())["sums"]
    pairs = np.random.default_rng(2).integers(0, 64, (100, 2)).tolist()
    assert [work(a=a, b=b) for a, b in pairs] == [table[a, b] for a, b in pairs]
