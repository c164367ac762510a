"""Imports every file of makers; each registers its own."""

from random_graphs import (  # noqa: F401
    makers_control,
    makers_elementwise,
    makers_move,
    makers_nn,
    makers_quantized,
    makers_reduce,
    makers_transformers,
)
