"""What a training with quantization leaves to be used: the network in float32 with trained weights,
the plan with trained steps, and both as a QDQ model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from compiler.errors import ConfigError
from experiments.files import atomic_path
from experiments.zoo import model_files

from .data import Examples
from .loop import Trained
from .qat import planned, quantized
from .spec import Run

if TYPE_CHECKING:
    from compiler.ir.expr import IRModule
    from quantize import Plan

_WEIGHTS, _PLAN, _QDQ = ".onnx", ".plan.json", ".qdq.onnx"


@dataclass(frozen=True)
class Outcome:
    """Files of a run, named by its hash: `.onnx` the float32 network, `.plan.json` how that file is
    quantized, and `.qdq.onnx` the quantized network, for this project and other runtimes.

    There is no plan where ONNX writes the network in other nodes (dense layers on more than two
    dimensions, as products and sums): names would not fit."""

    folder: Path
    config_hash: str

    @property
    def weights(self) -> Path:
        """The network in float32."""
        return self.folder / f"{self.config_hash}{_WEIGHTS}"

    @property
    def plan(self) -> Path:
        """How it is quantized."""
        return self.folder / f"{self.config_hash}{_PLAN}"

    @property
    def quantized(self) -> Path:
        """The quantized network."""
        return self.folder / f"{self.config_hash}{_QDQ}"

    def write(self, run: Run, data: Examples, trained: Trained) -> None:
        """Write them.

        Raises:
            ConfigError: a file cannot be written.
            UnsupportedError: the network cannot be written as ONNX.
        """
        import compiler
        import quantize

        assert run.qat is not None
        self.folder.mkdir(exist_ok=True)
        plan = planned(run.path, run.model_sha256, run.qat, data)
        made = quantized(model_files.load_model(run.path, ()), plan, run.qat)
        module, plan = made.trained(trained.state.arrays)
        with atomic_path(self.quantized) as temporary:
            quantize.export_onnx(module, plan, temporary)
        with atomic_path(self.weights) as temporary:
            quantize.export_onnx(module, in_floats(plan), temporary)
        again = compiler.from_onnx(self.weights)
        if (own := plan_for(again, plan)) is not None:
            with atomic_path(self.plan) as temporary:
                own.to_json(temporary)


def plan_for(mod: IRModule, plan: Plan) -> Plan | None:
    """The plan for a network that was written and read: decided as its configuration says, with the
    numbers of `plan` by the names of values; None where weighted nodes are others."""
    from quantize.annotation.annotate import annotate
    from quantize.plan.fingerprint import fingerprint_of

    try:
        found = annotate(mod, plan.config)
    except ConfigError:  # of patterns that name nodes of the file that was trained
        return None
    integer = {k for k, n in found.nodes.items() if n.decision == "integer"}
    same = {k for k, n in plan.nodes.items() if n.decision == "integer"}
    alike = all(found.nodes[k].op == plan.nodes[k].op for k in plan.weights if k in found.nodes)
    if integer != same or not alike:
        return None
    return replace(plan, nodes=found.nodes, model=fingerprint_of(found.module))


def in_floats(plan: Plan) -> Plan:
    """The plan by which everything stays float32."""
    nodes = {
        k: replace(n, decision="float", reason="as it was trained", accumulate="sequential",
                   function_of="")
        for k, n in plan.nodes.items()
    }  # fmt: skip
    return replace(plan, nodes=nodes, values={}, weights={})
