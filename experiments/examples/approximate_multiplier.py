"""What a cheap multiplier costs: Mitchell's, as a table, runs a network of 8-bit floats.

The code of a float is nearly its logarithm: the exponent, and a straight line from one power of two
to the next. Adding the codes of two floats therefore nearly multiplies them, without a multiplier
(J. N. Mitchell, Computer Multiplication and Division Using Binary Logarithms, 1962). The adder
becomes cheaper still if it leaves out the lowest bits.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import datatypes
import experiments

MAGNITUDE, SIGN = 0x7F, 0x80
NAN, LARGEST = 0x7F, 0x7E
ONE = 7 << 3
"""The code of 1 in float8_e4m3fn: the bias of the exponent, above three bits of mantissa."""


def mitchell(ignored: int = 0) -> NDArray[np.uint8]:
    """The products of float8_e4m3fn codes, [256, 256]; `ignored` low bits of the operands are 0."""
    codes = np.arange(256)
    size = codes & MAGNITUDE
    kept = size >> ignored << ignored
    product: NDArray[np.uint8] = np.clip(kept[:, None] + kept - ONE, 0, LARGEST).astype(np.uint8)
    product[kept == 0, :] = product[:, kept == 0] = 0
    product |= ((codes[:, None] ^ codes) & SIGN).astype(np.uint8)
    product[size == NAN, :] = product[:, size == NAN] = NAN
    return product


def define() -> list[str]:
    """Define formats that differ in their products only, and return their names."""
    for ignored in range(3):
        table = mitchell(ignored)
        datatypes.define(f"mitchell{ignored}", like="float8_e4m3fn", tables={"Mul": table})
    return [f"mitchell{ignored}" for ignored in range(3)]


if __name__ == "__main__":
    study = {"models": ["mnist_dwsep"], "schemes": ["float32", "float8_e4m3fn", *define()]}
    with tempfile.TemporaryDirectory() as folder:
        rows = experiments.sweep(study, out=Path(folder) / "rows.csv")
    rows["ns_per_product"] = rows["latency_ms_median"] * 1e6 / rows["macs"]
    shown = rows[["scheme", "lowering", "metric", "sqnr_db", "ns_per_product"]]
    print(shown.round({"sqnr_db": 2, "ns_per_product": 2}).to_string(index=False))
