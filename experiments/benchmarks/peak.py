"""What one core can do at most: a loop of multiply-adds that never leaves the registers."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from compiler.codegen.llvm import jit
from compiler.errors import UnsupportedError
from compiler.runtime.kernels import aligned_copy
from compiler.target.emit import Emitter, Val
from compiler.target.intrinsics import for_target, named_intrinsics
from compiler.target.registry import Target
from compiler.tensor.intrinsic import Intrinsic
from compiler.types.dtypes import INT16
from compiler.types.names import digest

X86_TILES, TILE_OF_ZEROS = (named_intrinsics()[name] for name in ("tdpbusd", "tilezero"))
_TURNS = 40_000
"""Long enough that the microsecond which a call costs is under one percent of the time."""


_REPEATED = 8
"""Operations of a chain in the body of a loop."""


@dataclass(frozen=True)
class Peak:
    """A call that does `operations` (a multiply and an add count as two) with `instruction`."""

    instruction: str
    operations: int
    call: Callable[[], object]


def peak(target: Target) -> Peak:
    """The fastest multiply-add that `target` has for int8, else that for float32.

    Raises:
        UnsupportedError: it has neither a dot product nor a fused multiply-add.
    """
    width = target.vector_bytes
    if {*X86_TILES.features} <= target.enabled:
        return _tiles(target)
    if target.isa in ("avx512_vnni", "avx_vnni"):
        bits = 512 if target.isa == "avx512_vnni" else 256
        width = bits // 8
        # Accumulator, then the two operands of an instruction.
        types = (f"<{width // 4} x i32>", *[f"<{width} x i8>"] * 2)
        function, name, operations = (
            f"llvm.x86.avx512.vpdpbusd.{bits}",
            f"vpdpbusd {bits}",
            2 * width,
        )
        return _measured(target, name, function, types, operations)
    every = [i for i in for_target(target) if i.emitter("llvm") and i.steps]
    wide = [i for i in every if i.operand_dtypes == [INT16, INT16]]
    return _pairs(target, wide[0]) if wide and every[0].widens else peak_float32(target)


def _pairs(target: Target, pairs: Intrinsic) -> Peak:
    """int16, which bytes are widened to, multiplied and added in pairs. LLVM does not know that the
    products are the same in every turn."""
    chains, lanes, e = 10, pairs.loops["o"], Emitter()
    emit = pairs.emitter("llvm")
    assert emit is not None
    data, weight = Val("%data", "i16", 2 * lanes), Val("%weight", "i16", 2 * lanes)
    sums = [Val(f"%sum{k}", "i32", lanes) for k in range(chains)]
    new = []
    for total in sums:
        how = f'asm sideeffect "", "={target.architecture.vector_constraint},0"'
        data = e.op(f"call {data.ty} {how}({data})", data.t, data.n)
        new.append(emit(e, total, [data], [weight]))
    heads = [
        f"  {s.name} = phi {s.ty} [zeroinitializer, %entry], [{n.name}, %loop]"
        for s, n in zip(sums, new, strict=True)
    ]
    places = [f"  %at{k} = getelementptr i8, ptr %memory, i64 {64 * k}" for k in range(chains)]
    text = "\n".join([
        *e.decls.values(), "define void @peak(i64 %turns, ptr %memory) nounwind {", "entry:",
        *places, f"  %first = load {data.ty}, ptr %at0, align 1",
        f"  %weight = load {weight.ty}, ptr %at1, align 1", "  br label %loop", "loop:",
        "  %i = phi i64 [0, %entry], [%next, %loop]",
        f"  %data = phi {data.ty} [%first, %entry], [{data.name}, %loop]", *heads, *e.lines,
        "  %next = add i64 %i, 1", "  %more = icmp slt i64 %next, %turns",
        "  br i1 %more, label %loop, label %done", "done:",
        *(f"  store {n}, ptr %at{k}, align 1" for k, n in enumerate(new)), "  ret void", "}",
    ])  # fmt: skip
    return _timed(target, pairs.name, text, chains, 2 * pairs.steps * lanes)


def _tiles(target: Target) -> Peak:
    """Products of matrices in tile registers: of eight, two hold operands."""
    chains, e = 6, Emitter()
    a, b, *sums = (_zeros(e) for _ in range(chains + 2))
    start, e.lines = e.lines, []
    held = [Val(f"%a{k}", s.t) for k, s in enumerate(sums)]
    emit = X86_TILES.emitter("llvm")
    assert emit is not None
    new = [emit(e, h, a, b) for h in held]
    heads = [
        f"  {h.name} = phi {h.t} [{s.name}, %entry], [{n.name}, %loop]"
        for h, s, n in zip(held, sums, new, strict=True)
    ]
    text = "\n".join([
        *e.decls.values(), "define void @peak(i64 %turns, ptr %memory) nounwind {", "entry:",
        *start, "  br label %loop", "loop:", "  %i = phi i64 [0, %entry], [%next, %loop]",
        *heads, *e.lines, "  %next = add i64 %i, 1", "  %more = icmp slt i64 %next, %turns",
        "  br i1 %more, label %loop, label %done", "done:", "  ret void", "}",
    ])  # fmt: skip
    return _timed(target, X86_TILES.name, text, chains, 2 * math.prod(X86_TILES.loops.values()))


def _zeros(e: Emitter) -> Val:
    emit = TILE_OF_ZEROS.emitter("llvm")
    assert emit is not None
    found = emit(e, None)
    assert isinstance(found, Val)
    return found


def peak_float32(target: Target) -> Peak:
    """The widest float32 multiply-add that `target` has.

    Raises:
        UnsupportedError: it has no fused multiply-add.
    """
    if not target.fma:
        raise UnsupportedError(f"no peak is known for {target}: it has no fused multiply-add")
    lanes = target.vector_bytes // 4
    types = (f"<{lanes} x float>",) * 3
    name = f"float32 fma {8 * target.vector_bytes}"
    return _measured(target, name, f"llvm.fma.v{lanes}f32", types, 2 * lanes)


def operation(name: str, lanes: int, chains: int, target: Target) -> Peak:
    """So many chains of an LLVM operation on float32 vectors, of which each takes the result of the
    one before; an operation on a vector counts as one."""
    t = f"<{lanes} x float>"
    lines = ["define void @peak(i64 %turns, ptr %memory) nounwind {", "entry:"]
    # Ones that LLVM does not know of: of numbers that are none, quotients may be quicker.
    lines += ["  %word = load i32, ptr %memory, align 4", "  %zero = lshr i32 %word, 31"]
    lines += ["  %none = uitofp i32 %zero to float", "  %one = fadd float %none, 1.0"]
    lines.append(f"  %first = insertelement {t} poison, float %one, i64 0")
    splat = f"<{lanes} x i32> zeroinitializer"
    lines.append(f"  %y = shufflevector {t} %first, {t} poison, {splat}")
    lines += ["  br label %loop", "loop:"]
    lines.append("  %i = phi i64 [0, %entry], [%next, %loop]")
    last = _REPEATED - 1
    for k in range(chains):
        lines.append(f"  %s{k} = phi {t} [%y, %entry], [%x{k}.{last}, %loop]")
    for j in range(_REPEATED):
        for k in range(chains):
            before = f"%x{k}.{j - 1}" if j else f"%s{k}"
            lines.append(f"  %x{k}.{j} = {name} {t} {before}, %y")
    lines += ["  %next = add i64 %i, 1", "  %more = icmp slt i64 %next, %turns"]
    lines += ["  br i1 %more, label %loop, label %done", "done:"]
    for k in range(chains):
        lines.append(f"  %at{k} = getelementptr i8, ptr %memory, i64 {64 * k}")
        lines.append(f"  store {t} %x{k}.{last}, ptr %at{k}, align 4")
    text = "\n".join([*lines, "  ret void", "}"])
    return _timed(target, f"{name} {lanes}", text, chains, _REPEATED)


def _measured(
    target: Target, name: str, function: str, types: tuple[str, ...], operations: int
) -> Peak:
    width = target.vector_bytes
    # Enough chains to hide the latency, few enough for the registers.
    chains = 20 if width == 64 or target.isa.startswith("neon") else 12
    text = _text(function, types, chains, accumulator_first="fma" not in function)
    return _timed(target, name, text, chains, operations)


def _timed(target: Target, name: str, text: str, chains: int, operations: int) -> Peak:
    """What calls the function `peak(turns, memory)` of an LLVM text."""
    symbol = "peak_" + digest(text)
    address = jit.compile_text(text.replace("@peak(", f"@{symbol}("), symbol, target)
    memory = aligned_copy(np.ones((chains + 2) * 64, np.uint8))
    function_type = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p)
    native, pointer = function_type(address), memory.ctypes.data

    def call(keep: object = memory) -> None:
        native(_TURNS, pointer)

    return Peak(name, _TURNS * chains * operations, call)


def _text(function: str, types: tuple[str, ...], chains: int, accumulator_first: bool) -> str:
    """LLVM text of `peak(turns, memory)`, which reads two operands and the accumulators from memory
    and writes the accumulators back."""
    acc, x, y = types
    lines = [f"declare {acc} @{function}({', '.join(types)})"]
    lines += ["define void @peak(i64 %turns, ptr %memory) nounwind {", "entry:"]
    for k in range(chains + 2):
        lines.append(f"  %at{k} = getelementptr i8, ptr %memory, i64 {64 * k}")
        kind, name = ((x, "x"), (y, "y"))[k] if k < 2 else (acc, f"from{k - 2}")
        lines.append(f"  %{name} = load {kind}, ptr %at{k}, align 1")
    lines += ["  br label %loop", "loop:", "  %i = phi i64 [0, %entry], [%next, %loop]"]
    for k in range(chains):
        lines.append(f"  %a{k} = phi {acc} [%from{k}, %entry], [%b{k}, %loop]")
    for k in range(chains):
        parts = [f"{x} %x", f"{y} %y"]
        parts.insert(0 if accumulator_first else 2, f"{acc} %a{k}")
        lines.append(f"  %b{k} = call {acc} @{function}({', '.join(parts)})")
    lines += ["  %next = add i64 %i, 1", "  %more = icmp slt i64 %next, %turns"]
    lines += ["  br i1 %more, label %loop, label %done", "done:"]
    lines += [f"  store {acc} %b{k}, ptr %at{k + 2}, align 1" for k in range(chains)]
    return "\n".join([*lines, "  ret void", "}"])
