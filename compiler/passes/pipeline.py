"""The pipeline: which passes and functions take a program from import to machine code, in order.

The one pipeline is the table in `compiler.stages`. Rooms below that one run their stages of it by
name; the package's root says which module registers it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from compiler.errors import DtypelabError

if TYPE_CHECKING:
    from compiler.passes.manager import Sequential


def _nothing(_: Any) -> tuple[()]:
    return ()


def _always(_: Any) -> bool:
    return True


@dataclass(frozen=True, eq=False)
class Step:
    """A pass, or a function, that a stage runs. It is imported when it is first needed.

    Attributes:
        name: of the pass or function.
        function: where it is: "package.module:name". A function takes and gives what goes through
            its stage.
        outside: whether the function is a method of the target's backend or loader, which are
            called, partly by other threads, as code gets ready: instruments do not see it.
        is_pass: whether `name` is that of a pass: `function` is its class, or runs it.
        given: what the pass is made with, of what its stage is told.
        when: whether the step runs, of what its stage is told or, before a function, of what goes
            through it.
        note: that, and what else is particular, in words.
    """

    name: str
    function: str
    outside: bool = False
    is_pass: bool = False
    given: Callable[[Any], tuple[Any, ...]] = _nothing
    when: Callable[[Any], bool] = _always
    note: str = ""

    @property
    def optional(self) -> bool:
        """Whether it is a pass that the PassContext has run or left out."""
        return self.is_pass and self.function.endswith(f":{self.name}")

    def load(self) -> Any:
        """The class of the pass, or the function."""
        return pkgutil.resolve_name(self.function)


@dataclass(frozen=True, eq=False)
class Stage:
    """Steps that follow each other.

    Attributes:
        name: how it is asked for.
        subject: what goes through it, in words.
        steps: all are passes, or all are functions.
        level: below this level of the PassContext no pass of it runs, unless it is required.
    """

    name: str
    subject: str
    steps: tuple[Step, ...]
    level: int = 0


@dataclass(frozen=True, eq=False)
class Pipeline:
    """Stages in order, and the passes that run only where somebody asks for them."""

    stages: tuple[Stage, ...]
    on_request: tuple[Step, ...] = ()

    def __getitem__(self, name: str) -> Stage:
        """The stage of that name."""
        return next(s for s in self.stages if s.name == name)

    def between(self, first: str, last: str) -> tuple[Stage, ...]:
        """The stages from `first` to `last`."""
        names = [s.name for s in self.stages]
        return self.stages[names.index(first) : names.index(last) + 1]

    def steps(self) -> Iterator[tuple[Stage, Step]]:
        """Every step, in order."""
        return ((stage, step) for stage in self.stages for step in stage.steps)

    def load_passes(self) -> None:
        """Import all passes, so that they are known by name."""
        for step in (*(s for _, s in self.steps()), *self.on_request):
            if step.is_pass:
                step.load()


# ---- which one -----------------------------------------------------------------------------------
_home = ""
_registered: list[Pipeline] = []


def comes_from(module: str) -> None:
    """Say which module registers the pipeline as it is imported."""
    global _home
    _home = module


def register(pipeline: Pipeline) -> Pipeline:
    """Make it the pipeline of this process; returns it."""
    _registered[:] = [pipeline]
    return pipeline


def pipeline() -> Pipeline:
    """The registered pipeline; its module is imported if need be."""
    if not _registered:
        importlib.import_module(_home)
    if not _registered:
        raise DtypelabError(f"{_home} registers no pipeline")
    return _registered[0]


# ---- running it ----------------------------------------------------------------------------------
def sequence(name: str, first: str, last: str = "", told: Any = None) -> Sequential:
    """The passes of one stage, or of the stages from `first` to `last`, as one called `name`.
    `told`: what some are made with, and run by.

    Stages whose level the current PassContext does not reach are not even imported.
    """
    from compiler.passes.manager import PassContext, Sequential

    context = PassContext.current()
    steps = [
        step
        for stage in pipeline().between(first, last or first)
        if stage.level <= context.opt_level or context.required_pass
        for step in stage.steps
        if step.when(told)
    ]
    return Sequential([s.load()(*s.given(told)) for s in steps], name=name, steps=steps)


def run(subject: Any, first: str, last: str = "") -> Any:
    """What the functions of one stage, or of the stages from `first` to `last`, make of `subject`:
    each of what the one before it gave. Instruments of the current PassContext are told."""
    from compiler.passes.manager import PassContext

    instruments = PassContext.current().instruments
    for stage in pipeline().between(first, last or first):
        for step in stage.steps:
            if not step.when(subject):
                continue
            for i in instruments:
                i.before_step(step, subject)
            subject = step.load()(subject)
            for i in instruments:
                i.after_step(step, subject)
    return subject
