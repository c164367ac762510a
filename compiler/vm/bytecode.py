"""Instructions of the virtual machine, and how they print.

A function has numbered registers, the first of which hold its operands. They hold tensors, tuples,
closures and values of algebraic data types. Everything that computes with numbers is in regions,
which are compiled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from compiler.symbolic import Dim
from compiler.types.tensor_types import TensorType, Type, shape_text


def _registers(numbers: tuple[int, ...]) -> str:
    return ", ".join(f"r{k}" for k in numbers)


@dataclass(frozen=True)
class Run:
    """Run a compiled region."""

    outs: tuple[int, ...]
    region: int
    args: tuple[int, ...]

    def __str__(self) -> str:
        head = f"{_registers(self.outs)} = " if self.outs else ""
        return f"{head}run region{self.region}({_registers(self.args)})"


@dataclass(frozen=True)
class Load:
    """Load a constant."""

    out: int
    constant: int

    def __str__(self) -> str:
        return f"r{self.out} = constant{self.constant}"


@dataclass(frozen=True)
class Move:
    """Copy registers, all at once."""

    outs: tuple[int, ...]
    sources: tuple[int, ...]

    def __str__(self) -> str:
        return f"{_registers(self.outs)} = {_registers(self.sources)}"


@dataclass(frozen=True)
class Pack:
    """Make a tuple."""

    out: int
    fields: tuple[int, ...]

    def __str__(self) -> str:
        return f"r{self.out} = ({_registers(self.fields)})"


@dataclass(frozen=True)
class Field:
    """Take a field of a tuple."""

    out: int
    source: int
    index: int

    def __str__(self) -> str:
        return f"r{self.out} = r{self.source}.{self.index}"


@dataclass(frozen=True)
class Allocate:
    """Make a value of an algebraic data type; its tag is the name of the constructor."""

    out: int
    constructor: str
    fields: tuple[int, ...]

    def __str__(self) -> str:
        return f"r{self.out} = {self.constructor}({_registers(self.fields)})"


@dataclass(frozen=True)
class GetTag:
    """Take the tag of a value of an algebraic data type."""

    out: int
    source: int

    def __str__(self) -> str:
        return f"r{self.out} = tag r{self.source}"


@dataclass(frozen=True)
class UnlessTag:
    """Go on elsewhere if a tag is another one."""

    tag: int
    constructor: str
    to: int

    def __str__(self) -> str:
        return f"unless r{self.tag} is {self.constructor} goto {self.to}"


@dataclass(frozen=True)
class GetField:
    """Take a field of a value of an algebraic data type."""

    out: int
    source: int
    index: int

    def __str__(self) -> str:
        return f"r{self.out} = field {self.index} of r{self.source}"


@dataclass(frozen=True)
class Jump:
    """Go on elsewhere."""

    to: int

    def __str__(self) -> str:
        return f"goto {self.to}"


@dataclass(frozen=True)
class Unless:
    """Go on elsewhere if a flag is false."""

    flag: int
    to: int

    def __str__(self) -> str:
        return f"unless r{self.flag} goto {self.to}"


@dataclass(frozen=True)
class Start:
    """Begin to count the turns of a loop."""

    turns: int

    def __str__(self) -> str:
        return f"r{self.turns} = no turns"


@dataclass(frozen=True)
class Turn:
    """Count a turn of the loop whose value is called `name`, unless there were too many already."""

    turns: int
    name: str
    origins: tuple[str, ...]

    def __str__(self) -> str:
        return f"r{self.turns} = another turn"


@dataclass(frozen=True)
class Invoke:
    """Call a function."""

    out: int
    function: int
    args: tuple[int, ...]

    def __str__(self) -> str:
        return f"r{self.out} = call f{self.function}({_registers(self.args)})"


@dataclass(frozen=True)
class InvokeClosure:
    """Call a closure."""

    out: int
    closure: int
    args: tuple[int, ...]

    def __str__(self) -> str:
        return f"r{self.out} = call r{self.closure}({_registers(self.args)})"


@dataclass(frozen=True)
class Close:
    """Make a closure: a function whose first operands are given now. It knows the dimensions that
    are known here, if it is `local`: one that is written here."""

    out: int
    function: int
    captured: tuple[int, ...]
    local: bool

    def __str__(self) -> str:
        return f"r{self.out} = close f{self.function}({_registers(self.captured)})"


@dataclass(frozen=True)
class Bind:
    """Find dimensions in the shape of a value, and check those that are known; `what` names the
    value in errors."""

    source: int
    type: Type
    what: str

    def __str__(self) -> str:
        return f"bind r{self.source}: {self.type}"


@dataclass(frozen=True)
class BindSizes:
    """Find dimensions in numbers, and check those that are known; `what` names them in errors, and
    `claim`, if any, is all that these say of what was known."""

    source: int
    shape: tuple[Dim, ...]
    what: str
    claim: str = ""

    def __str__(self) -> str:
        return f"bind r{self.source} = {shape_text(self.shape)}"


@dataclass(frozen=True)
class Forget:
    """Forget dimensions: a branch or an iteration that found them is over."""

    dims: tuple[str, ...]

    def __str__(self) -> str:
        return f"forget {', '.join(self.dims)}"


@dataclass(frozen=True)
class Rows:
    """Start to collect tensors."""

    out: int

    def __str__(self) -> str:
        return f"r{self.out} = rows"


@dataclass(frozen=True)
class Append:
    """Collect one more tensor."""

    rows: int
    source: int

    def __str__(self) -> str:
        return f"append r{self.source} to r{self.rows}"


@dataclass(frozen=True)
class Stack:
    """Stack collected tensors, each of type `row`, along a new first axis."""

    out: int
    rows: int
    row: TensorType

    def __str__(self) -> str:
        return f"r{self.out} = stack r{self.rows}"


@dataclass(frozen=True)
class Return:
    """Return to the caller."""

    results: tuple[int, ...]

    def __str__(self) -> str:
        return f"return {_registers(self.results)}"


Instruction = (
    Run
    | Load
    | Move
    | Pack
    | Field
    | Allocate
    | GetTag
    | UnlessTag
    | GetField
    | Jump
    | Unless
    | Start
    | Turn
    | Invoke
    | InvokeClosure
    | Close
    | Bind
    | BindSizes
    | Forget
    | Rows
    | Append
    | Stack
    | Return
)


INSTRUCTIONS: tuple[type, ...] = get_args(Instruction)


@dataclass(frozen=True)
class VMFunction:
    """A function's code.

    Attributes:
        name: for people; closures are named after the function they are in.
        params: names and types of its operands, which are in the first registers.
        results: types of what it returns.
        registers: how many it uses.
        code: instructions; places to go on are positions in it.
    """

    name: str
    params: tuple[tuple[str, Type], ...]
    results: tuple[Type, ...]
    registers: int
    code: tuple[Instruction, ...]

    def __str__(self) -> str:
        params = ", ".join(f"r{k} %{name}: {t}" for k, (name, t) in enumerate(self.params))
        results = ", ".join(map(str, self.results))
        lines = [f"{self.name}({params}) -> {results}, {self.registers} registers"]
        lines += [f"  {k:3d}  {x}" for k, x in enumerate(self.code)]
        return "\n".join(lines)
