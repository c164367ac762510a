"""Small calls of layers: contractions, pooling, norms, and what belongs to them."""

from __future__ import annotations

from op_case import CONV8, F32, I32, NUMBERS, Case
from toy_dtype import TOY

from compiler.types.dtypes import INT8, INT16, UINT8

LAYERS: list[Case] = [
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
    *(
        Case("interleave", shapes, {"steps": steps}, dtypes=(F32, UINT8), high=200)
        for shapes, steps in [
            ([("n", 2, 3, 2)], (1, 1)),
            ([("n", 2, 3, 2)] * 4, (2, 2)),
            ([("n", 2, 3, 5), ("n", 2, 3, 4), ("n", 2, 3, 4)], (1, 3)),
            ([("n", 2, 2, 3, 4), ("n", 2, 1, 3, 4)], (2, 1)),
        ]
    ),
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
]  # fmt: skip
