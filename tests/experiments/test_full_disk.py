"""A disk that is full at any byte: one sentence that names the file, and nothing half-written.

A limit of the size of files stands for it: writing fails at that byte in the same way.
"""

from __future__ import annotations

import contextlib
import io
import resource
import sys
from pathlib import Path

import numpy as np
import pytest

import experiments
from compiler.errors import ConfigError
from experiments.cli.main import run_command
from experiments.results.store import COLUMNS, read_rows
from experiments.user_code import isolation

#: What writes -> its arguments, in which {o} is the file that it writes and {i} a folder of inputs.
VERBS = {
    "run": "run mnist_mlp --input {i}/x.npz --output {o}.npz",
    "quantize": "quantize mnist_mlp --calib {i}/x.npz -o {o}.onnx",
    "plan": "quantize mnist_mlp --calib {i}/x.npz -o {i}/q.onnx --plan {o}.json",
    "zoo": "zoo mnist_mlp -o {o}.onnx",
    "report": "report {i}/r.csv -o {o}.html",
    "table": "table {i}/r.csv --export {o}.csv",
    "tex": "table {i}/r.csv --export {o}.tex",
    "parquet": "table {i}/r.csv --export {o}.parquet",
    "compare": "compare mnist_mlp --input {i}/x.npz --images 1 --dtype bfloat16 --csv {o}.csv",
    "inspect": "inspect mnist_mlp --graph {o}.svg",
}
FIRST_TIER = ("table",)


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: None) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    np.savez(folder / "x.npz", x=np.zeros((2, 1, 28, 28), np.float32))
    asked = {"models": ["mnist_mlp"], "schemes": ["float32", "bfloat16"], "n_eval": 20}
    experiments.sweep({**asked, "latency": {"runs": 0}}, folder / "r.csv")
    monkeypatch.undo()
    return folder


def limit(most: int) -> None:
    """Give no file of this process more than `most` bytes. Nor does it write bytecode, which Python
    leaves cut off and other processes would trip over."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    sys.dont_write_bytecode = True


def run_full(arguments: list[str], most: int) -> tuple[int, str]:
    """The exit code and stderr of a command where no file may have more than `most` bytes."""

    def limited() -> tuple[int, str]:
        limit(most)
        said, shown = io.StringIO(), io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(shown):
            code = run_command(arguments)
        return code, said.getvalue()

    return isolation.call(limited)


def whole(verb: str, inputs: Path, out: Path, most: int) -> int:
    """Write where there is no room, onto nothing and onto a file; gives what it would have been."""
    names = VERBS[verb].format(i=inputs, o=out / "made").split()
    target = next(Path(name) for name in names if name.startswith(str(out)))
    before = {file.name for file in inputs.iterdir()}
    for earlier in (None, b"what stood there"):
        if earlier is not None:
            target.write_bytes(earlier)
        code, said = run_full(names, most)
        assert code == 2, said
        assert said.startswith("dtypelab: ")
        assert said.count("\n") == 1
        assert f"/{target.name}:" in said or (verb == "plan" and "/q.onnx:" in said)
        assert [f.name for f in out.iterdir()] == [target.name] * (earlier is not None)
        if earlier is not None:
            assert target.read_bytes() == earlier
        assert {file.name for file in inputs.iterdir()} - before <= {"q.onnx"}
    assert run_full(names, resource.RLIM_INFINITY)[0] == 0
    return target.stat().st_size


@pytest.mark.parametrize(
    "verb", [v if v in FIRST_TIER else pytest.param(v, marks=pytest.mark.thorough) for v in VERBS]
)
def test_outputs_are_whole_or_absent_on_a_full_disk(
    verb: str, inputs: Path, tmp_path: Path
) -> None:
    if verb == "parquet":
        pytest.importorskip("pyarrow")
    out = tmp_path / "out"
    out.mkdir()
    size = whole(verb, inputs, out, 20)
    if verb not in FIRST_TIER:
        (out / next(out.iterdir()).name).unlink()
        whole(verb, inputs, out, size - 1)


@pytest.mark.usefixtures("fake")
@pytest.mark.sampled(4)
@pytest.mark.parametrize("room", [0, 20, 1200, 3000])
def test_a_sweep_on_a_full_disk_keeps_whole_rows_and_goes_on_later(
    room: int, tmp_path: Path
) -> None:
    out = tmp_path / "r.csv"
    (tmp_path / "s.toml").write_text(
        'models = ["mnist_mlp"]\nschemes = ["float32", "bfloat16", "int8_tensor"]\n'
        "n_eval = 20\nn_calib = 20\nlatency.runs = 0\nlayers.images = 1\n"
    )
    arguments = ["sweep", str(tmp_path / "s.toml"), "-o", str(out), "--resume"]
    code, said = run_full(arguments, room)
    assert code == 2, said
    assert said.count("\n") == 1
    assert f"{tmp_path}/r." in said
    assert {f.name for f in tmp_path.iterdir()} <= {"s.toml", "r.csv", "r.layers.csv"}
    rows = out.read_bytes() if out.exists() else b""
    assert rows == b"" or len(rows.splitlines()) > 1  # a row, or no file at all
    assert out.exists() or not (tmp_path / "r.layers.csv").exists()
    assert run_full(arguments, resource.RLIM_INFINITY)[0] == 0
    assert out.read_bytes().startswith(rows[: rows.rfind(b"\n") + 1])
    assert read_rows(out)["status"].tolist() == ["ok"] * 3


@pytest.mark.usefixtures("fake")
@pytest.mark.sampled(6)
@pytest.mark.parametrize("before", [0, 20, -1])
@pytest.mark.parametrize("room", [0, 30, 1000])
def test_a_file_that_was_there_stays_as_it_was(before: int, room: int, tmp_path: Path) -> None:
    """One that is empty, that a killed sweep left in its header, or that has no rows yet."""
    out = tmp_path / "r.csv"
    stood = ",".join(COLUMNS).encode() + b"\n"
    stood = stood if before < 0 else stood[:before]
    out.write_bytes(stood)
    asked = {"models": ["mnist_mlp"], "schemes": ["float32"], "n_eval": 20}

    def limited() -> None:
        limit(room)
        experiments.sweep({**asked, "latency": {"runs": 0}}, out, resume=True)

    with pytest.raises(ConfigError, match=r"r\.csv: "):
        isolation.call(limited)
    whole = ",".join(COLUMNS).encode() + b"\n"
    assert out.read_bytes() in (stood, whole)
    assert [f.name for f in tmp_path.iterdir()] == ["r.csv"]
