"""What calibration watches for the sake of nodes in formats, and the formats it then gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from compiler.ir.expr import Call, Constant, Var
from compiler.types.dtypes import Array
from quantize.annotation.annotate import Annotation
from quantize.annotation.format_nodes import (
    flat_blocks,
    observed_values,
    static_axes,
    token_axis,
)
from quantize.annotation.graph import Graph
from quantize.annotation.sites import sites
from quantize.calibration.format_scales import (
    FormatObserver,
    powers_of_two,
    rounded_scale,
    weight_scales,
    with_room,
)
from quantize.calibration.observers import MinMax, Observer, PerChannel, Several
from quantize.config.qconfig import QConfig
from quantize.config.sites import Site
from quantize.formats.blocks import FLOAT, BlockFormat, block_format
from quantize.formats.element import Element, element, unsigned_bits
from quantize.formats.operand_format import OperandFormat
from quantize.plan.call_facts import block_axis, operands


@dataclass(frozen=True)
class Watched:
    """What is to be known of one factor: a value's range, or the ranges along some axes of it."""

    value: str
    site: Site
    axes: tuple[int, ...]
    config: QConfig

    def observer(self) -> FormatObserver | PerChannel:
        """A fresh observer."""
        return self._along(self.axes)

    def _along(self, axes: tuple[int, ...]) -> FormatObserver | PerChannel:
        if not axes:
            return FormatObserver(self.config, unsigned_bits(self.site.format))
        return PerChannel(lambda: self._along(axes[1:]), axes[0])


class FormatWatch:
    """The nodes of an annotation that are in formats, and observers of the values they read."""

    def __init__(self, annotation: Annotation):
        graph = Graph(annotation.module.main)
        self.roles = sites(graph)
        self.nodes = [
            (b.var.name, call, annotation.configs[b.var.name])
            for b, call in graph.calls()
            if annotation.nodes[b.var.name].decision == "format"
        ]
        self.seen: dict[Watched, FormatObserver | PerChannel] = {}
        self.results: dict[str, MinMax] = {}
        for name, call, config in self.nodes:
            if config.compute == "native":
                self.results[name] = MinMax()
            for k in observed_values(call, config, self.roles[name]):
                watched = watched_operand(call, k, self.roles[name][k], config)
                if watched not in self.seen:
                    self.seen[watched] = watched.observer()

    def beside(self, observers: Mapping[str, Observer]) -> dict[str, Observer]:
        """Value -> observer: those given, and those of formats."""
        parts: dict[str, list[Observer]] = {name: [o] for name, o in observers.items()}
        for watched, o in self.seen.items():
            parts.setdefault(watched.value, []).append(o)
        for value, largest in self.results.items():
            parts.setdefault(value, []).append(largest)
        return {name: p[0] if len(p) == 1 else Several(p) for name, p in parts.items()}

    def formats(self) -> dict[str, tuple[OperandFormat, ...]]:
        """Node -> the formats of its operands, once the data has been seen."""
        out = {}
        for name, call, config in self.nodes:
            found = tuple(
                self._operand(call, k, role, config) for k, role in enumerate(self.roles[name])
            )
            if name in self.results:
                reach = max(map(abs, self.results[name].range()))
                found = with_room(found, reach, powers_of_two(config))
            out[name] = found
        return out

    def _operand(self, call: Call, k: int, role: str, config: QConfig) -> OperandFormat:
        """The format of a node's factor, from what was seen of the value."""
        a = operands(call)[k]
        if role in ("softmax", "norm"):
            return OperandFormat(config.site(role).format)
        if isinstance(a, Constant):
            return weight_format(call, a.data, config)
        o = self.seen.get(watched_operand(call, k, role, config))
        return value_format(call, k, role, config.of_values, o)


def watched_operand(call: Call, k: int, role: str, config: QConfig) -> Watched:
    """What is to be known of operand `k`."""
    a, site = operands(call)[k], config.site(role)
    assert isinstance(a, Var)
    return Watched(a.name, site, static_axes(call, k, role, site.granularity), config.of_values)


# ---- choosing ------------------------------------------------------------------------------------
def weight_format(call: Call, weight: Array, config: QConfig) -> OperandFormat:
    """The format that weights of a layer, or such in place of them, get."""
    name = config.weight_format
    if name == FLOAT:
        return OperandFormat(FLOAT)
    if (block := block_format(name)) is not None:
        return _blocks(call, len(operands(call)) - 1, block, config, float(np.abs(weight).max()))
    scales = weight_scales(weight, element(name), config)
    group = config.weight_group_size if config.weight_granularity == "group" else 0
    return OperandFormat(name, scales, 0, group, scale_dtype=config.scale_dtype)


def value_format(
    call: Call, k: int, role: str, config: QConfig, seen: FormatObserver | PerChannel | None
) -> OperandFormat:
    """The format of a factor that is known only when it runs; `seen` if it was to be observed."""
    site = config.site(role)
    if site.format == FLOAT:
        return OperandFormat(FLOAT)
    if (block := block_format(site.format)) is not None:
        reach = seen.reach if isinstance(seen, FormatObserver) else 0.0
        return _blocks(call, k, block, config, reach)
    if site.granularity == "token":
        reach = seen.reach if isinstance(seen, FormatObserver) else 0.0
        return _tokens(site.format, token_axis(call, k, role), config, reach)
    held = config.scale_dtype
    if isinstance(seen, PerChannel):
        axes, e = static_axes(call, k, role, site.granularity), element(site.format)
        return OperandFormat(site.format, _scales(seen, e), axes=axes, scale_dtype=held)
    assert isinstance(seen, FormatObserver), "calibration has watched it"
    if bits := unsigned_bits(site.format):
        scale, zero = seen.grid(bits)
        return OperandFormat(site.format, (scale,), scale_dtype=held, zero_point=zero)
    return OperandFormat(site.format, (seen.scale(element(site.format)),), scale_dtype=held)


def _scales(o: PerChannel, e: Element) -> tuple[float, ...]:
    """Scales of all parts, in row-major order."""
    found: list[float] = []
    for part in o.parts:
        if isinstance(part, PerChannel):
            found += _scales(part, e)
        else:
            assert isinstance(part, FormatObserver)
            found.append(part.scale(e))
    return tuple(found)


def _tokens(name: str, axis: int, config: QConfig, reach: float) -> OperandFormat:
    bits = unsigned_bits(name)
    block = BlockFormat("", f"int{bits}" if bits else name, config.scale_dtype)
    unit = rounded_scale(block.unit(reach), False) if block.has_unit else 1.0
    rounding = config.block_scale_rounding if block.powers else "floor"
    return OperandFormat(
        name, (unit,), axis, scale_rounding=rounding, scale_dtype=config.scale_dtype, token=True
    )


def _blocks(call: Call, k: int, block: BlockFormat, config: QConfig, reach: float) -> OperandFormat:
    axis, flat = block_axis(call, k), flat_blocks(call, k)
    if block.powers:
        rounding = config.block_scale_rounding
        return OperandFormat(block.name, axis=axis, flat=flat, scale_rounding=rounding)
    unit = rounded_scale(block.unit(reach), powers_of_two(config)) if block.has_unit else 1.0
    return OperandFormat(block.name, (unit,), axis, flat=flat)
