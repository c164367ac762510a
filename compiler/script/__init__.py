"""Programs of both levels written in Python: graph functions and tensor programs side by side.

The decorators read the source of what they decorate: `for` over a grid is a loop, a stored element
a statement, `with dataflow()` a part without effects. Expressions are Python's own, on symbolic
values; what a program may use is listed here.
"""

from compiler._lazy import lazy

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "compiler.script.decorators": ["graph_function", "module", "tensor_program"],
        "compiler.script.loops": [
            "alloc_buffer", "axis", "block", "Buffer", "grid", "init", "parallel", "serial",
            "unroll", "vectorized",
        ],
        "compiler.script.scalars": [
            "boolean", "cast", "exp", "float16", "float32", "float64", "floor", "fma", "int8",
            "int16", "int32", "int64", "log", "maximum", "minimum", "select", "sqrt", "tanh",
            "uint8", "uint16", "uint32", "uint64",
        ],
        "compiler.script.graph_values": ["call_packed", "call_tir", "dataflow", "output", "Tensor"],
    },
)  # fmt: skip
