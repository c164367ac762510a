"""Custom datatypes: number formats as data, and what the compiler needs to compute in them."""

from datatypes.formats import Format, decode, define, encode, get, list_formats

__all__ = ["Format", "decode", "define", "encode", "get", "list_formats"]
