"""Every expression of a scheduled loop nest is what runs: change one, and the interpreter and the
machine code give other results, the same ones."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kernel_runs import interpreted, operands
from small_kernels import kernels, work

import compiler
from compiler.codegen.llvm import jit
from compiler.codegen.llvm.backend import lower_primfunc
from compiler.runtime.kernels import Kernel, aligned_copy
from compiler.tensor.expr import BinOp, Expr, FloatImm, IntImm
from compiler.tensor.stmt import SLACK, Intrin, PrimFunc, Store, walk_stmts
from compiler.types.dtypes import Array
from compiler.types.names import digest


def compiled(func: PrimFunc, arrays: list[Array]) -> list[Array]:
    """Outputs of the machine code of a loop nest without look-up tables."""
    given = [aligned_copy(a) for a in arrays]
    temps = [aligned_copy(np.zeros(int(b.size.const) * 8 + SLACK, np.uint8)) for b in func.temps]
    target = compiler.Target.parse("llvm")
    name = f"m_{digest(str(func))}"
    for s in lower_primfunc(replace(func, name=name), [], target):
        values: list[Any] = [ctypes.c_void_p(a.ctypes.data) for a in (*given, *temps)]
        if s.extent is not None:
            values += [ctypes.c_int64(0), ctypes.c_int64(int(s.extent.const))]
        address = jit.compile_text(s.text, s.symbol, target)
        ctypes.CFUNCTYPE(None, *map(type, values))(address)(*values)
    return given[len(given) - func.outputs :]


def replacements(e: Expr) -> Iterator[Expr]:
    """What to put in the place of an expression: something near it, far above and far below.
    Rounding and clipping may hide the first, a maximum one of the others; nothing hides all
    three."""
    d = e.dtype
    if d.is_float:
        for by in (1.0, 1e6, -1e6):
            yield BinOp("Add", e, FloatImm(by, d), d)
    else:
        info = np.iinfo(d.storage)
        for bit in (1, int(info.min) or 1 << (d.bits - 1), 1 << (d.bits - 2)):
            yield BinOp("Xor", e, IntImm(bit, d), d)


def put(e: Expr, old: Expr, new: Expr) -> Expr:
    """`e` with `new` where `old` is."""
    return new if e is old else e.rebuilt([put(c, old, new) for c in e.children()])


def changes(s: Store | Intrin) -> Iterator[tuple[str, list[Store | Intrin]]]:
    """(what is changed, the statements with other expressions there), for every operand of a
    tensorized statement, or for the value that a store writes."""
    if isinstance(s, Store):
        # A fused multiply-add stores a product, whose first factor is changed.
        part = s.value.a if s.update == "Fma" and isinstance(s.value, BinOp) else s.value
        values = [put(s.value, part, other) for other in replacements(part)]
        yield repr(part), [replace(s, value=v) for v in values]
        return
    leaves = s.intrin.match(s.store, s.vars)
    assert isinstance(leaves, dict)
    for leaf in leaves.values():
        tensorized: list[Store | Intrin] = []
        for other in replacements(leaf):
            store = replace(s.store, value=put(s.store.value, leaf, other))
            found = s.intrin.match(store, s.vars)
            assert isinstance(found, dict)
            tensorized.append(replace(s, store=store, leaves=found))
        yield repr(leaf), tensorized


def assert_every_expression_tells(kernel: Kernel) -> int:
    """Change one expression after the other; how many there are."""
    assert not kernel.tables
    arrays, changed = operands(kernel), 0
    before = interpreted(kernel, arrays)
    for s, _, holder in walk_stmts(kernel.func.body):
        if not isinstance(s, (Store, Intrin)):
            continue
        at = holder.index(s)
        for what, versions in changes(s):
            for version in versions:
                holder[at] = version
                after, ran = interpreted(kernel, arrays), compiled(kernel.func, arrays)
                assert same_bits(after, ran), (kernel.func.name, what)
                if not same_bits(before, after):
                    break
            else:
                pytest.fail(f"{kernel.func.name}: {what} can be anything")
            holder[at] = s
            changed += 1
    return changed


def same_bits(some: list[Array], others: list[Array]) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(some, others, strict=True))


@pytest.mark.thorough
@pytest.mark.parametrize("int8", [False, True], ids=["float32", "int8"])
@pytest.mark.parametrize(
    ("net", "size", "least", "most"),
    [
        ("dwsep", 5, 0, 2_700),
        *(
            pytest.param(net, size, least, 12_000, marks=pytest.mark.slow)
            for net, size, least in (("dwsep", 5, 2_700), ("resnet8", 6, 0), ("vit", 28, 0))
        ),
    ],
)
def test_every_expression_tells(net: str, size: int, least: int, most: int, int8: bool) -> None:
    chosen = [k for k in kernels(net, size, int8) if least < work(k) <= most]
    assert sum(map(assert_every_expression_tells, chosen)) >= 8
