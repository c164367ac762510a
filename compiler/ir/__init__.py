"""The graph level: types, expressions in A-normal form, modules, printed text, the verifier."""
