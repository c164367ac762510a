"""Attention as exporters write it, in float32 and on bytes, and operands for it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import compiler
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule, Var
from compiler.types.dtypes import Array

SMALL = np.float32(-1e4)


@dataclass(frozen=True)
class Case:
    """Sizes of attention: [batch, heads, rows, width] times [batch, heads, keys, width].

    Attributes:
        mask: "none", "add" (numbers, of every row), "where" (of the keys; one batch all masked).
        turned: whether keys are given as they are computed, with a transposition of their own.
        split: whether operands and the result are [batch, rows, heads, width].
    """

    batch: int = 1
    heads: int = 2
    rows: int = 5
    keys: int = 7
    width: int = 4
    mask: str = "none"
    turned: bool = False
    split: bool = False

    def operand(self, b: FunctionBuilder, name: str, rows: int, columns: int, dtype: str) -> Var:
        """A parameter, transposed if heads are split off rows."""
        if not self.split:
            return b.param(name, (self.batch, self.heads, rows, columns), dtype)
        x = b.param(name, (self.batch, rows, self.heads, columns), dtype)
        return b.call("transpose", x, axes=(0, 2, 1, 3))

    def finished(self, b: FunctionBuilder, out: Var) -> IRModule:
        """The module with this result, transposed back."""
        out = b.call("transpose", out, axes=(0, 2, 1, 3)) if self.split else out
        return IRModule({"main": b.finish(out)})

    def floats(self) -> IRModule:
        """softmax(q k' / 2 + mask) v on float32."""
        b = FunctionBuilder()
        q = self.operand(b, "q", self.rows, self.width, "float32")
        k = self.operand(b, "k", *(self.keys, self.width)[:: 1 if self.turned else -1], "float32")
        v = self.operand(b, "v", self.keys, self.width, "float32")
        k = b.call("transpose", k, axes=(0, 1, 3, 2)) if self.turned else k
        scores = b.call("multiply", b.call("nn.matmul", q, k), compiler.const(np.float32(0.5)))
        if self.mask == "add":
            mask = b.param("mask", (self.batch, 1, self.rows, self.keys))
            scores = b.call("add", scores, mask)
        elif self.mask == "where":
            mask = b.param("mask", (self.batch, 1, 1, self.keys), "bool")
            scores = b.call("where", mask, scores, compiler.const(SMALL))
        weights = b.call("nn.softmax", scores, axis=-1)
        return self.finished(b, b.call("nn.matmul", weights, v))

    def bytes(self) -> IRModule:
        """The same on uint8 with zero points, as quantized networks have it."""
        b = FunctionBuilder()
        q = self.operand(b, "q", self.rows, self.width, "uint8")
        k = self.operand(b, "k", self.width, self.keys, "uint8")
        v = self.operand(b, "v", self.keys, self.width, "uint8")
        zeros = {"input_zero_point": 120, "weight_zero_point": 123}
        scores = b.call("nn.matmul", q, k, out_dtype="int32", **zeros)
        scores = b.call("qnn.dequantize", scores, compiler.const(np.float32(1e-4)))
        if self.mask != "none":
            shape = (self.batch, 1, self.rows if self.mask == "add" else 1, self.keys)
            scores = b.call("add", scores, b.param("mask", shape))
        weights = b.call("nn.softmax", scores, axis=-1)
        weights = b.call("qnn.quantize", weights, compiler.const(np.float32(1 / 255)))
        out = b.call("nn.matmul", weights, v, out_dtype="int32", weight_zero_point=125)
        scale = compiler.const(np.float32(0.01))
        return self.finished(b, b.call("qnn.requantize", out, scale, output_zero_point=140))


def operands(mod: IRModule, seed: int = 0) -> list[Array]:
    """One array for each parameter; the first of a batch masks everything."""
    rng = np.random.default_rng(seed)

    def one(name: str, shape: tuple[int, ...], dtype: str) -> Array:
        if dtype == "uint8":
            return rng.integers(0, 256, shape).astype(np.uint8)
        if name == "mask":
            kept = rng.random(shape) < 0.7
            kept[0] = False
            return kept if dtype == "bool" else np.where(kept, np.float32(0), SMALL)
        return rng.standard_normal(shape).astype(np.float32)

    return [one(p.name, p.type.shape, str(p.type.dtype)) for p in mod.main.params]
