"""DtypelabQuantizer: a plan, or a configuration, as a quantizer of torch's PT2E flow."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.errors import ConfigError, ModelError
from compiler.frontend.torch.places import placed
from compiler.ir.expr import IRModule
from quantize.config.qconfig import QConfig
from quantize.plan.plan import Plan
from quantize.torch.session import Session
from quantize.torch.sites import (
    CONFIG,
    Sites,
    WeightSite,
    float_readers,
    position,
    sites_of,
    tensor,
)

try:
    import torch
    from torchao.quantization.pt2e.quantizer import (
        QuantizationAnnotation,
        QuantizationSpec,
        Quantizer,
    )
    from torchao.quantization.pt2e.utils import create_getattr_from_value
except ImportError as e:
    raise ModelError(
        f"DtypelabQuantizer needs torch and torchao ({e}): pip install 'dtypelab[pt2e]'"
    ) from None

from quantize.torch.observers import (
    Maker,
    ObservedBias,
    ObservedValue,
    ObservedWeight,
)
from quantize.torch.simulating import SimulatedValue, SimulatedWeight
from quantize.torch.writing import DTYPES, INT32

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

_KEY = "quantization_annotation"


class DtypelabQuantizer(Quantizer):
    """Annotates an exported graph with what a plan decides, or what `quantize.annotate` decides for
    a configuration.

    With a plan, the scales are the plan's, and the prepared graph need not be calibrated. With a
    configuration, the batches that the prepared graph is called with are kept, and
    `quantize.calibrate` makes the plan of them when the graph is converted. Both ways weights and
    biases become the integers of the plan, and values are quantized where they are made: what only
    moves them has no nodes of its own.

    Accumulators and the arithmetic that scales them are torch's: float32 sums (see
    `QConfig.accumulate` and `QConfig.requantize` for ours).

    Args:
        scheme: a plan, its file, or a configuration; without it the recommended 8-bit scheme.
        mod: the float32 network that the plan is for, `compiler.from_torch(module, args)`. It is
            needed where torch folds batch norms, since the last bits of what it folds are others:
            weights and biases are then those of `mod`, and the plan is for it.
        qat: for `prepare_qat_pt2e`: values and weights are rounded as the module trains, with
            gradients passed straight through. With a plan, all scales stay the plan's (what it
            corrects of weights and biases is left to training); with a configuration, values have
            those of the moving average of their ends (`momentum`), and weights those of what they
            are. Biases stay float32. `plan_of(converted)` gives the plan.

    Attributes:
        session: of the graph that was annotated last.
    """

    def __init__(
        self,
        scheme: Plan | QConfig | str | Path | None = None,
        mod: IRModule | None = None,
        qat: bool = False,
    ):
        if isinstance(scheme, str | Path):
            scheme = Plan.from_json(scheme)
        if scheme is not None and not isinstance(scheme, Plan | QConfig):
            raise ConfigError(
                "DtypelabQuantizer takes a Plan, its file, or a QConfig, not "
                f"{type(scheme).__name__}"
            )
        self._scheme = scheme or QConfig()
        self._mod, self._qat = mod, qat
        self._session: Session | None = None

    @property
    def plan(self) -> Plan:
        """The plan of the graph that was annotated last; for `mod`, if that was given.

        Raises:
            ModelError: none was.
            InputError: it is made of calibration data, and there was none.
        """
        return self.session.original_plan

    @property
    def session(self) -> Session:
        """What is known of the graph that was annotated last.

        Raises:
            ModelError: none was.
        """
        if self._session is None:
            raise ModelError("no graph was annotated: call prepare_pt2e(graph, quantizer) first")
        return self._session

    # ---- what prepare_pt2e calls -----------------------------------------------------------------
    def annotate(self, model: GraphModule) -> GraphModule:
        """Write into every node how its result, weights and bias are quantized.

        Raises:
            ModelError: it is no exported graph.
            ConfigError: the plan was made for another model.
            UnsupportedError: operators that we do not import, or quantization that torch's flow
                cannot say; the nodes are named.
        """
        found = placed(model)
        self._session = session = Session(found.module, self._scheme, self._mod)
        sites = sites_of(session, found.nodes)
        session.floats = float_readers(session, found.nodes)
        model.meta[CONFIG] = session.config
        self._annotate_values(sites)
        for site in sites.weights:
            self._annotate_weights(model, site)
        return model

    def validate(self, model: GraphModule) -> None:
        """All was checked before it was annotated."""

    # ---- annotations -----------------------------------------------------------------------------
    def _annotate_values(self, sites: Sites) -> None:
        session = self.session
        for name, node in () if self._qat else sites.inputs.items():  # all of them are recorded
            make = partial(ObservedValue, session, name, torch.uint8)
            _annotation(node).output_qspec = _spec(make, torch.uint8)
        for site in sites.values:
            dtype = DTYPES[session.dtype(site.name)]
            kind = SimulatedValue if self._qat else ObservedValue
            make = partial(kind, session, site.name, dtype)
            _annotation(site.node).output_qspec = _spec(make, dtype)

    def _annotate_weights(self, model: GraphModule, site: WeightSite) -> None:
        marked, of = _annotation(site.node), (self.session, site.name)
        kind = SimulatedWeight if self._qat else ObservedWeight
        if self._qat:  # torch takes the first entry for the data when it folds batch norms
            marked.input_qspec_map[site.node.args[0]] = None
        marked.input_qspec_map[site.weight] = _spec(partial(kind, *of, site.turned), torch.int8)
        if self._qat:
            return
        bias = site.bias if site.bias is not None else _with_bias(model, site)
        if bias is not None:
            marked.input_qspec_map[bias] = _spec(partial(ObservedBias, *of), INT32[-1])


def _annotation(node: Node) -> Any:
    """The annotation of a node, which it has from here on."""
    return node.meta.setdefault(_KEY, QuantizationAnnotation(_annotated=True))


def _spec(make: Callable[[], Any], dtype: torch.dtype) -> Any:
    """What has torch put the module that `make` makes in a place."""
    return QuantizationSpec(dtype=dtype, observer_or_fake_quant_ctr=Maker(make))


def _with_bias(model: GraphModule, site: WeightSite) -> Node | None:
    """A bias of zeros for a node that has none, which the plan may correct; None if its operator
    takes none."""
    k = position(site.node, "bias")
    if k is None:
        return None
    weight = tensor(site.weight)
    count = weight.shape[-1 if site.turned else 0]
    with model.graph.inserting_before(site.node):
        zeros = torch.zeros(count, dtype=weight.dtype)
        bias: Node = create_getattr_from_value(
            model, model.graph, f"{site.weight.name}_bias_", zeros
        )
    args = list(site.node.args)
    args += [None] * (k + 1 - len(args))
    args[k] = bias
    site.node.args = tuple(args)
    return bias
