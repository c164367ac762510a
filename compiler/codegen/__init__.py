"""Loop nests and entry points to code, one folder a backend. Knows nothing of any operator."""
