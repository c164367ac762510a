"""The system's C compiler: `cc`, `gcc` or `clang`, or what the environment variable CC names."""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from compiler.errors import LoweringError
from compiler.target.cpus import X86_64
from compiler.target.registry import Target

PLAIN = ("-std=c11", "-O2", "-ffp-contract=off", "-fno-strict-aliasing")
"""What generated C is compiled with, by whomever."""
FLAGS = (*PLAIN, "-fPIC", "-shared", "-w")


def command() -> list[str]:
    """The words that begin a call of the compiler.

    Raises:
        LoweringError: there is none.
    """
    wanted = shlex.split(os.environ.get("CC", ""))
    for words in [wanted] if wanted else [["cc"], ["gcc"], ["clang"]]:
        found = shutil.which(words[0])
        if found is not None:
            return [found, *words[1:]]
    name = wanted[0] if wanted else "cc, gcc or clang"
    raise LoweringError(f"target 'c' needs a C compiler, but {name} is not installed: set CC")


def version() -> str:
    """What the compiler says it is, and how it is called.

    Raises:
        LoweringError: there is none.
    """
    return _version(tuple(command()))


@functools.cache
def _version(words: tuple[str, ...]) -> str:
    said = subprocess.run([*words, "--version"], capture_output=True, text=True, check=False)
    return "\n".join([*words, *FLAGS, said.stdout])


def of_target(target: Target) -> tuple[str, ...]:
    """Flags of a target: fused multiply-adds are instructions where it has them. Nothing else
    depends on it, as loops and their order are those of its schedules."""
    return ("-mfma",) if target.fma and target.architecture is X86_64 else ()


def shared_library(source: str, flags: Sequence[str] = ()) -> bytes:
    """The content of a shared library made of C source.

    Raises:
        LoweringError: there is no compiler, or it rejects the source.
    """
    return _compiled(source, (*FLAGS, *flags), "-lm")


def object_file(source: str, flags: Sequence[str] = ()) -> bytes:
    """The content of an object file made of C source; raises as `shared_library`."""
    return _compiled(source, (*PLAIN, "-fPIC", "-w", "-c", *flags))


def _compiled(source: str, flags: Sequence[str], *last: str) -> bytes:
    words = command()
    with tempfile.TemporaryDirectory(prefix="dtypelab-") as folder:
        text, out = Path(folder, "program.c"), Path(folder, "program.out")
        text.write_text(source, "utf-8")
        call = [*words, *flags, "-o", str(out), str(text), *last]
        return run(call, out, f"{words[0]} rejects the generated C")


def run(call: Sequence[str], out: Path, failed: str) -> bytes:
    """The content of the file `out` that a command writes.

    Raises:
        LoweringError: it writes none; says that it `failed`, and the first error in what it says.
    """
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    if done.returncode or not out.exists():
        said = done.stderr.strip().splitlines()
        first = next((x for x in said if "error" in x), said[0] if said else "it says nothing")
        raise LoweringError(f"{failed}: {first}")
    return out.read_bytes()
