"""RegisteredType: what the compiler sees of a datatype, whether described, registered or both."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

import numpy as np

from compiler.arithmetic.stochastic import Place
from compiler.errors import DtypelabError, LoweringError
from compiler.tensor.expr import COMPARISONS, Expr, FloatImm, IntImm
from compiler.types.dtypes import FLOAT32, FLOAT64, Array, DType
from datatypes import kernels, registry
from datatypes.arithmetic import oracle
from datatypes.formats import Format, encode, get
from datatypes.formats.minifloat import least_normal
from datatypes.formats.randomness import random_bits
from datatypes.registry import Operation, type_name_of

_BINARY = (*oracle.ARITHMETIC, "Max", "Min", *COMPARISONS)


class RegisteredType:
    """A custom datatype of the compiler (see `compiler.tensor.custom_dtypes.LoweredDType`).

    An operation is lowered by the function registered for it; else, for a described format, by a
    built-in lowering. Its meaning on arrays is the format's exact description, unless a lowering
    function was registered: that one then is the meaning, and is compiled and called.

    Attributes:
        name: as in `custom[NAME]BITS`.
        fmt: the description of a format, or None.
    """

    def __init__(self, name: str, fmt: Format | None = None):
        self.name, self.fmt = name, fmt

    @property
    def random(self) -> bool:
        """See RandomDType."""
        return self.fmt is not None and self.fmt.rounding == "stochastic"

    @property
    def revision(self) -> int:
        """See RevisedDType."""
        return registry.changes()

    def lower(self, node: Expr, target: str) -> Expr:
        """See CustomDType. FloatImm is encoded now, unless a lowering was registered for it.

        Raises:
            LoweringError: there is no lowering; names the call of `register_op` that adds one.
        """
        return self._lowered(node, target)

    def lower_at(self, node: Expr, target: str, place: Place) -> Expr:
        """See RandomDType; raises as `lower`."""
        return self._lowered(node, target, place)

    def _lowered(self, node: Expr, target: str, place: Place | None = None) -> Expr:
        operation = Operation.of(node, target)
        function = registry.lowering(operation)
        if function is not None:
            return _checked(operation, node, function(node))
        if isinstance(node, FloatImm):
            bits = self.encode(np.asarray(node.value, np.float64), node.dtype)
            return IntImm(int(bits), node.dtype.storage_dtype)
        if self.fmt is not None:
            from datatypes.builtin import lower

            self._format(node.dtype if node.dtype.is_custom else _custom_operand(node))
            lowered = lower(self.fmt, node, place)
            if lowered is not None:
                return lowered
        dtype = node.dtype if node.dtype.is_custom else _custom_operand(node)
        raise LoweringError(
            f"{operation} of {dtype} has no lowering for target {target!r}; "
            f"add one with {operation.how_to_register()}"
        )

    def apply(self, op: str, dtype: DType, *args: Array) -> Array:
        """See CustomDType."""
        return self._applied(op, dtype, args)

    def apply_at(self, op: str, dtype: DType, place: Place, *args: Array) -> Array:
        """See RandomDType."""
        return self._applied(op, dtype, args, self._bits(place))

    def _applied(
        self, op: str, dtype: DType, args: Sequence[Array], random: Array | None = None
    ) -> Array:
        name, function = (op, "") if op in _BINARY else ("Call", op)
        operation = Operation(name, "llvm", self.name, function=function)
        if self.fmt is None or registry.lowering(operation) is not None:
            return kernels.operate(op, dtype, *args)
        fmt = self._format(dtype)
        if function and function not in (*oracle.ROUNDINGS, "fma") and fmt.nbits > 16:
            # Correct to 1 ulp, not always correctly rounded: the compiled function says how.
            return kernels.operate(op, dtype, *args)
        return oracle.apply(fmt, op, *args, random=random)

    def _bits(self, place: Place) -> Array:
        assert self.fmt is not None
        return random_bits(self.fmt.seed, place.node, place.index, place.step)

    def encode_at(self, values: Array, dtype: DType, place: Place) -> Array:
        """See RandomDType."""
        array = np.asarray(values)
        if not self._described("Cast", type_name_of(DType.parse(array.dtype)), self.name):
            return self.encode(values, dtype)
        if array.dtype.kind in "iu":
            array = oracle.integers_to_float64(array)
        return encode(self._format(dtype), array, self._bits(place))

    def encode(self, values: Array, dtype: DType) -> Array:
        """See CustomDType. float64 goes through float32 if the datatype converts only that."""
        array = np.asarray(values)
        source = DType.parse(array.dtype)
        if self._described("Cast", type_name_of(source), self.name):
            fmt = oracle.functions_format(self._format(dtype))
            if array.dtype.kind in "iu":
                array = oracle.integers_to_float64(array)
            from datatypes.vector import large_arrays

            return large_arrays.encode(fmt, array)
        if source != FLOAT64:
            return kernels.convert(array, source, dtype)
        try:
            return kernels.convert(array, FLOAT64, dtype)
        except LoweringError:
            with np.errstate(over="ignore"):
                return kernels.convert(array.astype(np.float32), FLOAT32, dtype)

    def decode(self, bits: Array, dtype: DType) -> Array:
        """See CustomDType. Goes through float32 if the datatype converts only to that."""
        if self._described("Cast", self.name, "float"):
            from datatypes.vector import large_arrays

            return large_arrays.decode(self._format(dtype), bits)
        try:
            return kernels.convert(bits, dtype, FLOAT64)
        except LoweringError:
            return kernels.convert(bits, dtype, FLOAT32).astype(np.float64)

    def lowest(self, dtype: DType) -> int:
        """See CustomDType.

        Raises:
            LoweringError: the datatype was registered without a function for it.
        """
        function = registry.minimum(self.name)
        if function is None:
            if self.fmt is not None:
                fmt = self._format(dtype)
                return fmt.code(fmt.lowest - fmt.has_inf)
            raise LoweringError(
                f"the minimum of {dtype} is not known; give it with "
                f'datatypes.register_min_func(func, "{self.name}")'
            )
        value = function(dtype.bits)
        if isinstance(value, FloatImm):
            value = value.value
        if isinstance(value, Expr):
            return int(kernels.constant(value))
        return int(self.encode(np.asarray(value, np.float64), dtype))

    def lanes(self, dtype: DType) -> DType | None:
        """See VectorDType. A datatype with registered functions of its own has none."""
        from datatypes import vector

        if self.fmt is None or registry.customized(self.name):
            return None
        choice = vector.lanes(self._format(dtype))
        return None if isinstance(choice, str) else choice.lane.dtype

    def lanes_reason(self, dtype: DType) -> str:
        """See VectorDType."""
        from datatypes import vector

        if self.fmt is None or registry.customized(self.name):
            return "its operations are functions that were registered"
        choice = vector.lanes(self._format(dtype))
        return choice if isinstance(choice, str) else choice.reason

    def slow_sums(self, dtype: DType) -> str:
        """See VectorDType."""
        from datatypes.vector.deferred import slow_sums

        return "" if self.lanes(dtype) is None else slow_sums(self._format(dtype))

    def vector(self, node: Expr, deferred: bool, keeps_nan: bool = True) -> Expr:
        """See VectorDType.

        Raises:
            LoweringError: the format has no such operation.
        """
        from datatypes import vector

        assert self.fmt is not None
        lowered = vector.lower(self.fmt, node, deferred, keeps_nan)
        if lowered is None:
            raise LoweringError(f"{node!r} has no vector lowering; build with the library lowering")
        return lowered

    def from_bits(self, bits: Expr, dtype: DType) -> Expr:
        """See VectorDType."""
        from datatypes import vector

        return vector.from_bits(self._format(dtype), bits)

    def to_bits(self, value: Expr, dtype: DType) -> Expr:
        """See VectorDType."""
        from datatypes import vector

        return vector.to_bits(self._format(dtype), value)

    def lane_array(self, codes: Array, dtype: DType) -> Array:
        """See VectorDType."""
        from datatypes import vector

        return vector.lane_array(self._format(dtype), codes)

    def precision(self, dtype: DType) -> int:
        """See compiler.types.dtypes.PreciseDType."""
        from datatypes.vector.choice import significant_bits

        return dtype.bits if self.fmt is None else significant_bits(self._format(dtype))

    def span(self, dtype: DType) -> tuple[int, int] | None:
        """See compiler.types.dtypes.SpannedDType."""
        if self.fmt is None or registry.customized(self.name):
            return None
        return span(self._format(dtype))

    def least_normal(self, dtype: DType) -> int | None:
        """See compiler.types.dtypes.GradualDType."""
        return None if self.fmt is None else least_normal(self._format(dtype))

    def keeps_errors(self, dtype: DType) -> bool:
        """See compiler.types.dtypes.GradualDType."""
        if self.fmt is None or registry.customized(self.name) or self.fmt.tables:
            return False
        f = self._format(dtype)
        bounded = f.overflow == f.infinity and f.overflow != "saturate"
        return least_normal(f) is not None and f.rounding == "nearest" and bounded

    def _described(self, name: str, source: str, dest: str) -> bool:
        """Whether the format's description gives the meaning of a conversion."""
        return self.fmt is not None and not registry.lowering(Operation(name, "llvm", source, dest))

    def _format(self, dtype: DType) -> Format:
        assert self.fmt is not None
        if dtype.bits != self.fmt.nbits:
            raise DtypelabError(
                f"{self.name} has {self.fmt.nbits} bits; write custom[{self.name}]{self.fmt.nbits}"
            )
        return self.fmt


_described: dict[str, RegisteredType] = {}


def described(name: str) -> RegisteredType | None:
    """The datatype of the format called `name`, or None if there is no such format."""
    if name not in _described:
        try:
            _described[name] = RegisteredType(name, get(name))
        except DtypelabError:
            return None
    return _described[name]


def _checked(operation: Operation, node: Expr, lowered: Expr) -> Expr:
    """What a registered lowering function returned, if it has the right dtype."""
    wanted = node.dtype.storage_dtype
    if not isinstance(lowered, Expr):
        raise LoweringError(
            f"the lowering function of {operation} returned {lowered!r}; it must return an "
            f"expression of {wanted}"
        )
    if lowered.dtype not in (node.dtype, wanted):
        raise LoweringError(
            f"the lowering function of {operation} returned an expression of {lowered.dtype}; "
            f"{node.dtype} needs {wanted}"
        )
    return lowered


def _custom_operand(node: Expr) -> DType:
    return next(child.dtype for child in node.children() if child.dtype.is_custom)


@lru_cache(maxsize=256)
def span(fmt: Format) -> tuple[int, int] | None:
    """(low, high): every finite value is a multiple of 2**low and below 2**high in magnitude.

    None for formats whose operations are not those of their values: logarithms and tables.
    """
    if fmt.logarithmic or fmt.tables:
        return None
    largest = max(abs(fmt.value(fmt.lowest)), fmt.maxpos)
    high = (largest.numerator // largest.denominator).bit_length() if largest >= 1 else 1
    return -_fraction_bits(fmt), high


def _fraction_bits(fmt: Format) -> int:
    """Bits behind the point that some value needs."""
    if fmt.nbits <= 16:
        values = [fmt.value(k) for k in range(fmt.lowest, fmt.highest + 1)]
    else:  # the values next to zero are the finest, or those of the binades around one
        near = (0, fmt.nearest(Fraction(1)), fmt.nearest(fmt.minpos * 2**20))
        values = [fmt.value(k + d) for k in near for d in range(-40, 41)]
    return max(v.denominator for v in values).bit_length() - 1
