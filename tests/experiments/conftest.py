from collections.abc import Iterator

import fake_pipeline
import pytest
from row_hashes import forgetting

from datatypes.formats import catalogue


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweeps run on numpy stand-ins instead of compiled networks."""
    fake_pipeline.install(monkeypatch.setattr)


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test defines is gone after it."""
    yield from forgetting(monkeypatch)


@pytest.fixture(scope="module")
def known_formats() -> Iterator[None]:
    """What a module defines is gone after it."""
    known = dict(catalogue._known)
    yield
    catalogue._known.clear()
    catalogue._known.update(known)
