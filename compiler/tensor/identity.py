"""Short names for texts."""

from __future__ import annotations

import hashlib


def digest(*parts: str) -> str:
    """16 hexadecimal digits that tell texts apart."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
