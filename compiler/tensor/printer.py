"""Printed text of loop nests."""

from __future__ import annotations

from compiler.tensor.stmt import Attempt, Buffer, For, Intrin, PrimFunc, Stmt, Store, accesses

_UPDATE = {"Add": "+=", "Mul": "*=", "Max": "max=", "Min": "min=", "Fma": "+=fma", "": "="}


def primfunc_text(f: PrimFunc) -> str:
    """The PrimFunc as text: parameters, temporaries, then its statements."""
    inputs, outputs = f.params[: len(f.params) - f.outputs], f.params[len(f.params) - f.outputs :]
    lines = [f"primfunc @{f.name}({', '.join(map(repr, inputs))})"]
    lines[0] += f" -> ({', '.join(map(repr, outputs))}) {{"
    if f.dims:
        lines.append(f"  dims {', '.join(map(str, f.dims))}")
    for b in f.temps:
        lines.append(f"  temp {b!r}{_alignment(b)}")
    own = [*f.params, *f.temps]
    for b in dict.fromkeys(b for b, *_ in accesses(f.body)):
        if b not in own:
            lines.append(f"  {b.scope} {b!r}{_alignment(b)}")
    for new, p in f.packed.items():
        order = ", ".join(f"{v}<{v.extent}" for v in p.vars)
        at = ", ".join(map(str, p.idx))
        lines.append(f"  pack {new.name}[{order}] = {p.source.name}[{at}]{_alignment(new)}")
    for b, distance in f.prefetch.items():
        lines.append(f"  prefetch {b.name} + {distance}")
    _body(f.body, 1, lines)
    return "\n".join([*lines, "}"])


def _alignment(b: Buffer) -> str:
    return f" align {b.align}" if b.align else ""


def _body(body: list[Stmt], depth: int, lines: list[str]) -> None:
    pad = "  " * depth
    for s in body:
        if isinstance(s, For):
            notes = [f"opaque {', '.join(sorted(b.name for b in s.opaque))}"] if s.opaque else []
            notes += ["fence"] if s.fence else []
            kind = "" if s.kind == "serial" else s.kind + " "
            tail = f"  # {', '.join(notes)}" if notes else ""
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
        else:
            lines.append(pad + _store(s))


def _update(update: str) -> str:
    return _UPDATE[update] if update in _UPDATE else f"+=sat{update.removeprefix('Add')}"


def _store(s: Store) -> str:
    start = f"  (init {s.init!r})" if s.init is not None else ""
    idx = ", ".join(map(str, s.idx))
    return f"{s.buffer.name}[{idx}] {_update(s.update)} {s.value!r}{start}"
