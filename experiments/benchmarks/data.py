"""Programs on lists and trees, beside the same in Python and numpy, an element: what the virtual
machine takes around kernels that take no time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import compiler
from compiler import Datum
from compiler.types.dtypes import Array
from experiments.benchmarks.report import Group

COUNT = 1000
"""Elements of a list."""
V = "Tensor[(8,), float32]"
SUM = f"%f = fn (%a: {V}, %x: {V}) {{ %y = add(%a, %x); %y }};"
FOLDS = {
    "foldl": f"{SUM} %r = @foldl(%f, %w, %xs);",
    "foldr": f"{SUM} %r = @foldr(%f, %w, %xs);",
    "map": f"%g = fn (%x: {V}) {{ %y = multiply(%x, %w); %y }}; %r = @map(%g, %xs);",
}


def groups() -> list[Group]:
    """A group for each program."""
    rng = np.random.default_rng(2)
    items = [rng.standard_normal(8).astype(np.float32) for _ in range(COUNT)]
    w = rng.standard_normal(8).astype(np.float32)
    return [_fold(name, body, items, w) for name, body in FOLDS.items()] + [_gradient(items, w)]


def _program(body: str, result: str = "%r") -> compiler.IRModule:
    text = f"def @main(%xs: List[{V}], %w: {V}) {{ {body} {result} }}"
    return compiler.parse(text, using=compiler.prelude())


def _fold(name: str, body: str, items: list[Array], w: Array) -> Group:
    run = compiler.build(_program(body))
    xs = Datum.listed(items)
    loops: dict[str, Callable[[], object]] = {
        "foldl": lambda: _added(items, w),
        "foldr": lambda: _added(items[::-1], w),
        "map": lambda: [x * w for x in items],
    }
    cases = {"Python, numpy": loops[name], "compiled": lambda: run(xs, w)}
    per = dict.fromkeys(cases, COUNT * 1e-3)
    return Group(f"{name} of {COUNT} vectors of 8", "Python, numpy", cases, per, "us/item")


def _gradient(items: list[Array], w: Array) -> Group:
    """A recurrence and its gradient."""
    body = f"%f = fn (%a: {V}, %x: {V}) {{ %b = multiply(%a, %w); %c = add(%b, %x); %c }};"
    mod = _program(f"{body} %h = @foldl(%f, %w, %xs); %r = sum(%h);")
    forward, both = compiler.build(mod), compiler.build(compiler.gradient(mod, ["w", "xs"]))
    xs = Datum.listed(items)
    cases: dict[str, Callable[[], object]] = {
        "value": lambda: forward(xs, w),
        "value and gradient": lambda: both(xs, w),
    }
    per = dict.fromkeys(cases, COUNT * 1e-3)
    return Group(f"a recurrence of {COUNT} vectors of 8", "value", cases, per, "us/item")


def _added(items: list[Array], start: Array) -> Array:
    for x in items:
        start = start + x
    return start
