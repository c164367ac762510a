"""Targets as data: kinds, CPUs, what instruction sets offer; and the writer of LLVM text."""
