"""UseIntegers: float operators between dequantize and quantize become integer operators.

Pre-quantized models (ONNX's QDQ form) say dequantize, operator, quantize; what is meant is integer
arithmetic. conv2d, dense and matmul of integers get int32 accumulators that are requantized in
float32, as onnxruntime does; relu and clip become the bounds of what is before them; sums,
averages, concatenations and functions of one value have integer forms; what only moves values moves
integers.
Results differ from those of the float operators by the rounding of float sums, and of biases to
integers of the accumulator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from compiler.arithmetic.arrays import arithmetic
from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Constant,
    Function,
    IRModule,
    TupleGetItem,
    Var,
    tensor_type,
)
from compiler.op.elementwise import ADD
from compiler.op.facts import Moves
from compiler.op.nn.dense import DENSE, MATMUL
from compiler.op.opdef import OpDef, Quantized
from compiler.op.qnn.quantize import DEQUANTIZE, QUANTIZE
from compiler.op.shapes import TRANSPOSE
from compiler.passes.manager import FunctionPass, PassContext
from compiler.passes.pipeline import sequence
from compiler.passes.rewrite import Rewriter, call, op_of, typed
from compiler.pattern.rules import Refusal, refusals_of
from compiler.transform.integer_forms import (
    Form,
    Grid,
    Target,
    bound,
    entries,
    of_average,
    of_concatenation,
    of_function,
    of_grid,
    of_moved,
    of_sum,
    of_sums,
)
from compiler.transform.integer_weights import (
    MOST,
    Weights,
    fitted_bias,
    int8_parts,
    real_constant,
    weights_of,
)
from compiler.types.dtypes import FLOAT32, INT32, Array
from compiler.types.tensor_types import TensorType


class UseIntegers(FunctionPass):
    """Integer arithmetic for what is written as float operators between dequantize and quantize."""

    name = "UseIntegers"
    opt_level = 0
    required = ("InferType",)

    def transform_function(self, f: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The function with integer operators where it has dequantized operands."""
        return _Walk(f).run()

    def explain(self, mod: IRModule) -> list[Refusal]:
        """Why operators that read dequantized values, or are quantized, are left as they are."""
        return refusals_of(mod, _Walk)


class _Walk:
    """One function: which values are on grids, and which have integer forms."""

    def __init__(self, f: Function):
        self.f, self.r = f, Rewriter(f)
        self.grids: dict[Var, Grid] = {}
        self.forms: dict[Var, Form] = {}
        self.functions: dict[Var, tuple[Grid, Array]] = {}
        self.refusals: list[Refusal] = []

    def run(self) -> Function:
        """The rewritten function; the same object if nothing changed."""
        if all(op_of(b.value) is not DEQUANTIZE for b in self.f.bindings):
            return self.f
        for b in map(self.r.read, self.f.bindings):
            if not self._rewritten(b):
                self.r.keep(b)
        return self.r.finish()

    def _refuse(self, b: Binding, reason: str) -> bool:
        self.refusals.append(Refusal(UseIntegers.name, b.var.name, reason))
        return False

    def _rewritten(self, b: Binding) -> bool:
        """Whether the binding was replaced; what it is worth is noted in any case."""
        v, op = b.value, op_of(b.value)
        if isinstance(v, TupleGetItem):
            return self._field(b, v)
        if not isinstance(v, Call) or op is None:
            return False
        if op is DEQUANTIZE:
            self._dequantized(b.var, v)
            return False
        if op is QUANTIZE:
            return self._quantized(b, v)
        if op.contraction is not None:
            if tensor_type(b.var).dtype != FLOAT32:
                return False
            return self._weighted(b, v) if op.contraction.by_rows else self._product(b, v)
        if op.clips is not None:
            self._bounded(b.var, v, op.clips(v.attrs))
            return False
        if op.moves is Moves.PAD:
            return self._padded(b, v)
        if op.moves is not Moves.JOIN and op.quantized == Quantized.SAME:
            return self._moved(b, v)
        self._noted(b, v)
        return False

    # ---- values on grids -------------------------------------------------------------------------
    def _dequantized(self, var: Var, v: Call) -> None:
        data, scale = v.args
        if not isinstance(scale, Constant) or scale.data.ndim or not scale.data > 0:
            return
        if str(tensor_type(data).dtype) in ("int8", "uint8"):
            self.grids[var] = Grid(data, float(scale.data), v.attrs.zero_point)

    def _quantized(self, b: Binding, v: Call) -> bool:
        x, scale = v.args
        form = self.form(x)
        if form is None or not isinstance(x, Var):
            return False
        if not isinstance(scale, Constant) or scale.data.ndim or not scale.data > 0:
            return self._refuse(b, "its scale is not one constant")
        a = v.attrs
        t = Target(float(scale.data), a.zero_point, a.out_dtype, a.qmin, a.qmax)
        if x in self.grids and self._same(self.grids[x], t) and isinstance(self.grids[x].atom, Var):
            return self.r.alias(b, self.grids[x].atom)
        made = form.on(t)
        if isinstance(made, str):
            return self._refuse(b, made)
        self.r.emit(Binding(b.var, made, b.origins))
        return True

    @staticmethod
    def _same(g: Grid, t: Target) -> bool:
        dtype = tensor_type(g.atom).dtype
        info = np.iinfo(dtype.storage)
        return (g.scale, g.zero_point, str(dtype), info.min, info.max) == (
            t.scale, t.zero_point, t.dtype, t.qmin, t.qmax,
        )  # fmt: skip

    def form(self, a: Atom) -> Form | None:
        """How the integers of a value are made, if they can be."""
        if not isinstance(a, Var):
            return None
        if a in self.grids:
            return of_grid(self.grids[a])
        return self.forms.get(a)

    def _dequantize(self, b: Binding, g: Grid) -> None:
        """Let `b` be the real value of `g`."""
        self.grids[b.var] = g
        scale = Constant.of(g.scale, FLOAT32)
        real = call(DEQUANTIZE, g.atom, scale, zero_point=g.zero_point)
        self.r.emit(Binding(b.var, real, b.origins))

    # ---- what moves values -----------------------------------------------------------------------
    def _moved(self, b: Binding, v: Call) -> bool:
        g = self.grids.get(v.args[0]) if v.args and isinstance(v.args[0], Var) else None
        rest = [tensor_type(a).dtype for a in v.args[1:] if isinstance(a.type, TensorType)]
        if any(d.is_float for d in rest) or (g is not None and isinstance(g.atom, Constant)):
            return False
        if g is None:
            form = self.form(v.args[0]) if v.args else None
            if form is not None and isinstance(b.var.type, TensorType):
                self.forms[b.var] = of_moved(self.r, form, v, b.var.name)
            return False
        moved = Call(v.op, (g.atom, *v.args[1:]), v.attrs)
        if not isinstance(b.var.type, TensorType):
            whole = bound(self.r, f"{b.var.name}_q", moved, b.origins)
            self.grids[b.var] = Grid(whole, g.scale, g.zero_point)
            return False
        q = bound(self.r, f"{b.var.name}_q", moved, b.origins)
        self._dequantize(b, Grid(q, g.scale, g.zero_point))
        return True

    def _padded(self, b: Binding, v: Call) -> bool:
        """Padding moves values if the grid has the number that it pads with."""
        g = self.grids.get(v.args[0]) if isinstance(v.args[0], Var) else None
        if g is None:
            return False
        q = v.attrs.value / g.scale + g.zero_point
        info = np.iinfo(tensor_type(g.atom).dtype.storage)
        if q != round(q) or not info.min <= q <= info.max:
            return self._refuse(b, "the number that it pads with is not on the grid of its data")
        return self._moved(b, Call(v.op, v.args, replace(v.attrs, value=q)))

    def _field(self, b: Binding, v: TupleGetItem) -> bool:
        g = self.grids.get(v.value) if isinstance(v.value, Var) else None
        if g is None or not isinstance(g.atom, Var):
            return False
        q = self.r.emit(
            typed(self.r.fresh(f"{b.var.name}_q"), TupleGetItem(g.atom, v.index), b.origins)
        )
        self._dequantize(b, Grid(q, g.scale, g.zero_point))
        return True

    # ---- what has a form of its own --------------------------------------------------------------
    def _bounded(self, var: Var, v: Call, bounds: tuple[float, float]) -> None:
        form = self.form(v.args[0])
        if form is not None:
            self.forms[var] = form.clipped(*bounds)

    def _noted(self, b: Binding, v: Call) -> None:
        """Remember the form of a sum, an average, a concatenation or a function."""
        op = op_of(v)
        assert op is not None
        grids = [self.grids.get(a) if isinstance(a, Var) else None for a in v.args]
        known = [g for g in grids if g is not None]
        every = len(known) == len(grids) > 0
        if op is ADD and every and any(isinstance(g.atom, Var) for g in known):
            self.forms[b.var] = of_sum(known[0], known[1])
        elif op.average is not None and every:
            self.forms[b.var] = of_average(known[0], v)
        elif op.moves is Moves.JOIN and every:
            self.forms[b.var] = of_concatenation(self.r, known, v, b.var.name)
        elif op.function:
            self._function(b.var, v)

    def _function(self, var: Var, v: Call) -> None:
        """A function of one value on a grid, the other operands being scalars."""
        scalars = [real_constant(self.r, a) for a in v.args]
        varying = [a for a, s in zip(v.args, scalars, strict=True) if s is None or s.size != 1]
        x = varying[0] if len(varying) == 1 else None
        if not isinstance(x, Var) or tensor_type(x).shape != tensor_type(var).shape:
            return
        if x in self.grids and isinstance(self.grids[x].atom, Var):
            self.functions[x] = self.grids[x], entries(self.grids[x])
        if x not in self.functions:
            return
        g, values = self.functions[x]
        numbers = [None if s is None else s.reshape(()) for s in scalars]
        args = [values if a is x else s for a, s in zip(v.args, numbers, strict=True)]
        assert isinstance(v.op, OpDef)
        with np.errstate(all="ignore"):
            after = np.asarray(v.op.reference(arithmetic(FLOAT32), v.attrs, *args))
        self.functions[var] = g, after
        self.forms[var] = of_function(g, after)

    # ---- sums of products ------------------------------------------------------------------------
    def _weighted(self, b: Binding, v: Call) -> bool:
        return self._contraction(b, v, v.args[0], weights_of(self.r, v.args[1]), v.args[2:])

    def _product(self, b: Binding, v: Call) -> bool:
        x, w = v.args
        if tensor_type(w).rank == 2 and tensor_type(x).rank >= 2:
            weights = weights_of(self.r, w, turned=True)
            if weights is not None:
                attrs = {"accumulate": v.attrs.accumulate, "out_dtype": v.attrs.out_dtype}
                if self._contraction(b, call(DENSE, x, w, **attrs), x, weights, ()):
                    return True
                turned = bound(self.r, f"{b.var.name}_weight", call(TRANSPOSE, w, axes=(1, 0)))
                self.r.emit(Binding(b.var, call(DENSE, x, turned, **attrs), b.origins))
                return True
        return self._activations(b, v)

    def _contraction(
        self, b: Binding, v: Call, x: Atom, weights: Weights | None, bias: Sequence[Atom]
    ) -> bool:
        """conv2d or dense (what `v` is, but for the layout of its weights) of integers."""
        g = self.grids.get(x) if isinstance(x, Var) else None
        if g is None and weights is None:
            return False
        if g is None or isinstance(g.atom, Constant):
            return self._refuse(b, "its data is not dequantized from integers with one scale")
        if weights is None:
            return self._refuse(b, "its weights are not dequantized from constants by channel")
        real = real_constant(self.r, bias[0]) if bias else None
        if bias and real is None:
            return self._refuse(b, "its bias is not constant")
        fitted = fitted_bias(g, weights, real)
        if isinstance(fitted, str):
            return self._refuse(b, fitted)
        adds = [Constant(fitted[0].astype(np.int32), INT32)] if bias else []
        unit = np.float32(g.scale) * weights.scales.astype(np.float32)
        self._summed(b, v, g, weights, adds, unit, fitted[1])
        return True

    def _summed(
        self, b: Binding, v: Call, g: Grid, weights: Weights, bias: Sequence[Constant], unit: Array,
        reach: float,
    ) -> None:  # fmt: skip
        op = op_of(v)
        assert op is not None
        assert op.contraction is not None
        how = {**vars(v.attrs), "out_dtype": "int32", "input_zero_point": g.zero_point}
        sums: Var | None = None
        for part in int8_parts(weights.q):
            made = call(op, g.atom, part, *(bias if sums is None else ()), **how)
            one = bound(self.r, f"{b.var.name}_acc", made, b.origins)
            sums = one if sums is None else bound(
                self.r, f"{b.var.name}_acc", call(ADD, sums, one), b.origins
            )  # fmt: skip
        assert sums is not None
        axis = op.contraction.channels % tensor_type(b.var).rank
        self._wide(b, sums, unit, axis, reach)

    def _activations(self, b: Binding, v: Call) -> bool:
        """A product of two values that are on grids."""
        grids = [self.grids.get(a) for a in v.args if isinstance(a, Var)]
        known = [g for g in grids if g is not None and isinstance(g.atom, Var)]
        if len(known) < 2:
            if not known:
                return False
            return self._refuse(b, "one of its operands is not dequantized from integers")
        left, right = known
        inner = tensor_type(v.args[0]).shape[-1]
        if not isinstance(inner, int) or inner * left.above * right.above > MOST:
            return self._refuse(b, f"sums of {inner} products could overflow int32")
        made = call(
            MATMUL, left.atom, right.atom, out_dtype="int32", input_zero_point=left.zero_point,
            weight_zero_point=right.zero_point,
        )  # fmt: skip
        sums = bound(self.r, f"{b.var.name}_acc", made, b.origins)
        unit = np.float32(left.scale) * np.float32(right.scale)
        self._wide(b, sums, np.asarray(unit), 0, inner * left.reach * right.reach)
        return True

    def _wide(self, b: Binding, sums: Var, unit: Array, axis: int, reach: float) -> None:
        """Let `b` be the real value of int32 sums."""
        scale = Constant.of(unit, FLOAT32)
        self.r.emit(Binding(b.var, call(DEQUANTIZE, sums, scale, axis=axis), b.origins))
        self.forms[b.var] = of_sums(sums, unit, axis, reach)


def with_integers(mod: IRModule) -> IRModule:
    """The module as the pipeline's stage "import" leaves it, if the current PassContext enables its
    passes."""
    return sequence("import", "import")(mod)
