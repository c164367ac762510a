"""Programs on a device, which is an interpreter here: memory, graphs, threads, and every fault."""

import contextlib
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from runtime.cuda_programs import (
    SHARED_CODE,
    WIDTH,
    FakeInterpreter,
    Faulty,
    N,
    cuda_target,
    data,
    growing,
    program,
    wanted,
)

from compiler.boundary.external import External
from compiler.errors import (
    InputError,
    LoweringError,
    MachineError,
    OutOfMemoryError,
    UnsupportedError,
)
from compiler.runtime.cuda import device as device_module
from compiler.runtime.cuda.device import Device
from compiler.runtime.cuda.driver import CudaError
from compiler.runtime.cuda.emulated import EmulatedDriver
from compiler.runtime.cuda.executable import GRAPHS, CudaExecutable
from compiler.runtime.cuda.loader import CudaLoader
from compiler.symbolic import Index


class Machine:
    """A device with everything that tests look at."""

    def __init__(self, limit: int = 1 << 22):
        self.interpreter = FakeInterpreter()
        self.emulated = EmulatedDriver(self.interpreter, limit)
        self.driver = Faulty(self.emulated)
        self.device = Device(self.driver)
        self.loader = CudaLoader(lambda runner: self.device)

    def load(self, **changes: object) -> CudaExecutable:
        exe = self.loader.load(program(**changes))  # type: ignore[arg-type]
        assert isinstance(exe, CudaExecutable)
        return exe

    def clear(self) -> None:
        """Nothing is left on the device once nobody holds an executable."""
        if self.left():
            gc.collect()  # errors keep frames alive
        assert not self.left()

    def left(self) -> list[object]:
        """What is on the device besides memory that is free."""
        self.device.settle()
        used = self.device.pool.statistics().used
        self.device.pool.release()
        held = self.device.pool.statistics().held
        e = self.emulated
        blocks = e.memory.blocks  # type: ignore[attr-defined]
        found = used, held, blocks, e._streams, e._graphs, e._modules, e._events
        return [f for f in found if f]


def right(exe: CudaExecutable, n: int, seed: int = 0) -> None:
    x = data(n, seed)
    got = exe(x)
    assert [a.tobytes() for a in got] == [a.tobytes() for a in wanted(x)]


def test_weights_go_there_once_and_a_call_becomes_a_graph() -> None:
    m = Machine()
    exe = m.load()
    uploads = m.driver.calls["upload"]
    assert uploads == 1  # the weights
    for k in range(4):
        right(exe, 3, k)
    assert m.driver.calls["upload"] == uploads + 4
    assert m.driver.calls["download"] == 2 * 4
    assert m.driver.calls["begin_capture"] == m.driver.calls["end_capture"] == 1
    assert m.driver.calls["launch_graph"] == 3
    assert m.driver.calls["launch"] == 2 * 2  # the first call, and the capture
    assert [call[1:3] for call in m.interpreter.launches[:2]] == [((3, 1, 1), (WIDTH, 1, 1))] * 2
    del exe
    m.clear()


def test_kernels_share_a_module() -> None:
    m = Machine()
    first, second = m.load(), m.load()
    assert m.interpreter.parsed == [SHARED_CODE.decode()]
    right(first, 2)
    right(second, 2)
    del first, second
    m.clear()
    third = m.load()
    assert len(m.interpreter.parsed) == 2
    right(third, 2)


def test_each_combination_of_sizes_has_a_graph_until_memory_moves() -> None:
    m = Machine()
    exe = m.load()
    right(exe, 9)
    for n in (2, 5, 2, 5, 2):
        right(exe, n)
    assert m.driver.calls["end_capture"] == 2
    used = m.device.pool.statistics().used
    right(exe, 9)
    assert m.driver.calls["end_capture"] == 3
    assert m.device.pool.statistics().used == used  # memory of the largest call is kept
    right(exe, 2000)  # memory moves, and with it what was captured
    assert not any(g for k, g in exe._held.graphs.items() if k[0] != (2000,))
    right(exe, 2)
    for n in range(1, GRAPHS + 5):
        right(exe, n)
        right(exe, n)
    assert len(exe._held.graphs) == GRAPHS
    m.device.settle()
    assert len(m.emulated._graphs) == GRAPHS
    del exe
    m.clear()


def test_graphs_can_be_switched_off() -> None:
    m = Machine()
    exe = m.load()
    exe.graphs = False
    for k in range(3):
        right(exe, 3, k)
    assert m.driver.calls["begin_capture"] == 0
    assert m.driver.calls["launch"] == 2 * 3
    waited = m.driver.calls["synchronize"]
    exe.stepwise = True
    right(exe, 3)
    assert m.driver.calls["synchronize"] == waited + 4  # three steps and the call


def test_results_may_go_into_arrays_of_an_earlier_call() -> None:
    m = Machine()
    exe = m.load()
    held = exe.run([data(3)], {N: 3})
    got = exe.run([data(3, 1)], {N: 3}, held)
    assert all(a is b for a, b in zip(got, held, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(got, wanted(data(3, 1)), strict=True))


def test_inputs_that_a_program_writes_to_come_back() -> None:
    m = Machine()
    exe = m.loader.load(growing())
    x = data(3)
    want = x + 2
    assert exe.run([x], {N: 3}) == []
    exe.run([x], {N: 3})
    assert np.array_equal(x, want)


def test_no_elements_no_launch() -> None:
    m = Machine()
    exe = m.load()
    assert [a.shape for a in exe(data(0))] == [(0, WIDTH)] * 2
    assert m.driver.calls["launch"] == 0


def test_calls_of_threads_follow_each_other() -> None:
    m = Machine()
    exe = m.load()
    failed: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for n in (1, 4, 300, 4):
                right(exe, n, seed)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed


# ---- faults --------------------------------------------------------------------------------------
@pytest.mark.sampled(18)
@pytest.mark.parametrize("after", range(3))
@pytest.mark.parametrize("method", ["upload", "download", "launch", "copy", "zero", "synchronize"])
def test_a_call_that_fails_leaves_nothing_behind(method: str, after: int) -> None:
    m = Machine()
    exe = m.load()
    right(exe, 2)
    m.driver.fail_next(method, CudaError("CUDA_ERROR_INVALID_VALUE: no", "CUDA_ERROR_X"), after)
    failures = []
    for k in range(3):
        try:
            right(exe, 500 + 1000 * k)
        except MachineError as error:
            failures.append(str(error))
    assert len(failures) == 1
    assert "CUDA_ERROR_INVALID_VALUE: no" in failures[0]
    right(exe, 500)
    right(exe, 2)
    assert all(v is None for v in m.emulated._streams.values())  # nothing is captured
    del exe
    m.clear()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("method", ["begin_capture", "end_capture", "launch_graph"])
def test_a_graph_that_fails_leaves_nothing_behind(method: str) -> None:
    m = Machine()
    exe = m.load()
    right(exe, 2)
    m.driver.fail_next(method, CudaError("CUDA_ERROR_Y: no", "CUDA_ERROR_Y"))
    with pytest.raises(MachineError, match="CUDA_ERROR_Y"):
        exe(data(2))
    right(exe, 2)
    right(exe, 2)
    del exe
    m.clear()


@pytest.mark.parametrize("when", ["at first", "while a graph is captured"])
def test_a_kernel_that_is_not_launched_names_its_operator(when: str) -> None:
    m = Machine()
    exe = m.load()
    if when != "at first":
        right(exe, 2)
    words = "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: too many resources requested for launch"
    m.driver.fail_next("launch", CudaError(words, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"), after=1)
    with pytest.raises(CudaError) as caught:
        exe(data(2))
    assert str(caught.value) == f"relu_0 (Relu.2): {words}"
    assert caught.value.name == "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"
    right(exe, 2)
    right(exe, 2)


def test_what_fails_while_it_runs_is_named_at_first_and_stepwise() -> None:
    m = Machine()
    exe = m.load()
    fault = CudaError("CUDA_ERROR_ASSERT: hm", "CUDA_ERROR_ASSERT")
    m.driver.fail_next("synchronize", fault, after=1)
    with pytest.raises(CudaError, match=r"^relu_0 \(Relu.2\): CUDA_ERROR_ASSERT: hm$"):
        exe(data(2))
    right(exe, 2)
    m.driver.fail_next("synchronize", fault)
    with pytest.raises(MachineError, match=r"the program fails: CUDA_ERROR_ASSERT.*`stepwise`"):
        exe(data(2))
    exe.stepwise = True
    m.driver.fail_next("synchronize", fault)
    with pytest.raises(CudaError, match=r"^add_0 \(Add.1, Bias\): CUDA_ERROR_ASSERT"):
        exe(data(2))


def test_memory_that_is_not_there() -> None:
    m = Machine(limit=1 << 20)
    exe = m.load()
    right(exe, 2)
    with pytest.raises(OutOfMemoryError) as caught:
        exe(data(20000))
    said = str(caught.value)
    assert said.startswith("no memory on the interpreter of PTX for ")
    assert "of intermediate values (n = 20000); the largest, " in said or "inputs" in said
    assert "are free, and this process uses" in said
    assert m.device.pool.statistics().used == 512  # the weights
    right(exe, 2)
    right(exe, 2)
    del caught, exe
    m.clear()


def test_what_needs_the_memory_is_named() -> None:
    m = Machine(limit=1 << 20)
    exe = m.load(workspace=Index.of(N) * 4096)
    text = r"for 8 MiB of intermediate values \(n = 2000\); the largest, .* GiB, is that of add_0:"
    with pytest.raises(OutOfMemoryError, match=text):
        exe(data(2000))
    with pytest.raises(
        OutOfMemoryError, match=r"for 1 MiB of weights: 1024 KiB of its 1 MiB are free"
    ):
        m.load(weights=np.zeros(1 << 18, np.float32))
    del exe
    m.clear()


def test_others_give_way_before_there_is_no_memory() -> None:
    m = Machine(limit=1 << 20)
    first, second = m.load(), m.load()
    right(first, 9000)
    right(second, 9000)  # there is room for one of them
    right(first, 9000)
    with pytest.raises(OutOfMemoryError):
        first(data(100000))
    right(second, 9000)
    assert m.device.pool.statistics().peak <= 1 << 20


def _some_calls(m: Machine) -> None:
    for n in (3, 70000):
        right(m.load(), n)


@pytest.mark.thorough
@pytest.mark.parametrize("after", range(5))
def test_every_allocation_may_fail(after: int) -> None:
    m = Machine()
    for k in range(3):  # the pool tries three times
        m.driver.fail_next("allocate", OutOfMemoryError("full"), after + k)
    with pytest.raises(OutOfMemoryError, match=r"\(full\)$"):
        _some_calls(m)
    exe = m.load()
    right(exe, 3)
    right(exe, 700)
    del exe
    m.clear()


def test_nothing_runs_after_an_error_that_ends_everything() -> None:
    m = Machine()
    exe = m.load()
    right(exe, 2)
    m.driver.fail_next("synchronize", CudaError("CUDA_ERROR_ILLEGAL_ADDRESS: x", "", dead=True))
    with pytest.raises(MachineError, match="the program fails: CUDA_ERROR_ILLEGAL_ADDRESS"):
        exe(data(2))


def test_finalizers_do_nothing_at_once() -> None:
    m = Machine()
    exe = m.load()
    right(exe, 2)
    gone = weakref.ref(exe)
    calls = dict(m.driver.calls)
    del exe
    gc.collect()
    assert gone() is None
    assert dict(m.driver.calls) == calls
    m.clear()


# ---- refusals ------------------------------------------------------------------------------------
def test_what_cannot_run_there() -> None:
    m = Machine()
    with pytest.raises(LoweringError, match=r"^add_0: the interpreter of PTX rejects.* bad is no"):
        m.load(code=b"bad thing")
    of = program()
    broken = of.__class__(**{**of.__dict__, "externals": (External("f", (), 0),)})
    with pytest.raises(UnsupportedError, match="'f' is part of this process and cannot be called"):
        m.loader.load(broken)
    with pytest.raises(UnsupportedError, match="cannot be called one by one"):
        m.loader.address("add_0", cuda_target())
    with pytest.raises(InputError, match="rank"):
        m.load()(np.zeros(4, np.float32))
    assert m.load().prepared() is None
    m.clear()


def test_threads_open_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = threading.Barrier(2)

    class Slow(EmulatedDriver):
        def __init__(self) -> None:
            with contextlib.suppress(threading.BrokenBarrierError):
                slow.wait(0.2)  # for another that is being made
            super().__init__(FakeInterpreter())

    monkeypatch.setattr("compiler.runtime.cuda.emulated.EmulatedDriver", Slow)
    device_module._opened.cache_clear()
    try:
        with ThreadPoolExecutor(2) as threads:
            first, second = threads.map(device_module.opened, ["ptx", "ptx"])
    finally:
        device_module._opened.cache_clear()
    assert first is second


def test_what_it_says_of_itself() -> None:
    m = Machine()
    exe = m.load()
    right(exe, 2)
    assert exe.emulated == "interpreter of PTX"
    assert set(exe.device_bytes()) == {"weights", "border", "workspace"}
    assert "runs on: the interpreter of PTX (sm_90)" in exe.stats()
    assert "512 bytes of weights" in exe.stats()
