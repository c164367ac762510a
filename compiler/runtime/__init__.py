"""Programs as data, the loaders that run them, executables: inputs, memory plan, thread pool."""
