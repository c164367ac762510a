"""Loop nests on their way to code: what the stages of the pipeline that work on loops do to one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from compiler.codegen.backend import Code, backend_of, refuse_grid
from compiler.codegen.launches import grid_loops
from compiler.codegen.shared_tables import share_tables
from compiler.lowering.custom_dtypes import lower_custom_dtypes
from compiler.scheduling.choices import Choice
from compiler.scheduling.default import schedule_for
from compiler.scheduling.independent import check_independent
from compiler.scheduling.user_schedules import start_reductions
from compiler.target.registry import Target, kind_of
from compiler.tensor.expr import Buffer
from compiler.tensor.stmt import PrimFunc


@dataclass
class Nest:
    """A loop nest, which the stages change.

    Attributes:
        func: the loops.
        target: what they will run on.
        arranged: whether its loops are to run as they are written.
        constants: the parameters whose arrays are known at build time.
        choices: register tiles for some stages instead of the rule's.
        tables: look-up tables that it reads.
    """

    func: PrimFunc
    target: Target
    arranged: bool = False
    constants: Collection[Buffer] = ()
    choices: Choice = field(default_factory=dict)
    tables: tuple[Buffer, ...] = ()

    @property
    def by_rules(self) -> bool:
        """Whether the default schedule is for it: of loops that somebody arranged for a CPU, a
        machine with grids still has to make some."""
        grids = kind_of(self.target.kind).grid
        return not self.arranged or (grids and not all(map(grid_loops, self.func.body)))


def checked(n: Nest) -> Nest:
    """Raise LoweringError where loops that are to run side by side depend on each other."""
    check_independent(n.func)
    return n


def started(n: Nest) -> Nest:
    """With the initialisations of reductions as statements."""
    start_reductions(n.func)
    return n


def scheduled(n: Nest) -> Nest:
    """As the rules for the target's kind schedule it.

    Raises:
        ScheduleError: a choice does not fit.
    """
    schedule_for(n.target)(n.func, n.target, n.constants, n.choices)
    return n


def on_builtin_dtypes(n: Nest) -> Nest:
    """Without custom datatypes; the blocks of grids with tables of their own.

    Raises:
        LoweringError: an operation has no lowering for its dtype and target, or a loop is of a grid
            of threads, which the target does not have.
    """
    kind = kind_of(n.target.kind)
    if not kind.grid:
        refuse_grid(n.func, kind.name)
    n.func, tables = lower_custom_dtypes(n.func, kind.lowerings, kind.keeps_nan)
    n.tables = tuple(tables)
    if kind.grid:
        n.func = share_tables(n.func)
    return n


def code(n: Nest) -> Code:
    """Its functions, in the language of the target's backend.

    Raises:
        LoweringError: an expression or schedule that cannot be lowered.
    """
    return backend_of(n.target).kernel(n.func, n.tables, n.target)
