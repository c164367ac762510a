"""Fake quantization of a graph that trains: what the plan's integers will be, in float32, with
gradients passed straight through to all that is not cut off.

Values are divided by their scale and rounded, halves to even, as `qnn.quantize` does; weights are
multiplied by its reciprocal, as torch does when it folds the weights that were trained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torchao.quantization.pt2e.fake_quantize import FakeQuantizeBase

from compiler.errors import InputError
from quantize.plan.params import ValueParams, WeightParams, value_params, weight_params, whole_range
from quantize.torch.session import Session
from quantize.torch.writing import DTYPES, write_value

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node


class Rounded(torch.autograd.Function):
    """x on a grid, in float32; the gradient is that of the identity between the ends, else 0
    (Bengio et al., Estimating or Propagating Gradients Through Stochastic Neurons, 2013)."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, low: int, high: int,
        reciprocal: bool,
    ) -> torch.Tensor:  # fmt: skip
        """The numbers that the integers from `low` to `high` nearest to x / scale stand for."""
        q = torch.round(x * (1.0 / scale) if reciprocal else x / scale) + zero
        ctx.save_for_backward((q >= low) & (q <= high))
        found: torch.Tensor = (q.clamp(low, high) - zero) * scale
        return found

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Of x alone."""
        (inside,) = ctx.saved_tensors
        return gradient * inside, None, None, None, None, None


class SimulatedValue(FakeQuantizeBase):
    """A value: with the plan's parameters, or those of the moving average of its ends."""

    ends: torch.Tensor
    weight: torch.Tensor

    def __init__(self, session: Session, name: str, dtype: torch.dtype):
        super().__init__()
        self.session, self.name, self.dtype = session, name, dtype
        self.qscheme, self.is_dynamic = torch.per_tensor_affine, False
        self.register_buffer("ends", torch.zeros(2, dtype=torch.float64))
        self.register_buffer("weight", torch.zeros((), dtype=torch.float64))

    def params(self) -> ValueParams:
        """How the value is rounded now.

        Raises:
            InputError: it has seen nothing.
        """
        plan = self.session.given
        if plan is not None:
            return plan.values[self.name]
        if not self.weight:
            raise InputError(f"the value {self.name!r} has no range: call the module with a batch")
        config = self.session.configs[self.name]
        low, high = (self.ends / self.weight).tolist()
        return value_params(low, high, config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` on the grid, in float32."""
        if self.session.given is None and self.observer_enabled.any() and x.numel():
            self._observe(x.detach())
        if not self.fake_quant_enabled.any():
            return x
        p = self.params()
        scale, zero = torch.tensor(p.scale, dtype=x.dtype), torch.tensor(float(p.zero_point))
        found: torch.Tensor = Rounded.apply(x, scale, zero, p.qmin, p.qmax, False)
        return found

    def _observe(self, x: torch.Tensor) -> None:
        """As `quantize.calibration.observers.MovingAverage`, in buffers that checkpoints hold."""
        momentum = self.session.configs[self.name].momentum
        ends = torch.stack([x.min(), x.max()]).to(torch.float64)
        self.ends.copy_(self.ends * momentum + ends)
        self.weight.copy_(self.weight * momentum + 1.0)

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        """float32 scale and int64 zero point."""
        p = self.params()
        return torch.tensor(p.scale), torch.tensor(p.zero_point)

    def convert(self, model: GraphModule, node: Node) -> None:
        """Become a quantize and a dequantize."""
        floats = self.session.floats.get(self.name, frozenset())
        write_value(model, node, self.params(), floats)


class SimulatedWeight(FakeQuantizeBase):
    """Weights: with the plan's scales, or those that the configuration gives what they are now."""

    def __init__(self, session: Session, name: str, turned: bool):
        super().__init__()
        self.session, self.name, self.turned = session, name, turned
        self.dtype, self.is_dynamic = DTYPES["int8"], False
        plan = session.given
        self._params: WeightParams | None = None if plan is None else plan.weights[name]
        if self._params is not None:
            bits, full = self._params.bits, bool(self._params.zero_points)
            channel = len(self._params.scales) > 1
        else:
            config = session.configs[name]
            bits, full = config.weight_bits, config.weight_range != "restricted"
            channel = config.weight_granularity == "channel"
        half = 1 << (bits - 1)
        self.quant_min, self.quant_max = -half + (not full), half - 1
        self.qscheme = torch.per_channel_affine if channel else torch.per_tensor_affine
        self.ch_axis = 0

    def params(self, w: torch.Tensor) -> WeightParams:
        """How weights are rounded."""
        if self.session.given is None:
            config = self.session.configs[self.name]
            rows = w.detach().cpu().numpy()
            rows = np.ascontiguousarray(rows.T if self.turned else rows)
            self._params = weight_params(rows, None, whole_range(config), config)
        assert self._params is not None
        return self._params

    def forward(self, w: torch.Tensor) -> torch.Tensor:
        """`w` on the grid, in float32."""
        self.ch_axis = w.ndim - 1 if self.turned else 0
        p = self.params(w) if self.observer_enabled.any() or self._params is None else self._params
        if not self.fake_quant_enabled.any():
            return w
        scale, zero = (self._along(t.to(w.dtype), w.ndim) for t in _tensors(p))
        found: torch.Tensor = Rounded.apply(w, scale, zero, self.quant_min, self.quant_max, True)
        return found

    def _along(self, t: torch.Tensor, rank: int) -> torch.Tensor:
        return t.reshape([-1 if k == self.ch_axis else 1 for k in range(rank)])

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        """float32 scales and int64 zero points of the weights that were seen last.

        Raises:
            InputError: none were.
        """
        if self._params is None:
            raise InputError(f"the weights of {self.name!r} were not seen: call the module once")
        return _tensors(self._params)


def _tensors(p: WeightParams) -> tuple[torch.Tensor, torch.Tensor]:
    zeros = p.zero_points or (0,) * len(p.scales)
    return torch.tensor(p.scales, dtype=torch.float32), torch.tensor(zeros)
