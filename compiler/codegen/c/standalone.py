"""C source that stands alone: constants as arrays, and the functions that others call."""

from __future__ import annotations

import json
import textwrap

import numpy as np

from compiler.codegen.standalone import ALIGN, Standalone, run_params
from compiler.types.dtypes import Array

CHECKS = """#if defined(__FAST_MATH__)
#error "compile this without -ffast-math: its results would be others"
#endif
#if defined(FLT_EVAL_METHOD) && FLT_EVAL_METHOD != 0
#error "floats must be computed as floats: on 32-bit x86, compile this with -msse2 -mfpmath=sse"
#endif
#if defined(__clang__) || !defined(__GNUC__)
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off", "peel-loops") /* short loops become plain code at -O2 */
#endif"""
"""What compilers must not do, whatever flags they are given; and what GCC does at -O3 only, where
it takes half of the time from tiles of sums."""


LONGEST = 4095
"""Characters of a string that every compiler takes."""


def standalone_text(s: Standalone) -> str:
    """The constants, `NAME_run` and `NAME_description`, behind the entry point."""
    count, name, params = max(1, len(s.constants)), s.name, run_params(s.mapped)
    if s.mapped:
        places = [f"(const char *)weights + {at}" for at in s.offsets[: len(s.constants)]]
        table = [f"  const void *const constants[{count}] = {{", *_lines(places or ["0"]), "  };"]
        arrays, head = [], [*table, *([] if s.constants else ["  (void)weights;"])]
    else:
        arrays = [_array(f"constant_{k}", a) for k, a in enumerate(s.constants)]
        names = _lines([f"constant_{k}" for k in range(len(s.constants))] or ["0"])
        arrays.append("\n".join(
            [f"static const void *const constants[{count}] = {{", *names, "};"]
        ))  # fmt: skip
        head = []
    run = [
        f"int {name}_run({params}) {{",
        *head,
        f"  {s.symbol}(inputs, outputs, constants, (char *)arena, dims);",
        "  return 0;",
        "}",
    ]  # fmt: skip
    said = [f"const char *{name}_description(void) {{", *_returned(s.description), "}"]
    parts = [*arrays, f"int {name}_run({params});", "\n".join(run)]
    parts += [f"const char *{name}_description(void);", "\n".join(said), s.more]
    return "\n\n".join(p for p in parts if p)


def _returned(text: str) -> list[str]:
    """Lines that return a text: a string, in which `?` could begin a trigraph, or numbers where
    that is longer than what every compiler takes."""
    if len(text) > LONGEST:
        numbers = _filled([str(c) for c in (*text.encode("ascii"), 0)])
        return ["  static const char text[] = {", *numbers, "  };", "  return text;"]
    pieces = textwrap.wrap(text, 90, drop_whitespace=False, break_on_hyphens=False)
    lines = [json.dumps(p).replace("?", "\\?") for p in pieces]
    return ["  return", *(f"    {line}" for line in lines[:-1]), f"    {lines[-1]};"]


def _lines(values: list[str]) -> list[str]:
    return textwrap.wrap(", ".join(values), 98, initial_indent="  ", subsequent_indent="  ")


def _array(name: str, a: Array) -> str:
    """A constant array, of unsigned integers where C has no such type."""
    flat = a.reshape(-1)
    flat = flat.view(np.uint16) if flat.dtype == np.float16 else flat
    flat = flat.view(np.uint8) if flat.dtype == np.bool_ else flat
    kind = {"f4": "float", "f8": "double"}.get(flat.dtype.str[1:])
    ctype = kind or f"{'u' if flat.dtype.kind == 'u' else ''}int{8 * flat.dtype.itemsize}_t"
    values = _floats(flat) if kind else _integers(flat)
    head = f"static const _Alignas({ALIGN}) {ctype} {name}[{max(1, flat.size)}] = {{"
    return "\n".join([head, *_filled(values or ["0"]), "};"])


def _filled(values: list[str]) -> list[str]:
    """Values in lines; as `textwrap`, which takes long for a million of them."""
    out, line = [], " "
    for v in values:
        if len(line) + len(v) > 97:
            out.append(line)
            line = " "
        line += f" {v},"
    return [*out, line]


def _floats(a: Array) -> list[str]:
    suffix = "f" if a.dtype == np.float32 else ""
    return [_float(str(x), suffix) for x in a]


def _float(text: str, suffix: str) -> str:
    """The shortest decimal that reads back; which NaN it is, is not kept."""
    if text[-1].isalpha():
        return {"nan": "NAN", "inf": "INFINITY"}.get(text) or "-INFINITY"
    return (text if "." in text or "e" in text else f"{text}.0") + suffix


def _integers(a: Array) -> list[str]:
    texts = list(map(str, a.tolist()))
    if a.dtype == np.int64:
        return ["INT64_MIN" if t == "-9223372036854775808" else f"INT64_C({t})" for t in texts]
    return [f"UINT64_C({t})" for t in texts] if a.dtype == np.uint64 else texts
