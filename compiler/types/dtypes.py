"""DType: what the scalars of a tensor are, as a value; and the registry of custom datatypes.

A built-in dtype is written as numpy writes it (`float32`, `int8`, `bool`). A custom dtype is
written `custom[NAME]BITS` (`custom[posit]16`), the notation of TVM's Bring Your Own Datatypes; its
values are kept in an unsigned integer of at least BITS bits. What a custom dtype means is given by
the `CustomDType` that is registered under NAME: other packages plug in through `register_custom`,
or, for formats that need no registration, through `notations` and `resolvers` (see
`compiler.types.providers` for how they are found).

Within a compiled module a custom value may be held in another *form*. It may be kept decoded, as a
float that equals it, in a *lane*: `custom[posit]16:float32`. Or its operations are look-ups:
`custom[posit]8:table`. That is the same dtype, stored or computed with otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from compiler.errors import DtypelabError, unknown
from compiler.types.providers import load_providers

Array = npt.NDArray[Any]
T = TypeVar("T")

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
_CUSTOM = re.compile(r"custom\[([A-Za-z_]\w*)\](\d+)(?::(float32|float64|table))?")


@dataclass(frozen=True, slots=True)
class DType:
    """A scalar type. `kind` is float, int, uint, bool or custom; `bits` its width; `name` a custom
    type's; `form` how a custom value is held: as a code (""), as a code whose operations are
    look-ups ("table"), or decoded ("float32", "float64").

    >>> DType.parse("custom[posit]16").storage
    dtype('uint16')
    >>> DType.parse("custom[posit]16:float32").storage
    dtype('float32')
    """

    kind: str
    bits: int
    name: str = ""
    form: str = ""

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
            text = _full_notation(text)
        found = _CUSTOM.fullmatch(text)
        if not found:
            raise DtypelabError(unknown("dtype", text, [*_BUILTIN, "custom[NAME]BITS"]))
        name, bits = found[1], int(found[2])
        if not 1 <= bits <= 64:
            raise DtypelabError(f"dtype {text!r}: the width must be 1 to 64 bits")
        custom(name)
        return DType("custom", bits, name, found[3] or "")

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
    def lane(self) -> int:
        """Width of the float that holds a custom value decoded; 0 if codes are stored."""
        return int(self.form.removeprefix("float")) if self.form.startswith("float") else 0

    @property
    def storage_bits(self) -> int:
        """Bits one element takes in memory: the lane's, or `bits` rounded up to 8, 16, 32 or 64."""
        return self.lane or max(8, 1 << (self.bits - 1).bit_length())

    @property
    def nbytes(self) -> int:
        """Bytes one element takes in memory."""
        return self.storage_bits // 8

    @property
    def storage(self) -> np.dtype[Any]:
        """numpy dtype of the stored elements: itself; for custom types the lane, or an unsigned
        integer."""
        stored = self.storage_dtype
        return np.dtype("bool" if self.kind == "bool" else f"{stored.kind}{stored.bits}")

    @property
    def storage_dtype(self) -> DType:
        """The built-in DType of the stored elements."""
        if self.kind != "custom":
            return self
        return DType("float" if self.lane else "uint", self.storage_bits)

    @property
    def least(self) -> float | int:
        """The least value of a built-in float or integer type: minus infinity if it has one."""
        return float("-inf") if self.is_float else int(np.iinfo(self.storage).min)

    @property
    def code(self) -> DType:
        """The same dtype in the form of codes."""
        return DType(self.kind, self.bits, self.name)

    def in_form(self, form: str) -> DType:
        """This custom dtype in a form: "float32", "float64", "table" or ""."""
        return DType(self.kind, self.bits, self.name, form)

    def __str__(self) -> str:
        if self.kind == "custom":
            held = f":{self.form}" if self.form else ""
            return f"custom[{self.name}]{self.bits}{held}"
        return "bool" if self.kind == "bool" else f"{self.kind}{self.bits}"

    __repr__ = __str__


FLOAT32 = DType("float", 32)
FLOAT64 = DType("float", 64)
INT8 = DType("int", 8)
UINT8 = DType("uint", 8)
INT16 = DType("int", 16)
UINT16 = DType("uint", 16)
INT32 = DType("int", 32)
INT64 = DType("int", 64)
BOOL = DType("bool", 8)


@runtime_checkable
class CustomDType(Protocol):
    """What must be known of the values of a custom datatype called `name`; what compiled code makes
    of its operations is in `compiler.tensor.custom_dtypes`.

    The scalar operations are named as tensor-level expressions name them: `Add Sub Mul Div Max Min
    LT LE GT GE EQ NE`, `Cast`, `FloatImm`, and functions by their own name (`sqrt exp log tanh
    ...`).
    """

    name: str

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
        """Storage integer of the least value: minus infinity, or the most negative number."""
        ...


@runtime_checkable
class SpannedDType(Protocol):
    """A custom datatype whose finite values are known to lie on a grid, so that sums of them can be
    exact."""

    def span(self, dtype: DType) -> tuple[int, int] | None:
        """(low, high): every finite value is a multiple of 2**low and below 2**high in magnitude;
        None if they are no such numbers, or products are not those of the values."""
        ...


@runtime_checkable
class RevisedDType(Protocol):
    """A custom datatype whose operations may be registered anew: what is derived from them holds
    for one revision."""

    @property
    def revision(self) -> int:
        """Another number after every registration."""
        ...


@runtime_checkable
class PreciseDType(Protocol):
    """A custom datatype of whose values the significant bits are known."""

    def precision(self, dtype: DType) -> int:
        """The most significant bits of any value."""
        ...


@runtime_checkable
class GradualDType(Protocol):
    """A custom datatype that may have subnormal numbers."""

    def least_normal(self, dtype: DType) -> int | None:
        """The exponent of the least normal number, which subnormal ones share; None: there are no
        such numbers."""
        ...

    def keeps_errors(self, dtype: DType) -> bool:
        """Whether what a finite sum of two numbers lacks is always a number of the datatype: that
        of a float that rounds to nearest and does not saturate (T. Dekker, 1971)."""
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
        found = _first(resolvers, name)
        if found is None:
            hint = "; register it with datatypes.register(name)"
            raise DtypelabError(unknown("custom datatype", name, _custom) + hint)
        _custom[name] = found
    return _custom[name]


def format_dtype(name: str) -> DType:
    """The custom dtype of the described format called `name`: of `float16` too, which is also a
    built-in dtype.

    Raises:
        DtypelabError: there is no such format.
    """
    text = _full_notation(name)
    if not _CUSTOM.fullmatch(text):
        raise DtypelabError(unknown("format", name, [*_custom, "float<N>_e<E>m<M>"]))
    return DType.parse(text)


def _full_notation(text: str) -> str:
    """The notation `custom[NAME]BITS` of a format's name; other text as it is."""
    return text if _CUSTOM.fullmatch(text) else _first(notations, text) or text


def _first(hooks: list[Callable[[str], T | None]], name: str) -> T | None:
    """What the first of the hooks that knows `name` says of it; providers of formats that are not
    imported yet are, if none does."""
    for load in (None, load_providers):
        if load is not None:
            load()
        found = next((f for hook in hooks if (f := hook(name)) is not None), None)
        if found is not None:
            return found
    return None


def precision(dtype: DType) -> int | None:
    """The significant bits of a custom datatype's values; None if they are not known."""
    kind: object = custom(dtype.name)
    return kind.precision(dtype.code) if isinstance(kind, PreciseDType) else None


def span(dtype: DType) -> tuple[int, int] | None:
    """The grid of a custom datatype's values (see SpannedDType); None if it is not known."""
    kind: object = custom(dtype.name)
    return kind.span(dtype.code) if isinstance(kind, SpannedDType) else None


def least_normal(dtype: DType) -> int | None:
    """The exponent of a float's least normal number, which its subnormal numbers share; None of
    what has no such numbers."""
    if dtype.is_float:
        return int(np.finfo(dtype.storage).minexp)
    kind: object = custom(dtype.name) if dtype.is_custom else None
    return kind.least_normal(dtype.code) if isinstance(kind, GradualDType) else None


def keeps_errors(dtype: DType) -> bool:
    """Whether what a finite sum of two numbers lacks is known to be a number of the dtype."""
    if not dtype.is_custom:
        return dtype.is_float
    kind: object = custom(dtype.name)
    return isinstance(kind, GradualDType) and kind.keeps_errors(dtype.code)
