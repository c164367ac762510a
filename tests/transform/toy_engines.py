"""Engines for tests, which interpret their regions: `left` and `right`, with patterns of one and of
several operators, some of them of both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from compiler.engines.engine import Engine, register_engine, remove_engine
from compiler.interpret.graph import evaluate
from compiler.ir.expr import Function, IRModule
from compiler.pattern import CompositePattern, any_order, constant, is_op, wildcard
from compiler.types.dtypes import Array

ADD, MULTIPLY = is_op("add"), is_op("multiply")
RELU, EXP, NEGATIVE = is_op("nn.relu"), is_op("exp"), is_op("negative")
CONV = is_op("nn.conv2d")
LEFT = (
    CompositePattern("add_relu", RELU(ADD(wildcard(), wildcard()))),
    CompositePattern("conv_relu", RELU(CONV)),
    CompositePattern("conv", CONV),
    CompositePattern("relu", RELU),
    CompositePattern("add", ADD),
    CompositePattern("split", is_op("split")),
)
RIGHT = (
    CompositePattern("scaled", any_order(MULTIPLY, wildcard(), constant())),
    CompositePattern("relu_exp", EXP(RELU(wildcard()))),
    CompositePattern("exp", EXP),
    CompositePattern("dense", is_op("nn.dense")),
    CompositePattern("add", ADD),
)


def interpreted(f: Function, name: str) -> Any:
    """A runner that interprets a region."""
    mod = IRModule({"main": f})

    def run(*arrays: Array) -> None:
        outs = evaluate(mod, *arrays[: len(f.params)])
        outs = outs if isinstance(outs, list) else [outs]
        for to, out in zip(arrays[len(f.params) :], outs, strict=True):
            np.copyto(to, out)

    return run


@contextmanager
def toy_engines() -> Iterator[None]:
    """`left` and `right` are registered."""
    for name, table in (("left", LEFT), ("right", RIGHT)):
        register_engine(Engine(name, table, interpreted))
    try:
        yield
    finally:
        for name in ("left", "right"):
            remove_engine(name)
