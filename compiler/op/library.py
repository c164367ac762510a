"""Imports every family of operators; each module registers its own."""

from compiler.op import (  # noqa: F401
    einsum,
    elementwise,
    exact,
    layout,
    logic,
    mixed,
    move,
    move_index,
    move_join,
    move_scatter,
    nn_conv,
    nn_dense,
    nn_norm,
    nn_pool,
    qnn,
    qnn_pool,
    reduce,
    resize,
    scan,
    search,
)
