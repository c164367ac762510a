"""Kernels that are run one by one, on random data, again and again."""

from __future__ import annotations

import ctypes
import statistics
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from compiler.codegen.backend import Code
from compiler.ir.expr import Constant
from compiler.lowering.legalize import Legalized
from compiler.runtime.kernels import Kernel
from compiler.runtime.loader import loader_of
from compiler.symbolic import IntLike, Var
from compiler.target.registry import Target
from compiler.tensor.expr import Buffer, Gather, walk
from compiler.tensor.packed_arrays import ALIGN, LARGE_PAGE, aligned_empty
from compiler.tensor.stmt import SLACK, stores
from compiler.types.dtypes import Array
from compiler.types.names import digest

SYMBOLIC_SIZE = 1
"""Value of symbolic dimensions."""
COLD_CALLS = 5
"""Calls that one sample is taken from of a kernel's time in cold caches."""
FEW_CALLS = 3
"""The same of kernels from `LONG_NS` on, which vary less."""
SECOND_CACHE = 2 << 20
"""Bytes of a core's second cache, where the system does not tell."""
MONOTONIC, THREAD = 1, 3
"""Linux's numbers of its monotonic clock, which is read at once, and of the clock of a thread's own
time on the processor, for which it must be asked."""
LONG_NS = 100_000
"""Nanoseconds from which on kernels in cold caches are timed by the thread's clock: shorter ones
are seldom interrupted, and would be timed together with asking for it."""
LONGER_NS = 300_000
"""Nanoseconds from which on one call is a sample: three agree better, but cost three times as much,
and comparisons were as exact in half the time."""


@cache
def second_cache() -> int:
    """Bytes of the second cache of a core of this machine."""
    try:
        text = Path("/sys/devices/system/cpu/cpu0/cache/index2/size").read_text().strip()
        return int(text.removesuffix("K")) << 10
    except (OSError, ValueError):
        return SECOND_CACHE


def times_cold() -> bool:
    """Whether kernels can be timed in cold caches: there is a clock that they can read."""
    return sys.platform == "linux"


def random_arrays(legal: Legalized, seed: int) -> list[Array]:
    """An array for every input of an unscheduled loop nest that is no constant: standard normal
    floats, bytes over their whole range, other integers below 1000. Where other integers may be
    positions to read at they are zeros."""
    f = legal.func
    rng = np.random.default_rng(seed)
    gathers = any(isinstance(n, Gather) for s in stores(f.body) for n in walk(s.value))
    arrays = []
    for b, atom in zip(f.params, legal.inputs, strict=False):
        if isinstance(atom, Constant):
            continue
        shape, storage = shape_of(b.shape), b.dtype.storage
        values: Array
        if np.issubdtype(storage, np.floating):
            values = rng.standard_normal(shape)
        elif storage.itemsize == 1:
            low = -128 if storage.kind == "i" else 0
            values = rng.integers(low, low + (2 if storage.kind == "b" else 256), shape)
        elif gathers:
            values = np.zeros(shape)
        else:
            values = rng.integers(0, 1000, shape)
        arrays.append(values.astype(storage))
    places = Room().laid([a.nbytes for a in arrays])
    return [_filled(raw, a) for raw, a in zip(places, arrays, strict=True)]


def shape_of(dims: Sequence[IntLike]) -> tuple[int, ...]:
    """Sizes as numbers, those that are symbolic `SYMBOLIC_SIZE`."""
    sizes = []
    for d in dims:
        if isinstance(d, int):
            sizes.append(d)
        else:
            names: set[Var] = d.vars() if not isinstance(d, Var) else {d}
            values = dict.fromkeys(names, SYMBOLIC_SIZE)
            sizes.append(SYMBOLIC_SIZE if isinstance(d, Var) else int(d.value(values)))
    return tuple(sizes)


def _filled(raw: Array, a: Array) -> Array:
    """A copy of an array, in given memory."""
    out: Array = raw.view(a.dtype).reshape(a.shape)
    out[...] = a
    return out


LARGE = 256 << 10
"""Bytes of data that are laid into large pages, as those of networks' workspaces are. In small ones
chance says which of them share a place in a cache: a kernel took times up to 38 % apart."""


class Room:
    """Memory for arrays of kernels that take turns: what is laid out anew lies where the last was,
    so that nobody is quicker for the place of his data."""

    def __init__(self) -> None:
        self._block = np.zeros(0, np.uint8)

    def laid(self, sizes: Sequence[int]) -> list[Array]:
        """Memory of so many bytes each, aligned, and that kernels may read `SLACK` bytes past, as
        they may in a workspace."""
        starts = [0]
        for n in sizes:
            starts.append(starts[-1] + -(-(n + SLACK) // ALIGN) * ALIGN)
        if starts[-1] > self._block.nbytes:
            size = max(starts[-1], 2 * LARGE_PAGE) if starts[-1] >= LARGE else starts[-1]
            self._block = aligned_empty((size,), np.dtype(np.uint8))
            self._block[: starts[-1]] = 0
        return [self._block[at : at + n] for at, n in zip(starts, sizes, strict=False)]


def _in_large(a: Array) -> Array:
    """A constant in large pages, unless it is small, or there already."""
    return _filled(Room().laid([a.nbytes])[0], a) if LARGE <= a.nbytes < LARGE_PAGE // 2 else a


class KernelRun:
    """A compiled kernel with its memory, ready to be called again and again.

    Args:
        kernel: the kernel.
        target: what it is compiled for.
        inputs: one array per input that is no constant; those come from the kernel.
        written: its output parameters, if they are not to be read from its loops.
        room: where it writes, which kernels that do not run at once may share.
        cold: whether it is to be timed as in a network that does not fit into a core's caches: with
            its inputs and results there, as the kernels before have left them, but not its
            constants.
    """

    def __init__(
        self,
        kernel: Kernel,
        target: Target,
        inputs: Sequence[Array],
        written: Sequence[Buffer] | None = None,
        room: Room | None = None,
        cold: bool = False,
    ):
        self.cold = cold
        sizes = dict.fromkeys(kernel.dims, SYMBOLIC_SIZE)
        if written is None:
            written = kernel.func.params[len(kernel.arguments) :][: kernel.outputs]
        blank = [np.zeros(shape_of(b.shape), b.dtype.storage) for b in written]
        scratch = [int(size.value(sizes)) for size in kernel.temps]
        laid = (room or Room()).laid([*(a.nbytes for a in blank), *scratch])
        self.outputs = [_filled(raw, a) for raw, a in zip(laid, blank, strict=False)]
        rest = iter(inputs)
        given = [next(rest) if a.array is None else _in_large(a.array) for a in kernel.arguments]
        self._kept = [*given, *self.outputs, *laid[len(blank) :], *kernel.tables]
        block: list[int] = []
        loader = loader_of(target)
        for s in kernel.stages:
            extent = 0 if s.extent is None else int(s.extent.value(sizes))
            block += [loader.address(s.symbol, target), extent]
        block += [a.ctypes.data for a in self._kept] + [sizes[v] for v in kernel.dims]
        self._block = (ctypes.c_int64 * len(block))(*block)
        split = tuple(s.extent is not None for s in kernel.stages)
        texts = split, len(self._kept), len(kernel.dims)
        self._loop = _function(_loop_text(*texts), target)
        if cold:
            lanes = max(1, target.vector_bytes // 4)
            self._cold_loop = _function(_cold_text(*texts, lanes), target)
            self._times, self._cold_calls = np.zeros(COLD_CALLS, np.int64), COLD_CALLS
            # At least one, which the loop reads before it looks whether there are more.
            warm = [a for a in [*inputs, *self.outputs] if a.nbytes] or [self._times]
            self._warm = np.array([[a.ctypes.data, a.nbytes] for a in warm], np.int64)
            self._around = _Around(
                _clock_address(), self._times.ctypes.data, self._warm.ctypes.data, len(warm),
                _others().ctypes.data, _others().nbytes, MONOTONIC,
            )  # fmt: skip

    def __call__(self, times: int = 1) -> None:
        """Run every stage in turn, and that a number of times."""
        self._loop(times, ctypes.addressof(self._block))

    def cold_ms(self) -> float:
        """A sample of its milliseconds in cold caches: the mean of some calls, without the least
        and the most. Of a median, the steps of a coarse clock would be left, which are 8 % of the
        shortest kernels' time. What other processes take while a long kernel runs is not counted.
        """
        n = self._cold_calls
        self._cold_loop(n, ctypes.addressof(self._block), ctypes.byref(self._around))
        times: list[int] = self._times[:n].tolist()
        if self._around.which == MONOTONIC and min(times) > LONG_NS:
            self._around.which = THREAD
            self._cold_calls = FEW_CALLS if min(times) < LONGER_NS else 1
            return self.cold_ms()
        inner = sorted(times)[1:-1] or times
        return statistics.fmean(inner) / 1e6

    def result(self) -> bytes:
        """What the kernel writes."""
        for out in self.outputs:
            out[...] = 0
        self()
        return b"".join(out.tobytes() for out in self.outputs)


class _Around(ctypes.Structure):
    """What the loop that times a kernel in cold caches needs beside it."""

    _fields_ = (
        ("clock", ctypes.c_void_p), ("times", ctypes.c_void_p), ("warm", ctypes.c_void_p),
        ("warm_arrays", ctypes.c_int64), ("others", ctypes.c_void_p), ("bytes", ctypes.c_int64),
        ("which", ctypes.c_int64),
    )  # fmt: skip


@cache
def _others() -> Array:
    """Bytes that take the place of all others in a core's own caches when they are read."""
    return np.ones(2 * second_cache(), np.uint8)


@cache
def _clock_address() -> int:
    function = ctypes.CDLL(None).clock_gettime
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _function(text: str, target: Target) -> Any:
    """A function of LLVM text, which says @ for its name, as one of ctypes."""
    symbol = "repeat_" + digest(text)
    code = Code((symbol,), text.replace("@()", f"@{symbol}"))
    address = loader_of(target).compiled(code, target)
    arguments = [ctypes.c_int64] + [ctypes.c_void_p] * (2 if "%around" in text else 1)
    return ctypes.CFUNCTYPE(None, *arguments)(address)


def _calls(split: Sequence[bool], pointers: int, dims: int) -> tuple[list[str], list[str]]:
    """Lines that load the arguments of a kernel's stages from %block, which holds, per stage,
    function and extent; then the arguments; and lines that call them."""
    stages = len(split)
    kinds = ["ptr", "i64"] * stages + ["ptr"] * pointers + ["i64"] * dims
    lines = []
    for k, kind in enumerate(kinds):
        lines.append(f"  %p{k} = getelementptr i64, ptr %block, i64 {k}")
        lines.append(f"  %a{k} = load {kind}, ptr %p{k}, align 8")
    shared = [f"{kind} %a{k}" for k, kind in enumerate(kinds)][2 * stages :]
    calls = []
    for k, parallel in enumerate(split):
        bounds = ["i64 0", f"i64 %a{2 * k + 1}"] if parallel else []
        calls.append(f"  call void %a{2 * k}({', '.join([*shared, *bounds])})")
    return lines, calls


def _loop_text(split: Sequence[bool], pointers: int, dims: int) -> str:
    """LLVM text of a loop that calls the stages of a kernel: calls through `ctypes` would take
    longer than small kernels."""
    lines, calls = _calls(split, pointers, dims)
    return "\n".join(
        [
            "define void @()(i64 %n, ptr %block) {", "entry:", *lines, "  br label %loop",
            "loop:", "  %i = phi i64 [0, %entry], [%next, %loop]", *calls,
            "  %next = add i64 %i, 1", "  %more = icmp slt i64 %next, %n",
            "  br i1 %more, label %loop, label %done", "done:", "  ret void", "}",
        ]
    )  # fmt: skip


def _read_text(lanes: int) -> list[str]:
    """LLVM text of a function that reads memory, a byte of every line of the cache, and adds up
    vectors meanwhile: a processor that has seen none for a while does wide ones slowly at first,
    which it does not in a network."""
    t = f"<{lanes} x float>"
    return [
        "define internal void @read(ptr %p, i64 %bytes) noinline {", "entry:",
        f"  %sink = alloca {t}, align 64", "  %one = uitofp i64 %bytes to float",
        f"  %first = insertelement {t} poison, float %one, i64 0",
        f"  %term = shufflevector {t} %first, {t} poison, <{lanes} x i32> zeroinitializer",
        "  br label %loop", "loop:", "  %i = phi i64 [0, %entry], [%next, %loop]",
        f"  %sum = phi {t} [%term, %entry], [%more_sum, %loop]",
        "  %q = getelementptr i8, ptr %p, i64 %i", "  %x = load volatile i8, ptr %q",
        f"  %more_sum = fadd {t} %sum, %term",
        "  %next = add i64 %i, 64", "  %more = icmp slt i64 %next, %bytes",
        "  br i1 %more, label %loop, label %done", "done:",
        f"  store volatile {t} %more_sum, ptr %sink, align 64", "  ret void", "}",
    ]  # fmt: skip


def _cold_text(split: Sequence[bool], pointers: int, dims: int, lanes: int) -> str:
    """LLVM text of a loop that, each time, reads other bytes until nothing of the kernel is left in
    the core's own caches, then the arrays that the kernels before it leave there, and writes down
    the nanoseconds that the stages take."""
    lines, calls = _calls(split, pointers, dims)
    fields = (
        "ptr clock", "ptr times", "ptr warm", "i64 arrays", "ptr others", "i64 bytes", "i64 which",
    )  # fmt: skip
    for k, field in enumerate(fields):
        kind, name = field.split()
        lines.append(f"  %f{k} = getelementptr i64, ptr %around, i64 {k}")
        lines.append(f"  %{name} = load {kind}, ptr %f{k}, align 8")

    def now(name: str) -> list[str]:
        return [
            f"  %{name}c = trunc i64 %which to i32",
            f"  call i32 %clock(i32 %{name}c, ptr %spec)",
            f"  %{name}s = load i64, ptr %spec, align 8",
            f"  %{name}f = load i64, ptr %rest, align 8",
            f"  %{name}g = mul i64 %{name}s, 1000000000",
            f"  %{name} = add i64 %{name}g, %{name}f",
        ]

    return "\n".join(
        [
            *_read_text(lanes),
            "define void @()(i64 %n, ptr %block, ptr %around) {", "entry:",
            "  %spec = alloca [2 x i64], align 8",
            "  %rest = getelementptr i64, ptr %spec, i64 1", *lines, "  br label %loop",
            "loop:", "  %i = phi i64 [0, %entry], [%next, %timed]",
            "  call void @read(ptr %others, i64 %bytes)", "  br label %warming",
            "warming:", "  %w = phi i64 [0, %loop], [%wnext, %warming]",
            "  %wi = mul i64 %w, 2", "  %wp = getelementptr i64, ptr %warm, i64 %wi",
            "  %array = load ptr, ptr %wp, align 8",
            "  %wq = getelementptr i64, ptr %wp, i64 1", "  %size = load i64, ptr %wq, align 8",
            "  call void @read(ptr %array, i64 %size)", "  %wnext = add i64 %w, 1",
            "  %wmore = icmp slt i64 %wnext, %arrays",
            "  br i1 %wmore, label %warming, label %timed",
            "timed:", *now("start"), *calls, *now("end"), "  %took = sub i64 %end, %start",
            "  %slot = getelementptr i64, ptr %times, i64 %i",
            "  store i64 %took, ptr %slot, align 8", "  %next = add i64 %i, 1",
            "  %more = icmp slt i64 %next, %n",
            "  br i1 %more, label %loop, label %done", "done:", "  ret void", "}",
        ]
    )  # fmt: skip
