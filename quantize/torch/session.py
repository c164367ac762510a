"""What a quantizer knows of one graph: the program, what is decided of it, and the numbers, as soon
as they are known."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from compiler.errors import InputError, UnsupportedError
from compiler.ir.expr import Call, Constant, IRModule
from compiler.types.dtypes import Array
from quantize.annotation.annotate import annotated, prepared
from quantize.annotation.graph import Graph
from quantize.annotation.op_facts import activations, is_weighted, source
from quantize.calibration.rescaling.choosing import depends_on_data
from quantize.config.qconfig import QConfig
from quantize.plan.call_facts import Form, form
from quantize.plan.node_plan import NodePlan
from quantize.plan.params import ValueParams
from quantize.plan.plan import Plan
from quantize.torch.matching import matched
from quantize.workflow import calibrate


class Session:
    """A network that is quantized by a plan, or by a configuration that calibration will make a
    plan of.

    Attributes:
        module: the prepared program of the graph.
        original: the network as it was before torch folded batch norms, whose weights count, and
            which is calibrated.
        config: the scheme.
        nodes: name -> decision.
        inputs: names of the inputs.
        values: names of the values that are integers.
        configs: node or value -> the scheme there; of a plan, none.
        floats: value -> the graph's nodes that read it before it is quantized (`float_readers`).

    Raises:
        ConfigError: the plan was made for another model.
        UnsupportedError: torch's flow has no such quantization; the nodes are named.
    """

    def __init__(self, module: IRModule, scheme: Plan | QConfig, original: IRModule | None = None):
        self.module = prepared(module)
        self.original = self.module if original is None else prepared(original)
        self.graph = Graph(self.module.main)
        self.config = scheme.config if isinstance(scheme, Plan) else scheme
        self.inputs = tuple(p.name for p in self.module.main.params)
        self._batches: dict[str, list[Array]] = {name: [] for name in self.inputs}
        self._plan: Plan | None = None
        self._made: Plan | None = scheme if isinstance(scheme, Plan) else None
        calls = Graph(self.original.main).calls()
        here = [b.var.name for b, _ in self.graph.calls()]
        self._constants = {
            k: [a.data for a in call.args[1:] if isinstance(a, Constant)]
            for k, (_, call) in zip(here, calls, strict=False)
        }
        self.configs: Mapping[str, QConfig] = {}
        self.floats: Mapping[str, frozenset[str]] = {}
        if isinstance(scheme, Plan):
            self._known(matched(scheme, self.module))
            return
        # Patterns of names are about the network as it was.
        found = annotated(self.original, self.config)
        names = dict(zip((b.var.name for b, _ in calls), here, strict=False))
        self.configs = {names.get(k, k): c for k, c in found.configs.items()}
        self.nodes: Mapping[str, NodePlan] = {names.get(k, k): n for k, n in found.nodes.items()}
        self.values: tuple[str, ...] = tuple(names.get(k, k) for k in found.observed)
        self._check(rescales=self.config.equalize or depends_on_data(found, self.config))

    def __deepcopy__(self, memo: object) -> Session:
        return self  # copies of a prepared graph are of one plan

    def _known(self, plan: Plan) -> None:
        self._plan, self.nodes, self.values = plan, plan.nodes, tuple(plan.values)
        self._check(rescales=bool(plan.factors) or not plan.rotation.empty)

    def _check(self, rescales: bool) -> None:
        """Raise UnsupportedError for what torch's flow cannot say."""
        if rescales or self.config.rotate or self.config.rotate_heads:
            raise UnsupportedError(
                "torch's flow cannot rescale or rotate channels: calibrate with equalize=False, "
                "smoothing=0, activation_aware=False, rotate=False and rotate_heads=False"
            )
        formats = [k for k, n in self.nodes.items() if n.decision in ("format", "weights")]
        if formats:
            raise UnsupportedError(
                "torch's flow has integers of both factors alone, with a scale a tensor or "
                f"channel, not what is decided of {_listed(formats)}: use weight_dtype='int8' and "
                "activation_dtype='int8' or 'uint8'"
            )
        plan = self._plan
        values = {k: plan.values[k].bits for k in self.values} if plan is not None else {}
        weights = {k: w.bits for k, w in plan.weights.items()} if plan is not None else {}
        if plan is None:
            values = {k: self.configs[k].activation_bits for k in self.values}
            weights = {b: self.configs[b].weight_bits for b in self.weighted()}
        wide = [k for k, bits in (*values.items(), *weights.items()) if bits > 8]
        if wide:
            raise UnsupportedError(
                f"torch's flow has integers of up to 8 bits: give {_listed(wide)} fewer"
            )

    # ---- what is known ---------------------------------------------------------------------------
    def weighted(self) -> dict[str, Call]:
        """The nodes whose weights are integers."""
        return {
            b.var.name: call
            for b, call in self.graph.calls()
            if self.nodes[b.var.name].decision == "integer" and is_weighted(call)
        }

    def data(self, call: Call) -> ValueParams:
        """Parameters of what a node with weights reads."""
        return self.plan.values[source(self.graph, self.nodes, activations(call)[0]).name]

    def dtype(self, name: str) -> str:
        """The dtype of a value's integers."""
        if self._plan is not None:
            return self._plan.values[name].dtype
        return self.configs[name].activation_dtype

    def clipped(self) -> dict[str, str]:
        """Values that an activation clips which is no part of what it reads -> the value whose
        parameters they have: they are rounded once more, as the bounds are."""
        return {
            b.var.name: source(self.graph, self.nodes, b.var).name
            for b, call in self.graph.calls()
            if self.nodes[b.var.name].decision == "integer" and form(call) == Form.CLIP
        }

    def constants(self, name: str) -> tuple[Array, Array | None]:
        """The float weights of a node, the output channel first, and its bias [C], if any."""
        weight, *bias = self._constants[name]
        return weight, bias[0] if bias else None

    # ---- calibration -----------------------------------------------------------------------------
    def record(self, name: str, values: Array) -> None:
        """Take in one batch of an input."""
        if self._plan is None:
            self._batches[name].append(np.array(values))

    @property
    def given(self) -> Plan | None:
        """The plan, with the names of the graph's program, if it is known without calibration."""
        return self._plan

    @property
    def original_plan(self) -> Plan:
        """The plan as it was given, or as calibration made it: of the network `original`.

        Raises:
            InputError: see `plan`.
        """
        known, made = self.plan, self._made
        return known if made is None else made

    @property
    def plan(self) -> Plan:
        """The plan, with the names of the graph's program; made of what was recorded, by
        `quantize.calibrate`, when it is first wanted.

        Raises:
            InputError: nothing was recorded.
        """
        if self._plan is None:
            count = min(map(len, self._batches.values()), default=0)
            if not count:
                raise InputError(
                    "the prepared module was not calibrated: call it with some batches before "
                    "convert_pt2e"
                )
            batches = [{k: v[i] for k, v in self._batches.items()} for i in range(count)]
            self._made = calibrate(self.original, batches, self.config)
            self._known(matched(self._made, self.module))
            self._batches = {}
        assert self._plan is not None
        return self._plan


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(map(repr, names[:5])) + more
