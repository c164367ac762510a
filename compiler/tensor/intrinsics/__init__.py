"""Tensor intrinsics: loop semantics plus the target's instruction, one file per instruction set."""
