"""Fixtures of every test, and how hypothesis draws.

Draws are the same in every run, so that a red run is the fault of the change before it.
`HYPOTHESIS_PROFILE=random` draws anew, to look for what nobody has drawn yet.
"""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# How long something takes is the machine's matter, not the tests'.
untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", untimed, derandomize=True)
settings.register_profile("random", untimed, derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests, and the processes they start, never touch the user's object cache. Theirs is one for
    all workers of a run, which compile many of the same kernels."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DTYPELAB_CACHE_DIR", str(folder / "objects"))
        yield
