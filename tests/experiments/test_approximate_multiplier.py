"""The example of an approximate multiplier: what its table holds, and that networks multiply so."""

from __future__ import annotations

import numpy as np
import pytest

import compiler
import datatypes
from experiments import zoo
from experiments.data import datasets
from experiments.examples import approximate_multiplier as example

FINITE = np.arange(128) != example.NAN


@pytest.fixture(scope="module")
def names(known_formats: None) -> list[str]:
    return example.define()


def test_products_are_mitchells() -> None:
    """(1+x) 2^i times (1+y) 2^j is (1+x+y) 2^(i+j), or (x+y) 2^(i+j+1) once x+y reaches 1."""
    normal = np.arange(8, example.NAN)
    values = datatypes.decode("float8_e4m3fn", normal.astype(np.uint8)).astype(np.float64)
    fraction, exponent = np.frexp(values)
    x, i = 2 * fraction - 1, exponent - 1
    sums, powers = x[:, None] + x, 2.0 ** (i[:, None] + i)
    wanted = np.where(sums < 1, (1 + sums) * powers, 2 * sums * powers)
    got = datatypes.decode("float8_e4m3fn", example.mitchell()[np.ix_(normal, normal)])
    held = (wanted >= values[0]) & (wanted <= values[-1])
    assert held.sum() > 6000
    assert np.array_equal(got[held], wanted[held])
    exact = values[:, None] * values
    assert (got / exact)[held].min() == pytest.approx(8 / 9)
    assert (got / exact)[held].max() == 1
    assert (got[wanted > values[-1]] == values[-1]).all()


def test_signs_zeros_and_nan() -> None:
    for ignored in range(3):
        table = example.mitchell(ignored)
        plain = table[:128, :128]
        assert np.array_equal(table, table.T)
        assert np.array_equal(table[128:, :128][FINITE][:, FINITE], plain[FINITE][:, FINITE] | 128)
        assert np.array_equal(table[128:, 128:], plain)
        assert (table[[0, 128]][:, np.tile(FINITE, 2)] & 127 == 0).all()
        assert (table[[127, 255]] == 127).all()
    assert (
        example.mitchell()[example.ONE] == np.where(np.arange(256) == 255, 127, range(256))
    ).all()


@pytest.mark.thorough
def test_the_network_multiplies_by_the_table(names: list[str]) -> None:
    network = compiler.from_onnx(zoo.FOLDER / "mnist_dwsep.onnx")
    digits = datasets.load("mnist1k")
    x, y = digits.x, digits.y
    logits = {}
    for name in ["float8_e4m3fn", *names]:
        changed = datatypes.change_dtype(network, "float32", name)
        run = compiler.build(changed)
        assert run.dtype_lowering == ("table" if name in names else "vector")
        logits[name] = run(x)
        assert logits[name][:2].tobytes() == compiler.evaluate(changed, x[:2]).tobytes()
    right = [int((out.argmax(axis=1) == y).sum()) for out in logits.values()]
    assert right[0] > right[1] > right[2] > right[3]
