"""build: a module becomes an Executable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from compiler.arithmetic.stochastic import random_dtype
from compiler.boundary.assumptions import Assumption, assumptions
from compiler.boundary.elements import elements_of
from compiler.boundary.index_ranges import index_ranges
from compiler.boundary.inputs import symbolic_sizes
from compiler.errors import InputError
from compiler.ir.expr import Call, Constant, Function, IRModule, Tuple, TupleGetItem, Var, atom_type
from compiler.lowering.choose import DtypeLowering, choose_lowerings, forms_of
from compiler.op.opdef import OpDef
from compiler.op.sizes import MATCH_SHAPE
from compiler.runtime.executable import Executable, GraphExecutable
from compiler.runtime.loader import loader_of
from compiler.runtime.program import Program
from compiler.runtime.program_builder import ProgramBuilder
from compiler.symbolic import Index
from compiler.symbolic import Var as Dim
from compiler.target.intrinsics import for_target
from compiler.target.registry import Target
from compiler.transform.fold_empty import without_empty
from compiler.transform.instantiate import with_sizes
from compiler.transform.preparation import prepare
from compiler.types.dtypes import INT16
from compiler.types.tensor_types import TensorType


def build(
    mod: IRModule,
    target: str | Target = "llvm",
    threads: int = 1,
    dtype_lowering: str | None = None,
) -> Executable:
    """Compile `main` of a module: to one native function, or, where there is control flow, to
    bytecode of a virtual machine.

    Args:
        mod: the module; it is optimized as the current PassContext says.
        target: `llvm` for this host, or e.g. `llvm -mcpu=haswell`; `c` for C source, compiled here.
        threads: threads that kernels may use, at least 1.
        dtype_lowering: how custom datatypes are computed (see `compiler.lowering.choose`):
            "vector", "table", "library"; None chooses the fastest for each datatype.

    Raises:
        UnsupportedError: unknown target.
        LoweringError: an operator or a custom datatype has no lowering; names it.
        InputError: a bad number of threads or lowering.
        ConfigError: the tuning log in use (see `apply_history_best`) cannot be read or does not
            fit.
    """
    if threads < 1:
        raise InputError(f"threads must be at least 1, not {threads}")
    chosen = Target.parse(target)
    sizes, assumed, elements = symbolic_sizes(mod.main), assumptions(mod), elements_of(mod)
    indices = index_ranges(mod)
    mod = prepare(mod)
    exe: Executable
    if needs_machine(mod):
        from compiler.vm.build import build_machine

        exe = build_machine(compile_graph, mod, chosen, threads, dtype_lowering, assumed)
    else:
        exe = compile_graph(mod, chosen, threads, dtype_lowering, sizes, (), assumed)
    exe.elements, exe.indices = elements, indices
    return exe


def compile_graph(
    mod: IRModule,
    target: Target,
    threads: int,
    dtype_lowering: str | None,
    sizes: Iterable[Index] = (),
    dims: Iterable[Dim] = (),
    assumed: Iterable[Assumption] = (),
) -> GraphExecutable:
    """Compile `main` of a prepared module, which has no control flow. `sizes`: dimensions that may
    not be zero. `dims`: dimensions that are given when it runs, though no input may show them.
    `assumed`: equalities of dimensions that are checked then.

    Raises:
        LoweringError: an operator or a custom datatype has no lowering; names it.
        InputError: there is no lowering of that name.
    """
    from compiler.passes.manager import PassContext

    context = PassContext.current()
    mod = without_empty(mod)
    program = _program(mod, target, threads, dtype_lowering, dims)
    program = replace(program, sizes=tuple(sizes), assumed=tuple(assumed))

    def sized(known: Mapping[Dim, int]) -> GraphExecutable:
        with context:
            alone = with_sizes(mod, {d: known[d] for d in program.dims})
            return compile_graph(alone, target, threads, dtype_lowering)

    return loader_of(target).load(program, sized if program.dims else None)


def compile_program(
    mod: IRModule,
    target: str | Target,
    threads: int = 1,
    dtype_lowering: str | None = None,
) -> Program:
    """What a loader makes an executable of, for a target that may be another machine than this
    (see `Target.anywhere`): code and constants of `main`, which has no control flow.

    Raises:
        LoweringError, InputError, UnsupportedError: as `build`.
    """
    chosen = Target.anywhere(target) if isinstance(target, str) else target
    sizes, assumed = symbolic_sizes(mod.main), assumptions(mod)
    program = _program(without_empty(prepare(mod)), chosen, threads, dtype_lowering)
    return replace(program, sizes=tuple(sizes), assumed=tuple(assumed))


def _program(
    mod: IRModule,
    target: Target,
    threads: int,
    dtype_lowering: str | None,
    dims: Iterable[Dim] = (),
) -> Program:
    lowerings = choose_lowerings(mod, dtype_lowering)
    program = ProgramBuilder(_optimize(mod, target, lowerings), target, threads, dims).run()
    return replace(program, lowerings=lowerings)


def needs_machine(mod: IRModule) -> bool:
    """Whether `main` has control flow, calls functions of the module, finds sizes in numbers, or
    returns what is no tensor."""
    f = mod.main
    plain = (Call, Tuple, TupleGetItem, Var, Constant)
    return not all(isinstance(atom_type(r), TensorType) for r in f.results) or any(
        not isinstance(v := b.value, plain)
        or (isinstance(v, Call) and (v.op is MATCH_SHAPE or not isinstance(v.op, OpDef | Function)))
        for b in f.bindings
    )


def optimize(
    mod: IRModule, target: str | Target = "llvm", dtype_lowering: str | None = None
) -> IRModule:
    """The graph-level passes that `build` runs: simplify, fold constants, hold custom values in
    forms, block layouts, fuse.

    Raises:
        InputError, LoweringError: as `build`.
    """
    mod = prepare(mod)
    return _optimize(mod, Target.parse(target), choose_lowerings(mod, dtype_lowering))


def _optimize(mod: IRModule, target: Target, lowerings: tuple[DtypeLowering, ...]) -> IRModule:
    from compiler.passes.manager import Pass, PassContext, Sequential
    from compiler.transform.alter_op_layout import AlterOpLayout
    from compiler.transform.fold_constant import FoldConstant
    from compiler.transform.fold_zero_point import FoldZeroPoint
    from compiler.transform.fuse_ops import fused
    from compiler.transform.represent_custom_dtypes import HoldForms
    from compiler.transform.split_exact import SplitExact

    pairs = any(i.steps and i.operand_dtypes == [INT16, INT16] for i in for_target(target))
    context = PassContext.current()
    passes: list[Pass] = []
    if context.opt_level > 2 or context.required_pass:  # else they are not even imported
        from compiler.transform.stronger import stronger

        passes += stronger()
    passes += [
        SplitExact(target.exception_flags, pairs),
        HoldForms(forms_of(lowerings)),
        FoldZeroPoint(),
    ]
    if not any(random_dtype(choice.dtype) for choice in lowerings):
        # Stochastic rounding goes by positions in unblocked results.
        passes += [AlterOpLayout(target), FoldConstant()]
    return fused(Sequential(passes, name="layouts")(mod))  # kernels are what the executor runs
