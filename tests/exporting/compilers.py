"""Compilers of C that exported programs are compiled with, each on its own."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

COMPILERS = ("gcc", "clang", "zig")
FLAGS = ("-std=c11", "-O2", "-ffp-contract=off", "-fno-strict-aliasing", "-fPIC")
"""What the README that comes along says, for libraries."""
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror")


def compiler_words(name: str) -> list[str]:
    """What begins a call of a compiler; the test is skipped without it."""
    if name == "zig":
        if importlib.util.find_spec("ziglang") is None:
            pytest.skip("ziglang is not installed")
        return [sys.executable, "-m", "ziglang", "cc"]
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return [found]


def shared_library(name: str, source: Path, more: Sequence[str] = ()) -> Path:
    """The shared library that a compiler makes of a file, beside it: linked by the system's."""
    code, out = source.with_suffix(f".{name}.o"), source.with_suffix(f".{name}.so")
    made = [*compiler_words(name), *FLAGS, *more, "-c", "-o", str(code), str(source)]
    for call in (made, ["cc", "-shared", "-o", str(out), str(code), "-lm"]):
        done = subprocess.run(call, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{source.name}: {done.stderr[:2000]}"
    return out
