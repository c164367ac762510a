"""The backend: torch traces a graph and makes it functional, and hands it here.

Where no gradients are wanted, parameters are constants of the program: it is compiled anew when one
was written to (what goes around torch's count of versions, as `.data` does, is not seen). Where
gradients are wanted, parameters are inputs, and the backward graph, which torch's autograd writes,
is compiled as the forward graph is. What it reads of the forward graph are the format's results;
rounding lets gradients pass.

Dropout draws with the generator of torch one number a call, of which our own hash makes the masks:
`torch.manual_seed` makes them repeatable, but they are not those of torch's own kernels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from compiler.frontend.torch.exporting import check_operators, decompositions
from experiments.torch_backend.calls import GraphCall
from experiments.torch_backend.options import Options


def dtypelab(graph: Any, inputs: Sequence[Any], *, options: Any = None) -> Callable[..., Any]:
    """What torch.compile calls a graph by.

    Args:
        graph: a torch.fx.GraphModule.
        inputs: its inputs, or tensors like them.
        options: see `experiments.torch_backend.options`.

    Raises:
        ConfigError: an option is none of ours.
        UnsupportedError: operators that we do not implement.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func

    chosen = Options.of(options)
    names = [_name(n.name) for n in graph.graph.nodes if n.op == "placeholder"]

    def compiled(
        options: Options, constant: bool = False, called: Sequence[str] = names
    ) -> Callable[..., Any]:
        def compile_graph(traced: Any, _: Sequence[Any]) -> Any:
            check_operators(traced.graph.nodes)
            constants = _constants() if constant else ()
            return make_boxed_func(GraphCall(traced, constants, called, options))

        return compile_graph

    def trained(traced: Any, inputs: Sequence[Any]) -> Any:
        chosen.check_trained()
        return compiled(chosen)(traced, inputs)

    backward = chosen.of_backward()
    by_torch = aot_autograd(
        fw_compiler=trained,
        bw_compiler=_by_torch if backward is None else compiled(backward, called=()),
        inference_compiler=compiled(chosen, constant=True),
        decompositions=decompositions(),
    )
    with _attention_in_parts(inputs):
        found: Callable[..., Any] = by_torch(graph, inputs)
    return found


def _by_torch(traced: Any, _: Sequence[Any]) -> Any:
    """A graph as torch runs it."""
    from torch._functorch.aot_autograd import make_boxed_func

    return make_boxed_func(traced.forward)


def _attention_in_parts(inputs: Sequence[Any]) -> AbstractContextManager[object]:
    """Where gradients are wanted, attention is traced as products and a softmax, which backward
    graphs are made of."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    wanted = torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in inputs)
    return sdpa_kernel(SDPBackend.MATH) if wanted else nullcontext()


def _name(placeholder: str) -> str:
    """The name that the code has for a local variable which torch calls `L_x_`."""
    return re.sub(r"^[Ll]_(\w+)_$", r"\1", placeholder)


def _constants() -> tuple[int, ...]:
    """Positions of a graph's inputs that stay where they are: parameters and buffers."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    metadata = getattr(context, "fw_metadata", None)
    return tuple(getattr(metadata, "static_input_indices", None) or ())
