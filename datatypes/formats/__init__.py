"""Number formats as data: `Format`, the families that make them, and their codecs."""

from datatypes.formats.arrays import decode, encode, interval_starts, value_table
from datatypes.formats.binades import Binades, binades
from datatypes.formats.catalogue import define, families, get, list_formats
from datatypes.formats.description import Format, Special, Value, as_float
from datatypes.formats.fixed import fixed
from datatypes.formats.minifloat import minifloat
from datatypes.formats.posit import posit
from datatypes.formats.takum import takum

__all__ = [
    "Binades",
    "Format",
    "Special",
    "Value",
    "as_float",
    "binades",
    "decode",
    "define",
    "encode",
    "families",
    "fixed",
    "get",
    "interval_starts",
    "list_formats",
    "minifloat",
    "posit",
    "takum",
    "value_table",
]
