"""The Verilog that `datatypes.hardware` writes, read back: modules as Python functions of integers.

It knows only what is written: one operation a wire, on names, parts of them, and constants. A
register is read as a wire, so that a pipeline gives what it gives in the end.
"""

from __future__ import annotations

import re
from collections.abc import Callable

OPERAND = r"(\d+'h[0-9a-f]+|\w+(?:\[\d+(?::\d+)?\])?)"
MODULE = re.compile(r"^module (\w+)\(\n(.*?)\);\n(.*?)^endmodule", re.M | re.S)
PORT = re.compile(r"(input|output) wire \[(\d+):0\] (\w+)")


def modules(text: str) -> dict[str, Callable[..., int]]:
    """Module name -> a function of its inputs, by name."""
    return {name: _function(ports, body) for name, ports, body in MODULE.findall(text)}


def ports(text: str) -> dict[str, dict[str, tuple[str, int]]]:
    """Module name -> port -> (direction, width)."""
    return {
        name: {port: (way, int(top) + 1) for way, top, port in PORT.findall(listed)}
        for name, listed, _ in MODULE.findall(text)
    }


def _function(listed: str, body: str) -> Callable[..., int]:
    widths = {port: int(top) + 1 for _, top, port in PORT.findall(listed)}
    lines = []
    for line in body.splitlines():
        line = line.strip()
        if found := re.fullmatch(r"(?:wire|reg) \[(\d+):0\] (\w+)(?: = (.*))?;", line):
            top, name, expression = found.groups()
            widths[name] = int(top) + 1
            if expression is not None:
                lines.append(
                    f"{name} = int({_value(expression, widths)}) & {2 ** widths[name] - 1}"
                )
        elif found := re.fullmatch(r"(\w+) <= (\S+);", line):
            lines.append((found[1], f"{found[1]} = {_operand(found[2], widths)[0]}"))
        elif found := re.fullmatch(r"assign (\w+) = (\S+);", line):
            lines.append(f"return {_operand(found[2], widths)[0]}")
        else:
            assert line in ("always @(posedge clk) begin", "end"), line
    inputs = [port for way, _, port in PORT.findall(listed) if way == "input"]
    text = "".join(f"    {line}\n" for line in _ordered(lines))
    space: dict[str, Callable[..., int]] = {}
    exec(f"def module({', '.join(inputs)}):\n{text}", space)
    return space["module"]


def _ordered(lines: list[str | tuple[str, str]]) -> list[str]:
    """Statements in which registers, whose lines come last, stand before they are used."""
    late = dict(line for line in lines if isinstance(line, tuple))
    done: list[str] = []
    for line in lines:
        if isinstance(line, str):
            for name in re.findall(r"\bheld\w*", line):
                _place(name, late, done)
            done.append(line)
    return done


def _place(name: str, late: dict[str, str], done: list[str]) -> None:
    if name in late:
        line = late.pop(name)
        for other in re.findall(r"\bheld\w*", line.partition("=")[2]):
            _place(other, late, done)
        done.append(line)


def _operand(text: str, widths: dict[str, int]) -> tuple[str, int]:
    """(a Python expression, width)."""
    if found := re.fullmatch(r"(\d+)'h([0-9a-f]+)", text):
        return str(int(found[2], 16)), int(found[1])
    found = re.fullmatch(r"(\w+)(?:\[(\d+)(?::(\d+))?\])?", text)
    assert found, text
    name, high, low = found.groups()
    if high is None:
        return name, widths[name]
    width = int(high) - int(low or high) + 1
    assert int(high) < widths[name]
    return f"({name} >> {low or high} & {2**width - 1})", width


def _value(text: str, widths: dict[str, int]) -> str:
    """The Python expression of a wire's."""

    def match(pattern: str) -> list[tuple[str, int]]:
        found = re.fullmatch(pattern.replace("@", OPERAND), text)
        return [_operand(part, widths) for part in found.groups()] if found else []

    def number(x: tuple[str, int]) -> str:
        return f"({x[0]} - ({x[0]} >> {x[1] - 1} << {x[1]}))"

    if found := re.fullmatch(rf"\{{(\d+)\{{{OPERAND}\}}\}}", text):
        return f"{_operand(found[2], widths)[0]} * {2 ** int(found[1]) - 1}"
    if text.startswith("{"):
        value = "0"
        for part in text[1:-1].split(", "):
            piece, width = _operand(part, widths)
            value = f"({value} << {width} | {piece})"
        return value
    if both := match(r"\$signed\(@\) < \$signed\(@\)"):
        return f"{number(both[0])} < {number(both[1])}"
    if both := match(r"\$signed\(@\) \* \$signed\(@\)"):
        return f"{number(both[0])} * {number(both[1])}"
    if both := match(r"\$signed\(@\) >>> @"):
        return f"{number(both[0])} >> {both[1][0]}"
    if one := match("~@"):
        return f"~{one[0][0]}"
    if one := match(r"\|@"):
        return f"{one[0][0]} != 0"
    if one := match("&@"):
        return f"{one[0][0]} == {2 ** one[0][1] - 1}"
    if three := match(r"@ \? @ : @"):
        assert three[1][1] == three[2][1]
        return f"{three[1][0]} if {three[0][0]} else {three[2][0]}"
    if one := match("@"):
        return one[0][0]
    found = re.fullmatch(rf"{OPERAND} (<<|>>|==|<|[-+*&|^]) {OPERAND}", text)
    assert found, text
    a, b = (_operand(part, widths) for part in (found[1], found[3]))
    assert found[2] in ("<<", ">>") or a[1] == b[1], text
    return f"{a[0]} {found[2]} {b[0]}"
