"""How many instructions each kernel of a program takes, on machines that count them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.boundary.inputs import bind_inputs
from compiler.codegen.backend import Code, backend_of
from compiler.errors import InputError
from compiler.runtime.elsewhere import ElsewhereExecutable
from compiler.runtime.executable import Executable
from compiler.runtime.machines.image import NAME, image_of
from compiler.runtime.machines.qemu_arm import MARKS, QEMU_ARM, OnBoard
from compiler.types.dtypes import Array


@dataclass(frozen=True)
class KernelCount:
    """Instructions of the stages of one kernel.

    Attributes:
        symbol: the name of its code.
        nodes: of the model.
    """

    symbol: str
    nodes: str
    instructions: int


@dataclass(frozen=True)
class Counts:
    """A call of a program on a board.

    Attributes:
        kernels: in order of execution.
        instructions: in total, those between kernels included.
        stack: bytes of the stack that it used.
        code: bytes of instructions, functions of libraries and start-up code included.
        outputs: what it computed.
    """

    kernels: tuple[KernelCount, ...]
    instructions: int
    stack: int
    code: int
    outputs: tuple[Array, ...]


def instruction_counts(exe: Executable, /, *args: Any, **kwargs: Any) -> Counts:
    """Count the instructions of every kernel of `exe` on the given inputs.

    Raises:
        InputError: the inputs do not fit, or `exe` does not run on a microcontroller.
        MachineError: the program fails.
    """
    if not isinstance(exe, ElsewhereExecutable) or exe.machine is not QEMU_ARM:
        raise InputError(
            "instructions are counted of programs for microcontrollers, on boards that QEMU "
            f"emulates: target {str(exe.target)!r} is none"
        )
    p = exe.program
    image = image_of(p)
    steps = [s for s in p.steps if s.stage is not None]
    if len(steps) > MARKS or any(s.when is not None for s in steps):
        raise InputError("the kernels of this program are too many to count, or do not always run")
    symbols = {s.stage.symbol for s in steps if s.stage is not None}
    lines = []
    for line in p.entry.text.splitlines():
        lines.append(line)
        called = line.strip().removeprefix("call void @").partition("(")[0]
        if called in symbols and line.lstrip().startswith("call"):
            lines.append(f"  call void @{NAME}_mark()")
    text = "\n".join([f"declare void @{NAME}_mark()", *lines])
    entry = backend_of(p.target).relocatable(Code(p.entry.symbols, text), p.target)
    plain = p.code.partition(b"\n")[2]
    loaded = QEMU_ARM.load(image.with_code(plain, entry))
    assert isinstance(loaded, OnBoard)
    arrays, dims = bind_inputs(p.inputs, args, kwargs)
    outputs = [np.zeros_like(a) for a in exe.run(arrays, dims)]
    arena = int(p.workspace.value(dims))
    total = loaded.run(arrays, outputs, [dims[v] for v in p.dims], arena)
    return Counts(_by_kernel(steps, loaded.marks), total, loaded.stack, loaded.code, tuple(outputs))


def _by_kernel(steps: list[Any], marks: list[int]) -> tuple[KernelCount, ...]:
    """Neighbouring stages of a kernel together."""
    found: list[KernelCount] = []
    for step, begin, end in zip(steps, [0, *marks], marks, strict=False):
        kernel = step.stage.symbol.rpartition("_")[0]
        nodes = step.nodes
        if found and found[-1].symbol == kernel and not nodes:  # only the first stage has names
            before = found.pop()
            begin, nodes = begin - before.instructions, before.nodes
        found.append(KernelCount(kernel, nodes, end - begin))
    return tuple(found)
