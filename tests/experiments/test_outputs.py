"""Outputs of the verbs: none replaces an input, and a standard output that cannot be written is no
traceback."""

import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from special_files import state, workplace

from experiments.cli.main import run_command
from experiments.spec import cells, specification

SAME = (
    "run net.onnx --input x.npz --output net.onnx",
    "run net.onnx --input x.npz --output x.npz",
    "quantize net.onnx --calib x.npz -o net.onnx",
    "quantize net.onnx --calib x.npz -o x.npz",
    "quantize net.onnx --calib x.npz --config c.toml -o q.onnx --plan c.toml",
    "quantize net.onnx --calib x.npz -o q.onnx --plan q.onnx",
    "compare net.onnx --input x.npz --plan p.json --csv p.json",
    "compare net.onnx --input x.npz --plan p.json --picture x.npz",
    "compare net.onnx --input x.npz --plan p.json --csv a --picture ./a",
    "tune net.onnx -o net.onnx",
    "tune net.onnx --calib x.npz -o x.npz",
    "sweep s.toml -o s.toml --resume",
    "sweep s.toml -o data.npz --resume",
    "sweep s.toml -o net.onnx --retry-failed",
    "table r.csv --export r.csv",
    "table r.csv --compare r.csv --export r.csv",
    "report r.csv -o r.csv",
)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("how", ["itself", "a hard link", "a link"])
def test_no_input_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    monkeypatch.chdir(tmp_path)
    workplace(tmp_path)
    for line in SAME:
        words = shlex.split(line)
        out = tmp_path / words[-1 if words[-1][:2] != "--" else -2]
        other = tmp_path / f"other{out.suffix}"
        if how != "itself" and out.exists():
            other.hardlink_to(out) if how == "a hard link" else other.symlink_to(out.name)
            words = [other.name if w == out.name and k > 2 else w for k, w in enumerate(words)]
            words = [w for w in words if w != other.name or words.count(w) == 1] or words
        before = state(tmp_path)
        code = run_command(shlex.split(line) if how == "itself" else words)
        said = capsys.readouterr().err
        assert code == 2, f"{line}: {said}"
        if how == "itself":
            assert "it would be lost" in said or "two outputs are one file" in said, said
        assert state(tmp_path) == before, line
        other.unlink(missing_ok=True)


def test_output_files_of_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """numpy adds a suffix to names that have another one: they were empty files."""
    monkeypatch.chdir(tmp_path)
    workplace(tmp_path)
    (tmp_path / "link").symlink_to("behind")
    for name in ("y", "y.dat", "link"):
        assert run_command(["run", "net.onnx", "--input", "x.npz", "--output", name]) == 0
        with np.load(name) as found:
            assert found["y"].shape == (2, 3)
    assert (tmp_path / "link").is_symlink()
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_a_sweep_names_the_files_that_it_is_made_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    workplace(tmp_path)
    spec: cells.SweepSpec = specification.load_spec("s.toml")
    assert {Path(f).name for f in spec.files} >= {"s.toml", "net.onnx", "data.npz"}


def command(line: str, folder: Path, **streams: object) -> subprocess.CompletedProcess[str]:
    """`dtypelab` as a process."""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    run = [sys.executable, "-m", "experiments.cli", *shlex.split(line)]
    return subprocess.run(run, cwd=folder, env=env, timeout=120, text=True, check=False, **streams)  # type: ignore[call-overload,no-any-return]


@pytest.mark.thorough
def test_a_standard_output_that_cannot_be_written(tmp_path: Path) -> None:
    full = tmp_path / "full"
    try:
        os.mknod(full, 0o666 | stat.S_IFCHR, os.makedev(1, 7))
        full.open("wb").close()
    except OSError:
        pytest.skip("device nodes cannot be made here")
    line = "dtype list"
    with full.open("wb") as out:
        done = command(line, tmp_path, stdout=out, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr == "dtypelab: cannot write the output: No space left on device\n"
    with full.open("wb") as out:
        assert command(line, tmp_path, stdout=out, stderr=out).returncode == 2
    reading, writing = os.pipe()
    os.close(reading)
    done = command(line, tmp_path, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert done.stderr == ""
    shell = f"{shlex.quote(sys.executable)} -m experiments.cli"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    for closed in (">&-", "2>&-", "<&-", ">&- 2>&- <&-"):
        out = tmp_path / "mlp.onnx"
        text = f"{shell} zoo mnist_mlp -o {out.name} {closed}"
        run = subprocess.run(
            ["sh", "-c", text], cwd=tmp_path, env=env, timeout=120, capture_output=True, check=False
        )
        assert run.returncode == 0, run.stderr
        assert b"Traceback" not in run.stderr
        assert out.stat().st_size > 10_000
        assert b"mnist_mlp, " not in out.read_bytes()
        out.unlink()


@pytest.mark.thorough
def test_an_output_onto_the_standard_output(tmp_path: Path) -> None:
    """/dev/stdout stays what it is, and gets the whole."""
    path = tmp_path / "all"
    with path.open("wb") as out:
        done = command("zoo mnist_mlp -o /proc/self/fd/1", tmp_path, stdout=out)
    assert done.returncode == 0
    known = (Path(__file__).parents[2] / "experiments" / "zoo" / "mnist_mlp.onnx").read_bytes()
    assert path.read_bytes().startswith(known)
