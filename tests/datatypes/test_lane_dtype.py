"""A custom dtype held in lanes: the same datatype, stored as floats."""

import numpy as np
import pytest

import datatypes  # noqa: F401  (makes the formats' names known)
from compiler.errors import DtypelabError
from compiler.types.dtypes import FLOAT32, DType

POSIT = DType.parse("custom[posit16_es1]16")


def test_a_lane_dtype_is_stored_as_its_float() -> None:
    lanes = POSIT.in_form("float32")
    assert (lanes.storage, lanes.nbytes, lanes.bits) == (np.dtype("float32"), 4, 16)
    assert lanes.storage_dtype == FLOAT32
    assert lanes.is_custom
    assert lanes != POSIT
    assert lanes.code == POSIT


def test_lane_dtypes_print_and_parse() -> None:
    for text in (
        "custom[posit16_es1]16:float32",
        "custom[posit32_es2]32:float64",
        "custom[posit8_es0]8:table",
    ):
        assert str(DType.parse(text)) == text
    with pytest.raises(DtypelabError, match="unknown dtype"):
        DType.parse("custom[posit16_es1]16:int8")
