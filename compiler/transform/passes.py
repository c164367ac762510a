"""Pass infrastructure: passes, Sequential, PassContext, instruments.

A pass has a name, the optimization level from which it runs, and the names of passes it requires.
`Sequential` runs those that the current `PassContext` enables. The names are those of TVM's pass
infrastructure, which users know.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from compiler.errors import DtypelabError
from compiler.ir.expr import Function, IRModule
from compiler.transform.nested import through_nested


class PassInstrument:
    """Watches passes run; override what you need."""

    def before(self, mod: IRModule, pass_: Pass) -> None:
        """Called with the module a pass is about to transform."""

    def after(self, mod: IRModule, pass_: Pass) -> None:
        """Called with the module a pass has made."""


class _State(threading.local):
    def __init__(self) -> None:
        self.stack: list[PassContext] = []


_state = _State()


@dataclass(frozen=True)
class PassContext:
    """Which passes run, and how; use it in a `with` statement.

    Attributes:
        opt_level: passes of a higher level are skipped (0: only what is needed to be correct).
        required_pass: names that run whatever their level.
        disabled_pass: names that never run.
        config: options that passes read, e.g. `{"FuseOps.max_depth": 16}`.
        instruments: watchers called around every pass.
    """

    opt_level: int = 2
    required_pass: Sequence[str] = ()
    disabled_pass: Sequence[str] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    instruments: Sequence[PassInstrument] = ()

    @staticmethod
    def current() -> PassContext:
        """The innermost active context, or the default one."""
        return _state.stack[-1] if _state.stack else PassContext()

    def __enter__(self) -> PassContext:
        _state.stack.append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        _state.stack.pop()

    def enables(self, pass_: Pass) -> bool:
        """Whether `pass_` runs in this context."""
        if pass_.name in self.disabled_pass:
            return False
        return pass_.name in self.required_pass or pass_.opt_level <= self.opt_level


class Pass:
    """A transformation of modules. Subclasses give `name`, `opt_level`, `required` and
    `transform`."""

    name: str = ""
    opt_level: int = 0
    required: Sequence[str] = ()

    def transform(self, mod: IRModule, ctx: PassContext) -> IRModule:
        """The transformed module."""
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
        for name, f in list(mod.functions.items()):
            if isinstance(f, Function):
                new = self._through(f, mod, ctx)
                if new is not f:
                    mod = mod.with_function(name, new)
        return mod

    def _through(self, f: Function, mod: IRModule, ctx: PassContext) -> Function:
        return through_nested(f, lambda g: self.transform_function(g, mod, ctx))


class Sequential(ModulePass):
    """Runs passes in order, skipping those that the context does not enable and running the passes
    that an enabled one requires before it."""

    def __init__(self, passes: Sequence[Pass], opt_level: int = 0, name: str = "sequential"):
        self.passes, self.opt_level, self.name = list(passes), opt_level, name

    def transform(self, mod: IRModule, ctx: PassContext) -> IRModule:
        """Run the enabled passes."""
        for p in self.passes:
            if not ctx.enables(p):
                continue
            for r in p.required:
                mod = find_pass(r)(mod)
            mod = p(mod)
        return mod


_registry: dict[str, Callable[[], Pass]] = {}


def register_pass(cls: type[Pass]) -> type[Pass]:
    """Class decorator: make the pass findable by name, so that others can require it."""
    _registry[cls.name] = cls
    return cls


def find_pass(name: str) -> Pass:
    """A fresh pass called `name`.

    Raises:
        DtypelabError: there is none.
    """
    import importlib

    from compiler.errors import unknown

    for module in ("infer_type", "fold_constant", "dead_code", "simplify_inference"):
        importlib.import_module(f"compiler.transform.{module}")
    if name not in _registry:
        raise DtypelabError(unknown("pass", name, _registry))
    return _registry[name]()


def _decorated(base: type[Pass], method: str, target: Any, name: str, opt_level: int,
               required: Sequence[str]) -> Any:  # fmt: skip
    attrs: dict[str, Any] = {
        "name": name or target.__name__, "opt_level": opt_level, "required": tuple(required),
        "__doc__": target.__doc__,
    }  # fmt: skip
    if isinstance(target, type):

        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            self._target = target(*args, **kwargs)

        def run(self: Any, *args: Any) -> Any:
            return getattr(self._target, method)(*args)

        attrs |= {"__init__": init, method: run}
        return type(target.__name__, (base,), attrs)
    attrs[method] = lambda self, *args: target(*args)
    return type(target.__name__, (base,), attrs)()


def function_pass(
    target: Any = None, *, name: str = "", opt_level: int = 0, required: Sequence[str] = ()
) -> Any:
    """Decorator: a function `(f, mod, ctx) -> Function`, or a class with `transform_function`, as a
    pass."""
    if target is None:
        return lambda t: function_pass(t, name=name, opt_level=opt_level, required=required)
    return _decorated(FunctionPass, "transform_function", target, name, opt_level, required)


def module_pass(
    target: Any = None, *, name: str = "", opt_level: int = 0, required: Sequence[str] = ()
) -> Any:
    """Decorator: a function `(mod, ctx) -> IRModule`, or a class with such a `transform`, as a
    pass."""
    if target is None:
        return lambda t: module_pass(t, name=name, opt_level=opt_level, required=required)
    return _decorated(ModulePass, "transform", target, name, opt_level, required)


class PrintIR(ModulePass):
    """Prints the module where it stands in a Sequential."""

    name = "PrintIR"

    def __init__(self, header: str = "", show_meta_data: bool = False, file: TextIO | None = None):
        self.header, self.show_meta_data, self.file = header, show_meta_data, file

    def transform(self, mod: IRModule, ctx: PassContext) -> IRModule:
        """Print and pass on."""
        head = f"// {self.header}\n" if self.header else ""
        print(head + mod.astext(self.show_meta_data), file=self.file or sys.stdout)
        return mod


class TimingInstrument(PassInstrument):
    """Wall-clock milliseconds of every pass that ran, in `times` as (name, ms)."""

    def __init__(self) -> None:
        self.times: list[tuple[str, float]] = []
        self._starts: list[float] = []

    def before(self, mod: IRModule, pass_: Pass) -> None:
        """Start the clock."""
        self._starts.append(time.perf_counter())

    def after(self, mod: IRModule, pass_: Pass) -> None:
        """Stop the clock."""
        self.times.append((pass_.name, (time.perf_counter() - self._starts.pop()) * 1e3))

    def render(self) -> str:
        """The times as a table, slowest first."""
        rows = sorted(self.times, key=lambda t: -t[1])
        return "\n".join(f"{ms:9.3f} ms  {name}" for name, ms in rows)


class VerifyInstrument(PassInstrument):
    """Verifies the module after every pass, naming the pass that broke it."""

    def after(self, mod: IRModule, pass_: Pass) -> None:
        """Raise VerifyError if the pass left an invalid module."""
        from compiler.errors import VerifyError
        from compiler.ir.verifier import verify

        try:
            verify(mod)
        except VerifyError as e:
            raise VerifyError(f"after pass {pass_.name}: {e}") from None
