"""What a sweep is said to do before it runs, beside what it then does, counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantize
from experiments import zoo
from experiments.measure import layer_errors
from experiments.running.estimates import estimates
from experiments.running.session import Session
from experiments.running.work import evaluation_batch, work_of
from experiments.spec.specification import load_spec
from experiments.systems import pipeline, schemes
from quantize.realization.realize import Realizer

SCHEMES = ["float32", "int8_tensor", "bfloat16", {"scheme": "scaled", "weight_dtype": "posit8_es0"}]
PLAIN: dict[str, Any] = {
    "models": ["mnist_mlp"], "schemes": SCHEMES, "n_eval": 3, "n_calib": 2, "latency": {"runs": 0},
}  # fmt: skip
LATENCY = {"runs": 2, "warmup": 1, "batch": 1, "budget_s": 0}
SPECS: dict[str, dict[str, Any]] = {
    "accuracy": {"n_eval": 130, "schemes": ["bfloat16", "float32"]},
    "latency": {"latency": LATENCY, "schemes": ["float32", "int8_tensor"]},
    "layers": {"layers": {"images": 2}, "schemes": SCHEMES[1:3]},
    "events": {"layers": {"images": 1, "events": True}},
    "gaps": {
        "gap": {"inputs": 2},
        "schemes": [
            "float32",
            "int8_tensor",
            {"scheme": "bfloat16", "accumulate": "float32"},
            {"scheme": "scaled", "weight_dtype": "bfloat16"},
        ],
    },
    "latency of the evaluation's batch": {"latency": LATENCY | {"batch": 3}},
    "seeds": {"seeds": [0, 1], "schemes": ["int8_tensor", "bfloat16_stochastic"]},
    "threads": {"threads": [1, 2], "schemes": ["bfloat16", "float32"]},
    "networks": {
        "models": [{"model": "mnist_mlp", "n_eval": 5}, "mnist_resnet8"],
        "schemes": ["float32"],
    },
    "no float32": {"schemes": ["bfloat16"], "latency": LATENCY},
}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts of what is done, by the names of `work.Work`."""
    done: Counter[str] = Counter()
    kinds: dict[int, str] = {}
    real_prepare, real_build, real_call = pipeline.prepare, pipeline.build, pipeline.Compiled.call
    real_calibrate, real_errors = quantize.calibrate, layer_errors.layer_errors

    def suffix(scheme: Any) -> str:
        return "_float" if scheme.kind == "float32" else ""

    def prepare(path: Path, scheme: Any, **options: Any) -> Any:
        done["prepared" + suffix(scheme)] += 1
        return real_prepare(path, scheme, **options)

    def build(module: Any, scheme: Any, *where: Any) -> Any:
        executable = real_build(module, scheme, *where)
        done["built" + suffix(scheme)] += 1
        kinds[id(executable)] = suffix(scheme)
        keep.append(executable)
        return executable

    def call(self: Any, x: Any) -> Any:
        # What is timed is called in turns, what is evaluated is not.
        done[f"called{kinds[id(self.executable)]}"] += len(x)
        return real_call(self, x)

    def calibrate(module: Any, batches: Any, *rest: Any) -> Any:
        done["calibrated"] += sum(map(len, batches))
        return real_calibrate(module, batches, *rest)

    def errors(reference: Any, variant: Any, inputs: Any, events: bool = False) -> Any:
        done["interpreted"] += len(inputs[0])
        done["counted"] += len(inputs[0]) * events
        return real_errors(reference, variant, inputs, events)

    keep: list[Any] = []
    monkeypatch.setattr(pipeline, "prepare", prepare)
    monkeypatch.setattr(pipeline, "build", build)
    monkeypatch.setattr(pipeline.Compiled, "call", call)
    monkeypatch.setattr(quantize, "calibrate", calibrate)
    monkeypatch.setattr(layer_errors, "layer_errors", errors)
    return done


@pytest.mark.sampled(6)
@pytest.mark.parametrize("case", SPECS)
def test_the_work_of_every_cell_is_what_is_done(case: str, counted: Counter[str]) -> None:
    spec = load_spec(PLAIN | SPECS[case])
    session = Session(spec.workload)
    for cell, work in zip(spec.cells, work_of(spec.cells, spec.workload.data), strict=True):
        before = counted.copy()
        assert session.row(cell)["status"] == "ok"
        done = {name: counted[name] - before[name] for name in counted}
        expected = asdict(work)
        for kind in ("", "_float"):
            expected[f"called{kind}"] = expected.pop(f"evaluated{kind}") + expected.pop(
                f"timed{kind}"
            )
        assert {k: v for k, v in done.items() if v} == {k: v for k, v in expected.items() if v}


def seconds(**more: Any) -> dict[str, float]:
    spec = load_spec(PLAIN | {"models": ["mnist_dwsep"]} | more)
    found = estimates(spec.cells, spec.workload.data)
    return {e.cell.scheme.label: e.seconds for e in found}


def test_layers_and_events_take_their_time() -> None:
    """As much more as more images are interpreted, and most where events are counted."""
    without, one, two = (seconds(layers={"images": n}) for n in (0, 1, 2))
    events = seconds(layers={"images": 1, "events": True})
    for scheme, base in without.items():
        share = one[scheme] - base
        assert two[scheme] - base == pytest.approx(2 * share)
        counts = scheme == "bfloat16"
        assert (share > 0) == (scheme != "float32")
        assert (events[scheme] > one[scheme]) == counts


def test_cells_that_share_the_float32_network_pay_for_it_once() -> None:
    alone = {s: seconds(schemes=[s], n_eval=1000)[s] for s in ("float32", "bfloat16")}
    both = seconds(schemes=["float32", "bfloat16"], n_eval=1000)
    assert sum(both.values()) == pytest.approx(alone["bfloat16"])
    swapped = seconds(schemes=["bfloat16", "float32"], n_eval=1000)
    assert sum(swapped.values()) == pytest.approx(sum(both.values()))
    assert swapped["float32"] == 0


@pytest.mark.parametrize("elements", [1, 784, 2**18, 2**21])
@pytest.mark.parametrize("count", [1, 99, 1000])
def test_batches_hold_as_much_as_is_small(elements: int, count: int) -> None:
    batch = evaluation_batch(None, count, elements)
    assert 1 <= batch <= min(100, count)
    assert batch * elements <= 2**20 or batch == 1
    assert batch == min(100, count) or (batch + 1) * elements > 2**20
    assert evaluation_batch(7, count, elements) == 7


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", ["posit8_es0", "bfloat16"])
def test_interpreting_grows_with_the_multiply_accumulates(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is estimated for another network's layers is to this one's as the scalar operations are
    that are done for them, within a factor of 3."""
    from datatypes.custom.custom_type import RegisteredType

    done = Counter[str]()
    apply = RegisteredType.apply

    def counting(self: Any, op: str, dtype: Any, *args: Any) -> Any:
        done[model] += max(np.size(a) for a in args)
        return apply(self, op, dtype, *args)

    monkeypatch.setattr(RegisteredType, "apply", counting)
    expected = {}
    for model in ("mnist_mlp", "mnist_dwsep"):
        request = {"layers": {"images": 1, "events": True}}
        given = PLAIN | {"models": [model], "schemes": [scheme]} | request
        spec = load_spec(given)
        with_layers, without = (
            estimates(s.cells, s.workload.data)[0].seconds
            for s in (spec, load_spec(given | {"layers": {"images": 0}}))
        )
        expected[model] = with_layers - without
        assert Session(spec.workload).row(spec.cells[0])["status"] == "ok"
    ratios = [values["mnist_dwsep"] / values["mnist_mlp"] for values in (expected, done)]
    assert 1 / 3 < ratios[0] / ratios[1] < 3


@pytest.mark.parametrize("scheme", ["int8_tensor", "bfloat16"])
def test_a_row_puts_its_network_into_the_scheme_once(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a row says of bits and sums is said of the module that its costs are counted on."""
    done = list[str]()
    real_run, real_retype = Realizer.run, pipeline.retype

    def run(self: Realizer) -> Any:
        done.append("realized")
        return real_run(self)

    def retype(module: Any, scheme: Any) -> Any:
        done.append("retyped")
        return real_retype(module, scheme)

    monkeypatch.setattr(Realizer, "run", run)
    monkeypatch.setattr(pipeline, "retype", retype)
    x = np.zeros((2, 1, 28, 28), np.float32)
    variant = pipeline.prepare(
        zoo.FOLDER / "mnist_mlp.onnx", schemes.parse(scheme), sample_shape=(1, 28, 28),
        calibration=x, target="llvm", threads=1,
    )  # fmt: skip
    assert len(done) == 1
    assert variant.portable_bits == "yes"
