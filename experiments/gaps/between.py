"""Networks between a simulation of a number format in float32 and its bit-exact execution.

A simulation, as it is usual: what convolutions, dense layers and products of matrices multiply is
rounded to the format, and everything is computed in float32. The bit-exact network computes every
operator in the format. In between, some ingredients are those of the one, and others of the other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from glob import escape

import numpy as np

from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Constant,
    Function,
    IRModule,
    Var,
    names_in,
    tensor_type,
)
from compiler.op.facts import Contraction
from compiler.passes.rewrite import call, op_of, typed
from compiler.types.dtypes import FLOAT32, DType, custom
from compiler.types.names import unique
from compiler.types.tensor_types import TensorType

PRODUCTS, SUMS, BIAS, NORMS, RESULTS = (
    *("rounded products", "accumulator", "bias", "softmax and norms", "other operators"),
)
"""What products are rounded to before they are added; what holds the sums of products; whether
biases are numbers of the format; whether sums inside softmax, normalizations, means and pooling
are, and what is around them; and all other operators, with the results of these."""


def between(
    module: IRModule, dtype: DType, accumulate: str, exact: Collection[str], fused: str
) -> IRModule:
    """A prepared float32 network in which the `exact` ingredients are those of the network in
    `dtype`, and the others those of the simulation; inputs and results are float32.

    Args:
        accumulate: of the bit-exact network.
        exact: some of PRODUCTS (which needs SUMS), SUMS, BIAS, NORMS, RESULTS.
        fused: the accumulation that is `accumulate` but for the rounding of products.

    Raises:
        DtypelabError: an operator is not defined for the format, or its sums.
    """
    import datatypes

    own = accumulate if PRODUCTS in exact else fused
    b = _Between(module.main, dtype, frozenset(exact), own)
    changed = module.with_function("main", b.function())
    layers = {n: (dtype.name, own if k == SUMS else accumulate) for n, k in b.native.items()}
    if not layers:
        return changed
    by_name = {escape(n): how for n, how in layers.items()}
    retyped: IRModule = datatypes.change_dtype(changed, by_name)
    return retyped


class _Between:
    """Rewrites a function; `native` are the values that are to be computed in the format, with the
    ingredient that says so."""

    def __init__(self, f: Function, dtype: DType, exact: frozenset[str], mode: str):
        self.f, self.dtype, self.exact, self.mode = f, dtype, exact, mode
        self.native: dict[str, str] = {}
        self.bindings: list[Binding] = []
        self.codes: dict[Var, Var] = {}
        self.near: dict[Var, Var] = {}
        self.names = names_in(f)

    def function(self) -> Function:
        for b in self.f.bindings:
            op = op_of(b.value)
            if op is None or not isinstance(b.value, Call) or not _is_float(b.var):
                self.bindings.append(b)
            elif op.contraction is not None:
                self.product(b, b.value, op.contraction)
            elif (kind := NORMS if op.terms is not None else RESULTS) in self.exact:
                self.native[b.var.name] = kind
                self.bindings.append(b)
            else:
                self.result(b, b.value)
        return self.f.with_body(self.bindings, self.f.results)

    def product(self, b: Binding, value: Call, axes: Contraction) -> None:
        """A convolution, dense layer or product of matrices."""
        factors = tuple(map(self.nearest, value.args[:2]))
        biases = value.args[2:]
        if BIAS in self.exact:
            biases = tuple(map(self.nearest, biases))
        if SUMS not in self.exact:
            self.result(b, replace(value, args=(*factors, *biases)))
        elif BIAS in self.exact or not biases:
            self.native[b.var.name] = SUMS
            self.bindings.append(replace(b, value=replace(value, args=(*factors, *biases))))
        else:  # the sums are of the format, the bias is not
            attrs = replace(value.attrs, accumulate=self.mode)
            sums = self.bind(
                replace(value, args=tuple(map(self.code, value.args[:2])), attrs=attrs),
                f"{b.var.name}_sums",
                b.origins,
            )
            real = self.bind(call("cast", sums, dtype=str(FLOAT32)), f"{b.var.name}_real")
            channels = axes.channels % tensor_type(real).rank
            self.result(b, call("nn.bias_add", real, *biases, axis=channels))

    def result(self, b: Binding, value: Call) -> None:
        """A value that is computed in float32, and rounded if others are."""
        if RESULTS not in self.exact:
            self.bindings.append(replace(b, value=value))
            return
        raw = self.bind(value, f"{b.var.name}_raw", b.origins)
        code = self.bind(call("cast", raw, dtype=str(self.dtype)), f"{b.var.name}_code")
        self.bindings.append(replace(b, value=call("cast", code, dtype=str(FLOAT32))))

    def code(self, a: Atom) -> Atom:
        """An operand as a number of the format."""
        if isinstance(a, Constant):
            codes = custom(self.dtype.name).encode(a.data, self.dtype)
            return Constant(np.asarray(codes, self.dtype.storage), self.dtype)
        if a not in self.codes:
            cast = call("cast", a, dtype=str(self.dtype))
            self.codes[a] = self.bind(cast, f"{a.name}_code")
        return self.codes[a]

    def nearest(self, a: Atom) -> Atom:
        """An operand in float32, rounded to the format."""
        code = self.code(a)
        if isinstance(code, Constant):
            values = custom(self.dtype.name).decode(code.data, self.dtype)
            return Constant(np.asarray(values, np.float32), FLOAT32)
        if code not in self.near:
            cast = call("cast", code, dtype=str(FLOAT32))
            self.near[code] = self.bind(cast, f"{code.name}_near")
        return self.near[code]

    def bind(self, value: Call, stem: str, origins: Sequence[str] = ()) -> Var:
        b = typed(unique(stem, self.names), value, origins)
        self.bindings.append(b)
        return b.var


def _is_float(a: Atom) -> bool:
    return isinstance(a.type, TensorType) and a.type.dtype == FLOAT32
