"""build: a module becomes an Executable, by the table of `compiler.stages`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from compiler.boundary.assumptions import Assumption, assumptions
from compiler.boundary.elements import elements_of
from compiler.boundary.index_ranges import index_ranges
from compiler.boundary.inputs import symbolic_sizes
from compiler.devices.building import built_on_devices
from compiler.devices.device import Device
from compiler.engines.engine import checked
from compiler.engines.linking import linked
from compiler.errors import InputError, UnsupportedError
from compiler.ir.draws import drawn
from compiler.ir.expr import Call, Constant, Function, IRModule, Tuple, TupleGetItem, Var, atom_type
from compiler.ir.handed import handed
from compiler.ir.outside import refuse_outside
from compiler.ir.regions import decisions, regions
from compiler.lowering.choose import DtypeLowering, choose_lowerings
from compiler.op.opdef import OpDef
from compiler.op.sizes import MATCH_SHAPE
from compiler.passes.manager import PassContext, Sequential
from compiler.passes.pipeline import run, sequence
from compiler.runtime.executable import Executable, GraphExecutable
from compiler.runtime.loader import loader_of, require
from compiler.runtime.program import Program
from compiler.runtime.program_builder import ProgramBuilder
from compiler.scheduling.network_choice import as_chosen
from compiler.stages import Job
from compiler.symbolic import Index
from compiler.symbolic import Var as Dim
from compiler.target.registry import Target, host
from compiler.transform.instantiate import with_sizes
from compiler.transform.preparation import prepare
from compiler.types.tensor_types import TensorType


def build(
    mod: IRModule,
    target: str | Target | Mapping[str, str | Target | Device] = "llvm",
    threads: int = 1,
    dtype_lowering: str | None = None,
    engines: Sequence[str] | str = (),
    costs: str | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Executable:
    """Compile `main` of a module: to one native function, or, where there is control flow, to
    bytecode of a virtual machine.

    Args:
        mod: the module; it is optimized as the current PassContext says.
        target: `llvm` for this host, or e.g. `llvm -mcpu=haswell`; `c` for C source, compiled here;
            `wasm32` or `llvm -mtriple=aarch64-linux`, say, for another machine, which an emulator
            that is installed runs; `accel -block=16`, say, for a simulated accelerator beside this
            host (see `compiler.target.accelerator`). Several, by the names of devices: `{"host":
            "llvm", "dev": "wasm32"}`; what is annotated for a device (see `place`) is computed
            there, and the rest where the fewest bytes are copied.
        threads: threads that kernels may use, at least 1; on devices, one.
        dtype_lowering: how custom datatypes are computed (see `compiler.lowering.choose`):
            "vector", "table", "library"; None chooses the fastest for each datatype.
        engines: other code generators, which compute what they can; costs, sizes: see `partition`.

    Raises:
        UnsupportedError: unknown target, or nothing that is installed runs its code; or an engine
            or a device cannot run here, which says what to install, or cannot compute what is
            annotated for it.
        LoweringError: an operator or a custom datatype has no lowering; names it.
        InputError: a bad number of threads or lowering, costs without engines; or a value is
            annotated for two devices.
        ConfigError: the tuning log in use (see `apply_history_best`) cannot be read or does not
            fit; or there is no such engine or device.
    """
    if threads < 1:
        raise InputError(f"threads must be at least 1, not {threads}")
    if costs is not None and not engines:
        raise InputError(f"costs={costs!r} measures engines, and none are named")

    def rest(main: IRModule, given: Target) -> Executable:
        if engines:
            main = partition(main, engines, costs, given, threads, sizes, dtype_lowering)
        return compiled(main, given, threads, dtype_lowering)

    if isinstance(target, Mapping):
        return built_on_devices(
            mod, target, lambda part, given: compiled(part, given, 1, dtype_lowering), rest
        )
    chosen = Target.parse(target)
    require(chosen)
    return rest(mod, chosen)


def partition(
    mod: IRModule,
    engines: Sequence[str] | str,
    costs: str | None = None,
    target: str | Target = "llvm",
    threads: int = 1,
    sizes: Mapping[str, int] | None = None,
    dtype_lowering: str | None = None,
) -> IRModule:
    """A module in which engines compute what they can: each region that one is handed is a function
    with the attribute `engine`, which `build` gives to it. The module is simplified first, as
    `build` does.

    Args:
        mod: the module; regions that it has already stay.
        engines: names of engines (see `compiler.engines`), the most wanted first.
        costs: None hands over all that the engines can compute; "measured" what makes the program
            quicker on this machine, of which `compiler.engines.decisions` tells (of several
            engines, each is tried as the most wanted one).
        target, threads, dtype_lowering: how the rest is computed, for "measured".
        sizes: name of an open dimension -> what to measure for.

    Raises:
        ConfigError: there is no such engine; names the nearest.
        UnsupportedError: an engine cannot run here; says what to install.
        InputError: an engine is named twice, there are no such costs, or a size is missing.
    """
    if costs not in (None, "measured"):
        raise InputError(f"costs are 'measured' or None, not {costs!r}")
    from compiler.transform import AnnotateTarget, MergeCompilerRegions, PartitionGraph

    parsed = Target.parse(target)
    names, number, divide = checked(engines), MergeCompilerRegions(), PartitionGraph()
    # The weights of an accelerator's layers stay as they are.
    ready = prepare(mod) if parsed.design is not None else _prepared(mod, parsed)
    if costs is None:
        return Sequential([AnnotateTarget(names), number, divide], name="partition")(ready)
    from compiler.engines.costs import Measurer, best_of, cheapest, clock_of

    measurer = Measurer(
        lambda m: compiled(m, parsed, threads, dtype_lowering),
        sizes or {},
        clock=clock_of(names, threads),
    )
    whole = not needs_machine(ready)
    orders = [(e, *(other for other in names if other != e)) for e in names]  # each comes first
    found = [
        cheapest(AnnotateTarget(order)(ready), number, divide, measurer, whole) for order in orders
    ]
    return best_of(found or [ready], measurer, whole)


def compiled(
    mod: IRModule,
    target: Target,
    threads: int,
    dtype_lowering: str | None = None,
    machine: bool | None = None,
) -> Executable:
    """Compile `main` of a module as `build` does; `machine` says whether for the virtual machine,
    which None leaves to the program.

    Raises:
        LoweringError, InputError, ConfigError: as `build`.
        UnsupportedError: there is control flow, which only the machine runs.
    """
    if target.design is not None:
        return _accelerated(mod, target, threads, dtype_lowering, machine)
    with as_chosen(mod, target, threads):
        return _compiled(mod, target, threads, dtype_lowering, machine)


def _compiled(
    mod: IRModule, target: Target, threads: int, dtype_lowering: str | None, machine: bool | None
) -> Executable:
    handed_over, decided, imported = regions(mod), decisions(mod), handed(mod)
    mod, runners = linked(mod, target, threads)
    sizes, assumed, elements = symbolic_sizes(mod.main), assumptions(mod), elements_of(mod)
    indices = index_ranges(mod)
    mod = _prepared(mod, target)
    needed = machine or needs_machine(mod)
    exe: Executable
    if needed and machine is False:
        raise UnsupportedError("the graph executor runs no control flow: use the vm executor")
    if needed and drawn(mod.main) is not None:
        raise UnsupportedError(
            "random draws reach no operator in control flow, or under the virtual machine: only "
            "a function that is a graph of operators has a parameter of draws"
        )
    if needed:
        from compiler.vm.build import build_machine

        exe = build_machine(compile_graph, mod, target, threads, dtype_lowering, assumed)
    else:
        exe = compile_graph(mod, target, threads, dtype_lowering, sizes, (), assumed)
    exe.elements, exe.indices = elements, indices
    exe.regions, exe.decisions, exe.runners = handed_over, decided, runners
    exe.imported = imported
    return exe


def _accelerated(
    mod: IRModule, target: Target, threads: int, dtype_lowering: str | None, machine: bool | None
) -> Executable:
    """What `compiled` makes for an accelerator: what that computes, and the rest for this
    machine."""
    from compiler.engines.accelerator import NAME, accelerated

    with accelerated(target) as finish:
        exe = compiled(
            partition(mod, NAME, target=target), host(), threads, dtype_lowering, machine
        )
        return finish(exe)


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
    context = PassContext.current()
    mod = run(mod, "emptiness")
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
    compiled: bool = True,
) -> Program:
    """What a loader makes an executable of, for a target that may be another machine than this
    (see `Target.anywhere`): code and constants of `main`, which has no control flow. Its entry
    point is `compiled`, or left as text, for those who make something else of that. What calls the
    code may be no process of ours: it uses no features that one has to ask its system for.

    Raises:
        LoweringError, InputError, UnsupportedError: as `build`.
    """
    chosen = (Target.anywhere(target) if isinstance(target, str) else target).unasked
    chosen.refuse_accelerator("programs that stand alone")
    refuse_outside(mod, "part of a program that stands alone")
    sizes, assumed = symbolic_sizes(mod.main), assumptions(mod)
    with as_chosen(mod, chosen, threads):
        plain = run(_prepared(mod, chosen), "emptiness")
        program = _program(plain, chosen, threads, dtype_lowering, compiled=compiled)
    return replace(program, sizes=tuple(sizes), assumed=tuple(assumed))


def _program(
    mod: IRModule,
    target: Target,
    threads: int,
    dtype_lowering: str | None,
    dims: Iterable[Dim] = (),
    compiled: bool = True,
) -> Program:
    lowerings = choose_lowerings(mod, dtype_lowering, target.look_ups)
    builder = ProgramBuilder(_optimize(mod, target, lowerings), target, threads, dims)
    program = builder.run(compiled)
    return replace(program, lowerings=lowerings)


def needs_machine(mod: IRModule) -> bool:
    """Whether `main` has control flow, calls functions of the module, finds sizes in numbers, or
    takes or returns what is no tensor."""
    f = mod.main
    plain = (Call, Tuple, TupleGetItem, Var, Constant)
    outside = (*f.params, *f.results)
    return not all(isinstance(atom_type(a), TensorType) for a in outside) or any(
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
    parsed = Target.parse(target)
    with as_chosen(mod, parsed):
        mod = _prepared(mod, parsed)
        return _optimize(mod, parsed, choose_lowerings(mod, dtype_lowering, parsed.look_ups))


def _prepared(mod: IRModule, target: Target) -> IRModule:
    """A module that is compiled for `target`, with weights as they are read, and simplified."""
    return prepare(sequence("weights", "weights", told=Job(target, ()))(mod))


def _optimize(mod: IRModule, target: Target, lowerings: tuple[DtypeLowering, ...]) -> IRModule:
    mod = sequence("layouts", "heads", "layouts", told=Job(target, lowerings))(mod)
    fused: IRModule = run(mod, "fusion")  # kernels are what the executor runs
    return sequence("attention", "attention", "draws")(fused)
