"""Circuits as values: `Circuit` gathers wires, `Bits` are wires with operators; text is Verilog.

Every operation is a wire of its own with a stated width, and the operands of an operation have
that width too: Verilog's rules for the widths of expressions never decide anything.

A wire knows in which clock cycle its value arrives. Where wires of different cycles meet, the
earlier ones wait in registers, so a pipeline is `Circuit.cut` at one place, and cannot go wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LIMIT = 4096
"""Widest wire; nothing described here comes near."""


@dataclass(frozen=True, eq=False)
class Bits:
    """A wire [width - 1 : 0] of a circuit, or a constant.

    Attributes:
        circuit: that it is part of.
        text: its name, a part of a wire, or a constant, in Verilog.
        width: in bits, at least 1.
        cycle: of the clock in which its value arrives; None of a constant, which is always there.
        number: the value of a constant.
    """

    circuit: Circuit
    text: str
    width: int
    cycle: int | None = None
    number: int | None = None

    def __and__(self, other: Bits) -> Bits:
        return self.circuit.joined("&", self, other)

    def __or__(self, other: Bits) -> Bits:
        return self.circuit.joined("|", self, other)

    def __xor__(self, other: Bits) -> Bits:
        return self.circuit.joined("^", self, other)

    def __add__(self, other: Bits) -> Bits:
        return self.circuit.joined("+", self, other)

    def __sub__(self, other: Bits) -> Bits:
        return self.circuit.joined("-", self, other)

    def __mul__(self, other: Bits) -> Bits:
        """The whole product of unsigned numbers; as wide as both together."""
        width = self.width + other.width
        a, b = self.zero_extended(width), other.zero_extended(width)
        return self.circuit.joined("*", a, b)

    def __invert__(self) -> Bits:
        return self.circuit.wire(self.width, "~{}", self)

    def __getitem__(self, place: int | slice) -> Bits:
        """Bit `place`, from the least on; or the bits from `start` up to, not with, `stop`."""
        if isinstance(place, int):
            low, high = place, place
        else:
            low = place.start or 0
            high = (self.width if place.stop is None else place.stop) - 1
        assert 0 <= low <= high < self.width, (self.text, self.width, place)
        if self.number is not None:
            return self.circuit.constant(self.number >> low, high - low + 1)
        if (low, high) == (0, self.width - 1):
            return self
        wire, _, part = self.text.partition("[")
        if part:  # a part of a part
            start = int(part.rstrip("]").rpartition(":")[2])
            low, high = low + start, high + start
        text = f"{wire}[{high}:{low}]" if high > low else f"{wire}[{low}]"
        return Bits(self.circuit, text, high - low + 1, self.cycle)

    @property
    def top(self) -> Bits:
        """The highest bit."""
        return self[self.width - 1]

    def zero_extended(self, width: int) -> Bits:
        """With zeros above, or cut to `width` bits."""
        if width <= self.width:
            return self[:width]
        return self.circuit.joint(self.circuit.constant(0, width - self.width), self)

    def sign_extended(self, width: int) -> Bits:
        """With copies of the top bit above, or cut to `width` bits."""
        if width <= self.width:
            return self[:width]
        return self.circuit.joint(self.top.repeated(width - self.width), self)

    def raised(self, zeros: int) -> Bits:
        """With so many zeros below: as much wider."""
        return self.circuit.joint(self, self.circuit.constant(0, zeros)) if zeros else self

    def repeated(self, times: int) -> Bits:
        """One bit, so many times."""
        assert self.width == 1
        return self.circuit.wire(times, "{{" + str(times) + "{{{}}}}}", self)

    def shifted_left(self, places: Bits) -> Bits:
        """Zeros come in below; the width stays."""
        return self.circuit.wire(self.width, "{} << {}", self, places)

    def shifted_right(self, places: Bits) -> Bits:
        """Zeros come in above; the width stays."""
        return self.circuit.wire(self.width, "{} >> {}", self, places)

    def shifted_right_signed(self, places: Bits) -> Bits:
        """Copies of the top bit come in above; the width stays."""
        return self.circuit.wire(self.width, "$signed({}) >>> {}", self, places)

    def any(self) -> Bits:
        """Whether any bit is set."""
        return self if self.width == 1 else self.circuit.wire(1, "|{}", self)

    def all(self) -> Bits:
        """Whether all bits are set."""
        return self if self.width == 1 else self.circuit.wire(1, "&{}", self)

    def equals(self, number: int) -> Bits:
        """Whether it is a constant, read as unsigned."""
        return self.circuit.wire(1, "{} == {}", self, self.circuit.constant(number, self.width))

    def below(self, other: Bits) -> Bits:
        """Whether it is less, both unsigned."""
        assert self.width == other.width
        return self.circuit.wire(1, "{} < {}", self, other)

    def below_signed(self, other: Bits) -> Bits:
        """Whether it is less, both in two's complement."""
        assert self.width == other.width
        return self.circuit.wire(1, "$signed({}) < $signed({})", self, other)

    def chosen(self, yes: Bits, no: Bits) -> Bits:
        """One bit's choice between two wires."""
        assert self.width == 1, self.text
        assert yes.width == no.width, (yes.text, yes.width, no.text, no.width)
        return self.circuit.wire(yes.width, "{} ? {} : {}", self, yes, no)

    def named(self, name: str) -> Bits:
        """The same value as a wire of this name."""
        return self.circuit.wire(self.width, "{}", self, name=name)


Steps = tuple[tuple[tuple[str, int], ...], ...]
"""What a signal passes one after the other: modules that are side by side, and how many of each."""


class Circuit:
    """One Verilog module in the making."""

    def __init__(self, name: str, about: str) -> None:
        self.name = name
        self.about = about
        self.inputs: dict[str, int] = {}
        self.outputs: dict[str, tuple[int, Bits]] = {}
        self.cuts = 0
        self._lines: list[str] = []
        self._names: dict[str, int] = {}
        self._delayed: dict[tuple[str, int], Bits] = {}
        self._clocked: list[str] = []

    def input(self, name: str, width: int) -> Bits:
        """An input port."""
        self.inputs[name] = width
        self._names[name] = 1
        return Bits(self, name, width, 0)

    def output(self, name: str, value: Bits) -> None:
        """An output port, of the value's width."""
        if name in self._names:
            raise ValueError(f"{self.name} has a wire {name!r} already")
        self.outputs[name] = (value.width, value)

    def constant(self, number: int, width: int) -> Bits:
        """The lowest `width` bits of an integer."""
        assert 0 < width <= LIMIT
        number &= (1 << width) - 1
        return Bits(self, f"{width}'h{number:x}", width, None, number)

    def wire(self, width: int, template: str, *operands: Bits, name: str = "") -> Bits:
        """A new wire: an expression in which {} stand for the operands."""
        assert 0 < width <= LIMIT, (width, template)
        cycles = [operand.cycle for operand in operands if operand.cycle is not None]
        cycle = max(cycles) if cycles else None
        texts = [self._at(operand, cycle).text for operand in operands]
        made = self._fresh(name)
        self._lines.append(f"wire [{width - 1}:0] {made} = {template.format(*texts)};")
        return Bits(self, made, width, cycle)

    def joined(self, sign: str, a: Bits, b: Bits) -> Bits:
        """An operation of two wires of one width, with a result of this width."""
        assert a.width == b.width, (a.text, a.width, sign, b.text, b.width)
        return self.wire(a.width, f"{{}} {sign} {{}}", a, b)

    def joint(self, *parts: Bits) -> Bits:
        """Wires side by side, the highest first."""
        if len(parts) == 1:
            return parts[0]
        pattern = ", ".join(["{}"] * len(parts))
        return self.wire(sum(part.width for part in parts), f"{{{{{pattern}}}}}", *parts)

    def cut(self, *values: Bits) -> list[Bits]:
        """The values one clock later, each through a register."""
        there = max(value.cycle or 0 for value in values)
        self.cuts = max(self.cuts, there + 1)
        return [value if value.cycle is None else self._at(value, there + 1) for value in values]

    def text(self) -> str:
        """The module in Verilog (IEEE 1364-2001)."""
        ports = ["input wire clk"] if self.cuts else []
        ports += [f"input wire [{width - 1}:0] {name}" for name, width in self.inputs.items()]
        ports += [
            f"output wire [{width - 1}:0] {name}" for name, (width, _) in self.outputs.items()
        ]
        last = self.cuts
        ends = [(n, self._at(value, last)) for n, (_, value) in self.outputs.items()]
        body = [*self._lines, *(f"assign {name} = {value.text};" for name, value in ends)]
        if self._clocked:
            body += ["always @(posedge clk) begin", *self._clocked, "end"]
        late = [f"// Rising edges of clk from inputs to their result: {last}."] if last else []
        head = [*(f"// {line}" for line in self.about.splitlines()), *late]
        inner = (f"  {line}" for line in body)
        listed = ",\n  ".join(ports)
        return "\n".join([*head, f"module {self.name}(\n  {listed}\n);", *inner, "endmodule", ""])

    def _at(self, value: Bits, cycle: int | None) -> Bits:
        """A value in a later cycle, through registers that are made once."""
        if value.cycle is None or cycle is None or value.cycle >= cycle:
            return value
        if (value.text, cycle) not in self._delayed:
            before = self._at(value, cycle - 1)
            made = self._fresh("held")
            self._lines.append(f"reg [{value.width - 1}:0] {made};")
            self._clocked.append(f"  {made} <= {before.text};")
            self._delayed[value.text, cycle] = Bits(self, made, value.width, cycle)
        return self._delayed[value.text, cycle]

    def _fresh(self, name: str) -> str:
        stem = name or "w"
        count = self._names[stem] = self._names.get(stem, 0) + 1
        return stem if name and count == 1 else f"{stem}_{count}"


def text_of(circuits: Sequence[Circuit]) -> str:
    """The modules of several circuits as one file; each once."""
    return "\n".join({circuit.name: circuit.text() for circuit in circuits}.values())
