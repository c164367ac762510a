"""Look-ups in tables in memory, for all lanes at once."""

from __future__ import annotations

from compiler.target.emit import LLVM_BYTES, Emitter, Val


def gather(e: Emitter, table: Val, at: Val, t: str) -> Val:
    """The entries at the positions `at` of a table in memory, of elements of 4 or 8 bytes."""
    v, pointers = Val("", t, at.n), f"<{at.n} x ptr>"
    places = e.op(f"getelementptr inbounds {t}, ptr {table.name}, {at}", "ptr", at.n)
    name = {"float": "f32", "double": "f64"}.get(t, t)
    fn, mask = f"llvm.masked.gather.v{at.n}{name}.v{at.n}p0", f"<{at.n} x i1>"
    e.decls[fn] = f"declare {v.ty} @{fn}({pointers}, {mask}, {v.ty})"
    where = f"{pointers} align {LLVM_BYTES[t]} {places.name}"
    return e.op(f"call {v.ty} @{fn}({where}, {mask} splat (i1 true), {v.ty} poison)", t, at.n)
