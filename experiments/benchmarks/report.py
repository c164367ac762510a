"""What is printed: figures with bounds, and groups of cases measured against one baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from experiments.measure.latency import measure_interleaved


@dataclass(frozen=True)
class Row:
    """A figure and its bound, if it has one: at `most` or at `least` so much."""

    title: str
    value: float
    unit: str
    least: float | None = None
    most: float | None = None

    @property
    def passed(self) -> bool:
        """Whether the figure is within the bound."""
        return (self.least is None or self.value >= self.least) and (
            self.most is None or self.value <= self.most
        )

    def __str__(self) -> str:
        figure = f"  {self.title:<52} {self.value:9.3f} {self.unit:<7}"
        if self.least is None and self.most is None:
            return figure.rstrip()
        bound = f">= {self.least:g}" if self.least is not None else f"<= {self.most:g}"
        return f"{figure} {bound:>8}  {'PASS' if self.passed else 'FAIL'}"


@dataclass(frozen=True)
class Group:
    """Cases that do comparable work: name -> call; `baseline` names one of them.

    `per` divides the times, e.g. by multiply-accumulates, and `unit` says what results.
    """

    title: str
    baseline: str
    cases: Mapping[str, Callable[[], object]]
    per: Mapping[str, float] | None = None
    unit: str = "ms"

    def render(self, runs: int) -> str:
        """Measure, and write the medians and ratios as text."""
        stats = measure_interleaved(list(self.cases.values()), warmup=3, runs=runs)
        per = self.per or {}
        cost = {
            name: s.median / per.get(name, 1.0) for name, s in zip(self.cases, stats, strict=True)
        }
        lines = [f"{self.title} (baseline: {self.baseline}; {self.unit}, median of {runs})"]
        for name, value in cost.items():
            ratio = cost[self.baseline] / value
            lines.append(f"  {name:<28} {value:10.4f} {self.unit}   {ratio:8.3f}x")
        return "\n".join(lines) + "\n"
