"""Statements of a loop nest to LLVM text, in one function.

- serial loop: induction variable, one strength-reduced pointer per buffer, one phi per live
  register;
- unrolled loop: the body again, with the variable bound to an int; vector loop: the variable
  becomes lanes;
- access: flat offset = int + lane pattern (+ what is not in the pointer), see `addresses`;
- register buffer: SSA values keyed by (offset, lane pattern);
- local buffer: memory on the stack;
- attempt: a branch on whether any of the watched registers is NaN.
"""

from __future__ import annotations

from collections.abc import Iterator

from compiler.codegen.llvm.accesses import Accesses
from compiler.codegen.llvm.addresses import Addresses, SizeSums
from compiler.codegen.llvm.fences import Fences
from compiler.codegen.llvm.lockstep import in_lockstep
from compiler.codegen.llvm.matrices import write_matrix
from compiler.codegen.llvm.scalars import Scalars
from compiler.codegen.llvm.scope import Scope
from compiler.codegen.parallel_tasks import Numbering, parallel_tasks
from compiler.errors import LoweringError
from compiler.symbolic import Index
from compiler.target.emit import LLVM_BYTES, Emitter, Val, memory_type
from compiler.target.registry import Target
from compiler.tensor.expr import Buffer
from compiler.tensor.lanes import points
from compiler.tensor.stmt import Attempt, For, Intrin, Pick, PrimFunc, Stmt, Store, When, accesses


class Statements:
    """One function: statements, over what reads, writes and evaluates.

    Attributes:
        define: how its definition begins, up to its name.
    """

    define = "define void"

    def __init__(
        self,
        func: PrimFunc,
        tables: list[Buffer],
        body: Stmt,
        target: Target | None,
        library: bool = True,
    ):
        self.func, self.body, self.tables = func, body, tables
        self.scope = scope = Scope(Emitter(self._index_type(target)))
        self.e = scope.e
        self.stack: list[str] = []
        self.addresses = Addresses(scope, self._size_sums())
        written = {b for b, _, w, _ in accesses([body]) if w}
        words = target is not None and target.scalar
        self.fences = Fences(scope, self.addresses, target)
        self.accesses = Accesses(scope, self.addresses, written, func.prefetch, words)
        features = frozenset[str]() if target is None else target.enabled
        self.scalars = Scalars(scope, self.addresses, self.accesses, features, library)
        self.block = "entry"
        self.tasks: dict[int, Numbering] = {}
        self.ends: list[int] | None = None

    def run(self, symbol: str) -> tuple[str, Index | None]:
        """LLVM text of the function, and the number of its tasks (see `NativeStage`)."""
        e, f, s = self.e, self.func, self.body
        params = []
        for k, b in enumerate([*f.params, *f.temps, *self.tables]):
            name = f"%b{k}"
            params.append(f"{self._parameter(b)} {name}")
            self.scope.cursor[b] = (Val(name, "ptr"), {})
        e.lines = self.stack  # long sums of sizes there need the dimensions
        for k, v in enumerate(f.dims):
            params.append(f"i64 %d{k}")
            self.scope.env[v] = e.as_index(Val(f"%d{k}", "i64"))
        e.lines = []
        extent, self.tasks = parallel_tasks(s)
        if extent is not None:
            params += ["i64 %begin", "i64 %end"]
        for b in dict.fromkeys(b for b, *_ in accesses([s]) if b.scope == "local"):
            self.scope.cursor[b] = (self._on_stack(b), {})
        self._begin(symbol)
        self._statements([s])
        head = f"{self.define} @{symbol}({', '.join(params)}) nounwind{self._facts()} {{"
        text = "\n".join(
            [*e.decls.values(), head, "entry:", *self.stack, *e.lines, "  ret void", "}"]
        )
        return text, extent

    def _index_type(self, target: Target | None) -> str:
        return "i64" if target is None else target.index_type

    def _size_sums(self) -> SizeSums | None:
        return SizeSums(self.scope, self.func.dims, self.stack)

    def _parameter(self, b: Buffer) -> str:
        """The type of the pointer to a buffer, and what LLVM may take for granted of it."""
        return "ptr noalias nocapture"

    def _facts(self) -> str:
        """What else LLVM may take for granted of the function: nothing."""
        return ""

    def _begin(self, symbol: str) -> None:
        """What comes before the first statement: nothing."""

    # ---- statements ------------------------------------------------------------------------------
    def _statements(self, body: list[Stmt]) -> None:
        for s in body:
            if isinstance(s, For):
                self._loop(s)
            elif isinstance(s, Intrin):
                self._intrin(s)
            elif isinstance(s, Attempt):
                self._attempt(s)
            elif isinstance(s, When):
                self._when(s)
            elif isinstance(s, Pick):
                self._pick(s)
            elif isinstance(s, Store):
                self._store(s)

    def _loop(self, s: For) -> None:
        n = self.addresses.known(s.extent)
        if s.kind == "vector":
            if n is None:
                raise LoweringError(
                    f"cannot vectorize {s.var}: extent {s.extent} is not constant here"
                )
            self.scope.lanes.append((s.var, n))
            self._statements(s.body)
            self.scope.lanes.pop()
        elif id(s) in self.tasks:
            self._serial(s, n)
        elif n is not None and (s.kind == "unroll" or n <= 1):
            if self.ends is None and n > 1 and _apart(s):
                self._unrolled_at_once(s, n)
            else:
                self._unrolled(s, n)
        elif s.kind == "unroll":
            raise LoweringError(f"cannot unroll {s.var}: extent {s.extent} is not constant here")
        else:
            self._serial(s, n)

    def _unrolled(self, s: For, n: int) -> None:
        for i in range(n):
            self.scope.env[s.var] = i
            self._iteration(s)

    def _unrolled_at_once(self, s: For, n: int) -> None:
        """Unrolled loops around one store, whose iterations take turns if they are long."""
        lines, begin, self.ends = self.e.lines, len(self.e.lines), []
        self._unrolled(s, n)
        lines[begin:] = in_lockstep(lines[begin:], [end - begin for end in self.ends])
        self.ends = None

    def _iteration(self, s: For) -> None:
        saved = dict(self.scope.cursor)
        for b in sorted(s.opaque, key=lambda b: b.name):
            self.scope.cursor[b] = self.fences.passed(b, s)
        self._statements(s.body)
        self.scope.cursor = saved

    def _steps(self, s: For) -> tuple[dict[Buffer, int], set[Buffer]]:
        """Elements by which each buffer's accesses move per iteration, where all agree; and the
        register buffers that are written."""
        v, steps, live = s.var, dict[Buffer, set[int | None]](), set[Buffer]()
        for b, idx, w, _ in accesses(s.body):
            if b.scope == "register":
                if w:
                    live.add(b)
                continue
            if idx is None:
                steps.setdefault(b, set()).add(None)
                continue
            flat = self.addresses.flat_of(b, idx)
            mixed = any(v in a.leaves() for a in flat.terms if a is not v)
            steps.setdefault(b, set()).add(None if mixed else flat.terms.get(v, 0))
        out = {}
        for b, c in steps.items():
            step = c.pop() if len(c) == 1 else None
            if step:
                out[b] = step
        return out, live

    def _serial(self, s: For, n: int | None) -> None:
        e, v = self.e, s.var
        steps, live = self._steps(s)
        before = dict.fromkeys(self.scope.regs)
        slots = [k for k in before if k[0] in live]
        begin = e.const(0, e.index)
        end = e.const(n, e.index) if n is not None else self.addresses.runtime(s.extent)
        lo = s.extent.range()[0] if n is None else n
        if id(s) in self.tasks:
            (begin, end), lo = self._range(s), 0
        label = e.fresh("loop")[1:]
        guarded = lo is None or lo < 1
        pre = self.block
        starts = {b: self._start(b, c, begin) for b, c in steps.items()}
        if guarded:
            c = e.op(f"icmp sgt {end}, {begin.name}", "i1")
            e.lines.append(f"  br {c}, label %{label}, label %{label}.x")
        else:
            e.lines.append(f"  br label %{label}")
        e.lines.append(f"{label}:")
        self.block = label
        saved_memo, self.scope.memo, saved_cursor = self.scope.memo, {}, dict(self.scope.cursor)
        iv = Val(e.fresh("i"), e.index)
        self.scope.env[v] = iv
        pointers = []
        for b, step in steps.items():
            q = Val(e.fresh("p"), "ptr")
            pointers.append((q, starts[b], step * LLVM_BYTES[memory_type(b.dtype)]))
            held = self.scope.cursor[b][0].name
            self.scope.ahead[q.name] = self.scope.ahead.get(held, 0)
            self.scope.cursor[b] = (q, {**self.scope.cursor[b][1], v: step})
        entry = {k: self.scope.regs[k] for k in slots}
        heads = {k: Val(e.fresh("r"), entry[k].t, entry[k].n) for k in slots}
        self.scope.regs.update(heads)
        hole = len(e.lines)
        self._iteration(s)
        nxt = e.op(f"add nuw nsw {iv}, 1", e.index)
        came = f"[{begin.name}, %{pre}], [{nxt.name}, %{self.block}]"
        out = [f"  {iv.name} = phi {e.index} {came}"]
        for q, start, bytes_ in pointers:
            moved = e.at(q, bytes_)
            out.append(
                f"  {q.name} = phi ptr [{start.name}, %{pre}], [{moved.name}, %{self.block}]"
            )
        for k in slots:
            out.append(
                f"  {heads[k].name} = phi {heads[k].ty} [{entry[k].name}, %{pre}], "
                f"[{self.scope.regs[k].name}, %{self.block}]"
            )
        e.lines[hole:hole] = out
        c = e.op(f"icmp slt {nxt}, {end.name}", "i1")
        e.lines += [f"  br {c}, label %{label}, label %{label}.x", f"{label}.x:"]
        if guarded:  # the loop may not have run: what the registers hold depends on it
            self.scope.regs = {k: r for k, r in self.scope.regs.items() if k in before}
            for k in slots:
                last = self.scope.regs[k]
                self.scope.regs[k] = e.op(
                    f"phi {last.ty} [{entry[k].name}, %{pre}], [{last.name}, %{self.block}]",
                    last.t,
                    last.n,
                )
        self.block, self.scope.memo, self.scope.cursor = label + ".x", saved_memo, saved_cursor

    def _range(self, s: For) -> tuple[Val, Val]:
        """The iterations of a parallel loop that are among the tasks [%begin, %end)."""
        e, tasks = self.e, self.tasks[id(s)]
        bounds = [e.as_index(Val(name, "i64")) for name in ("%begin", "%end")]
        if tasks.stride == 1 and tasks.offset == 0 and tasks.aligned:
            return bounds[0], bounds[1]
        # Iteration i is task i * stride + offset: divide by the stride, rounding up.
        stride, up = (
            self.addresses.runtime(tasks.stride),
            self.addresses.runtime(tasks.stride - 1 - tasks.offset),
        )
        found = []
        for bound in bounds:
            above = e.bin("add", bound, up)
            if tasks.aligned:  # 0 <= offset < stride
                found.append(e.bin("udiv", above, stride))
                continue
            t = e.index
            first = e.call(f"llvm.smax.{t}", t, 1, [above, e.const(0, t)])
            at = e.bin("udiv", first, stride)
            found.append(e.call(f"llvm.smin.{t}", t, 1, [at, self.addresses.runtime(s.extent)]))
        return found[0], found[1]

    def _attempt(self, s: Attempt) -> None:
        e = self.e
        outer = dict(self.scope.regs)
        self._statements(s.body)
        values = [v for (b, _, _), v in self.scope.regs.items() if b in s.watched]
        unsure = e.any_nan(values)
        again, rest, done = (e.fresh(n)[1:] for n in ("again", "rest", "done"))
        e.lines += [f"  br {unsure}, label %{again}, label %{rest}"]
        ends = []
        for label, part in ((rest, s.rest), (again, s.again)):
            e.lines.append(f"{label}:")
            self.block = label
            held = (dict(self.scope.memo), dict(self.scope.cursor), dict(self.scope.regs))
            self._statements(part)
            ends.append((self.block, self.scope.regs))
            self.scope.memo, self.scope.cursor, self.scope.regs = held
            e.lines.append(f"  br label %{done}")
        e.lines.append(f"{done}:")
        self.block = done
        # What registers outside hold depends on which part stored to them.
        (one, first), (other, second) = ends
        self.scope.regs = {
            k: v
            if first[k].name == second[k].name
            else e.op(
                f"phi {v.ty} [{first[k].name}, %{one}], [{second[k].name}, %{other}]", v.t, v.n
            )
            for k, v in outer.items()
        }

    def _when(self, s: When) -> None:
        self.scalars.values = {}
        self._guarded(self.scalars.eval(s.condition), s.body)

    def _pick(self, s: Pick) -> None:
        self.scalars.values = {}
        at = self.scalars.eval(s.at)
        size = self.e.resized(self.addresses.runtime(s.var.extent or Index()), at.t)
        inside = self.e.op(f"icmp ult {at}, {size.name}", "i1")  # negative ones are large
        self.scope.env[s.var] = self.e.as_index(at)
        self._guarded(inside, s.body)

    def _guarded(self, holds: Val, statements: list[Stmt]) -> None:
        """Statements that run if a condition holds, which no lanes can differ in."""
        e = self.e
        if self.scope.lanes:
            raise LoweringError(
                f"cannot vectorize {self.scope.lanes[0][0]}: a condition is inside it"
            )
        body, done = (e.fresh(n)[1:] for n in ("when", "done"))
        e.lines += [f"  br {holds}, label %{body}, label %{done}", f"{body}:"]
        self.block = body
        held = (dict(self.scope.memo), dict(self.scope.cursor), dict(self.scope.regs))
        self._statements(statements)
        self.scope.memo, self.scope.cursor, self.scope.regs = held
        e.lines += [f"  br label %{done}", f"{done}:"]
        self.block, self.scalars.values = done, {}

    def _on_stack(self, b: Buffer) -> Val:
        n = self.addresses.known(b.size)
        if n is None:
            raise LoweringError(f"local buffer {b.name} needs a constant size")
        t = memory_type(b.dtype)
        p = Val(self.e.fresh("stack"), "ptr")
        self.stack.append(f"  {p.name} = alloca [{n} x {t}], align {max(b.align, LLVM_BYTES[t])}")
        return p

    def _start(self, b: Buffer, step: int, begin: Val) -> Val:
        p = self.scope.cursor[b][0]
        if begin.name == "0":
            return p
        bytes_ = self.e.const(step * LLVM_BYTES[memory_type(b.dtype)], self.e.index)
        return self.e.at(p, self.e.bin("mul", begin, bytes_))

    def _store(self, s: Store) -> None:
        self.scalars.values = {}
        flat = self.addresses.flat_of(s.buffer, s.idx)
        if s.init is not None:
            raise LoweringError(f"stage {s.stage}: its reduction was not decomposed")
        if s.update:
            self.accesses.write(
                s.buffer, flat, self.scalars.update(s, self.accesses.read(s.buffer, flat))
            )
        else:
            self.accesses.write(s.buffer, flat, self.scalars.eval(s.value))
        if self.ends is not None:
            self.ends.append(len(self.e.lines))

    def _intrin(self, s: Intrin) -> None:
        it, saved, st = s.intrin, self.scope.lanes, s.store
        emit = it.emitter("llvm")
        if emit is None:  # what it means, its lanes as lanes
            for _ in self._points(s, it.out_lanes):
                self._store(st)
            self.scope.lanes = saved
            return
        if it.rows is not None:
            write_matrix(self.scope, self.addresses, s, emit, self.accesses.prefetch)
            return
        flat = self.addresses.flat_of(st.buffer, st.idx)
        acc: Val | None = None
        address = None
        for _ in self._points(s, it.out_lanes):
            self.scalars.values = {}
            address = self.addresses.address(st.buffer, flat)
            acc = self.accesses.read(st.buffer, flat, address) if st.update else None
        operands = []
        for n, names in it.lanes.items():
            row = []
            for _ in self._points(s, names):
                self.scalars.values = {}
                row.append(self.scalars.eval(s.leaves[n]))
            operands.append(row)
        self.scope.lanes = [(s.vars[n], it.loops[n]) for n in it.out_lanes]
        self.accesses.write(st.buffer, flat, emit(self.e, acc, *operands), it.order, address)
        self.scope.lanes = saved

    def _points(self, s: Intrin, names: tuple[str, ...]) -> Iterator[None]:
        """Make the loops `names` of the tile lanes and step through the others."""
        loops = s.intrin.loops
        self.scope.lanes = [(s.vars[n], loops[n]) for n in names]
        todo = [n for n in loops if n not in names]
        for x in points([loops[n] for n in todo]):
            for n, i in zip(todo, x, strict=True):
                self.scope.env[s.vars[n]] = i
            yield


def _apart(s: For) -> bool:
    """Whether a loop holds nothing but one store to memory, which no iteration reads, in loops that
    are unrolled or lanes."""
    inner: Stmt = s
    while isinstance(inner, For):
        serial = inner.kind not in ("unroll", "vector") and inner.extent != 1
        if len(inner.body) != 1 or inner.opaque or serial:
            return False
        inner = inner.body[0]
    if not isinstance(inner, Store) or inner.update or inner.buffer.scope != "global":
        return False
    return not any(b is inner.buffer for b, _, written, _ in accesses([s]) if not written)
