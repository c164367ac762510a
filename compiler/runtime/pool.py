"""The thread pool that kernels share: fork-join in about a microsecond, as LLVM code over libc.

A job is a range of tasks, cut into chunks. Participant p, of which number 0 is the caller, owns the
p-th part of the chunks; it takes them in order, and then takes from the ends of the others' parts
what is left there. So the same tasks of successive jobs run on the same thread, whose cache holds
what it wrote before; yet the caller never waits for a worker that has not started: it may do all
chunks itself, and then waits only for chunks that somebody took. Outputs of tasks are disjoint, so
results do not depend on who computes what.

Who owns a cache line matters more than instructions here: between distant cores, each line that
changes hands costs a quarter of a microsecond. A job is announced by one line, which changes hands
once; each participant has a line for its chunks, which others touch only when they have nothing
left, and one for the number of chunks it did, which it writes once a job. A chunk is taken by
compare-and-swap on the number of the job and the range that is left; a word with an older number
stands for an untouched part, and nothing can be taken from one with a newer number.

Workers are created when a job first asks for them. An idle one watches for `SPIN_NS`, yielding the
processor now and then, and then sleeps on a semaphore; a caller posts only to workers that sleep.
One job runs at a time: a second caller does its work alone. A forked child starts without workers.
"""

from __future__ import annotations

import ctypes
import functools
import os

from compiler.codegen.backend import Code
from compiler.codegen.llvm import jit
from compiler.codegen.llvm.graph_entry import POOL
from compiler.runtime.beside import Beside
from compiler.runtime.pool_caller_code import CALLER_CODE
from compiler.runtime.pool_worker_code import WORKER_CODE
from compiler.target.registry import Target

SYMBOL = POOL
"""Without a function to run, the pool forgets its workers, as a forked child must."""

MAX_WORKERS = 255
SPIN_NS = 200_000
"""How long an idle worker watches for the next job before it sleeps, in nanoseconds."""
CALLER_SPIN_NS = 50_000
"""How long a caller watches for the last chunks before it sleeps, in nanoseconds."""
CHUNKS_PER_THREAD = 4
GRACE = 64
"""How long, in pauses of about 30 ns, a participant that is done leaves the chunks of the others to
them. Otherwise the first one done with a short job would move the data of the rest to its cache,
and the owner, which has to fetch it back, would be late for the next job."""


@functools.cache
def start() -> int:
    """Make the pool callable by generated code; returns the address of `dtypelab_parallel`."""
    target = Target.parse("llvm")
    address = jit.compile_text(pool_text(target), SYMBOL, target)
    if hasattr(os, "register_at_fork"):
        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 2)
        forget = functools.partial(call(address), None, None, 0, 0)
        os.register_at_fork(after_in_child=forget)
    return address


def begin(beside: Beside) -> None:
    """Have the pool compiled beside what else is made, if it must be: it takes as long as a large
    kernel."""
    target = Target.parse("llvm")
    text = pool_text(target)
    keep = jit.keeper(text, SYMBOL, target)
    if keep is not None:
        beside.begin(Code((SYMBOL,), text), target, keep)


def pool_text(target: Target) -> str:
    """The LLVM code of the pool."""
    declare, pause = target.architecture.pause
    code = WORKER_CODE + CALLER_CODE
    for name, value in {
        "SYMBOL": SYMBOL,
        "WORKERS": MAX_WORKERS,
        "PARTS": MAX_WORKERS + 1,
        "SPIN": SPIN_NS,
        "CALLER": CALLER_SPIN_NS,
        "CHUNKS": CHUNKS_PER_THREAD,
        "GRACE": GRACE,
        "PAUSE": pause,
    }.items():
        code = code.replace(f"${name}", str(value))
    return declare + code
