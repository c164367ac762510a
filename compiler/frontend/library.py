"""Imports every file of converters; each registers its own."""

from compiler.frontend import (  # noqa: F401
    converters_activations,
    converters_blocks,
    converters_cast,
    converters_control,
    converters_conv,
    converters_elementwise,
    converters_found,
    converters_fourier,
    converters_index,
    converters_microsoft,
    converters_move,
    converters_nn,
    converters_norms,
    converters_pool,
    converters_quantized,
    converters_recurrent,
    converters_reduce,
    converters_resize,
    converters_sampling,
    converters_slice,
)
