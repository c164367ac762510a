"""One or more small calls of every operator, for the tests that walk the whole registry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any

import numpy as np
from toy_dtype import TOY

from compiler.arithmetic.arrays import arithmetic
from compiler.arithmetic.scalar_function import ScalarFunction
from compiler.arithmetic.scalar_functions import UNARY
from compiler.op.library import all_ops
from compiler.op.opdef import OpDef
from compiler.symbolic import Var
from compiler.types.dtypes import BOOL, INT8, INT16, INT64, UINT8, Array, DType
from compiler.types.tensor_types import TensorType

F32 = DType("float", 32)
F64 = DType("float", 64)
I32 = DType("int", 32)


@dataclass(frozen=True)
class Case:
    """A call: operand shapes, attributes, and the dtype(s) to try.

    `dtypes`: one set of operand dtypes per run; a single dtype stands for all operands.
    `low`, `high`: range of random values. `n` in a shape is the symbolic batch dimension.
    """

    op: str
    shapes: Sequence[Sequence[Any]]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    dtypes: Sequence[DType | tuple[DType, ...]] = (F32, TOY)
    low: float = -2.0
    high: float = 2.0

    def operand_dtypes(self, which: DType | tuple[DType, ...]) -> tuple[DType, ...]:
        return which if isinstance(which, tuple) else (which,) * len(self.shapes)


def values(rng: np.random.Generator, t: TensorType, low: float, high: float) -> Array:
    """Random storage elements of a static type."""
    shape = t.static_shape
    if t.dtype == BOOL:
        return rng.random(shape) < 0.5
    if t.dtype.is_integer:
        start = 0 if t.dtype.kind == "uint" else int(low)
        return rng.integers(start, int(high) + 1, shape).astype(t.dtype.storage)
    ar = arithmetic(t.dtype)
    return np.asarray(ar.cast(rng.uniform(low, high, shape).astype(np.float32), F32))


def within(f: ScalarFunction) -> tuple[float, float]:
    """An interval inside the domain of a function."""
    low, high = f.domain
    return max(low, -2) + 0.1, min(high, 3) - 0.1


NUMBERS = (F32, TOY, I32)
CONV8 = ((UINT8, INT8), (INT8, INT8))

CASES: list[Case] = [
    *(
        Case(op, shapes, dtypes=NUMBERS, low=-9, high=9)
        for op in ("add", "subtract", "multiply", "maximum", "minimum", "less", "greater", "equal")
        for shapes in ([("n", 3), ("n", 3)], [("n", 1, 3), (4, 1)], [(2,), ()])
    ),
    *(
        Case(op, [("n", 3), (3,)], dtypes=(*NUMBERS, BOOL), low=-2, high=2)
        for op in ("less_equal", "greater_equal", "not_equal", "equal")
    ),
    *(Case(f"logical_{op}", [("n", 3), (3,)], dtypes=(BOOL,)) for op in ("and", "or", "xor")),
    Case("logical_not", [("n", 3)], dtypes=(BOOL,)),
    *(Case("part", [("n", 5)], {"grids": (0, -9, -20), "index": k}, (F64,)) for k in range(3)),
    *(Case("add_to_odd", [("n", 5)] * k, {}, (F64,)) for k in (2, 3)),
    Case("if_exact", [("n", 5), ("n", 5)], {}, (F64,)),
    Case("join", [("n", 5), (5,), ("n", 1), (5,)], {"grids": (-30, -12, -12, 0)}, (F64,)),
    *(
        Case(f"bitwise_{op}", [("n", 3), (3,)], dtypes=(I32, UINT8), low=-9, high=99)
        for op in ("and", "or", "xor")
    ),
    Case("bitwise_not", [("n", 3)], dtypes=(I32, UINT8, INT64), low=-9, high=99),
    *(
        Case(op, [("n", 8), ("n", 8)], dtypes=(UINT8, DType("uint", 64)), low=0, high=12)
        for op in ("left_shift", "right_shift")
    ),
    *(
        Case(op, [("n", 40), ("n", 40)], dtypes=(INT8, I32), low=-70, high=70)
        for op in ("left_shift", "right_shift")
    ),
    *(
        Case(op, [("n", 40), ("n", 40)], dtypes=(INT8, INT64), low=-9, high=9)
        for op in ("left_shift", "right_shift")
    ),
    *(
        Case(op, [("n", 9), ("n", 9)], dtypes=(F32, DType("float", 64)), low=-9, high=9)
        for op in ("mod", "fmod")
    ),
    *(
        Case(op, [("n", 9), (9,)], dtypes=(UINT8, I32, INT8, INT64), low=-3, high=9)
        for op in ("mod", "fmod", "divide")
    ),
    Case("sign", [("n", 9)], dtypes=NUMBERS, low=-2, high=2),
    *(Case(op, [("n", 9)], dtypes=(F32,)) for op in ("isnan", "isinf")),
    Case("isinf", [(9,)], {"detect_negative": False}, dtypes=(F32,)),
    Case("divide", [("n", 3), (3,)], dtypes=NUMBERS, low=1, high=9),
    *(
        Case(f.name, [("n", 3)], {}, (F32, TOY) if f.in_formats else (F32,), *within(f))
        for f in UNARY.values()
    ),
    Case("tan", [("n", 3)], dtypes=(DType("float", 16), DType("float", 64))),
    *(Case(op, [("n", 3)], dtypes=NUMBERS, low=-9, high=9) for op in ("negative", "abs")),
    Case("abs", [(5,)], dtypes=(UINT8,), high=200),
    Case("nn.relu", [("n", 3)], dtypes=NUMBERS, low=-9, high=9),
    Case("clip", [("n", 3)], {"a_min": -1.0, "a_max": 0.5}),
    Case("clip", [(9,)], {"a_min": 0.0}, dtypes=NUMBERS, low=-9, high=9),
    Case("nn.leaky_relu", [("n", 3)], {"alpha": 0.1}),
    Case("nn.hard_sigmoid", [("n", 3)], {"alpha": 0.3, "beta": 0.4}, low=-4, high=4),
    Case("nn.hard_swish", [("n", 3)], low=-5, high=5),
    Case("nn.gelu", [("n", 3)]),
    Case("nn.gelu", [("n", 3)], {"approximate": "tanh"}),
    Case("power", [("n", 3), (3,)], dtypes=(F32,), low=0.5, high=2),
    Case("where", [("n", 1), ("n", 3), (3,)], dtypes=((BOOL, F32, F32), (BOOL, TOY, TOY))),
    Case("cast", [("n", 3)], {"dtype": "int32"}, dtypes=(F32,), low=-9, high=9),
    Case("bitcast", [("n", 3)], {"dtype": "int32"}, dtypes=(F32, I32, DType("uint", 32))),
    Case("bitcast", [("n", 3)], {"dtype": "float64"}, dtypes=(INT64,)),
    Case("bitcast", [("n", 3)], {"dtype": "uint8"}, dtypes=(INT8,)),
    Case("cast", [("n", 3)], {"dtype": "float32"}, dtypes=(TOY, I32, BOOL)),
    Case("cast", [("n", 3)], {"dtype": "custom[toyhalf]16"}, dtypes=(F32,)),
    Case("cast", [("n", 3)], {"dtype": "float64"}, dtypes=(F32,)),
    Case("cast", [("n", 3)], {"dtype": "bool"}, dtypes=(F32, I32)),
    Case("nn.bias_add", [("n", 3, 2), (3,)], dtypes=NUMBERS, low=-9, high=9),
    Case("nn.bias_add", [("n", 3, 2), (2,)], {"axis": -1}),
    # ---- convolution, dense, matmul
    Case("nn.conv2d", [("n", 2, 4, 5), (3, 2, 3, 2)]),
    Case("nn.conv2d", [("n", 2, 4, 5), (3, 2, 3, 3), (3,)], {"padding": (1, 2, 0, 1)}),
    Case(
        "nn.conv2d",
        [(1, 4, 6, 5), (6, 2, 2, 3)],
        {"padding": (1, 1, 2, 2), "strides": (2, 3), "dilation": (2, 1), "groups": 2},
    ),
    Case("nn.conv2d", [(2, 3, 4, 4), (3, 1, 3, 3)], {"padding": (1, 1, 1, 1), "groups": 3}),
    Case(
        "nn.conv2d",
        [("n", 2, 4, 4), (3, 2, 3, 3)],
        {"padding": (1, 1, 1, 1), "out_dtype": "int32", "input_zero_point": 3},
        dtypes=CONV8,
        low=-100,
        high=100,
    ),
    Case(
        "nn.conv2d",
        [(1, 1, 3, 3), (1, 1, 2, 2), (1,)],
        {"padding": (1, 0, 0, 1), "out_dtype": "int32"},
        dtypes=((INT8, INT8, I32),),
        low=-100,
        high=100,
    ),
    Case("nn.dense", [("n", 5), (3, 5), (3,)]),
    Case("nn.dense", [("n", 2, 5), (3, 5)]),
    Case(
        "nn.dense",
        [("n", 5), (3, 5), (3,)],
        {"out_dtype": "int32", "input_zero_point": 7},
        dtypes=((UINT8, INT8, I32),),
        low=-100,
        high=100,
    ),
    Case(
        "nn.dense",
        [("n", 8), (8, 8), (8,)],
        {"out_dtype": "int32", "input_zero_point": 7},
        dtypes=((INT16, INT8, I32),),
        low=-128,
        high=127,
    ),
    Case(
        "nn.dense",
        [("n", 8), (8, 8), (8,)],
        {"out_dtype": "int32", "input_zero_point": 7, "input_bits": 7},
        dtypes=((UINT8, INT8, I32),),
        low=-128,
        high=127,
    ),
    Case("nn.matmul", [("n", 3, 4), (4, 2)]),
    Case("nn.matmul", [("n", 1, 3, 4), (3, 4, 2)]),
    Case("nn.matmul", [(4,), ("n", 4, 2)]),
    Case("nn.matmul", [("n", 3, 4), (4,)]),
    Case("nn.matmul", [(4,), (4,)]),
    # ---- pooling
    Case("nn.max_pool2d", [("n", 2, 5, 4)], {"pool_size": (2, 2), "strides": (2, 2)}),
    Case(
        "nn.max_pool2d",
        [("n", 1, 6, 5)],
        {"pool_size": (3, 2), "strides": (2, 3), "padding": (1, 1, 1, 0), "ceil_mode": True},
        dtypes=(F32, TOY, INT8),
    ),
    Case("nn.max_pool2d", [(1, 1, 6, 6)], {"pool_size": (2, 3), "dilation": (3, 2)}),
    Case(
        "nn.max_pool2d_positions",
        [("n", 2, 5, 4)],
        {"pool_size": (3, 2), "strides": (2, 2), "padding": (1, 1, 1, 0), "ceil_mode": True},
    ),
    Case(
        "nn.max_pool2d_positions",
        [(1, 1, 6, 6)],
        {"pool_size": (2, 3), "dilation": (3, 2)},
        (F32, TOY, I32),
    ),
    *(
        Case(
            "nn.avg_pool2d",
            [("n", 2, 5, 6)],
            {
                "pool_size": (3, 3),
                "strides": (2, 2),
                "padding": (1, 0, 1, 2),
                "ceil_mode": ceil,
                "count_include_pad": include,
            },
        )
        for ceil in (False, True)
        for include in (False, True)
    ),
    Case("nn.avg_pool2d", [("n", 2, 4, 4)], {"pool_size": (2, 2), "strides": (2, 2)}),
    Case("nn.global_avg_pool2d", [("n", 2, 3, 3)]),
    # NCHW[x]c
    Case("nn.max_pool2d", [("n", 2, 5, 4, 3)], {"pool_size": (2, 2), "padding": (1, 1, 0, 1)}),
    Case("nn.avg_pool2d", [("n", 2, 4, 5, 4)], {"pool_size": (3, 2), "padding": (1, 0, 1, 1)}),
    *(
        Case("layout_transform", [shape], attrs, dtypes=(F32, UINT8), high=200)
        for shape, attrs in [
            (("n", 8, 3, 2), {"dst_layout": "NCHW4c"}),
            (("n", 7, 2, 3), {"dst_layout": "NCHW4c"}),
            (("n", 3, 2, 37), {"dst_layout": "NCHW4c"}),
            ((1, 1, 3, 64), {"dst_layout": "NCHW4c"}),
            (("n", 2, 3, 2, 4), {"src_layout": "NCHW4c", "channels": 8}),
            (("n", 2, 2, 3, 4), {"src_layout": "NCHW4c", "channels": 5}),
            (("n", 10, 3, 2), {"dst_layout": "NCHW4c", "dst_groups": 2}),
            (("n", 4, 3, 2, 4), {"src_layout": "NCHW4c", "channels": 10, "src_groups": 2}),
            *(
                (
                    ("n", 6, 3, 2, 4),
                    {
                        "src_layout": "NCHW4c",
                        "dst_layout": "NCHW4c",
                        "channels": 18,
                        "src_groups": src,
                        "dst_groups": dst,
                        "shuffle": shuffle,
                    },
                )
                for src, dst, shuffle in [(3, 3, 3), (1, 3, 1), (3, 1, 2), (2, 3, 9), (1, 1, 6)]
            ),
        ]
    ),
    *(
        Case("nn.conv2d", [(2, *shape), kernel, (kernel[0],)], attrs, dtypes=dtypes, high=99)
        for shape, kernel, attrs in [
            (
                (4, 5, 6, 4),
                (8, 5, 3, 3),
                {"groups": 2, "data_layout": "NCHW4c", "out_layout": "NCHW4c"},
            ),
            ((4, 5, 6, 4), (6, 7, 1, 1), {"groups": 2, "data_layout": "NCHW4c"}),
            ((2, 5, 6, 4), (8, 7, 3, 3), {"padding": (1, 1, 1, 1), "data_layout": "NCHW4c"}),
            ((3, 5, 4), (8, 3, 3, 2), {"out_layout": "NCHW4c"}),
            (
                (2, 6, 7, 4),
                (8, 1, 3, 3),
                {"groups": 8, "data_layout": "NCHW4c", "out_layout": "NCHW4c", "strides": (2, 1)},
            ),
        ]
        for dtypes in [(F32,)]
    ),
    Case(
        "nn.conv2d",
        [("n", 2, 4, 5, 4), (16, 8, 3, 3), (16,)],
        {
            "data_layout": "NCHW4c",
            "out_layout": "NCHW16c",
            "padding": (1, 1, 1, 0),
            "padding_value": 7,
            "out_dtype": "int32",
        },
        dtypes=[(UINT8, INT8, I32)],
        high=100,
    ),
    *(
        Case(
            "nn.conv2d",
            [("n", 2, 4, 5, 4), (16, 8, 3, 3), (16,)],
            {
                "data_layout": "NCHW4c",
                "out_layout": "NCHW4c",
                "padding": (1, 1, 1, 0),
                **zero,
                "out_dtype": "int32",
                "input_bits": 7,
            },
            dtypes=[(UINT8, INT8, I32)],
            high=255,
        )
        for zero in ({"padding_value": 127}, {"input_zero_point": 9})
    ),
    # ---- normalization and reduction
    Case("nn.batch_norm", [("n", 3, 2), (3,), (3,), (3,), (3,)], low=0.5, high=2),
    Case("nn.layer_norm", [("n", 3, 4), (4,), (4,)]),
    Case("nn.layer_norm", [("n", 3, 4), (3, 4)], {"axis": 1, "epsilon": 1e-3}),
    Case("nn.rms_norm", [("n", 3, 4), (4,)]),
    Case("nn.hadamard", [("n", 3, 16)]),
    Case("nn.hadamard", [(1,)]),
    Case("nn.rotary", [("n", 2, 3, 8), ("n", 1, 3, 8), (3, 8)]),
    Case("nn.rotary", [("n", 2), ("n", 2), (2,)]),
    Case("nn.rms_norm", [("n", 3, 4), (3, 4)], {"axis": 1, "epsilon": 1e-3}),
    *(
        Case(op, [("n", 3, 4)], {"axis": axis})
        for op in ("nn.softmax", "nn.log_softmax")
        for axis in (-1, 1)
    ),
    Case("nn.dropout", [("n", 3)], {"rate": 0.1}),
    *(
        Case(op, [("n", 3, 4)], {"axis": axis, "keepdims": keep}, dtypes=NUMBERS, low=-9, high=9)
        for op in ("sum", "prod", "mean", "max", "min")
        for axis, keep in (((1, 2), True), (-1, False), ((0, 2), False), ((), False))
    ),
    *(
        Case(op, [("n", 3, 4)] * 2, {"axis": axis, "keepdims": keep}, dtypes=NUMBERS)
        for op in ("sum_products", "mean_products")
        for axis, keep in (((1, 2), True), (-1, False), ((), False))
    ),
    # ---- movement
    Case("assume", [("n", 3)], {"size": Var("n"), "equal": (Var("n") + 3) // 2, "node": "y"}),
    Case("assume", [("n", 3)], {"size": Var("n"), "equal": 1, "differs": True}),
    Case("annotation.on_device", [("n", 3, 4)], {"device": "gpu"}),
    Case("device_copy", [("n", 3, 4)], {"src": "host", "dst": "gpu"}),
    Case("reshape", [("n", 3, 4)], {"newshape": (0, -1)}),
    Case("reshape", [("n", 6, 4)], {"newshape": (0, 8, 3)}),
    Case("reshape", [("n", 6)], {"newshape": (-1, 3)}),
    Case("reshape", [(2, 6)], {"newshape": (3, 1, 4)}),
    Case("nn.batch_flatten", [("n", 3, 4)]),
    Case("flatten", [("n", 3, 4)], {"axis": 2}),
    Case("flatten", [("n", 3, 4)], {"axis": 0}),
    Case("squeeze", [("n", 1, 3, 1)], {"axis": (1, -1)}),
    Case("squeeze", [(1, 3, 1)]),
    Case("expand_dims", [("n", 3)], {"axes": (0, -1)}),
    Case("transpose", [("n", 3, 4)], {"axes": (2, 0, 1)}),
    Case("transpose", [("n", 3, 4)]),
    Case("broadcast_to", [("n", 1)], {"shape": (1, 3)}),
    Case("broadcast_to", [()], {"shape": (2, 3)}),
    Case("concatenate", [("n", 2), ("n", 3), ("n", 1)], {"axis": 1}),
    Case("concatenate", [("n", 2), (3, 2)], {"axis": 0}),
    Case("append", [("n", 2), ("n", 3)], {"axis": 1}),
    Case("split", [("n", 6)], {"sizes": (1, 3, 2), "axis": -1}),
    Case("shape_of", [("n", 3, 4)]),
    Case("arange", [], {"size": 7}, (F32,)),
    Case("bernoulli", [()], {"shape": (3, 5), "probability": 0.4, "node": 2}, (INT64,)),
    Case("bernoulli", [()], {"shape": (7,), "probability": 1.0}, (INT64,)),
    Case("strided_slice", [("n", 6, 5)], {"begin": (1,), "end": (-1,), "axes": (2,)}),
    Case(
        "strided_slice",
        [("n", 6, 5)],
        {"begin": (-1, 4), "end": (-99, 0), "strides": (-1, -2), "axes": (1, 2)},
    ),
    Case("strided_slice", [("n", 7)], {"begin": (0, 1), "end": (99, 99), "strides": (1, 3)}),
    *(
        Case(op, [("n", 5, 3)], {"axis": axis, "last": last, "keepdims": last}, NUMBERS, -3, 3)
        for op in ("argmax", "argmin")
        for axis, last in ((1, False), (-1, True))
    ),
    *(
        Case("topk", [("n", 9, 3)], {"k": 4, "axis": 1, "largest": big}, NUMBERS, -3, 3)
        for big in (True, False)
    ),
    Case("non_max_suppression", [("n", 4, 9), ("n", 2, 9), (), (), ()], {},
         ((F32, F32, INT64, F32, F32), (TOY, TOY, INT64, TOY, TOY)), -2, 5),
    *(
        Case(op, [("n", 6, 2)], {"axis": 1, "exclusive": e, "reverse": r}, NUMBERS)
        for op in ("cumsum", "cumprod")
        for e, r in ((False, False), (True, False), (False, True), (True, True))
    ),
    Case("gather_elements", [("n", 4, 3), ("n", 2, 3)], {"axis": 1}, ((F32, INT64), (TOY, I32)),
         -4, 3),
    Case("gather_elements", [(4, 3), (2, 2)], {"axis": -1}, ((F32, INT64),), -3, 2),
    Case("gather_nd", [("n", 3, 3, 2), ("n", 5, 2)], {"batch_dims": 1}, ((F32, INT64),), -3, 2),
    Case("gather_nd", [(3, 4), (2, 2, 1)], dtypes=((TOY, I32),), low=-3, high=2),
    Case("non_max_suppression", [("n", 4, 9), ("n", 2, 9), (), (), ()],
         dtypes=((F32, F32, INT64, F32, F32), (TOY, TOY, INT64, TOY, TOY)), low=0, high=4),
    *(
        Case(
            "scatter_elements",
            [(4, 3, 2), (5, 2, 2), (5, 2, 2)],
            {"axis": 0, "reduction": r},
            ((F32, INT64, F32), (TOY, INT64, TOY), (I32, I32, I32), (BOOL, INT64, BOOL)),
            -4,
            3,
        )
        for r in ("none", "add", "mul", "max", "min")
    ),
    *(
        Case(
            "scatter_nd",
            [(4, 3, 2), (5, 2), (5, 2)],
            {"reduction": r},
            ((F32, INT64, F32), (TOY, I32, TOY), (BOOL, INT64, BOOL)),
            -3,
            2,
        )
        for r in ("none", "add", "mul", "max", "min")
    ),
    *(
        Case("einsum", shapes, {"equation": e}, NUMBERS)
        for e, shapes in (
            ("bij,bjk->bik", [("n", 3, 4), ("n", 4, 2)]),
            ("...ij->...ji", [("n", 3, 4)]),
            ("...i,i", [("n", 3, 4), (4,)]),
            ("ii->i", [(3, 3)]),
            ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 2)]),
            ("ij->", [("n", 4)]),
        )
    ),
    Case("take", [("n", 4, 2), (3, 2)], {"axis": 1}, ((F32, INT64), (TOY, I32)), -6, 6),
    Case("take", [(4, 3), ()], {"axis": -1}, dtypes=((F32, UINT8),)),
    Case("nn.pad", [("n", 3)], {"pad_width": ((0, 0), (1, 2)), "value": 1.5}),
    Case("nn.pad", [("n", 4)], {"pad_width": ((0, 0), (3, 2)), "mode": "reflect"}),
    Case("nn.pad", [("n", 4)], {"pad_width": ((1, 0), (2, 3)), "mode": "edge"}),
    *(
        Case("image.resize2d", [("n", 1, 3, 4)], attrs)
        for attrs in (
            {"scales": (2.0, 3.0), "coordinate_transformation_mode": "asymmetric",
             "nearest_mode": "floor"},
            {"scales": (1.5, 0.5)},
            {"size": (5, 2), "coordinate_transformation_mode": "align_corners"},
            {"size": (1, 7), "coordinate_transformation_mode": "pytorch_half_pixel",
             "nearest_mode": "ceil"},
        )
    ),
    Case("image.resize2d", [(1, 2, "n", "n")], {"scales": (2.0, 2.0)}),
]  # fmt: skip


def cases_of(op: OpDef) -> list[Case]:
    """Calls that follow from what is true of an operator: of contractions, and of functions and
    moves that need no attributes."""
    axes = op.contraction
    if axes is not None and axes.kernel:
        k = axes.kernel
        plain = [("n", 2, *[6] * k), (3, 2, *[3] * k)]
        grouped = [(1, 4, *[9] * k), (6, 2, *[3] * k), (6,)]
        attrs = {"strides": (2,) * k, "dilation": (2,) * k, "padding": (1,) * k + (2,) * k}
        return [Case(op.name, plain), Case(op.name, grouped, attrs | {"groups": 2})]
    if axes is not None:
        return [Case(op.name, [("n", 3), (4, 3) if axes.by_rows else (3, 4)])]
    alone = op.arity == (1, 1) and all(has_default(f) for f in fields(op.attrs))
    told = op.function or op.homogeneous or op.clips is not None or op.moves is not None
    return [Case(op.name, [("n", 3)], low=0.1, high=3)] if alone and told else []


def has_default(f: Field[Any]) -> bool:
    """Whether an attribute may be left out."""
    return f.default is not MISSING or f.default_factory is not MISSING


for _op in all_ops().values():
    if _op.name not in {c.op for c in CASES} and not _op.name.startswith("qnn."):
        CASES += cases_of(_op)
