"""What README shows is what happens: its examples run, its commands exist."""

import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from experiments.store import read_results
from experiments.table import results_table

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
CONSOLE = re.findall(r"^\$ dtypelab (.*)$", README, re.MULTILINE)


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=600
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("readme")


def test_the_table_is_that_of_the_recorded_results() -> None:
    rows = read_results(ROOT / "results" / "quickstart.csv")
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(results_table(rows))
    table = "\n".join(line.rstrip() for line in console.export_text().splitlines())
    assert table in README


def test_there_are_nine_examples_in_five_sections() -> None:
    assert len(PYTHON) == 9
    assert len(re.findall(r"^### \d", README, re.MULTILINE)) == 5


@pytest.mark.parametrize("k", range(9))
def test_python_examples(k: int, tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(PYTHON[k])
    done = run(tmp_path, "-W", "error", "example.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_console_examples(folder: Path) -> None:
    (folder / "study.toml").write_text(
        re.search(r'write_text\("""\n(.*?)"""', README, re.DOTALL).group(1)  # type: ignore[union-attr]
    )
    assert len(CONSOLE) >= 4
    for line in CONSOLE:
        done = run(folder, "-m", "experiments.cli", *shlex.split(line))
        assert done.returncode == 0, (line, done.stderr)
        assert done.stdout


def test_the_custom_datatype_is_quoted_whole_and_short() -> None:
    source = (ROOT / "experiments" / "examples" / "custom_datatype.py").read_text()
    assert PYTHON[2] == source
    assert len(source.rstrip().splitlines()) <= 40


def test_a_described_format_takes_eight_lines() -> None:
    before, _, _ = PYTHON[1].partition("network =")
    lines = [line for line in before.splitlines() if line and "import" not in line]
    assert before.count("datatypes.define") == 2
    assert len(lines) <= 8


def test_the_cost_of_an_approximate_multiplier_is_as_shown(folder: Path) -> None:
    """Every figure but the time, which is this machine's."""
    table = re.search(r"```text\n( +scheme .*?)```", README, re.DOTALL)
    assert table
    example = ROOT / "experiments" / "examples" / "approximate_multiplier.py"
    done = run(folder, "-W", "error", str(example))
    assert done.returncode == 0, done.stderr
    shown, printed = (
        [line.split()[:-1] for line in text.splitlines()] for text in (table[1], done.stdout)
    )
    assert len(shown) == 6
    assert shown == printed


def test_commands_make_their_own_environment() -> None:
    for name in ("quickstart", "test"):
        block = re.search(rf"<!-- command: {name} -->\n```bash\n(.*?)\n```", README, re.DOTALL)
        assert block
        command = block[1]
        assert "\n" not in command
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install")


def test_the_folders_named_are_the_folders_there_are() -> None:
    named = set(re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE))
    assert named == {"compiler", "quantize", "datatypes", "experiments", "results"}
    assert all((ROOT / n).is_dir() for n in named)
