"""A plan in torch's own flow: `prepare_pt2e`, calibration, `convert_pt2e`, and back again.

`DtypelabQuantizer` annotates an exported graph by a plan, or by a configuration; `plan_of` reads
the plan out of what `convert_pt2e` made, `float_module` the network without its quantization, and
`compare` counts how many integers torch and a plan have in common. After `prepare_qat_pt2e`,
`with_integer_biases` rounds what torch leaves in float32. They need torch and torchao, which
nothing here imports before they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compiler._lazy import lazy

if TYPE_CHECKING:
    from quantize.torch.biases import with_integer_biases as with_integer_biases
    from quantize.torch.comparing import compare as compare
    from quantize.torch.quantizer import DtypelabQuantizer as DtypelabQuantizer
    from quantize.torch.reading import float_module as float_module
    from quantize.torch.reading import plan_of as plan_of

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "quantize.torch.biases": ["with_integer_biases"],
        "quantize.torch.comparing": ["compare"],
        "quantize.torch.quantizer": ["DtypelabQuantizer"],
        "quantize.torch.reading": ["float_module", "plan_of"],
    },
)
