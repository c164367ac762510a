"""torch.compile(module, backend="dtypelab", options={...}): graphs of torch in a number system, in
compiled code. Found by its entry point; torch is imported when it is asked for."""

from compiler._lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, {"experiments.torch_backend.backend": ["dtypelab"]})
