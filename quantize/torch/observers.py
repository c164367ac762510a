"""What stands in a prepared graph: modules that change nothing, and become quantize and dequantize
nodes by the plan when the graph is converted.

The inputs are recorded, batch by batch; `quantize.calibrate` makes the plan of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torchao.quantization.pt2e.observer import ObserverBase

from compiler.errors import UnsupportedError
from quantize.torch.session import Session
from quantize.torch.writing import INT32, replaced, write_bias, write_value, write_weight

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node


class Maker:
    """Makes one module where torch wants a class that it gives arguments."""

    __name__ = "PerChannelOfPlan"  # torch looks for PerChannel in it

    def __init__(self, make: Callable[[], Any]):
        self._make = make

    def with_args(self, **_: Any) -> Callable[[], Any]:
        """What makes the module; the arguments are those that it has of the plan."""
        return self._make

    def __deepcopy__(self, memo: Any) -> Maker:
        return self  # torch copies what it is given before it looks at it


class Observed(ObserverBase):
    """A place of the plan: passes on what it is given."""

    def __init__(self, session: Session, name: str, dtype: torch.dtype = torch.int8):
        super().__init__(dtype=dtype)
        self.session, self.name = session, name
        self.qscheme = torch.per_tensor_affine

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` as it is."""
        return x

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        """float32 scales and int64 zero points."""
        params = self.session.plan.values[self.name]
        return torch.tensor(params.scale), torch.tensor(params.zero_point)


class ObservedValue(Observed):
    """A value; of an input, the batches are recorded."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` as it is."""
        if self.name in self.session.inputs:
            self.session.record(self.name, x.detach().cpu().numpy())
        return x

    def convert(self, model: GraphModule, node: Node) -> None:
        """Become a quantize and a dequantize; nothing of a value that the plan leaves float."""
        params = self.session.plan.values.get(self.name)
        if params is None:
            replaced(model, node, node.args[0])
        else:
            write_value(model, node, params, self.session.floats.get(self.name, frozenset()))


class ObservedWeight(Observed):
    """The weights of a node."""

    def __init__(self, session: Session, name: str, turned: bool):
        super().__init__(session, name)
        self.turned = turned

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        """float32 scales and int64 zero points."""
        params = self.session.plan.weights[self.name]
        zeros = params.zero_points or (0,) * len(params.scales)
        return torch.tensor(params.scales), torch.tensor(zeros)

    def convert(self, model: GraphModule, node: Node) -> None:
        """Become the plan's integers and a dequantize."""
        if self.name not in self.session.weighted():
            replaced(model, node, node.args[0])
            return
        weight, _ = self.session.constants(self.name)
        params = self.session.plan.weights[self.name]
        write_weight(model, node, params, params.quantized(weight), self.turned)


class ObservedBias(Observed):
    """The bias of a node, in units of its accumulator."""

    def __init__(self, session: Session, name: str):
        super().__init__(session, name, INT32[-1])

    def convert(self, model: GraphModule, node: Node) -> None:
        """Become the plan's integers and a dequantize."""
        weighted = self.session.weighted()
        if self.name not in weighted:
            replaced(model, node, node.args[0])
            return
        params, data = self.session.plan.weights[self.name], self.session.data(weighted[self.name])
        weight, given = self.session.constants(self.name)
        bias = params.shifted(given)
        zeros = np.zeros(len(weight), np.float32)
        integers = params.bias(zeros if bias is None else bias, data)
        if integers.dtype != np.int32:
            raise UnsupportedError(
                f"the sums of {self.name!r} have 64 bits, and torch's biases 32: give its weights "
                "7 bits, or no zero points"
            )
        write_bias(model, node, integers, params.accumulator_scale(data))
