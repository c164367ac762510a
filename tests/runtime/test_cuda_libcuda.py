"""NVIDIA's library, called through ctypes: arguments, errors, graphs. The library is made up."""

import threading

import pytest
from runtime.cuda_programs import (
    SHARED_CODE,
    WIDTH,
    FakeLibrary,
    N,
    cuda_target,
    data,
    program,
    wanted,
)

from compiler.errors import LoweringError, MachineError, OutOfMemoryError, UnsupportedError
from compiler.runtime.cuda import libcuda
from compiler.runtime.cuda.device import Device, unlike
from compiler.runtime.cuda.driver import CudaError, Figures
from compiler.runtime.cuda.executable import CudaExecutable
from compiler.runtime.cuda.libcuda import LibCuda
from compiler.runtime.cuda.loader import CudaLoader
from compiler.target.cuda import CHIPS


def machine(**given: object) -> tuple[FakeLibrary, Device, CudaLoader]:
    found = FakeLibrary(**given)  # type: ignore[arg-type]
    device = Device(LibCuda(found=found))
    return found, device, CudaLoader(lambda runner: device)


def loaded(**changes: object) -> tuple[FakeLibrary, Device, CudaExecutable]:
    library, device, loader = machine()
    exe = loader.load(program(**changes))  # type: ignore[arg-type]
    assert isinstance(exe, CudaExecutable)
    return library, device, exe


def right(exe: CudaExecutable, n: int, seed: int = 0) -> None:
    x = data(n, seed)
    assert [a.tobytes() for a in exe(x)] == [a.tobytes() for a in wanted(x)]


def test_programs_run_through_the_library() -> None:
    library, _, exe = loaded()
    for k in range(4):
        right(exe, 3, k)
    assert len(library.named("cuStreamBeginCapture_v2")) == 1
    assert library.named("cuStreamBeginCapture_v2")[0][1] == 2  # relaxed
    assert len(library.named("cuGraphInstantiateWithFlags")) == 1
    assert len(library.named("cuGraphDestroy")) == 1
    assert len(library.named("cuGraphLaunch")) == 3
    assert len(library.named("cuModuleLoadDataEx")) == 1
    assert exe.emulated == ""
    assert "runs on: Made Up 100 (sm_80)" in exe.stats()


def test_arguments_are_eight_bytes_each() -> None:
    library, device, exe = loaded()
    right(exe, 5)
    name, grid, shared, stream, values = library.named("cuLaunchKernel")[0]
    assert (name, grid, shared) == ("add_0", (5, 1, 1, WIDTH, 1, 1), 0)
    assert stream == exe._held.stream
    blocks = exe._held.blocks
    assert values == [blocks["border"].address, blocks["weights"].address,
                      blocks["workspace"].address + 64, 5]  # fmt: skip
    relu = exe._code._modules["relu_0"].function("relu_0")
    large = values[2] + (1 << 40)  # arguments are of 64 bits, grids have three axes
    library.captured[stream] = []
    device.driver.launch(relu, (1, 2, 3), (4, 5, 6), [large, values[2], 2**63 - 1], 9, stream)
    grid, shared, _, given = library.named("cuLaunchKernel")[-1][1:]
    assert (grid, shared) == ((1, 2, 3, 4, 5, 6), 9)
    assert given == [large, values[2], 2**63 - 1]
    assert library.named("cuLaunchKernel")[-1][1:3] == ((1, 2, 3, 4, 5, 6), 9)


def test_shared_memory_is_asked_for_once() -> None:
    library, _, exe = loaded(shared=100_000)
    right(exe, 2)
    right(exe, 3)
    assert [args[1:] for args in library.named("cuFuncSetAttribute")] == [(8, 100_000)] * 2
    assert [c[2] for c in library.named("cuLaunchKernel")] == [100_000] * 4


def test_every_thread_has_the_context() -> None:
    library, _, exe = loaded()
    threads = [threading.Thread(target=right, args=(exe, 4, k)) for k in range(3)]
    for t in threads:
        t.start()
        t.join()
    needs = {"cuMemAlloc_v2", "cuLaunchKernel", "cuGraphLaunch", "cuMemcpyHtoDAsync_v2"}
    before = [library.calls[k - 1] for k, c in enumerate(library.calls) if c[0] in needs]
    assert set(before) == {("cuCtxSetCurrent", 77)}


def test_figures_and_occupancy() -> None:
    library, device, exe = loaded()
    driver = device.driver
    f = exe._code._modules["add_0"].function("add_0")
    assert driver.figures(f) == Figures(40, 2048, 0)
    assert driver.occupancy(f, 256) == 8
    p = driver.properties
    assert (p.name, p.chip, p.multiprocessors) == ("Made Up 100", "sm_80", 108)
    assert (p.threads, p.registers, p.shared, p.clock) == (1024, 65536, 166912, 1410)
    first, second = driver.event(), driver.event()
    driver.record(first, exe._held.stream)
    driver.record(second, exe._held.stream)
    assert driver.milliseconds(first, second) == 0.5
    driver.close_event(first)
    assert library.named("cuEventDestroy_v2") == [(first,)]


# ---- errors --------------------------------------------------------------------------------------
def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libcuda, "LIBRARY", "libno_such_library.so")
    with pytest.raises(UnsupportedError, match=r"^no NVIDIA driver is found.*-runner=simt"):
        LibCuda()


@pytest.mark.parametrize("codes", [[100], []])
def test_no_device(codes: list[int]) -> None:
    library = FakeLibrary(devices=0)
    library.fail["cuInit"] = codes
    with pytest.raises(UnsupportedError, match=r"driver finds no device: use -runner=simt"):
        LibCuda(found=library)


def test_a_driver_that_does_not_start_or_is_too_old() -> None:
    library = FakeLibrary()
    library.fail["cuInit"] = [3]
    with pytest.raises(UnsupportedError, match=r"start \(CUDA_ERROR_NOT_INITIALIZED: initiali"):
        LibCuda(found=library)
    library = FakeLibrary()
    library.lacking.add("cuMemGetInfo_v2")
    with pytest.raises(CudaError, match=r"too old: it has no cuMemGetInfo_v2, of CUDA 11\.4"):
        LibCuda(found=library).free_bytes()


@pytest.mark.parametrize(
    ("capability", "chip", "said"),
    [
        ((6, 1), "sm_75", "Made Up 100 is sm_61, and code for CUDA needs sm_75 or newer: use"),
        (
            (7, 5),
            "sm_80",
            "-arch=sm_80 -runner=driver' needs at least sm_80, and Made Up 100 is sm_75",
        ),
        ((8, 0), "sm_90a", "needs nothing but sm_90, and Made Up 100 is sm_80"),
        ((10, 0), "sm_90a", "needs nothing but sm_90, and Made Up 100 is sm_100"),
    ],
)
def test_chips_that_do_not_run_the_code(capability: tuple[int, int], chip: str, said: str) -> None:
    _, _, loader = machine(capability=capability)
    with pytest.raises(UnsupportedError) as caught:
        loader.load(program(cuda_target(chip)))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("capability", "chip"), [((8, 0), "sm_75"), ((9, 0), "sm_90a"), ((12, 0), "sm_90")]
)
def test_chips_that_run_the_code(capability: tuple[int, int], chip: str) -> None:
    library, device, _ = machine(capability=capability)
    assert unlike(CHIPS[chip], device.driver.properties) == ""
    assert library.attributes[75] == capability[0]


def test_rejected_code_comes_with_the_compilers_words() -> None:
    _, _, loader = machine()
    with pytest.raises(LoweringError) as caught:
        loader.load(program(code=b".version 9.9"))
    assert str(caught.value) == (
        "add_0: NVIDIA's driver rejects the code: CUDA_ERROR_INVALID_PTX: a PTX JIT compilation "
        "failed (cuModuleLoadDataEx): ptxas line 1; error : no such thing"
    )


def test_a_launch_that_fails_names_its_operator() -> None:
    library, _, exe = loaded()
    library.fail["cuLaunchKernel"] = [0, 701]
    with pytest.raises(CudaError) as caught:
        exe(data(2))
    assert str(caught.value) == (
        "relu_0 (Relu.2): CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: too many resources requested for "
        "launch (cuLaunchKernel)"
    )
    assert not caught.value.dead
    right(exe, 2)
    library.fail["cuLaunchKernel"] = [701]
    with pytest.raises(CudaError, match=r"^add_0 \(Add.1, Bias\): "):  # while it is captured
        exe(data(2))
    right(exe, 2)
    right(exe, 2)


def test_codes_without_words_are_numbers() -> None:
    library, _, exe = loaded()
    library.fail["cuLaunchKernel"] = [4711]
    with pytest.raises(CudaError, match=r"CUDA error 4711: which this driver does not know"):
        exe(data(2))


def test_memory_that_is_not_there() -> None:
    library, device, exe = loaded()
    right(exe, 2)
    with pytest.raises(OutOfMemoryError) as caught:
        exe(data(40000))
    said = str(caught.value)
    assert "no memory on Made Up 100 for 1.832 MiB of inputs and results (n = 40000): " in said
    assert said.endswith("(CUDA_ERROR_OUT_OF_MEMORY: out of memory)")
    assert library.used == device.pool.statistics().held == 512
    right(exe, 2)


def test_an_illegal_address_ends_everything() -> None:
    library, device, exe = loaded()
    right(exe, 2)
    library.fail["cuStreamSynchronize"] = [700]
    with pytest.raises(MachineError) as caught:
        exe(data(2))
    assert "the program fails: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was " in str(
        caught.value
    )
    calls = len(library.calls)
    for _ in range(2):
        with pytest.raises(
            CudaError, match=r"since an earlier call: CUDA_ERROR_ILLEGAL_ADDRESS.*sta"
        ):
            exe(data(2))
    with pytest.raises(CudaError, match="since an earlier call"):
        device.driver.allocate(10)
    del exe, caught
    device.settle()
    device.pool.release()
    assert len(library.calls) == calls  # nobody asks a driver that is gone


def test_an_illegal_address_of_the_first_call_names_the_kernel() -> None:
    library, _, exe = loaded()
    library.fail["cuStreamSynchronize"] = [0, 700]
    with pytest.raises(
        CudaError, match=r"^relu_0 \(Relu.2\): CUDA_ERROR_ILLEGAL_ADDRESS"
    ) as caught:
        exe(data(2))
    assert caught.value.dead


def test_a_process_that_forked_says_so() -> None:
    _, _, exe = loaded()
    right(exe, 2)
    driver = exe.device.driver
    assert isinstance(driver, LibCuda)
    driver._forked()
    with pytest.raises(CudaError, match="forks takes no device along"):
        exe.run([data(2)], {N: 2})


def test_everything_is_let_go() -> None:
    library, device, exe = loaded()
    for n in (2, 2, 3, 3):
        right(exe, n)
    made = {name: len(library.named(name)) for name in ("cuStreamCreate", "cuModuleLoadDataEx")}
    del exe
    device.settle()
    device.pool.release()
    assert not library.blocks
    assert len(library.named("cuGraphExecDestroy")) == 2
    assert len(library.named("cuStreamDestroy_v2")) == made["cuStreamCreate"]
    assert len(library.named("cuModuleUnload")) == made["cuModuleLoadDataEx"]


def test_code_ends_with_a_zero() -> None:
    library, device, _ = machine()
    handle = device.driver.module(SHARED_CODE)
    assert library.handles[handle] == ["add_0", "relu_0"]
    with pytest.raises(CudaError):
        device.driver.function(handle, "no_such")
