"""What exported programs are compiled with: a Makefile, and the same for CMake."""

from __future__ import annotations

from compiler.codegen.c.system_compiler import PLAIN, of_target
from compiler.exporting.interface import Interface


def compile_flags(i: Interface) -> str:
    """Flags that generated C is compiled with."""
    return " ".join([*PLAIN, *of_target(i.program.target)])


def makefile(i: Interface, code: str) -> str:
    """Rules for `main` and for libraries; `code`: the file that holds the program."""
    name, source = i.name, code.endswith(".c")
    flags = compile_flags(i)
    made = [] if not source else [
        f"{name}.o: {code}", f"\t$(CC) {flags} -fPIC -c -o $@ {code}", ""
    ]  # fmt: skip
    return "\n".join([
        f"main: main.c {name}.h {name}.o",
        f"\t$(CC) -std=c11 -O2 -o $@ main.c {name}.o -lm", "",
        *made,
        f"lib{name}.a: {name}.o", f"\t$(AR) rcs $@ {name}.o", "",
        f"lib{name}.so: {name}.o", f"\t$(CC) -shared -o $@ {name}.o -lm", "",
        "clean:", f"\trm -f main {f'{name}.o' if source else ''}".rstrip(), "",
        ".PHONY: clean", "",
    ])  # fmt: skip


def cmake_lists(i: Interface, code: str) -> str:
    """The target `libNAME`, which other projects may link, and `main`; `code` as for `makefile`."""
    name, flags = i.name, " ".join(f for f in compile_flags(i).split() if f != "-std=c11")
    library = f"add_library(lib{name} INTERFACE)"
    link = f"target_link_libraries(lib{name} INTERFACE ${{CMAKE_CURRENT_SOURCE_DIR}}/{code})"
    kind, made = "INTERFACE", [library, link]
    if code.endswith(".c"):
        kind, library = "PUBLIC", f"add_library(lib{name} STATIC {code})"
        options = f'"$<$<NOT:$<C_COMPILER_ID:MSVC>>:{flags.replace(" ", ";")}>"'
        made = [
            library,
            f"set_target_properties(lib{name} PROPERTIES",
            f"  OUTPUT_NAME {name} POSITION_INDEPENDENT_CODE ON)",
            f"target_compile_options(lib{name} PRIVATE {options})",
        ]
    return "\n".join([
        "cmake_minimum_required(VERSION 3.10)",
        f"project({name}_exported C)",
        "set(CMAKE_C_STANDARD 11)", "set(CMAKE_C_STANDARD_REQUIRED ON)", "",
        *made,
        f"target_include_directories(lib{name} {kind} ${{CMAKE_CURRENT_SOURCE_DIR}})",
        "if(UNIX)", f"  target_link_libraries(lib{name} {kind} m)", "endif()", "",
        "add_executable(main main.c)",
        f"target_link_libraries(main PRIVATE lib{name})", "",
    ])  # fmt: skip
