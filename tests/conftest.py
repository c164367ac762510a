"""Fixtures of every test."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests, and the processes they start, never touch the user's object cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DTYPELAB_CACHE_DIR", str(tmp_path_factory.mktemp("objects")))
        yield
