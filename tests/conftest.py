"""Fixtures of every test, the tiers that tests are in, and how hypothesis draws.

The first tier runs by default and touches every feature in minutes; `-m thorough` is the second,
`-m slow` are proofs that take minutes each. Of the cases of a test marked `sampled(n)`, one in n is
in the first tier and the others are in the second.

`TEST_MINUTES=25` skips what would begin later than that after the start, visibly: slow machines
have no time for the whole second tier. It begins with a few cases of every test, so that what there
is no time for is the hundredth case of one and never all of another.

Draws are the same in every run, so that a red run is the fault of the change before it.
`HYPOTHESIS_PROFILE=random` draws anew, to look for what nobody has drawn yet.
"""

import atexit
import gc
import importlib.util
import math
import os
import shutil
import sys
import tempfile
import time
import zlib
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# How long something takes is the machine's matter, not the tests'.
untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", untimed, derandomize=True)
settings.register_profile("random", untimed, derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


# Where no bytecode is to lie beside the sources, processes that tests start would compile all of
# them anew, which is half of a short command's time: they share a folder of this run's.
if sys.dont_write_bytecode and "PYTEST_XDIST_WORKER" not in os.environ:
    bytecode = tempfile.mkdtemp(prefix="bytecode-")
    atexit.register(shutil.rmtree, bytecode, ignore_errors=True)
    os.environ["PYTHONPYCACHEPREFIX"] = bytecode
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

START = time.monotonic()
MINUTES = float(os.environ.get("TEST_MINUTES", "inf"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what there is no time for."""
    if time.monotonic() - START > MINUTES * 60:
        pytest.skip(f"not begun in {MINUTES:g} minutes (TEST_MINUTES)")


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases that `sampled` leaves out of the first tier: those whose names have the larger
    checksums, so that what is left has no pattern and is the same in every run."""
    groups: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled") and not item.get_closest_marker("slow"):
            groups[item.nodeid.partition("[")[0]].append(item)
    for cases in groups.values():
        cases.sort(key=lambda item: zlib.crc32(item.name.encode()))
        mark = cases[0].get_closest_marker("sampled")
        assert mark is not None
        for item in cases[-(-len(cases) // mark.args[0]) :]:
            item.add_marker(pytest.mark.thorough)
    if math.isfinite(MINUTES):
        _a_few_of_each_first(items)


def _a_few_of_each_first(items: list[pytest.Item]) -> None:
    """Order the thorough tests: two cases of each, then two more, four more, and so on."""
    ranks: dict[str, int] = defaultdict(int)
    rounds: dict[pytest.Item, int] = {}
    for item in items:
        if item.get_closest_marker("thorough"):
            name = item.nodeid.partition("[")[0]
            rounds[item] = (ranks[name] // 2).bit_length()
            ranks[name] += 1
    items.sort(key=lambda item: rounds.get(item, 0))


def pytest_collection(session: pytest.Session) -> None:
    """No garbage is looked for among tens of thousands of tests as they are collected: that took a
    fifth of the time."""
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _exact_peer() -> Iterator[None]:
    """onnxruntime's sums of products of bytes are exact in tests: on x86 without VNNI they saturate
    after two products, unless a session says that it wants precision."""
    if importlib.util.find_spec("onnxruntime") is None:
        yield
        return
    import onnxruntime
    from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented

    from compiler.frontend.foreign.session import PRECISION

    class Exact(onnxruntime.InferenceSession):  # type: ignore[misc]
        def __init__(self, model: Any, sess_options: Any = None, *args: Any, **more: Any) -> None:
            options = sess_options or onnxruntime.SessionOptions()
            options.add_session_config_entry(PRECISION, "1")
            try:
                super().__init__(model, options, *args, **more)
            except NotImplemented:  # by some operators of signed data, which do not saturate
                options.add_session_config_entry(PRECISION, "0")
                super().__init__(model, options, *args, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnxruntime, "InferenceSession", Exact)
        yield


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
