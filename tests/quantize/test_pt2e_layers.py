"""Layer by layer, torch's flow and the plan give the same integers of the same integers, or such as
are one code apart. Skipped where torch or torchao is not installed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import compiler
import quantize

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
pytest.importorskip("torchao")

from experiments.benchmarks.torch_integers import (  # noqa: E402
    NETWORKS,
    agreements,
    compared,
    digits,
    rows,
)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_layer_is_one_code_apart_at_most(name: str) -> None:
    case = NETWORKS[name]
    found = compared(case.make(), *digits())
    print(f"{name}: value by value {found.apart}, end to end {found.whole}")
    for value, (count, _, most) in found.apart.counts.items():
        assert count
        assert most <= 1, value
    assert found.apart.share > 0.9999, found.apart
    assert found.powers_apart.most <= (0 if case.exact else 1), found.powers_apart
    assert not case.exact or found.powers.most == 0, found.powers
    assert all(row.passed for row in rows(name, case, found))


def test_what_reads_a_float_reads_it_before_it_is_quantized() -> None:
    """A sum of hard swishes, of which products read integers, is computed from the floats."""

    class Sum(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first = torch.nn.Conv2d(1, 4, 3)
            self.second, self.third = (torch.nn.Conv2d(4, 4, 1) for _ in range(2))

        def forward(self, x: Any) -> Any:
            y = torch.nn.functional.hardswish(self.first(x))
            return self.third(y + torch.nn.functional.hardswish(self.second(y)))

    x, calibration = digits()
    found = compared(Sum().eval(), x, calibration)
    assert len(found.apart.counts) == 2
    assert found.apart.most <= 1
    assert found.apart.share > 0.999, found.apart


def test_another_scale_is_seen() -> None:
    """The comparison can fail: torch's graph has one scale that the plan has not."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    from quantize.torch import DtypelabQuantizer, compare

    (x, calibration), module = digits(), NETWORKS["mnist_mlp"].make()
    mod = compiler.from_torch(module, (torch.from_numpy(x),))
    plan = quantize.calibrate(mod, [calibration[:8]])
    assert all(a.most <= 1 for a in agreements(module, mod, plan, x))
    name = next(k for k in plan.values if k not in {p.name for p in mod.main.params})
    other = replace(plan.values[name], scale=plan.values[name].scale * 1.1)
    graph = torch.export.export(module, (torch.from_numpy(x),)).module()
    wrong = replace(plan, values={**plan.values, name: other})
    converted = convert_pt2e(prepare_pt2e(graph, DtypelabQuantizer(wrong, mod)))
    assert compare(converted, mod, plan, x, step_by_step=True).most > 1
