"""Loop nests to LLVM IR text. Knows nothing of any operator."""
