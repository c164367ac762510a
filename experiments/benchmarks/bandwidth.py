"""What memory gives: a loop that reads and adds up all of an array, on one thread or several."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from compiler.codegen.llvm import jit
from compiler.runtime.kernels import aligned_copy
from compiler.target.registry import Target
from compiler.types.names import digest

_STEP = 512
"""Bytes that one round of the loop reads: eight vectors, each with a sum of its own."""


def reader(size: int, threads: int, target: Target, times: int = 1) -> Callable[[], object]:
    """A call that reads `size` bytes `times` times, which is rounded down to whole steps of every
    thread. Arrays that a cache holds are read from there from the second time on."""
    each = max(size // threads // _STEP, 1) * _STEP
    text = _text()
    symbol = "read_" + digest(text)
    address = jit.compile_text(text.replace("@read(", f"@{symbol}("), symbol, target)
    parts = [aligned_copy(np.ones(each, np.uint8)) for _ in range(threads)]
    native = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, *[ctypes.c_int64] * 2)(address)
    if threads == 1:
        return lambda: native(parts[0].ctypes.data, each // _STEP, times)
    pool = ThreadPoolExecutor(threads)

    def call() -> object:
        return list(pool.map(lambda p: native(p.ctypes.data, each // _STEP, times), parts))

    return call


def mover(size: int, target: Target, times: int, copy: bool, past: bool) -> Callable[[], object]:
    """A call that writes, on one thread, an array of `size` bytes, or of half of them copies of the
    other half, so many times; `past` the caches to memory, if that is asked for."""
    each = max((size // 2 if copy else size) // _STEP, 1) * _STEP
    text = _moving_text(copy, past)
    symbol = "move_" + digest(text)
    address = jit.compile_text(text.replace("@move(", f"@{symbol}("), symbol, target)
    parts = [aligned_copy(np.ones(each, np.uint8)) for _ in range(1 + copy)]
    native = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 2)(
        address
    )
    return lambda: native(parts[0].ctypes.data, parts[-1].ctypes.data, each // _STEP, times)


def _moving_text(copy: bool, past: bool) -> str:
    """LLVM text of `move(from, to, rounds, times)`."""
    t, how = "<8 x i64>", ", !nontemporal !0" if past else ""
    lines = ["define void @move(ptr %from, ptr %to, i64 %rounds, i64 %times) nounwind {"]
    lines += ["entry:", f"  %given = load {t}, ptr %from, align 64", "  br label %again"]
    lines += ["again:", "  %n = phi i64 [0, %entry], [%m, %over]", "  br label %loop"]
    lines += ["loop:", "  %i = phi i64 [0, %again], [%next, %loop]"]
    lines += [f"  %start = mul i64 %i, {_STEP}"]
    lines += [f"  %{x}s = getelementptr i8, ptr %{x}, i64 %start" for x in ("from", "to")]
    for k in range(8):
        value = "%given"
        if copy:
            value = f"%x{k}"
            lines.append(f"  %at{k} = getelementptr i8, ptr %froms, i64 {64 * k}")
            lines.append(f"  {value} = load volatile {t}, ptr %at{k}, align 64")
        lines.append(f"  %to{k} = getelementptr i8, ptr %tos, i64 {64 * k}")
        lines.append(f"  store {t} {value}, ptr %to{k}, align 64{how}")
    lines += ["  %next = add i64 %i, 1", "  %more = icmp slt i64 %next, %rounds"]
    lines += ["  br i1 %more, label %loop, label %over", "over:", "  %m = add i64 %n, 1"]
    # What is written is used: without this, one round would be enough.
    lines += ['  call void asm sideeffect "", "~{memory}"()']
    lines += ["  %repeat = icmp slt i64 %m, %times", "  br i1 %repeat, label %again, label %done"]
    return "\n".join([*lines, "done:", "  ret void", "}", "!0 = !{i32 1}"])


def _text() -> str:
    """LLVM text of `read(memory, rounds, times)`, the sum of all int64 numbers there, so many
    times."""
    t, lanes = "<8 x i64>", 8
    lines = ["define i64 @read(ptr %memory, i64 %rounds, i64 %times) nounwind {", "entry:"]
    lines += ["  br label %again", "again:", "  %n = phi i64 [0, %entry], [%m, %over]"]
    lines += [f"  %s_{k} = phi {t} [zeroinitializer, %entry], [%b{k}, %over]" for k in range(8)]
    lines += ["  br label %loop", "loop:", "  %i = phi i64 [0, %again], [%next, %loop]"]
    lines += [f"  %a{k} = phi {t} [%s_{k}, %again], [%b{k}, %loop]" for k in range(8)]
    lines += [
        f"  %start = mul i64 %i, {_STEP}",
        "  %row = getelementptr i8, ptr %memory, i64 %start",
    ]
    for k in range(8):
        lines.append(f"  %at{k} = getelementptr i8, ptr %row, i64 {64 * k}")
        lines.append(f"  %x{k} = load {t}, ptr %at{k}, align 64")
        lines.append(f"  %b{k} = add {t} %a{k}, %x{k}")
    lines += ["  %next = add i64 %i, 1", "  %more = icmp slt i64 %next, %rounds"]
    lines += ["  br i1 %more, label %loop, label %over", "over:", "  %m = add i64 %n, 1"]
    lines += ["  %repeat = icmp slt i64 %m, %times", "  br i1 %repeat, label %again, label %done"]
    lines += ["done:"]
    total = "%b0"
    for k in range(1, 8):
        lines.append(f"  %s{k} = add {t} {total}, %b{k}")
        total = f"%s{k}"
    lines += [f"  %e0 = extractelement {t} {total}, i64 0"]
    for k in range(1, lanes):
        lines.append(f"  %l{k} = extractelement {t} {total}, i64 {k}")
        lines.append(f"  %e{k} = add i64 %e{k - 1}, %l{k}")
    return "\n".join([*lines, f"  ret i64 %e{lanes - 1}", "}"])
