"""What the exact sums of numbers of a format are, of given data.

Sums are formed in float64, and so are those of the magnitudes: these bound what float64 lost (N.
Higham, "Accuracy and stability of numerical algorithms", 2002, section 3.1), so that the width that
follows is enough, and at most a bit more than the narrowest where a sum is that near to a power of
two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from fractions import Fraction
from math import ceil, floor
from typing import Any

import numpy as np

from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Atom, Binding, Call, Constant, IRModule, Var, tensor_type
from compiler.op.opdef import OpDef
from compiler.transform.certificates import Certificate
from compiler.types.dtypes import FLOAT64, Array, custom
from quantize.search.data_sums import sums_of

_UNIT = 2.0**-52
"""What float64 loses at most in a product and a sum, of its size."""


class FormatSums:
    """The sums of one call, which a certificate is of.

    Attributes:
        wanted: the values that are asked for, of every batch.
    """

    def __init__(self, c: Certificate, b: Binding, threads: int):
        assert isinstance(b.value, Call)
        assert isinstance(b.value.op, OpDef)
        self.c, self.b, self.threads = c, b, threads
        self.call, self.op = b.value, b.value.op
        self.wanted = tuple(dict.fromkeys(a for a in self.call.args if isinstance(a, Var)))
        self.program: Any = None
        self.low, self.high = Fraction(0), Fraction(0)

    def look(self, values: Mapping[Var, Array]) -> None:
        """Look at one batch."""
        operands = [self.number(a, values) for a in self.call.args]
        sums, sizes = self.of(operands), self.of([np.abs(x) for x in operands])
        known = np.isfinite(sums) & np.isfinite(sizes)
        if not known.any():
            return
        sums, lost = sums[known], sizes[known] * (_UNIT * (self.c.terms + 2))
        self.low = min(self.low, Fraction(float((sums - lost).min())))
        self.high = max(self.high, Fraction(float((sums + lost).max())))

    @property
    def ends(self) -> tuple[int, int]:
        """The least and the largest sum in the certificate's units, at the outside; 0 included."""
        unit = Fraction(2) ** self.c.unit
        least, most = floor(self.low / unit), ceil(self.high / unit)
        return max(least, min(self.c.low, 0)), min(most, max(self.c.high, 0))

    def number(self, a: Atom, values: Mapping[Var, Array]) -> Array:
        """float64 of an operand; of a number that is none, too."""
        dtype = tensor_type(a).dtype
        if isinstance(a, Constant):
            data = a.data
        else:
            assert isinstance(a, Var)
            data = values[a]
        found = custom(dtype.name).decode(data, dtype) if dtype.is_custom else data
        return np.asarray(found, np.float64)

    def of(self, operands: Sequence[Array]) -> Array:
        """Sums of operands in float64."""
        if self.op.average is not None:
            return sums_of(self.b, operands[0])
        if self.program is None:
            self.program = self.compiled(operands)
        with np.errstate(all="ignore"):
            return np.asarray(self.program(*operands))

    def compiled(self, operands: Sequence[Array]) -> Any:
        """The operator in float64."""
        import compiler

        attrs = self.call.attrs
        plain = {"accumulate": "sequential", "out_dtype": ""}
        names = {f.name for f in fields(attrs)}
        attrs = replace(attrs, **{k: v for k, v in plain.items() if k in names})
        b = FunctionBuilder()
        shapes = [tensor_type(a).shape for a in self.call.args]
        params = [b.param(f"x{k}", s, FLOAT64) for k, s in enumerate(shapes)]
        given = {f.name: getattr(attrs, f.name) for f in fields(attrs)}
        y = b.call(self.op.name, *params, **given)
        return compiler.build(IRModule({"main": b.finish(y)}), threads=self.threads)


def format_sums(c: Certificate, b: Binding, threads: int) -> FormatSums | None:
    """What looks at the sums of a call in data; None where its result is more than a sum, or its
    operands are no values of a program."""
    call = b.value
    if c.reason or not isinstance(call, Call) or not isinstance(call.op, OpDef):
        return None
    op = call.op
    if not tensor_type(call.args[0]).dtype.is_custom or op.summation is None:
        return None
    added = op.contraction is not None or not op.summation.products or op.average is not None
    return FormatSums(c, b, threads) if added else None
