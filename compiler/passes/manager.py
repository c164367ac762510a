"""Pass infrastructure: passes, PassContext, Sequential.

A pass has a name, the optimization level from which it runs, and the names of passes it requires.
`Sequential` runs those that the current `PassContext` enables. The names are those of TVM's pass
infrastructure, which users know.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from compiler.errors import ConfigError, unknown
from compiler.ir.expr import Function, IRModule
from compiler.passes.nested import through_nested

if TYPE_CHECKING:
    from compiler.passes.pipeline import Step


class PassInstrument:
    """Watches passes run; override what you need."""

    def before(self, mod: IRModule, pass_: Pass) -> None:
        """Called with the module a pass is about to transform."""

    def after(self, mod: IRModule, pass_: Pass) -> None:
        """Called with the module a pass has made."""

    def before_step(self, step: Step, subject: Any) -> None:
        """Called as a function of the pipeline that is no pass is about to be given `subject`: a
        module, the function of a kernel, or its loop nest."""

    def after_step(self, step: Step, given: Any) -> None:
        """Called with what such a function gave."""


class _State(threading.local):
    def __init__(self) -> None:
        self.stack: list[PassContext] = []


_state = _State()


@dataclass(frozen=True)
class PassContext:
    """Which passes run, and how; use it in a `with` statement. Printed, it is the table of the
    compiler's pipeline, and says of every pass whether it runs.

    Attributes:
        opt_level: passes of a higher level are skipped (0: only what is needed to be correct).
        required_pass: names that run whatever their level.
        disabled_pass: names that never run.
        config: options that passes read, e.g. `{"FuseOps.max_depth": 16}`.
        instruments: watchers called around every pass.

    Raises:
        ConfigError: there is no such pass or option; suggests some.
    """

    opt_level: int = 2
    required_pass: Sequence[str] = ()
    disabled_pass: Sequence[str] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    instruments: Sequence[PassInstrument] = ()

    def __post_init__(self) -> None:
        named = (*self.required_pass, *self.disabled_pass)
        if named or self.config:
            load_passes()
        _check("pass", named, _passes)
        _check("option of PassContext", self.config, _options())

    @staticmethod
    def current() -> PassContext:
        """The innermost active context, or the default one."""
        return _state.stack[-1] if _state.stack else PassContext()

    def __enter__(self) -> PassContext:
        _state.stack.append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        _state.stack.pop()

    def enables(self, pass_: Pass | type[Pass]) -> bool:
        """Whether `pass_` runs in this context."""
        if pass_.name in self.disabled_pass:
            return False
        return pass_.name in self.required_pass or pass_.opt_level <= self.opt_level

    def table(self) -> str:
        """Every stage and pass from import to machine code, in order, and which of them run."""
        from compiler.passes.record import pipeline_table

        return pipeline_table(self)

    def __str__(self) -> str:
        return self.table()


@dataclass(frozen=True)
class PassInfo:
    """What is known of a pass before it runs."""

    name: str
    opt_level: int
    required: tuple[str, ...]


class Pass:
    """A transformation of modules. Subclasses give `name`, `opt_level`, `required` and `transform`;
    contexts and other passes then know them by name.

    Attributes:
        name: unique among passes.
        opt_level: the least level of a PassContext that runs it.
        required: names of passes that Sequential runs before.
        options: what it reads of the config of PassContext, where each is "pass.option".
    """

    name: str = ""
    opt_level: int = 0
    required: Sequence[str] = ()
    options: Sequence[str] = ()

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "name" in vars(cls):
            _passes[cls.name] = cls

    @property
    def info(self) -> PassInfo:
        """Name, level and requirements."""
        return PassInfo(self.name, self.opt_level, tuple(self.required))

    def transform(self, mod: IRModule, ctx: PassContext) -> IRModule:
        """The transformed module (the same object if nothing changed)."""
        raise NotImplementedError(f"pass {self.name} does not say what it does")

    def __call__(self, mod: IRModule) -> IRModule:
        """Run the pass, with the current context's instruments around it."""
        ctx = PassContext.current()
        for i in ctx.instruments:
            i.before(mod, self)
        out = self.transform(mod, ctx)
        for i in ctx.instruments:
            i.after(out, self)
        return out

    def __repr__(self) -> str:
        return f"{self.name}(opt_level={self.opt_level})"


_passes: dict[str, type[Pass]] = {}


class ModulePass(Pass):
    """A pass over a whole module."""


class FunctionPass(Pass):
    """A pass over each graph-level function; gives `transform_function`.

    Branches, bodies of loops and closures are functions too: what they capture comes first among
    the parameters that the pass sees.
    """

    def transform_function(self, f: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The transformed function (the same object if nothing changed)."""
        raise NotImplementedError(f"pass {self.name} does not say what it does")

    def transform(self, mod: IRModule, ctx: PassContext) -> IRModule:
        """Apply `transform_function` to every graph-level function, and to those in them."""

        def each(g: Function) -> Function:
            return self.transform_function(g, mod, ctx)

        return mod.with_functions(
            {
                n: through_nested(f, each)
                for n, f in mod.functions.items()
                if isinstance(f, Function)
            }
        )


class Sequential(ModulePass):
    """Runs passes in order, skipping those that the context does not enable.

    What an enabled pass requires runs before it, and so do requirements of requirements, whatever
    their level; not again, though, while the module is still the one that they have left.
    """

    def __init__(
        self,
        passes: Sequence[Pass],
        opt_level: int = 0,
        name: str = "sequential",
        steps: Sequence[Step] = (),
    ):
        """`steps`: what the passes are in the compiler's pipeline, if they are from there."""
        self.passes, self.opt_level, self.name = list(passes), opt_level, name
        self.steps = tuple(steps)

    def transform(self, mod: IRModule, ctx: PassContext) -> IRModule:
        """Run the enabled passes.

        Raises:
            ConfigError: a required pass is unknown, disabled, or requires itself.
        """
        left: dict[str, IRModule] = {}
        for p in self.passes:
            if ctx.enables(p):
                mod = _run(p, mod, ctx, left, ())
        return mod


def _run(
    p: Pass, mod: IRModule, ctx: PassContext, left: dict[str, IRModule], above: tuple[str, ...]
) -> IRModule:
    """The module after `p` and what it requires. `left`: what each pass has left behind it;
    `above`: the passes that require `p`."""
    above = (*above, p.name)
    for name in p.required:
        if name in above:
            raise ConfigError(f"passes require each other: {' requires '.join((*above, name))}")
        if name in ctx.disabled_pass:
            raise ConfigError(f"pass {p.name} requires {name}: disable both or neither")
        if left.get(name) is not mod:
            mod = _run(find_pass(name), mod, ctx, left, above)
    left[p.name] = mod = p(mod)
    return mod


# ---- names ---------------------------------------------------------------------------------------
_other_options = {"tune.log", "tune.network", "padding.least_skipped"}
"""Options that no pass reads: the tuning log of `compiler.tuning`, whether choices for whole
networks in it hold, and which operators read a padded copy (see `PrimBuilder`)."""


def load_passes() -> None:
    """Import the passes of the compiler's pipeline, and those that run on request, so that all of
    them are known by name."""
    from compiler.passes.pipeline import pipeline

    pipeline().load_passes()


def find_pass(name: str) -> Pass:
    """A fresh pass called `name`.

    Raises:
        ConfigError: there is none, or it cannot be made without arguments.
    """
    if name not in _passes:
        load_passes()
    _check("pass", [name], _passes)
    try:
        return _passes[name]()
    except TypeError:
        raise ConfigError(f"pass {name} takes arguments: put it into the Sequential") from None


def _options() -> set[str]:
    return {f"{p.name}.{o}" for p in _passes.values() for o in p.options} | _other_options


def _check(kind: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise ConfigError(unknown(kind, name, known))
