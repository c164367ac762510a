"""Machine code from LLVM text, once per distinct text and target in a process."""

from __future__ import annotations

import functools
import hashlib
import threading
from typing import Any

from compiler.errors import LoweringError
from compiler.target import Target

_lock = threading.Lock()
_compiled: dict[str, Any] = {}
_addresses: dict[str, int] = {}
_stats = {"compiled": 0, "reused": 0}


@functools.cache
def initialize() -> None:
    """Set LLVM up for this host."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    # The first engine makes the symbols of this process (libc) known to LLVM: `_resolves` asks.
    llvm.create_mcjit_compiler(
        llvm.parse_assembly(""), llvm.Target.from_default_triple().create_target_machine(jit=True)
    )


@functools.cache
def machine(target: Target) -> Any:
    """LLVM's target machine for `target`."""
    import llvmlite.binding as llvm

    initialize()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=1, codemodel="jitdefault", jit=True
    )


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
        tm = machine(target)
        try:
            module = llvm.parse_assembly(text)
            module.triple = target.triple
            module.data_layout = str(tm.target_data)
            module.verify()
        except RuntimeError as e:
            raise LoweringError(f"LLVM rejects the code generated for {symbol}: {e}") from None
        for f in module.functions:
            if f.is_declaration and not f.name.startswith("llvm.") and not _resolves(f.name):
                raise LoweringError(
                    f"C function {f.name!r} is in no loaded library: load it with "
                    "datatypes.load_library(path)"
                )
        engine = llvm.create_mcjit_compiler(module, _fresh_machine(target))
        engine.finalize_object()
        address = int(engine.get_function_address(symbol))
        _compiled[key], _addresses[key] = engine, address
        llvm.add_symbol(symbol, address)
        _stats["compiled"] += 1
        return address


def _fresh_machine(target: Target) -> Any:
    """An engine takes its machine over, so each gets its own."""
    import llvmlite.binding as llvm

    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=1, codemodel="jitdefault", jit=True
    )


def _resolves(symbol: str) -> bool:
    import llvmlite.binding as llvm

    return bool(llvm.address_of_symbol(symbol))


def statistics() -> dict[str, int]:
    """How many functions were compiled, and how many were found compiled already, in this
    process."""
    return dict(_stats)


def assembly(text: str, target: Target) -> str:
    """Assembly of LLVM `text`, for people."""
    import llvmlite.binding as llvm

    return str(machine(target).emit_assembly(llvm.parse_assembly(text)))
