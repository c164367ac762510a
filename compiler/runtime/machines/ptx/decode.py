"""Instructions become functions of a wave; operands become readers and writers of registers."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from compiler.errors import DtypelabError
from compiler.runtime.machines.ptx.program import (
    SIZES,
    Address,
    Function,
    Immediate,
    Instruction,
    Negated,
    Operand,
    PtxModule,
    Register,
    Special,
    Symbol,
    Vector,
)
from compiler.runtime.machines.ptx.wave import Wave

Array = npt.NDArray[Any]
Handler = Callable[[Wave], "int | None"]
"""Executes an instruction for the active lanes. Returns None: these go on with the next one; a
number: with that one; `MOVED`: `Wave.moved` says where they go on; `PARKED`: they wait here for
other lanes of their warps."""
Reader = Callable[[Wave], Array]
Writer = Callable[[Wave, Array], None]
Builder = Callable[["Decoder", Instruction], Handler]

MOVED, PARKED = -1, -2
HANDLERS: dict[str, Builder] = {}
"""By the first part of the opcode."""

_VIEWS = {"pred": "b1", "f16": "f16", "bf16": "u16", "f32": "f32", "f64": "f64", "tf32": "u32",
          "f16x2": "u32", "bf16x2": "u32"}  # fmt: skip
_CLOCKS = ("%clock", "%clock64", "%clock_hi", "%globaltimer", "%globaltimer_lo")


class Unknown(DtypelabError):
    """An instruction, or a form of it, that the interpreter does not know."""


def opcode(*names: str) -> Callable[[Builder], Builder]:
    """Register what makes handlers of instructions."""

    def register(builder: Builder) -> Builder:
        for name in names:
            HANDLERS[name] = builder
        return builder

    return register


def view_of(kind: str) -> str:
    """Which of `wave.VIEWS` shows registers as values of a type."""
    found = _VIEWS.get(kind)
    if found is None:
        bits = max(8 * SIZES[kind], 16)
        found = f"{'s' if kind[0] == 's' else 'u'}{bits}"
    return found


def dtype_of(kind: str) -> Any:
    """The dtype of arrays of a type: of bits, unsigned integers."""
    if kind == "pred":
        return np.bool_
    if kind in ("f16", "f32", "f64"):
        return {"f16": np.float16, "f32": np.float32, "f64": np.float64}[kind]
    return np.dtype(f"{'i' if kind[0] == 's' else 'u'}{SIZES[kind]}").type


class Decoder:
    """Makes handlers of the instructions of one function.

    Attributes:
        symbols: address of each variable, in its own space.
        number: of the instruction that is decoded.
    """

    def __init__(self, function: Function, module: PtxModule, symbols: dict[str, int]):
        self.function, self.module, self.symbols = function, module, symbols
        self.number = 0

    def unknown(self, why: str = "") -> NoReturn:
        """The form of the instruction is not known."""
        raise Unknown(why)

    def only(self, modifiers: Collection[str], known: Collection[str]) -> None:
        """Refuse what is not among the known modifiers."""
        for m in modifiers:
            if m not in known:
                self.unknown(f"modifier .{m}")

    def kind(self, name: str) -> str:
        """The name of a type, checked."""
        if name not in SIZES:
            self.unknown(f"type .{name}")
        return name

    def constant(self, value: int | float, kind: str, raw: tuple[int, int] | None = None) -> Array:
        """A value of a type, of shape (1,)."""
        dtype = dtype_of(kind)
        if kind == "pred":
            return np.array([bool(value)])
        bits = 8 * SIZES[kind]
        if dtype in (np.float16, np.float32, np.float64):
            if raw is not None and raw[1] == bits:
                return np.array([raw[0]], f"u{bits // 8}").view(dtype)
            if isinstance(value, int) and raw is None:  # a bit pattern
                return np.array([value & (1 << bits) - 1], f"u{bits // 8}").view(dtype)
            return np.array([value], np.float64).astype(dtype)
        if isinstance(value, float):
            if raw is None or raw[1] != bits:
                self.unknown(f"the number {value} where an integer is expected")
            value = raw[0]
        return np.array([value & (1 << bits) - 1], f"u{bits // 8}").view(dtype)

    def read(self, operand: Operand, kind: str) -> Reader:
        """What gives the active lanes' values of an operand."""
        if isinstance(operand, Register):
            return self._register(operand, kind)
        if isinstance(operand, Immediate):
            value = self.constant(operand.value, kind, operand.raw)
            return lambda st: value
        if isinstance(operand, Special):
            return self._special(operand.name, kind)
        if isinstance(operand, Negated):
            inner = self.read(operand.register, kind)
            return lambda st: ~inner(st)
        if isinstance(operand, Symbol):
            if operand.name == "WARP_SZ":
                warp = self.constant(32, kind)
                return lambda st: warp
            if operand.name in self.symbols:
                at = self.constant(self.symbols[operand.name] + operand.offset, kind)
                return lambda st: at
            self.unknown(f"{operand.name!r} is not declared")
        if not isinstance(operand, Vector) or len(operand.items) < 2:
            self.unknown("an operand of another kind is expected")
        return self._packed(operand, kind)

    def _register(self, r: Register, kind: str) -> Reader:
        view, i, bits = view_of(kind), r.index, 1 if kind == "pred" else 8 * SIZES[kind]
        if r.bits == bits:
            return lambda st: st.views[view][i][st.act]
        if r.bits < bits or r.bits == 1:
            self.unknown(f"{r.name} does not hold a .{kind}")
        whole, dtype = f"u{r.bits}", dtype_of(kind)
        if np.dtype(dtype).kind == "f":
            narrow = np.dtype(f"u{SIZES[kind]}")
            return lambda st: st.views[whole][i][st.act].astype(narrow).view(dtype)
        return lambda st: st.views[whole][i][st.act].astype(dtype)

    def _special(self, name: str, kind: str) -> Reader:
        dtype = dtype_of(kind)
        if name in _CLOCKS:
            return lambda st: np.array([st.statistics.steps], np.int64).astype(dtype)
        if name in ("%dynamic_smem_size", "%total_smem_size"):
            return lambda st: np.array([st.dynamic], dtype)

        def read(st: Wave) -> Array:
            return st.special[name][st.act].astype(dtype, copy=False)

        probe = ("%tid.", "%ntid.", "%ctaid.", "%nctaid.", "%lanemask_")
        fixed = ("%laneid", "%warpid", "%nwarpid", "%smid", "%nsmid", "%gridid")
        if not name.startswith(probe) and name not in fixed:
            self.unknown(f"special register {name}")
        return read

    def _packed(self, vector: Vector, kind: str) -> Reader:
        """Values side by side in one, the first at its low end."""
        n, size = len(vector.items), SIZES[kind]
        part = f"b{8 * size // n}"
        if part not in SIZES:
            self.unknown(f"{n} parts of a .{kind}")
        readers = [self.read(x, part) for x in vector.items]
        narrow, dtype = dtype_of(part), dtype_of(kind)

        def read(st: Wave) -> Array:
            out: Array = np.empty((st.count, n), narrow)
            for k, r in enumerate(readers):
                out[:, k] = r(st)
            whole: Array = out.view(dtype)
            return whole.reshape(-1)

        return read

    def write(self, operand: Operand, kind: str) -> Writer:
        """What stores values of the active lanes."""
        if isinstance(operand, Symbol) and operand.name == "_":
            return lambda st, values: None
        if isinstance(operand, Vector) and len(operand.items) > 1:
            return self._unpacked(operand, kind)
        if not isinstance(operand, Register):
            self.unknown("a register is expected for the result")
        i, bits = operand.index, 1 if kind == "pred" else 8 * SIZES[kind]
        if operand.bits == bits:
            view = view_of(kind)

            def store(st: Wave, values: Array) -> None:
                st.views[view][i][st.act] = values

            return store
        if operand.bits < bits or operand.bits == 1:
            self.unknown(f"{operand.name} cannot hold a .{kind}")
        wide = f"{'s' if kind[0] == 's' else 'u'}{operand.bits}"
        raw = np.dtype(f"u{SIZES[kind]}") if np.dtype(dtype_of(kind)).kind == "f" else None

        def extend(st: Wave, values: Array) -> None:
            st.views[wide][i][st.act] = values if raw is None else values.view(raw)

        return extend

    def _unpacked(self, vector: Vector, kind: str) -> Writer:
        n = len(vector.items)
        part = f"b{8 * SIZES[kind] // n}"
        if part not in SIZES:
            self.unknown(f"{n} parts of a .{kind}")
        writers = [self.write(x, part) for x in vector.items]
        narrow = dtype_of(part)

        def store(st: Wave, values: Array) -> None:
            parts = np.ascontiguousarray(values).view(narrow).reshape(-1, n)
            for k, w in enumerate(writers):
                w(st, parts[:, k])

        return store

    def address(self, operand: Operand) -> Reader:
        """Addresses of an operand `[base + offset]`, as unsigned integers of 64 bits."""
        if not isinstance(operand, Address):
            self.unknown("an address is expected")
        base, offset = operand.base, operand.offset
        if isinstance(base, Register):
            read = self.read(base, f"u{base.bits}")
            step = np.uint64(offset & 2**64 - 1)
            if base.bits == 64:
                if not offset:
                    return read
                return lambda st: read(st) + step
            return lambda st: read(st).astype(np.uint64) + step
        if isinstance(base, Immediate):
            fixed = int(base.value)
        elif base.name in self.symbols:
            fixed = self.symbols[base.name] + base.offset
        else:
            self.unknown(f"{base.name!r} is not declared")
        at = np.array([fixed + offset & 2**64 - 1], np.uint64)
        return lambda st: at

    def items(self, operand: Operand) -> tuple[Operand, ...]:
        """The operands in braces, or one alone."""
        return operand.items if isinstance(operand, Vector) else (operand,)
