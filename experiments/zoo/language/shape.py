"""Sizes of a shipped language model, and the names of its weights in a state dict."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Shape:
    """A decoder as Llama's, small: rotary embedding, grouped queries, RMS norm, SwiGLU."""

    vocabulary: int = 1024
    width: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 32
    hidden: int = 256
    positions: int = 256
    rotary_base: float = 10000.0
    epsilon: float = 1e-5

    def as_dict(self) -> dict[str, Any]:
        """The fields, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class EncoderShape:
    """An encoder as BERT's, small, that classifies a piece of text."""

    vocabulary: int = 1024
    width: int = 64
    layers: int = 3
    heads: int = 4
    hidden: int = 256
    positions: int = 64
    classes: int = 12
    epsilon: float = 1e-12
