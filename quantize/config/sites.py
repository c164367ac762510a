"""Sites: the kinds of factors whose format and scales a configuration chooses on their own."""

from __future__ import annotations

from dataclasses import dataclass

GRANULARITIES: dict[str, tuple[str, ...]] = {
    "activation": ("tensor", "channel", "token"),
    "key": ("tensor", "head", "token", "channel", "block"),
    "value": ("tensor", "head", "token", "channel", "block"),
    "probability": ("tensor", "token"),
}
"""Site -> what its scales may be for. `tensor`, `channel` and `head`: found by calibration; of keys
and values, a channel is one of a head. `token`: one for each row, found when it runs: along the
axis that products are summed over, and of values along the channels. `block`: those of block
formats, which have no others."""
OWN = ("embedding", "logit", "softmax", "norm")
"""Sites that are as without a configuration unless they have a dtype of their own. `embedding`: the
rows of constant tables that are looked up by what the network is given. `logit`: the weights of the
layer that makes the first result; `float32` leaves both its factors. `softmax` and `norm`: what
these are computed in, operation by operation, in numbers without scales."""
ATTENTION = ("key", "value", "probability")
"""The sites that are factors of attention's products; without a dtype of their own they are
activations, as queries are."""


@dataclass(frozen=True)
class Site:
    """What a configuration says of the factors of a site.

    Attributes:
        format: name of a scalar format, of integers, of a block format, or `float32`.
        granularity: what has a scale of its own.
    """

    format: str
    granularity: str = "tensor"
