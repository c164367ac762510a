"""profile: where an executable spends its time, kernel by kernel, on one thread."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from compiler.boundary.inputs import bind_inputs
from compiler.codegen.backend import backend_of
from compiler.codegen.steps import Pointer, Step
from compiler.errors import InputError
from compiler.runtime.executable import Executable, GraphExecutable
from compiler.runtime.kernels import aligned_copy
from compiler.runtime.loader import loader_of
from compiler.symbolic import Var as Dim
from compiler.types.dtypes import Array


@dataclass(frozen=True)
class StepTime:
    """Median milliseconds of one native stage; `work` counts its innermost iterations."""

    symbol: str
    milliseconds: float
    work: int


@dataclass(frozen=True)
class StageCalls:
    """The native stages of an executable, in order of execution, each with what runs it on one
    thread; the sizes of dimensions; and the memory that they work on."""

    calls: Sequence[tuple[Step, Callable[[], object]]]
    dims: Mapping[Dim, int]
    memory: Sequence[Array]


def profile(exe: Executable, /, *args: Any, runs: int = 20, **kwargs: Any) -> list[StepTime]:
    """Time every native stage of `exe` on the given inputs, in order of execution, those included
    that run only if others have rounded (`Step.when`); by a clock where they run, if they run on a
    device.

    Raises:
        compiler.errors.InputError: the inputs do not fit, or `exe` has control flow, or is
            compiled as a whole.
    """
    if isinstance(exe, GraphExecutable):
        arrays, sizes = bind_inputs(exe.program.inputs, args, kwargs)
        if (elsewhere := exe.stage_times(arrays, sizes, runs)) is not None:
            steps = [s for s in exe.program.steps if s.stage is not None]
            return _medians(steps, elsewhere, sizes)
    found = stage_calls(exe, *args, **kwargs)
    calls, dims = found.calls, found.dims
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(runs):
        for record, (_, call) in zip(times, calls, strict=True):
            start = time.perf_counter_ns()
            call()
            record.append((time.perf_counter_ns() - start) / 1e6)
    return _medians([s for s, _ in calls], times, dims)


def _medians(
    steps: Sequence[Step], times: Sequence[Sequence[float]], dims: Mapping[Dim, int]
) -> list[StepTime]:
    return [
        StepTime(s.stage.symbol, statistics.median(t), int(s.work.value(dims)))
        for t, s in zip(times, steps, strict=True)
        if s.stage is not None
    ]


def stage_calls(exe: Executable, /, *args: Any, **kwargs: Any) -> StageCalls:
    """What runs the native stages of `exe` one by one, on the values they have for these inputs.

    Raises:
        compiler.errors.InputError: as `profile`.
    """
    if not isinstance(exe, GraphExecutable):
        raise InputError("a program with control flow has no fixed order of stages to time")
    if not backend_of(exe.target).separate:
        raise InputError(f"stages of target {str(exe.target)!r} cannot be called one by one")
    p, loader = exe.program, loader_of(exe.target)
    arrays, dims = bind_inputs(p.inputs, args, kwargs)
    outs = exe.run(arrays, dims)
    work = aligned_copy(np.zeros(max(64, int(p.workspace.value(dims))), np.uint8))
    tables = {"input": arrays, "output": outs, "constant": list(p.constants)}

    def address(at: Pointer) -> int:
        if at.base == "workspace":
            return int(work.ctypes.data) + int(at.offset.value(dims))
        return int(tables[at.base][at.index].ctypes.data)

    calls: list[tuple[Step, Callable[[], object]]] = []
    for s in p.steps:
        if s.stage is None:
            continue
        values: list[Any] = [ctypes.c_void_p(address(q)) for q in s.pointers]
        values += [ctypes.c_int64(dims[v]) for v in s.dims]
        if s.stage.extent is not None:
            values += [ctypes.c_int64(0), ctypes.c_int64(int(s.stage.extent.value(dims)))]
        kinds = [type(v) for v in values]
        entry = ctypes.CFUNCTYPE(None, *kinds)(loader.address(s.stage.symbol, exe.target))
        calls.append((s, partial(entry, *values)))
    return StageCalls(calls, dims, [*arrays, *outs, work, *p.constants])
