"""Cases of ONNX operators, filled by the onnx_*_cases.py files, and what they are written with."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from onnx_models import Case, Const

rng = np.random.default_rng(7)


def f(*shape: int) -> np.ndarray:
    """Normal float32 values."""
    return rng.standard_normal(shape).astype(np.float32)


def positive(*shape: int) -> np.ndarray:
    """float32 values in 0.5 .. 2."""
    return rng.uniform(0.5, 2, shape).astype(np.float32)


def w(value: Any) -> Const:
    """A float32 weight."""
    return Const(np.asarray(value, np.float32))


def i(*values: int) -> Const:
    """An int64 vector."""
    return Const(np.array(values, np.int64))


def scalar(value: float) -> Const:
    """A float32 scalar."""
    return Const(np.float32(value).reshape(()))


IMAGE = f(2, 4, 9, 8)
SIGNAL = f(2, 4, 11)
MATRIX = f(3, 5)
CUBE = f(2, 3, 4)

CASES: dict[str, Case] = {}


def case(name: str, op: str, *operands: Any, opset: int = 17, outputs: int = 1,
         dynamic: bool = True, **attrs: Any) -> None:  # fmt: skip
    """Add a case: one operator on operands, of which `Const`s are weights."""
    assert name not in CASES
    CASES[name] = Case(op, operands, attrs, opset, outputs, dynamic)


def every_case() -> dict[str, Case]:
    """The cases of all files, by name."""
    for family in ("image", "number", "moving", "state"):
        import_module(f"onnx_{family}_cases")
    return CASES
