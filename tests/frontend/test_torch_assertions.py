"""What torch takes for granted of sizes that data decide is checked when a program is called.
Skipped where torch is not installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import compiler
from compiler.errors import InputError

torch = pytest.importorskip("torch")
nn: Any = torch.nn


class AtLeastThree(nn.Module):
    """Positions of what is not zero, if there are at least three."""

    def forward(self, x: Any) -> Any:
        found = x.nonzero()
        torch._check(found.shape[0] > 2)
        return found * 2


def test_an_assertion_is_checked_at_every_call() -> None:
    x = torch.tensor([[1.0, 0.0, 2.0], [0.0, 3.0, 4.0]])
    mod = compiler.from_torch(AtLeastThree(), (x,))
    exe = compiler.build(mod)
    few = x.numpy() * [[1, 1, 1], [0, 0, 0]]
    for run in (exe, lambda x: compiler.evaluate(mod, x)):
        np.testing.assert_array_equal(run(x.numpy()), 2 * x.nonzero().numpy())
        with pytest.raises(InputError, match=r"u\d+.* does not hold, which torch took for granted"):
            run(few.astype(np.float32))
