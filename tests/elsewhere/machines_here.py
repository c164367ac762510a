"""Which machines the tests of other architectures find here."""

from __future__ import annotations

import pytest

from compiler.runtime.machines.registry import missing
from compiler.target.registry import Target


def needs(target: str) -> pytest.MarkDecorator:
    """Skips, and says why, where code for a target does not run."""
    why = missing(Target.anywhere(target))
    return pytest.mark.skipif(bool(why), reason=why or "it runs")


WASM = ("wasm32 -runner=wasmtime", "wasm32 -runner=node")
RELAXED = tuple(f"{t} -mattr=+relaxed-simd" for t in WASM)
WASM_MACHINES, RELAXED_MACHINES = (
    tuple(pytest.param(t, marks=needs(t), id=t.split("=")[1].split()[0]) for t in targets)
    for targets in (WASM, RELAXED)
)
