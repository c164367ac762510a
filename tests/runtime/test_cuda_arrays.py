"""Tensors that stay on the device, and go to other libraries and come from them without copies.

The library is made up, on memory of this process, so that numpy and torch read what it computes.
"""

import gc
import threading
from typing import Any

import numpy as np
import pytest
from runtime.cuda_programs import (
    WIDTH,
    FakeInterpreter,
    FakeLibrary,
    Faulty,
    N,
    data,
    growing,
    program,
    wanted,
)

from compiler.errors import InputError, MachineError, OutOfMemoryError
from compiler.runtime.cuda.device import Device
from compiler.runtime.cuda.device_arrays import DeviceArray, _exported, on_a_device
from compiler.runtime.cuda.driver import CudaError
from compiler.runtime.cuda.emulated import EmulatedDriver
from compiler.runtime.cuda.executable import CudaExecutable
from compiler.runtime.cuda.libcuda import LibCuda
from compiler.runtime.cuda.loader import CudaLoader
from compiler.runtime.cuda.timing import KernelFigures, kernel_figures
from compiler.runtime.profile import profile


def machine(cpu: bool = True) -> tuple[FakeLibrary, Device, CudaExecutable]:
    library = FakeLibrary()
    driver = LibCuda(found=library)
    if cpu:
        driver.place = (1, 0)  # DLPack's CPU, since that is where it is
    device = Device(driver)
    exe = CudaLoader(lambda runner: device).load(program())
    assert isinstance(exe, CudaExecutable)
    return library, device, exe


def filled(device: Device, x: Any) -> DeviceArray:
    """The same on a device."""
    out = DeviceArray(device, x.shape, x.dtype)
    stream = device.driver.stream()
    device.driver.upload(out.address, x.ctypes.data, x.nbytes, stream)
    device.driver.synchronize(stream)
    device.driver.close_stream(stream)
    return out


def test_results_stay_and_are_inputs_again() -> None:
    library, device, exe = machine()
    x = data(5)
    first, same = exe.on_device(x)
    assert first.shape == (5, WIDTH)
    assert repr(first) == "DeviceArray(shape=(5, 4), dtype=float32, on Made Up 100)"
    assert np.array_equal(first.numpy(), wanted(x)[0])
    assert np.array_equal(same.numpy(), x)
    uploads = len(library.named("cuMemcpyHtoDAsync_v2"))
    second, unused = exe.on_device(first)
    assert len(library.named("cuMemcpyHtoDAsync_v2")) == uploads
    assert np.array_equal(second.numpy(), wanted(wanted(x)[0])[0])
    launch = library.named("cuLaunchKernel")[-2]
    assert launch[4][0] == first.address  # which is no copy
    del first, second, same, unused, exe
    device.settle()
    device.pool.release()
    assert not library.blocks


def test_same_addresses_share_a_graph() -> None:
    library, _, exe = machine()
    x = data(3)
    there = exe.on_device(x)[1]
    for k in range(5):
        out = exe.on_device(there)
        assert np.array_equal(out[0].numpy(), wanted(x)[0]), k
        del out  # its memory is that of the next results
    assert 1 <= len(library.named("cuStreamBeginCapture_v2")) <= 2
    assert len(library.named("cuGraphLaunch")) >= 3


@pytest.mark.thorough
def test_numpy_takes_results_over() -> None:
    library, device, exe = machine()
    x = data(4)
    out, _ = exe.on_device(x)
    seen = np.from_dlpack(out)
    assert seen.ctypes.data == out.address
    assert np.array_equal(seen, wanted(x)[0])
    used = device.pool.statistics().blocks
    at = out.address
    del out
    gc.collect()
    assert device.pool.statistics().blocks == used
    assert np.array_equal(seen, wanted(x)[0])
    del seen
    gc.collect()
    assert device.pool.statistics().blocks == used - 1
    waited = len(library.named("cuCtxSynchronize"))
    blocks = [DeviceArray(device, (4, WIDTH), np.float32) for _ in range(4)]
    assert at in [b.address for b in blocks]
    assert len(library.named("cuCtxSynchronize")) == waited + 1  # the reader may not be done


@pytest.mark.thorough  # torch
def test_torch_takes_results_over_and_gives_inputs() -> None:
    torch = pytest.importorskip("torch")
    library, _, exe = machine()

    class Elsewhere:  # a tensor of torch, whose device is taken for ours
        def __init__(self, t: Any) -> None:
            self.t = t

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

        def __dlpack__(self, stream: Any = None) -> Any:
            return self.t.__dlpack__()

    x = data(4)
    t = torch.from_numpy(x.copy())
    at = t.data_ptr()
    exe.device.driver.place = (2, 0)
    with pytest.raises(InputError, match=r"'x' is on DLPack's device \(4, 0\), and the program"):
        exe.on_device(type("Far", (Elsewhere,), {"__dlpack_device__": lambda s: (4, 0)})(t))
    exe.device.driver.place = (1, 0)
    far = type("Near", (Elsewhere,), {})(t)
    assert not on_a_device(far)  # the CPU's are uploaded
    assert np.array_equal(exe.on_device(t)[0].numpy(), wanted(x)[0])
    out, _ = exe.on_device(filled(exe.device, x))
    theirs = torch.from_dlpack(out)
    assert theirs.data_ptr() == out.address
    assert np.array_equal(theirs.numpy(), wanted(x)[0])
    theirs += 1  # in our memory
    assert np.array_equal(out.numpy(), wanted(x)[0] + 1)
    assert at == t.data_ptr()
    del theirs
    assert library.blocks


class Foreign:
    """Memory of somebody else on the device of CUDA."""

    def __init__(self, of: DeviceArray, **changes: Any):
        self.of, self.changes = of, changes

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, stream: Any = None) -> Any:
        self.stream = stream
        capsule = self.of.__dlpack__()
        managed = [*_exported.values()][-1][1]
        for name, value in self.changes.items():
            setattr(
                managed.tensor.dtype if name in ("code", "bits") else managed.tensor, name, value
            )
        return capsule


@pytest.mark.thorough
def test_what_others_have_there_is_taken_over() -> None:
    library, device, exe = machine(cpu=False)
    x = data(6)
    theirs = Foreign(filled(device, x))
    before = len(_exported)
    out, _ = exe.on_device(theirs)
    assert np.array_equal(out.numpy(), wanted(x)[0])
    assert theirs.stream == exe._held.stream  # which waits for who computes it
    assert library.named("cuLaunchKernel")[0][4][0] == theirs.of.address
    assert len(_exported) == before  # their owner was told
    with pytest.raises(InputError, match=r"must be Tensor\[\(n, 4\), float32\], in float32, not"):
        exe.on_device(Foreign(filled(device, x.astype(np.float64))))
    with pytest.raises(InputError, match=r"of 16 bits that are not known \(DLPack code 9\)"):
        exe.on_device(Foreign(theirs.of, code=9, bits=16))
    with pytest.raises(InputError, match="in float32, not"):
        exe.on_device(Foreign(theirs.of, code=4, bits=16))
    odd = Foreign(filled(device, np.zeros((7, WIDTH), np.float32)), byte_offset=4)
    library.calls.clear()
    exe.on_device(odd)
    assert library.named("cuMemcpyDtoDAsync_v2")[0][1] == odd.of.address + 4  # is aligned anew
    gc.collect()
    assert len(_exported) == before


def test_what_is_not_in_c_order_is_refused() -> None:
    _, device, exe = machine(cpu=False)
    theirs = Foreign(filled(device, data(WIDTH)))

    def turned(stream: Any = None) -> Any:
        capsule = theirs.of.__dlpack__()
        strides = [*_exported.values()][-1][3]
        strides[0], strides[1] = 1, WIDTH
        return capsule

    theirs.__dlpack__ = turned  # type: ignore[method-assign]
    with pytest.raises(InputError, match="'x' is not in C order: make it contiguous"):
        exe.on_device(theirs)


def test_requests_that_cannot_be_met() -> None:
    _, device, exe = machine()
    out, _ = exe.on_device(data(2))
    for request in ({"copy": True}, {"dl_device": (2, 3)}):
        with pytest.raises(BufferError, match="as it is, where it is"):
            out.__dlpack__(**request)
    before = len(_exported)
    capsule = out.__dlpack__(dl_device=(1, 0), copy=False, max_version=(1, 0))
    assert len(_exported) == before + 1
    del capsule  # which nobody has taken
    assert len(_exported) == before
    _, other, _ = machine()
    with pytest.raises(InputError, match="'x' is in the memory of another device"):
        exe.on_device(filled(other, data(2)))
    with pytest.raises(InputError, match="missing input 'x'"):
        exe.on_device()
    emulated = Device(EmulatedDriver(FakeInterpreter()))
    with pytest.raises(BufferError, match="nobody can read the memory of interpreter of PTX"):
        DeviceArray(emulated, (2,), np.float32).__dlpack_device__()
    assert device.driver.place == (1, 0)


def test_ordinary_calls_take_no_tensors_of_a_device() -> None:
    _, device, exe = machine(cpu=False)
    there = filled(device, data(2))
    said = (
        "input 'x' must be an array of float32, not DeviceArray: on_device of an executable takes"
    )
    with pytest.raises(InputError, match=said):
        exe(there)
    with pytest.raises(InputError, match=r"must be an array of float32, not dict_keys$"):
        exe({}.keys())


def test_no_elements_and_scalars() -> None:
    _, device, exe = machine()
    out = exe.on_device(data(0))
    assert [a.shape for a in out] == [(0, WIDTH)] * 2
    assert out[0].numpy().shape == (0, WIDTH)
    x = np.array(3.5, np.float64)
    one = filled(device, x)
    assert one.numpy() == x
    assert np.from_dlpack(one) == x


def test_inputs_that_a_program_writes_to_are_changed_there() -> None:
    _, device, _ = machine()
    exe = CudaLoader(lambda runner: device).load(growing())
    assert isinstance(exe, CudaExecutable)
    x = data(3)
    there = filled(device, x)
    assert exe.on_device(there) == []
    exe.on_device(there)
    assert np.array_equal(there.numpy(), x + 2)
    device.driver.place = (2, 0)
    odd = Foreign(filled(device, np.zeros((4, WIDTH), np.float32)), byte_offset=4)
    with pytest.raises(InputError, match="'x', which the program changes, must begin at a mult"):
        exe.on_device(odd)


def test_threads() -> None:
    _, _, exe = machine()
    failed: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for n in (3, 9, 3, 30):
                x = data(n, seed)
                out, same = exe.on_device(x)
                assert np.array_equal(out.numpy(), wanted(same.numpy())[0])
                assert np.array_equal(exe(x)[0], wanted(x)[0])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed


@pytest.mark.sampled(4)
@pytest.mark.parametrize("method", ["allocate", "launch", "synchronize", "upload"])
def test_faults_leave_nothing_behind(method: str) -> None:
    interpreter = FakeInterpreter()
    emulated = EmulatedDriver(interpreter, 1 << 20)
    driver = Faulty(emulated)
    device = Device(driver)
    exe = CudaLoader(lambda runner: device).load(program())
    assert isinstance(exe, CudaExecutable)
    if method == "allocate":
        for k in range(3):
            driver.fail_next(method, OutOfMemoryError("full"), 2 + k)
    else:
        driver.fail_next(method, CudaError("CUDA_ERROR_X: no", "CUDA_ERROR_X"))
    with pytest.raises((MachineError, OutOfMemoryError), match=r"CUDA_ERROR_X|full"):
        exe.on_device(data(100))
    gc.collect()
    assert device.pool.statistics().blocks <= 2  # the weights, and a workspace
    assert np.array_equal(exe.on_device(data(100))[0].numpy(), wanted(data(100))[0])


def test_whole_calls_are_timed_as_graphs() -> None:
    library, _, exe = machine()
    arrays, dims = [data(4)], {N: 4}
    assert exe.call_times(arrays, dims, runs=5) == [0.5] * 5
    assert len(library.named("cuGraphLaunch")) == 6  # the second call, and those that were timed
    with pytest.raises(InputError, match=r"nothing to time \(n = 0\)"):
        exe.call_times([data(0)], {N: 0}, 1)


def test_what_kernels_take_of_a_device() -> None:
    _, _, exe = machine()
    first, second = kernel_figures(exe, n=4)
    assert first == KernelFigures("add_0", WIDTH, 40, 2048, 0, 2048 // WIDTH, 1.0)
    assert second.symbol == "relu_0"


def test_kernels_are_timed_by_events() -> None:
    library, _, exe = machine()
    times = profile(exe, data(4), runs=3)
    assert [(t.symbol, t.milliseconds) for t in times] == [("add_0", 0.5), ("relu_0", 0.5)]
    assert len(library.named("cuEventCreate")) == len(library.named("cuEventDestroy_v2")) == 2
    assert [t.milliseconds for t in profile(exe, data(0))] == [0, 0]
    assert np.array_equal(exe.run([data(4)], {N: 4})[0], wanted(data(4))[0])
