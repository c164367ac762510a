"""`hardware`: the Verilog modules of a format."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from compiler.errors import DtypelabError, UnsupportedError
from datatypes.arithmetic import oracle
from datatypes.formats import Format, get
from datatypes.formats.catalogue import find
from datatypes.formats.logarithmic import LogarithmCode
from datatypes.hardware import accumulators
from datatypes.hardware.accumulators import HEADROOM, SINGLE, Accumulator, Exact, InFormat, Staged
from datatypes.hardware.blocks import Blocks, block_circuits
from datatypes.hardware.codecs import codec_of
from datatypes.hardware.datapaths import Datapath, Rounded, mac_in_format
from datatypes.hardware.integers import Whole, fixed_point
from datatypes.hardware.logarithmic import Logarithmic
from datatypes.hardware.netlist import Circuit, Steps, text_of
from datatypes.hardware.partly import PartlyTabulated
from datatypes.hardware.staged import outer_step, staged_mac
from datatypes.hardware.staged_parts import WHOLE, staged_parts
from datatypes.hardware.tabulated import Tabulated
from datatypes.registry import registered_types
from datatypes.vector.choice import significant_bits

Accumulate = str | Format | Mapping[str, object]
ROWS = 2
"""Most rows of registers: after decoding, and before rounding."""
_INTEGER = re.compile(r"(u?)int([1-9]\d*)", re.ASCII)


@dataclass(frozen=True)
class Design:
    """The circuits of a format.

    Attributes:
        name: of the format or integer dtype; modules are called NAME_add and so on.
        nbits: width of its codes.
        accumulator: of NAME_mac and NAME_round.
        accumulator_bits: width of the ports `acc`.
        circuits: the modules by what they do: decode, encode, add, mul, mac, round.
        terms: products that NAME_mac adds at once.
        parts: modules that are too large to be synthesized whole -> the modules in them.
    """

    name: str
    nbits: int
    accumulator: Accumulator
    accumulator_bits: int
    circuits: dict[str, Circuit]
    terms: int = 1
    parts: Mapping[str, Steps] = field(default_factory=dict)

    @property
    def verilog(self) -> str:
        """All modules, as one file."""
        return text_of(list(self.circuits.values()))


def hardware(
    fmt: str | Format | Blocks,
    accumulate: Accumulate = "exact",
    *,
    pipeline: int = 0,
    headroom: int = HEADROOM,
) -> str:
    """Synthesizable Verilog of a format's decoder, encoder, adder, multiplier and MAC.

    Modules, whose ports are unsigned wires [n-1:0]: NAME_add and NAME_mul (a, b -> y), rounded
    once by the format's rules; NAME_decode (a -> parts) and NAME_encode (parts -> y); NAME_mac
    (a, b, acc -> y), with acc and y of the accumulator's width; NAME_round (acc -> y). Codes are
    those of `datatypes.encode`. Integers (int8, uint4, ...) wrap around in NAME_add and NAME_mul;
    NAME_round saturates.

    Args:
        fmt: a format or its name (float32 is float32_e8m23), or an integer dtype; or a block
            format, which has NAME_mac (a, b, scale_a, scale_b, acc -> y), a block at once, and the
            parts of it.
        accumulate: "exact": two's complement in units of minpos**2 (or as a comment says), which
            holds 2**headroom products, below a bit that says that it is no number. A format's name:
            acc = rnd(acc + a * b) in it. "fma": the same in the format itself; "sequential": there,
            and products are rounded too. A description, as networks take it
            (`compiler.op.accumulator`), but no pairwise sums: NAME_mac adds a tree or an aligned
            group at once (a and b: so many codes, the first lowest; zeros fill a shorter one), acc
            is {lost, sum} with a compensation, and NAME_outer (part, acc -> y) adds a chunk's sum.
        pipeline: rows of registers in add, mul, mac and round: 0 (combinational), 1 (before the
            last step) or 2 (after decoding too). Modules with registers have a port clk; a row that
            an operation has no use for is left out, which its comment shows.
        headroom: of exact sums.

    Returns:
        Text of the modules.

    Raises:
        DtypelabError: no such format or accumulator, or it has no circuits (`UnsupportedError`).
    """
    return design(fmt, accumulate, pipeline=pipeline, headroom=headroom).verilog


def design(
    fmt: str | Format | Blocks,
    accumulate: Accumulate = "exact",
    *,
    pipeline: int = 0,
    headroom: int = HEADROOM,
) -> Design:
    """The circuits that `hardware` writes down; arguments and errors are its own."""
    if not 0 <= pipeline <= ROWS:
        raise DtypelabError(f"pipeline is {pipeline}; a circuit has 0 to {ROWS} rows of registers")
    if not 0 <= headroom <= 64:
        raise DtypelabError(f"headroom is {headroom}; an exact sum has 0 to 64 bits of it")
    if isinstance(fmt, Blocks):
        return _block_design(fmt, accumulate, pipeline)
    path = datapath(fmt, pipeline)
    into = _accumulator(path, fmt, accumulate, headroom)
    circuits = {
        "decode": _module(path, "decode", path.parts, {"a": path.nbits}),
        "encode": _module(path, "encode", path.parts, {"parts": path.parts_width()}),
        "add": _module(path, "add", "y = a + b", {"a": path.nbits, "b": path.nbits}),
        "mul": _module(path, "mul", "y = a * b", {"a": path.nbits, "b": path.nbits}),
        "mac": _mac(path, into),
        "round": _round(path, into),
    }
    if not isinstance(into, Staged):
        return Design(path.name, path.nbits, into, into.bits, circuits)
    circuits |= {"outer": outer_step(path.name, into)} if into.outer else {}
    parts: dict[str, Steps] = {}
    codec = codec_of(into.fmt)
    if codec is not None and into.terms > WHOLE and not pipeline:
        made, steps = staged_parts(path, into, Rounded(codec))
        circuits, parts = circuits | made, {"mac": steps}
    return Design(path.name, path.nbits, into, into.bits, circuits, into.terms, parts)


def datapath(fmt: str | Format, registers: int = 0) -> Datapath:
    """The operations of a format or an integer dtype as circuits.

    Raises:
        UnsupportedError: it has none.
    """
    integer = _INTEGER.fullmatch(fmt) if isinstance(fmt, str) else None
    if integer:
        nbits = int(integer[2])
        if not 2 <= nbits <= 32:
            raise UnsupportedError(f"{fmt} has no hardware: integers have 2 to 32 bits here")
        return Whole(integer[0], nbits, signed=not integer[1], wraps=True, registers=registers)
    described = _described(fmt)
    codec = codec_of(described)
    if codec is not None:
        return Rounded(codec, registers)
    plain = codec_of(replace(described, tables=())) if described.tables else None
    if plain is not None:
        return PartlyTabulated(described, plain, registers)
    code: object = described.decoder
    if isinstance(code, LogarithmCode) and not described.tables:
        return Logarithmic(described, code, registers)
    return fixed_point(described, registers) or Tabulated(described, registers)


def _described(fmt: str | Format) -> Format:
    """A format by its name: float32 too; not a datatype that is known by functions alone."""
    if isinstance(fmt, str) and fmt in registered_types() and find(fmt) is None:
        raise UnsupportedError(
            f"{fmt} has no hardware: it is functions that were registered for a name; the nearest "
            "is a format of at most 8 bits from a function, datatypes.define(..., decode=...)"
        )
    return get(SINGLE if fmt == "float32" else fmt)


def _accumulator(
    path: Datapath, fmt: str | Format, accumulate: Accumulate, headroom: int
) -> Accumulator:
    if isinstance(path, Whole) and path.wraps:
        if accumulate in ("fma", "sequential"):
            raise UnsupportedError(
                f"sums of {path.name} products in {path.name} have no meaning here; the nearest is "
                "accumulate='exact'"
            )
        # An integer has no format of its own; none of this one's rules is asked for.
        described = replace(get("fixed8_0"), name=path.name)
    else:
        described = _described(fmt)
    into = accumulators.read(accumulate, described)
    if into is None:
        return path.exact(headroom)
    own = isinstance(into, InFormat) and into.fmt == described and into.rounds_products
    if (described.tables or described.logarithmic) and not own:
        oracle.require_fused(described)
    outer = into.outer if isinstance(into, Staged) else None
    for held in (into.fmt, outer or into.fmt):
        if codec_of(held) is None and not own:
            nearest = "'exact', a float, a posit or a takum"
            if isinstance(path, Logarithmic):
                nearest = "'sequential'"
            raise UnsupportedError(
                f"hardware of {path.name} has no sums in {held.name}, whose family has no circuits "
                f"that round a sum; the nearest is accumulate={nearest}"
            )
        _check_width(held, path.name, path.nbits)
    factor = path.nbits - path.signed if isinstance(path, Whole) else significant_bits(described)
    product = 2 * factor
    if isinstance(into, Staged) and 0 < into.how.align_bits < product:
        raise UnsupportedError(
            f"an accumulator that keeps {into.how.align_bits} bits is narrower than products of "
            f"{path.name}, which have {product}"
        )
    return into


def _check_width(held: Format, name: str, nbits: int) -> None:
    if held.nbits < nbits:
        raise UnsupportedError(
            f"an accumulator of {held.nbits} bits ({held.name}) is narrower than a factor of "
            f"{name}, and than its products; choose one of {nbits} bits or more"
        )


def _block_design(of: Blocks, accumulate: Accumulate, pipeline: int) -> Design:
    into = accumulators.read(accumulate, of.element)
    if not isinstance(into, InFormat) or into.rounds_products or codec_of(into.fmt) is None:
        raise UnsupportedError(
            f"hardware of {of.name} adds blocks, which have scales, to a float, a posit or a takum "
            f"with one rounding, not in {accumulate!r}; the nearest is accumulate='float32'"
        )
    _check_width(into.fmt, of.name, of.element.nbits)
    circuits = block_circuits(of, datapath(of.element, pipeline), into)
    parts: Steps = (("product", of.length),), (("total", 1),)
    return Design(of.name, of.element.nbits, into, into.bits, circuits, of.length, {"mac": parts})


def _module(path: Datapath, what: str, about: str, ports: dict[str, int]) -> Circuit:
    c = Circuit(f"{path.name}_{what}", f"{path.name}: {about}")
    inputs = [c.input(name, width) for name, width in ports.items()]
    if what == "decode":
        c.output("parts", path.decode(c, *inputs))
    elif what == "encode":
        c.output("y", path.encode(c, *inputs))
    else:
        c.output("y", (path.add if what == "add" else path.mul)(c, *inputs))
    return c


def _mac(path: Datapath, into: Accumulator) -> Circuit:
    terms = into.terms if isinstance(into, Staged) else 1
    what = "y = acc + a * b" if terms == 1 else f"y = acc and {terms} products, the first lowest"
    c = Circuit(f"{path.name}_mac", f"{path.name}: {what}\n{into.about}")
    a, b = c.input("a", terms * path.nbits), c.input("b", terms * path.nbits)
    acc = c.input("acc", into.bits)
    if isinstance(into, Exact):
        c.output("y", path.mac_exact(c, a, b, acc, into))
        return c
    codec = codec_of(into.fmt)
    if codec is None:
        c.output("y", path.add(c, acc, path.mul(c, a, b)))
    elif isinstance(into, Staged):
        sums = Rounded(codec, path.registers)
        c.output("y", staged_mac(c, path, a, b, acc, into, sums))
    else:
        c.output("y", mac_in_format(c, path, [a, b], acc, into, Rounded(codec, path.registers)))
    return c


def _round(path: Datapath, into: Accumulator) -> Circuit:
    outer = InFormat(into.outer) if isinstance(into, Staged) and into.outer else into
    c = Circuit(f"{path.name}_round", f"{path.name}: y = acc, rounded\n{outer.about}")
    acc = c.input("acc", outer.bits)
    if isinstance(outer, Exact):
        c.output("y", path.round_exact(c, acc, outer))
        return c
    codec = codec_of(outer.fmt)
    own = outer.fmt.name == path.name
    total = acc[: outer.fmt.nbits]
    c.output("y", total if own or codec is None else path.from_format(c, total, codec))
    return c


__all__ = ["Design", "InFormat", "datapath", "design", "hardware"]
