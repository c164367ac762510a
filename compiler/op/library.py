"""Imports every family of operators; each module registers its own."""

from compiler.op import (  # noqa: F401
    annotation,
    assume,
    bitcast,
    concatenate,
    einsum,
    elementwise,
    exact_sum_parts,
    layout,
    logic,
    mixed,
    reduce,
    resize,
    scan,
    scatter,
    search,
    shapes,
    sizes,
    slice,
    suppression,
)
from compiler.op.nn import conv, dense, norm  # noqa: F401
from compiler.op.nn import pool as nn_pool  # noqa: F401
from compiler.op.qnn import (  # noqa: F401
    add,
    formats,
    layer_norm,
    lookup,
    multiply,
    pool,
    quantize,
    requantize,
    softmax,
)
