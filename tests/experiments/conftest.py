import fake_pipeline
import pytest


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweeps run on numpy stand-ins instead of compiled networks."""
    fake_pipeline.install(monkeypatch.setattr)
