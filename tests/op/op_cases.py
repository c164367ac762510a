"""One or more small calls of every operator, for the tests that walk the whole registry."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from typing import Any

from layer_cases import LAYERS
from op_case import F32, F64, I32, NUMBERS, Case, within
from toy_dtype import TOY

from compiler.arithmetic.scalar_functions import UNARY
from compiler.op.library import all_ops
from compiler.op.opdef import OpDef
from compiler.symbolic import Var
from compiler.types.dtypes import BOOL, INT8, INT64, UINT8, DType

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
    *LAYERS,
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
