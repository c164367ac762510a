"""The pool of device memory: blocks never overlap, figures add up, and it gives back when asked."""

import itertools
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime.cuda_programs import FakeInterpreter, Faulty

from compiler.errors import OutOfMemoryError
from compiler.runtime.cuda.emulated import EmulatedDriver
from compiler.runtime.cuda.memory import (
    LARGE,
    LARGE_STEP,
    SPARE,
    STEP,
    Block,
    Pool,
    quantity,
    rounded,
)


def pool(limit: int = 1 << 30) -> tuple[Pool, Faulty]:
    driver = Faulty(EmulatedDriver(FakeInterpreter(), limit))
    return Pool(driver), driver


SIZES = st.one_of(st.integers(1, 5000), st.integers(1, 8 << 20))


@settings(max_examples=40)
@given(st.lists(st.one_of(SIZES, st.integers(-20, -1)), max_size=40))
def test_blocks_do_not_overlap_and_figures_add_up(actions: list[int]) -> None:
    p, driver = pool()
    used: list[Block] = []
    peak = 0
    for a in actions:
        if a > 0:
            block = p.take(a, "a test")
            assert a <= block.nbytes <= rounded(a) + rounded(a) // SPARE
            used.append(block)
        elif used:
            p.give(used.pop(a % len(used)))
        spans = sorted((b.address, b.address + b.nbytes) for b in used)
        assert all(e <= b for (_, e), (b, _) in itertools.pairwise(spans))
        now = p.statistics()
        peak = max(peak, now.used)
        assert (now.used, now.peak, now.blocks) == (sum(b.nbytes for b in used), peak, len(used))
        assert now.held == sum(map(len, driver.memory.blocks.values())) >= now.used
    for b in used:
        p.give(b)
    p.release()
    assert p.statistics() == p.statistics().__class__(0, 0, peak, 0)
    assert not driver.memory.blocks


def test_what_is_given_back_is_taken_again() -> None:
    p, driver = pool()
    small, large = p.take(1000, "x"), p.take(LARGE, "x")
    p.give(large)
    p.give(small)
    assert p.take(513, "x") == small
    assert p.take(LARGE - LARGE // 8, "x") == large
    assert driver.calls["allocate"] == 2
    p.give(large)
    assert p.take(LARGE // 2, "x") != large  # of which half would lie idle
    assert driver.calls["allocate"] == 3


def test_sizes() -> None:
    assert rounded(1) == STEP
    assert rounded(STEP + 1) == 2 * STEP
    assert rounded(LARGE + 1) == LARGE + LARGE_STEP
    sizes = (10, 2048, 3 << 20, 80 << 30)
    assert [quantity(n) for n in sizes] == ["10 bytes", "2 KiB", "3 MiB", "80 GiB"]


def test_free_blocks_go_back_before_there_is_no_memory() -> None:
    p, driver = pool(1 << 20)
    blocks = [p.take(200 << 10, "x") for _ in range(5)]
    for b in blocks[1:]:
        p.give(b)
    whole = p.take(800 << 10, "x")
    assert driver.calls["free"] == 4
    with pytest.raises(OutOfMemoryError) as caught:
        p.take(300 << 10, "results")
    assert str(caught.value) == (
        "no memory on the interpreter of PTX for 300 KiB of results: 24 KiB of its 1 MiB are free, "
        "and this process uses 1000 KiB there (the interpreter's limit is reached)"
    )
    assert p.statistics().used == blocks[0].nbytes + whole.nbytes
    p.give(whole)
    p.take(300 << 10, "results")


def test_who_can_do_without_is_asked() -> None:
    class Idle:
        def __init__(self) -> None:
            self.block = p.take(900 << 10, "x")

        def let_go(self) -> None:
            p.give(self.block)

    p, _ = pool(1 << 20)
    idle = Idle()
    p.holders.add(idle)
    assert p.take(500 << 10, "y").nbytes == 500 << 10


def test_what_others_may_still_read_is_waited_for() -> None:
    p, driver = pool()
    for settled, waits in ((True, 0), (False, 1)):
        block = p.take(4096, "x")
        p.give(block, settled)
        assert p.take(4096, "x") == block
        p.give(block)
        assert driver.calls["synchronize"] == waits
    p.take(4096, "x")
    assert driver.calls["synchronize"] == 1


def test_threads() -> None:
    p, driver = pool()
    failed: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for k in range(100):
                block = p.take(1 + (seed * 37 + k * 101) % 9000, "x")
                driver.memory.write(block.address, bytes([seed]) * block.nbytes)
                assert (
                    driver.memory.read(block.address, block.nbytes) == bytes([seed]) * block.nbytes
                )
                p.give(block)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed
    assert p.statistics().used == 0
