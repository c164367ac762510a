"""Short kernels in PTX, run by its interpreter, and by whom they are assembled."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.codegen.ptx.assembler import assembler
from compiler.runtime.machines import ptx

Array = npt.NDArray[Any]

HEAD = ".version 7.8\n.target {target}\n.address_size 64\n"
_WIDTH = {"8": 1, "16": 2, "32": 4, "64": 8}


def bytes_of(kind: str) -> int:
    if kind.endswith("x2"):
        return 2 if kind.startswith("e") else 4
    return _WIDTH[kind.lstrip("bfustep")]


def register_of(kind: str) -> str:
    """The type of registers that values of a type are held in."""
    return f".b{max(8 * bytes_of(kind), 16)}"


def bits_of(kind: str) -> str:
    """The type that these are loaded and stored as."""
    return f"b{8 * bytes_of(kind)}"


def elementwise(name: str, code: str, sources: Sequence[str], target: str) -> str:
    """A kernel: `code` computes %d of %a, %b, ... for each thread. %p, %q: predicates; %t0 ..:
    words; %l0 ..: long ones."""
    names = "abcd"[: len(sources)] if len(sources) < 4 else "abce"[: len(sources)]
    lines = [f".visible .entry {name}("]
    lines.append(",\n".join(f"  .param .u64 {name}_{k}" for k in range(len(sources) + 1)))
    lines += [")", "{", "  .reg .pred %p, %q;", "  .reg .b32 %t<6>;", "  .reg .b16 %h<4>;"]
    lines += ["  .reg .b64 %l<6>, %at, %i;", "  .reg .b32 %x<4>;"]
    lines += [f"  .reg {register_of(k)} %{n};" for n, k in zip(names, sources, strict=True)]
    lines += [f"  .reg {register_of(target)} %d;"]
    lines += ["  mov.u32 %x0, %tid.x;", "  mov.u32 %x1, %ctaid.x;", "  mov.u32 %x2, %ntid.x;"]
    lines += ["  mad.lo.s32 %x3, %x1, %x2, %x0;"]
    for k, (n, kind) in enumerate(zip(names, sources, strict=True)):
        lines += [f"  ld.param.u64 %at, [{name}_{k}];"]
        lines += [f"  mad.wide.u32 %at, %x3, {bytes_of(kind)}, %at;"]
        lines += [f"  ld.global.{bits_of(kind)} %{n}, [%at];"]
    lines += [f"  {line.strip()};" for line in code.split(";") if line.strip()]
    lines += [f"  ld.param.u64 %at, [{name}_{len(sources)}];"]
    lines += [f"  mad.wide.u32 %at, %x3, {bytes_of(target)}, %at;"]
    lines += [f"  st.global.{bits_of(target)} [%at], %d;", "  ret;", "}"]
    return "\n".join(lines) + "\n"


def dtype_of(kind: str) -> Any:
    if kind in ("f16", "f32", "f64"):
        return np.dtype(f"f{bytes_of(kind)}")
    return np.dtype(f"{'i' if kind[0] == 's' else 'u'}{bytes_of(kind)}")


def run_elementwise(
    module: ptx.PtxModule, name: str, arrays: Sequence[Array], target: str
) -> Array:
    """What such a kernel makes of arrays, which are of one length."""
    n = len(arrays[0])
    memory = ptx.Memory(1 << 24)
    block = min(n, 64)
    whole = -(-n // block) * block
    places = []
    for a in arrays:
        places.append(memory.allocate(whole * a.itemsize))
        memory.write(places[-1], np.resize(a, whole))
    out = memory.allocate(whole * bytes_of(target))
    ptx.launch(
        module, name, grid=(whole // block, 1, 1), block=(block, 1, 1), args=[*places, out],
        memory=memory,
    )  # fmt: skip
    return np.frombuffer(memory.read(out, n * bytes_of(target)), dtype_of(target))


def assemble(text: str, target: str, folder: Path) -> str:
    """What ptxas says against a text: nothing, if it is accepted."""
    source = folder / "kernel.ptx"
    source.write_text(text)
    done = subprocess.run(
        [assembler(), f"-arch={target}", "-O0", str(source), "-o", str(folder / "kernel.cubin")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return "" if done.returncode == 0 else done.stderr + done.stdout
