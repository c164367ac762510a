"""LLVM text that stands alone: constants as data, and the functions that others call."""

from __future__ import annotations

import re
from collections.abc import Sequence

from compiler.codegen.llvm import half, nearest
from compiler.codegen.standalone import ALIGN, Standalone
from compiler.target.registry import Target
from compiler.types.dtypes import Array

_DECLARED = re.compile(r"^declare .*?@([\w.$]+)\(")
_HALF = re.compile(r"\bhalf\b")
_DEFINED = re.compile(r"^define .*?@([\w.$]+)\(", re.MULTILINE)


def standalone_text(texts: Sequence[str], s: Standalone, target: Target) -> str:
    """The module of the texts of all kernels and of the entry point, whose functions nothing
    outside sees, and `NAME_run` and `NAME_description`."""
    texts = [*texts, half.TEXT] if any(_HALF.search(t) for t in texts) else list(texts)
    if not target.rounds and any("@llvm.roundeven." in t for t in texts):
        texts.append(nearest.TEXT)
    declared, bodies = dict[str, str](), list[str]()
    for text in texts:
        body = []
        for line in text.splitlines():
            found = _DECLARED.match(line)
            if found:
                declared[found[1]] = line
            else:
                body.append(line)
        bodies.append("\n".join(body))
    defined = {name for body in bodies for name in _DEFINED.findall(body)}
    heads = [line for name, line in declared.items() if name not in defined]
    whole = "\n".join(bodies)
    whole = re.sub(r"^define (?!internal )", "define internal ", whole, flags=re.MULTILINE)
    for name in (
        *half.SYMBOLS,
        *nearest.SYMBOLS,
    ):  # called by code that LLVM writes, which this text does not show
        head = rf"^define internal (\w+ @{name}\()"
        whole = re.sub(head, r"define weak hidden \1", whole, flags=re.MULTILINE)
    return "\n".join([*heads, whole, *_public(s, target)])


def caller_text(s: Standalone, target: Target) -> str:
    """A module of its own with `NAME_run`, for an entry point that another object file holds."""
    declared = f"declare void @{s.symbol}(ptr, ptr, ptr, ptr, ptr)"
    return "\n".join([declared, *_public(s, target)])


def external_symbols(text: str) -> list[str]:
    """The functions of libraries that a module calls."""
    names = (found[1] for line in text.splitlines() if (found := _DECLARED.match(line)))
    return [n for n in names if not n.startswith("llvm.")]


def _public(s: Standalone, target: Target) -> list[str]:
    name, count, word = s.name, max(1, len(s.constants)), target.pointer_bytes
    weights = ("weights",) if s.mapped or s.passed else ()
    params = ", ".join(f"ptr %{p}" for p in ("inputs", "outputs", "dims", *weights, "arena"))
    head, tail = f"define i32 @{name}_run({params}) nounwind {{", ["  ret i32 0", "}"]
    said = s.description.encode("ascii") + b"\0"
    lines = [
        f"@{name}.description = internal constant [{len(said)} x i8] {_bytes(said)}, align 1",
        f"define ptr @{name}_description() nounwind {{",
        f"  ret ptr @{name}.description",
        "}",
    ]
    call = "call void @{}(ptr %inputs, ptr %outputs, ptr {}, ptr %arena, ptr %dims)"
    if s.mapped:
        lines += [head, f"  %table = alloca [{count} x ptr], align {word}"]
        for k, at in enumerate(s.offsets[: len(s.constants)]):
            lines.append(f"  %c{k} = getelementptr i8, ptr %weights, i64 {at}")
            lines.append(f"  %t{k} = getelementptr i8, ptr %table, i64 {word * k}")
            lines.append(f"  store ptr %c{k}, ptr %t{k}, align {word}")
        return [*lines, f"  {call.format(s.symbol, '%table')}", *tail]
    lines += [_constant(f"{name}.constant.{k}", a) for k, a in enumerate(s.constants)]
    pointers = [f"ptr @{name}.constant.{k}" for k in range(len(s.constants))] or ["ptr null"]
    table = f"[{count} x ptr] [{', '.join(pointers)}]"
    lines.append(f"@{name}.constants = internal constant {table}, align {word}")
    return [*lines, head, f"  {call.format(s.symbol, f'@{name}.constants')}", *tail]


def _constant(name: str, a: Array) -> str:
    content = a.tobytes() or b"\0"
    kind = f"internal constant [{len(content)} x i8]"
    return f"@{name} = {kind} {_bytes(content)}, align {ALIGN}"


def _bytes(content: bytes) -> str:
    """A string of LLVM."""
    if not any(content):
        return "zeroinitializer"
    return f'c"\\{content.hex(chr(92))}"'
