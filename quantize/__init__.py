"""Quantization: from a trained float32 module to an integer graph, by way of a plan.

`calibrate` measures a module and makes a `Plan` (plain data); `realize` turns the plan into an
integer graph and decides nothing; `quantize` does both. `annotate` shows what would be quantized
and why the rest stays float, `simulate` runs a plan in float32, `trace_plan` shows the integers of
every node, `certify` proves how wide their sums are, `export_onnx` writes the plan as a QDQ model,
`export_qonnx` as a QONNX model. Scaled number formats take part too (see `QConfig.weight_dtype`);
`define_block_format` names one more.

No module here has the name of a public function: importing one would hide the function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compiler._lazy import lazy

if TYPE_CHECKING:
    from quantize.annotation.annotate import annotate as annotate
    from quantize.config.qconfig import QConfig as QConfig
    from quantize.formats.blocks import define_block_format as define_block_format
    from quantize.onnx.export import export_onnx as export_onnx
    from quantize.onnx.qonnx import export_qonnx as export_qonnx
    from quantize.plan.plan import Plan as Plan
    from quantize.realization.realize import realize as realize
    from quantize.realization.simulate import simulate as simulate
    from quantize.reference.trace import trace_plan as trace_plan
    from quantize.search.certification import certify as certify
    from quantize.workflow import calibrate as calibrate
    from quantize.workflow import quantize as quantize

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "quantize.annotation.annotate": ["annotate"],
        "quantize.config.qconfig": ["QConfig"],
        "quantize.onnx.export": ["export_onnx"],
        "quantize.onnx.qonnx": ["export_qonnx"],
        "quantize.plan.plan": ["Plan"],
        "quantize.realization.realize": ["realize"],
        "quantize.reference.trace": ["trace_plan"],
        "quantize.search.certification": ["certify"],
        "quantize.formats.blocks": ["define_block_format"],
        "quantize.realization.simulate": ["simulate"],
        "quantize.workflow": ["calibrate", "quantize"],
    },
)
