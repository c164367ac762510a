"""Printed text of loop nests, which `compiler.tensor.parser` reads back."""

from __future__ import annotations

import json
from collections.abc import Callable

from compiler.tensor.expr import Buffer
from compiler.tensor.naming import distinct
from compiler.tensor.stmt import (
    Attempt,
    Barrier,
    Commit,
    For,
    Intrin,
    Pick,
    PrimFunc,
    Stmt,
    Store,
    Wait,
    When,
    accesses,
)

UPDATES = {
    "Add": "+=", "Mul": "*=", "Max": "max=", "Min": "min=", "Or": "|=", "And": "&=", "Fma": "fma=",
    "": "=",
}  # fmt: skip


def primfunc_text(
    f: PrimFunc,
    name: str = "",
    attrs: bool = True,
    constant: Callable[[Buffer], str] | None = None,
) -> str:
    """The PrimFunc as text: parameters, what it declares, then its statements.

    Args:
        f: the loop nests.
        name: what to call it, if not by its own name.
        attrs: whether to print `attrs`.
        constant: what a constant buffer's contents are called; without it they are left out.
    """
    f = distinct(f)
    inputs, outputs = f.params[: len(f.params) - f.outputs], f.params[len(f.params) - f.outputs :]
    dims = f"[{', '.join(map(str, f.dims))}]" if f.dims else ""
    lines = [f"primfunc @{name or f.name}{dims}({', '.join(map(_declared, inputs))})"]
    lines[0] += f" -> ({', '.join(map(_declared, outputs))}) {{"
    if attrs and f.attrs:
        lines.append(f"  attrs {json.dumps(dict(f.attrs))}")
    lines += [f"  temp {_declared(b)}" for b in f.temps]
    own = [*f.params, *f.temps]
    for b in dict.fromkeys([*(p.source for p in f.packed.values()), *_used(f)]):
        if b not in own:
            kind = b.scope if b.scope != "global" else "source"
            held = f" = {constant(b)}" if constant is not None and b.data is not None else ""
            lines.append(f"  {kind} {_declared(b)}{held}")
    for new, p in f.packed.items():
        order = ", ".join(f"{v}<{v.extent}" for v in p.vars)
        at = ", ".join(map(str, p.idx))
        lines.append(f"  pack {new.name}[{order}] = {p.source.name}[{at}]")
    for b, distance in f.prefetch.items():
        lines.append(f"  prefetch {b.name} + {distance}")
    _body(f.body, 1, lines)
    return "\n".join([*lines, "}"])


def _used(f: PrimFunc) -> list[Buffer]:
    return [b for b, *_ in accesses(f.body)]


def _declared(b: Buffer) -> str:
    return f"{b!r}{f' align {b.align}' if b.align else ''}{' finite' if b.finite else ''}"


def _body(body: list[Stmt], depth: int, lines: list[str]) -> None:
    pad = "  " * depth
    for s in body:
        if isinstance(s, For):
            notes = [f"whole {s.whole}"] if s.whole is not None else []
            notes += [f"opaque {', '.join(sorted(b.name for b in s.opaque))}"] if s.opaque else []
            notes += ["fence"] if s.fence else []
            kind = "" if s.kind == "serial" else s.kind + " "
            tail = f" {{{'; '.join(notes)}}}" if notes else ""
            lines.append(f"{pad}{kind}for {s.var} in {s.extent}:{tail}")
            _body(s.body, depth + 1, lines)
        elif isinstance(s, Intrin):
            tile = ", ".join(
                f"{v}<{n}" for v, n in zip(s.vars.values(), s.intrin.loops.values(), strict=True)
            )
            lines.append(f"{pad}{s.intrin.name}<{tile}>: {_store(s.store)}")
        elif isinstance(s, Attempt):
            names = ", ".join(b.name for b in s.watched)
            heads = ("attempt:", f"where {names} has no NaN:", "else, all again:")
            for head, part in zip(heads, s.parts, strict=True):
                lines.append(pad + head)
                _body(part, depth + 1, lines)
        elif isinstance(s, When):
            lines.append(f"{pad}when {s.condition!r}:")
            _body(s.body, depth + 1, lines)
        elif isinstance(s, Barrier):
            lines.append(f"{pad}barrier")
        elif isinstance(s, Commit):
            lines.append(f"{pad}commit")
        elif isinstance(s, Wait):
            lines.append(f"{pad}wait {s.left}")
        elif isinstance(s, Pick):
            lines.append(f"{pad}pick {s.var} in {s.var.extent} at {s.at!r}:")
            _body(s.body, depth + 1, lines)
        else:
            lines.append(pad + _store(s))


def update_symbol(update: str) -> str:
    """How an update is written; that of a sum which saturates names the width, `sat20=`."""
    return UPDATES[update] if update in UPDATES else f"sat{update.removeprefix('Add')}="


def _store(s: Store) -> str:
    start = f"  (init {s.init!r})" if s.init is not None else ""
    idx = ", ".join(map(str, s.idx))
    return f"{s.stage}: {s.buffer.name}[{idx}] {update_symbol(s.update)} {s.value!r}{start}"
