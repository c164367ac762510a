"""Runs operations on lanes, given and returning codes."""

from __future__ import annotations

from functools import lru_cache, partial

import numpy as np

from compiler.lowering.custom_dtypes import Lane
from compiler.tensor.expr import COMPARISONS, BinOp, Call, Cast, Expr
from compiler.types.dtypes import BOOL, Array, DType
from datatypes import vector
from datatypes.formats import Format, encode, get
from datatypes.kernels import Elementwise, compile_elementwise

ARITHMETIC = ("Add", "Sub", "Mul", "Div")
BINARY = (*ARITHMETIC, "Max", "Min", *COMPARISONS)
OLDER = ("llvm -mcpu=haswell", "llvm -mcpu=x86-64-v2")
"""Targets without AVX-512, and without AVX and fused multiply-add."""


def dtype_of(fmt: Format) -> DType:
    return DType.parse(f"custom[{fmt.name}]{fmt.nbits}")


def lane_of(fmt: Format) -> DType:
    choice = vector.lanes(fmt)
    assert isinstance(choice, vector.Lanes), choice
    return choice.lane.dtype


def lowered(fmt: Format, node: Expr, deferred: bool = False, keeps_nan: bool = True) -> Expr:
    found = vector.lower(fmt, node, deferred, keeps_nan)
    assert found is not None
    return found


@lru_cache(maxsize=2048)
def binary_kernel(
    name: str, op: str, deferred: bool, target: str, keeps_nan: bool = True
) -> Elementwise:
    """Lanes, lanes -> lanes (or bools)."""
    fmt = get(name)
    lane, dtype = lane_of(fmt), dtype_of(fmt)
    result = BOOL if op in COMPARISONS else dtype

    def body(a: Expr, b: Expr) -> Expr:
        return lowered(fmt, BinOp(op, Lane(a, dtype), Lane(b, dtype), result), deferred, keeps_nan)

    stored = BOOL if op in COMPARISONS else lane
    return compile_elementwise(op.lower(), [lane, lane], stored, body, target)


@lru_cache(maxsize=2048)
def unary_kernel(name: str, fn: str, target: str) -> Elementwise:
    """Lanes -> lanes."""
    fmt = get(name)
    lane, dtype = lane_of(fmt), dtype_of(fmt)

    def body(x: Expr) -> Expr:
        return lowered(fmt, Call(fn, (Lane(x, dtype),), dtype))

    return compile_elementwise(fn, [lane], lane, body, target)


@lru_cache(maxsize=512)
def encoder(name: str, target: str = "llvm") -> Elementwise:
    """Lanes -> codes."""
    fmt = get(name)
    stored = DType.parse(fmt.storage)
    to_bits = partial(vector.to_bits, fmt)
    return compile_elementwise("encode", [lane_of(fmt)], stored, to_bits, target)


@lru_cache(maxsize=512)
def decoder(name: str, target: str = "llvm") -> Elementwise:
    """Codes -> lanes."""
    fmt = get(name)
    stored = DType.parse(fmt.storage)
    from_bits = partial(vector.from_bits, fmt)
    return compile_elementwise("decode", [stored], lane_of(fmt), from_bits, target)


@lru_cache(maxsize=512)
def conversion(name: str, source: DType | None, dest: DType | None, target: str) -> Elementwise:
    """Numbers of `source` -> lanes, or lanes -> numbers of `dest`."""
    fmt = get(name)
    lane, dtype = lane_of(fmt), dtype_of(fmt)

    def into(x: Expr) -> Expr:
        return lowered(fmt, Cast(x, dtype))

    def out(x: Expr) -> Expr:
        return lowered(fmt, Cast(Lane(x, dtype), dest))

    if source is not None:
        return compile_elementwise("cast", [source], lane, into, target)
    assert dest is not None
    return compile_elementwise("cast", [lane], dest, out, target)


def operate(
    fmt: Format, op: str, a: Array, b: Array, deferred: bool = False, target: str = "llvm"
) -> Array:
    """`op` on arrays of codes through lanes; codes (or bools)."""
    x, y = vector.lane_array(fmt, a), vector.lane_array(fmt, b)
    out = binary_kernel(fmt.name, op, deferred, target)(x, y)
    return out if op in COMPARISONS else encoded(fmt, out)


def encoded(fmt: Format, lanes: Array) -> Array:
    """Codes of lanes, which must be values of the format: encoding does not round them."""
    codes = encoder(fmt.name)(lanes)
    np.testing.assert_array_equal(lanes, vector.lane_array(fmt, codes))
    return codes


def all_pairs(fmt: Format) -> tuple[Array, Array]:
    codes = np.arange(fmt.mask + 1, dtype=fmt.storage)
    return np.repeat(codes, codes.size), np.tile(codes, codes.size)


def special_codes(fmt: Format) -> Array:
    """Zeros, NaN, infinities, the least and the largest values of both signs, and 1."""
    near = [0, 1, 2, 3, fmt.highest - 1, fmt.highest, fmt.highest + 1, fmt.sign_bit]
    near += [fmt.sign_bit + k for k in (-1, 1, 2)] + [fmt.mask - 1, fmt.mask, fmt.nan_code]
    near += [fmt.code(-fmt.highest), fmt.code(1 - fmt.highest), int(encode(fmt, 1.0))]
    return np.unique(np.clip(near, 0, fmt.mask)).astype(fmt.storage)


def some_pairs(fmt: Format, count: int, seed: int = 0) -> tuple[Array, Array]:
    """Random codes, codes of ordinary numbers, special codes with each other and with others, and
    neighbours."""
    rng = np.random.default_rng(seed)
    anywhere = rng.integers(0, fmt.mask + 1, (2, count))
    ordinary = encode(fmt, rng.standard_normal((2, count)) * 2.0 ** rng.integers(-3, 4, (2, count)))
    special = special_codes(fmt)
    pairs = np.array(np.meshgrid(special, special)).reshape(2, -1)
    mixed = np.array(np.meshgrid(special, anywhere[0, :200])).reshape(2, -1)
    near = anywhere[:, : count // 4].copy()
    near[1] = np.clip(near[0] + rng.integers(-2, 3, near.shape[1]), 0, fmt.mask)
    a, b = np.concatenate([anywhere, ordinary, pairs, mixed, mixed[::-1], near], axis=1)
    return a.astype(fmt.storage), b.astype(fmt.storage)
