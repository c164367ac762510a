"""Patterns over graph functions, and rewriting by them, with a reason wherever one does not fit."""

from compiler._lazy import lazy

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "compiler.pattern.patterns": [
            "Pattern", "any_order", "constant", "dominates", "either", "is_op", "item",
            "tuple_of", "wildcard",
        ],
        "compiler.pattern.search": ["Found", "Mismatch", "Scope", "find_all", "match"],
        "compiler.pattern.tables": ["CompositePattern"],
        "compiler.pattern.rules": ["Refusal", "Rule", "RulePass", "apply_rules", "rule"],
    },
)  # fmt: skip
