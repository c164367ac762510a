"""Machine code from LLVM text, once per distinct text and target in a process; kept on disk for the
next one."""

from __future__ import annotations

import functools
import hashlib
import threading
from typing import Any

from compiler.codegen import cache
from compiler.errors import LoweringError
from compiler.target import Target

_lock = threading.Lock()
_addresses: dict[str, int] = {}
_stats = {"compiled": 0, "loaded": 0, "reused": 0}


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
def machine(target: Target) -> Any:
    """LLVM's target machine for `target`, shared by all compilations."""
    return _fresh_machine(target)


def digest(*parts: str) -> str:
    """Short name for a piece of text."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def compile_text(text: str, symbol: str, target: Target) -> int:
    """Address of function `symbol` defined in LLVM `text`; the symbol becomes callable by other
    code.

    Raises:
        LoweringError: LLVM rejects the text, or a C function it calls cannot be found.
    """
    import llvmlite.binding as llvm

    with _lock:
        key = symbol + "\0" + str(target)
        if key in _addresses:
            _stats["reused"] += 1
            return _addresses[key]
        initialize()
        name = cache.key(text, target)
        kept = cache.load(name)
        if kept is None:
            kept = _object(text, symbol, target)
            cache.store(name, kept)
            _stats["compiled"] += 1
        else:
            _stats["loaded"] += 1
        needs, _, code = kept.partition(b"\n")
        for f in needs.decode().split():
            if not llvm.address_of_symbol(f):
                raise LoweringError(
                    f"C function {f!r} is in no loaded library: load it with "
                    "datatypes.load_library(path)"
                )
        engine = _engine(target)
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        address = _addresses[key] = int(engine.get_function_address(symbol))
        llvm.add_symbol(symbol, address)
        return address


@functools.cache
def _engine(target: Target) -> Any:
    """What holds the machine code for `target` from now on. One engine for everything: making one
    takes longer, and more memory, than loading a kernel."""
    import llvmlite.binding as llvm

    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), _fresh_machine(target))


def _object(text: str, symbol: str, target: Target) -> bytes:
    """The names of the functions that `text` needs, a line break, and its object code."""
    import llvmlite.binding as llvm

    tm = machine(target)
    try:
        module = llvm.parse_assembly(text)
        module.triple = target.triple
        module.data_layout = str(tm.target_data)
        module.verify()
    except RuntimeError as e:
        raise LoweringError(f"LLVM rejects the code generated for {symbol}: {e}") from None
    names = [f.name for f in module.functions if f.is_declaration]
    needs = " ".join(n for n in names if not n.startswith("llvm."))
    return needs.encode() + b"\n" + bytes(tm.emit_object(module))


def _fresh_machine(target: Target) -> Any:
    """An engine takes its machine over, so each gets its own."""
    import llvmlite.binding as llvm

    initialize()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=1, codemodel="jitdefault", jit=True
    )


def statistics() -> dict[str, int]:
    """How many functions this process compiled, loaded from the cache on disk, and had already."""
    return dict(_stats)


def clear_cache() -> int:
    """Remove the object code kept on disk; returns how many entries there were."""
    return cache.clear()


def assembly(text: str, target: Target) -> str:
    """Assembly of LLVM `text`, for people."""
    import llvmlite.binding as llvm

    return str(machine(target).emit_assembly(llvm.parse_assembly(text)))
