"""A module as torch.export's program, in operators that have converters."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from compiler.errors import ModelError, UnsupportedError, nearest
from compiler.frontend.torch.fake_quantization import as_they_are
from compiler.frontend.torch.node import ATEN

if TYPE_CHECKING:
    import torch


FIELD = "operator.getitem"
"""What picks one output of a node that has several."""

_RAISED = (
    RuntimeError, TypeError, ValueError, AssertionError, AttributeError, LookupError, NameError,
    ArithmeticError, ImportError,
)  # fmt: skip
"""What a module's own code, and torch as it traces it, raise."""


@contextmanager
def quiet() -> Iterator[None]:
    """Without gradients, and without the warnings that torch's tracing gives of itself."""
    import torch

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        yield


def exported(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, dynamic_shapes: Any
) -> Any:
    """The ExportedProgram of a module, in operators that have converters where there are any.

    Raises:
        ModelError: it is neither a module nor a program, its arguments do not fit, or torch.export
            refuses it.
    """
    try:
        import torch
    except ImportError:
        raise ModelError("from_torch needs torch: pip install 'dtypelab[torch]'") from None
    if isinstance(module, torch.export.ExportedProgram):
        program: Any = module
    elif isinstance(module, torch.nn.Module):
        program = _traced(module, args, kwargs, dynamic_shapes)
    else:
        raise ModelError(
            f"from_torch takes a torch.nn.Module or an ExportedProgram, not {type(module).__name__}"
        )
    with quiet():
        return program.run_decompositions(decompositions())


def _traced(module: torch.nn.Module, args: Sequence[Any], kwargs: Any, dynamic_shapes: Any) -> Any:
    import torch

    if not isinstance(args, tuple):
        args = tuple(args) if isinstance(args, list) else (args,)
    try:
        with quiet(), as_they_are(module):
            return torch.export.export(
                module, args, dict(kwargs or {}), dynamic_shapes=dynamic_shapes, strict=False
            )
    except _RAISED as e:
        raise ModelError(f"torch.export cannot trace {type(module).__name__}: {said(e)}") from e


def said(e: BaseException) -> str:
    """What an error of torch says, in one line."""
    lines = [line.strip() for line in str(e).splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith(("File ", "from user code", "Traceback"))]
    return (kept or [type(e).__name__])[0].rstrip(".:")


def decompositions() -> Any:
    """torch's table of decompositions, without those of operators that have converters."""
    import torch

    table = torch.export.default_decompositions()
    for op in list(table):
        if packet(op) in ATEN:
            del table[op]
    return table


def packet(op: Any) -> str:
    """Name of an operator without its overload: `aten.add` of `aten.add.Tensor`, `operator.mul`."""
    if not hasattr(op, "_schema"):
        module = getattr(op, "__module__", "").lstrip("_")
        return f"{module}.{getattr(op, '__name__', op)}"
    return ".".join(str(op).split(".")[:2])


def check_operators(nodes: Iterable[Any]) -> None:
    """Raise one UnsupportedError for all operators without a converter, with the modules that they
    are in."""
    missing: dict[str, list[str]] = {}
    for n in nodes:
        if n.op == "call_function" and packet(n.target) not in {FIELD, *ATEN}:
            missing.setdefault(packet(n.target), []).append(place(n))
    known = {op.partition(".")[2]: op for op in ATEN}
    parts = []
    for op, places in sorted(missing.items()):
        close = nearest(op.partition(".")[2], known, 1)
        hint = f"; nearest supported: {known[close[0]]}" if close else ""
        more = f" and {len(places) - 5} more" if len(places) > 5 else ""
        parts.append(f"{op} (in {', '.join(places[:5])}{more}{hint})")
    if parts:
        raise UnsupportedError(f"unsupported operators: {'; '.join(parts)}")


def place(n: Any) -> str:
    """Where in the module a node is, for messages."""
    return repr(module_path(n) or n.name)


def module_path(n: Any) -> str:
    """Path of the innermost module that a node comes from: `layer1.0.conv1`; "" if it is the whole
    module."""
    stack = list((n.meta.get("nn_module_stack") or {}).values())
    path = str(stack[-1][0]) if stack else ""
    return re.sub(r"^([LG]\['\w+'\]|L__self__)\.?", "", path)
