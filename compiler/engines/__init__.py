"""Other code generators, which are handed regions of a program (Bring Your Own Codegen)."""

from compiler._lazy import lazy

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "compiler.pattern.tables": ["CompositePattern"],
        "compiler.engines.engine": ["Engine", "get_engine", "register_engine", "remove_engine"],
        "compiler.ir.regions": ["Decision", "Region", "decisions", "program_times", "regions"],
        "compiler.engines.linking": ["linked"],
    },
)
