"""Programs of GPUs on this CPU: the threads of a block are loops between its barriers."""
