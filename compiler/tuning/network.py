"""Choices for a network as a whole: how wide blocks of channels are, what is fused, which products
become one, where padding is copied. They are tried one after the other, each on top of those that
were kept, and judged by the time of the whole network, with the kernels' records of the log.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import numpy as np

from compiler.build import build, optimize
from compiler.errors import ConfigError, DtypelabError
from compiler.ir.expr import Call, Function, IRModule, atom_type
from compiler.lowering.legalize import legalize
from compiler.passes.manager import PassContext
from compiler.runtime.executable import Executable
from compiler.scheduling.network_choice import (
    NetworkChoice,
    NetworkRecord,
    append_networks,
    module_key,
)
from compiler.scheduling.tuning_log import apply_history_best, machine_cpu, workload_key
from compiler.target.registry import Target
from compiler.tuning.measure import (
    NARROW,
    compared,
    in_turns,
    network_inputs,
    quiet,
    repeated,
)
from compiler.types.dtypes import BOOL, INT64, Array
from compiler.types.tensor_types import TensorType, TupleType, Type

GAIN = 0.99
"""The share of the network's time that the upper end of the interval must be below."""
COMPARED_S = 8.0
"""Seconds that a comparison may take, if one round takes less."""
END_S, END_NARROW = 2.0, 0.002
"""Seconds that what was found is compared with the rules for, at least, unless the interval is
within so much: small networks would be judged by a few of their milliseconds."""
TOLERANCE = 1e-3
"""How far results of float32 networks may move, as a share of the largest."""


@dataclass(frozen=True)
class NetworkTrial:
    """An alternative that was tried on top of the best so far: milliseconds of both, taken in
    turns, and the interval of 95 % of the ratio of the second to the first. A `reason` says why it
    was not measured: it does not build, or gives other results."""

    choice: NetworkChoice
    before_ms: float
    ms: float
    low: float
    high: float
    reason: str = ""

    @property
    def faster(self) -> bool:
        """Whether it is, by more than noise."""
        return not self.reason and self.high < GAIN


@dataclass(frozen=True)
class NetworkTuning:
    """What was found: the choice (that of the rules, if nothing was faster), what was tried,
    milliseconds without and with it, and whether Ctrl-C ended it early."""

    choice: NetworkChoice
    trials: tuple[NetworkTrial, ...]
    default_ms: float
    tuned_ms: float
    seconds: float
    interrupted: bool = False


def alternatives(target: Target) -> Iterator[tuple[str, list[NetworkChoice]]]:
    """(what it is about, the choices other than the rules') in the order in which they are tried:
    what changes most kernels first."""
    widths = sorted({4, target.block // 2, 2 * target.block} - {0, 1, 2, target.block})
    blocks = [NetworkChoice({"AlterOpLayout.block": n}) for n in widths]
    yield "layouts", [*blocks, NetworkChoice(disabled=("AlterOpLayout",))]
    for kind in ("Conv2D", "Dense", "BatchMatmul"):
        yield "products of the same data", [NetworkChoice(required=(f"CombineParallel{kind}",))]
    yield "attention", [NetworkChoice(disabled=("FuseAttention",))]
    yield "fusion", [NetworkChoice({"FuseOps.max_depth": n}) for n in (8, 4, 2, 1)]
    yield "padding", [NetworkChoice({"padding.least_skipped": n}) for n in (0, 1 << 30)]


def choose_network(
    mod: IRModule,
    target: str | Target = "llvm",
    log: str | os.PathLike[str] = "tune.jsonl",
    *,
    threads: int = 1,
    seed: int = 0,
    budget_s: float = float("inf"),
    inputs: Sequence[Array] | None = None,
    progress: Callable[[NetworkTrial], None] | None = None,
) -> NetworkTuning:
    """Try what may be chosen for a whole module, on this machine, and append the choice to the log
    if the module is faster with it; its kernels have been tuned before, or run by the rules.

    Integers, and numbers in formats, keep every bit; floats may move as far as another order of
    additions moves them.

    Args:
        mod: the module; it is optimized as the current PassContext says.
        target, threads: as in `build`.
        log: the tuning log; it may be missing.
        seed: of the inputs.
        budget_s: seconds after which nothing more is tried; the first Ctrl-C ends it, too, and
            what was found is then confirmed and kept.
        inputs: of the module; by default random ones.
        progress: called after every alternative.

    Raises:
        ConfigError: the log cannot be read or written, or the seed is negative.
        DtypelabError: the module cannot be built.
    """
    if seed < 0:
        raise ConfigError(f"seed must not be negative, not {seed}")
    chosen, start = Target.parse(target), time.perf_counter()
    searched = _Search(mod, chosen, threads, log)
    with quiet() if threads == 1 else nullcontext():
        default = best = searched.built(NetworkChoice())
        arrays = list(inputs) if inputs is not None else network_inputs(default, seed)
        want, kept, seen = _results(default, arrays), NetworkChoice(), {searched.kernels()}
        trials: list[NetworkTrial] = []
        interrupted = False
        try:
            for _, choices in alternatives(chosen):
                found = None
                for more in choices:
                    if time.perf_counter() - start > budget_s:
                        break
                    trial, exe = searched.tried(kept | more, best, arrays, want, seen)
                    if trial is None:
                        continue
                    trials.append(trial)
                    if progress is not None:
                        progress(trial)
                    if exe is None or not trial.faster:
                        continue
                    if found is None or trial.low < found[0].low:
                        found = trial, exe
                if found is not None:
                    kept, best = found[0].choice, found[1]
        except KeyboardInterrupt:
            interrupted = True
        if best is default:
            ms, _ = in_turns(repeated(default, arrays), repeated(default, arrays), 7)
            took = time.perf_counter() - start
            return NetworkTuning(kept, tuple(trials), ms, ms, took, interrupted)
        end = searched.compared(default, best, arrays, END_S, END_NARROW)
    if end.high < GAIN:  # what was best of several is flattered by that
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        where = (str(chosen), chosen.isa, machine_cpu(), threads)
        times = (round(end.before_ms, 6), round(end.ms, 6))
        key, text = module_key(mod), str(mod.main).split("\n", 1)[0][:200]
        append_networks(log, [NetworkRecord(key, text, *where, kept, *times, seed, now)])
    else:
        kept = NetworkChoice()
    ms = end.ms if kept != NetworkChoice() else end.before_ms
    took = time.perf_counter() - start
    return NetworkTuning(kept, tuple(trials), end.before_ms, ms, took, interrupted)


class _Search:
    def __init__(self, mod: IRModule, target: Target, threads: int, log: str | os.PathLike[str]):
        self.mod, self.target, self.threads, self.log = mod, target, threads, log
        self.nearly = only_floats(mod)

    def built(self, choice: NetworkChoice) -> Executable:
        with self._records(), choice.within(PassContext.current()):
            return build(self.mod, self.target, self.threads)

    def kernels(self, choice: NetworkChoice | None = None) -> tuple[str, ...]:
        """The workloads that run, in order: choices with the same are the same."""
        with (choice or NetworkChoice()).within(PassContext.current()):
            calls = [b.value for b in optimize(self.mod, self.target).main.bindings]
            return tuple(
                workload_key(legalize(c.op).func, self.target)
                if isinstance(c, Call) and isinstance(c.op, Function)
                else type(c).__name__
                for c in calls
            )

    def tried(
        self,
        choice: NetworkChoice,
        best: Executable,
        arrays: Sequence[Array],
        want: Sequence[Array],
        seen: set[tuple[str, ...]],
    ) -> tuple[NetworkTrial | None, Executable | None]:
        """The trial of a choice against the best so far, and its executable; None if it gives
        kernels that have been tried."""
        try:
            kernels = self.kernels(choice)
            if kernels in seen:
                return None, None
            seen.add(kernels)
            exe = self.built(choice)
            got = _results(exe, arrays)
        except DtypelabError as error:
            return NetworkTrial(choice, 0.0, 0.0, 0.0, 0.0, str(error)), None
        if not all(_agree(g, w, self.nearly) for g, w in zip(got, want, strict=True)):
            return NetworkTrial(choice, 0.0, 0.0, 0.0, 0.0, "gives other results"), None
        trial = self.compared(best, exe, arrays)
        return NetworkTrial(choice, trial.before_ms, trial.ms, trial.low, trial.high), exe

    def compared(
        self,
        first: Executable,
        second: Executable,
        arrays: Sequence[Array],
        least_s: float = 0.0,
        narrow: float = NARROW,
    ) -> NetworkTrial:
        """Both in turns (see `measure.compared`), the first being that of the rules, or the best so
        far."""
        turns = partial(in_turns, repeated(first, arrays), repeated(second, arrays))
        found = compared(turns, COMPARED_S, least_s, narrow, GAIN)
        times = (found.first_ms, found.first_ms * found.ratio)
        return NetworkTrial(NetworkChoice(), *times, found.low, found.high)

    def _records(self) -> AbstractContextManager[None]:
        return apply_history_best(self.log) if os.path.exists(self.log) else nullcontext()


def _results(exe: Executable, arrays: Sequence[Array]) -> list[Array]:
    found = exe(*arrays)
    return found if isinstance(found, list) else [found]


def only_floats(mod: IRModule) -> bool:
    """Whether `main` computes on built-in floats alone, beside positions and conditions: results of
    others are exact."""
    types = [t for b in mod.main.bindings for t in _tensors(atom_type(b.var))]
    return all(t.dtype.is_float or t.dtype in (INT64, BOOL) for t in types)


def _tensors(t: Type) -> list[TensorType]:
    if isinstance(t, TupleType):
        return [x for part in t.fields for x in _tensors(part)]
    return [t] if isinstance(t, TensorType) else []


def _agree(got: Array, want: Array, nearly: bool) -> bool:
    """Whether results are those of the rules: every bit, or `nearly`."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return False
    if not nearly or got.dtype.kind != "f":
        return got.tobytes() == want.tobytes()
    far = np.abs(want[np.isfinite(want)]).max(initial=0.0)
    return bool(np.allclose(got, want, rtol=0, atol=TOLERANCE * far, equal_nan=True))
