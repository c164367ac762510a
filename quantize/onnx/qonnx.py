"""export_qonnx: a plan as a QONNX model: float operators, and Quant and FloatQuant where values are
rounded.

QONNX (Pappalardo et al., "QONNX: Representing Arbitrary-Precision Quantized Neural Networks", 2022)
is what Brevitas writes and hls4ml and FINN read. What is written is the graph of `simulate`. Quant
adds its zero point before it rounds, so that halves next to an odd one go the other way than here,
and float32 has fewer bits for them: a zero point is written as a range that is not symmetric, a
Clip in front of a Quant of as many bits as it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.errors import UnsupportedError
from compiler.files.writing import check_writable, write_whole
from compiler.ir.expr import Atom, Call, Constant, IRModule, Var, tensor_type
from compiler.op.opdef import OpDef
from compiler.op.qnn.formats import SIMULATED_CAST
from compiler.op.qnn.quantize import DEQUANTIZE, SIMULATED_QUANTIZE
from compiler.types.dtypes import Array, DType
from quantize.formats.element import INTEGERS
from quantize.formats.operand_format import OperandFormat
from quantize.onnx.export import IR_VERSION, OPSET, Writer
from quantize.onnx.minifloats import minifloat_of
from quantize.plan.params import WeightParams
from quantize.plan.plan import Plan

if TYPE_CHECKING:
    import onnx

DOMAIN = "qonnx.custom_op.general"
_MODES = {"even": "ROUND", "away": "HALF_UP"}
"""Where halves go -> Quant's rounding mode, in which up is away from zero."""


def export_qonnx(mod: IRModule, plan: Plan, path: str | Path) -> None:
    """Write `mod`, quantized by `plan`, as a QONNX model, which the `qonnx` package executes.

    It computes what `quantize.simulate` does: what the integers give, up to the rounding of float32
    sums. Accumulators of the plan are not part of it. Nothing is left behind if writing fails.

    Raises:
        ConfigError: the plan was made for another model, or the file cannot be written.
        UnsupportedError: what QONNX cannot say: scales found at run time, blocks, formats that are
            no binary floating point; all operators of which this is so are listed.
    """
    check_writable(path)
    write_whole(path, to_qonnx(mod, plan).SerializeToString())


def to_qonnx(mod: IRModule, plan: Plan) -> onnx.ModelProto:
    """The QONNX model as a ModelProto; see `export_qonnx`.

    Raises:
        ConfigError, UnsupportedError: as `export_qonnx`.
    """
    from onnx import helper

    from quantize.onnx.regions import imports_of
    from quantize.realization.simulate import simulation

    _check_formats(plan)
    simulated = simulation(mod, plan.sequential)
    module = simulated.run()
    weights = {a: w for a, w in simulated.integers_of.items() if isinstance(w, WeightParams)}
    rounded = {a: f for (_, f), a in simulated.in_formats.rounded.items()}
    _, domains = imports_of(module.main, (OPSET,))
    versions = {"": OPSET, DOMAIN: 1, **domains}
    return helper.make_model(
        QonnxWriter(module, weights, rounded).graph(),
        opset_imports=[helper.make_opsetid(d, v) for d, v in versions.items()],
        producer_name="dtypelab",
        ir_version=IR_VERSION,
    )


def _check_formats(plan: Plan) -> None:
    """Raise UnsupportedError if scales are found at run time, or sums are formed in a format."""
    found = [name for name, both in plan.formats.items() if any(f.token or f.blocks for f in both)]
    if found:
        raise UnsupportedError(
            f"QONNX has no scales of blocks or tokens, as {', '.join(found)} have; choose scalar "
            "formats or integers with scales of tensors, channels or groups"
        )
    native = [n for n in plan.formats if (plan.nodes[n].compute or plan.config.compute) == "native"]
    if native:
        raise UnsupportedError(
            f"QONNX computes in float32: {', '.join(native)} are computed in a format; choose "
            "compute='storage'"
        )


class QonnxWriter(Writer):
    """Writes what rounds as QONNX's nodes, and everything else as ONNX's.

    Args:
        weights: the parameters of constants that hold integers of weights.
        rounded: the formats of constants that were rounded already.
    """

    def __init__(
        self, mod: IRModule, weights: dict[Atom, WeightParams], rounded: dict[Atom, OperandFormat]
    ):
        super().__init__(mod)
        self.weights, self.rounded = weights, rounded
        self._rounded: dict[Atom, str] = {}

    def writer(self, call: Call) -> Callable[[Writer, Call, Var], None] | None:
        """See Writer."""
        rules: dict[OpDef, Callable[[Call, Var], None]] = {
            SIMULATED_QUANTIZE: self._on_grid,
            DEQUANTIZE: self._weights,
            SIMULATED_CAST: self._in_format,
        }
        rule = rules.get(call.op) if isinstance(call.op, OpDef) else None
        return super().writer(call) if rule is None else partial(_without_writer, rule)

    def name(self, a: Atom) -> str:
        """See Writer; a constant in a format is written with the node that puts it there."""
        f = self.rounded.get(a)
        if f is None or not isinstance(a, Constant):
            return super().name(a)
        if a not in self._rounded:
            scale = f.scale_array(a.data.shape)
            if scale.ndim == 1:
                scale = scale.reshape([-1 if k == f.along else 1 for k in range(a.data.ndim)])
            out = self.fresh(f"weight_{len(self._rounded)}")
            self._round(self.constant(a.data), scale, f.format, out)
            self._rounded[a] = out
        return self._rounded[a]

    # ---- nodes of QONNX --------------------------------------------------------------------------
    def _on_grid(self, call: Call, out: Var) -> None:
        a, grid = call.attrs, call.args[1]
        if not isinstance(grid, Constant) or grid.data.ndim:
            raise UnsupportedError("QONNX has no scales that are found at run time, or differ here")
        if a.halves not in _MODES:
            raise UnsupportedError(
                "Quant has no mode that rounds halves up; requantize='float32' rounds them to even"
            )
        low, high = a.qmin - a.zero_point, a.qmax - a.zero_point
        bits, signed, narrow = quant_range(low, high)
        x = self.name(call.args[0])
        if (low, high) != ends_of(bits, signed, narrow):
            ends = (self.constant(np.float32(q * grid.data)) for q in (low, high))
            x = self.step("Clip", [x, *ends], f"{out.name}_clip")
        self._quant(x, grid.data, bits, signed, narrow, self.out(out), _MODES[a.halves])

    def _weights(self, call: Call, out: Var) -> None:
        """Constant integers times scales: of weights with a Quant, of biases as they are."""
        q, unit = call.args
        if not isinstance(q, Constant) or not isinstance(unit, Constant):
            raise UnsupportedError("integers that are computed have no QONNX node")
        scale = unit.data
        if scale.ndim:
            axis = call.attrs.axis % q.data.ndim
            scale = scale.reshape([-1 if k == axis else 1 for k in range(q.data.ndim)])
        real = self.constant(q.data.astype(np.float32) * scale, np.float32)
        params = self.weights.get(q)
        if params is None:
            self.alias(out, real)
            return
        low, high = int(q.data.min(initial=0)), int(q.data.max(initial=0))
        bits, narrow = params.bits, True
        if params.zero_points or not -(1 << (bits - 1)) < low <= high < 1 << (bits - 1):
            bits, _, narrow = quant_range(min(low, -1), high)
        self._quant(real, scale, bits, True, narrow, self.out(out))

    def _in_format(self, call: Call, out: Var) -> None:
        a, scale = call.attrs, call.args[1]
        if not isinstance(scale, Constant):
            raise UnsupportedError("QONNX has no scales that are found at run time")
        given, rank = scale.data, tensor_type(call.args[0]).rank
        if given.ndim == 1:
            given = given.reshape([-1 if k == a.axis % rank else 1 for k in range(rank)])
        dtype = DType.parse(a.dtype)
        whole = a.high == (1 << (dtype.bits - 1)) - 1 and dtype.name == f"fixed{dtype.bits}_0"
        self._round(
            self.name(call.args[0]), given, f"int{dtype.bits}" if whole else dtype.name,
            self.out(out),
        )  # fmt: skip

    def _round(self, x: str, scale: Array, name: str, out: str) -> None:
        """Numbers of a scalar format, or of `int<N>`, times scales."""
        if found := INTEGERS.fullmatch(name):
            self._quant(x, scale, int(found[1]), True, True, out)
            return
        kind = minifloat_of(name)
        if kind is None:
            raise UnsupportedError(
                f"{name} is no binary floating point with subnormals that rounds to nearest even, "
                "which is what FloatQuant is; the nearest are minifloats such as float8_e4m3fn"
            )
        numbers = (kind.exponent, kind.mantissa, kind.bias, kind.most)
        inputs = [x, *(self.constant(v, np.float32) for v in (scale, *numbers))]
        flags = dict.fromkeys(("has_inf", "has_nan"), 0) | {"has_subnormal": 1, "saturation": 1}
        self.node("FloatQuant", inputs, out, domain=DOMAIN, rounding_mode="ROUND", **flags)

    def _quant(
        self, x: str, scale: Any, bits: int, signed: bool, narrow: bool, out: str,
        mode: str = "ROUND",
    ) -> None:  # fmt: skip
        inputs = [x, *(self.constant(v, np.float32) for v in (scale, 0.0, float(bits)))]
        self.node(
            "Quant", inputs, out, domain=DOMAIN, signed=int(signed), narrow=int(narrow),
            rounding_mode=mode,
        )  # fmt: skip


def _without_writer(rule: Callable[[Call, Var], None], _: Writer, call: Call, out: Var) -> None:
    rule(call, out)


def ends_of(bits: int, signed: bool, narrow: bool) -> tuple[int, int]:
    """The least and the largest integer of a Quant without zero point."""
    if signed:
        half = 1 << (bits - 1)
        return -half + narrow, half - 1
    return 0, (1 << bits) - 1 - narrow


def quant_range(low: int, high: int) -> tuple[int, bool, bool]:
    """(bits, signed, narrow) of the least Quant that has the integers from `low` to `high`."""
    signed = low < 0
    bits = max(max(high.bit_length(), (~low).bit_length() if signed else 0) + signed, 1 + signed)
    return bits, signed, signed and low == -high and high == (1 << (bits - 1)) - 1
