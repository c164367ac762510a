"""PTX modules as data: kernels, functions, variables, instructions and their operands.

Source of the language: NVIDIA's "Parallel Thread Execution ISA".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SIZES = {"pred": 1, "b128": 16} | {
    f"{kind}{bits}": bits // 8 for kind in "bus" for bits in (8, 16, 32, 64)
} | {"f16": 2, "bf16": 2, "f32": 4, "f64": 8, "tf32": 4, "f16x2": 4, "bf16x2": 4}  # fmt: skip
"""Bytes of a value, by the name of its type."""


@dataclass(frozen=True, slots=True)
class Register:
    """A register of every lane. `bits`: 1 (a predicate), 16, 32 or 64; `index`: among those of a
    function with as many bits."""

    name: str
    bits: int
    index: int


@dataclass(frozen=True, slots=True)
class Special:
    """A register that is only read, such as `%tid.x`."""

    name: str


@dataclass(frozen=True, slots=True)
class Immediate:
    """A number in the text. `raw`: its bits, if these were given (`0f3F800000`), and how many."""

    value: int | float
    raw: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable, function or label by its name; of a variable's address, `offset` bytes on."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Address:
    """`[base + offset]`."""

    base: Register | Symbol | Immediate
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Vector:
    """`{a, b, ...}`."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """`a|b`: two results."""

    first: Operand
    second: Operand


@dataclass(frozen=True, slots=True)
class Negated:
    """`!p`, of a predicate."""

    register: Register


@dataclass(frozen=True, slots=True)
class Arguments:
    """`(a, b)` of a call."""

    items: tuple[Operand, ...]


Operand = (
    Register | Special | Immediate | Symbol | Address | Vector | Pair | Negated | Arguments
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Attributes:
        opcode: as written, `ld.global.v4.b32`.
        operands: in the order of the text.
        guard: the predicate that lanes must have to execute it, and whether it is negated.
        line: in the text, from 1.
    """

    opcode: str
    operands: tuple[Operand, ...]
    guard: tuple[Register, bool] | None
    line: int

    @property
    def parts(self) -> tuple[str, ...]:
        """The opcode between its dots."""
        return tuple(self.opcode.split("."))


@dataclass(frozen=True)
class Variable:
    """A variable, or an array.

    Attributes:
        space: `global`, `const`, `shared`, `local` or `param`.
        type: of an element.
        size: in bytes; 0: as large as the launch says (`extern .shared .b8 x[]`).
        align: in bytes.
        initial: its content, if it is given; the rest is zero.
        addresses: offsets in it where addresses of other variables are.
    """

    name: str
    space: str
    type: str
    size: int
    align: int
    initial: bytes | None = None
    addresses: tuple[tuple[int, Symbol], ...] = ()


@dataclass(frozen=True)
class Param:
    """A parameter. `bytes`: its size."""

    name: str
    type: str
    bytes: int
    align: int = 1


@dataclass
class Function:
    """A kernel or a function that kernels call.

    Attributes:
        params: in order.
        results: of a function.
        code: its instructions.
        labels: number of the instruction behind each label.
        tables: the labels of each list of branch targets.
        variables: of its own, by name.
        registers: how many there are of each number of bits.
        maxntid: threads that a block has at most (x, y, z), if that is given; `reqntid`: exactly.
        line: where it begins in the text.
    """

    name: str
    params: tuple[Param, ...] = ()
    results: tuple[Param, ...] = ()
    code: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    registers: dict[int, int] = field(default_factory=lambda: {1: 0, 16: 0, 32: 0, 64: 0})
    maxntid: tuple[int, int, int] | None = None
    reqntid: tuple[int, int, int] | None = None
    line: int = 0
    shared: int = 0


@dataclass
class Kernel(Function):
    """A function that is launched. `shared`: bytes of static shared memory that it declares or that
    its module does."""


@dataclass(eq=False)
class PtxModule:
    """A text of PTX.

    Attributes:
        target: `sm_80`.
        kernels: by name.
        functions: that kernels call, by name.
        variables: of the module, by name.
        decoded: what was launched is kept here as what it was made into.
    """

    target: str
    version: str
    kernels: dict[str, Kernel] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    decoded: dict[Any, Any] = field(default_factory=dict, repr=False)
