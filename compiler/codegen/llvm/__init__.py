"""Loop nests to LLVM IR text, and that to machine code."""
