"""Plan: every decision of a quantization as plain data, keyed by names of the prepared module."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from reprlib import repr as short
from typing import Any

from compiler._html import preformatted
from compiler.errors import ConfigError
from compiler.files.printable import printable
from compiler.files.reading import parse_json, read_text
from compiler.files.writing import write_whole
from quantize.config.qconfig import QConfig
from quantize.formats.operand_format import OperandFormat, operand_dict, operands_of
from quantize.plan.entries import (
    MOST,
    as_integer,
    as_text,
    as_texts,
    entries,
    factors_dict,
    factors_of,
    named_entries,
    node_dict,
    node_of,
    rotation_dict,
    rotation_of_entry,
    shift_of,
    value_dict,
    value_of,
    weight_dict,
    weight_of,
)
from quantize.plan.factors import Factors
from quantize.plan.node_plan import SEQUENTIAL, NodePlan
from quantize.plan.params import ValueParams, WeightParams
from quantize.plan.rotation import Rotation

PLAN_VERSION = 2
PLAN_DEFAULTS: dict[str, Any] = {
    "factors": {},
    "formats": {},
    "steps": [],
    "shifts": {},
    "rotation": {},
}
"""Entries that a saved plan may leave out, and what they are then."""


@dataclass(frozen=True)
class Plan:
    """A quantization, decided. It can be saved, read, edited and applied to the model again.

    A weighted node whose result has no entry in `values` is not narrowed to 8 bits: its int32
    accumulator is turned into float32 directly.

    Attributes:
        prepare_version: version of `compiler.transform.preparation` that gave the names.
        model: what tells the model from others, see `quantize.plan.fingerprint`.
        config: the scheme.
        nodes: value name -> decision for the operator call that computes it.
        values: value name -> parameters of the values that exist as 8-bit integers. Values that are
            only moved (reshape, max-pooling ...) have those of what they were moved from.
        weights: node name -> parameters of its weights.
        factors: value name -> how its channels are rescaled before anything is quantized (see
            `quantize.calibration.rescaling`).
        formats: node name -> number formats of its two factors, where it is decided to be in a
            `format`.
        version: layout of the saved plan.
        steps: how the precision of nodes was found, if it was searched.
        shifts: node name -> what is added to the bias of each output channel of a layer in formats
            (see `quantize.calibration.bias_correction`).
        rotation: which values are in another basis (see `quantize.plan.rotation`); that comes
            before the factors.
    """

    prepare_version: int
    model: str
    config: QConfig
    nodes: Mapping[str, NodePlan]
    values: Mapping[str, ValueParams]
    weights: Mapping[str, WeightParams]
    factors: Mapping[str, Factors] = field(default_factory=dict)
    formats: Mapping[str, tuple[OperandFormat, ...]] = field(default_factory=dict)
    version: int = field(default=PLAN_VERSION)
    steps: tuple[str, ...] = ()
    shifts: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    rotation: Rotation = field(default_factory=Rotation)

    @property
    def sequential(self) -> Plan:
        """This plan with accumulators of 32 bits, where sums are of integers."""
        nodes = {
            k: n if n.decision == "format" else replace(n, accumulate=SEQUENTIAL)
            for k, n in self.nodes.items()
        }
        return replace(self, config=replace(self.config, accumulate=SEQUENTIAL), nodes=nodes)

    def native(self, node: str) -> bool:
        """Whether a node in formats computes products and sums in its format."""
        return (self.nodes[node].compute or self.config.compute) == "native"

    @property
    def skipped(self) -> dict[str, str]:
        """Node -> reason, for every node that stays float."""
        return {k: n.reason for k, n in self.nodes.items() if n.decision == "float"}

    @property
    def coverage(self) -> float:
        """Share of the multiply-accumulates that are done on integers or numbers of formats (of the
        nodes, without any)."""
        total = sum(n.macs for n in self.nodes.values())
        done = [n for n in self.nodes.values() if n.decision not in ("float", "weights")]
        return sum(n.macs for n in done) / total if total else self.node_coverage

    @property
    def node_coverage(self) -> float:
        """Share of the nodes that do not stay float."""
        return 1.0 - len(self.skipped) / len(self.nodes) if self.nodes else 1.0

    # ---- text ------------------------------------------------------------------------------------
    def summary(self) -> str:
        """A table of the nodes: decision, scales, multiply-accumulates, and why some stay float."""
        rows = [("node", "operator", "decision", "MACs", "parameters, or why it stays float")]
        for name, n in self.nodes.items():
            why = printable(n.reason or self._about(name))
            rows.append((printable(name), printable(n.op), n.decision, str(n.macs or ""), why))
        widths = [max(len(r[k]) for r in rows) for k in range(4)]
        lines = [
            "  ".join([*(r[k].ljust(widths[k]) for k in range(4)), r[4]]).rstrip() for r in rows
        ]
        floats = len(self.skipped)
        lines.append(
            f"{len(self.nodes) - floats} of {len(self.nodes)} nodes "
            f"({100 * self.node_coverage:.1f} %) in {self._kinds()}, "
            f"{100 * self.coverage:.1f} % of the multiply-accumulates"
        )
        lines += self._rotated()
        lines += map(printable, self.steps)
        return "\n".join(lines)

    def _rotated(self) -> list[str]:
        r = self.rotation
        heads = f"rotated along heads: {len(r.scores)} scores, {len(r.averages)} averages"
        found = [heads] if r.scores or r.averages else []
        if not r.streams:
            return found
        online = f", {len(r.online)} layers read transformed values" if r.online else ""
        seen = f"rotated (seed {r.seed}): the residual streams of {', '.join(r.streams)}{online}"
        return [*found, printable(seen), *(printable(f"not rotated: {why}") for why in r.declined)]

    def _kinds(self) -> str:
        if not self.formats:
            return "integers"
        return "integers and number formats" if self.weights else "number formats"

    def _about(self, name: str) -> str:
        parts = [str(f) for f in self.formats.get(name, ())]
        if name in self.weights:
            n = len(self.weights[name].scales)
            how = ", rounded by data" if self.weights[name].rounding else ""
            bits = self.weights[name].bits
            parts.append(f"int{bits} weights, {n} scale{'s' if n > 1 else ''}{how}")
        if self.nodes[name].accumulate != SEQUENTIAL:
            parts.append(f"accumulator {self.nodes[name].accumulate}")
        if self.nodes[name].function_of:
            parts.append(f"a table of {self.nodes[name].function_of}")
        if name in self.values:
            v = self.values[name]
            parts.append(f"{v.dtype} result, scale {v.scale:.6g}, zero point {v.zero_point}")
        return "; ".join(parts)

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        return preformatted(self.summary())

    # ---- JSON ------------------------------------------------------------------------------------
    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON-compatible data; `from_dict` gives an equal plan."""
        formats = {k: list(map(operand_dict, f)) for k, f in self.formats.items()}
        return {
            "version": self.version,
            "prepare_version": self.prepare_version,
            "model": self.model,
            "config": self.config.to_dict(),
            "nodes": {k: node_dict(n) for k, n in self.nodes.items()},
            "values": {k: value_dict(v) for k, v in self.values.items()},
            "weights": {k: weight_dict(w) for k, w in self.weights.items()},
            **({"factors": factors} if (factors := factors_dict(self.factors)) else {}),
            **({"formats": formats} if formats else {}),
            **({"steps": list(self.steps)} if self.steps else {}),
            **({"rotation": rotation} if (rotation := rotation_dict(self.rotation)) else {}),
            **({"shifts": {k: list(v) for k, v in self.shifts.items()}} if self.shifts else {}),
        }

    def to_json(self, path: str | Path | None = None) -> str:
        """The plan as JSON text, an entry a line, floats exact; written to `path` too, if given.

        Raises:
            ConfigError: the file cannot be written.
        """
        out = []
        for key, value in self.to_dict().items():
            if isinstance(value, dict) and value:
                inner = ",\n".join(
                    f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()
                )
                out.append(f"  {json.dumps(key)}: {{\n{inner}\n  }}")
            else:
                out.append(f"  {json.dumps(key)}: {json.dumps(value)}")
        text = "{\n" + ",\n".join(out) + "\n}\n"
        if path is not None:
            write_whole(path, text.encode())
        return text

    @staticmethod
    def from_dict(data: Any) -> Plan:
        """The plan that `to_dict` wrote.

        Raises:
            ConfigError: another version, unknown or missing entries, or values that do not fit.
        """
        d = entries("plan", {**PLAN_DEFAULTS, **data} if isinstance(data, dict) else data, Plan)
        if d["version"] != PLAN_VERSION:
            raise ConfigError(
                f"the plan has version {short(d['version'])}, not {PLAN_VERSION}: calibrate again"
            )
        config = d["config"]
        if not isinstance(config, dict):
            raise ConfigError(f"the plan's config must be an object, not {short(config)}")
        return Plan(
            as_integer("the plan's prepare_version", d["prepare_version"], 0, MOST),
            as_text("the plan's model", d["model"]),
            QConfig.from_dict(config),
            {k: node_of(k, v) for k, v in named_entries(d, "nodes").items()},
            {k: value_of(k, v) for k, v in named_entries(d, "values").items()},
            {k: weight_of(k, v) for k, v in named_entries(d, "weights").items()},
            {k: factors_of(k, v) for k, v in named_entries(d, "factors").items()},
            {k: operands_of(k, v) for k, v in named_entries(d, "formats").items()},
            steps=as_texts("the plan's steps", d["steps"]),
            rotation=rotation_of_entry(d["rotation"]),
            shifts={k: shift_of(k, v) for k, v in named_entries(d, "shifts").items()},
        )

    @staticmethod
    def from_json(source: str | Path) -> Plan:
        """The plan in a JSON file, or in JSON text (which starts with a brace).

        Raises:
            ConfigError: the file cannot be read, is not JSON, or is not a plan.
        """
        text, where = str(source), "the plan"
        if not text.lstrip().startswith("{"):
            where, text = f"the plan {text}", read_text(source, where)
        return Plan.from_dict(parse_json(text, where))
