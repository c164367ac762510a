"""Machine code from LLVM text, once per distinct text and target in a process; kept on disk for the
next one."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

from compiler.codegen import cache
from compiler.codegen.llvm import half
from compiler.errors import LoweringError
from compiler.target.registry import Target
from compiler.types.providers import load_library_of

_addresses: dict[tuple[str, Target], int] = {}


@functools.cache
def initialize() -> None:
    """Set LLVM up for this host."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    # The first engine makes the symbols of this process (libc) known to LLVM.
    llvm.create_mcjit_compiler(
        llvm.parse_assembly(""), llvm.Target.from_default_triple().create_target_machine(jit=True)
    )


@functools.cache
def machine(target: Target, plain: bool = False) -> Any:
    """LLVM's target machine for `target`, shared by all compilations; see `object_code`."""
    return _fresh_machine(target, opt=0 if plain else 1)


def compile_text(text: str, symbol: str, target: Target, plain: bool = False) -> int:
    """Address of function `symbol` defined in LLVM `text`; the symbol becomes callable by other
    code. `plain`: see `object_code`.

    Raises:
        LoweringError: LLVM rejects the text, or a C function it calls cannot be found.
    """
    with cache.lock:
        if (symbol, target) in _addresses:
            return address(symbol, target)
        name = cache.key(target, text, *(["plain"] if plain else []))
        code = cache.load(name)
        if code is None:
            code = object_code(text, target, plain)
            cache.store(name, code)
        else:
            cache.count("loaded")
        link(code, [symbol], target)
        return _addresses[symbol, target]


def keeper(text: str, symbol: str, target: Target) -> Callable[[bytes], None] | None:
    """What takes the object code of `text`, which defines function `symbol`, if it has not been
    compiled by this process or another: `compile_text` need not wait for LLVM then."""
    with cache.lock:
        if (symbol, target) in _addresses or cache.load(cache.key(target, text)) is not None:
            return None

    def keep(code: bytes) -> None:
        cache.store(cache.key(target, text), code)
        link(code, [symbol], target)

    return keep


def address(symbol: str, target: Target) -> int:
    """Address of a function that has been linked."""
    cache.count("reused")
    return _addresses[symbol, target]


def link(code: bytes, symbols: Sequence[str], target: Target) -> None:
    """Make the functions in `code` (see `object_code`) callable, by address and by other code.

    Functions of these names that are there already stay.

    Raises:
        LoweringError: a C function that the code calls cannot be found.
    """
    import llvmlite.binding as llvm

    with cache.lock:
        if all((s, target) in _addresses for s in symbols):
            return
        engine = _engine(target)  # without one, LLVM does not know the functions of this process
        needs, _, content = code.partition(b"\n")
        for f in needs.decode().split():
            function_address(f)
        if symbols != half.SYMBOLS:  # LLVM's calls are in no list of what the code needs
            called = [f for f in half.SYMBOLS if f.encode() in content]
            if not all(map(llvm.address_of_symbol, called)):
                link(object_code(half.TEXT, target), half.SYMBOLS, target)
        engine.add_object_file(llvm.ObjectFileRef.from_data(content))
        engine.finalize_object()
        for s in symbols:
            found = _addresses[s, target] = int(engine.get_function_address(s))
            llvm.add_symbol(s, found)


def function_address(name: str) -> int:
    """Where a C function is in this process; its library is loaded if a provider knows it.

    Raises:
        LoweringError: it cannot be found.
    """
    import llvmlite.binding as llvm

    initialize()
    if not llvm.address_of_symbol(name):
        load_library_of(name)
    found = llvm.address_of_symbol(name)
    if not found:
        raise LoweringError(
            f"C function {name!r} is in no loaded library: load it with "
            "datatypes.load_library(path)"
        )
    return int(found)


def object_code(text: str, target: Target, plain: bool = False, relocatable: bool = False) -> bytes:
    """The names of the C functions that LLVM `text` needs, a line break, and its object code.

    `plain`: without optimizing it, which takes a quarter of the time: for code that only calls
    other code. `relocatable`: for a linker, not for this process.

    Raises:
        LoweringError: LLVM rejects the text.
    """
    tm = _relocating_machine(target, 0 if plain else 1) if relocatable else machine(target, plain)
    module = _verified(text, target, tm)
    cache.count("compiled")
    return _needs(text) + b"\n" + bytes(tm.emit_object(module))


def commented_assembly(text: str, target: Target) -> str:
    """What `object_code` makes of LLVM `text`, in the target's assembly, with LLVM's comments.

    Raises:
        LoweringError: LLVM rejects the text.
    """
    tm = machine(target)
    tm.set_asm_verbosity(True)
    return str(tm.emit_assembly(_verified(text, target, tm)))


def assembled(text: str, assembly: str, target: Target) -> bytes:
    """What `object_code` gives, of the assembly that `commented_assembly` gives of the same `text`,
    in a tenth of the time. The target is of this host's architecture.

    Raises:
        LoweringError: LLVM rejects the module that holds it.
    """
    escaped = assembly.replace("\\", "\\5C").replace('"', "\\22").replace("\n", "\\0A")
    tm = machine(target)
    module = _verified(f'module asm "{escaped}"', target, tm)
    return _needs(text) + b"\n" + bytes(tm.emit_object(module))


def _verified(text: str, target: Target, tm: Any) -> Any:
    """LLVM's module of a text, for a target machine."""
    import llvmlite.binding as llvm

    try:
        module = llvm.parse_assembly(text)
        module.triple = target.triple
        module.data_layout = str(tm.target_data)
        module.verify()
    except RuntimeError as e:
        names = ", ".join(re.findall(r"^define .*?@(\w+)", text, re.MULTILINE))
        raise LoweringError(f"LLVM rejects the code generated for {names}: {e}") from None
    return module


def _needs(text: str) -> bytes:
    """The names of the C functions that LLVM `text` calls. From the text: asking LLVM takes two
    calls a function, and a thread may wait at each."""
    needs = re.findall(r"^declare .*?@([\w.$]+)\(", text, re.MULTILINE)
    return " ".join(n for n in needs if not n.startswith("llvm.")).encode()


@functools.cache
def _engine(target: Target) -> Any:
    """What holds the machine code for `target` from now on. One engine for everything: making one
    takes longer, and more memory, than loading a kernel."""
    import llvmlite.binding as llvm

    initialize()
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), _fresh_machine(target))


def _fresh_machine(target: Target, opt: int = 1) -> Any:
    """An engine takes its machine over, so each gets its own."""
    import llvmlite.binding as llvm

    initialize()
    if not target.runnable:
        return _relocating_machine(target, opt)
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=opt, codemodel="jitdefault", jit=True
    )


def clear_cache() -> int:
    """Remove the object code kept on disk; returns how many entries there were."""
    return cache.clear()


def _relocating_machine(target: Target, opt: int) -> Any:
    """Makes code for any machine, which a linker may put anywhere."""
    import llvmlite.binding as llvm

    initialize()
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu,
        features=target.features,
        opt=opt,
        reloc=target.architecture.relocation,
        abiname=target.architecture.abi,
    )


def assembly(text: str, target: Target) -> str:
    """Assembly of LLVM `text`, for people."""
    import llvmlite.binding as llvm

    return str(machine(target).emit_assembly(llvm.parse_assembly(text)))
