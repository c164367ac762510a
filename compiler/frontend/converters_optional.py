"""Converters of operators on optional values, as far as these are tensors."""

from __future__ import annotations

import numpy as np

from compiler.frontend.node import Node, converts
from compiler.frontend.values import Imported
from compiler.ir.expr import Constant
from compiler.types.dtypes import BOOL


@converts("OptionalHasElement")
def has_element(n: Node) -> Imported:
    """Whether there is a value: a tensor always is one."""
    return Constant.of(np.asarray(n.has(0)), BOOL)


@converts("OptionalGetElement")
def get_element(n: Node) -> Imported:
    """The value."""
    return n.value(0)
