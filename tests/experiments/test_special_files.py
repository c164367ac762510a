"""Devices, FIFOs, sockets, links, bombs and garbage as every argument of every verb that is a path:
no internal error, no hang, nothing destroyed."""

import random
import shlex
from pathlib import Path

import pytest
from special_files import COMMANDS, KINDS, state, time_limit, workplace

from compiler.files import writing
from experiments.cli.main import run_command

PLAIN = {"link to text", "empty", "zeros", "no text", "deep", "brackets", "digits", "one line",
         "sparse", "bomb", "link to nothing"}  # fmt: skip
"""Those that an output may replace: they are files, or nothing yet."""
OUTPUTS = {"q.onnx", "new.csv", "new.html", "t.jsonl"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(writing, "PATIENCE", 0.1)
    workplace(tmp_path)
    return tmp_path


def is_output(command: str) -> bool:
    """Whether the path is one that the command writes."""
    words = command.split()
    option = words[next(k for k, word in enumerate(words) if "@" in word) - 1]
    written = {"-o", "--output", "--graph", "--csv", "--picture", "--export", "--plot"}
    return option in written or (option == "--plan" and words[0] == "quantize")


def check(command: str, kind: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run a command with one path replaced; clean up what it made."""
    place = folder / next(p for p in shlex.split(command) if "@" in p).replace("@", "special")
    try:
        KINDS[kind](place)
    except PermissionError:
        pytest.skip("device nodes cannot be made here")
    before = state(folder)
    try:
        with time_limit(30):
            code = run_command(shlex.split(command.replace("@", "special")))
        said = capsys.readouterr()
        what = f"{command} with {kind}: {said.err}"
        assert code in (0, 2), what
        assert "internal error" not in said.err, what
        assert code == 0 or (said.err.startswith("dtypelab: ") and said.err.count("\n") == 1), what
        after = state(folder)
        free = {*OUTPUTS}
        if kind in PLAIN and is_output(command):
            free |= {place.name, "nothing", f"behind{place.suffix}"}
        for name, was in before.items():
            if name not in free:
                assert after.get(name) == was, f"{what} changed {name}"
        extra = {n for n in after.keys() - before.keys() if n not in free}
        assert not {n for n in extra if not n.endswith(".layers.csv")}, f"{what} left {extra}"
        if kind.startswith("link"):
            assert place.is_symlink(), f"{what} replaced a link"
    finally:
        for name in {*state(folder)} - {*before} | {place.name, f"behind{place.suffix}"}:
            path = folder / name
            if path.is_symlink() or path.exists():
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def test_a_sample(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every kind and every argument once."""
    rng = random.Random(0)
    kinds = [*KINDS] * 2
    rng.shuffle(kinds)
    for command, kind in zip(COMMANDS, kinds, strict=False):
        check(command, kind, folder, capsys)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_every_argument(kind: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS:
        check(command, kind, folder, capsys)
