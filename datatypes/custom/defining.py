"""define: a number format of your own in one call."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any

import numpy.typing as npt

from compiler.errors import DtypelabError, unknown
from datatypes.arithmetic import oracle
from datatypes.builtin import decoding
from datatypes.formats import Format, Special, Value, add, get, minifloat
from datatypes.formats.checks import check_values
from datatypes.formats.codebook import codebook, exact_value
from datatypes.formats.minifloat import Style
from datatypes.formats.rules import SORTED_BITS
from datatypes.formats.tables import operation_tables

Decode = Callable[[int], "float | Fraction | Value"]
_INTEGER = re.compile(r"u?int\d+", re.ASCII)
_RULES = tuple(
    f.name for f in fields(Format) if f.name not in ("name", "nbits", "decoder", "tables")
)


def define(
    fmt: Format | str,
    *,
    like: Format | str | None = None,
    exponent: int | None = None,
    mantissa: int | None = None,
    bias: int | None = None,
    nan: bool = True,
    infinities: bool | None = None,
    subnormals: bool = True,
    nbits: int | None = None,
    decode: Decode | None = None,
    values: Sequence[float | Fraction] | None = None,
    tables: Mapping[str, npt.ArrayLike] | None = None,
    **rules: Any,
) -> Format:
    """Give a number format a name, under which networks run in it.

    It is described in one of five ways: as a `Format`; `like` another one; as a float by its
    `exponent` and `mantissa` bits; by `nbits` and a function `decode`; or by a list of `values`.

    Args:
        fmt: the name, or a whole description.
        like: a format to start from.
        exponent: bits of a float's exponent; the width is 1 + exponent + mantissa.
        mantissa: bits of a float after the point.
        bias: of a float's exponent, 2**(exponent-1) - 1 unless given.
        nan: whether a float has NaN.
        infinities: whether a float has infinities; unless given, where it has NaN.
        subnormals: whether a float has them.
        nbits: width of the codes that `decode` takes.
        decode: code -> its value: an int, float or Fraction; NaN and infinities as floats. For
            codes that follow no order (`negation="none"`), unless the rules say otherwise.
        values: the value of code 0, 1, 2 ...; 2**n of them.
        tables: operation ("Add", "Mul", ..., "exp") -> its results as codes: [2**n, 2**n], or
            [2**n] for a function of one operand; n is at most 8.
        rules: other attributes of `Format`, such as `rounding="stochastic"` or
            `overflow="saturate"`.

    Returns:
        The format, which `get` and `change_dtype` now know by its name.

    Raises:
        DtypelabError: the name is taken or the description contradicts itself; nothing is defined.
    """
    for rule in rules:
        if rule not in _RULES:
            raise DtypelabError(unknown("rule", rule, _RULES))
    ways = {"like": like, "exponent": exponent, "decode": decode, "values": values}
    chosen = [way for way, given in ways.items() if given is not None]
    if len(chosen) != (0 if isinstance(fmt, Format) else 1):
        raise DtypelabError(
            f"describe a format as a Format, or by a name and one of {', '.join(ways)}"
        )
    if isinstance(fmt, Format):
        made = fmt
    elif like is not None:
        made = replace(get(like), name=fmt, source=f"like {get(like).name}")
    elif exponent is not None:
        style = _style(fmt, nan, nan if infinities is None else infinities)
        given = {k: rules.pop(k) for k in ("rounding", "seed") if k in rules}
        made = minifloat(
            exponent, mantissa or 0, style, bias=bias, subnormals=subnormals, name=fmt, **given
        )
    elif values is not None:
        made = codebook(fmt, values)
    else:
        assert decode is not None
        made = _decoded(fmt, nbits, decode, rules)
        rules = {}
    if rules:
        made = replace(made, **rules)
    if tables is not None:
        made = replace(made, tables=operation_tables(made.name, made.nbits, tables))
    _check_name(made.name)
    check_values(made)
    _check_lowering(made)
    return add(made)


@dataclass(frozen=True)
class Decoded:
    """A function of one code as the decoder of a format."""

    function: Decode
    nbits: int

    def __call__(self, bits: int, nbits: int) -> Value:
        """Exact value of a code."""
        return exact_value(self.function(bits))


def _decoded(name: str, nbits: int | None, decode: Decode, rules: Mapping[str, Any]) -> Format:
    """The format of a function; rules that are not given follow from what it returns."""
    if nbits is None or not 2 <= nbits <= SORTED_BITS:
        raise DtypelabError(
            f"format {name!r}: a function needs nbits from 2 to {SORTED_BITS}; wider formats are "
            "floats, or posits, takums and fixed point, which have names"
        )
    decoder = Decoded(decode, nbits)
    try:
        values = [decoder(code, nbits) for code in range(1 << nbits)]
    except (ArithmeticError, ValueError, TypeError) as error:
        raise DtypelabError(f"format {name!r}: decode fails: {error}") from None
    finite = [(abs(v), code) for code, v in enumerate(values) if isinstance(v, Fraction)]
    near_zero = min(finite, default=(0, 0))[1]
    has_inf, has_nan = Special.INF in values, Special.NAN in values
    sign_bit = 1 << (nbits - 1)
    derived: dict[str, Any] = {
        "negation": "none",
        "nan_code": values.index(Special.NAN) if has_nan else near_zero,
        "overflow": "inf" if has_inf else "saturate",
        "infinity": "inf" if has_inf else "nan" if has_nan else "saturate",
        "signed_zero": rules.get("negation") == "sign" and values[sign_bit] == 0,
        "source": "a function",
    }
    return Format(name=name, nbits=nbits, decoder=decoder, **(derived | dict(rules)))


def _style(name: str, nan: bool, infinities: bool) -> Style:
    """The style of float that has what is asked for."""
    if infinities and not nan:
        raise DtypelabError(f"format {name!r}: a float with infinities has NaN too")
    return "ieee" if infinities else "fn" if nan else "finite"


def _check_name(name: str) -> None:
    from compiler.op.accumulate import names_sums
    from compiler.types.dtypes import DType
    from datatypes.registry import registered_types

    if not name.isidentifier() or not name.isascii():
        raise DtypelabError(f"{name!r} cannot name a format; use letters, digits and underscores")
    if name in registered_types():
        raise DtypelabError(f"{name!r} is a registered datatype; choose another name")
    try:
        builtin = not DType.parse(name).is_custom
    except DtypelabError:
        builtin = False
    if builtin and name != "float16":
        raise DtypelabError(f"{name!r} is a built-in type; choose another name")
    if names_sums(name):
        raise DtypelabError(f"{name!r} names a way to form sums; choose another name")
    if _INTEGER.fullmatch(name):
        raise DtypelabError(f"{name!r} names integers; choose another name")


def _check_lowering(fmt: Format) -> None:
    """Raise unless every operation of the format has compiled code."""
    if fmt.storage_only:
        return
    where = f"format {fmt.name!r}"
    if fmt.nbits > decoding.TABLE_BITS and not decoding.has_family(fmt):
        raise DtypelabError(
            f"{where}: more than {decoding.TABLE_BITS} bits are for floats with IEEE's special "
            "values, posits, takums and fixed point"
        )
    if not oracle.float64_range(fmt) and not fmt.logarithmic:
        raise DtypelabError(
            f"{where} reaches beyond 2**-450 .. 2**450, so that products leave the range of "
            "float64; choose a smaller exponent, or storage_only=True"
        )
