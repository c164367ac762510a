"""The engine `accel`: contractions of quantized networks, or of networks in a number format, on a
simulated accelerator (see `compiler.target.accelerator`); all else runs on this machine.

A core of integers takes a convolution or dense layer of bytes by constant int8 weights together
with the requantize that follows it, pooling (see `accelerator_pooling`) and sums of two tensors
(see `accelerator_sums`); a core of a format takes one of data and weights in this format, whose
sums are formed as the core forms them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from compiler.codegen.accel import kernels
from compiler.codegen.accel.convolution import Finish
from compiler.engines import accelerator_pooling as pooling
from compiler.engines import accelerator_sums as added
from compiler.engines.engine import Engine, register_engine
from compiler.engines.linking import Runners
from compiler.errors import LoweringError, UnsupportedError
from compiler.ir.expr import Atom, Binding, Call, Constant, Function, Var
from compiler.ir.regions import COMPOSITE
from compiler.op.accumulate import sums
from compiler.op.opdef import OpDef
from compiler.pattern.patterns import constant, is_op, op_that, wildcard
from compiler.pattern.search import Found
from compiler.pattern.tables import CompositePattern
from compiler.runtime.accel.layer import Layer, LayerReport, Weights
from compiler.runtime.accel.simulator import simulator
from compiler.runtime.executable import Executable
from compiler.target.accelerator import Design
from compiler.target.registry import Target
from compiler.types.dtypes import INT8, INT32, UINT8, Array, DType, custom
from compiler.types.tensor_types import TensorType

NAME = "accel"
_DEFAULT = Design()
_design: ContextVar[Design] = ContextVar("accelerator", default=_DEFAULT)


@contextmanager
def designed(design: Design) -> Iterator[None]:
    """The design of the accelerator that regions are chosen and compiled for, meanwhile."""
    token = _design.set(design)
    try:
        yield
    finally:
        _design.reset(token)


@contextmanager
def accelerated(target: Target) -> Iterator[Callable[[Executable], Executable]]:
    """Compile for an accelerator meanwhile; yields what makes an executable of it of one of this
    machine with regions of its own.

    Raises:
        UnsupportedError: the core computes nothing of the program; says why.
    """
    design = target.design
    assert design is not None
    with designed(design):
        simulator(design)

        def finish(exe: Executable) -> Executable:
            if not any(r.engine == NAME for r in exe.regions):
                raise UnsupportedError(
                    f"target {target}: the core computes nothing of this program: it takes "
                    "quantized convolutions, dense layers, pooling and sums of two tensors, or "
                    "layers of its own format and accumulator"
                )
            exe.target = target
            return exe

        yield finish


@dataclass(frozen=True)
class Runner:
    """Runs a region: its layers in order. Called with operands, then results to fill."""

    operands: tuple[str, ...]
    layers: tuple[tuple[tuple[str, ...], str, Layer], ...]
    """(operands, result, layer)"""
    results: tuple[str, ...]

    def __call__(self, *arrays: Array) -> None:
        """See above."""
        count = len(self.operands)
        held = dict(zip(self.operands, arrays[:count], strict=True))
        for xs, y, layer in self.layers:
            held[y] = layer(*(held[x] for x in xs))
        for name, out in zip(self.results, arrays[count:], strict=True):
            out[...] = held[name]


def compile_region(f: Function, name: str) -> Runner:
    """What runs a region.

    Raises:
        UnsupportedError: the core does not compute a layer of it.
    """
    design, layers = _design.get(), []
    for b in f.bindings:
        v = b.value
        if not isinstance(v, Call) or not isinstance(v.op, Function):
            raise UnsupportedError(f"%{b.var.name} in @{name} is no layer of an accelerator")
        layer = Layer(_weights(v.op, b.var.name, design), design)
        layers.append((_operands(v, v.op), b.var.name, layer))
    named: list[str] = []
    for r in f.results:
        assert isinstance(r, Var)
        named.append(r.name)
    return Runner(tuple(p.name for p in f.params), tuple(layers), tuple(named))


def _operands(v: Call, f: Function) -> tuple[str, ...]:
    """The names of what the first call of a composite is given, in its order."""
    outside = dict(zip((p.name for p in f.params), v.args, strict=True))
    called = f.bindings[0].value
    assert isinstance(called, Call)
    names = []
    for a in called.args:
        if isinstance(a, Var):
            x = outside[a.name]
            assert isinstance(x, Var)
            names.append(x.name)
    return tuple(names)


@dataclass(frozen=True)
class Cost:
    """What one input of a program costs on the accelerator, this machine's part left out.

    Attributes:
        design: the accelerator.
        layers: what each of its layers costs, in the order of the program.
    """

    design: Design
    layers: tuple[LayerReport, ...]

    @property
    def cycles(self) -> int:
        """Of all layers, one after the other."""
        return sum(r.report.cycles for r in self.layers)

    @property
    def busy(self) -> float:
        """Part of the cycles in which the multipliers work."""
        return sum(r.report.gemm for r in self.layers) / max(self.cycles, 1)

    @property
    def utilization(self) -> float:
        """Products that the network asks for, of those that the multipliers could have made; less
        than `busy` where channels do not fill blocks."""
        return sum(r.macs for r in self.layers) / max(self.cycles * self.design.peak, 1)


def cost(exe: Executable) -> Cost | None:
    """What one input of an executable for an accelerator costs that has run; None of others, and
    before. Inputs of several sizes: those of the last size that was new."""
    runners = exe.runners.made.values() if isinstance(exe.runners, Runners) else ()
    layers = [y for r in runners if isinstance(r, Runner) for _, _, y in r.layers]
    found = [list(y.reports.values())[-1] for y in layers if y.reports]
    return Cost(layers[0].design, tuple(found)) if found else None


# ---- what a core takes ---------------------------------------------------------------------------
def _refused(found: Found, design: Design) -> str | None:
    """Why a core does not compute a contraction, and what follows it."""
    b = found.called("contraction")
    v = b.value
    assert isinstance(v, Call)
    assert isinstance(v.op, OpDef)
    x, w, a = found["x"].type, found.constant("w"), v.attrs
    assert isinstance(x, TensorType)
    assert v.op.contraction is not None
    if not v.op.contraction.by_rows or v.op.contraction.kernel not in (0, 2):
        return "only dense layers and convolutions of planes go to the core"
    layouts = (getattr(a, "data_layout", "NCHW"), getattr(a, "out_layout", "NCHW"))
    if layouts != ("NCHW", "NCHW"):
        return "the data are in blocks already"
    if getattr(a, "padding_value", 0) or getattr(a, "input_bits", 0):
        return "the core pads with zeros, and multiplies whole bytes"
    if x.dtype.is_custom:
        return _format_refused(design, v, x.dtype, w)
    if not design.integer:
        return f"the core computes in {design.format}, not in {x.dtype}"
    if x.dtype not in (UINT8, INT8) or w.data.dtype != np.int8:
        return f"the core multiplies bytes by int8, not {x.dtype} by {w.data.dtype}"
    if any(getattr(a, "padding", ())) and not pooling.fills(x.dtype, a.input_zero_point):
        return f"zero point {a.input_zero_point} is no {x.dtype} to pad with"
    most = 1 << (design.weight_bits - 1)
    if w.data.size and not -most <= w.data.min() <= w.data.max() < most:
        return f"weights go beyond {design.weight_bits} bits"
    if a.accumulate not in ("sequential", design.accumulator) or (
        a.accumulate != "sequential" and design.saturates
    ):
        return f"sums are {a.accumulate}, the core's {design.accumulator}, in an order of its own"
    return None


def _format_refused(design: Design, v: Call, dtype: DType, w: Constant) -> str | None:
    a: Any = v.attrs
    if design.integer or dtype != kernels.data_dtype(design, False) or a.out_dtype:
        return f"the core computes in {design.format}, not in {dtype}"
    ordered = design.accumulator != "exact" and (w.data.ndim > 2 and w.data[0, 0].size > 1)
    if a.accumulate != design.accumulator or ordered:
        return f"sums are {a.accumulate}, the core's {design.accumulator}, by blocks of channels"
    if design.accumulator == "exact":
        try:
            sums("exact", dtype, int(w.data[0].size) + 1)
        except LoweringError as e:
            return str(e)
    if not np.isfinite(custom(dtype.name).decode(w.data, dtype)).all():
        return "weights are not all numbers"
    groups, units = getattr(a, "groups", 1), w.data.shape[0]
    filled = units // groups % design.block == 0 and w.data.shape[1] % design.block == 0
    if groups > 1 and not filled and not _apart(a, w.data):
        return f"{groups} groups do not fill blocks of {design.block}, and zeros may meet NaN"
    return None


def _apart(a: Any, w: Array) -> bool:
    """Whether each unit has an input of its own."""
    groups = getattr(a, "groups", 1)
    return bool(groups > 1 and w.shape[1] == 1 and groups == w.shape[0])


def _checked(requantized: bool) -> Callable[[Found], str | None]:
    def check(found: Found) -> str | None:
        reason = _refused(found, _design.get())
        if reason is not None or not requantized:
            t = found["contraction"].type
            assert isinstance(t, TensorType)
            if reason is None and not t.dtype.is_custom and t.dtype != INT32:
                return f"sums of integers leave the core as int32, not as {t.dtype}"
            return reason
        v = found.called("requantize").value
        assert isinstance(v, Call)
        a: Any = v.attrs
        if a.rounding != "float32" or a.out_dtype not in ("uint8", "int8") or a.input_zero_point:
            return f"the core requantizes to bytes by a float32 product, not by {a.rounding}"
        scale, t = found.constant("scale").data, found["contraction"].type
        assert isinstance(t, TensorType)
        called = found.called("contraction").value
        assert isinstance(called, Call)
        assert isinstance(called.op, OpDef)
        assert called.op.contraction is not None
        if scale.ndim > 1 or (
            scale.ndim == 1 and a.axis % t.rank != called.op.contraction.channels % t.rank
        ):
            return "scales are neither one nor one a channel"
        return None

    return check


def _for_design(refused: Callable[[Found, Design], str | None], found: Found) -> str | None:
    return refused(found, _design.get())


_CONTRACTION = op_that("a contraction", lambda op: op.contraction is not None)
_PLAIN = (
    _CONTRACTION(wildcard("x"), constant("w")).bind("contraction")
    | _CONTRACTION(wildcard("x"), constant("w"), constant("bias")).bind("contraction")
)  # fmt: skip
_ALU = {**pooling.KINDS, **added.KINDS}
ENGINE = register_engine(
    Engine(
        NAME,
        (
            CompositePattern(
                "requantized",
                is_op("qnn.requantize")(_PLAIN.once(), constant("scale")).bind("requantize"),
                _checked(requantized=True),
            ),
            CompositePattern("contraction", _PLAIN, _checked(requantized=False), custom=True),
            *(
                CompositePattern(
                    kind, pattern, partial(_for_design, refused), custom=kind in added.KINDS
                )
                for kind, (pattern, refused, _) in _ALU.items()
            ),
        ),
        compile_region,
        doc="a simulated GEMM core: `build(mod, target='accel -block=16')`",
        on_caller=True,
    )
)


# ---- what it computes ----------------------------------------------------------------------------
def _weights(f: Function, name: str, design: Design) -> Weights:
    """The layer of a composite."""
    first, last = f.bindings[0], f.bindings[-1]
    v = first.value
    assert isinstance(v, Call)
    kind = str(f.attrs[COMPOSITE]).partition(".")[2]
    if kind in _ALU:
        return _ALU[kind][2](v, name)
    a: Any = v.attrs
    w = _array(v.args[1])
    bias = _array(v.args[2]) if len(v.args) > 2 else None
    rows = w.ndim == 2
    w = w[:, :, None, None] if rows else w
    padding = tuple(getattr(a, "padding", (0, 0, 0, 0)))
    apart, groups = _apart(a, w), getattr(a, "groups", 1)
    finish, parameters = _finish(design, a, first, last, w, bias)
    wide = first is last and design.integer
    return Weights(
        name, w, parameters, finish, tuple(getattr(a, "strides", (1, 1))), padding,
        tuple(getattr(a, "dilation", (1, 1))), apart, rows, 4 if wide else 1,
        groups=1 if apart else groups,
    )  # fmt: skip


def _finish(
    design: Design, a: Any, first: Binding, last: Binding, w: Array, bias: Array | None
) -> tuple[Finish, tuple[Array, Array]]:
    """How results are made, and parameters: of integers the bias (the zero point of the data taken
    out of it) and the scale, if they are requantized; of formats nothing and the bias."""
    units = w.shape[0]
    called = first.value
    assert isinstance(called, Call)
    x = called.args[0].type
    assert isinstance(x, TensorType)
    if not design.integer:
        held = kernels.parameter_dtype(design).storage
        added = np.zeros(units, held)
        if bias is not None:
            added = custom(x.dtype.name).decode(bias, x.dtype).astype(held)
        zero = int(custom(x.dtype.name).encode(np.zeros(1), x.dtype)[0])
        return Finish(filling=zero), (np.zeros(units, held), added)
    total = np.zeros(units, np.int64) if bias is None else bias.astype(np.int64)
    total -= a.input_zero_point * w.astype(np.int64).sum(axis=(1, 2, 3))
    low = np.iinfo(np.int32).min
    wrapped = ((total - low) % (1 << INT32.bits) + low).astype(np.int32)
    after = last.value
    assert isinstance(after, Call)
    if first is last:
        return Finish(0, 0, 0, x.dtype == INT8, a.input_zero_point & 0xFF), (
            wrapped,
            np.zeros(units, np.float32),
        )
    r: Any = after.attrs
    scale = np.broadcast_to(_array(after.args[1]), (units,)).astype(np.float32)
    finish = Finish(r.output_zero_point, r.qmin, r.qmax, x.dtype == INT8, a.input_zero_point & 0xFF)
    return finish, (wrapped, scale)


def _array(a: Atom) -> Array:
    if not isinstance(a, Constant):
        raise UnsupportedError("an accelerator's weights are constants")
    return a.data
