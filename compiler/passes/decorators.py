"""function_pass and module_pass: functions and classes as passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compiler.passes.manager import FunctionPass, ModulePass, Pass


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
    """Decorator: a function `(mod, ctx) -> IRModule`, or a class with such a `transform` (or
    `transform_module`), as a pass."""
    if target is None:
        return lambda t: module_pass(t, name=name, opt_level=opt_level, required=required)
    return _decorated(ModulePass, "transform", target, name, opt_level, required)


def _decorated(base: type[Pass], method: str, target: Any, name: str, opt_level: int,
               required: Sequence[str]) -> Any:  # fmt: skip
    attrs: dict[str, Any] = {
        "name": name or target.__name__, "opt_level": opt_level, "required": tuple(required),
        "__doc__": target.__doc__, "__module__": target.__module__,
    }  # fmt: skip
    if isinstance(target, type):
        given = method if hasattr(target, method) else "transform_module"

        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            self._target = target(*args, **kwargs)

        def run(self: Any, *args: Any) -> Any:
            return getattr(self._target, given)(*args)

        attrs |= {"__init__": init, method: run}
        return type(target.__name__, (base,), attrs)
    attrs[method] = lambda self, *args: target(*args)
    return type(target.__name__, (base,), attrs)()
