"""The files beside the code of an exported program: header, README, and a program that runs it."""

from __future__ import annotations

from compiler.codegen.c.names import comment
from compiler.codegen.standalone import ALIGN
from compiler.exporting.build_files import compile_flags
from compiler.exporting.interface import Interface, Operand, described
from compiler.target.cpus import THUMB
from compiler.types.dtypes import FLOAT32, FLOAT64


def header(i: Interface, source: bool) -> str:
    """The header. `source`: its functions are in a C file; else they are in the header, and call
    what is in the object file."""
    name, big = i.name, i.name.upper()
    what = [
        comment(f"{name}, for target {i.program.target}. It uses no heap, files or threads."),
        *map(described, (*i.inputs, *i.outputs)),
        comment(f"{name} returns 0; 1 if the sizes do not fit; 2 if the arena does not begin at a "
                f"multiple of {ALIGN}."),
        comment("It may run several times at once, over arenas of their own."),
        comment(f"{name}_run is given tables of the same pointers and sizes, in the same order; it "
                "checks nothing."),
    ]  # fmt: skip
    counts = {"INPUTS": i.inputs, "OUTPUTS": i.outputs, "DIMS": i.dims}
    macros = [f"#define {big}_{what} {len(them)}" for what, them in counts.items()]
    macros.append(f"#define {big}_ALIGN {ALIGN}")
    if i.arena_bytes is not None:
        macros.append(f"#define {big}_ARENA_BYTES {i.arena_bytes}")
    if i.weights_bytes is not None:
        macros.append(f"#define {big}_WEIGHTS_BYTES {i.weights_bytes}")
    functions = i.prototypes() if source else [*i.prototypes()[-2:], *i.inline()]
    return "\n".join([
        *what, f"#ifndef {big}_H", f"#define {big}_H", "#include <stdint.h>", *macros,
        "#ifdef __cplusplus", 'extern "C" {', "#endif", "",
        "\n\n".join(functions), "",
        "#ifdef __cplusplus", "}", "#endif", "#endif", "",
    ])  # fmt: skip


_MEMORY = """static void *memory(int64_t bytes) {
  void *p = bytes < 0 ? 0 : aligned_alloc(64, ((size_t)bytes / 64 + 1) * 64);
  if (!p) {
    fprintf(stderr, "sizes that do not fit, or no memory\\n");
    exit(1);
  }
  return p;
}
"""
_CONTENT = """static void *content(const char *path, int64_t bytes) {
  void *p = memory(bytes);
  FILE *file = fopen(path, "rb");
  if (!file || fread(p, 1, (size_t)bytes, file) != (size_t)bytes || fgetc(file) != EOF) {
    fprintf(stderr, "%s must be a file of %lld bytes\\n", path, (long long)bytes);
    exit(1);
  }
  fclose(file);
  return p;
}
"""


def main_program(i: Interface) -> str:
    """A program that reads inputs from files of plain numbers and prints the outputs."""
    dims, weights = list(i.dims.values()), i.weights_bytes is not None
    arguments = [*dims, *(f"{o.name}.bin" for o in i.inputs), *(["WEIGHTS"] if weights else [])]
    usage = " ".join(["./main", *arguments])
    at = iter(range(1, len(arguments) + 1))
    lines = [f"int64_t {d} = strtoll(argv[{next(at)}], 0, 10);" for d in dims]
    lines += _positive(dims)
    bytes_ = f"{i.name}_arena_bytes({', '.join(dims)})" if dims else f"{i.name.upper()}_ARENA_BYTES"
    lines.append(f"void *arena = memory({bytes_});")  # first: it says which sizes do not fit
    for o in i.inputs:
        size = f"({i.elements(o)}) * (int64_t)sizeof({o.c_type})"
        lines.append(f"{o.c_type} *{o.name} = content(argv[{next(at)}], {size});")
    if weights:
        lines.append(f"void *weights = content(argv[{next(at)}], {i.name.upper()}_WEIGHTS_BYTES);")
    for o in i.outputs:
        size = f"({i.elements(o)}) * (int64_t)sizeof({o.c_type})"
        lines.append(f"{o.c_type} *{o.name} = memory({size});")
    given = [*(o.name for o in (*i.inputs, *i.outputs)), *dims, *(["weights"] if weights else [])]
    lines.append(f"int failed = {i.name}({', '.join([*given, 'arena'])});")
    lines.append('if (failed) fprintf(stderr, "it returns %d\\n", failed);')
    for o in i.outputs:
        lines.append(f"for (int64_t k = 0; !failed && k < {i.elements(o)}; ++k) {_print(o)}")
    lines += [f"free({n});" for n in (*given, "arena") if n not in dims]
    body = "\n".join(f"  {line}" for line in [*lines, "return failed;"])
    files = bool(i.inputs) or weights
    check = [
        f"  if (argc != {len(arguments) + 1}) {{",
        f'    fprintf(stderr, "usage: {usage}\\n");',
        "    return 1;",
        "  }",
    ]
    head = [
        comment(f"Runs {i.name} on files of plain numbers and prints the outputs: {usage}"),
        "#include <stdint.h>", "#include <stdio.h>", "#include <stdlib.h>", "",
        f'#include "{i.name}.h"', "", *_floor(i), _MEMORY, *([_CONTENT] if files else []),
        "int main(int argc, char **argv) {", *(["  (void)argv;"] if not arguments else []), *check,
    ]  # fmt: skip
    return "\n".join([*head, body, "}", ""])


def _positive(dims: list[str]) -> list[str]:
    if not dims:
        return []
    wrong = " || ".join(f"{d} < 1" for d in dims)
    return [f'if ({wrong}) return fprintf(stderr, "sizes must be at least 1\\n"), 1;']


def _floor(i: Interface) -> list[str]:
    """Helpers that sizes of operands need."""
    from compiler.codegen.c.helpers import prelude

    texts = [i.elements(o) for o in (*i.inputs, *i.outputs)]
    return [t for helper in prelude("\n".join(texts)) for t in (helper, "")]


def _print(o: Operand) -> str:
    if o.type.dtype in (FLOAT32, FLOAT64):
        return f'printf("%.{9 if o.type.dtype == FLOAT32 else 17}g\\n", (double){o.name}[k]);'
    kind = ("unsigned ", "llu") if o.c_type[0] == "u" else ("", "lld")
    return f'printf("%{kind[1]}\\n", ({kind[0]}long long){o.name}[k]);'


def readme(i: Interface, code: str, files: dict[str, str]) -> str:
    """What the files are, how to compile them, what a call needs."""
    name, target = i.name, i.program.target
    source = code.endswith(".c")
    line = f"cc {compile_flags(i)} -o main main.c {code} -lm" if source else (
        f"cc -std=c11 -O2 -o main main.c {code} -lm")  # fmt: skip
    if target.architecture is THUMB:
        line = "make"
    where = f"{target.triple}, CPU {target.cpu}" if not source else "any C11 compiler"
    arena = f"`{name.upper()}_ARENA_BYTES` = {i.arena_bytes:,} bytes" if not i.dims else (
        f"`{name}_arena_bytes({', '.join(i.dims.values())})` bytes")  # fmt: skip
    formats = [f"- {c}" for c in i.program.lowerings]
    return "\n".join([
        f"# {name}", "",
        f"A network as code for target `{target}` ({where}), made by dtypelab.", "",
        *(f"- `{file}`: {what}" for file, what in files.items()), "",
        "Compile the program that runs it on files of plain numbers (or say `make`):", "",
        "```", line, "```", "",
        "```c", *i.prototypes(), "```", "",
        f"The arena is memory of the caller's, {arena}, which begins at a multiple of {ALIGN}. "
        "Nothing else is written but the outputs: no heap, no files, no threads. Calls with arenas "
        "of their own may run at once.", "",
        *(["How custom datatypes are computed:", "", *formats, ""] if formats else []),
    ])  # fmt: skip
