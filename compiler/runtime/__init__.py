"""Running compiled modules: inputs, memory plan, executable."""
