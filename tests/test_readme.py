"""What README and the READMEs of the folders show is what happens."""

from __future__ import annotations

import importlib.util
import io
import re
import shlex
from pathlib import Path

import click
import documents
import pytest
from rich.console import Console

from experiments.cli.main import cli
from experiments.results.store import read_rows
from experiments.results.terminal import results_table

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
FILES = [
    "README.md",
    *(f"{n}/README.md" for n in ("compiler", "datatypes", "experiments", "quantize")),
]
#: The two commands, which continuous integration runs, and the table above them.
TOP = README[: README.index("<!-- results -->")] + README[README.index("## An hour") :]
SECTIONS = [
    (file, section)
    for file in FILES
    for section in documents.sections(TOP if file == "README.md" else (ROOT / file).read_text())
]


#: Sections whose commands take long; what they show of the tool, others show in short.
LONG = (
    "An hour", "3. Give", "An accelerator", "An approximate", "Formats of your own", "Few bits",
    "Decoders", "Modules of torch", "torch.compile", "In torch's flow",
    "6. Judge", "7. Choose", "8. Train", "Algebraic", "Choices for some", "Numbers of a format",
    "Several devices", "Sweeps", "Training",
)  # fmt: skip
#: What needs a package that only an extra installs.
NEEDS_TORCH = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)


NEEDS_ZIG = pytest.mark.skipif(
    importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed"
)
NEEDS_TORCHAO = pytest.mark.skipif(
    importlib.util.find_spec("torchao") is None, reason="torchao is not installed"
)


def marks(heading: str) -> list[pytest.MarkDecorator]:
    """Marks of the test of a section."""
    needs = [NEEDS_TORCH] if "torch" in heading else []
    needs += [NEEDS_TORCHAO] if heading == "In torch's flow" else []
    needs += [NEEDS_ZIG] if heading == "A page that runs a network" else []
    return needs + ([pytest.mark.thorough] if heading.startswith(LONG) else [])


@pytest.mark.parametrize(
    "section",
    [
        pytest.param(
            section,
            id=f"{file}: {section.heading}",
            marks=marks(section.heading),
        )
        for file, section in SECTIONS
    ],
)
def test_programs_and_commands_print_what_is_shown(
    section: documents.Section, tmp_path: Path
) -> None:
    for what, shown, printed in documents.run(section, tmp_path):
        if shown:
            wanted, got = documents.plain(shown), documents.plain(printed)
            assert documents.matches(shown, printed), f"{what}\nshown:\n{wanted}\nprinted:\n{got}"


def test_nothing_that_differs_is_taken_for_what_is_shown() -> None:
    shown = "net  99.00  +0.00  0.166  1.20x  ok\n...\nlast 5\n"
    assert documents.matches(shown, "net 99.00 +0.00 0.3 1.2x ok\nlast 5\n") is False
    assert documents.matches(shown, "net 99.00 +0.00 0.300 1.90x* ok\na\nb\n\nlast 5\n* noise\n")
    for wrong in ("net 99.10", "net 99.00 +0.10"):
        assert not documents.matches(shown, f"{wrong} +0.00 0.300 1.90x ok\nlast 5\n")
    assert not documents.matches(shown, "net 99.00 +0.00 0.166 1.20x error\nlast 5\n")
    assert not documents.matches(shown, "net 99.00 +0.00 0.166 1.20x ok\nlast 6\n")
    assert not documents.matches(shown, "more\nnet 99.00 +0.00 0.166 1.20x ok\nlast 5\n")


def test_the_table_is_that_of_the_recorded_results() -> None:
    rows = read_rows(ROOT / "results" / "quickstart.csv")
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(results_table(rows))
    table = "\n".join(line.rstrip() for line in console.export_text().splitlines())
    assert table in README


def test_a_newcomer_gets_from_a_clone_to_a_report() -> None:
    """Of a network and a format of their own; `test_programs_and_commands...` runs all of it."""
    (hour,) = [s for _, s in SECTIONS if s.heading.startswith("An hour")]
    assert {block.file for block in hour.blocks} == {"", "formats.py", "study.toml"}
    assert sum(b.text.count("datatypes.define") for b in hour.blocks) == 1
    verbs = [
        c.split("formats.py ")[-1].removeprefix("dtypelab ").split()[0] for c in hour.commands()
    ]
    for verb in ("zoo", "inspect", "dtype", "sweep", "report", "table", "reproduce"):
        assert verb in verbs


def test_what_the_text_mentions_exists() -> None:
    """Commands between words are not run; their verbs, options and modules must be there."""
    mentioned = 0
    for file in FILES:
        text = (ROOT / file).read_text()
        for command in re.findall(r"`(?:\.venv/bin/)?(dtypelab [^`]+|python -m [^`]+)`", text):
            mentioned += 1
            words = shlex.split(command.replace("\n", " "))
            if words[0] == "python":
                assert importlib.util.find_spec(words[2]), command
                continue
            here: click.Command = cli
            for word in words[1:]:
                if isinstance(here, click.Group) and word in here.commands:
                    here = here.commands[word]
            assert not isinstance(here, click.Group) or "--help" in words or "VERB" in words, (
                command
            )
            known = {o for p in (*here.params, *cli.params) for o in p.opts} | {"--help"}
            assert {w for w in words if w.startswith("-")} <= known, command
    assert mentioned >= 10


def test_links_lead_somewhere() -> None:
    for file in FILES:
        links = re.findall(r"\]\(([^)#]+)\)", (ROOT / file).read_text())
        for link in links:
            assert (ROOT / file).parent.joinpath(link).exists(), (file, link)


def test_a_custom_datatype_takes_forty_lines() -> None:
    source = (ROOT / "experiments" / "examples" / "custom_datatype.py").read_text()
    assert len(source.rstrip().splitlines()) <= 40


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
