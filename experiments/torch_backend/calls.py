"""Calls of one graph: it is compiled when the first one shows its parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.frontend.torch.element_types import dtype_of
from compiler.frontend.torch.importer import imported
from compiler.frontend.torch.traced import Traced
from experiments.systems import pipeline
from experiments.torch_backend.arrays import array_of, tensor_of
from experiments.torch_backend.options import Options

if TYPE_CHECKING:
    from compiler.runtime.executable import Executable


class GraphCall:
    """A graph of torch as a function of tensors.

    Args:
        graph: a functional graph of torch's operators.
        constants: positions of inputs that are taken to be constants.
        names: of the inputs, in order, as the module's code has them.
        options: its number system.
    """

    def __init__(
        self, graph: Any, constants: Sequence[int], names: Sequence[str], options: Options
    ):
        self.options, self.nodes = options, list(graph.graph.nodes)
        self._placeholders = [n for n in self.nodes if n.op == "placeholder"]
        values = [n.meta.get("val") for n in self._placeholders]
        tensors = [k for k, v in enumerate(values) if hasattr(v, "shape")]
        self._names = list(names) if len(names) == len(self._placeholders) else []
        self._constants = [k for k in constants if k in tensors]
        held = set(self._constants)
        self._given = [(k, dtype_of(values[k].dtype)) for k in tensors if k not in held]
        (self._returned,) = self.nodes[-1].args
        computed = [x for x in self._returned if getattr(x, "op", "") == "call_function"]
        self._results = list(dict.fromkeys(computed))
        self._run: Executable | None = None
        self._seen: list[tuple[int, int]] = []
        self._draws = False

    def __call__(self, *args: Any) -> list[Any]:
        """The graph's results."""
        arrays = [array_of(args[k], dtype) for k, dtype in self._given]
        found: dict[Any, Any] = {}
        if self._results:
            seen = [(args[k].data_ptr(), args[k]._version) for k in self._constants]
            if self._run is None or seen != self._seen:
                self._run, self._seen = self._compiled(args, arrays), seen
            outs = self._run(*arrays, *self._drawn())
            outs = outs if isinstance(outs, list) else [outs]
            found = dict(zip(self._results, outs, strict=True))
        given = dict(zip(self._placeholders, args, strict=True))
        return [given[x] if x in given else _returned(x, found) for x in self._returned]

    def _drawn(self) -> list[Any]:
        """What the program draws random numbers by: a number that torch's generator draws."""
        import torch

        return [torch.randint(2**63 - 1, ()).numpy()] if self._draws else []

    def _compiled(self, args: Sequence[Any], arrays: Sequence[Any]) -> Executable:
        import torch

        held = {self._placeholders[k].name: args[k] for k in self._constants}
        results = [(f"output_{k}", x) for k, x in enumerate(self._results)]
        inputs = {n.name: name for n, name in zip(self._placeholders, self._names, strict=False)}
        module = imported(Traced(self.nodes, held, results, inputs=inputs, draws=True))
        self._draws = len(module.attrs["inputs"]) > len(arrays)
        module = self.options.applied(module, [*arrays, *[np.int64(0)] * self._draws])
        threads = self.options.threads or torch.get_num_threads()
        scheme, target = self.options.scheme, self.options.target
        run: Executable = pipeline.build(module, scheme, target, threads)
        return run


def _returned(x: Any, found: dict[Any, Any]) -> Any:
    """One result: a tensor, a number, or what is none of these."""
    if x not in found:
        return x
    dtype = getattr(x.meta["val"], "dtype", None)
    return int(found[x]) if dtype is None else tensor_of(found[x], dtype)
