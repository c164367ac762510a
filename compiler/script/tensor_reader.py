"""Reads a tensor program that is written in Python."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from compiler.errors import DtypelabError, ParseError
from compiler.scheduling import Schedule
from compiler.scheduling.independent import check_independent
from compiler.script.loops import Allocated, Axis, Block, Buffer, Grid, Init
from compiler.script.scalars import scalar
from compiler.script.source import Gone, Source
from compiler.symbolic import Index, Var
from compiler.tensor import stmt
from compiler.tensor.expr import BinOp, Call, Expr, Gather, Load, index_vars, walk
from compiler.tensor.stmt import For, PrimFunc, Stmt, Store
from compiler.tensor.wellformed import check_program, check_store
from compiler.types.names import unique

T = TypeVar("T")
_UPDATES = {"Add": "+", "Mul": "*", "Max": "max", "Min": "min"}
_AUGMENTED = {"Add": "Add", "Mult": "Mul"}


class TensorReader:
    """Reads one tensor program."""

    def __init__(self, source: Source):
        self.source = source
        self.params: list[stmt.Buffer] = []
        self.temps: list[stmt.Buffer] = []
        self.dims: dict[str, Var] = {}
        self.root: list[Stmt] = []
        self.body = self.root
        self.loops: list[For] = []
        self.taken: set[str] = set()
        self.stages: set[str] = set()
        self.starts: list[tuple[str, str]] = []
        self.block: _OpenBlock | None = None

    def read(self) -> PrimFunc:
        """The program.

        Raises:
            ParseError: names file, line and column.
        """
        d = self.source.definition
        self._params(d)
        self._statements(d.body)
        written = {s.buffer for s in stmt.stores(self.root)}
        outputs = [b for b in self.params if b in written]
        if outputs != self.params[len(self.params) - len(outputs) :] or not outputs:
            names = ", ".join(b.name for b in outputs) or "none"
            raise self.source.error(d, f"the last parameters must be those it fills, not {names}")
        dims = list(self.dims.values())
        f = PrimFunc(d.name, self.params, len(outputs), self.root, self.temps, dims)
        for stage, loop in self.starts:
            Schedule(f).decompose_reduction(stage, loop)
        self._checked(d, lambda: check_program(f))
        self._checked(d, lambda: check_independent(f))
        return f

    def _checked(self, node: ast.AST, make: Callable[[], T]) -> T:
        try:
            return make()
        except ParseError:
            raise
        except DtypelabError as e:
            raise self.source.error(node, str(e)) from None

    def _params(self, d: ast.FunctionDef) -> None:
        if d.args.vararg or d.args.kwarg or d.args.kwonlyargs or d.args.defaults:
            raise self.source.error(d, "a tensor program takes buffers by position")
        for a in d.args.args:
            if a.annotation is None:
                raise self.source.error(a, f"{a.arg} needs a type, as in {a.arg}: Buffer((4,))")
            given = self.source.value(a.annotation)
            if not isinstance(given, Buffer):
                raise self.source.error(a.annotation, f"{a.arg} must be a Buffer, not {given!r}")
            self.params.append(self._buffer(a, a.arg, given))

    def _buffer(self, node: ast.AST, name: str, like: Buffer) -> stmt.Buffer:
        b = self._checked(node, lambda: like(name))
        for n in b.shape:
            for v in sorted(n.vars(), key=str):
                if v.name not in self.dims:
                    self.dims[v.name] = v
                    self.taken.add(v.name)
                    self.source.names.setdefault(v.name, v)
        self.source.names[name] = b
        return b

    # ---- statements ------------------------------------------------------------------------------
    def _statements(self, body: Sequence[ast.stmt]) -> None:
        for k, s in enumerate(body):
            if k == 0 and isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant):
                continue  # what it is for
            self._statement(s)

    def _statement(self, s: ast.stmt) -> None:
        if isinstance(s, ast.For):
            self._for(s)
        elif isinstance(s, ast.With):
            self._with(s)
        elif isinstance(s, ast.Assign) and len(s.targets) == 1:
            self._assign(s, s.targets[0], s.value)
        elif isinstance(s, ast.AugAssign) and isinstance(s.target, ast.Subscript):
            self._augmented(s, s.target)
        elif isinstance(s, ast.If):
            self._if(s)
        elif not isinstance(s, ast.Pass):
            what = type(s).__name__
            raise self.source.error(s, f"a tensor program has no statement of this kind ({what})")

    def _if(self, s: ast.If) -> None:
        test = self.source.value(s.test)
        if isinstance(test, Expr | Index):
            raise self.source.error(s.test, "this is known only when it runs: use select(...)")
        self._statements(s.body if test else s.orelse)

    def _for(self, s: ast.For) -> None:
        over = self.source.value(s.iter)
        if isinstance(over, range) and over.step == 1:
            over = Grid((over.stop,)) if over.start == 0 else list(over)
        targets = s.target.elts if isinstance(s.target, ast.Tuple) else [s.target]
        if isinstance(over, list | tuple):  # known now: the body is repeated
            for value in over:
                values = list(value) if len(targets) > 1 else [value]
                self._name(targets, values)
                self._statements(s.body)
            return
        if not isinstance(over, Grid):
            raise self.source.error(s.iter, "a loop goes over grid(...), range(n), or a list")
        if len(over.extents) != len(targets):
            raise self.source.error(s.target, f"{len(over.extents)} loops need as many names")
        if s.orelse:
            raise self.source.error(s.orelse[0], "a loop has no else")
        opened = [self._open(t, n, over.kind) for t, n in zip(targets, over.extents, strict=True)]
        self._statements(s.body)
        for loop in reversed(opened):
            self.loops.pop()
            self.body = self.loops[-1].body if self.loops else self.root
            if not loop.body:
                raise self.source.error(s, "this loop does nothing")
            self._end(loop.var)

    def _open(self, target: ast.expr, extent: Any, kind: str) -> For:
        if not isinstance(target, ast.Name):
            raise self.source.error(target, "a loop needs a name")
        if not isinstance(extent, Index | int) or isinstance(extent, bool):
            raise self.source.error(target, f"the loop {target.id} cannot go to {extent!r}")
        if isinstance(extent, int) and extent < 1:
            raise self.source.error(target, f"the loop {target.id} has no iteration")
        loop = For(Var(unique(target.id, self.taken), extent), [], kind)
        self.body.append(loop)
        self.body = loop.body
        self.loops.append(loop)
        self.source.names[target.id] = loop.var
        return loop

    def _end(self, loop: Var) -> None:
        """Names of values that depend on a loop mean nothing behind it."""
        for name, value in self.source.names.items():
            inside = value.vars() if isinstance(value, Index) else ()
            if loop in inside or (isinstance(value, Expr) and loop in index_vars(value)):
                self.source.names[name] = Gone(f"{name} belongs to a loop that has ended")

    # ---- blocks ----------------------------------------------------------------------------------
    def _with(self, s: ast.With) -> None:
        if len(s.items) != 1 or s.items[0].optional_vars is not None:
            raise self.source.error(s, "write one block at a time, and no `as`")
        what = self.source.value(s.items[0].context_expr)
        if isinstance(what, Block):
            with self._opened(s, what):
                self._statements(s.body)
        elif isinstance(what, Init):
            self._init(s)
        else:
            raise self.source.error(s, f"expected block(...) or init(), not {what!r}")

    @contextmanager
    def _opened(self, s: ast.With, what: Block) -> Iterator[None]:
        if self.block is not None:
            raise self.source.error(s, f"block {what.name!r} is inside another")
        self.block = _OpenBlock(what.name)
        yield
        start = self.block.start
        if start is not None and not start.used:
            raise self.source.error(s, f"block {what.name!r} starts a reduction, and has none")
        self.block = None

    def _init(self, s: ast.With) -> None:
        block = self.block
        if block is None or block.start is not None:
            raise self.source.error(s, "init() stands in a block, once")
        if not any(a.reduces for a in block.axes):
            raise self.source.error(s, "init() needs a reduction axis: axis.reduce or an R")
        if len(s.body) != 1 or not isinstance(s.body[0], ast.Assign):
            raise self.source.error(s, "init() holds one assignment, Y[...] = value")
        (target,) = s.body[0].targets
        buffer, idx = self._place(target)
        value = self._scalar(s.body[0].value, buffer)
        block.start = _Start(buffer, idx, value)

    # ---- assignments -----------------------------------------------------------------------------
    def _assign(self, s: ast.stmt, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Subscript):
            buffer, idx = self._place(target)
            self._store(s, buffer, idx, self._scalar(value, buffer))
            return
        targets = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
        given = self.source.value(value)
        if len(targets) > 1 or isinstance(target, ast.Tuple | ast.List):
            try:
                values = list(given)
            except TypeError:
                raise self.source.error(value, f"{given!r} is not several values") from None
        else:
            values = given if isinstance(given, list) and len(given) == 1 else [given]
        self._name(targets, values)

    def _name(self, targets: Sequence[ast.expr], values: Sequence[Any]) -> None:
        if len(targets) != len(values):
            raise self.source.error(targets[0], f"{len(values)} values for {len(targets)} names")
        for t, v in zip(targets, values, strict=True):
            if not isinstance(t, ast.Name):
                raise self.source.error(t, "expected a name")
            if isinstance(v, Allocated):
                if self.loops:
                    raise self.source.error(t, f"allocate {t.id} outside of loops")
                self.temps.append(self._buffer(t, t.id, v.like))
                continue
            if isinstance(v, Axis):
                if self.block is None:
                    raise self.source.error(t, f"axis {t.id} is in no block")
                self.block.axes.append(v)
                v = v.at
            self.source.names[t.id] = v

    def _place(self, target: ast.expr) -> tuple[stmt.Buffer, tuple[Index, ...]]:
        if not isinstance(target, ast.Subscript):
            raise self.source.error(target, "expected an element of a buffer, Y[...]")
        buffer = self.source.value(target.value)
        if not isinstance(buffer, stmt.Buffer):
            raise self.source.error(target.value, f"{buffer!r} is no buffer")
        at = self.source.value(target.slice)
        element = self._checked(target, lambda: _element(buffer, at))
        return buffer, element

    def _scalar(self, node: ast.expr, buffer: stmt.Buffer) -> Expr:
        given = self.source.value(node)
        return self._checked(node, lambda: scalar(given, buffer.dtype))

    def _augmented(self, s: ast.AugAssign, target: ast.Subscript) -> None:
        buffer, idx = self._place(target)
        update = _AUGMENTED.get(type(s.op).__name__)
        if update is None:
            raise self.source.error(s, "only += and *= accumulate; write the others out")
        value = self._scalar(s.value, buffer)
        self._store(s, buffer, idx, BinOp(update, Load(buffer, idx), value, buffer.dtype))

    def _store(self, s: ast.stmt, buffer: stmt.Buffer, idx: tuple[Index, ...], value: Expr) -> None:
        update, init = "", None
        block = self.block
        stage = unique((block.name if block is not None else "") or buffer.name, self.stages)
        if block is not None:
            loops = {v for a in block.axes if a.reduces for v in a.at.vars()}
            if any(i.vars() & loops for i in idx):
                raise self.source.error(s, "a reduction axis is no index of the result")
            start = block.start
            if start is not None and start.buffer is buffer and start.idx == idx:
                update, value = self._update(s, buffer, idx, value)
                init, start.used = start.value, True
                self._note_start(s, stage, idx, loops)
        store = Store(stage, buffer, idx, value, update, init)
        known = all(v.extent is None for x in self.loops for v in x.extent.vars())
        self._checked(s, lambda: check_store(store, [*self.params, *self.temps] if known else []))
        self.body.append(store)
        self._outdate(buffer)

    def _note_start(
        self, s: ast.stmt, stage: str, idx: tuple[Index, ...], reduces: set[Var]
    ) -> None:
        """A reduction starts where its own loops do: anew in loops around them that are no axis."""
        used: set[Var] = set().union(*(i.vars() for i in idx))
        around = [x.var for x in self.loops]
        first = next(k for k, v in enumerate(around) if v in reduces)
        for v in around[first:]:
            if v not in reduces | used:
                raise self.source.error(s, f"the loop {v} inside the reduction is no axis of it")
        if any(v not in used for v in around[:first]):
            self.starts.append((stage, around[first].name))

    def _update(
        self, s: ast.stmt, buffer: stmt.Buffer, idx: tuple[Index, ...], value: Expr
    ) -> tuple[str, Expr]:
        """A value that goes on from the element itself, as an update of it."""

        def is_own(e: Expr) -> bool:
            return isinstance(e, Load) and e.buffer is buffer and e.idx == idx

        if isinstance(value, BinOp) and value.op in _UPDATES and is_own(value.a):
            return value.op, value.b
        if isinstance(value, Call) and value.fn == "fma" and is_own(value.args[2]):
            a, b, _ = value.args
            return "Fma", BinOp("Mul", a, b, buffer.dtype)
        how = f"{buffer.name}[...] = {buffer.name}[...] + value"
        raise self.source.error(s, f"a reduction is written {how} (or *, max, min)")

    def _outdate(self, buffer: stmt.Buffer) -> None:
        """Names of values that were read from a buffer mean others once it has changed."""
        for name, value in self.source.names.items():
            if isinstance(value, Expr) and any(
                isinstance(n, Load | Gather) and n.buffer is buffer for n in walk(value)
            ):
                why = f"{name} was read from {buffer.name}, which has changed: read it again"
                self.source.names[name] = Gone(why)


class _Start:
    """What a block's reduction starts from."""

    def __init__(self, buffer: stmt.Buffer, idx: tuple[Index, ...], value: Expr):
        self.buffer, self.idx, self.value = buffer, idx, value
        self.used = False


class _OpenBlock:
    """The block that is being read."""

    def __init__(self, name: str):
        self.name = name
        self.axes: list[Axis] = []
        self.start: _Start | None = None


def _element(b: stmt.Buffer, at: Any) -> tuple[Index, ...]:
    idx = at if isinstance(at, tuple) else (at,)
    for i in idx:
        if not isinstance(i, Index | int):
            raise DtypelabError(f"{b.name} is stored at loops and numbers, not at {i!r}")
    return b[idx].idx
