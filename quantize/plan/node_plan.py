"""NodePlan: what a plan decides of one operator call."""

from __future__ import annotations

from dataclasses import dataclass

DECISIONS = ("integer", "folded", "tabled", "format", "weights", "float")
SEQUENTIAL = "sequential"


@dataclass(frozen=True)
class NodePlan:
    """What becomes of one operator call.

    Attributes:
        op: name of the operator.
        decision: `integer`; `folded` (an activation that the producer's clipping does); `tabled`
            (part of a later node's table); `format` (its factors are numbers of the formats that
            `Plan.formats` gives); `float`.
        reason: why it stays float; empty otherwise.
        macs: multiply-accumulates, symbolic dimensions counted as 1.
        origins: names of the ONNX nodes it comes from.
        accumulate: its accumulator, if it sums products (see `QConfig.accumulate`).
        function_of: of an integer node that becomes a table: the value whose integers it is looked
            up by; all that lies between the two is part of the table.
        compute: of a node in formats, as `QConfig.compute`; empty: as the plan's configuration.
    """

    op: str
    decision: str
    reason: str = ""
    macs: int = 0
    origins: tuple[str, ...] = ()
    accumulate: str = SEQUENTIAL
    function_of: str = ""
    compute: str = ""
