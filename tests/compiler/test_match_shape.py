"""match_shape: dimensions whose sizes are numbers that a program has computed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import compiler
from compiler.errors import InputError, TypeInferenceError
from compiler.ir.expr import IRModule
from compiler.ir.parser import parse
from compiler.transform.dead_code import DeadCodeElimination
from compiler.transform.eliminate_common import EliminateCommonSubexpr
from compiler.transform.fold_constant import FoldConstant
from compiler.transform.legalize_ops import LegalizeOps

ROWS = """
def @main(%x: Tensor[(4, 2), float32], %c: Tensor[(1,), int64]) -> Tensor[(k, 2), float32] {
  %s = match_shape(%c, shape=[k]);
  %a = arange(size=k);
  %y = take(%x, %a);
  %z = add(%y, %y);
  %z
}
"""
X = np.arange(8, dtype=np.float32).reshape(4, 2)


def module(text: str = ROWS) -> IRModule:
    mod = parse(text)
    assert parse(mod.astext()).astext() == mod.astext()
    return mod


def ways(mod: IRModule, tmp_path: Path) -> list[compiler.Executable]:
    """Interpreted, compiled, and saved and loaded again."""
    executable = compiler.build(mod)
    executable.save(tmp_path / "m.bin")
    return [lambda *a: compiler.evaluate(mod, *a), executable, compiler.load(tmp_path / "m.bin")]


@pytest.mark.parametrize("count", [0, 1, 3, 4])
def test_one_build_serves_every_count(count: int, tmp_path: Path) -> None:
    for run in ways(module(), tmp_path):
        got = run(X, np.int64([count]))
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, 2 * X[:count])


def test_negative_counts_and_those_that_differ_are_refused(tmp_path: Path) -> None:
    twice = ROWS.replace("%a =", "%t = match_shape(%c, shape=[3]);\n  %a =")
    both = ROWS.replace("%a =", "%t = match_shape(%d, shape=[k + 1]);\n  %a =")
    both = both.replace("(%x:", "(%d: Tensor[(1,), int64], %x:")
    for run in ways(module(), tmp_path):
        with pytest.raises(InputError, match="-2: sizes cannot be negative"):
            run(X, np.int64([-2]))
    for run in ways(module(twice), tmp_path):
        assert run(X, np.int64([3])).shape == (3, 2)
        with pytest.raises(InputError, match="a size of 2, but 3"):
            run(X, np.int64([2]))
    for run in ways(module(both), tmp_path):
        assert run(np.int64([3]), X, np.int64([2])).shape == (2, 2)
        with pytest.raises(InputError, match=r"a size of 2, but k \+ 1 = 3"):
            run(np.int64([2]), X, np.int64([2]))


@pytest.mark.parametrize("count", [2**45, 2**62])
def test_sizes_beyond_all_memory_are_refused(count: int) -> None:
    with pytest.raises(InputError, match=f"no memory for sizes of k = {count}"):
        compiler.build(module())(X, np.int64([count]))


def test_every_iteration_and_every_branch_finds_its_own(tmp_path: Path) -> None:
    text = """
def @main(%x: Tensor[(4, 2), float32], %n: Tensor[(), int64]) -> Tensor[(steps,), float32] {
  %go = less(0int64, %n);
  %out = loop steps (%go, %i: Tensor[(), int64] = 0int64) {
    %c = reshape(%i, newshape=[1]);
    %s = match_shape(%c, shape=[k]);
    %a = arange(size=k);
    %j = add(%i, 1int64);
    %again = less(%j, %n);
    %y = take(%x, %a);
    %first = add(%a, %a);
    %total = sum(%first, axis=[0]);
    %real = cast(%total, dtype="float32");
    (%again, %j, %real)
  };
  %rows = %out.1;
  %rows
}
"""
    mod = module(text)
    assert compiler.evaluate(mod, X, np.asarray(5)).tolist() == [0, 0, 2, 6, 12]
    started = text.replace("%i: Tensor[(), int64] = 0int64", "%i: Tensor[(), int64] = 1int64")
    for run in ways(module(started), tmp_path):
        assert run(X, np.asarray(5)).tolist() == [0, 2, 6, 12]


def test_passes_neither_drop_nor_merge_nor_fold_it() -> None:
    text = """
def @main(%x: Tensor[(4, 2), float32]) -> Tensor[(4, 2), float32] {
  %s = match_shape(meta[Constant][0], shape=[k]);
  %t = match_shape(meta[Constant][0], shape=[k]);
  %x
}

#[metadata]
meta[Constant][0] = int64[1] 0300000000000000
"""
    for each in (FoldConstant(), DeadCodeElimination(), EliminateCommonSubexpr(), LegalizeOps()):
        assert each(parse(text)).astext().count("match_shape") == 2


def test_numbers_that_do_not_fit_the_dimensions_are_no_program() -> None:
    with pytest.raises(TypeInferenceError, match="match_shape"):
        parse(ROWS.replace("shape=[k]", "shape=[k, 2]"))
