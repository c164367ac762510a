"""Imports every file of converters; each registers its own."""

from compiler.frontend.torch import (  # noqa: F401
    aten_activations,
    aten_attention,
    aten_backward,
    aten_elementwise,
    aten_index,
    aten_made,
    aten_move,
    aten_nn,
    aten_norm,
    aten_pool,
    aten_quantized,
    aten_recurrent,
    aten_reduce,
    aten_sizes,
)
