"""Programs that people write: which of them the default schedule may rearrange, and how the others
run as they are written.

Default schedules know the form in which operators describe themselves: a perfect nest for every
stage, which computes one element of a tensor of its own for each iteration of its outer loops.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from compiler.ir.expr import IRModule
from compiler.ir.tensor_programs import tensor_program
from compiler.scheduling import Schedule
from compiler.symbolic import Index, Var
from compiler.tensor.copying import Copy
from compiler.tensor.expr import Buffer, Expr, Gather, Load, walk
from compiler.tensor.stmt import For, Pick, PrimFunc, Stmt, Store
from compiler.types.names import unique

SCHEDULED = "scheduled"
"""The attribute of programs whose loops are to run as they are."""


def arranged(f: PrimFunc) -> bool:
    """Whether the loops of `f` are to run as they are: somebody has scheduled them, or they have
    another form than default schedules know."""
    return bool(f.attrs.get(SCHEDULED)) or not conventional(f)


def conventional(f: PrimFunc) -> bool:
    """Whether `f` has the form that default schedules know."""
    inputs = f.params[: len(f.params) - f.outputs]
    written: set[Buffer] = set()
    complete: set[Buffer] = set(inputs)
    names: set[str] = {v.name for v in f.dims}
    stages: set[str] = set()
    for s in f.body:
        nest, picks, store = _nest(s)
        variables = [*(x.var for x in nest), *(x.var for x in picks)]
        own = [v.name for v in variables]
        if store is None or store.stage in stages or not names.isdisjoint(own):
            return False
        read = _read(store)
        if picks and not {b for p in picks for b in _held(p.at)} <= set(inputs):
            return False
        goes_on = store.buffer in read & written and _is_own(store, variables)
        if goes_on or _scatters(store, picks):
            # It changes elements that are there, and reads no others of the same tensor.
            if store.buffer not in written or not _is_own(store, variables):
                return False
            read -= {store.buffer}
            written.remove(store.buffer)
        # What is read is complete: nobody stores into it from here on.
        if not read <= written | complete or store.buffer in read | complete:
            return False
        element = (
            goes_on or _scatters(store, picks) or _is_element(store, nest, store.buffer in written)
        )
        if len(own) > len(set(own)) or not element:
            return False
        complete |= read
        if store.update:
            complete.add(store.buffer)
        stages.add(store.stage)
        written.add(store.buffer)
        names.update(own)
    return True


def _read(s: Store) -> set[Buffer]:
    return {b for e in (s.value, s.init) if e is not None for b in _held(e)}


def _held(e: Expr) -> set[Buffer]:
    every = {n.buffer for n in walk(e) if isinstance(n, (Load, Gather))}
    return {b for b in every if b.data is None}


def _nest(s: Stmt) -> tuple[list[For], list[Pick], Store | None]:
    """The loops, the positions picked and the one statement of a perfect nest as operators write
    it."""
    nest: list[For] = []
    picks: list[Pick] = []
    while isinstance(s, (For, Pick)):
        if isinstance(s, Pick):
            picks.append(s)
        elif s.kind != "serial" or s.opaque or s.fence or s.whole is not None:
            return nest, picks, None
        else:
            nest.append(s)
        if len(s.body) != 1:
            return nest, picks, None
        s = s.body[0]
    return nest, picks, s if isinstance(s, Store) else None


def _scatters(s: Store, picks: list[Pick]) -> bool:
    """Whether data says where a statement stores."""
    return any(p.var in i.vars() for p in picks for i in s.idx)


def _is_own(s: Store, variables: list[Var]) -> bool:
    """Whether a statement changes one element, which is another for every value of any of the
    variables that are in its indices; and reads no other element of that tensor."""
    used = [list(i.vars() & set(variables)) for i in s.idx]
    apart = all(not (i - v).vars() & set(variables) for i, own in zip(s.idx, used, strict=True)
                for v in own)  # fmt: skip
    flat = [v for own in used for v in own]
    own = all(n.idx == s.idx for n in walk(s.value) if isinstance(n, Load) and n.buffer is s.buffer)
    gathered = any(isinstance(n, Gather) and n.buffer is s.buffer for n in walk(s.value))
    plain = not s.update and s.init is None and not gathered
    return plain and own and apart and len(flat) == len(set(flat))


def _is_element(s: Store, nest: list[For], again: bool) -> bool:
    """Whether each iteration of the outer loops computes an element of its own: from its start, by
    the loops inside them, or at once."""
    outer = [x.var for x in nest[: len(s.idx)]]
    if s.update:
        return s.init is not None and not again and list(s.idx) == outer and len(nest) > len(outer)
    loops = {x.var for x in nest}
    used: list[Var] = []
    for i in s.idx:
        own = i.vars() & loops
        if not _are_digits(i, own):
            return False
        used += own
    alone = len(used) == len(set(used))
    return s.init is None and alone and all(x.var in used or x.extent == 1 for x in nest)


def _are_digits(i: Index, own: Collection[Var]) -> bool:
    """Whether an index is another for all other values of these variables: each moves it by more
    than all lesser ones together, as digits do."""
    if any(v in a.leaves() for a in i.terms if not isinstance(a, Var) for v in own):
        return False
    reach = 1
    for v in sorted(own, key=lambda v: i.terms[v]):
        n = v.extent.constant() if v.extent is not None else None
        if i.terms[v] < reach or (n is None and len(own) > 1):
            return False
        reach += i.terms[v] * ((n or 1) - 1)
    return True


def start_reductions(f: PrimFunc) -> None:
    """Write the initialisations of reductions out as statements, in place."""
    s = Schedule(f)
    for stage in s.stages():
        for store, path, _ in s.stage_stores(stage):
            if store.init is None:
                continue
            used: set[Var] = set().union(*(i.vars() for i in store.idx))
            loop = next((x.var.name for x in path if x.var not in used), None)
            if loop is not None:
                s.decompose_reduction(stage, loop)
                continue
            home = path[-1].body if path else f.body  # one step for each element
            start = Store(f"{stage}.init", store.buffer, store.idx, store.init)
            home.insert(next(k for k, x in enumerate(home) if x is store), start)
            store.init = None


def schedule(mod: IRModule, name: str) -> Schedule:
    """A schedule of a copy of a tensor program: `mod.with_function(name, s.func)` is the module in
    which it runs as its loops then say.

    Raises:
        VerifyError: the module has no such tensor program.
    """
    f = tensor_program(mod, name)
    return Schedule(replace(with_own_loops(f), attrs={**f.attrs, SCHEDULED: True}))


def with_own_loops(f: PrimFunc) -> PrimFunc:
    """A copy of `f` in which no two loops share a name."""
    return _OwnLoops(f).func(f)


class _OwnLoops(Copy):
    def __init__(self, f: PrimFunc):
        super().__init__()
        self.loops: set[str] = {v.name for v in f.dims}

    def var(self, v: Var) -> Var:
        """A new loop variable under a name of its own."""
        assert v.extent is not None
        new = Var(unique(v.name, self.loops), v.extent.subst(self.vars))
        self.vars[v] = new
        return new
