"""Documents whose programs and commands are run, and whose outputs are compared.

In a Markdown file, between two headings:

- a fence "python FILE" or "toml FILE" is a file, saved in the folder that the section runs in;
- a fence "python" is a program, run there, and a fence "text" below it what it prints;
- a fence "console" holds commands ("$ ...") and below each of them what it prints.

A line "..." stands for any number of lines. What a command prints need not be shown at all.
`VARYING` says which words may differ; all others must be as shown, but for spaces.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^#{1,3} .*$", re.MULTILINE)

VARYING = re.compile(
    r"""\d+\.\d{3}(?=\ )      # milliseconds: the only figures with three decimals
      | [\d.e-]+x\*?          # how many times as fast, with a star where the machine was busy
      | (?<=\ )-?\d+\.\d+$   # times, at the end of a line
      | (?<=gptq\]\ ).*$      # of integers chosen by float32 sums: CPUs differ
      | (?<=about\ )\d+\ \w+  # an estimate of the time
      | (?<=\.html:\ )\d+     # the size of a page""",
    re.VERBOSE | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the file it is to be ("" if none), its text."""

    language: str
    file: str
    text: str


@dataclass(frozen=True)
class Section:
    """What is below a heading, up to the next one."""

    heading: str
    blocks: tuple[Block, ...]

    def commands(self) -> list[str]:
        """The commands of the section, without their outputs."""
        return [c for b in self.blocks if b.language == "console" for c, _ in sessions(b)]


def sections(document: str) -> list[Section]:
    """The sections of a document that have blocks."""
    # A comment in a program is no heading.
    hidden = _FENCE.sub(lambda m: " " * len(m[0]), document)
    starts = [m.start() for m in _HEADING.finditer(hidden)]
    found = []
    for start, end in zip(starts, [*starts[1:], len(document)], strict=True):
        part = document[start:end]
        blocks = tuple(Block(m[1], m[2] or "", m[3]) for m in _FENCE.finditer(part))
        if blocks:
            found.append(Section(part.splitlines()[0].strip("# "), blocks))
    return found


def sessions(block: Block) -> Iterator[tuple[str, str]]:
    """The commands of a console block, and what is shown below each."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


def run(section: Section, folder: Path) -> Iterator[tuple[str, str, str]]:
    """Run a section in `folder`: what was run, what is shown, and what was printed.

    Raises:
        AssertionError: something fails, prints nothing, or is of no kind that is run.
    """
    for block, below in zip(section.blocks, [*section.blocks[1:], None], strict=True):
        if block.file:
            (folder / block.file).write_text(block.text)
        elif block.language == "python":
            (folder / "example.py").write_text(block.text)
            # torchao uses what torch calls deprecated, as it is imported and later.
            strict = [] if "torchao" in block.text else ["-W", "error"]
            printed = _run([sys.executable, *strict, "example.py"], folder)
            shown = below.text if below is not None and below.language == "text" else ""
            yield block.text, shown, printed
        elif block.language == "console":
            for command, shown in sessions(block):
                yield command, shown, _run(_arguments(command), folder)
        else:
            assert block.language == "text", f"a block of {block.language} is not run"


def _arguments(command: str) -> list[str]:
    name, *rest = shlex.split(command)
    start = {"dtypelab": [sys.executable, "-m", "experiments.cli"], "python": [sys.executable]}
    assert name in start, f"{command!r} runs neither dtypelab nor python"
    return [*start[name], *rest]


def _run(arguments: list[str], folder: Path) -> str:
    done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, (arguments, done.stderr)
    assert done.stdout, arguments
    return done.stdout


def matches(shown: str, printed: str) -> bool:
    """Whether an output is as shown: see the top of this file."""
    pattern = "".join(
        r"(?:.*\n)*" if line.strip() == "..." else re.escape(line) + "\n"
        for line in plain(shown).splitlines()
    )
    return re.fullmatch(pattern, plain(printed)) is not None


def plain(text: str) -> str:
    """The text without the words that vary, every gap one space, no empty lines or footnotes."""
    lines = [" ".join(line.split()) for line in text.splitlines()]
    kept = "".join(f"{line}\n" for line in lines if line and not line.startswith("* "))
    return VARYING.sub("~", kept)
