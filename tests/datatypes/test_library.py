"""load_library: shared libraries and compiled extensions, and what cannot be loaded."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
import softposit

import datatypes
from compiler.errors import DtypelabError, LoweringError
from compiler.tensor.expr import CallExtern
from compiler.types.dtypes import FLOAT32, UINT8, DType
from datatypes import kernels


def compiled(folder: Path, source: str) -> Path:
    """A shared library made from C source."""
    (folder / "made.c").write_text(source)
    library = folder / "made.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, folder / "made.c"], check=True)
    return library


def test_functions_are_callable_from_python_and_from_compiled_code(tmp_path: Path) -> None:
    library = compiled(tmp_path, "unsigned char lib_twice(unsigned char a) { return a + a; }")
    loaded = datatypes.load_library(library)
    assert loaded.lib_twice(21) == 42
    assert datatypes.load_library(str(library)) is loaded
    run = kernels.compile_elementwise(
        "twice", (UINT8,), UINT8, lambda x: CallExtern("lib_twice", (x,), UINT8)
    )
    np.testing.assert_array_equal(run(np.array([3, 200], np.uint8)), [6, 144])


def test_booleans_and_floats_cross_the_border(tmp_path: Path) -> None:
    source = "#include <stdbool.h>\nbool lib_big(float a, unsigned short b) { return a > b; }"
    datatypes.load_library(compiled(tmp_path, source))
    boolean, short = DType.parse("bool"), DType.parse("uint16")
    run = kernels.compile_elementwise(
        "big", (FLOAT32, short), boolean, lambda a, b: CallExtern("lib_big", (a, b), boolean)
    )
    got = run(np.array([1.5, 65535.5, 65534.5], np.float32), np.array([1, 65535, 65535], np.uint16))
    assert got.tolist() == [True, True, False]


def test_module_with_an_extension() -> None:
    loaded = datatypes.load_library(softposit)
    assert loaded.p16_add(0x4000, 0x4000) == 0x5000


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DtypelabError, match=r"there is no library .*absent\.so; give the path"):
        datatypes.load_library(tmp_path / "absent.so")


def test_file_that_is_no_library(tmp_path: Path) -> None:
    broken = tmp_path / "broken.so"
    broken.write_text("not a library")
    with pytest.raises(DtypelabError, match=r"broken\.so does not load .*cc -shared"):
        datatypes.load_library(broken)


def test_module_without_an_extension() -> None:
    with pytest.raises(DtypelabError, match="module 'json' has no compiled extension"):
        datatypes.load_library(json)


def test_a_symbol_that_is_nowhere() -> None:
    with pytest.raises(LoweringError, match=r"'lib_nowhere' is in no loaded library"):
        kernels.compile_elementwise(
            "nowhere",
            (UINT8,),
            UINT8,
            lambda x: CallExtern("lib_nowhere", (x,), UINT8),
        )
