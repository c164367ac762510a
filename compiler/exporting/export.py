"""export: a module becomes a folder of files that C programs are linked with."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from compiler.boundary.elements import elements_of
from compiler.boundary.index_ranges import index_ranges
from compiler.build import compile_program, needs_machine
from compiler.codegen.backend import Code, backend_of
from compiler.codegen.linking import missing, shared_library, static_library, wasm_module
from compiler.codegen.standalone import Standalone, weights_file
from compiler.errors import ConfigError, UnsupportedError, unknown
from compiler.exporting import FORMS, build_files, microcontroller, texts
from compiler.exporting.interface import Interface, check_name
from compiler.exporting.needs import Needs, check_memory, needs_elsewhere
from compiler.files.writing import check_folder, write_folder
from compiler.ir.expr import IRModule
from compiler.ir.handed import handed
from compiler.ir.outside import refuse_outside
from compiler.runtime.program import Program
from compiler.saved.libraries import Facts, description
from compiler.target.cpus import THUMB, WASM32
from compiler.target.registry import Target, kind_of


@dataclass(frozen=True)
class Exported:
    """A folder that `export` has written.

    Attributes:
        folder: where it is.
        name: what the functions are called.
        files: names of its files, and what they are.
        target: what the code is for.
        arena_bytes: memory that a call needs; None: that depends on symbolic dimensions.
        weights_bytes: of constants, wherever they are.
        needs: memory that the program takes; None: it is for no microcontroller and no bounds were
            given, or there is no linker for one.
    """

    folder: Path
    name: str
    files: Mapping[str, str]
    target: Target = field(repr=False)
    arena_bytes: int | None
    weights_bytes: int
    needs: Needs | None = None

    @property
    def library(self) -> Path:
        """The shared library, which `compiler.load` loads if it is for this machine, or the
        WebAssembly module; it may not be there."""
        wasm = self.target.architecture is WASM32
        return self.folder / (f"{self.name}.wasm" if wasm else f"lib{self.name}.so")


def export(
    mod: IRModule,
    target: str | Target,
    path: str | os.PathLike[str],
    *,
    name: str = "net",
    forms: Collection[str] | None = None,
    weights: str = "inside",
    dtype_lowering: str | None = None,
    threads: int = 1,
    force: bool = False,
    flash: int | None = None,
    ram: int | None = None,
) -> Exported:
    """Write `main` of a module as code that stands alone: with a header, a README, a program that
    runs it on files, and a Makefile.

    The code uses no heap, no files and no threads, and may run several times at once: all memory
    that it writes is given to it. Symbolic dimensions are arguments.

    Args:
        mod: the module, without control flow.
        target: `c` for one C11 file for any compiler (`c -mcpu=haswell`: with fused multiply-adds
            and tiles as for that), `llvm` for this machine's CPU, `llvm -mcpu=...` for another.
        path: the folder, which is made.
        name: of the function that is called, and of the files.
        forms: of FORMS; None: `source` of targets in C, else `object`, `static` and `shared`, or of
            other machines for which nothing here links (see `compiler.codegen.linking`), `object`.
            `shared` of wasm32 is a module, NAME.wasm.
        weights: "inside" the code, or in a "file" of their own, which callers may map.
        dtype_lowering: how custom datatypes are computed, as for `compiler.build`.
        threads: 1, as there are no others yet.
        force: write into a folder that is there; what it has of an earlier program of that name in
            other forms is removed.
        flash, ram: bytes that there are; None: those of the board that QEMU emulates, if it is for
            a microcontroller, else any. In flash are code and constants (of C, whose code is not
            compiled, constants alone), in RAM the arena, inputs, outputs and data that is written
            (on a microcontroller the stack, too).

    Raises:
        ConfigError: the folder is there already or cannot be written, an argument is wrong, or the
            program does not fit the memory that there is.
        UnsupportedError: unknown target, control flow, registered functions, or more threads.
        LoweringError: an operator or a format has no lowering, a format's functions are in a
            library that cannot be taken along, or the system has no compiler or linker.
    """
    folder = Path(path)
    check_name(name)
    _check(folder, name, weights, threads, force)
    chosen = target if isinstance(target, Target) else anywhere(target)
    wanted = _forms(chosen, forms)
    program = exported_program(mod, chosen, dtype_lowering)
    mapped = weights == "file"
    content, constants = _code(program, name, mapped, Facts(elements_of(mod), index_ranges(mod)))
    interface = Interface(name, program, constants.offsets[-1] if mapped else None)
    if chosen.architecture is THUMB:
        microcontroller.check_sizes(interface)
        if mapped:
            raise UnsupportedError(
                "weights of microcontrollers are in flash, with the code: leave weights='file' out"
            )
    files = _files(interface, content, wanted)
    need = _memory(interface, files, constants.offsets[-1], flash, ram)
    if mapped:
        whole = weights_file(program.constants, constants.offsets)
        files[weights_name(name)] = (whole, "the weights, which callers give")
    said = {file: what for file, (_, what) in files.items()} | {"README.md": "this text"}
    text = texts.readme(interface, f"{name}.{'c' if 'source' in wanted else 'o'}", said)
    files["README.md"] = (text.encode(), "how it is compiled and called")
    forms_of = ("{}.c", "{}.o", "lib{}.a", "lib{}.so", "{}.wasm", weights_name("{}"))
    write_folder(
        folder, {file: part for file, (part, _) in files.items()},
        instead_of=[form.format(name) for form in forms_of],
    )  # fmt: skip
    return Exported(
        folder, name, {file: what for file, (_, what) in files.items()}, chosen,
        interface.arena_bytes, constants.offsets[-1], need,
    )  # fmt: skip


def weights_name(name: str) -> str:
    """What the file of a program's weights is called."""
    return f"{name}_weights.bin"


def _memory(
    i: Interface,
    files: Mapping[str, tuple[bytes, str]],
    weights: int,
    flash: int | None,
    ram: int | None,
) -> Needs | None:
    """What a program needs, which must be there."""
    target = i.program.target
    if target.architecture is not THUMB:
        if flash is None and ram is None:
            return None
        content = None if backend_of(target).language == "c" else files[f"{i.name}.o"][0]
        need = needs_elsewhere(i, content, weights)
        check_memory(need, flash, ram)
        return need
    board = microcontroller.board_for(target)
    if why := microcontroller.missing(target):
        if flash is not None or ram is not None:
            raise ConfigError(f"what the program needs is known when it is linked: {why}")
        return None
    need = microcontroller.needs(i, files[f"{i.name}.o"][0], board)
    check_memory(need, flash or board.flash.size, ram or board.ram.size)
    return need


@dataclass(frozen=True)
class Relocatable:
    """A program that stands alone, in one object file.

    Attributes:
        program: what it runs.
        facts: what the module declares of its inputs and outputs.
        content: of the object file, with its weights.
    """

    program: Program = field(repr=False)
    facts: Facts = field(repr=False)
    content: bytes = field(repr=False)

    def library(self) -> bytes:
        """The shared library of it that `compiler.load` loads on its machine.

        Raises:
            LoweringError: the system has no linker, or none for its target.
        """
        return shared_library([self.content], self.program.target)


NAME = "net"
"""What functions are called unless a name is given."""


def relocatable(mod: IRModule, target: Target, dtype_lowering: str | None = None) -> Relocatable:
    """`main` of a module, without control flow, as one object file for a target of any machine.

    Raises:
        UnsupportedError, LoweringError: as `export`.
    """
    program = exported_program(mod, target, dtype_lowering)
    return relocated(program, Facts(elements_of(mod), index_ranges(mod)))


def relocated(program: Program, facts: Facts) -> Relocatable:
    """A program that `compile_program` made, as one object file. What runs code for other machines
    here passes weights to every program: those have them, too.

    Raises:
        LoweringError: its code is rejected.
    """
    code, _ = _code(program, NAME, False, facts, program.target.elsewhere)
    content = backend_of(program.target).relocatable(code, program.target)
    return Relocatable(program, facts, content)


def _check(folder: Path, name: str, weights: str, threads: int, force: bool) -> None:
    if weights not in ("inside", "file"):
        raise ConfigError(unknown("place of weights", weights, ("inside", "file")))
    if threads != 1:
        raise UnsupportedError(
            f"exported programs run on one thread: give threads=1, not {threads}"
        )
    if os.path.lexists(folder) and (not force or not folder.is_dir()):
        how = "force=True (--force)" if folder.is_dir() else "another path"
        raise ConfigError(f"{folder} is there already: give {how} to write there")
    check_folder(folder, [f"{name}.h"])


def anywhere(text: str) -> Target:
    """A target, of the CPU that its kind is made for elsewhere."""
    found = Target.anywhere(text)
    cpu = kind_of(found.kind).anywhere
    return Target.anywhere(f"{found.kind} -mcpu={cpu}") if cpu and text.split()[1:] == [] else found


def _forms(target: Target, forms: Collection[str] | None) -> list[str]:
    source = backend_of(target).language == "c"
    known = [f for f in FORMS if source or f != "source"]
    if target.architecture is THUMB:
        known.remove("shared")
    if forms is None:
        return ["source"] if source else [f for f in known if f == "object" or not missing(target)]
    for form in forms:
        if form not in known:
            of = f"form of code for target {str(target)!r}"
            raise ConfigError(unknown(of, form, known))
        if form in ("static", "shared") and (why := missing(target)):
            raise UnsupportedError(f"form {form!r} for {target.triple}: {why}")
    return [f for f in known if f in forms]


def exported_program(
    mod: IRModule, target: Target, dtype_lowering: str | None, compiled: bool = False
) -> Program:
    """The program of a module that needs nothing of this process; `compiled`: as for
    `compile_program`.

    Raises:
        UnsupportedError, LoweringError: as `export`.
    """
    refuse_outside(mod, "exported")
    for r in handed(mod):
        raise UnsupportedError(
            f"engine {r.engine!r} computes {', '.join(map(repr, r.nodes))} of this model, in this "
            "process, and cannot be exported: take a model without these nodes, or run it here"
        )
    if needs_machine(mod):
        raise UnsupportedError(
            "a program with control flow, data or sizes found in numbers runs on the virtual "
            "machine, which is not exported: export a network without it"
        )
    program = compile_program(mod, target, 1, dtype_lowering, compiled)
    program.refuse_externals("cannot be exported")
    return program


def _code(
    program: Program, name: str, mapped: bool, facts: Facts, passed: bool = False
) -> tuple[Code, Standalone]:
    """The code that stands alone, and what is in it besides the program's; `mapped`, `passed`: see
    Standalone."""
    backend = backend_of(program.target)
    interface = Interface(name, program, 0 if mapped else None)
    source = backend.language == "c"
    held = Standalone(name, program.symbol, program.constants, mapped, "").offsets[-1]
    said = description(program, name, (weights_name(name), held) if mapped else None, facts)
    more = [*interface.prototypes()[:-2], *interface.definitions()] if source else []
    alone = Standalone(
        name, program.symbol, program.constants, mapped, said, "\n\n".join(more), passed
    )  # fmt: skip
    return backend.standalone(program.parts, alone, program.target), alone


def _files(i: Interface, code: Code, forms: Collection[str]) -> dict[str, tuple[bytes, str]]:
    """Name -> content, and what it is."""
    name, target = i.name, i.program.target
    source = backend_of(target).language == "c"
    files: dict[str, tuple[bytes, str]] = {}
    if "source" in forms:
        files[f"{name}.c"] = (code.text.encode(), "the program, C11 without dependencies")
    if set(forms) - {"source"}:
        made = backend_of(target).relocatable(code, target)
        if "object" in forms or not source:
            files[f"{name}.o"] = (made, "the program, an object file")
        if "static" in forms:
            files[f"lib{name}.a"] = (static_library([made], target), "the same, a static library")
        if "shared" in forms:
            files.update(_shared(name, made, target))
    files[f"{name}.h"] = (texts.header(i, source).encode(), "the functions")
    if target.architecture is THUMB:
        made = files[f"{name}.o"][0]
        return files | microcontroller.files(i, made, microcontroller.board_for(target))
    files["main.c"] = (texts.main_program(i).encode(), "runs it on files of plain numbers")
    first = f"{name}.c" if "source" in forms else f"{name}.o"
    files["Makefile"] = (build_files.makefile(i, first).encode(), "makes `main`, and libraries")
    files["CMakeLists.txt"] = (build_files.cmake_lists(i, first).encode(), "the same for CMake")
    return files


def _shared(name: str, made: bytes, target: Target) -> dict[str, tuple[bytes, str]]:
    """What is loaded while programs run: a shared library, or a WebAssembly module."""
    if target.architecture is WASM32:
        module = wasm_module([made], [f"{name}_run", f"{name}_description"])
        what = "the same, a module that exports its memory and __heap_base, and imports nothing"
        return {f"{name}.wasm": (module, what)}
    loads = "" if target.elsewhere else ", which compiler.load loads, too"
    return {f"lib{name}.so": (shared_library([made], target), f"the same, a shared library{loads}")}
