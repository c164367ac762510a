"""Patterns to bytecode: what asks a value for its forms, and takes it apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from compiler.types.data import Anything, Form, Named, Pattern
from compiler.vm.bytecode import Field, GetField, GetTag, Instruction, Jump, UnlessTag


@dataclass
class Taken:
    """The code of one pattern, as it is written.

    Attributes:
        fresh: gives a register that nobody has.
        code: where instructions go.
        tags: register of a value -> one that holds its tag already.
        variables: the registers of the pattern's variables.
        tests: places in the code where a test is still to be written, which goes on elsewhere if
            the value has another form; what it tests.
    """

    fresh: Callable[[], int]
    code: list[Instruction]
    tags: Mapping[int, int]
    variables: list[int] = field(default_factory=list)
    tests: list[tuple[int, int, str]] = field(default_factory=list)

    def apart(self, p: Pattern, value: int) -> None:
        """Ask the value in a register for its forms, and take it apart."""
        if isinstance(p, Anything):
            return
        if isinstance(p, Named):
            self.variables.append(value)
            return
        if isinstance(p, Form):
            tag = self.tags.get(value, -1)
            if tag < 0:
                tag = self.fresh()
                self.code.append(GetTag(tag, value))
            self.code.append(Jump(-1))
            self.tests.append((len(self.code) - 1, tag, p.constructor))
        for k, inner in enumerate(p.fields):
            if not isinstance(inner, Anything):
                out = self.fresh()
                get = GetField if isinstance(p, Form) else Field
                self.code.append(get(out, value, k))
                self.apart(inner, out)

    def otherwise(self, to: int) -> None:
        """Values of other forms go on there."""
        for place, tag, constructor in self.tests:
            self.code[place] = UnlessTag(tag, constructor, to)
