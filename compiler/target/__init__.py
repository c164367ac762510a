"""Targets as data, the writer of LLVM text, and what instruction sets offer."""
