"""Cells of a technology, from a liberty file: areas, functions, and delays as one number a cell."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from compiler.errors import DtypelabError
from compiler.files.reading import read_bytes

_TOKEN = re.compile(r'"[^"]*"|[{}();:,]|[^\s{}();:,"]+')
_COMMENT = re.compile(r"/\*.*?\*/|\\\n", re.DOTALL)
_PICOSECONDS = {"1ns": 1000.0, "100ps": 100.0, "10ps": 10.0, "1ps": 1.0}


@dataclass
class Group:
    """`kind(names) { ... }`: attributes, and the groups in it."""

    kind: str
    names: list[str]
    values: dict[str, list[str]] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)

    def text(self, key: str, default: str = "") -> str:
        """The first value of an attribute."""
        return self.values.get(key, [default])[0]

    def inner(self, kind: str) -> list[Group]:
        """The groups of a kind in it."""
        return [group for group in self.groups if group.kind == kind]


@dataclass(frozen=True)
class Gate:
    """A cell without a state and with one output.

    Attributes:
        name: of the cell.
        inputs: names of its inputs.
        output: name of its output.
        function: of the output, in the syntax of genlib files.
        area: in the unit of the file, which is um^2 as a rule.
        delay_ps: the largest of its timing tables' values in their middle: a load and a slope that
            the makers of the file found ordinary.
    """

    name: str
    inputs: tuple[str, ...]
    output: str
    function: str
    area: float
    delay_ps: float


@dataclass(frozen=True)
class Cells:
    """What circuits are made of.

    Attributes:
        gates: name -> gate.
        register_area: of the smallest D flip-flop; None if there is none.
    """

    gates: dict[str, Gate]
    register_area: float | None

    @property
    def genlib(self) -> str:
        """The gates as a genlib file, with constants that cost nothing."""
        lines = ["GATE _zero 0 Y=CONST0;", "GATE _one 0 Y=CONST1;"]
        for gate in self.gates.values():
            pin = f"PIN * UNKNOWN 1 999 {gate.delay_ps:g} 0 {gate.delay_ps:g} 0"
            lines.append(f"GATE {gate.name} {gate.area:g} {gate.output}={gate.function}; {pin}")
        return "\n".join([*lines, ""])


def cells_of(file: Path, registers: bool) -> Cells:
    """The cells of a liberty file.

    Args:
        file: the liberty file.
        registers: whether a flip-flop is needed.

    Raises:
        DtypelabError: it cannot be read, or lacks an inverter, a NAND or NOR of two inputs, or a
            flip-flop.
    """
    text = read_bytes(file, "the liberty file", DtypelabError).decode(errors="replace")
    tokens = _TOKEN.findall(_COMMENT.sub(" ", text))
    try:
        library = next(_read(iter(tokens), Group("", []))).inner("library")[0]
        unit = _PICOSECONDS.get(library.text("time_unit", "1ns").strip('"'), 1000.0)
        found = [cell for cell in library.inner("cell") if cell.text("dont_use") != "true"]
        gates = {gate.name: gate for gate in (_gate(cell, unit) for cell in found) if gate}
        flops = [float(c.text("area", "0")) for c in found if _is_register(c)]
    except (IndexError, KeyError, ValueError, RecursionError):
        raise DtypelabError(f"{file} is no liberty file, or one that cannot be read") from None
    forms = {re.sub(r"[()\s]", "", gate.function) for gate in gates.values()}
    inverters = any(re.fullmatch(r"!\w+|\w+'", form) for form in forms)
    # !(a*b) and its like without parentheses: no other function of two inputs reads so.
    pairs = r"!\w+[*+]\w+|\w+[*+]\w+'|!\w+[*+]!\w+|\w+'[*+]\w+'"
    lacks = [
        kind
        for kind, there in (
            ("inverter", inverters),
            ("NAND or NOR of two inputs", any(re.fullmatch(pairs, form) for form in forms)),
            ("flip-flop", flops or not registers),
        )
        if not there
    ]
    if lacks:
        raise DtypelabError(f"the liberty file {file} has no {' and no '.join(lacks)}")
    return Cells(gates, min(flops) if flops else None)


def _read(tokens: Iterator[str], into: Group) -> Iterator[Group]:
    """Read what is up to the closing brace into a group, and yield it."""
    before: list[str] = []
    arguments: list[str] = []
    for token in tokens:
        if token == "{":
            group = Group(before[0], arguments)
            into.groups.extend(_read(tokens, group))
            before, arguments = [], []
        elif token == "}":
            break
        elif token == ";":
            if before:
                into.values[before[0]] = arguments or before[2:]
            before, arguments = [], []
        elif token == "(":
            arguments = _arguments(tokens)
        else:
            before.append(token)
            # A complex attribute may end without a semicolon; its line is over.
            if arguments:
                into.values[before[0]], before, arguments = arguments, before[1:], []
    yield into


def _arguments(tokens: Iterator[str]) -> list[str]:
    found = []
    for token in tokens:
        if token == ")":
            break
        if token != ",":
            found.append(token.strip('"'))
    return found


def _gate(cell: Group, unit: float) -> Gate | None:
    """A cell that synthesis may use; None of others."""
    pins = cell.inner("pin")
    outputs = [pin for pin in pins if pin.text("direction").strip('"') == "output"]
    states = [group for kind in ("ff", "latch", "statetable") for group in cell.inner(kind)]
    if len(outputs) != 1 or states or not outputs[0].text("function"):
        return None
    (output,) = outputs
    inputs = tuple(pin.names[0] for pin in pins if pin is not output)
    function = _genlib(output.text("function").strip('"'))
    if not inputs or set(re.findall(r"[A-Za-z_]\w*", function)) - set(inputs):
        return None
    delays = [
        middle(table)
        for timing in output.inner("timing")
        for kind in ("cell_rise", "cell_fall")
        for table in timing.inner(kind)
    ]
    area = float(cell.text("area", "0"))
    return Gate(
        cell.names[0], inputs, output.names[0], function, area, unit * max(delays, default=0.0)
    )


def _genlib(function: str) -> str:
    """A function of liberty in genlib's syntax, where products have a sign."""
    spelled = re.sub(r"([\w')])\s+(?=[\w!(])", r"\1*", function.strip())
    return re.sub(r"\s", "", spelled).replace("&", "*").replace("|", "+")


def middle(table: Group) -> float:
    """The value in the middle of a timing table."""
    rows = [[float(v) for v in row.replace(",", " ").split()] for row in table.values["values"]]
    row = rows[len(rows) // 2]
    return row[len(row) // 2]


def _is_register(cell: Group) -> bool:
    """Whether a cell is a D flip-flop without set, reset or enable."""
    flops = cell.inner("ff")
    return bool(flops) and not {"clear", "preset"} & set(flops[0].values)
