"""The native entry point of a whole graph: one function that calls every kernel in order."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.codegen.kernel_abi import Stage
from compiler.codegen.llvm.addresses import Addresses
from compiler.codegen.llvm.scope import Scope
from compiler.codegen.steps import ZERO, Pointer, Step
from compiler.symbolic import Index, Var
from compiler.target.emit import Emitter, Val
from compiler.target.intrinsics.exception_flags import BEGIN, END, watch_text
from compiler.target.registry import Target

POOL = "dtypelab_parallel"
"""`void (void (ptr block, i64 begin, i64 end) *run, ptr block, i64 extent, i64 threads)`: the
function that shares tasks out between threads."""

PARALLEL_WORK = 1 << 13
"""Scalar operations below which a stage runs on one thread. So few take less time than fork and
join, but one thread that does them alone takes half of the data from the other's cache."""


SLICES = 1 << 16
"""What the tasks of stages that run together are divided into."""


def entry_text(
    symbol: str, steps: Sequence[Step], dims: Sequence[Var], threads: int, target: Target
) -> str:
    """LLVM text of `symbol(inputs, outputs, constants, workspace, dims)`: tables of pointers, the
    workspace, and the symbolic dimensions as int64."""
    return _Entry(dims, threads, target).run(symbol, steps)


class _Entry:
    def __init__(self, dims: Sequence[Var], threads: int, target: Target):
        self.scope = Scope(Emitter(target.index_type))
        self.e, self.runtime = self.scope.e, Addresses(self.scope).runtime
        self.dims = list(dims)
        self.given = dict[Var, Val]()
        self.threads = threads
        self.pointer = target.pointer_bytes
        self.wrappers: dict[str, str] = {}
        self.externs: dict[str, str] = {}

    def run(self, symbol: str, steps: Sequence[Step]) -> str:
        e = self.e
        for k, v in enumerate(self.dims):
            self.given[v] = e.load(Val("%dims", "ptr"), 8 * k, "i64", 1, 8)
            self.scope.env[v] = e.as_index(self.given[v])
        for flag in dict.fromkeys(s.watch for s in steps if s.watch is not None):
            e.store(e.const(0, "i32"), self._pointer(flag), 0, 4)
        for group in _groups(steps):
            if group[0].function is not None:
                self._external(group[0], group[0].function)
            elif group[0].stage is None:
                self._copy(group[0])
            elif group[0].when is not None:
                self._call_when(group[0].when, group)
            else:
                self._call(group)
        params = ", ".join(
            f"ptr %{n}" for n in ("input", "output", "constant", "workspace", "dims")
        )
        body = "\n".join(
            [f"define void @{symbol}({params}) nounwind {{", "entry:", *e.lines, "  ret void", "}"]
        )
        decls = {**self.externs, **e.decls}
        watch = [watch_text()] if any(s.watch is not None for s in steps) else []
        return "\n".join([*decls.values(), *watch, *self.wrappers.values(), body])

    def _pointer(self, p: Pointer) -> Val:
        e = self.e
        if p.base == "workspace":
            return e.at(Val("%workspace", "ptr"), self.runtime(p.offset))
        key = (p.base, p.index)
        if key not in self.scope.memo:
            self.scope.memo[key] = e.load(
                Val(f"%{p.base}", "ptr"), self.pointer * p.index, "ptr", 1, self.pointer
            )
        return self.scope.memo[key]

    def _copy(self, s: Step) -> None:
        e = self.e
        fn = f"llvm.memcpy.p0.p0.{e.index}"
        e.decls[fn] = f"declare void @{fn}(ptr, ptr, {e.index}, i1)"
        target, source = (self._pointer(p) for p in s.pointers)
        e.lines.append(f"  call void @{fn}({target}, {source}, {self.runtime(s.size)}, i1 false)")

    def _external(self, s: Step, function: Pointer) -> None:
        e = self.e
        table = e.op(f"alloca [{max(1, len(s.pointers))} x ptr], align {self.pointer}", "ptr")
        for k, p in enumerate(s.pointers):
            e.store(self._pointer(p), table, self.pointer * k, self.pointer)
        address = e.load(self._pointer(function), 0, "ptr", 1, self.pointer)
        e.lines.append(f"  call void {address.name}({table}, ptr %dims)")

    def _call_when(self, flag: Pointer, group: Sequence[Step]) -> None:
        """Run stages of one kernel if the flag is set."""
        e = self.e
        value = e.load(self._pointer(flag), 0, "i32", 1, 4)
        wanted = e.op(f"icmp ne {value}, 0", "i1")
        run, done = (e.fresh(n)[1:] for n in ("when", "next"))
        e.lines += [f"  br {wanted}, label %{run}, label %{done}", f"{run}:"]
        kept, self.scope.memo = self.scope.memo, dict(self.scope.memo)
        self._call(group)
        self.scope.memo = kept
        e.lines += [f"  br label %{done}", f"{done}:"]

    def _call(self, group: Sequence[Step]) -> None:
        """Run stages of one kernel, together if there are several."""
        e = self.e
        args = [self._pointer(p) for p in group[0].pointers]
        args += [self._dim(v) for v in group[0].dims]
        stages = [s.stage for s in group if s.stage is not None]
        extents = [self._wide(s.extent) for s in stages if s.extent is not None]
        flag = group[0].watch
        watched = None if flag is None else self._pointer(flag)
        if len(extents) < len(stages):
            for stage in stages:
                self._alone(stage, args, watched)
            return
        work = sum((s.work for s in group), ZERO)
        low, high = work.range()
        if self.threads == 1 or (high is not None and high < PARALLEL_WORK):
            for stage in stages:
                self._alone(stage, args, watched)
            return
        if low is not None and low >= PARALLEL_WORK:
            self._fork_join(stages, args, extents, watched)
            return
        # How much there is to do depends on the symbolic dimensions: decide when it is known.
        enough = e.op(f"icmp sge {self.runtime(work)}, {PARALLEL_WORK}", "i1")
        fork, inline, done = (e.fresh(n)[1:] for n in ("fork", "alone", "next"))
        e.lines += [f"  br {enough}, label %{fork}, label %{inline}", f"{inline}:"]
        kept, self.scope.memo = self.scope.memo, dict(self.scope.memo)
        for stage in stages:
            self._alone(stage, args, watched)
        e.lines += [f"  br label %{done}", f"{fork}:"]
        self.scope.memo = dict(kept)
        self._fork_join(stages, args, extents, watched)
        self.scope.memo = kept
        e.lines += [f"  br label %{done}", f"{done}:"]

    def _alone(self, stage: Stage, args: Sequence[Val], watched: Val | None) -> None:
        """Call a stage on this thread."""
        given = list(args)
        if stage.extent is not None:
            given += [self.e.const(0, "i64"), self._wide(stage.extent)]
        self._declare(stage.symbol, [a.t for a in given])
        call = f"  call void @{stage.symbol}({', '.join(map(str, given))})"
        self.e.lines += [call] if watched is None else _watched(call, watched.name)

    def _dim(self, v: Var) -> Val:
        return self.given[v]

    def _wide(self, i: Index) -> Val:
        """A number of tasks, as kernels are given it."""
        return self.e.resized(self.runtime(i), "i64")

    def _declare(self, symbol: str, types: list[str]) -> None:
        self.externs[symbol] = f"declare void @{symbol}({', '.join(types)})"

    def _fork_join(
        self,
        stages: Sequence[Stage],
        args: Sequence[Val],
        extents: Sequence[Val],
        watched: Val | None,
    ) -> None:
        """Let the thread pool share out the tasks (see `pool`)."""
        e = self.e
        wrapper = self._wrapper(
            [s.symbol for s in stages], [a.t for a in args], watched is not None
        )
        self.externs[POOL] = f"declare void @{POOL}(ptr, ptr, i64, i64)"
        given = [*args, *extents, *([] if watched is None else [watched])]
        block = e.op(f"alloca [{len(given)} x i64], align 8", "ptr")
        for k, a in enumerate(given):
            e.store(a, block, 8 * k, 8)
        extent = extents[0] if len(stages) == 1 else e.const(SLICES, "i64")
        job = f"ptr @{wrapper}, {block}, {extent}, i64 {self.threads}"
        e.lines.append(f"  call void @{POOL}({job})")

    def _wrapper(self, symbols: Sequence[str], types: Sequence[str], watched: bool) -> str:
        """A function that the pool can call: it takes the arguments, the extents of several stages
        and the flag, if they are watched, from a block of memory. A range of slices is the same
        part of every stage. Each argument has eight bytes, whatever its kind."""
        name = f"range_{symbols[0]}_{len(symbols)}{'_watched' if watched else ''}"
        if name in self.wrappers:
            return name
        lines, given = [], []
        flags = ["ptr"] if watched else []
        for k, t in enumerate([*types, *(["i64"] * len(symbols)), *flags]):
            lines.append(f"  %p{k} = getelementptr i8, ptr %block, i64 {8 * k}")
            lines.append(f"  %a{k} = load {t}, ptr %p{k}, align 8")
        given = [f"{t} %a{k}" for k, t in enumerate(types)]
        for k, symbol in enumerate(symbols):
            begin, end = "%begin", "%end"
            if len(symbols) > 1:
                for bound in ("begin", "end"):
                    lines.append(f"  %{bound}{k}.s = mul i64 %{bound}, %a{len(types) + k}")
                    lines.append(f"  %{bound}{k} = udiv i64 %{bound}{k}.s, {SLICES}")
                begin, end = f"%begin{k}", f"%end{k}"
            call = ", ".join([*given, f"i64 {begin}", f"i64 {end}"])
            done = f"  call void @{symbol}({call})"
            flag = f"%a{len(types) + len(symbols)}"
            lines += _watched(done, flag) if watched else [done]
            self._declare(symbol, [*types, "i64", "i64"])
        head = f"define internal void @{name}(ptr %block, i64 %begin, i64 %end) nounwind {{"
        self.wrappers[name] = "\n".join([head, "entry:", *lines, "  ret void", "}"])
        return name


def _watched(call: str, flag: str) -> list[str]:
    """A call, and the flag set if it rounds."""
    return [f"  call void @{BEGIN}()", call, f"  call void @{END}(ptr {flag})"]


def _groups(steps: Sequence[Step]) -> list[list[Step]]:
    """Steps that follow each other, with stages of one kernel that may run together as one."""
    groups: list[list[Step]] = []
    for s in steps:
        if s.stage is not None and s.stage.joins:
            groups[-1].append(s)
        else:
            groups.append([s])
    return groups
