"""Networks of float32 numbers whose products are added up in other formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from compiler.ir.expr import Binding, Call, IRModule, names_in, tensor_type
from compiler.passes.rewrite import call, op_of, typed
from compiler.types.names import unique


def on_float32(mode: str, fmt: str) -> str:
    """What an accumulation of numbers of the format `fmt` is for float32 numbers; sums that are
    exact for the format are in float64."""
    named = {
        "fma": fmt,
        "sequential": f'{{format = "{fmt}", products = "rounded"}}',
        "exact": '{format = "float64"}',
        "float64": '{format = "float64"}',
        "float32": '{format = "float32"}',
    }
    return named.get(mode, mode)


def with_sums(module: IRModule, modes: Mapping[str, str]) -> IRModule:
    """The network with the sums of some float32 products in accumulators; biases are added to
    these in float32.

    Args:
        modes: name of a convolution, dense layer or product of matrices -> its accumulation.

    Raises:
        DtypelabError: an operator is not defined for an accumulation.
    """
    f, bindings = module.main, list[Binding]()
    names = names_in(f)
    for b in f.bindings:
        op, mode = op_of(b.value), modes.get(b.var.name)
        if mode is None or op is None or op.contraction is None or not isinstance(b.value, Call):
            bindings.append(b)
            continue
        (x, w, *biases), axis = b.value.args, op.contraction.channels % tensor_type(b.var).rank
        value = replace(b.value, args=(x, w), attrs=replace(b.value.attrs, accumulate=mode))
        for bias in biases:
            bindings.append(typed(unique(f"{b.var.name}_sums", names), value, b.origins))
            value = call("nn.bias_add", bindings[-1].var, bias, axis=axis)
        bindings.append(replace(b, value=value))
    return module.with_function("main", f.with_body(bindings, f.results))
