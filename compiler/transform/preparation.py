"""prepare: the simplifications that come before quantization and compilation.

Quantization plans name values of the prepared module, so the passes and their order are versioned:
change PREPARE_VERSION when a change gives values other names.
"""

from __future__ import annotations

from dataclasses import replace

from compiler.ir.expr import IRModule
from compiler.passes.pipeline import sequence

PREPARE_VERSION = 2


def prepare(mod: IRModule) -> IRModule:
    """The simplified module; `attrs["prepared"]` holds PREPARE_VERSION.

    Parameters and results keep their names and types. Every binding keeps its `origins`; one that
    is made of several has those of all. What runs is the pipeline's stage "prepare", as the current
    PassContext says.
    """
    out = sequence("prepare", "prepare")(mod)
    return replace(out, attrs={**out.attrs, "prepared": PREPARE_VERSION})
