"""Operators: one OpDef each, grouped by family, one file a family."""
