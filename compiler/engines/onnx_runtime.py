"""onnxruntime as an engine: it computes nodes of ONNX files that we refuse, which `from_onnx` hands
to it while their own form is there; of programs it is handed nothing."""

from __future__ import annotations

from compiler.engines.engine import Engine, Runner, register_engine
from compiler.errors import UnsupportedError
from compiler.frontend.foreign.session import ENGINE, missing
from compiler.ir.expr import Function


def _nothing(_: Function, name: str) -> Runner:
    raise UnsupportedError(
        f"onnxruntime computes nodes of files, not @{name}: from_onnx(..., engines=[{ENGINE!r}])"
    )


register_engine(
    Engine(
        ENGINE,
        (),
        _nothing,
        missing,
        "what from_onnx refuses otherwise: operators, attributes and types that we do not have",
    )
)
