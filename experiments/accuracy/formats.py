"""Number formats of 8 bits and less side by side: scaled, in blocks, and integers.

Formats are stored, and computed with in float32, as other emulators do; integers run in integers.
"""

from __future__ import annotations

from collections.abc import Mapping

from experiments.accuracy.methods import Method, configured

NETWORKS = ("mnist_resnet8", "mnist_dwsep", "mnist_vit", "efficientnet_lite0", "pp_ocrv4_rec")


def stored(name: str) -> Method:
    """Weights and activations in a format or block format."""
    return configured(weight_dtype=name, activation_dtype=name)


METHODS: Mapping[str, Method] = {
    "int8": configured(),
    "int4 weights, int8 activations": configured(weight_bits=4, weight_calibrate="mse"),
    **{
        name: stored(name)
        for name in (
            "float8_e4m3fn", "float8_e5m2", "posit8_es0", "posit8_es2", "mxfp8_e4m3", "mxfp8_e5m2",
            "mxfp6_e2m3", "mxfp6_e3m2", "mxfp4_e2m1", "mxint8", "nvfp4",
        )
    },
}  # fmt: skip
