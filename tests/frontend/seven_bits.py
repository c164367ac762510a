"""Signed bytes whose products onnxruntime adds exactly on this CPU."""

from __future__ import annotations

import numpy as np

from compiler.target.registry import Target

VNNI = not {"avx512vnni", "avxvnni"}.isdisjoint(Target.parse("llvm").enabled)


def seven_bits(a: np.ndarray) -> np.ndarray:
    """int8 as it is; of 7 bits without VNNI, where pairs of products are added in int16."""
    return a if VNNI else a // np.int8(2)
