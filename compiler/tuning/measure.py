"""Running single kernels, in turns, on random data."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from compiler.codegen.backend import Code
from compiler.ir.expr import Constant
from compiler.lowering.legalize import Legalized
from compiler.runtime.executable import Executable
from compiler.runtime.kernels import Kernel
from compiler.runtime.loader import loader_of
from compiler.symbolic import IntLike, Var
from compiler.target.registry import Target
from compiler.tensor.expr import Buffer, Gather, walk
from compiler.tensor.packed_arrays import ALIGN, LARGE_PAGE, aligned_empty
from compiler.tensor.stmt import SLACK, stores
from compiler.types.dtypes import Array
from compiler.types.names import digest

SAMPLE_NS = 150_000
"""Nanoseconds that a timed sample should last: short kernels are called several times."""
SYMBOLIC_SIZE = 1
"""Value of symbolic dimensions."""


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
        shape, storage = _shape(b.shape), b.dtype.storage
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


def _shape(dims: Sequence[IntLike]) -> tuple[int, ...]:
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


class KernelRun:
    """A compiled kernel with its memory, ready to be called again and again.

    `inputs`: one array per input that is no constant; those come from the kernel. `written`: its
    output parameters, if they are not to be read from its loops. `room`: where it writes, which
    kernels that do not run at once may share.
    """

    def __init__(
        self,
        kernel: Kernel,
        target: Target,
        inputs: Sequence[Array],
        written: Sequence[Buffer] | None = None,
        room: Room | None = None,
    ):
        sizes = dict.fromkeys(kernel.dims, SYMBOLIC_SIZE)
        if written is None:
            written = kernel.func.params[len(kernel.arguments) :][: kernel.outputs]
        blank = [np.zeros(_shape(b.shape), b.dtype.storage) for b in written]
        scratch = [int(size.value(sizes)) for size in kernel.temps]
        laid = (room or Room()).laid([*(a.nbytes for a in blank), *scratch])
        self.outputs = [_filled(raw, a) for raw, a in zip(laid, blank, strict=False)]
        rest = iter(inputs)
        given = [next(rest) if a.array is None else a.array for a in kernel.arguments]
        self._kept = [*given, *self.outputs, *laid[len(blank) :], *kernel.tables]
        block: list[int] = []
        loader = loader_of(target)
        for s in kernel.stages:
            extent = 0 if s.extent is None else int(s.extent.value(sizes))
            block += [loader.address(s.symbol, target), extent]
        block += [a.ctypes.data for a in self._kept] + [sizes[v] for v in kernel.dims]
        self._block = (ctypes.c_int64 * len(block))(*block)
        split = tuple(s.extent is not None for s in kernel.stages)
        text = _loop_text("@", split, len(self._kept), len(kernel.dims))
        symbol = "repeat_" + digest(text)
        address = loader.compiled(Code((symbol,), text.replace("@", f"@{symbol}")), target)
        self._loop = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p)(address)

    def __call__(self, times: int = 1) -> None:
        """Run every stage in turn, and that a number of times."""
        self._loop(times, ctypes.addressof(self._block))

    def result(self) -> bytes:
        """What the kernel writes."""
        for out in self.outputs:
            out[...] = 0
        self()
        return b"".join(out.tobytes() for out in self.outputs)


def _loop_text(name: str, split: Sequence[bool], pointers: int, dims: int) -> str:
    """LLVM text of a loop that calls the stages of a kernel: calls through `ctypes` would take
    longer than small kernels. Its block holds, per stage, function and extent; then the
    arguments."""
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
    return "\n".join(
        [
            f"define void {name}(i64 %n, ptr %block) {{", "entry:", *lines, "  br label %loop",
            "loop:", "  %i = phi i64 [0, %entry], [%next, %loop]", *calls,
            "  %next = add i64 %i, 1", "  %more = icmp slt i64 %next, %n",
            "  br i1 %more, label %loop, label %done", "done:", "  ret void", "}",
        ]
    )  # fmt: skip


# Elsewhere such a clock may tick too rarely.
thread_ns = time.thread_time_ns if sys.platform == "linux" else time.perf_counter_ns


def in_turns(
    first: Callable[[int], object], second: Callable[[int], object], rounds: int
) -> tuple[float, float]:
    """Median milliseconds of two functions of a number of repetitions, timed in turns after one
    call of each; of this thread's time on the processor, where the system tells that: what other
    processes take is not counted. Chance says who begins a round: what they leave behind in the
    caches, in a rhythm near to that of the rounds, one of the two would bear alone."""
    first(1)
    start = thread_ns()
    second(1)
    repeat = max(1, SAMPLE_NS // max(1, thread_ns() - start))
    times: tuple[list[float], list[float]] = ([], [])
    order, shuffled = list(zip((first, second), times, strict=True)), random.Random(0)
    for _ in range(rounds):
        shuffled.shuffle(order)
        for call, record in order:
            start = thread_ns()
            call(repeat)
            record.append((thread_ns() - start) / 1e6 / repeat)
    return statistics.median(times[0]), statistics.median(times[1])


Turns = Callable[[int], tuple[float, float]]
"""Median milliseconds of two functions, timed in turns for a number of rounds (see `in_turns`)."""
BATCH = 3
"""Rounds whose medians give one ratio."""
LEAST, MOST = 3, 16
"""Batches of a comparison."""
PLAIN = 1.3
"""One batch is enough for what takes so many times as long."""
NARROW = 0.01
"""Half the width of an interval that need not become narrower."""
LIMIT_S = 2.0
"""Seconds after which a comparison goes on no longer."""
_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
"""Student's t for 95 %, by degrees of freedom from 1 on."""


@dataclass(frozen=True)
class Comparison:
    """Two functions compared: median milliseconds of both, the geometric mean of the ratios (second
    to first) of all batches, and its interval of 95 %, which is that mean alone if one batch was
    enough."""

    first_ms: float
    second_ms: float
    ratio: float
    low: float
    high: float


def compared(turns: Turns, limit_s: float = LIMIT_S) -> Comparison:
    """Time two functions in turns until the interval of the ratio of their times leaves out 1, or
    is within 1 %; or until the second is plainly slower, or it has taken `limit_s` seconds."""
    start = time.perf_counter()
    first: list[float] = []
    second: list[float] = []
    logs: list[float] = []
    while True:
        a, b = turns(BATCH)
        first.append(a)
        second.append(b)
        logs.append(math.log(max(b, 1e-9) / max(a, 1e-9)))
        mean, n = statistics.fmean(logs), len(logs)
        half = _T[n - 2] * statistics.stdev(logs) / math.sqrt(n) if n > 1 else 0.0
        late = time.perf_counter() - start > limit_s and n > 1
        plain = n == 1 and mean > math.log(PLAIN)
        if late or plain or n == MOST or (n >= LEAST and (half < abs(mean) or half < NARROW)):
            break
    times = statistics.median(first), statistics.median(second)
    return Comparison(*times, *map(math.exp, (mean, mean - half, mean + half)))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep this thread on one core, where the system lets it, and the garbage collector off."""
    collecting = gc.isenabled()
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    gc.disable()
    try:
        if cores:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, {max(cores)})
        yield
    finally:
        if cores:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, cores)
        if collecting:
            gc.enable()


def repeated(exe: Executable, arrays: Sequence[Array]) -> Callable[[int], None]:
    """A function that calls a network a number of times."""

    def call(times: int) -> None:
        for _ in range(times):
            exe(*arrays)

    return call


def network_inputs(exe: Executable, seed: int) -> list[Array]:
    """Random floats and bytes; zeros for other integers, which are often positions."""
    rng = np.random.default_rng(seed)
    arrays: list[Array] = []
    for kind in exe.inputs.values():
        shape, storage = _shape(kind.shape), kind.dtype.storage
        if np.issubdtype(storage, np.floating):
            arrays.append(rng.standard_normal(shape).astype(storage))
        elif storage == np.uint8 or storage == np.int8:
            arrays.append(rng.integers(0, 128, shape).astype(storage))
        else:
            arrays.append(np.zeros(shape, storage))
    return arrays
