"""Kernels: primitive functions scheduled, lowered and compiled, once per distinct workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from compiler.codegen import jit
from compiler.codegen.lower import NativeStage, lower_primfunc
from compiler.dtypes import Array
from compiler.errors import ConfigError, ScheduleError
from compiler.ir.expr import Atom, Constant, Function
from compiler.symbolic import Index, Var
from compiler.target import Target
from compiler.tensor.legalize import Legalized, legalize
from compiler.tensor.lower_custom import lower_custom_dtypes
from compiler.tensor.packed_arrays import aligned_copy as aligned_copy
from compiler.tensor.packed_arrays import pack_array
from compiler.tensor.schedule.choice import TileChoice
from compiler.tensor.schedule.default import schedule_default
from compiler.tensor.stmt import Intrin, PrimFunc, walk_stmts
from compiler.tuning.log import History


@dataclass(frozen=True)
class Argument:
    """What a kernel's input parameter is given: an atom of the primitive function, or a constant
    array."""

    atom: Atom | None
    array: Array | None


@dataclass(frozen=True)
class Kernel:
    """A compiled primitive function.

    Attributes:
        func: the scheduled PrimFunc, the very loops that run.
        stages: native functions, called in order.
        arguments: one per input parameter of `func`.
        outputs: how many output parameters follow.
        temps: bytes of each temporary buffer.
        tables: look-up tables, passed after the temporaries.
        dims: symbolic dimensions, passed last.
        tuned: whether its tiles come from a tuning log.
    """

    func: PrimFunc
    stages: tuple[NativeStage, ...]
    arguments: tuple[Argument, ...]
    outputs: int
    temps: tuple[Index, ...]
    tables: tuple[Array, ...]
    dims: tuple[Var, ...]
    tuned: bool = False


def build_kernel(f: Function, target: Target, history: History | None = None) -> Kernel:
    """Legalize, schedule, lower and compile a primitive function, with the tiles that `history`
    has for it.

    Raises:
        LoweringError: an operation has no lowering for its dtype and target.
        ConfigError: the tiles of the history do not fit.
    """
    legal = legalize(f)
    record = history.find(legal.func) if history is not None else None
    if record is None or history is None:
        return compile_kernel(legal, target)
    try:
        return replace(compile_kernel(legal, target, record.choice), tuned=True)
    except ScheduleError as e:
        text = f"{history.source}: workload {record.workload} ({legal.func.name}): {e}"
        raise ConfigError(f"{text}; correct or delete its line") from None


def compile_kernel(
    legal: Legalized, target: Target, choices: Mapping[str, TileChoice] | None = None
) -> Kernel:
    """Schedule (in place), lower and compile a loop nest.

    Raises:
        LoweringError: an operation has no lowering for its dtype and target.
        ScheduleError: a choice does not fit.
    """
    prim = legal.func
    constants = {
        b: a for b, a in zip(prim.params, legal.inputs, strict=False) if isinstance(a, Constant)
    }
    schedule_default(prim, target, constants, choices)
    arguments = []
    for b, a in zip(prim.params, legal.inputs, strict=False):
        if not isinstance(a, Constant):
            arguments.append(Argument(a, None))
        elif b in prim.packed:
            arguments.append(Argument(None, pack_array(prim.packed[b].order, a.data)))
        else:
            arguments.append(Argument(None, aligned_copy(a.data)))
    prim, tables = lower_custom_dtypes(prim, target.kind)
    name = f"{prim.name}_{jit.digest(str(prim), _instructions(prim), str(target))}"
    stages = []
    for s in lower_primfunc(replace(prim, name=name), tables):
        jit.compile_text(s.text, s.symbol, target)
        stages.append(s)
    return Kernel(
        func=prim,
        stages=tuple(stages),
        arguments=tuple(arguments),
        outputs=prim.outputs,
        temps=tuple(b.size * b.dtype.nbytes for b in prim.temps),
        tables=tuple(t.data for t in tables if t.data is not None),
        dims=tuple(prim.dims),
    )


def _instructions(prim: PrimFunc) -> str:
    """What the function's intrinsics emit (the text of the function only names them)."""
    used = {s.intrin for s, _, _ in walk_stmts(prim.body) if isinstance(s, Intrin)}
    return "\n".join(sorted(i.emitted for i in used))
