"""Trainings from a specification: rows, curves, checkpoints, kills, and what is refused."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
import tomli_w
from tiny_training import tiny_examples, tiny_files

import compiler
import experiments
from compiler.errors import ConfigError
from experiments.cli.main import run_command
from experiments.layers.curves import curves_path, read_curves
from experiments.layers.training_summary import summaries
from experiments.layers.trainings import RUN_COLUMNS
from experiments.training.checkpoints import Checkpoint, State
from experiments.training.loop import Pace, train_run
from experiments.training.loss_scale import LossScale, ScaleState
from experiments.training.network import found_weights
from experiments.training.schedules import Schedule
from experiments.training.spec import load_training
from experiments.training.training import checkpoints_path

FORMATS = ["float32", "posit16_es1"]
WITH_RANDOM = pytest.mark.parametrize("fmt", [
    "float32", pytest.param("bfloat16_stochastic", marks=pytest.mark.thorough)
])  # fmt: skip


def test_weights_are_found_beside_products_of_an_unknown_size() -> None:
    text = """<ir_version: 9, opset_import: ["": 18]>
        products (float[N, 4, 3] x) => (float[N, 3] y)
        <float[3, 3] w = {1, 0, 0, 0, 1, 0, 0, 0, 1}, int64[1] axes = {1}> {
            t = Transpose <perm = [0, 2, 1]> (x)
            p = MatMul(t, x)
            r = ReduceMean <keepdims = 0> (p, axes)
            y = MatMul(r, w)
        }"""
    mod = compiler.from_onnx(onnx.parser.parse_model(text).SerializeToString())
    found = [p for _, p in found_weights(mod.main).values()]
    assert [(p.name, p.fan_in) for p in found] == [("y.weight", 3)]


@pytest.mark.thorough
def test_a_row_and_a_curve_for_each_run(tmp_path: Path) -> None:
    spec, out = tiny_files(tmp_path) | {"epochs": 4}, tmp_path / "x.csv"
    rows = experiments.train(spec | {"seeds": [0, 1]}, out)
    assert (*rows.columns,) == RUN_COLUMNS
    assert list(rows["seed"]) == [0, 1]
    assert set(rows["status"]) == {"ok"}
    assert (rows["metric"] > 0.6).all()
    assert (rows["steps"] == 24).all()
    curves = read_curves(curves_path(out))
    for row in rows.to_dict("records"):
        points = curves[curves["config_hash"] == row["config_hash"]]
        assert list(points["step"]) == [6, 10, 12, 18, 20, 24]
        assert points["metric"].notna().sum() == 4
        assert points["metric"].iloc[-1] == row["metric"]
        assert points["loss"].iloc[-1] < points["loss"].iloc[0]
    again = experiments.train(spec | {"seeds": [0, 1]}, out, resume=True)
    assert again.equals(rows)


@pytest.mark.thorough
@WITH_RANDOM
def test_seeds_decide_everything_and_threads_nothing(tmp_path: Path, fmt: str) -> None:
    spec = tiny_files(tmp_path) | {"formats": [fmt]}
    found = [
        experiments.train(spec | {"seeds": [seed], "threads": threads}, tmp_path / f"{k}.csv")
        for k, (seed, threads) in enumerate([(0, 1), (0, 2), (1, 1)])
    ]
    weights = [rows["weights_sha256"].iloc[0] for rows in found]
    assert weights[0] == weights[1] != weights[2]


@WITH_RANDOM
def test_training_goes_on_from_any_checkpoint_to_the_same_bits(tmp_path: Path, fmt: str) -> None:
    change = {"optimizer": {"name": "adam"}, "formats": [{"forward": "float32", "update": fmt}]}
    spec = load_training(tiny_files(tmp_path) | change)
    (run,), pace = spec.runs, Pace(1, 10, 1)
    whole = train_run(run, spec.data, pace, None, lambda *_: None)

    class Stopped(Exception):
        pass

    for stop in (1, 7, run.steps - 1):
        kept = Checkpoint(tmp_path / f"{stop}.npz", run.config_hash)

        def tell(what: str, done: int, total: int, stop: int = stop) -> None:
            if done == stop:
                raise Stopped

        with pytest.raises(Stopped):
            train_run(run, spec.data, pace, kept, tell)
        state = kept.load()
        assert state is not None
        assert state.step == stop
        rest = train_run(run, spec.data, pace, kept, lambda *_: None)
        assert rest.weights_sha256 == whole.weights_sha256
        assert rest.state.curve == whole.state.curve


def last_written(folder: Path) -> int:
    """When the newest checkpoint was written, in nanoseconds; 0 if there is none."""
    return max((f.stat().st_mtime_ns for f in folder.glob("[!.]*.npz")), default=0)


def has_written(process: subprocess.Popen[bytes], folder: Path, times: int) -> bool:
    """Wait until a training was seen to write checkpoints so often; False: it ended before."""
    before = last_written(folder)
    while process.poll() is None:
        now = last_written(folder)
        if now != before:
            before, times = now, times - 1
            if times == 0:
                return True
        time.sleep(0.001)
    return False


def killed_until_done(folder: Path, headway: Sequence[int]) -> int:
    """Run `dtypelab train` again and again, killed after some checkpoints; how often it was."""
    command = [sys.executable, "-m", "experiments.cli", "train", "t.toml", "-o", "x.csv"]
    checkpoints = checkpoints_path(folder / "x.csv")
    for count in range(len(headway) + 1):
        process = subprocess.Popen([*command, "--resume"], cwd=folder, stderr=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL)  # fmt: skip
        if count == len(headway) or not has_written(process, checkpoints, headway[count]):
            break
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert process.wait(600) == 0
    return count


@pytest.mark.parametrize(("kills", "fmt"), [
    pytest.param(3, "float32", marks=pytest.mark.thorough),
    *(pytest.param(20, f, marks=pytest.mark.slow) for f in ("float32", "bfloat16_stochastic")),
])  # fmt: skip
def test_killed_trainings_end_in_the_same_bytes(tmp_path: Path, kills: int, fmt: str) -> None:
    spec = tiny_files(tmp_path) | {"epochs": 40 * kills, "checkpoint_steps": 5}
    spec["formats"] = [{"forward": "float32", "update": fmt}]
    rows = experiments.train(spec, tmp_path / "whole.csv")
    (tmp_path / "t.toml").write_text(tomli_w.dumps(spec))
    chance = random.Random(0)
    # An epoch has six steps: 48 checkpoints a kill, of which these are a few.
    assert killed_until_done(tmp_path, [chance.randint(1, 9) for _ in range(kills)]) == kills
    (name,) = [p.name for p in checkpoints_path(tmp_path / "whole.csv").iterdir()]
    found = [Checkpoint(checkpoints_path(tmp_path / f) / name, name.removesuffix(".npz")).load()
             for f in ("whole.csv", "x.csv")]  # fmt: skip
    whole, killed = (s for s in found if s is not None)
    assert killed.arrays.keys() == whole.arrays.keys()
    assert all(killed.arrays[n].tobytes() == a.tobytes() for n, a in whole.arrays.items())
    assert killed.curve == whole.curve
    assert list(experiments.train(spec, tmp_path / "x.csv", resume=True)["weights_sha256"]) == list(
        rows["weights_sha256"]
    )


def test_checkpoints_are_read_as_they_were_written(tmp_path: Path) -> None:
    kept = Checkpoint(tmp_path / "c.npz", "hash")
    assert kept.load() is None
    state = State({"a/b.weight": np.arange(3, dtype=np.float32)}, ScaleState(2.0, 1, 3), 7, (0.1,))
    kept.save(state)
    found = kept.load()
    assert found is not None
    assert found.arrays["a/b.weight"].tolist() == [0, 1, 2]
    assert (found.scale, found.step, found.losses) == (state.scale, 7, (0.1,))
    with pytest.raises(ConfigError, match="another training"):
        Checkpoint(tmp_path / "c.npz", "other").load()
    (tmp_path / "c.npz").write_bytes(b"half")
    with pytest.raises(ConfigError, match="is not an"):
        kept.load()


def test_schedules() -> None:
    cosine = Schedule("cosine", 1.0, warmup=4)
    assert [cosine.at(k, 12) for k in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert cosine.at(8, 12) == pytest.approx(0.5)
    assert cosine.at(11, 12) < 0.05
    step = Schedule("step", 1.0, milestones=(0.5, 0.75))
    assert [step.at(k, 8) for k in (0, 3, 4, 6)] == pytest.approx([1, 1, 0.1, 0.01])
    assert Schedule(rate=0.3).at(5, 10) == 0.3


def test_a_dynamic_scale_halves_and_doubles() -> None:
    rule, state = LossScale(8.0, dynamic=True, interval=2), ScaleState(8.0)
    values = []
    for finite in (True, True, False, True, True):
        state = state.after(rule, finite)
        values.append(state.value)
    assert values == [8, 16, 8, 8, 16]
    assert state.skipped == 1


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"formats": ["bfloat61"]}, "bfloat61.*did you mean"),
    ({"formats": [{"backward": "bfloat16"}]}, 'the key "forward" is missing'),
    ({"formats": [{"forward": "bfloat16", "updates": "float32"}]}, "did you mean 'update'"),
    ({"formats": [{"forward": "bfloat16", "rounding": "random"}]}, "unknown rounding 'random'"),
    ({"formats": [{"forward": "bfloat16", "rounding": {"up": "nearest"}}]}, "mean 'update'"),
    (
        {"formats": [{"forward": "bfloat16", "rounding": {"update": "stochastic"}}]},
        "float32 rounds",
    ),
    ({"formats": [{"forward": "bfloat16", "rounding": 1}]}, "rounding is a name, or a table"),
    ({"formats": ["posit32_es2"]}, "weights go from step to step in float32"),
    ({"formats": [{"format": "bfloat16", "accumulate": "exactly"}]}, "exactly"),
    ({"optimizer": {"name": "adamm"}}, "did you mean 'adam"),
    ({"optimizer": {"momentum": 1.5}}, "momentum must be from 0 to below 1"),
    ({"schedule": {"name": "cosin"}}, "did you mean 'cosine'"),
    ({"loss_scale": {"value": 3.0}}, "a power of two"),
    ({"initial": "zeros"}, 'initial must be "random" or "model"'),
    ({"batch": 4000}, "a batch of 4000 is more than the 48 examples"),
    ({"n_train": 4000}, "n_train is 4000, but there are 48 examples"),
    ({"dataset": "mnist"}, "did you mean 'mnist5k'"),
    ({"models": ["mnist_mpl"]}, "did you mean 'mnist_mlp'"),
    ({"epoch": 3}, "did you mean 'epochs'"),
    ({"rates": [0.1, -1]}, "rates are numbers above 0"),
    ({"rates": [1e30]}, "rates are numbers above 0 and below 1e9"),
    ({"seeds": []}, "seeds is empty; list at least one"),
    ({"formats": []}, "formats is empty; list at least one"),
]


@pytest.mark.parametrize(("change", "said"), WRONG, ids=[next(iter(c)) for c, _ in WRONG])
def test_mistakes_are_a_sentence(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        load_training(tiny_files(tmp_path) | change)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec, out = tiny_files(tmp_path), tmp_path / "x.csv"
    (tmp_path / "t.toml").write_text(tomli_w.dumps(spec))
    line = ["train", str(tmp_path / "t.toml"), "-o", str(out)]
    assert run_command([*line, "--set", "epochs=1"]) == 0
    assert "tiny   float32  0.05" in capsys.readouterr().out
    assert run_command([*line, "--set", "epochs=1"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert run_command([*line, "--resume", "--json", "--set", "epochs=1"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 1
    assert run_command([*line, "--set", 'formats=["bfloat61"]']) == 2
    said = capsys.readouterr().err
    assert "did you mean" in said
    assert len(said.strip().splitlines()) == 1


def test_runs_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.toml").write_text(tomli_w.dumps(tiny_files(tmp_path) | {"seeds": [0, 1]}))
    assert run_command(["train", str(tmp_path / "t.toml"), "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "tiny float32 seed 1, rate 0.05, loss x 1" in shown
    assert "2 runs of 24 steps together" in shown
    assert run_command(["train", str(tmp_path / "t.toml"), "--dry-run", "--json"]) == 0
    assert [r["steps"] for r in json.loads(capsys.readouterr().out)["runs"]] == [12, 12]
    assert run_command(["train", str(tmp_path / "t.toml")]) == 2
    assert "name the results" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.csv"))


OWN_FORMAT = """import datatypes
datatypes.define("of_nine", exponent=5, mantissa=3)
"""


@pytest.mark.thorough
def test_adapters_bring_formats(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(OWN_FORMAT)
    formats = [{"forward": "float32", "update": "of_nine"}]
    spec = tiny_files(tmp_path) | {"adapters": [str(own)], "formats": formats, "epochs": 1}
    rows = experiments.train(spec, tmp_path / "x.csv")
    assert list(rows["update"]) == ["of_nine"]
    assert list(rows["status"]) == ["ok"]
    own.write_text(OWN_FORMAT + "# changed")
    assert load_training(spec).runs[0].config_hash != rows["config_hash"].iloc[0]
    with pytest.raises(ConfigError, match=r"none\.py"):
        load_training(spec | {"adapters": ["none.py"]})


@pytest.mark.thorough
def test_runs_are_a_page_and_a_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec, out = tiny_files(tmp_path), tmp_path / "x.csv"
    rows = experiments.train(spec | {"seeds": [0, 1], "formats": ["float32", "bfloat16"]}, out)
    plain, short = summaries(rows)
    assert (plain.lost, plain.low, plain.high) == (0, 0, 0)
    assert not plain.differs
    differences = rows["metric"][:2].to_numpy() - rows["metric"][2:].to_numpy()
    assert short.lost == pytest.approx(differences.mean())
    half = 12.706 * differences.std(ddof=1) / 2**0.5  # Student's t with one degree of freedom
    assert short.high - short.lost == pytest.approx(half, abs=1e-4)
    page = tmp_path / "x.html"
    assert run_command(["report", str(out), "-o", str(page)]) == 0
    text = page.read_text()
    assert text.count("<polyline") == 2
    assert text.count("bfloat16") >= 2
    assert "http" not in text
    assert run_command(["report", str(out), "-o", str(page), "--against", str(out)]) == 2
    assert "runs of training" in capsys.readouterr().err


def test_other_meanings_have_other_hashes(tmp_path: Path) -> None:
    spec = tiny_files(tmp_path)
    changes: list[dict[str, Any]] = [
        {}, {"epochs": 3}, {"batch": 4}, {"seeds": [1]}, {"formats": ["bfloat16"]},
        {"formats": [{"forward": "bfloat16"}]}, {"clip_norm": 1.0}, {"rates": [0.1]},
        {"optimizer": {"name": "adam"}}, {"loss_scale": {"value": 2.0}}, {"initial": "model"},
        {"n_train": 40}, {"n_test": 20},
    ]  # fmt: skip
    hashes = [load_training(spec | c).runs[0].config_hash for c in changes]
    assert len({*hashes}) == len(changes)
    same = load_training(spec | {"threads": 2, "checkpoint_steps": 9}).runs[0].config_hash
    assert same == hashes[0]


def test_labels_that_have_no_score(tmp_path: Path) -> None:
    spec = tiny_files(tmp_path)
    x, y = tiny_examples(16)
    np.savez(tmp_path / "tiny.npz", x=x, y=y + 5, x_test=x, y_test=y)
    with pytest.raises(ConfigError, match="the model has 3 scores"):
        experiments.train(spec, tmp_path / "x.csv")
    assert not list(tmp_path.glob("x*.csv"))
