"""Object files become libraries and programs of other machines: by the linkers of the package
`ziglang`, or by a C compiler for that machine that the environment variable DTYPELAB_CROSS_CC
names (`aarch64-linux-gnu-gcc`, say)."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from compiler.codegen.c import system_compiler
from compiler.errors import LoweringError
from compiler.target.cpus import THUMB, WASM32
from compiler.target.registry import Target

VARIABLE = "DTYPELAB_CROSS_CC"
INSTALL = (
    "linking for another machine needs the package ziglang: pip install 'dtypelab[cross]', or name "
    f"that machine's C compiler by the environment variable {VARIABLE}"
)
THUMB_CPU = ("-mcpu=cortex_m4+vfp4d16sp",)
"""Zig's name of what microcontrollers have in common: one set of libraries, which take minutes to
build, serves all."""
STACK = 1 << 20
"""Bytes of a WebAssembly module's stack."""


def zig() -> str:
    """The path of zig; empty if the package is not installed."""
    try:
        found = importlib.util.find_spec("ziglang")
    except (ImportError, ValueError):
        return ""
    places = found.submodule_search_locations if found is not None else None
    return next((str(p) for where in places or () if (p := Path(where, "zig")).exists()), "")


def missing(target: Target) -> str:
    """What to install, in one sentence, to link for a machine; empty: nothing."""
    wanted = shlex.split(os.environ.get(VARIABLE, ""))
    if not target.elsewhere:
        return ""
    if wanted and target.architecture is not WASM32:
        if shutil.which(wanted[0]) is None:
            return f"{VARIABLE} names {wanted[0]!r}, which is not installed"
        return ""
    return "" if zig() else INSTALL


def compiler_of(target: Target, static: bool = False) -> list[str]:
    """The words that begin a call of a C compiler and linker for a machine; `static`: for programs
    that bring all they call.

    Raises:
        LoweringError: there is none.
    """
    if why := missing(target):
        raise LoweringError(why)
    wanted = shlex.split(os.environ.get(VARIABLE, ""))
    if wanted and target.architecture is not WASM32:
        return wanted
    cpu = THUMB_CPU if target.architecture is THUMB else ()
    return [zig(), "cc", "-target", zig_triple(target, static), *cpu]


def zig_triple(target: Target, static: bool = False) -> str:
    """What zig calls a machine; `static`: with a C library that programs take along."""
    arch, _, rest = target.triple.partition("-")
    if target.architecture is WASM32:
        return "wasm32-wasi"
    if target.architecture is THUMB:
        # The library of mathematics of musl needs no system.
        return "thumb-linux-musleabihf" if static else "thumb-freestanding-eabihf"
    if "linux" in rest:
        return f"{arch}-linux-{'musl' if static else 'gnu'}"
    return f"{arch}-freestanding-{rest.rpartition('-')[2] or 'none'}"


def shared_library(objects: Sequence[bytes], target: Target) -> bytes:
    """The content of a shared library of object files.

    Raises:
        LoweringError: there is no linker, or it fails.
    """
    if not target.elsewhere:
        words = system_compiler.command()
    else:
        words = [*compiler_of(target), "-s"]
    return _linked(objects, lambda given, out: [*words, "-shared", "-o", out, *given, "-lm"])


def static_library(objects: Sequence[bytes], target: Target) -> bytes:
    """The content of a static library of object files.

    Raises:
        LoweringError: there is no archiver, or it fails.
    """
    if not target.elsewhere or not zig():
        ar = shutil.which("ar")
        if ar is None:
            raise LoweringError("static libraries need `ar`, which is not installed")
        words = [ar]
    else:
        words = [zig(), "ar"]
    return _linked(objects, lambda given, out: [*words, "rcsD", out, *given])


def executable(objects: Sequence[bytes], target: Target, flags: Sequence[str] = ()) -> bytes:
    """The content of a program that brings all it calls, of object files one of which has `main`.

    Raises:
        LoweringError: there is no linker, or it fails.
    """
    words = [*compiler_of(target, static=True), "-static", "-s", *flags]
    return _linked(objects, lambda given, out: [*words, "-o", out, *given, "-lm"])


def firmware(objects: Sequence[bytes], target: Target, script: str) -> bytes:
    """The content of a program without a system, which begins at `reset`, of object files.

    Args:
        script: where its parts go, in the linker's language.

    Raises:
        LoweringError: there is no linker, or it fails: memory is too small, say.
    """
    try:
        return _firmware(objects, target, script, library=False)
    except LoweringError:  # it calls functions of mathematics, say
        return _firmware(objects, target, script, library=True)


def calls_mathematics(objects: Sequence[bytes], target: Target, script: str) -> bool:
    """Whether a program as `firmware` links it calls functions that are in the C library's part of
    mathematics alone.

    Raises:
        LoweringError: there is no linker.
    """
    compiler_of(target)
    for library in (False, True):
        try:
            _firmware(objects, target, script, library)
            return library
        except LoweringError:
            continue
    return False


def _firmware(objects: Sequence[bytes], target: Target, script: str, library: bool) -> bytes:
    """See firmware; `library`: with the C library, which needs no system for what is called."""
    with tempfile.TemporaryDirectory(prefix="dtypelab-") as folder:
        layout = Path(folder, "memory.ld")
        layout.write_text(script, "utf-8")
        words = [*compiler_of(target, static=library), "-static", "-nostartfiles", "-w"]
        words += ["-Wl,--entry=reset", "-Wl,--gc-sections", "-T", str(layout), "-o"]
        more = ["-lm"] if library else []
        return _linked(objects, lambda given, out: [*words, out, *given, *more])


def at_fixed_address(
    objects: Sequence[bytes], entry: str, address: int, functions: Mapping[str, int]
) -> bytes:
    """The content of an ELF file of object files, to be copied to an address, that begins with a
    function. What it calls besides is at the addresses of `functions`.

    Raises:
        LoweringError: there is no linker, or a function is in neither.
    """
    if not zig():
        raise LoweringError(INSTALL)
    words = [zig(), "ld.lld", "--static", "--strip-all", "--no-eh-frame-hdr", "-N"]
    words += [f"--entry={entry}", f"--image-base={address}"]
    words += [f"--defsym={name}={at}" for name, at in functions.items()]
    return _linked(objects, lambda given, out: [*words, "-o", out, *given])


def object_of_c(source: str, target: Target, flags: Sequence[str] = ()) -> bytes:
    """An object file of C source for a machine.

    Raises:
        LoweringError: there is no compiler, or it rejects the source.
    """
    words = [*compiler_of(target, static=True), *system_compiler.PLAIN, "-w", "-c", *flags]
    with tempfile.TemporaryDirectory(prefix="dtypelab-") as folder:
        text, out = Path(folder, "program.c"), Path(folder, "program.o")
        text.write_text(source, "utf-8")
        return _run([*words, "-o", str(out), str(text)], out)


def wasm_module(objects: Sequence[bytes], exports: Sequence[str]) -> bytes:
    """The content of a WebAssembly module without imports, which exports its memory,
    `__heap_base` (where what it does not use begins) and some functions. Functions of the C
    library are taken along if they are called, those of mathematics and `fma` among them.

    Raises:
        LoweringError: there is no linker, or a function is in no library.
    """
    if not zig():
        raise LoweringError(INSTALL)
    given = [f"--export={name}" for name in (*exports, "__heap_base")]
    plain = ["--no-entry", "--strip-all", "-z", f"stack-size={STACK}", *given]
    # A program that overruns a stack that comes first traps; it does not write over constants.
    words = [zig(), "wasm-ld", "--stack-first", *plain]
    try:
        return _linked(objects, lambda files, out: [*words, "-o", out, *files])
    except LoweringError as error:
        if "undefined symbol" not in str(error):
            raise
    options = f"-Wl,{','.join(plain)}"
    libc = [zig(), "cc", "-target", "wasm32-wasi", "-mexec-model=reactor", "-nostartfiles", options]
    return _linked(objects, lambda files, out: [*libc, "-o", out, *files, "-lm"])


def _linked(objects: Sequence[bytes], call: Callable[[list[str], str], list[str]]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="dtypelab-") as folder:
        given, out = [], Path(folder, "linked")
        for k, code in enumerate(objects):
            path = Path(folder, f"{k}.o")
            path.write_bytes(code)
            given.append(str(path))
        return _run(call(given, str(out)), out)


def _run(call: list[str], out: Path) -> bytes:
    return system_compiler.run(call, out, f"{' '.join([Path(call[0]).name, *call[1:2]])} fails")
