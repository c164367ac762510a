"""Import of torch's modules: what `torch.export` makes of them, operator by operator. Nothing here
imports torch before a module is given, but for types."""

from compiler._lazy import lazy

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {"compiler.frontend.torch.importer": ["from_fx", "from_torch", "supported_torch_ops"]},
)
