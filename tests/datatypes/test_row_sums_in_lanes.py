"""Sums of the rows of a tensor in a format go in the lanes of vectors; each keeps its order."""

import numpy as np
import pytest

import compiler
import datatypes
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Call, Function, IRModule
from compiler.lowering.legalize import legalize
from compiler.scheduling.default import schedule_default
from compiler.target.registry import Target
from compiler.tensor.stmt import Store, walk_stmts


def sums(rows: int, fmt: str) -> IRModule:
    b = FunctionBuilder()
    mod = IRModule({"main": b.finish(b.call("sum", b.param("x", (rows, 37)), axis=(1,)))})
    return datatypes.change_dtype(mod, "float32", fmt)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("fmt", ["posit16_es1", "float8_e4m3fn"])
@pytest.mark.parametrize("rows", [40, 19, 9])
def test_row_sums_keep_their_order(fmt: str, rows: int) -> None:
    mod = sums(rows, fmt)
    x = np.random.default_rng(rows).normal(size=(rows, 37)).astype(np.float32)
    np.testing.assert_array_equal(compiler.build(mod)(x), compiler.evaluate(mod, x))


@pytest.mark.parametrize(("rows", "lanes"), [(40, 16), (16, 16), (15, 1)])
def test_rows_are_lanes_where_they_fill_a_vector(rows: int, lanes: int) -> None:
    target = Target.anywhere("llvm -mcpu=cascadelake")
    mod = compiler.optimize(sums(rows, "posit16_es1"), target)
    found = [b.value.op for b in mod.main.bindings if isinstance(b.value, Call)]
    widths = set()
    for f in (legalize(op).func for op in found if isinstance(op, Function)):
        schedule_default(f, target)
        for s, path, _ in walk_stmts(f.body):
            if isinstance(s, Store) and s.update:
                widths.add(path[-1].extent.constant())
    assert max(n or 0 for n in widths) == lanes
