"""Modules of torch.ao that simulate quantization: their code asks tensors whether they are switched
on, which no trace can follow. While a module is traced, they do what their state says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from compiler.errors import UnsupportedError

if TYPE_CHECKING:
    import torch


@contextmanager
def as_they_are(module: torch.nn.Module) -> Iterator[None]:
    """Have fake quantization inside of a module do what it does now, whatever it is given.

    Raises:
        UnsupportedError: one of them observes, so that every call would change it.
    """
    found = [(name, m) for name, m in module.named_modules() if _simulates(m)]
    for name, m in found:
        if m.observer_enabled.any():
            raise UnsupportedError(
                f"fake quantization {name!r} observes what it is given: call "
                "module.apply(torch.ao.quantization.disable_observer) first"
            )
    for _, m in found:
        m.forward = _simulation(m)
    try:
        yield
    finally:
        for _, m in found:
            del m.forward  # of the instance: that of the class is there again


def _simulates(m: torch.nn.Module) -> bool:
    """Whether it is one of torch.ao's modules that simulate quantization."""
    return any(
        c.__name__ == "FakeQuantizeBase" and c.__module__.startswith("torch.ao")
        for c in type(m).__mro__
    )


def _simulation(m: Any) -> Callable[[Any], Any]:
    """The function that a module is in its present state."""
    import torch

    if not m.fake_quant_enabled.any():
        return lambda x: x
    process = m.activation_post_process
    low, high = int(process.quant_min), int(process.quant_max)
    if m.is_per_channel:
        scale, zero = m.scale.detach(), m.zero_point.detach().to(torch.int32)
        axis = int(m.ch_axis)
        return lambda x: torch.fake_quantize_per_channel_affine(x, scale, zero, axis, low, high)
    one, zero_point = float(m.scale), int(m.zero_point)
    return lambda x: torch.fake_quantize_per_tensor_affine(x, one, zero_point, low, high)
