"""Plan: every decision of a quantization as plain data, keyed by names of the prepared module."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from compiler._html import preformatted
from compiler.errors import ConfigError, unknown
from quantize.config import QConfig, check_accumulate
from quantize.params import ValueParams, WeightParams
from quantize.rescaling.factors import Factors
from quantize.scaled.params import OperandFormat, operand_dict, operands_of

PLAN_VERSION = 2
DECISIONS = ("integer", "folded", "tabled", "format", "weights", "float")
SEQUENTIAL = "sequential"


@dataclass(frozen=True)
class NodePlan:
    """What becomes of one operator call.

    Attributes:
        op: name of the operator.
        decision: `integer`; `folded` (an activation that the producer's clipping does); `tabled`
            (part of a later node's table); `format` (its factors are numbers of the formats that
            `Plan.formats` gives); `float`.
        reason: why it stays float; empty otherwise.
        macs: multiply-accumulates, symbolic dimensions counted as 1.
        origins: names of the ONNX nodes it comes from.
        accumulate: its accumulator, if it has weights (see `QConfig.accumulate`).
        function_of: of an integer node that becomes a table: the value whose integers it is looked
            up by; all that lies between the two is part of the table.
    """

    op: str
    decision: str
    reason: str = ""
    macs: int = 0
    origins: tuple[str, ...] = ()
    accumulate: str = SEQUENTIAL
    function_of: str = ""


@dataclass(frozen=True)
class Plan:
    """A quantization, decided. It can be saved, read, edited and applied to the model again.

    A weighted node whose result has no entry in `values` is not narrowed to 8 bits: its int32
    accumulator is turned into float32 directly.

    Attributes:
        prepare_version: version of `compiler.transform.preparation` that gave the names.
        model: what tells the model from others, see `quantize.fingerprint`.
        config: the scheme.
        nodes: value name -> decision for the operator call that computes it.
        values: value name -> parameters of the values that exist as 8-bit integers. Values that are
            only moved (reshape, max-pooling ...) have those of what they were moved from.
        weights: node name -> parameters of its weights.
        factors: value name -> how its channels are rescaled before anything is quantized (see
            `quantize.rescaling`).
        formats: node name -> number formats of its two factors, where it is decided to be in a
            `format`.
        version: layout of the saved plan.
        steps: how the precision of nodes was found, if it was searched.
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

    @property
    def sequential(self) -> Plan:
        """This plan with accumulators of 32 bits."""
        nodes = {k: replace(n, accumulate=SEQUENTIAL) for k, n in self.nodes.items()}
        return replace(self, config=replace(self.config, accumulate=SEQUENTIAL), nodes=nodes)

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
            rows.append((name, n.op, n.decision, str(n.macs or ""), n.reason or self._about(name)))
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
        lines += self.steps
        return "\n".join(lines)

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
            "nodes": {k: _node_dict(n) for k, n in self.nodes.items()},
            "values": {k: _value_dict(v) for k, v in self.values.items()},
            "weights": {k: _weight_dict(w) for k, w in self.weights.items()},
            **({"factors": factors} if (factors := _factors_dict(self.factors)) else {}),
            **({"formats": formats} if formats else {}),
            **({"steps": list(self.steps)} if self.steps else {}),
        }

    def to_json(self, path: str | Path | None = None) -> str:
        """The plan as JSON text, an entry a line, floats exact; written to `path` too, if given."""
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
            try:
                Path(path).write_text(text)
            except OSError as e:
                raise ConfigError(f"the plan cannot be written to {path}: {e.strerror}") from None
        return text

    @staticmethod
    def from_dict(data: Any) -> Plan:
        """The plan that `to_dict` wrote.

        Raises:
            ConfigError: another version, unknown or missing entries, or values that do not fit.
        """
        optional: dict[str, Any] = {"factors": {}, "formats": {}, "steps": []}
        d = _entries("plan", {**optional, **data} if isinstance(data, dict) else data, Plan)
        if d["version"] != PLAN_VERSION:
            raise ConfigError(
                f"the plan has version {d['version']!r}, not {PLAN_VERSION}: calibrate again"
            )
        config = d["config"]
        if not isinstance(config, dict):
            raise ConfigError(f"the plan's config must be an object, not {config!r}")
        return Plan(
            int(d["prepare_version"]),
            str(d["model"]),
            QConfig.from_dict(config),
            {k: _node(k, v) for k, v in _object(d, "nodes").items()},
            {k: _value(k, v) for k, v in _object(d, "values").items()},
            {k: _weight(k, v) for k, v in _object(d, "weights").items()},
            {k: _factors(k, v) for k, v in _object(d, "factors").items()},
            {k: operands_of(k, v) for k, v in _object(d, "formats").items()},
            steps=tuple(map(str, d["steps"])),
        )

    @staticmethod
    def from_json(source: str | Path) -> Plan:
        """The plan in a JSON file, or in JSON text (which starts with a brace).

        Raises:
            ConfigError: the file cannot be read, is not JSON, or is not a plan.
        """
        text = str(source)
        where = "the plan"
        if not text.lstrip().startswith("{"):
            where = f"the plan {text}"
            try:
                text = Path(source).read_text()
            except (OSError, UnicodeDecodeError) as e:
                raise ConfigError(f"{where} cannot be read: {e}") from None
        try:
            data = json.loads(text)
        except json.JSONDecodeError as e:
            raise ConfigError(f"{where} is not JSON: {e}") from None
        return Plan.from_dict(data)


def _entries(what: str, data: Any, cls: type) -> dict[str, Any]:
    known = [f.name for f in fields(cls)]
    if not isinstance(data, dict):
        raise ConfigError(f"{what}: expected an object with {', '.join(known)}, not {data!r}")
    for k in data:
        if k not in known:
            raise ConfigError(f"{what}: {unknown('entry', str(k), known)}")
    missing = [k for k in known if k not in data]
    if missing:
        raise ConfigError(f"{what}: missing {', '.join(missing)}")
    return data


def _object(data: dict[str, Any], key: str) -> dict[str, Any]:
    if not isinstance(data[key], dict):
        raise ConfigError(f"the plan's {key} must be an object, not {data[key]!r}")
    return dict(data[key])


def _node_dict(n: NodePlan) -> dict[str, Any]:
    d = {**asdict(n), "origins": list(n.origins)}
    if n.accumulate == SEQUENTIAL:  # left out: most nodes have no other
        del d["accumulate"]
    if not n.function_of:
        del d["function_of"]
    return d


def _node(name: str, data: Any) -> NodePlan:
    rest = {"accumulate": SEQUENTIAL, "function_of": ""}
    given = {**rest, **data} if isinstance(data, dict) else data
    d = _entries(f"node {name!r}", given, NodePlan)
    if d["decision"] not in DECISIONS:
        problem = unknown("decision", str(d["decision"]), DECISIONS)
        raise ConfigError(f"node {name!r}: {problem}")
    if d["decision"] == "float" and not d["reason"]:
        raise ConfigError(f"node {name!r}: a node that stays float needs a reason")
    return NodePlan(
        str(d["op"]),
        d["decision"],
        str(d["reason"]),
        int(d["macs"]),
        tuple(d["origins"]),
        check_accumulate(d["accumulate"]),
        str(d["function_of"]),
    )


def _value_dict(v: ValueParams) -> dict[str, Any]:
    d = asdict(v)
    if not v.restricted:  # left out: few plans have it
        del d["restricted"]
    return d


def _weight_dict(w: WeightParams) -> dict[str, Any]:
    shift = {"shift": list(w.shift)} if w.shift else {}
    rounding = {"rounding": w.rounding} if w.rounding else {}
    zeros = {"zero_points": list(w.zero_points)} if w.zero_points else {}
    group = {"group": w.group} if w.group else {}
    return {"scales": list(w.scales), "bits": w.bits, **shift, **rounding, **zeros, **group}


def _value(name: str, data: Any) -> ValueParams:
    given = {"restricted": False, **data} if isinstance(data, dict) else data
    d = _entries(f"value {name!r}", given, ValueParams)
    dtypes = ("int8", "uint8", "int16")
    if d["dtype"] not in dtypes:
        raise ConfigError(f"value {name!r}: {unknown('dtype', str(d['dtype']), dtypes)}")
    if not isinstance(d["restricted"], bool):
        raise ConfigError(f"value {name!r}: restricted must be true or false")
    most = 16 if d["dtype"] == "int16" else 8
    bits = _integer(f"value {name!r}: bits", d["bits"], 2, most)
    scale = _positive(f"value {name!r}", d["scale"])
    p = ValueParams(scale, 0, d["dtype"], bits, d["restricted"])
    zero = _integer(f"value {name!r}: zero_point", d["zero_point"], p.qmin, p.qmax)
    return replace(p, zero_point=zero)


def _weight(name: str, data: Any) -> WeightParams:
    absent = {"shift": [], "rounding": "", "zero_points": [], "group": 0}
    given = {**absent, **data} if isinstance(data, dict) else data
    d = _entries(f"weights of {name!r}", given, WeightParams)
    if not isinstance(d["scales"], list) or not d["scales"]:
        raise ConfigError(f"weights of {name!r}: scales must be a list of numbers")
    scales = tuple(_positive(f"weights of {name!r}", s) for s in d["scales"])
    shift = d["shift"]
    if not isinstance(shift, list) or not all(type(s) in (int, float) for s in shift):
        raise ConfigError(f"weights of {name!r}: shift must be a list of numbers, not {shift!r}")
    bits = _integer(f"weights of {name!r}: bits", d["bits"], 2, 16)
    group = _integer(f"weights of {name!r}: group", d["group"], 0, 1 << 20)
    if not isinstance(d["rounding"], str):
        raise ConfigError(f"weights of {name!r}: rounding must be text, not {d['rounding']!r}")
    zeros = _zero_points(name, d["zero_points"], bits, len(scales))
    return WeightParams(scales, bits, tuple(map(float, shift)), d["rounding"], zeros, group)


def _zero_points(name: str, given: Any, bits: int, count: int) -> tuple[int, ...]:
    if not isinstance(given, list) or len(given) not in (0, count):
        raise ConfigError(
            f"weights of {name!r}: zero_points must be a list of integers, as many as scales"
        )
    half = 1 << (bits - 1)
    what = f"weights of {name!r}: a zero point"
    return tuple(_integer(what, zero, -half, half - 1) for zero in given)


def _factors_dict(factors: Mapping[str, Factors]) -> dict[str, Any]:
    return {
        k: {"readers": list(f.readers), "divisors": list(f.divisors)} for k, f in factors.items()
    }


def _factors(name: str, data: Any) -> Factors:
    what = f"factors of {name!r}"
    d = _entries(what, data, Factors)
    for key in ("readers", "divisors"):
        if not isinstance(d[key], list) or not d[key]:
            raise ConfigError(f"{what}: {key} must be a list, not {d[key]!r}")
    readers, divisors = d["readers"], d["divisors"]
    return Factors(tuple(map(str, readers)), tuple(_positive(what, v) for v in divisors))


def _positive(what: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e30:
        raise ConfigError(f"{what}: a scale must be a positive number, not {value!r}")
    import numpy as np

    if float(np.float32(value)) != float(value):
        raise ConfigError(
            f"{what}: float32 does not hold the scale {value!r} exactly; "
            f"write {float(np.float32(value))!r}"
        )
    return float(value)


def _integer(what: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"{what} must be an integer from {low} to {high}, not {value!r}")
    return value
