"""Text that tells programs apart: two PrimFuncs with the same text compute the same."""

from __future__ import annotations

import hashlib

from compiler.target.intrinsics.emission import emitted
from compiler.tensor.naming import buffers
from compiler.tensor.printer import primfunc_text
from compiler.tensor.stmt import Intrin, PrimFunc, walk_stmts


def program_text(f: PrimFunc) -> str:
    """The text of `f`, the contents of its tables and the instructions of its intrinsics."""
    parts = [primfunc_text(f, attrs=False)]
    for b in buffers(f):
        if b.data is not None:
            content = hashlib.sha256(b.data.tobytes()).hexdigest()
            parts.append(f"{b.name}: {b.data.dtype}{b.data.shape} {content}")
    used = {s.intrin for s, _, _ in walk_stmts(f.body) if isinstance(s, Intrin)}
    return "\n".join([*parts, *sorted(map(emitted, used))])
