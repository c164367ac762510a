"""A module without control flow becomes the program of one native function."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from compiler.boundary.external import External
from compiler.codegen.backend import Code, backend_of
from compiler.codegen.steps import Pointer, Step
from compiler.errors import LoweringError, ScheduleError
from compiler.ir.expr import (
    Atom,
    Call,
    Constant,
    Function,
    IRModule,
    Tuple,
    TupleGetItem,
    Var,
    atom_type,
    tensor_type,
)
from compiler.ir.function_calls import CALL_TIR, is_callee
from compiler.ir.tensor_programs import callee
from compiler.lowering.legalize import Legalized, known_finite
from compiler.op.opdef import OpDef
from compiler.runtime.beside import Beside
from compiler.runtime.caches_in_place import Room, append_nest, appended
from compiler.runtime.concat_in_place import Concatenations, concatenated, returned
from compiler.runtime.kernels import (
    Kernel,
    aligned_copy,
    build_kernel,
    compile_kernel,
)
from compiler.runtime.loader import loader_of
from compiler.runtime.memory import Lifetime, plan_memory
from compiler.runtime.object_code import object_of
from compiler.runtime.program import Program
from compiler.runtime.rounding_fallback import Conditions, Fallback, conditions
from compiler.scheduling.tuning_log import active_history
from compiler.scheduling.user_schedules import with_own_loops
from compiler.symbolic import Index
from compiler.symbolic import Var as Dim
from compiler.target.registry import Target
from compiler.transform.instantiate import with_numbered_dims
from compiler.types.dtypes import INT32, Array
from compiler.types.tensor_types import TensorType, TupleType, Type

_Entry = tuple[Kernel | External, tuple[Atom, ...], tuple[int, ...]]
"""What runs, the atom of each of its arguments, the roots of its results."""


def _leaves(t: Type | None, fields: int | None = None) -> int:
    """How many tensors a value of type `t` consists of, or its first `fields` fields do."""
    return sum(map(_leaves, t.fields[:fields])) if isinstance(t, TupleType) else 1


class ProgramBuilder:
    """Lays out one function: kernels, tensors' lifetimes, the memory plan, the native entry."""

    def __init__(self, mod: IRModule, target: Target, threads: int, dims: Iterable[Dim] = ()):
        self.mod, self.f, self.target, self.threads = mod, mod.main, target, threads
        self.extra_dims = sorted(dims, key=str)
        self.history = active_history(target)
        self.kernels: list[_Entry] = []
        self.constants: list[Array] = []
        self.constant_index: dict[int, int] = {}
        # Every tensor value has a root id; views share their operand's root.
        self.root: dict[Var, tuple[int, ...]] = {}
        self.types: list[TensorType] = []
        self.home: dict[int, Pointer] = {}
        self.concatenations = Concatenations()
        self.room = Room(self.f)
        self.fallbacks: list[Fallback] = []
        self.rounds: set[int] = set()  # kernels that are not watched
        self.nodes: dict[int, str] = {}  # of the model, by kernel
        self.conditions = Conditions({}, {})
        self.beside = Beside()

    def run(self, compiled: bool = True) -> Program:
        """The program of the function; its entry point is `compiled`, or left as text.

        Raises:
            LoweringError: a kernel has no lowering; names the operators and nodes.
        """
        f = self.f
        for k, p in enumerate(f.params):
            r = self._new(tensor_type(p))
            self.root[p], self.home[r] = (r,), Pointer("input", k)
        with self.beside:
            loader_of(self.target).prepare(self.threads, self.beside)
            for b in f.bindings:
                self._bind(b.var, b.value)
            self.beside.finish()
        copies = self._place_outputs()
        self.conditions = self._conditions()
        plan, temps = self._plan()
        steps = [s for k in range(len(self.kernels)) for s in self._steps(k, temps[k])]
        steps += copies
        dims = self._dims(steps)
        backend = backend_of(self.target)
        entry = backend.entry(steps, dims, self.threads, self.target)
        parts: tuple[Code, ...] = ()
        if not backend.separate or not compiled:
            sources = (k.source_code for k, _, _ in self.kernels if isinstance(k, Kernel))
            parts = (*dict.fromkeys(sources), entry)
        if not backend.separate:
            entry = backend.joined(parts)
        return Program(
            target=self.target,
            threads=self.threads,
            inputs=tuple((p.name, tensor_type(p)) for p in f.params),
            outputs=tuple(zip(self._output_names(), map(tensor_type, f.results), strict=True)),
            kernels=tuple(k for k, _, _ in self.kernels if isinstance(k, Kernel)),
            externals=tuple(k for k, _, _ in self.kernels if isinstance(k, External)),
            constants=tuple(self.constants),
            dims=tuple(dims),
            workspace=plan,
            entry=entry,
            code=object_of(entry, self.target) if compiled else b"",
            steps=tuple(steps),
            parts=() if compiled else parts,
        )

    def _output_names(self) -> list[str]:
        names = list(self.mod.attrs.get("outputs", ()))
        if len(names) == len(self.f.results):
            return names
        return [
            r.name if isinstance(r, Var) else f"output{k}" for k, r in enumerate(self.f.results)
        ]

    # ---- values ----------------------------------------------------------------------------------
    def _new(self, t: TensorType) -> int:
        self.types.append(t)
        return len(self.types) - 1

    def _roots(self, a: Atom) -> tuple[int, ...]:
        if isinstance(a, Var):
            return self.root[a]
        r = self._new(a.type)
        self.home[r] = Pointer("constant", self._constant(a.data))
        return (r,)

    def _constant(self, data: Array) -> int:
        if id(data) not in self.constant_index:
            self.constant_index[id(data)] = len(self.constants)
            # Kernel constants are aligned already and kept alive by the kernel.
            ready = data.ctypes.data % 64 == 0 and data.flags["C_CONTIGUOUS"]
            self.constants.append(data if ready else aligned_copy(data))
        return self.constant_index[id(data)]

    def _bind(self, var: Var, value: Any) -> None:
        if isinstance(value, Tuple):
            self.room.refuse(value.fields, "a tuple")
            self.root[var] = tuple(r for a in value.fields for r in self._roots(a))
        elif isinstance(value, TupleGetItem):
            first = _leaves(value.value.type, value.index)
            count = _leaves(var.type)
            self.root[var] = self._roots(value.value)[first : first + count]
        elif isinstance(value, Call) and isinstance(value.op, Function):
            if self._append(value.op, value.args, var):
                return
            if self._concatenate(value.op, value.args, var):
                return
            f = self.room.given(value.op, value.args)
            names: dict[Dim, Dim] = {}
            if self.extra_dims:  # the kernels of regions that differ in found dimensions are shared
                f, names = with_numbered_dims(f)
            kernel = self._kernel(f, var)
            kernel = kernel.with_dims(names) if names else kernel
            ops = [b.value.op for b in value.op.bindings if isinstance(b.value, Call)]
            if any(isinstance(op, OpDef) and op.rounds for op in ops):
                self.rounds.add(len(self.kernels))
            inner = dict(zip(f.params, value.args, strict=True))
            atoms = tuple(
                inner[a.atom] if isinstance(a.atom, Var) else Constant.of(0)
                for a in kernel.arguments
            )
            origins = dict.fromkeys(o for b in f.bindings for o in b.origins)
            self.nodes[len(self.kernels)] = ", ".join(origins)
            self._run(kernel, atoms, var)
        elif is_callee(value):
            self.room.refuse(value.args, "a function from outside")
            self._run(self._called(value), value.args, var)
        elif isinstance(value, Call):  # a view: the operand's memory under another shape
            assert isinstance(value.op, OpDef)
            assert value.op.view, f"{value.op} is in no kernel"
            second = value.op.second_if_rounded and not self._fall_back(value)
            self.root[var] = self._roots(value.args[second])
            self.room.views(var, value.args[second])
        else:
            assert isinstance(value, Var | Constant)
            self.room.views(var, value)
            self.root[var] = self._roots(value)

    def _append(self, f: Function, args: Sequence[Atom], var: Var) -> bool:
        """Let a call append to a cache where that is, if its first operand is one."""
        cache = args[0] if args else None
        if not appended(f) or not isinstance(cache, Var) or cache not in self.room.shapes:
            return False
        shape = self.room.shapes[cache]
        kernel = compile_kernel(append_nest(f, shape), self.target, beside=self.beside)
        inner = dict(zip(f.params, args, strict=True))
        atoms = tuple(
            inner[a.atom] if isinstance(a.atom, Var) else Constant.of(0) for a in kernel.arguments
        )
        self.root[var] = self.root[cache]
        self.room.shapes[var] = shape
        self.kernels.append((kernel, atoms, self.root[cache]))
        return True

    def _concatenate(self, f: Function, args: Sequence[Atom], var: Var) -> bool:
        """Let what a concatenation joins be computed in the memory of its result, if it can be."""
        if not (wanted := concatenated(f)):
            return False
        given = dict(zip(f.params, args, strict=True))
        parts = [a for p in wanted if isinstance(a := given[p], Var)]
        kept = returned(self.f.results, self.f.bindings)
        calls = (b.value for b in self.f.bindings if isinstance(b.value, Call))
        choosing = any(isinstance(c.op, OpDef) and c.op.second_if_rounded for c in calls)
        if len(parts) != len(args) or var in kept or choosing:
            return False
        roots = [r for a in parts for r in self.root[a]]
        made = {r for *_, outs in self.kernels for r in outs} | self.concatenations.wholes
        taken = {r for v in kept for r in self.root.get(v, ())} | self.concatenations.inside.keys()
        taken |= {r for v in self.room.shapes for r in self.root.get(v, ())}
        if len(set(roots)) != len(parts) or not made - taken >= set(roots):
            return False
        whole = self._new(tensor_type(var))
        self.root[var] = (whole,)
        self.concatenations.add(whole, [(r, self.types[r]) for r in roots])
        return True

    def _run(self, what: Kernel | External, atoms: tuple[Atom, ...], var: Var) -> None:
        t = atom_type(var)
        types = t.fields if isinstance(t, TupleType) else (t,)
        self.root[var] = tuple(self._new(x) for x in types if isinstance(x, TensorType))
        self.kernels.append((what, atoms, self.root[var]))

    def _called(self, value: Call) -> Kernel | External:
        """The kernel of a tensor program, or the place where a registered function is called."""
        name = value.attrs.func
        if value.op is not CALL_TIR:
            types = (*map(tensor_type, value.args), *value.attrs.outputs)
            return External(name, types, self._constant(aligned_copy(np.zeros(1, np.uint64))))
        f = callee(self.mod, value)
        for b, a in zip(f.params, value.args, strict=False):
            b.finite = known_finite(a)
        try:
            with self.beside.blaming(lambda e: LoweringError(f"@{name}: {e}")):
                legal = Legalized(with_own_loops(f), value.args)
                return compile_kernel(legal, self.target, beside=self.beside)
        except ScheduleError as e:
            raise LoweringError(f"@{name}: {e}") from None

    def _fall_back(self, value: Call) -> bool:
        """Let both operands be computed into the memory of the first; False where kernels do not
        compute both, so that the second one is to be taken."""
        (first,), (second,) = map(self._roots, value.args)
        writers = [{k for k, e in enumerate(self.kernels) if r in e[2]} for r in (first, second)]
        if first == second or not all(writers):
            return False
        flag = self._new(TensorType((16,), INT32))  # a cache line of its own
        self.fallbacks.append(Fallback(flag, *map(frozenset, writers)))
        for k in writers[1]:
            kernel, atoms, outs = self.kernels[k]
            if any(first in self._roots(a) for a in atoms):
                raise LoweringError(f"{value.op}: compute the second operand without the first")
            self.kernels[k] = (kernel, atoms, tuple(first if r == second else r for r in outs))
        self.root = {v: (first,) if roots == (second,) else roots for v, roots in self.root.items()}
        return True

    def _kernel(self, f: Function, var: Var) -> Kernel:
        def blame(e: LoweringError) -> LoweringError:
            ops = ", ".join(str(b.value.op) for b in f.bindings if isinstance(b.value, Call))
            origins = dict.fromkeys(o for b in f.bindings for o in b.origins)
            where = f" (node {', '.join(origins)})" if origins else f" (%{var.name})"
            return LoweringError(f"{ops}{where}: {e}")

        with self.beside.blaming(blame):
            return build_kernel(f, self.target, self.history, self.beside)

    # ---- placement -------------------------------------------------------------------------------
    def _place_outputs(self) -> list[Step]:
        """Let results be computed in the output arrays; what cannot be is copied at the end."""
        copies = []
        self.room.refuse(self.f.results, "the caller")
        for k, r in enumerate(self.f.results):
            (root,) = self._roots(r)
            there = Pointer("output", k)
            if root in self.home:
                t = tensor_type(r)
                size = Index.of(t.size) * t.dtype.nbytes
                copies.append(Step(None, (there, self.home[root]), size=size))
            else:
                self.home[root] = there
        return copies

    def _plan(self) -> tuple[Index, list[tuple[Pointer, ...]]]:
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for k, (_, atoms, outs) in enumerate(self.kernels):
            for part in [*(r for a in atoms if isinstance(a, Var) for r in self.root[a]), *outs]:
                r, _ = self.concatenations.place(part)
                if r not in self.home:
                    first.setdefault(r, k)
                    last[r] = k
        for c in self.fallbacks:
            first[c.flag], last[c.flag] = 0, self.conditions.last(c.flag)
        tensors = list(first)
        lifetimes = [
            Lifetime(Index.of(self.types[r].size) * self.types[r].dtype.nbytes, first[r], last[r])
            for r in tensors
        ]
        temps = [
            Lifetime(size, k, k)
            for k, (kernel, _, _) in enumerate(self.kernels)
            for size in _temps(kernel)
        ]
        plan = plan_memory([*lifetimes, *temps])
        for r, offset in zip(tensors, plan.offsets, strict=False):
            self.home[r] = Pointer("workspace", offset=offset)
        for part in self.concatenations.inside:
            whole, before = self.concatenations.place(part)
            self.home[part] = Pointer("workspace", offset=self.home[whole].offset + before)
        rest = iter(plan.offsets[len(tensors) :])
        placed = [
            tuple(Pointer("workspace", offset=next(rest)) for _ in _temps(kernel))
            for kernel, _, _ in self.kernels
        ]
        return plan.total, placed

    def _conditions(self) -> Conditions:
        """Which kernels are watched, and which run only if others have rounded."""
        reads = [
            {r for a in atoms if isinstance(a, Var) for r in self.root[a]}
            for _, atoms, _ in self.kernels
        ]
        # What is called besides kernels always runs.
        outside = {r for k, _, outs in self.kernels if isinstance(k, External) for r in outs}
        kept = {r for a in self.f.results for r in self._roots(a)} | outside
        found = conditions(self.fallbacks, reads, [set(outs) for *_, outs in self.kernels], kept)
        return replace(found, watch={k: f for k, f in found.watch.items() if k not in self.rounds})

    def _steps(self, k: int, temps: Sequence[Pointer]) -> list[Step]:
        kernel, atoms, outs = self.kernels[k]
        if isinstance(kernel, External):
            given = [self.home[root] for a in atoms for root in self._roots(a)]
            function = Pointer("constant", kernel.constant)
            return [Step(None, (*given, *(self.home[r] for r in outs)), function=function)]
        pointers = []
        for argument, atom in zip(kernel.arguments, atoms, strict=True):
            if argument.array is not None:
                pointers.append(Pointer("constant", self._constant(argument.array)))
            else:
                (root,) = self._roots(atom)
                pointers.append(self.home[root])
        pointers += [self.home[r] for r in outs]
        pointers += temps
        pointers += [Pointer("constant", self._constant(t)) for t in kernel.tables]
        flags = [d.get(k) for d in (self.conditions.watch, self.conditions.when)]
        watch, when = (None if f is None else self.home[f] for f in flags)
        return [
            Step(
                s,
                tuple(pointers),
                kernel.dims,
                work=s.work,
                watch=watch,
                when=when,
                nodes="" if number else self.nodes.get(k, ""),
            )
            for number, s in enumerate(kernel.stages)
        ]

    def _dims(self, steps: Sequence[Step]) -> list[Dim]:
        found: dict[Dim, None] = {}
        for p in self.f.params:
            for d in tensor_type(p).shape:
                found.update(dict.fromkeys(sorted(Index.of(d).vars(), key=str)))
        for d in self.room.dims:
            found.update(dict.fromkeys(sorted(Index.of(d).vars(), key=str)))
        found.update(dict.fromkeys(self.extra_dims))
        known = set(found)
        for s in steps:
            for v in s.dims:
                if v not in known:
                    raise LoweringError(f"dimension {v} is not given by any input")
        return list(found)


def _temps(what: Kernel | External) -> tuple[Index, ...]:
    return what.temps if isinstance(what, Kernel) else ()
