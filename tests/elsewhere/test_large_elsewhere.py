"""Networks of users' sizes in int8, exported: as programs of other machines, as shared libraries of
them, and as C that the system's compilers make libraries of. They give the bits of this machine's
code. Libraries of other machines need their C library, of Debian's libc6-arm64-cross, say."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from large_files import integers

import compiler
from compiler.codegen import linking
from compiler.target.registry import Target

sys.path.append(str(Path(__file__).resolve().parents[1] / "exporting"))

from compilers import STRICT, shared_library

pytestmark = pytest.mark.slow
NETWORKS = ["mnist_resnet8", "efficientnet_lite0", "pp_ocrv4_rec"]
TRIPLES = ["aarch64-linux", "riscv64-linux"]


def emulator(target: Target) -> str:
    """Of a machine; the test is skipped without it, or without a linker."""
    name = f"qemu-{target.architecture.name}"
    if shutil.which(name) is None or (why := linking.missing(target)):
        pytest.skip(f"{name} is not installed" if shutil.which(name) is None else why)
    return name


def static_program(folder: Path, target: Target) -> list[str]:
    """The exported main program, linked with the exported object file as its Makefile does; the
    words that run it."""
    main = linking.object_of_c((folder / "main.c").read_text(), target, ["-I", str(folder), "-O2"])
    content = linking.executable([main, (folder / "net.o").read_bytes()], target, ["-O2"])
    path = folder / "main"
    path.write_bytes(content)
    path.chmod(0o700)
    return [emulator(target), str(path)]


def program_of_library(folder: Path, target: Target) -> list[str]:
    """The exported main program, which loads the exported shared library when it starts; the words
    that run it."""
    system = Path("/usr", f"{target.architecture.name}-linux-gnu")
    if not (system / "lib" / "libc.so.6").exists():
        pytest.skip(f"the C library of {target.triple} is not installed in {system}")
    words = [*linking.compiler_of(target), "-std=c11", "-O2", "-o", str(folder / "main")]
    given = [str(folder / "main.c"), str(folder / "libnet.so"), f"-Wl,-rpath,{folder}", "-lm"]
    subprocess.run([*words, *given], check=True)
    return [emulator(target), "-L", str(system), str(folder / "main")]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("form", ["object", "shared"])
@pytest.mark.parametrize("triple", TRIPLES)
def test_exported_networks(tmp_path: Path, triple: str, form: str, name: str) -> None:
    target = Target.anywhere(triple)
    emulator(target)
    mod, inputs, wanted = integers(name)
    folder = tmp_path / "net"
    compiler.export(mod, target, folder, forms=[form])
    words = (static_program if form == "object" else program_of_library)(folder, target)
    inputs[0].tofile(folder / "x.bin")
    done = subprocess.run([*words, folder / "x.bin"], capture_output=True, text=True, check=True)
    got = np.array(done.stdout.split(), np.float32)
    np.testing.assert_array_equal(got, wanted[0].reshape(-1))


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("cc", ["gcc", "clang"])
def test_networks_in_c(tmp_path: Path, cc: str, name: str) -> None:
    """Compiled without a warning, and loaded back."""
    mod, inputs, wanted = integers(name)
    compiler.export(mod, "c", tmp_path / "net")
    exe = compiler.load(shared_library(cc, tmp_path / "net" / "net.c", STRICT))
    for x, want in zip(inputs, wanted, strict=True):
        got = exe(x)
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
