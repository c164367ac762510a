"""Readers of model files. The only code that imports onnx, and only when a model is read."""

from compiler._lazy import lazy

__getattr__, __dir__, __all__ = lazy(
    __name__, {"compiler.frontend.onnx_importer": ["from_onnx", "supported_ops"]}
)
