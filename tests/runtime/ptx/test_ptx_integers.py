"""Integer instructions of PTX mean what Python's integers say, on edges and random values."""

from pathlib import Path

import numpy as np
import pytest
from ptx_instructions import INTEGERS, integers
from ptx_runs import HEAD, assemble, dtype_of, elementwise, run_elementwise

from compiler.codegen.ptx.assembler import assembler
from compiler.runtime.machines import ptx

TEXT = HEAD.format(target="sm_90") + "".join(
    elementwise(f"k{i}", c.code, c.sources, c.target) for i, c in enumerate(INTEGERS)
)


@pytest.fixture(scope="module")
def module() -> ptx.PtxModule:
    return ptx.parse(TEXT)


def wrong(module: ptx.PtxModule, i: int, n: int) -> list[str]:
    case, rng = INTEGERS[i], np.random.default_rng(i)
    arrays = [integers(rng, k, n) for k in case.sources]
    got = run_elementwise(module, f"k{i}", arrays, case.target)
    want = [case.meaning(*map(int, v)) for v in zip(*arrays, strict=True)]
    bad = np.flatnonzero(got != np.array(want, dtype_of(case.target)))
    return [f"{[int(a[k]) for a in arrays]} -> {got[k]}, not {want[k]}" for k in bad[:3]]


@pytest.mark.thorough
@pytest.mark.parametrize("i", range(len(INTEGERS)), ids=lambda i: INTEGERS[i].code)
def test_integer_instruction(module: ptx.PtxModule, i: int) -> None:
    assert wrong(module, i, 300) == []


def test_some_integer_instructions() -> None:
    picked = range(0, len(INTEGERS), 23)
    text = HEAD.format(target="sm_90") + "".join(
        elementwise(f"k{i}", INTEGERS[i].code, INTEGERS[i].sources, INTEGERS[i].target)
        for i in picked
    )
    few = ptx.parse(text)
    assert {INTEGERS[i].code: wrong(few, i, 40) for i in picked if wrong(few, i, 40)} == {}


@pytest.mark.thorough
@pytest.mark.skipif(not assembler(), reason="needs ptxas (package nvidia-cuda-nvcc)")
def test_ptxas_accepts_them(tmp_path: Path) -> None:
    assert assemble(TEXT, "sm_90", tmp_path) == ""
