"""Kernels: primitive functions scheduled, lowered and compiled, once per distinct workload.

What is compiled is known by a key before it is scheduled: where the compiler's own rules decide
alone, the unscheduled loop nest says everything, and a kernel that was compiled before, in this
process or another, is neither scheduled nor lowered again. Rules and instructions from outside the
package, and custom datatypes, may be anything: their keys are of the scheduled program. Of custom
datatypes these are found once where many networks are much the same (see `remembering`).
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

from compiler.arithmetic.stochastic import random_dtype
from compiler.codegen import cache
from compiler.codegen.backend import Code, backend_of
from compiler.codegen.barriers import joined
from compiler.codegen.kernel_abi import KernelAbi, Stage, order_text
from compiler.codegen.launches import launch_of
from compiler.codegen.parallel_tasks import parallel_tasks
from compiler.errors import ConfigError, LoweringError, ScheduleError
from compiler.ir.expr import Atom, Constant, Function
from compiler.lowering.custom_dtypes import uses_custom
from compiler.lowering.legalize import FAR, Legalized
from compiler.passes.pipeline import run
from compiler.runtime.beside import Beside
from compiler.runtime.loader import loader_of
from compiler.runtime.nests import Nest
from compiler.scheduling import rules
from compiler.scheduling.choices import Choice
from compiler.scheduling.tuning_log import History
from compiler.scheduling.user_schedules import arranged
from compiler.symbolic import Index, Var
from compiler.target import intrinsics
from compiler.target.intrinsics.emission import program_text
from compiler.target.registry import Target
from compiler.tensor.expr import Buffer, walk
from compiler.tensor.naming import buffers, values
from compiler.tensor.packed_arrays import IndexMap, aligned_empty, pack_into
from compiler.tensor.packed_arrays import aligned_copy as aligned_copy
from compiler.tensor.stmt import PrimFunc, innermost_work, stores
from compiler.types.dtypes import Array, RevisedDType, custom
from compiler.types.names import digest

LARGE = 1 << 16
"""Bytes from which a constant array is copied by another thread."""


@dataclass(frozen=True)
class Argument:
    """What a kernel's input parameter is given: an atom of the primitive function, or a constant
    array."""

    atom: Atom | None
    array: Array | None


@dataclass(frozen=True)
class Scheduled:
    """A scheduled loop nest on built-in dtypes, the look-up tables it reads, and what its native
    functions are called: equal names mean equal programs."""

    func: PrimFunc
    tables: tuple[Buffer, ...]
    symbol: str

    def code(self, target: Target) -> Code:
        """Its functions, in the language of the target's backend."""
        named = replace(self.func, name=self.symbol)
        made: Code = run(Nest(named, target, tables=self.tables), "code")
        return made


class KernelSource:
    """What a kernel computes; scheduled when that is first asked for."""

    def __init__(
        self,
        legal: Legalized,
        target: Target,
        choices: Choice | None,
    ):
        # Not `legal` itself: that would keep every constant's array alive.
        self._func, self._target, self._choices = legal.func, target, dict(choices or {})
        pairs = zip(legal.func.params, legal.inputs, strict=False)
        self._constants = {b for b, a in pairs if isinstance(a, Constant)}
        self._lock = threading.Lock()
        self._scheduled: Scheduled | None = None
        self._arranged = arranged(self._func)
        self.key, self.tables = self._identity()

    def _identity(self) -> tuple[str, tuple[Array, ...]]:
        """Its key, and the look-up tables that it reads."""
        seen, ours, customs = _seen.get(), _ours(self._func), uses_custom(self._func)
        if ours and not customs:
            return self._key_of_loops(), ()
        meaning = _meaning(self._func) if ours and seen is not None else None
        if seen is None or meaning is None:
            return self._identity_of_schedule()
        known = (self._key_of_loops(), *meaning)
        if known not in seen:
            seen[known] = self._identity_of_schedule()
        return seen[known]

    def _identity_of_schedule(self) -> tuple[str, tuple[Array, ...]]:
        made = self.scheduled()
        key = cache.key(self._target, "scheduled", program_text(made.func))
        return key, tuple(b.data for b in made.tables if b.data is not None)

    def _key_of_loops(self) -> str:
        f = self._func
        given = {stage: choice.to_json() for stage, choice in self._choices.items()}
        constant = [k for k, b in enumerate(f.params) if b in self._constants]
        stages = [s.stage for s in stores(f.body)]
        marks = [FAR] if f.attrs.get(FAR) else []
        facts = json.dumps([constant, stages, given, self._arranged, *marks], sort_keys=True)
        return cache.key(self._target, "unscheduled", program_text(f), facts)

    def scheduled(self) -> Scheduled:
        """The loops that run.

        Raises:
            LoweringError: an operation has no lowering for its dtype and target.
            ScheduleError: a choice does not fit.
        """
        with self._lock:
            if self._scheduled is None:
                nest = Nest(
                    self._func, self._target, self._arranged, self._constants, self._choices
                )
                nest = run(nest, "schedule", "custom datatypes in loops")
                func = nest.func
                plain = re.sub(r"\W", "_", func.name, flags=re.ASCII)  # a person may have named it
                symbol = f"{plain}_{digest(program_text(func), *self._target.machine)}"
                self._scheduled = Scheduled(func, nest.tables, symbol)
            return self._scheduled


@dataclass(frozen=True)
class Written:
    """What is known of a loaded kernel: the texts of its loops and of its code."""

    loops: str
    code: str


@dataclass
class Compiled:
    """How a kernel is called, and its object code, which is empty until it is made (see `Beside`),
    or where the backend compiles whole programs."""

    abi: KernelAbi
    code: bytes = b""


@dataclass(frozen=True)
class Kernel:
    """A compiled primitive function.

    Attributes:
        program: the loops that run.
        target: what it was compiled for.
        abi: how to call it.
        compiled: holds its object code.
        arguments: one per input parameter of `func`.
        outputs: how many output parameters follow.
        tables: look-up tables, passed after the temporaries.
        dims: symbolic dimensions, passed last.
        tuned: whether its tiles come from a tuning log.
        workload: the key of that log's record, of kernels that were built here.
    """

    program: KernelSource | Written
    target: Target
    abi: KernelAbi
    compiled: Compiled
    arguments: tuple[Argument, ...]
    outputs: int
    tables: tuple[Array, ...]
    dims: tuple[Var, ...]
    tuned: bool = False
    workload: str = ""

    @property
    def func(self) -> PrimFunc:
        """The scheduled PrimFunc, the very loops that run.

        Raises:
            LoweringError: schedule rules or instructions have been registered since the build, or
                the kernel has been loaded from a file.
        """
        return self._scheduled().func

    def as_text(self) -> str:
        """The scheduled loop nest.

        Raises:
            LoweringError: schedule rules or instructions have been registered since the build.
        """
        return self.program.loops if isinstance(self.program, Written) else str(self.func)

    def with_dims(self, names: Mapping[Var, Var]) -> Kernel:
        """The same with other names of dimensions, which its own loops and text do not have."""
        dims = tuple(names.get(d, d) for d in self.dims)
        return replace(self, abi=self.abi.with_dims(names), dims=dims)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """KernelAbi functions, called in order."""
        return self.abi.stages

    @property
    def temps(self) -> tuple[Index, ...]:
        """Bytes of each temporary buffer."""
        return self.abi.temps

    @property
    def source_code(self) -> Code:
        """Its native functions, in the language of the target's backend."""
        if isinstance(self.program, Written):
            return Code(tuple(s.symbol for s in self.stages), self.program.code)
        return self._scheduled().code(self.target)

    @property
    def source(self) -> str:
        """The text of `source_code`."""
        return self.source_code.text

    def llvm_text(self) -> str:
        """`source` of targets whose code LLVM makes."""
        return self.source

    @property
    def code(self) -> bytes:
        """Object code of the native functions; empty if the backend compiles whole programs."""
        return self.compiled.code

    def _scheduled(self) -> Scheduled:
        if isinstance(self.program, Written):
            raise LoweringError("a loaded executable has the text of its loops, not the loops")
        made = self.program.scheduled()
        if self.stages[0].symbol != f"{made.symbol}_0":
            raise LoweringError(
                f"the schedule of {made.func.name} is not the one that was built, since rules "
                "were registered or removed: build it again"
            )
        return made


def build_kernel(
    f: Function,
    target: Target,
    history: History | None = None,
    beside: Beside | None = None,
) -> Kernel:
    """Legalize, schedule, lower and compile a primitive function, with the tiles that `history`
    has for it; see `compile_kernel`.

    Raises:
        LoweringError: an operation has no lowering for its dtype and target.
        ConfigError: the tiles of the history do not fit.
    """
    legal: Legalized = run(f, "loops")
    record = history.find(legal.func) if history is not None else None
    if record is None or history is None:
        return compile_kernel(legal, target, beside=beside)
    try:
        kernel = compile_kernel(legal, target, record.choice, beside)
        return replace(kernel, tuned=True, workload=record.workload)
    except ScheduleError as e:
        text = f"{history.source}: workload {record.workload} ({legal.func.name}): {e}"
        raise ConfigError(f"{text}; correct or delete its line") from None


def compile_kernel(
    legal: Legalized,
    target: Target,
    choices: Choice | None = None,
    beside: Beside | None = None,
) -> Kernel:
    """Compile a loop nest, which is scheduled in place if need be, or take it from the cache.

    What is given to `beside` can be called, and constant arrays can be read, once that is done.

    Raises:
        LoweringError: an operation has no lowering for its dtype and target.
        ScheduleError: a choice does not fit, or no code can be made of what it leads to.
    """
    try:
        program = KernelSource(legal, target, choices)
        compiled = _compiled(program, target, beside)
    except LoweringError as e:
        if not choices:
            raise
        raise ScheduleError(f"what is chosen for {legal.func.name} does not compile: {e}") from None
    arguments = []
    for k, a in enumerate(legal.inputs):
        if not isinstance(a, Constant):
            arguments.append(Argument(a, None))
        else:
            arguments.append(Argument(None, _laid_out(a.data, compiled.abi.packed.get(k), beside)))
    return Kernel(
        program=program,
        target=target,
        abi=compiled.abi,
        compiled=compiled,
        arguments=tuple(arguments),
        outputs=legal.func.outputs,
        tables=program.tables,
        dims=tuple(legal.func.dims),
    )


def _laid_out(source: Array, order: IndexMap | None, beside: Beside | None) -> Array:
    """An aligned array with a constant's elements, in `order` if one is given. `beside` has one for
    all kernels of its build that read them so, and copies large ones."""
    if beside is None:
        return _filled(source, order)
    at = source.__array_interface__
    how = None if order is None else order_text(order)
    key = (at["data"][0], source.shape, source.strides, source.dtype.str, how)
    if key not in beside.arrays:  # which keeps the source, so that nothing else is at its address
        beside.arrays[key] = source, _filled(source, order, beside)
    return beside.arrays[key][1]


def _filled(source: Array, order: IndexMap | None, beside: Beside | None = None) -> Array:
    make = aligned_empty if beside is None else beside.together.empty
    out = make(source.shape if order is None else order.shape, source.dtype)

    def fill() -> None:
        if order is None:
            out[...] = source
        else:
            pack_into(out, order, source)

    if beside is not None and out.nbytes >= LARGE:
        beside.copy(fill)
    else:
        fill()
    return out


_known: dict[str, Compiled] = {}  # what this process has compiled, and linked if it runs here


def _compiled(program: KernelSource, target: Target, beside: Beside | None) -> Compiled:
    """Compile and link a program, unless that has been done; both later if `beside` is there."""
    with cache.lock:
        if program.key in _known:
            cache.count("reused")
            return _known[program.key]
        if beside is not None and program.key in beside.begun:
            cache.count("reused")
            return beside.begun[program.key]
        if not backend_of(target).separate:
            return _known.setdefault(program.key, Compiled(abi_of(program.scheduled(), target)))
        entry = cache.load(program.key)
        if entry is not None:
            head, _, code = entry.partition(b"\n")
            cache.count("loaded")
            return _link(program.key, Compiled(KernelAbi.from_json(head.decode()), code), target)
        scheduled = program.scheduled()
        made, source = Compiled(abi_of(scheduled, target)), scheduled.code(target)

        def keep(code: bytes) -> None:
            made.code = code
            with cache.lock:
                cache.store(program.key, made.abi.to_json().encode() + b"\n" + code)
                _link(program.key, made, target)

        if beside is None:
            keep(backend_of(target).object(source, target))
        else:
            beside.begin(source, target, keep)
            beside.begun[program.key] = made
        return made


def _link(key: str, made: Compiled, target: Target) -> Compiled:
    loader_of(target).link(made.code, [s.symbol for s in made.abi.stages], target)
    _known[key] = made
    return made


def abi_of(scheduled: Scheduled, target: Target) -> KernelAbi:
    """How the native functions of a scheduled program are called."""
    func = backend_of(target).loops(scheduled.func)
    return KernelAbi(
        stages=tuple(
            Stage(
                f"{scheduled.symbol}_{k}",
                parallel_tasks(s)[0],
                innermost_work(s),
                joins,
                launch_of(s),
            )
            for k, (s, joins) in enumerate(zip(func.body, joined(func.body), strict=True))
        ),
        packed={k: func.packed[b].order for k, b in enumerate(func.params) if b in func.packed},
        temps=tuple(b.size * b.dtype.nbytes for b in func.temps),
    )


Seen = dict[tuple[object, ...], tuple[str, tuple[Array, ...]]]
_seen: ContextVar[Seen | None] = ContextVar("_seen", default=None)


@contextmanager
def remembering() -> Iterator[None]:
    """Let kernels of custom datatypes be scheduled and lowered once for every loop nest that is
    built within, as those of built-in dtypes always are.

    Registering a datatype or its operations anew counts; what lowerings read elsewhere must not
    change within.
    """
    token = _seen.set({})
    try:
        yield
    finally:
        _seen.reset(token)


def _meaning(f: PrimFunc) -> tuple[object, ...] | None:
    """What loops on custom datatypes mean, besides their text: the dtypes in them, and what is
    registered for these now. None where positions in a network count."""
    dtypes = [b.dtype for b in buffers(f)] + [e.dtype for v in values(f) for e in walk(v)]
    customs = dict.fromkeys(d for d in dtypes if d.is_custom)
    if any(map(random_dtype, customs)):
        return None
    kinds = [custom(d.name) for d in customs]
    revisions = [k.revision if isinstance(k, RevisedDType) else 0 for k in kinds]
    return (" ".join(map(str, dtypes)), *kinds, *revisions)


def _ours(f: PrimFunc) -> bool:
    """Whether nobody outside the package has a say in what becomes of a loop nest, but for the
    datatypes in it."""
    outside = intrinsics.any_registered() or rules.any_registered()
    return not outside and all(b.scope == "global" for b in buffers(f))
