"""What the pipeline does: its table for a PassContext, and for a build that was watched."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from compiler.ir.expr import Call, Function, IRModule, nested
from compiler.passes.manager import Pass, PassContext, PassInstrument, Sequential
from compiler.passes.pipeline import Stage, Step, pipeline


def pipeline_table(context: PassContext) -> str:
    """Every step of the pipeline in order: its stage, its level, and whether `context` runs it."""
    rows = [
        (stage.name, step.name, level_of(step), runs(step, context), step.note)
        for stage, step in pipeline().steps()
    ]
    others = ", ".join(s.name for s in pipeline().on_request)
    head = ("stage", "step", "level", "runs", "")
    return aligned([head, *rows]) + f"\non request: {others}"


def level_of(step: Step) -> str:
    """The level from which a pass runs; "" for a function, which always does."""
    return str(step.load().opt_level) if step.optional else ""


def runs(step: Step, context: PassContext) -> str:
    """Whether a step runs in `context`, and why not."""
    if step.name in context.disabled_pass:
        return "disabled"
    if step.name in context.required_pass:
        return "required"
    if step.outside:
        return "by the target"
    if not step.optional or context.enables(step.load()):
        return "yes"
    return f"no, at level {context.opt_level}"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of text as columns; the name of a stage stands beside its first step only."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines, before = [], ""
    for first, *rest in rows:
        shown = ["" if first == before else first, *rest]
        cells = (cell.ljust(w) for cell, w in zip(shown, widths, strict=True))
        lines.append("  ".join(cells).rstrip())
        before = first
    return "\n".join(lines)


def operators(mod: IRModule) -> int:
    """How many operators are in a module: in branches, closures and kernels too."""
    return sum(_operators(f) for f in mod.functions.values() if isinstance(f, Function))


def _operators(f: Function) -> int:
    count = 0
    for b in f.bindings:
        v = b.value
        if isinstance(v, Call):
            count += _operators(v.op) if isinstance(v.op, Function) else 1
        count += sum(map(_operators, nested(v)))
    return count


def kernels(mod: IRModule) -> int:
    """How many kernels operators have been grouped into."""
    functions = [f for f in mod.functions.values() if isinstance(f, Function)]
    calls = [b.value for f in functions for b in f.bindings if isinstance(b.value, Call)]
    return sum(isinstance(c.op, Function) for c in calls)


@dataclass
class Work:
    """What a step did, in all its runs.

    Attributes:
        step: the step; None for a pass that ran since the next one requires it.
        name: of the pass or function.
        count: how often it ran.
        before, after: operators of the modules that it was given, and of those that it made.
        kernels: kernels in the modules that it made.
        changed: whether one of these is another module.
        ms: wall-clock milliseconds.
    """

    step: Step | None
    name: str
    count: int = 0
    before: int = 0
    after: int = 0
    kernels: int = 0
    changed: bool = False
    ms: float = 0.0

    def effect(self) -> str:
        """What it changed, in words."""
        if not self.before:
            return f"{self.count} times" if self.count else ""
        if not self.changed:
            return f"{self.before}, unchanged"
        grouped = f" in {self.kernels} kernels" if self.kernels else ""
        return f"{self.before} -> {self.after}{grouped}"


@dataclass(eq=False)
class PipelineRecord(PassInstrument):
    """Watches the pipeline as a PassContext runs it (see `works`); what passes run inside
    themselves is theirs.

    Attributes:
        log: names of the passes and functions that ran, in order, with those that others require.
    """

    log: list[str] = field(default_factory=list)
    _works: dict[Step, Work] = field(default_factory=dict)
    _under_way: list[tuple[Any, Any, float]] = field(default_factory=list)
    _waiting: list[Work] = field(default_factory=list)  # what the next step requires
    _required: dict[Step, dict[str, Work]] = field(default_factory=dict)

    def before(self, mod: IRModule, pass_: Pass) -> None:
        """A pass begins."""
        self._begin(pass_, mod)

    def after(self, mod: IRModule, pass_: Pass) -> None:
        """A pass has made `mod`."""
        before, ms = self._end()
        around = self._under_way[-1][0] if self._under_way else None
        if not isinstance(around, Sequential) or not around.steps:
            return
        pairs = zip(around.passes, around.steps, strict=True)
        step = next((s for p, s in pairs if p is pass_), None)
        if step is not None:
            self._note(step, before, mod, ms)
        else:
            self._waiting.append(_added(Work(None, pass_.name), before, mod, ms))
            self.log.append(pass_.name)

    def before_step(self, step: Step, subject: Any) -> None:
        """A function of the pipeline begins."""
        self._begin(step, subject)

    def after_step(self, step: Step, given: Any) -> None:
        """A function of the pipeline has made `given`."""
        before, ms = self._end()
        if not any(isinstance(x, Pass) for x, _, _ in self._under_way):
            self._note(step, before, given, ms)

    def _begin(self, what: Any, subject: Any) -> None:
        self._under_way.append((what, subject, time.perf_counter()))

    def _end(self) -> tuple[Any, float]:
        _, subject, start = self._under_way.pop()
        return subject, (time.perf_counter() - start) * 1e3

    def _note(self, step: Step, before: Any, after: Any, ms: float) -> None:
        self.log.append(step.name)
        _added(self._works.setdefault(step, Work(step, step.name)), before, after, ms)
        mine = self._required.setdefault(step, {})
        for w in self._waiting:
            have = mine.setdefault(w.name, Work(None, w.name))
            have.count, have.ms = have.count + w.count, have.ms + w.ms
            have.before, have.after = have.before + w.before, have.after + w.after
            have.changed |= w.changed
        self._waiting.clear()

    def works(self) -> Iterator[tuple[Stage, Step, Work]]:
        """What each step of the pipeline did, in order, each behind what ran since it requires
        it."""
        for stage, step in pipeline().steps():
            for w in self._required.get(step, {}).values():
                yield stage, step, w
            yield stage, step, self._works.get(step) or Work(step, step.name)

    def rows(self, context: PassContext) -> list[dict[str, Any]]:
        """A row for each step: stage, step, level, whether it ran in `context`, how often, the
        operators before and after it, whether it changed the module, its milliseconds."""
        rows = []
        for stage, step, w in self.works():
            if w.step is None:
                ran = f"before {step.name}"
            elif w.count:
                ran = "required" if step.name in context.required_pass else "yes"
            else:
                ran = runs(step, context)
                ran = "no" if ran in ("yes", "required") else ran
            rows.append(
                {
                    "stage": stage.name, "step": w.name,
                    "level": "" if w.step is None else level_of(step),
                    "ran": ran, "times": w.count, "operators_before": w.before,
                    "operators_after": w.after, "changed": w.changed, "ms": w.ms,
                    "effect": w.effect(), "note": step.note if ran == "no" else "",
                }
            )  # fmt: skip
        return rows

    def table(self, context: PassContext) -> str:
        """The rows as text."""
        head = ("stage", "step", "level", "ran", "operators", "ms", "")
        rows = [
            (r["stage"], r["step"], r["level"], r["ran"], r["effect"],
             f"{r['ms']:.3f}" if r["times"] else "", r["note"])
            for r in self.rows(context)
        ]  # fmt: skip
        return aligned([head, *rows])


def _added(w: Work, before: Any, after: Any, ms: float) -> Work:
    """`w` with one run more."""
    w.count, w.ms = w.count + 1, w.ms + ms
    if isinstance(before, IRModule) and isinstance(after, IRModule):
        w.before, w.after = w.before + operators(before), w.after + operators(after)
        w.kernels += kernels(after)
        w.changed |= before is not after
    return w
