"""DType: what the scalars of a tensor are, as a value; and the registry of custom datatypes.

A built-in dtype is written as numpy writes it (`float32`, `int8`, `bool`). A custom dtype is
written `custom[NAME]BITS` (`custom[posit]16`), the notation of TVM's Bring Your Own Datatypes; its
values are kept in an unsigned integer of at least BITS bits. What a custom dtype means is given by
the `CustomDType` that is registered under NAME: other packages plug in through `register_custom`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from compiler.errors import DtypelabError, unknown

if TYPE_CHECKING:
    from compiler.tensor.expr import Expr

Array = npt.NDArray[Any]

_KINDS = {"float": "f", "int": "i", "uint": "u", "bool": "b"}
_BUILTIN = {
    "float16": ("float", 16),
    "float32": ("float", 32),
    "float64": ("float", 64),
    "int8": ("int", 8),
    "int16": ("int", 16),
    "int32": ("int", 32),
    "int64": ("int", 64),
    "uint8": ("uint", 8),
    "uint16": ("uint", 16),
    "uint32": ("uint", 32),
    "uint64": ("uint", 64),
    "bool": ("bool", 8),
}
_CUSTOM = re.compile(r"custom\[([A-Za-z_]\w*)\](\d+)")


@dataclass(frozen=True, slots=True)
class DType:
    """A scalar type. `kind` is float, int, uint, bool or custom; `bits` its width; `name` a custom
    type's.

    >>> DType.parse("custom[posit]16").storage
    dtype('uint16')
    """

    kind: str
    bits: int
    name: str = ""

    @staticmethod
    def parse(text: str | DType | np.dtype[Any] | type[np.generic]) -> DType:
        """DType written as `float32` or `custom[posit]16`, or by the name of a built-in format.

        Raises:
            DtypelabError: no such dtype, or a custom name that is not registered.
        """
        if isinstance(text, DType):
            return text
        named = isinstance(text, str)
        if not isinstance(text, str):
            text = np.dtype(text).name
        if text in _BUILTIN:
            return DType(*_BUILTIN[text])
        if named:
            text = next(filter(None, (full(text) for full in notations)), text)
        found = _CUSTOM.fullmatch(text)
        if not found:
            raise DtypelabError(unknown("dtype", text, [*_BUILTIN, "custom[NAME]BITS"]))
        name, bits = found[1], int(found[2])
        if not 1 <= bits <= 64:
            raise DtypelabError(f"dtype {text!r}: the width must be 1 to 64 bits")
        custom(name)
        return DType("custom", bits, name)

    @property
    def is_custom(self) -> bool:
        """Whether a registered `CustomDType` gives the meaning."""
        return self.kind == "custom"

    @property
    def is_float(self) -> bool:
        """Whether this is a built-in binary floating-point type."""
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        """Whether this is a built-in signed or unsigned integer type."""
        return self.kind in ("int", "uint")

    @property
    def storage_bits(self) -> int:
        """Bits one element takes in memory: `bits` rounded up to 8, 16, 32 or 64."""
        return max(8, 1 << (self.bits - 1).bit_length())

    @property
    def nbytes(self) -> int:
        """Bytes one element takes in memory."""
        return self.storage_bits // 8

    @property
    def storage(self) -> np.dtype[Any]:
        """numpy dtype of the stored elements: itself, or an unsigned integer for custom types."""
        if self.kind == "custom":
            return np.dtype(f"uint{self.storage_bits}")
        return np.dtype("bool" if self.kind == "bool" else f"{self.kind}{self.bits}")

    @property
    def storage_dtype(self) -> DType:
        """The built-in DType of the stored elements."""
        return DType("uint", self.storage_bits) if self.kind == "custom" else self

    def __str__(self) -> str:
        if self.kind == "custom":
            return f"custom[{self.name}]{self.bits}"
        return "bool" if self.kind == "bool" else f"{self.kind}{self.bits}"

    __repr__ = __str__


FLOAT32 = DType("float", 32)
FLOAT64 = DType("float", 64)
INT8 = DType("int", 8)
UINT8 = DType("uint", 8)
INT32 = DType("int", 32)
INT64 = DType("int", 64)
BOOL = DType("bool", 8)


@runtime_checkable
class CustomDType(Protocol):
    """What the compiler must know of a custom datatype called `name`.

    The scalar operations are named as tensor-level expressions name them: `Add Sub Mul Div Max Min
    LT LE GT GE EQ NE`, `Cast`, `FloatImm`, and functions by their own name (`sqrt exp log tanh
    ...`).
    """

    name: str

    def lower(self, node: Expr, target: str) -> Expr:
        """Rewrite one scalar operation whose operands already are storage integers.

        `node` still carries the custom dtype; the result has no custom dtype in it.

        Raises:
            compiler.errors.LoweringError: the operation has no lowering for this dtype and target.
        """
        ...

    def apply(self, op: str, dtype: DType, *args: Array) -> Array:
        """Oracle: `op` on storage arrays (broadcasting); comparisons give bool arrays.

        Raises:
            compiler.errors.LoweringError: the operation has no meaning for this dtype.
        """
        ...

    def encode(self, values: Array, dtype: DType) -> Array:
        """Storage integers nearest to `values` (float32/float64/integers), rounding once."""
        ...

    def decode(self, bits: Array, dtype: DType) -> Array:
        """float64 values of storage integers (nearest float64 where they are not exact)."""
        ...

    def lowest(self, dtype: DType) -> int:
        """Storage integer of the smallest (most negative) finite value."""
        ...


_custom: dict[str, CustomDType] = {}

notations: list[Callable[[str], str | None]] = []
"""Asked in turn for the full notation of a name: `posit16_es1` -> `custom[posit16_es1]16`."""

resolvers: list[Callable[[str], CustomDType | None]] = []
"""Asked in turn for a custom datatype that nobody registered; what one of them gives is
registered."""


def register_custom(dtype: CustomDType, override: bool = False) -> None:
    """Make `custom[NAME]BITS` parse, with `dtype` giving the meaning of NAME.

    Raises:
        DtypelabError: NAME is taken and `override` is false.
    """
    if dtype.name in _custom and not override:
        raise DtypelabError(f"custom datatype {dtype.name!r} is already registered")
    _custom[dtype.name] = dtype


def custom(name: str) -> CustomDType:
    """The registered custom datatype called `name`.

    Raises:
        DtypelabError: there is none.
    """
    if name not in _custom:
        for resolve in resolvers:
            found = resolve(name)
            if found is not None:
                _custom[name] = found
                return found
        hint = "; register it with datatypes.register(name)"
        if not resolvers:
            hint += ", or import datatypes for the built-in formats"
        raise DtypelabError(unknown("custom datatype", name, _custom) + hint)
    return _custom[name]
