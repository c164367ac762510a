"""Number formats as data: `Format`, the families that make them, and their codecs."""

from datatypes.formats.arrays import (
    decode,
    encode,
    interval_starts,
    ordered_values,
    sorted_codes,
    to_ml_dtypes,
    value_table,
)
from datatypes.formats.binades import Binades, binades
from datatypes.formats.catalogue import add, families, get, list_formats
from datatypes.formats.description import Format
from datatypes.formats.fixed import fixed
from datatypes.formats.minifloat import minifloat
from datatypes.formats.posit import posit
from datatypes.formats.takum import takum
from datatypes.formats.value import Power, Special, Value, as_float

__all__ = [
    "Binades",
    "Format",
    "Power",
    "Special",
    "Value",
    "add",
    "as_float",
    "binades",
    "decode",
    "encode",
    "families",
    "fixed",
    "get",
    "interval_starts",
    "list_formats",
    "minifloat",
    "ordered_values",
    "posit",
    "sorted_codes",
    "takum",
    "to_ml_dtypes",
    "value_table",
]
