"""Programs for grids whose kernels the interpreter of loop nests runs, one thread after another: it
refuses threads and blocks that meet in an element without a barrier."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import numpy as np

from compiler.build import compile_program
from compiler.codegen.steps import Pointer
from compiler.interpret import loop_nests
from compiler.ir.expr import IRModule
from compiler.runtime.executable import GraphExecutable
from compiler.runtime.program import Program
from compiler.symbolic import Index
from compiler.tensor.expr import Buffer

SIMT = "cuda -arch=sm_80 -runner=simt"


def interpreted(mod: IRModule, target: str = SIMT) -> GraphExecutable:
    """The module, whose kernels are interpreted as they are scheduled for a grid."""
    program = compile_program(mod, target)
    return GraphExecutable(program, _Entry(program))


def _array(b: Buffer, address: int, env: dict[Any, int]) -> Any:
    shape = tuple(int(Index.of(d).value(env)) for d in b.shape)
    size = int(np.prod(shape)) * b.dtype.storage.itemsize
    memory = (ctypes.c_char * max(size, 1)).from_address(address)
    return np.frombuffer(memory, np.uint8, size).view(b.dtype.storage).reshape(shape)


class _Entry:
    def __init__(self, program: Program):
        self.program = program
        self.stages = {
            s.symbol: (k.func, number) for k in program.kernels for number, s in enumerate(k.stages)
        }
        self.launched = 0

    def __call__(self, given: int, made: int, constants: int, arena: int, dims: int) -> None:
        p = self.program
        values = (ctypes.c_int64 * max(1, len(p.dims))).from_address(dims)
        env = dict(zip(p.dims, values, strict=False))
        tables = {"input": given, "output": made, "constant": constants}

        def address(at: Pointer) -> int:
            if at.base == "workspace":
                return arena + int(at.offset.value(env))
            return int(ctypes.c_size_t.from_address(tables[at.base] + 8 * at.index).value)

        for step in p.steps:
            if step.stage is None:
                to, source = map(address, step.pointers)
                ctypes.memmove(to, source, int(step.size.value(env)))
                continue
            func, number = self.stages[step.stage.symbol]
            own = dict(zip(func.dims, (env[d] for d in step.dims), strict=True))
            every = [*func.params, *func.temps]
            found = [_array(b, address(q), own) for b, q in zip(every, step.pointers, strict=False)]
            one = replace(func, params=every, temps=[], body=[func.body[number]])
            with np.errstate(all="ignore"):
                loop_nests.run(one, found, own)
            self.launched += 1
