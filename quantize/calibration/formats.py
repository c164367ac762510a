"""What calibration watches for the sake of nodes in formats, and the formats it then gives them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from compiler.ir.expr import Atom, Call, Constant, Var
from compiler.types.dtypes import FLOAT32, Array
from quantize.annotation.annotate import Annotation
from quantize.annotation.format_nodes import (
    block_axis,
    flat_blocks,
    format_of,
    observed_values,
    operands,
)
from quantize.annotation.graph import Graph
from quantize.calibration.format_scales import (
    FormatObserver,
    powers_of_two,
    rounded_scale,
    weight_scales,
    with_room,
)
from quantize.calibration.observers import MinMax, Observer, Several
from quantize.config.qconfig import QConfig
from quantize.formats.blocks import FLOAT, block_format
from quantize.formats.element import element, unsigned_bits
from quantize.formats.operand_format import OperandFormat


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
                    bits = unsigned_bits(config.activation_format)
                    self.seen[value, config] = FormatObserver(config, bits)

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


# ---- choosing ------------------------------------------------------------------------------------
def operand_formats(
    call: Call, config: QConfig, seen: Mapping[str, FormatObserver]
) -> tuple[OperandFormat, ...]:
    """The formats of a node's two factors, from what was seen of the values they are."""
    return tuple(_operand(call, k, a, config, seen) for k, a in enumerate(operands(call)))


def _operand(
    call: Call, k: int, a: Atom, config: QConfig, seen: Mapping[str, FormatObserver]
) -> OperandFormat:
    name = format_of(call, k, config)
    if name == FLOAT:
        return OperandFormat(FLOAT)
    if (block := block_format(name)) is not None:
        axis, flat = block_axis(call, k), flat_blocks(call, k)
        if block.powers:
            return OperandFormat(
                name, axis=axis, flat=flat, scale_rounding=config.block_scale_rounding
            )
        largest = float(np.abs(a.data).max()) if isinstance(a, Constant) else seen[_name(a)].reach
        unit = rounded_scale(block.unit(largest), powers_of_two(config))
        return OperandFormat(name, (unit,), axis, flat=flat)
    if isinstance(a, Constant):
        scales = weight_scales(a.data, element(name), config)
        group = config.weight_group_size if config.weight_granularity == "group" else 0
        return OperandFormat(name, scales, 0, group, scale_dtype=config.scale_dtype)
    if unsigned_bits(name):
        scale, zero = seen[_name(a)].grid(unsigned_bits(name))
        return OperandFormat(name, (scale,), scale_dtype=config.scale_dtype, zero_point=zero)
    return OperandFormat(
        name, (seen[_name(a)].scale(element(name)),), scale_dtype=config.scale_dtype
    )


def weight_format(call: Call, weight: Array, config: QConfig) -> OperandFormat:
    """The format that weights in place of a layer's would get."""
    return _operand(call, 1, Constant.of(weight.astype(np.float32), FLOAT32), config, {})


def _name(a: Atom) -> str:
    assert isinstance(a, Var)
    return a.name
