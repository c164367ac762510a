"""Programs of both levels written in Python: graph functions and tensor programs side by side.

The decorators read the source of what they decorate: `for` over a grid is a loop, a stored element
a statement, `with dataflow()` a part without effects. Expressions are Python's own, on symbolic
values; what a program may use is listed here.
"""

import builtins

from compiler._lazy import lazy
from compiler.arithmetic.scalar_functions import UNARY

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "compiler.script.decorators": ["graph_function", "module", "tensor_program"],
        "compiler.script.loops": [
            "alloc_buffer", "axis", "block", "Buffer", "grid", "init", "parallel", "serial",
            "unroll", "vectorized",
        ],
        "compiler.script.scalars": [
            "boolean", "cast", "float16", "float32", "float64", "fma", "int8", "int16", "int32",
            "int64", "maximum", "minimum", "select", "uint8", "uint16", "uint32", "uint64",
            # Those whose names mean something else in Python are not for `import *`.
            *(name for name in UNARY if not hasattr(builtins, name)),
        ],
        "compiler.script.graph_values": ["call_packed", "call_tir", "dataflow", "output", "Tensor"],
    },
)  # fmt: skip
