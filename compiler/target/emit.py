"""Prints LLVM IR directly: a value is (name, scalar type, lanes). Building text is ten times faster
than building instruction objects that are printed and parsed again."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from compiler.types.dtypes import DType

LLVM_BYTES = {"i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "half": 2, "float": 4, "double": 8}
_FLOATS = {16: "half", 32: "float", 64: "double"}


def llvm_type(dtype: DType) -> str:
    """LLVM's scalar type of a built-in dtype in registers (bool: i1)."""
    if dtype.is_float:
        return _FLOATS[dtype.bits]
    return "i1" if dtype.kind == "bool" else f"i{dtype.storage_bits}"


def memory_type(dtype: DType) -> str:
    """LLVM's scalar type of a built-in dtype in memory (bool: i8)."""
    return "i8" if dtype.kind == "bool" else llvm_type(dtype)


class Val(NamedTuple):
    """An SSA value or constant: `name` as written, scalar type `t`, `n` lanes."""

    name: str
    t: str
    n: int = 1

    @property
    def ty(self) -> str:
        """The LLVM type."""
        return f"<{self.n} x {self.t}>" if self.n > 1 else self.t

    def __str__(self) -> str:
        return f"{self.ty} {self.name}"


class Emitter:
    """Collects instruction lines and declarations.

    `index`: the integers that indices and distances between addresses are.
    """

    def __init__(self, index: str = "i64") -> None:
        self.index = index
        self.lines: list[str] = []
        self.decls: dict[str, str] = {}
        self.count = 0
        self.scalars: dict[str, Val] = {}
        """Vectors of `splat` -> what is in all of their lanes."""

    def fresh(self, stem: str = "v") -> str:
        """A new local name."""
        self.count += 1
        return f"%{stem}{self.count}"

    def op(self, rhs: str, t: str, n: int = 1) -> Val:
        """An instruction with a result."""
        name = self.fresh()
        self.lines.append(f"  {name} = {rhs}")
        return Val(name, t, n)

    def bin(self, op: str, a: Val, b: Val) -> Val:
        """A binary instruction."""
        return self.op(f"{op} {a}, {b.name}", a.t, a.n)

    def const(self, x: float, t: str, n: int = 1) -> Val:
        """A constant, splat over the lanes."""
        if t in ("half", "float", "double"):
            with np.errstate(over="ignore"):
                rounded: Any = {"half": np.float16, "float": np.float32, "double": np.float64}[t](x)
            if t == "half":
                text = f"0xH{rounded.view(np.uint16):04X}"
            else:
                text = f"0x{struct.unpack('<Q', struct.pack('<d', float(rounded)))[0]:016X}"
        elif t == "i1":
            text = "true" if x else "false"
        else:
            text = str(int(x))
        return Val(f"splat ({t} {text})" if n > 1 else text, t, n)

    def vector(self, xs: Sequence[int], t: str) -> Val:
        """A constant integer vector."""
        return Val(f"<{', '.join(f'{t} {x}' for x in xs)}>", t, len(xs))

    def call(self, fn: str, t: str, n: int, args: Sequence[Val], attr: str = "") -> Val:
        """Call of an intrinsic or C function, declared on the way."""
        ret = Val("", t, n).ty
        self.decls[fn] = f"declare {ret} @{fn}({', '.join(a.ty for a in args)}){attr}"
        return self.op(f"call {ret} @{fn}({', '.join(map(str, args))})", t, n)

    def splat(self, v: Val, n: int) -> Val:
        """`v` in all of `n` lanes."""
        if n == v.n:
            return v
        one = self.op(f"insertelement <{n} x {v.t}> poison, {v}, i32 0", v.t, n)
        zero = f"<{n} x i32> zeroinitializer"
        out = self.op(f"shufflevector {one}, <{n} x {v.t}> poison, {zero}", v.t, n)
        self.scalars[out.name] = v
        return out

    def shuffle(self, a: Val, b: Val, sel: Sequence[int | None]) -> Val:
        """Lanes of a and b, picked by position (None: any value)."""
        if len(sel) == 1:
            return self.op(f"extractelement {a}, i32 {sel[0]}", a.t)
        mask = ", ".join("i32 poison" if i is None else f"i32 {i}" for i in sel)
        return self.op(f"shufflevector {a}, {b}, <{len(sel)} x i32> <{mask}>", a.t, len(sel))

    def widened(self, v: Val, n: int) -> Val:
        """The lanes of a vector, and behind them any values up to `n` lanes."""
        return v if v.n == n else self.shuffle(v, v, [*range(v.n), *[None] * (n - v.n)])

    def extract(self, v: Val, lane: int) -> Val:
        """One lane as a scalar."""
        return v if v.n == 1 else self.op(f"extractelement {v}, i32 {lane}", v.t)

    def gather_lanes(self, scalars: Sequence[Val]) -> Val:
        """Scalars put together as a vector."""
        out = Val("poison", scalars[0].t, len(scalars))
        if len(scalars) == 1:
            return scalars[0]
        for k, s in enumerate(scalars):
            out = self.op(f"insertelement {out}, {s}, i32 {k}", out.t, out.n)
        return out

    def bitcast(self, v: Val, t: str, n: int = 1) -> Val:
        """The same bits as another type."""
        return v if (v.t, v.n) == (t, n) else self.op(f"bitcast {v} to {Val('', t, n).ty}", t, n)

    def as_index(self, v: Val) -> Val:
        """An integer as an index: of one wider than addresses, the lower bits."""
        return self.resized(v, self.index)

    def resized(self, v: Val, t: str) -> Val:
        """A signed integer as one of another type."""
        if v.t == t:
            return v
        how = "trunc" if LLVM_BYTES[v.t] > LLVM_BYTES[t] else "sext"
        return self.op(f"{how} {v} to {Val('', t, v.n).ty}", t, v.n)

    def any_nan(self, values: Sequence[Val]) -> Val:
        """Whether any lane of any of the values is NaN."""
        found = list[Val]()
        for n, t in sorted({(v.n, v.t) for v in values}):
            alike = [v for v in values if (v.n, v.t) == (n, t)]
            alike += alike[-1:] * (len(alike) % 2)
            masks = [
                self.op(f"fcmp uno {a}, {b.name}", "i1", n)
                for a, b in zip(alike[::2], alike[1::2], strict=True)
            ]
            mask = masks[0]
            for m in masks[1:]:
                mask = self.bin("or", mask, m)
            if n > 1:
                mask = self.call(f"llvm.vector.reduce.or.v{n}i1", "i1", 1, [mask])
            found.append(mask)
        out = found[0]
        for m in found[1:]:
            out = self.bin("or", out, m)
        return out

    def at(self, ptr: Val, off: int | Val) -> Val:
        """`ptr` plus bytes."""
        if isinstance(off, int):
            if off == 0:
                return ptr
            return self.op(f"getelementptr inbounds i8, ptr {ptr.name}, {self.index} {off}", "ptr")
        return self.op(f"getelementptr inbounds i8, ptr {ptr.name}, {off}", "ptr")

    def load(self, ptr: Val, off: int, t: str, n: int, align: int) -> Val:
        """Load of `n` lanes at `ptr` + `off` bytes."""
        return self.op(
            f"load {Val('', t, n).ty}, ptr {self.at(ptr, off).name}, align {align}", t, n
        )

    def store(self, v: Val, ptr: Val, off: int, align: int) -> None:
        """Store of all lanes at `ptr` + `off` bytes."""
        self.lines.append(f"  store {v}, ptr {self.at(ptr, off).name}, align {align}")
