"""Keeping a thread where it is, so that its times do not depend on where the system moves it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def pinned(threads: int) -> Iterator[None]:
    """Keep this thread, and those it starts, on the last `threads` CPUs that it may use (where the
    system can)."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(allowed)[-threads:]))
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
