"""What a simulated accelerator is told, and what it tells: a table of numbers."""

from __future__ import annotations

from compiler.codegen.accel.writer import Writer

GIVEN = (
    "entries0", "entries1", "entries2", "entries3",  # of the four buffers
    "bytes0", "bytes1", "bytes2", "bytes3",  # of an entry, here
    "bits0", "bits1", "bits2", "bits3",  # of an entry, on the chip and in memory
    "memory", "bandwidth", "latency", "fill", "functional",
)  # fmt: skip
"""What a table says of the machine; `functional` 0: cycles alone are counted."""
COUNTED = (
    "error", "instruction", "detail", "cycles",
    "busy0", "busy1", "busy2", "token0", "token1", "token2", "bus0", "bus1", "bus2",
    "gemm", "alu", "loaded", "stored",
)  # fmt: skip
"""What is in the same table afterwards: an error (one of those below), cycles of the units at
work, waiting for tokens, waiting for the bus; steps of GEMM and cycles of the ALU; bytes."""
MACHINE = {name: k for k, name in enumerate((*GIVEN, *COUNTED))}
DEADLOCK, OUTSIDE, UNKNOWN = 1, 2, 3
TRACE = 3
"""Numbers of an instruction's trace: begin, end, and when its tokens were there."""
ARGUMENTS = "ptr %memory, ptr %buffer0, ptr %buffer1, ptr %buffer2, ptr %buffer3"
"""Of what does an instruction: memory and the four buffers."""


def given(w: Writer, name: str) -> str:
    """What the table says of the machine."""
    return w.get("%machine", MACHINE[name])
