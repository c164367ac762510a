"""Models of one operator of onnxruntime's own, and what the two make of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx_models import assert_close, model, run_onnxruntime

import compiler
from compiler.frontend.converters_microsoft import DOMAIN
from compiler.types.dtypes import Array


def contrib(
    op: str, operands: Mapping[str, Array | None], outputs: Sequence[str] = ("y",), *,
    weights: Sequence[str] = (), shapes: Mapping[str, Sequence[Any]] | None = None,
    domain: str = DOMAIN, opset: int = 17, **attrs: Any,
) -> tuple[onnx.ModelProto, dict[str, Array]]:  # fmt: skip
    """A model of one node, and its inputs.

    Args:
        operands: by name, in order; None: left out.
        weights: names of operands that the model stores.
        shapes: of inputs, where they are not those of the arrays.
    """
    names = ["" if a is None else name for name, a in operands.items()]
    node = helper.make_node(op, names, list(outputs), domain=domain, name="the_node", **attrs)
    arrays = {name: a for name, a in operands.items() if a is not None and name not in weights}
    given = {name: list((shapes or {}).get(name, a.shape)) for name, a in arrays.items()}
    kinds = {name: helper.np_dtype_to_tensor_dtype(a.dtype) for name, a in arrays.items()}
    stored = {name: a for name in weights if (a := operands[name]) is not None}
    proto = model([node], given, [o for o in outputs if o], stored, opset, kinds)
    proto.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return proto, arrays


def agrees(
    compiled: bool, proto: onnx.ModelProto, arrays: Mapping[str, Array], tolerance: float = 2e-5
) -> compiler.IRModule:
    """The module, which gives what onnxruntime gives, interpreted and, if asked, compiled."""
    want = run_onnxruntime(proto, arrays)
    mod = compiler.from_onnx(proto)
    assert_close(compiler.evaluate(mod, dict(arrays)), want, tolerance)
    if compiled:
        assert_close(compiler.build(mod)(**arrays), want, tolerance)
    return mod


def normal(seed: int, *shape: int, scale: float = 1.0) -> Array:
    """float32 numbers."""
    return (np.random.default_rng(seed).normal(0, scale, shape)).astype(np.float32)
