"""NVIDIA's assembler of PTX, ptxas, where it is installed: what it says of kernels."""

from __future__ import annotations

import functools
import importlib.util
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from compiler.errors import LoweringError, UnsupportedError

SECONDS = 300
_ENTRY = re.compile(r"Compiling entry function '(\S+)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class Assembled:
    """What a kernel takes.

    Attributes:
        kernel: its name.
        registers: of 32 bits, of a thread.
        shared: bytes of a block's shared memory that its code declares.
        stack: bytes of a thread's stack.
        spills: bytes that a thread stores and loads since there are too few registers.
    """

    kernel: str
    registers: int
    shared: int
    stack: int
    spills: int


@functools.cache
def assembler() -> str:
    """The path of ptxas: that of the package nvidia-cuda-nvcc, or the system's; empty: none."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        found = sorted(Path(folder).glob("*/bin/ptxas"))
        if found:
            return str(found[-1])
    return shutil.which("ptxas") or ""


def assemble(ptx: bytes, chip: str) -> tuple[list[Assembled], bytes]:
    """What kernels take on a chip such as `sm_80`, and their machine code (a cubin).

    Raises:
        UnsupportedError: ptxas is not installed.
        LoweringError: it rejects the text.
    """
    if not assembler():
        raise UnsupportedError("ptxas is not installed: pip install 'dtypelab[cuda]'")
    with tempfile.TemporaryDirectory(prefix="dtypelab-") as folder:
        source, made = Path(folder, "code.ptx"), Path(folder, "code.cubin")
        source.write_bytes(ptx)
        command = [assembler(), f"-arch={chip}", "-v", str(source), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        if done.returncode:
            raise LoweringError(f"ptxas rejects the code for {chip}: {done.stderr.strip()}")
        return _read(done.stderr), made.read_bytes()


def _read(said: str) -> list[Assembled]:
    """What `ptxas -v` says of each kernel."""
    _, *parts = _ENTRY.split(said)
    out = []
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        spills, used, shared = (p.search(text) for p in (_SPILLS, _USED, _SHARED))
        stack, stored, loaded = map(int, spills.groups()) if spills else (0, 0, 0)
        registers = int(used[1]) if used else 0
        of_block = int(shared[1]) if shared else 0
        out.append(Assembled(name, registers, of_block, stack, stored + loaded))
    return out
