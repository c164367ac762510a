"""Object code of text that is compiled as it is, such as entry points."""

from __future__ import annotations

from compiler.codegen import cache
from compiler.codegen.backend import Code, backend_of
from compiler.target.registry import Target

_objects: dict[str, bytes] = {}  # what `object_of` has made


def object_of(code: Code, target: Target) -> bytes:
    """Object code, from this process or the cache if it is there.

    Raises:
        LoweringError: the code is rejected.
    """
    with cache.lock:
        parts = (code.text, *(["plain"] if code.plain else []), *backend_of(target).versions())
        key = cache.key(target, *parts)
        if key in _objects:
            cache.count("reused")
            return _objects[key]
        found = cache.load(key)
        if found is None:
            found = backend_of(target).object(code, target)
            cache.store(key, found)
        else:
            cache.count("loaded")
        return _objects.setdefault(key, found)
