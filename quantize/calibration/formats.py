"""What calibration watches for the sake of nodes in formats, and the formats it then gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compiler.types.dtypes import Array
from quantize.annotation.annotate import Annotation
from quantize.annotation.format_nodes import observed_values, operand_formats
from quantize.annotation.graph import Graph
from quantize.calibration.observers import MinMax, Observer
from quantize.config.qconfig import QConfig
from quantize.plan.format_scales import FormatObserver, powers_of_two, with_room
from quantize.plan.operand_format import OperandFormat


class Several:
    """Observers of one value, for nodes that want different things of it."""

    def __init__(self, parts: Sequence[Observer]):
        self.parts = parts
        self.any_order = all(part.any_order for part in parts)

    def update(self, values: Array) -> None:
        """See Observer."""
        for part in self.parts:
            part.update(values)

    def merge(self, other: Several) -> None:
        """See Observer."""
        for mine, theirs in zip(self.parts, other.parts, strict=True):
            mine.merge(theirs)

    def range(self) -> tuple[float, float]:
        """See Observer: what the first of them says."""
        return self.parts[0].range()


class FormatWatch:
    """The nodes of an annotation that are in formats, and observers of the values they read."""

    def __init__(self, annotation: Annotation):
        self.nodes = [
            (b.var.name, call, annotation.configs[b.var.name])
            for b, call in Graph(annotation.module.main).calls()
            if annotation.nodes[b.var.name].decision == "format"
        ]
        self.seen: dict[tuple[str, QConfig], FormatObserver] = {}
        self.results: dict[str, MinMax] = {}
        for name, call, config in self.nodes:
            if config.compute == "native":
                self.results[name] = MinMax()
            for value in observed_values(call, config):
                if (value, config) not in self.seen:
                    self.seen[value, config] = FormatObserver(config)

    def beside(self, observers: Mapping[str, Observer]) -> dict[str, Observer]:
        """Value -> observer: those given, and those of formats."""
        parts: dict[str, list[Observer]] = {name: [o] for name, o in observers.items()}
        for (value, _), o in self.seen.items():
            parts.setdefault(value, []).append(o)
        for value, largest in self.results.items():
            parts.setdefault(value, []).append(largest)
        return {name: p[0] if len(p) == 1 else Several(p) for name, p in parts.items()}

    def formats(self) -> dict[str, tuple[OperandFormat, ...]]:
        """Node -> the formats of its operands, once the data has been seen."""
        out = {}
        for name, call, config in self.nodes:
            seen = {value: o for (value, c), o in self.seen.items() if c == config}
            found = operand_formats(call, config, seen)
            if name in self.results:
                reach = max(map(abs, self.results[name].range()))
                found = with_room(found, reach, powers_of_two(config))
            out[name] = found
        return out
