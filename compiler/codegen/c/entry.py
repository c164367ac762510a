"""The entry point of a program in C: the steps one after another, over memory that the caller
gives."""

from __future__ import annotations

import re
from collections.abc import Sequence

from compiler.codegen.c.expressions import Scope, index_text
from compiler.codegen.c.names import Names, comment, unused
from compiler.codegen.steps import Pointer, Step
from compiler.symbolic import Var

_PARAMS = (
    "const void *const *inputs, void *const *outputs, const void *const *constants, "
    "char *arena, const int64_t *dims"
)


def entry_text(symbol: str, steps: Sequence[Step], dims: Sequence[Var]) -> str:
    """The function `symbol`: tables of pointers, the workspace, and the symbolic dimensions."""
    names, scope, lines = Names(), dict[Var, str](), list[str]()
    for k, v in enumerate(dims):
        scope[v] = names.new(v.name)
        lines.append(f"const int64_t {scope[v]} = dims[{k}];")
    for flag in dict.fromkeys(s.watch for s in steps if s.watch is not None):
        lines.append(f"*(int32_t *){_pointer(flag, scope)} = 0;")
    for s in steps:
        lines += [comment(s.nodes)] if s.nodes else []
        lines += _step(s, scope)
    lines[:0] = unused(_PARAMS.split(", "), lines)
    body = "\n".join(f"  {line}" for line in lines)
    return f"void {symbol}({_PARAMS}) {{\n{body}\n}}"


def _step(s: Step, scope: Scope) -> list[str]:
    pointers = [_pointer(p, scope) for p in s.pointers]
    if s.function is not None:
        table = f"void *table[] = {{{', '.join(f'(void *){p}' for p in pointers) or '0'}}};"
        call = f"(*(void (*const *)(void **, const int64_t *)){_pointer(s.function, scope)})"
        return [f"{{ {table}", f"  {call}(table, dims); }}"]
    if s.stage is None:
        return [f"memcpy({', '.join(pointers)}, (size_t)({index_text(s.size, scope)}));"]
    given = [*pointers, *(scope[v] for v in s.dims)]
    if s.stage.extent is not None:
        given += ["0", index_text(s.stage.extent, scope)]
    lines = [f"{s.stage.symbol}({', '.join(given)});"]
    if s.watch is not None:
        raised = "fetestexcept(FE_INEXACT | FE_INVALID | FE_OVERFLOW | FE_UNDERFLOW)"
        flag = f"*(int32_t *){_pointer(s.watch, scope)}"
        lines = ["feclearexcept(FE_ALL_EXCEPT);", *lines, f"if ({raised}) {flag} = 1;"]
    if s.when is not None:
        head = f"if (*(const int32_t *){_pointer(s.when, scope)}) {{"
        lines = [head, *(f"  {line}" for line in lines), "}"]
    return lines


def _pointer(p: Pointer, scope: Scope) -> str:
    if p.base != "workspace":
        return f"{p.base}s[{p.index}]"
    return f"(void *)(arena + {index_text(p.offset, scope)})"


def run_text(symbol: str, entry: str) -> str:
    """`net_run`, which calls the entry point `symbol` of that text, and the table of constants."""
    count = 1 + max(map(int, re.findall(r"\bconstants\[(\d+)\]", entry)), default=0)
    return f"""/* The constants of a program that stands alone: whoever links it fills the table. */
const void *net_constants[{count}];

/* All memory comes from the caller: the arena, at a multiple of 64, is for intermediate values. It
 * may run several times at once, over arenas of their own. */
int net_run(const void *const *inputs, void *const *outputs, const int64_t *dims, void *arena) {{
  {symbol}(inputs, outputs, net_constants, arena, dims);
  return 0;
}}"""
