"""How large the grid of threads is that does a statement."""

from __future__ import annotations

from compiler.codegen.kernel_abi import Launch
from compiler.errors import LoweringError
from compiler.symbolic import Index
from compiler.tensor.expr import Buffer
from compiler.tensor.stmt import For, Stmt, accesses, family

MOST_THREADS = 1024
"""Threads of a block."""
DECLARED = 48 << 10
"""Bytes of shared memory that the code of a block may declare; more is asked for by its launch."""
BEGIN = 16
"""Bytes that buffers are aligned to: as many as a thread loads at once."""


def grid_loops(s: Stmt) -> list[For]:
    """The loops over blocks and threads that are directly inside each other, from a statement on;
    none, if it is no such loop."""
    found: list[For] = []
    while isinstance(s, For) and family(s):
        found.append(s)
        if len(s.body) != 1:
            break
        s = s.body[0]
    return found


def launch_of(s: Stmt) -> Launch | None:
    """The grid of a top-level statement; None: it has none. Where the extent of a loop over threads
    varies from block to block, each block has as many as the largest needs.

    Raises:
        LoweringError: it is not known how many threads a block has, or there are too many.
    """
    loops = grid_loops(s)
    if not loops:
        return None
    blocks = {f.kind[-1]: f.extent for f in loops if family(f) == "blockIdx"}
    threads = {f.kind[-1]: f for f in loops if family(f) == "threadIdx"}
    counts = []
    for axis in "xyz":
        most = threads[axis].extent.range()[1] if axis in threads else 1
        if most is None:
            raise LoweringError(f"loop {threads[axis].var} needs a constant bound of its extent")
        counts.append(max(most, 1))
    x, y, z = counts
    if x * y * z > MOST_THREADS:
        raise LoweringError(f"a block of {x * y * z} threads, of at most {MOST_THREADS}")
    one = Index.of(1)
    bx, by, bz = (blocks.get(axis, one) for axis in "xyz")
    _, nbytes = shared_by(s)
    return Launch((bx, by, bz), (x, y, z), nbytes if nbytes > DECLARED else 0)


def shared_by(s: Stmt) -> tuple[dict[Buffer, int], int]:
    """Where the shared buffers of a block are in its shared memory, and the bytes of all of them.

    Raises:
        LoweringError: the size of one is not known.
    """
    at: dict[Buffer, int] = {}
    end = 0
    for b in dict.fromkeys(b for b, *_ in accesses([s]) if b.scope == "shared"):
        n = b.size.constant()
        if n is None:
            raise LoweringError(f"shared buffer {b.name} needs a constant size")
        align = max(b.align, BEGIN)
        at[b] = -(-end // align) * align
        end = at[b] + n * b.dtype.nbytes
    return at, end
