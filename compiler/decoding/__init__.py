"""Decoders: programs whose caches grow in place from call to call."""
