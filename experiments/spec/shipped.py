"""Specifications that ship, by name."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "specs"


def shipped() -> list[str]:
    """Their names, for example "quickstart"."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))
