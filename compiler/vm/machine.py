"""Runs bytecode. Calls have a stack of their own, so that recursion may be deep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from compiler.boundary.data import Datum
from compiler.boundary.shapes import bind_dims, match_shape, stack_rows
from compiler.errors import InputError, OutOfMemoryError
from compiler.interpret.graph import MOST_FRAMES
from compiler.interpret.iterations import endless, most_iterations
from compiler.runtime.executable import GraphExecutable
from compiler.symbolic import Var as Dim
from compiler.types.dtypes import Array
from compiler.vm.bytecode import (
    Allocate,
    Append,
    Bind,
    BindSizes,
    Close,
    Field,
    Forget,
    GetField,
    GetTag,
    Instruction,
    Invoke,
    InvokeClosure,
    Jump,
    Load,
    Move,
    Pack,
    Return,
    Rows,
    Run,
    Stack,
    Start,
    Turn,
    Unless,
    UnlessTag,
    VMFunction,
)


@dataclass(frozen=True)
class Image:
    """All that a machine needs.

    Attributes:
        functions: the code; the first one is `main`.
        regions: compiled operators, by the numbers that instructions give them.
        constants: tensors that instructions load.
    """

    functions: tuple[VMFunction, ...]
    regions: tuple[GraphExecutable, ...]
    constants: tuple[Array, ...]


@dataclass(frozen=True)
class Closure:
    """A function whose first operands are given."""

    function: VMFunction
    captured: tuple[Any, ...]
    dims: dict[Dim, int]


@dataclass(slots=True)
class Frame:
    """A call under way."""

    function: VMFunction
    registers: list[Any]
    dims: dict[Dim, int]
    out: int
    at: int = 0


@dataclass
class Machine:
    """One run of an image."""

    image: Image
    stack: list[Frame] = field(default_factory=list)
    most_turns: int = field(default_factory=most_iterations)

    def run(self, args: Sequence[Any], dims: Mapping[Dim, int]) -> list[Any]:
        """What `main` returns for operands of its types, and the dimensions they show.

        Raises:
            InputError: sizes found at run time contradict each other, or a recursion is too deep.
        """
        self.enter(self.image.functions[0], args, dict(dims), -1)
        while True:
            frame = self.stack[-1]
            instruction = frame.function.code[frame.at]
            frame.at += 1
            if isinstance(instruction, Return):
                results = [frame.registers[k] for k in instruction.results]
                self.stack.pop()
                if not self.stack:
                    return results
                value = results[0] if len(results) == 1 else tuple(results)
                self.stack[-1].registers[frame.out] = value
            else:
                self.execute(instruction, frame)

    def enter(
        self, function: VMFunction, args: Sequence[Any], dims: dict[Dim, int], out: int
    ) -> None:
        """Begin a call whose result goes to register `out` of the caller."""
        if len(self.stack) >= MOST_FRAMES:
            raise InputError(f"more than {MOST_FRAMES} calls are under way: is there an end to it?")
        registers = [*args, *[None] * (function.registers - len(args))]
        self.stack.append(Frame(function, registers, dims, out))

    def execute(self, i: Instruction, frame: Frame) -> None:
        """Anything but a return."""
        r = frame.registers
        match i:
            case Run():
                made = self.region(i.region, [r[k] for k in i.args], frame)
                for k, value in zip(i.outs, made, strict=False):
                    r[k] = value
            case Load():
                r[i.out] = self.image.constants[i.constant]
            case Move():
                for k, value in zip(i.outs, [r[k] for k in i.sources], strict=True):
                    r[k] = value
            case Pack():
                r[i.out] = tuple(r[k] for k in i.fields)
            case Field():
                r[i.out] = r[i.source][i.index]
            case Allocate():
                r[i.out] = Datum(i.constructor, tuple(r[k] for k in i.fields))
            case GetTag():
                r[i.out] = r[i.source].constructor
            case UnlessTag():
                if r[i.tag] != i.constructor:
                    frame.at = i.to
            case GetField():
                r[i.out] = r[i.source].fields[i.index]
            case Jump():
                frame.at = i.to
            case Unless():
                if not r[i.flag]:
                    frame.at = i.to
            case Start():
                r[i.turns] = 0
            case Turn():
                if r[i.turns] >= self.most_turns:
                    raise endless(i.name, i.origins, self.most_turns)
                r[i.turns] += 1
            case Invoke():
                self.enter(self.image.functions[i.function], [r[k] for k in i.args], {}, i.out)
            case InvokeClosure():
                f: Closure = r[i.closure]
                args = [*f.captured, *(r[k] for k in i.args)]
                self.enter(f.function, args, dict(f.dims), i.out)
            case Close():
                captured = tuple(r[k] for k in i.captured)
                dims = dict(frame.dims) if i.local else {}
                r[i.out] = Closure(self.image.functions[i.function], captured, dims)
            case Bind():
                bind_dims(i.type, r[i.source], frame.dims, i.what)
            case BindSizes():
                match_shape(i.shape, r[i.source], frame.dims, i.what)
            case Forget():
                for name in i.dims:
                    frame.dims.pop(Dim(name), None)
            case Rows():
                r[i.out] = []
            case Append():
                r[i.rows].append(r[i.source])
            case Stack():
                r[i.out] = stack_rows(r[i.rows], i.row, frame.dims)

    def region(self, index: int, arrays: list[Array], frame: Frame) -> list[Array]:
        """What a region makes of tensors."""
        region = self.image.regions[index]
        unknown = [str(d) for d in region.program.dims if d not in frame.dims]
        if unknown:
            where = frame.function.name
            raise InputError(f"{where}: the size of dimension {', '.join(unknown)} is not known")
        try:
            return region.run(arrays, frame.dims)
        except (MemoryError, ValueError) as e:  # numpy says the latter of sizes beyond all memory
            given = ", ".join(f"{d} = {frame.dims[d]}" for d in region.program.dims)
            raise OutOfMemoryError(
                f"{frame.function.name}: no memory for sizes of {given}: {e}"
            ) from None
