"""The benchmark command lists its groups, and its models come out the same every time. Nothing here
is timed."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import compiler
from compiler.build import optimize
from compiler.errors import ConfigError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from experiments import zoo
from experiments.benchmarks import (
    convolutions,
    models,
    report,
    shapes,
    startup,
    torch_bert,
    training_steps,
    transformers,
    variants,
)
from experiments.benchmarks.__main__ import ALL_GROUPS, main
from experiments.benchmarks.first_output import Start
from experiments.benchmarks.networks import (
    OUR_INT8,
    PEER_FLOAT,
    PEER_INT8,
    TARGETS,
    Row,
    disturbance,
)
from experiments.benchmarks.turns import Effort
from experiments.zoo.materialize import materialize


def test_unknown_group_names_all_groups() -> None:
    result = CliRunner().invoke(main, ["no_such_group"])
    assert result.exit_code == 2
    assert all(name in result.output for name in ALL_GROUPS)


def test_targets_are_of_known_models() -> None:
    assert {name for name, _ in TARGETS} == set(models.MODELS)


@pytest.mark.thorough
@pytest.mark.parametrize("name", transformers.NETWORKS)
def test_transformers_are_what_onnxruntime_takes_them_for(name: str) -> None:
    """One layer of each: float32 results agree, and the same seed writes the same file."""
    from experiments.benchmarks import peer

    network = transformers.NETWORKS[name]
    (feed,) = network.feeds(1, seed=3)
    model = network.write(1, feed)
    assert model == network.write(1, feed)
    got = compiler.build(compiler.from_onnx(model))(**feed)
    with peer.session(model, 1) as session:
        np.testing.assert_allclose(got, session(feed), rtol=1e-3, atol=1e-4)


@pytest.mark.thorough
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_bert_as_torch_exports_it_gives_torchs_results_and_is_combined() -> None:
    import torch

    network, model = torch_bert.exported(1)
    words = np.random.default_rng(1).integers(0, torch_bert.WORDS, (1, torch_bert.TOKENS))
    with torch.inference_mode():
        want = network(torch.from_numpy(words)).numpy()
    mod = compiler.from_onnx(model)
    assert mod.astext().count("nn.dense(") == 6
    with compiler.PassContext(required_pass=[torch_bert.COMBINING]):
        got = compiler.build(mod)(words)
        combined = optimize(mod).astext()
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)
    assert combined.count("nn.dense(") == 4


def test_row_fails_below_its_target_and_on_a_problem() -> None:
    title = f"{OUR_INT8} vs {PEER_INT8}"
    assert Row(title, 1.2, 1.2).passed
    assert not Row(title, 1.19, 1.2).passed
    assert not Row(title, 2.0, 1.2, "wrong results").passed
    assert not Row(title, 2.0, None, "wrong results").passed


def test_figure_out_of_its_bound_fails() -> None:
    assert str(report.Row("r", 0.6, "ns", most=0.6)).endswith("<= 0.6  PASS")
    assert str(report.Row("r", 0.61, "ns", most=0.6)).endswith("<= 0.6  FAIL")
    assert str(report.Row("r", 2.9, "x", least=3)).endswith(">= 3  FAIL")
    unbounded = report.Row("r", 7.0, "x")
    assert unbounded.passed
    assert str(unbounded).endswith("7.000 x")


@pytest.mark.thorough
def test_training_steps_are_of_the_formats_that_rows_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step of each is taken; what posits of 16 bits may take is bounded."""
    called = training_steps.steps("mnist_mlp", {"float32": "float32", "own": "posit16_es1"})
    assert {*called} - {training_steps.TORCH} == {"float32", "own"}
    states: dict[str, Any] = {key: call() for key, call in called.items()}
    assert states["own"].step == states["float32"].step == training_steps.STEPS + 1
    times = {"float32": 1.0, "posit16_es1": 12.5, "bfloat16": 20.0}
    monkeypatch.setattr(training_steps, "medians", lambda *_: times)
    monkeypatch.setattr(training_steps, "steps", lambda _: {})
    (bounded, free) = training_steps.rows("mnist_mlp", Effort())
    assert not bounded.passed
    assert free.passed


def test_variants_are_claimed_against_the_default_and_float32() -> None:
    """NCHW4c at most 8 % slower, AVX2 at least 0.17 of the default and no slower than its float."""
    names = (variants.DEFAULT, variants.NCHW4C, variants.AVX2_INT8, variants.AVX2_FLOAT)

    def passed(*times: float) -> list[bool]:
        claims = variants.claims(dict(zip(names, times, strict=False)))
        return [Row(c.title, c.ratio, c.target).passed for c in claims]

    assert passed(20.0, 21.5, 110.0, 150.0) == [True, True, True]
    assert passed(20.0, 21.7, 110.0, 150.0) == [False, True, True]
    assert passed(20.0, 21.5, 118.0, 150.0) == [True, False, True]
    assert passed(20.0, 21.5, 110.0, 109.0) == [True, True, False]
    assert passed(20.0, 21.5) == [True]


@pytest.mark.thorough
def test_variants_are_compared_bit_for_bit() -> None:
    b = FunctionBuilder()
    x = b.param("x", (1, 8, 6, 6), "uint8")
    w = b.const(np.ones((8, 8, 3, 3), np.int8))
    y = b.call("nn.conv2d", x, w, padding=(1,) * 4, out_dtype="int32")
    mod = IRModule({"main": b.finish(y)})
    data = np.random.default_rng(0).integers(0, 256, (1, 8, 6, 6), np.uint8)
    claims, problem = variants.run(mod, mod, data, Effort(1, 1, 0, 0))
    assert problem == ""
    assert all(c.ratio > 0 for c in claims)


def test_peer_slower_on_more_threads_is_a_disturbance() -> None:
    alone = {PEER_INT8: 10.0, PEER_FLOAT: 20.0}
    assert disturbance({PEER_INT8: 6.0, PEER_FLOAT: 12.0}, alone) == ""
    assert PEER_INT8 in disturbance({PEER_INT8: 15.0, PEER_FLOAT: 12.0}, alone)
    assert disturbance({PEER_INT8: 15.0, PEER_FLOAT: 12.0}, {}) == ""


@pytest.mark.thorough
def test_operations_of_a_convolution_are_those_that_meet_data() -> None:
    """As many as the ones that a convolution of ones by ones adds up."""
    for shape in (s for some in shapes.SHAPES.values() for s in some):
        x = np.ones((1, 1, *shape.size), np.int32)
        b = FunctionBuilder()
        v = b.param("x", x.shape, "int32")
        w = b.const(np.ones((1, 1, *shape.kernel), np.int32))
        stride = (shape.stride,) * 2
        y = b.call("nn.conv2d", v, w, strides=stride, padding=shape.padding, out_dtype="int32")
        ones = compiler.build(IRModule({"main": b.finish(y)}))(x).sum()
        channels = shape.outputs * (shape.inputs // shape.groups)
        assert shape.operations == 2 * shape.batch * channels * ones
    same = convolutions.Shape(3, 64, 224, 7, 2)
    assert same.operations == shapes.Shape(3, 64, (224, 224), (7, 7), 2).operations


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", list(models.MODELS))
def test_inputs_repeat_and_differ(name: str) -> None:
    model = models.MODELS[name]
    a, b = model.inputs(2, seed=3)
    assert a.shape == b.shape == model.shape
    assert a.dtype == np.float32
    assert not np.array_equal(a, b)
    assert np.array_equal(a, model.inputs(1, seed=3)[0])


@pytest.mark.thorough
def test_light_model_is_filled_alike_by_other_instructions_and_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = zoo.light_source("squeezenet")
    if source is None:
        pytest.skip("this onnx package carries no light_squeezenet.onnx")
    x = models.MODELS["squeezenet"].inputs(1, seed=0)
    content = materialize(source, x)
    scores = compiler.build(compiler.from_onnx(content))(x[0]).reshape(-1)
    assert scores.sum() == pytest.approx(1, abs=1e-4)
    assert scores.std() > 1e-4  # the constant weights of the original give every class the same
    oldest = partial(compiler.build, target="llvm -mcpu=x86-64")
    if platform.machine() == "x86_64":
        monkeypatch.setattr(compiler, "build", oldest)
    assert content == materialize(source, x)


FILL = """
import hashlib, sys
from functools import partial
import compiler
import onnx
from experiments import zoo
compiler.build = partial(compiler.build, target="llvm -mcpu=x86-64")
for name in sys.argv[1:]:
    weights = onnx.load(zoo.find("light_" + name)).graph.initializer
    print(hashlib.sha256(b"".join(w.raw_data for w in weights)).hexdigest())
"""
WEIGHTS = {
    "squeezenet": "d917c4d8458f24c05b8617f60ea490f96eb28575827224475247ab3e40471061",
    "shufflenet": "01f564ff80aab1064b611f06da438b64cec30d5884176e94707c8da64aaf92d7",
    "inception_v2": "beaa06812d491f306ddb86d0971e617c93512cb2947f09b403e0d690c6afa9d9",
    "resnet50": "85d579a1cedc2b01350cd3c57e591cf8ee91fcb8700971aeb018d6e950a2581f",
}
"""SHA-256 of the weights of each light network, on every machine."""


@pytest.mark.slow
def test_weights_of_light_networks_are_the_same_on_every_machine(tmp_path: Path) -> None:
    """Here: without this machine's vector instructions, neither in our kernels nor in numpy's."""
    if platform.machine() != "x86_64":
        pytest.skip("only x86 lets numpy go without its vector instructions")
    if None in map(zoo.light_source, WEIGHTS):
        pytest.skip("this onnx package carries no light networks")
    found = np._core._multiarray_umath.__cpu_features__
    without = " ".join(f for f, on in found.items() if on and f[:3] in ("AVX", "FMA"))
    environment = os.environ | {
        models.FOLDER_VARIABLE: str(tmp_path),
        "NPY_DISABLE_CPU_FEATURES": without,
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FILL, *WEIGHTS],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert dict(zip(WEIGHTS, done.stdout.split(), strict=True)) == WEIGHTS


def test_missing_model_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.onnx"):
        models.locate("pp_ocrv4_rec", {"pp_ocrv4_rec": Path("nowhere.onnx")})
    with pytest.raises(ConfigError, match="resnet50"):
        models.locate("resnet51", {})


def test_startup_rows_fail_beyond_their_limits_and_when_outputs_differ() -> None:
    quick = Start(0.1, 9.0, 0.2, 0.05, 50.0, "same")
    assert quick.seconds == pytest.approx(0.35)  # without reading the model
    peer = replace(quick, grown_mib=60.0, output="another network's")

    def passed(cold: Start, warm: Start) -> list[bool]:
        return [row.passed for row in startup.rows([cold] * 3, [warm] * 3, [peer] * 3)]

    assert passed(quick, quick) == [True, True, True]
    assert passed(replace(quick, compiled=2.4), quick) == [False, True, True]
    assert passed(quick, replace(quick, compiled=0.3)) == [True, False, True]
    assert passed(quick, replace(quick, grown_mib=60.1)) == [True, True, False]
    assert passed(quick, replace(quick, output="wrong")) == [False, False, False]


@pytest.mark.thorough
def test_a_process_tells_what_its_first_output_took(tmp_path: Path) -> None:
    b = FunctionBuilder()
    x = b.param("x", (2, 3))
    y = b.call("nn.dense", x, b.const(np.full((4, 3), 2, np.float32)))
    mod = IRModule({"main": b.finish(y)})
    text, data = tmp_path / "module.txt", tmp_path / "x.npy"
    text.write_text(mod.astext(show_meta_data=True))
    np.save(data, np.ones((2, 3), np.float32))
    done = subprocess.run(
        [sys.executable, "-m", "experiments.benchmarks.first_output", "ours", text, data],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    start = Start.from_json(done.stdout)
    assert min(start.imports, start.read, start.compiled, start.ran, start.grown_mib) > 0
    assert start.output == hashlib.sha256(np.full((2, 4), 6, np.float32).tobytes()).hexdigest()


def test_transformers_say_how_near_the_peak_they_come() -> None:
    """5 ms at the peak: a half of our time, a quarter of the better int8 peer's."""
    times = dict.fromkeys(transformers.PEER_INT8, 25.0) | {transformers.PEER_INT8[0]: 20.0}
    text = transformers._limit("peak int8", "dot", 5.0, {**times, transformers.OUR_INT8: 10.0})
    assert text.startswith("of the peak (dot): int8 50 %, ")
    assert text.endswith(f"{transformers.PEER_INT8[0]} 25 %; ratio at the peak 4.00")
