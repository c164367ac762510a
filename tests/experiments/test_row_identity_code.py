"""`config_hash` covers registered functions, C libraries, metrics and data sets with all that they
read."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from row_hashes import hash_in, hash_of

import datatypes
import experiments
from compiler.tensor.expr import Expr
from datatypes import registry
from experiments.data import datasets
from experiments.measure import scoring
from experiments.spec import identity
from experiments.systems import schemes

pytestmark = pytest.mark.usefixtures("forgotten")


def twice(node: Any) -> Expr:
    return node.a + node.a


def thrice(node: Any) -> Expr:
    return node.a + node.a + node.a


def helper_of(node: Any) -> Expr:
    return HELPERS[0](node)


HELPERS: list[Callable[[Any], Expr]] = [twice]


def shifted(by: int) -> Callable[[Any], Expr]:
    return lambda node: node.a + by


@pytest.mark.parametrize("name", ["posit9_es1", "custom[lowered_mine]8"])
def test_lowering_functions_count_with_all_that_they_read(name: str) -> None:
    kind = "lowered_mine" if "mine" in name else name
    if kind == "lowered_mine" and kind not in registry.registered_types():
        datatypes.register("lowered_mine")
    without = hash_in(name)
    other = hash_in("posit8_es0")
    found = [without]
    for function in (twice, thrice, shifted(1), shifted(2), helper_of):
        datatypes.register_op(function, "Mul", "llvm", kind)
        found.append(hash_in(name))
        assert hash_in(name) == found[-1]
    HELPERS[0] = thrice
    found.append(hash_in(name))
    HELPERS[0] = twice
    assert hash_in(name) == found[-2]
    datatypes.register_op(twice, "Add", "llvm", kind)
    found.append(hash_in(name))
    datatypes.register_min_func(lambda bits: -1.0, kind)
    found.append(hash_in(name))
    datatypes.register_min_func(lambda bits: -2.0, kind)
    found.append(hash_in(name))
    datatypes.register_op(twice, "Cast", "llvm", "float", kind)
    found.append(hash_in(name))
    assert len(set(found)) == len(found)
    assert hash_in("posit8_es0") == other


def library(folder: Path, body: str) -> Path:
    """A C library whose `mine_mul` does `body`; each under a path of its own."""
    folder.mkdir()
    source, made = folder / "mine.c", folder / "libmine.so"
    source.write_text(f"unsigned char mine_mul_{folder.name}(unsigned char a) {{ return {body}; }}")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", made, source], check=True, timeout=60)
    return made


def test_c_libraries_count_with_their_bytes(tmp_path: Path) -> None:
    """Of the libraries that are loaded, those whose functions are called."""
    made = library(tmp_path / "own", "a")
    datatypes.load_library(library(tmp_path / "unused", "a"))
    datatypes.load_library(made)
    lower = datatypes.create_lower_func({9: "mine_mul_own"})
    datatypes.register_op(lower, "Mul", "llvm", "posit9_es1")
    found = identity.definitions(schemes.parse("posit9_es1"))
    assert found["libraries"] == [experiments.files.sha256(made)]
    before = hash_in("posit9_es1")
    # A library of the same functions that does something else.
    with made.open("ab") as file:
        file.write(b"changed")
    assert hash_in("posit9_es1") != before

    def by_name(node: Any) -> Expr:
        return datatypes.call_pure_extern("uint16", "mine_mul_own", node.a)

    datatypes.register_op(by_name, "Mul", "llvm", "posit9_es1")
    found = identity.definitions(schemes.parse("posit9_es1"))
    assert found["libraries"] == [experiments.files.sha256(made)]


def test_metrics_that_were_registered_count_with_what_they_do() -> None:
    def register(score: Callable[..., Any], higher: bool = True) -> str:
        scoring.register_metric("mine", score, higher_is_better=higher)
        return hash_of(schemes=["float32"], metric="mine")

    def scaled(by: float) -> Callable[..., Any]:
        return lambda outputs, labels: by * outputs[:, 0]

    found = [
        register(lambda outputs, labels: outputs.max(axis=1)),
        register(lambda outputs, labels: outputs.min(axis=1)),
        register(lambda outputs, labels: outputs.min(axis=1), False),
        *(register(scaled(1.0)), register(scaled(2.0))),
    ]
    assert len(set(found)) == len(found)
    assert register(scaled(2.0)) == found[-1]


def test_a_data_set_made_of_another_one_is_another_one() -> None:
    digits = datasets.load("mnist1k")
    keys = set()
    for changed in (
        *({}, {"x": digits.x * 2}, {"y": digits.y + 1}, {"calibration": digits.calibration + 1}),
        {"classes": ("a",)},
    ):
        datasets.register_dataset("mine", lambda c=changed: replace(digits, **c))
        keys.add(hash_of(schemes=["int8_channel"], dataset="mine"))
    assert len(keys) == 5
