"""A scalar function is added by one record: what runs, imports and draws functions has it then."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECORDS = """    ScalarFunction(
        "softsign", lambda x: x / (1 + np.abs(x)), single=softsign, double=softsign,
        enclose=lambda x, digits: (x / (1 + abs(x)),) * 2, trend=1, symmetry="odd",
        onnx="Softsign",
    ),
"""
BODY = """
def softsign(x: Expr) -> Expr:
    return x / (call("abs", x) + 1.0)


_RECORDS = (
"""
IMPORT = "from compiler.tensor.expr import Expr, call\n"
TESTS = (
    "op/added_functions.py", "op/test_scalar_functions.py", "op/test_function_bits.py",
    "op/test_every_op.py", "quantize/test_functions_as_tables.py",
)  # fmt: skip


@pytest.mark.thorough
def test_one_record_is_all_that_a_function_takes(tmp_path: Path) -> None:
    """The tests of all functions, and those of `added_functions`, in a copy of the packages that
    has one with a body of its own; CONTRIBUTING.md has one of the C library."""
    for part in ("compiler", "datatypes", "quantize", "experiments", "tests"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    records = tmp_path / "compiler" / "arithmetic" / "scalar_functions.py"
    text = records.read_text()
    for mark, put in (
        ("    # Parts of what operators", RECORDS + "    # Parts of what operators"),
        ("\n_RECORDS = (\n", BODY),
        ("from compiler.types.dtypes", IMPORT + "from compiler.types.dtypes"),
    ):
        assert text.count(mark) == 1
        text = text.replace(mark, put)
    records.write_text(text)
    out = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "", "-p", "no:cacheprovider", "-k",
         "softsign", *(f"tests/{t}" for t in TESTS)],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert out.returncode == 0, out.stdout + out.stderr
