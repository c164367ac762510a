"""Differences that are explained, each by a named rule with its reason.

A rule says which elements of a difference it explains; it looks at the operator, its operands and
both results, and bounds what it excuses: by computing the result anew (`recomputing`), or by
showing that both agree as soon as the operands are ordinary. Whatever no rule explains is a fault.
"""

from __future__ import annotations

import numpy as np

from random_graphs import rules_integers, rules_odd, rules_positions, rules_rounding
from random_graphs.comparing import Difference
from random_graphs.rule_book import REGISTERED

KINDS = (rules_rounding, rules_odd, rules_integers, rules_positions)
RULES = [r for kind in KINDS for r in REGISTERED if r.explains.__module__ == kind.__name__]
"""In the order in which they are asked."""


@np.errstate(all="ignore")
def explained(d: Difference) -> list[str] | None:
    """The names of the rules that together explain a difference; None if they do not."""
    if d.error is not None or d.wrong is None:
        return next(([r.name] for r in RULES if np.all(r.explains(d))), None)
    left, names = d.wrong.copy(), []
    for r in RULES:
        known = left & np.broadcast_to(np.asarray(r.explains(d), bool), left.shape)
        if known.any():
            names.append(r.name)
            left &= ~known
        if not left.any():
            return names
    return None
