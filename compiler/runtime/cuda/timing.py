"""How long kernels and calls take on a device, by its own clock, and what kernels take of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from compiler.runtime.cuda.driver import Driver
from compiler.runtime.cuda.plan import Addresses, Ready

if TYPE_CHECKING:
    from compiler.runtime.cuda.executable import CudaExecutable

Clock = Callable[[Callable[[], None]], float]
"""Milliseconds that what something puts on a stream takes there."""


@dataclass(frozen=True)
class KernelFigures:
    """What a kernel takes of a device.

    Attributes:
        symbol: its name.
        threads: of a block.
        registers: of a thread.
        shared: bytes of a block's shared memory.
        local: bytes of a thread's own memory, where registers are spilled to.
        blocks: how many of them a multiprocessor runs at once.
        occupancy: their share of the threads that it can run.
    """

    symbol: str
    threads: int
    registers: int
    shared: int
    local: int
    blocks: int
    occupancy: float


@contextmanager
def clock(driver: Driver, stream: int) -> Iterator[Clock]:
    """A clock of the device, for a stream."""
    first, second = driver.event(), driver.event()

    def timed(put: Callable[[], None]) -> float:
        driver.record(first, stream)
        put()
        driver.record(second, stream)
        return driver.milliseconds(first, second)

    try:
        yield timed
    finally:
        driver.close_event(first)
        driver.close_event(second)


def step_times(
    driver: Driver, steps: Sequence[Ready], at: Addresses, stream: int, runs: int
) -> list[list[float]]:
    """Milliseconds of each step in each of several runs."""
    times: list[list[float]] = [[] for _ in steps]
    with clock(driver, stream) as timed:
        for _ in range(runs):
            for record, step in zip(times, steps, strict=True):
                record.append(timed(partial(step.put, driver, at, stream)))
    return times


def kernel_figures(exe: CudaExecutable, **dims: int) -> list[KernelFigures]:
    """What the kernels of a program take for given sizes, each once, in order.

    Raises:
        CudaError: the device is emulated; or the driver fails.
    """
    driver, found = exe.device.driver, dict[str, KernelFigures]()
    sizes = {v: dims[str(v)] for v in exe.program.dims}
    for step in exe.steps(sizes):
        stage = step.step.stage
        if stage is None or step.function is None or stage.symbol in found:
            continue
        x, y, z = step.block
        figures = driver.figures(step.function)
        blocks = driver.occupancy(step.function, x * y * z, step.shared)
        found[stage.symbol] = KernelFigures(
            stage.symbol,
            x * y * z,
            figures.registers,
            figures.shared + step.shared,
            figures.local,
            blocks,
            blocks * x * y * z / driver.properties.resident,
        )
    return list(found.values())
