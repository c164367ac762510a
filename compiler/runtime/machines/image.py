"""A compiled program as what machines elsewhere are given: object files and weights."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.codegen.backend import Code, backend_of, refuse_libraries
from compiler.codegen.llvm import half, nearest
from compiler.codegen.llvm.standalone import caller_text
from compiler.codegen.standalone import Standalone, weights_file
from compiler.errors import UnsupportedError
from compiler.runtime.object_code import object_of
from compiler.runtime.program import Program
from compiler.target.registry import Target

NAME = "net"
"""What the public functions of images begin with: `net_run` (see
`compiler.codegen.standalone.run_params`)."""


@dataclass(frozen=True)
class Image:
    """A program that is yet to be linked.

    Attributes:
        program: what it computes.
        code: object files of its kernels and entry point, in no order.
    """

    program: Program
    code: tuple[bytes, ...]

    @property
    def target(self) -> Target:
        """What it is for."""
        return self.program.target

    def objects(self, mapped: bool = True) -> list[bytes]:
        """All object files for a linker, which define `net_run`. `mapped`: its argument `weights`
        is where the machine has put the content of `weights`; else they are in the code, and there
        is no such argument.

        Raises:
            LoweringError: the code is rejected.
        """
        text = caller_text(self._alone(mapped), self.target)
        caller = backend_of(self.target).relocatable(Code((f"{NAME}_run",), text), self.target)
        return [*self.code, caller]

    def with_code(self, old: bytes, new: bytes) -> Image:
        """The image with another object file in the place of one."""
        return replace(self, code=tuple(new if c == old else c for c in self.code))

    @property
    def weights(self) -> bytes:
        """The constants in one piece, which begins at a multiple of
        `compiler.codegen.standalone.ALIGN`."""
        return weights_file(self.program.constants, self._alone(True).offsets)

    def _alone(self, mapped: bool) -> Standalone:
        p = self.program
        return Standalone(NAME, p.symbol, p.constants, mapped, "")


def image_of(program: Program) -> Image:
    """The image of a program whose kernels and entry point are object code.

    Raises:
        UnsupportedError: it calls functions that are registered in this process, or has threads.
        LoweringError: it calls a function of a library that cannot be taken along.
    """
    program.refuse_externals(f"cannot be called on {program.target.triple}")
    if program.threads != 1:
        raise UnsupportedError(
            f"programs for {program.target.triple} run on one thread: build with threads=1, not "
            f"{program.threads}"
        )
    defined = {s.symbol for k in program.kernels for s in k.stages} | _SUPPORT
    code: dict[bytes, None] = {}
    for part in [k.code for k in program.kernels] + [program.code]:
        head, _, content = part.partition(b"\n")
        refuse_libraries(n for n in head.decode().split() if n not in defined)
        code[content] = None
    for symbols, text in _support(program.target):
        if any(name.encode() in content for name in symbols for content in code):
            made = object_of(Code(symbols, text), program.target)
            code[made.partition(b"\n")[2]] = None
    return Image(program, tuple(code))


_SUPPORT = {*half.SYMBOLS, *nearest.SYMBOLS}


def _support(target: Target) -> list[tuple[tuple[str, ...], str]]:
    """Functions that LLVM may call, and their text."""
    known: list[tuple[tuple[str, ...], str]] = [(half.SYMBOLS, half.TEXT)]
    return known if target.rounds else [*known, (nearest.SYMBOLS, nearest.TEXT)]
