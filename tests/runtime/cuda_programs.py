"""Programs for GPUs written by hand, and devices that are none: an interpreter whose kernels are
functions of numpy, a library that looks like NVIDIA's, and a driver that fails when told to."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from compiler.codegen.backend import Code
from compiler.codegen.kernel_abi import KernelAbi, Launch, Stage
from compiler.codegen.steps import Pointer, Step
from compiler.errors import MachineError
from compiler.runtime.cuda.signatures import SIGNATURES
from compiler.runtime.kernels import Argument, Compiled, Kernel, Written
from compiler.runtime.program import Program
from compiler.symbolic import Index, Var
from compiler.target.registry import Target
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType

N = Var("n")
WIDTH = 4
ONE = Index.of(1)


def cuda_target(chip: str = "sm_80", runner: str = "driver") -> Target:
    text = f"cuda -arch={chip} -runner={runner}"
    return Target(text, "nvptx64-nvidia-cuda", chip, "", frozenset(), runner)


# ---- kernels -------------------------------------------------------------------------------------
class HostMemory:
    """Memory of this process."""

    @staticmethod
    def read(address: int, nbytes: int) -> bytes:
        return ctypes.string_at(address, nbytes)

    @staticmethod
    def write(address: int, data: bytes) -> None:
        ctypes.memmove(address, data, len(data))


def _floats(memory: Any, address: int, count: int) -> Array:
    return np.frombuffer(memory.read(address, 4 * count), np.float32)


def _add(memory: Any, x: int, w: int, out: int, n: int) -> None:
    values = _floats(memory, x, n * WIDTH).reshape(n, WIDTH) + _floats(memory, w, WIDTH)
    memory.write(out, values.tobytes())


def _relu(memory: Any, x: int, out: int, n: int) -> None:
    memory.write(out, np.maximum(_floats(memory, x, n * WIDTH), 0).tobytes())


def _grow(memory: Any, x: int, n: int) -> None:
    memory.write(x, (_floats(memory, x, n * WIDTH) + 1).tobytes())


KERNELS: dict[str, Callable[..., None]] = {"add_0": _add, "relu_0": _relu, "grow_0": _grow}
SHARED_CODE = b"module add_0 relu_0"


# ---- programs ------------------------------------------------------------------------------------
def stage(symbol: str, shared: int = 0, blocks: Index | None = None) -> Stage:
    grid = (Index.of(N) if blocks is None else blocks, ONE, ONE)
    return Stage(symbol, None, ONE, launch=Launch(grid, (WIDTH, 1, 1), shared))


def kernel(symbol: str, arguments: int, target: Target, code: bytes, shared: int = 0) -> Kernel:
    return Kernel(
        program=Written("", code.decode()),
        target=target,
        abi=KernelAbi((stage(symbol, shared),), {}, ()),
        compiled=Compiled(KernelAbi((), {}, ()), code),
        arguments=(Argument(None, None),) * arguments,
        outputs=1,
        tables=(),
        dims=(N,),
    )


def rows(shape: Sequence[Any] = (N, WIDTH)) -> TensorType:
    return TensorType.of(shape, "float32")


def program(
    target: Target | None = None,
    code: bytes = SHARED_CODE,
    shared: int = 0,
    weights: Array | None = None,
    workspace: Index | None = None,
) -> Program:
    """`sum`: relu(x + w), and `same`: x; the sum before relu lies in the workspace."""
    target = target or cuda_target()
    ws, x = Pointer("workspace", offset=Index.of(64)), Pointer("input", 0)
    kernels = tuple(
        kernel(s, count, target, code, shared) for s, count in (("add_0", 2), ("relu_0", 1))
    )
    added, clipped = (k.stages[0] for k in kernels)
    w = np.arange(WIDTH, dtype=np.float32) - 2 if weights is None else weights
    return Program(
        target=target,
        threads=1,
        inputs=(("x", rows()),),
        outputs=(("sum", rows()), ("same", rows())),
        kernels=kernels,
        constants=(w,),
        dims=(N,),
        workspace=Index.of(N) * (4 * WIDTH) + 64 if workspace is None else workspace,
        entry=Code(("main_hand",), ""),
        code=b"",
        steps=(
            Step(added, (x, Pointer("constant", 0), ws), (N,), nodes="Add.1, Bias"),
            Step(clipped, (ws, Pointer("output", 0)), (N,), nodes="Relu.2"),
            Step(None, (Pointer("output", 1), x), size=Index.of(N) * (4 * WIDTH)),
        ),
        sizes=(),
    )


def growing(target: Target | None = None) -> Program:
    """Adds 1 to its input, where that is."""
    target = target or cuda_target()
    code = b"module grow_0"
    k = kernel("grow_0", 0, target, code)
    steps = (Step(k.stages[0], (Pointer("input", 0),), (N,), nodes="Append"),)
    entry, x = Code(("main_grow",), ""), ("x", rows())
    return Program(target, 1, (x,), (), (k,), (), (N,), Index(), entry, b"", steps)


def wanted(x: Array) -> list[Array]:
    return [np.maximum(x + (np.arange(WIDTH, dtype=np.float32) - 2), 0), x]


def data(n: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(n, WIDTH)).astype(np.float32)


# ---- an interpreter ----------------------------------------------------------------------------
class FakeMemory:
    """Blocks with gaps between them; what is outside of all is refused."""

    def __init__(self, limit: int):
        self.limit, self.blocks, self._next = limit, dict[int, bytearray](), 4096

    def allocate(self, nbytes: int) -> int:
        if nbytes + sum(map(len, self.blocks.values())) > self.limit:
            raise MachineError("the memory is full")
        address, self._next = self._next, self._next + -(-nbytes // 4096) * 4096 + 4096
        self.blocks[address] = bytearray(b"\xcc" * nbytes)
        return address

    def free(self, address: int) -> None:
        del self.blocks[address]

    def _at(self, address: int, nbytes: int) -> tuple[bytearray, int]:
        for base, block in self.blocks.items():
            if base <= address and address + nbytes <= base + len(block):
                return block, address - base
        raise MachineError(f"{nbytes} bytes at {address} are in no allocation")

    def write(self, address: int, data: bytes) -> None:
        block, at = self._at(address, len(data))
        block[at : at + len(data)] = data

    def read(self, address: int, nbytes: int) -> bytes:
        block, at = self._at(address, nbytes)
        return bytes(block[at : at + nbytes])


class FakeInterpreter:
    """Texts are `module` and names of kernels."""

    def __init__(self) -> None:
        self.parsed: list[str] = []
        self.launches: list[tuple[Any, ...]] = []

    def Memory(self, limit: int) -> FakeMemory:
        return FakeMemory(limit)

    def parse(self, text: str) -> set[str]:
        head, *names = text.split()
        if head != "module":
            raise MachineError(f"line 1: {head} is no instruction")
        self.parsed.append(text)
        return {*names}

    def launch(
        self,
        module: set[str],
        name: str,
        *,
        grid: Any,
        block: Any,
        args: Sequence[int],
        memory: Any,
        shared: int = 0,
        seed: int | None = None,
        races: bool = False,
    ) -> None:
        assert name in module
        self.launches.append((name, grid, block, shared))
        KERNELS[name](memory, *args)


class Faulty:
    """A driver that raises when told to: `faults[method, n]` at its n-th call."""

    def __init__(self, driver: Any):
        self.driver, self.calls = driver, Counter[str]()
        self.faults: dict[tuple[str, int], Exception] = {}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.driver, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] += 1
            if fault := self.faults.pop((name, self.calls[name]), None):
                raise fault
            return found(*args, **kwargs)

        return call

    def fail_next(self, name: str, error: Exception, after: int = 0) -> None:
        self.faults[name, self.calls[name] + 1 + after] = error


# ---- a library ---------------------------------------------------------------------------------
ERRORS = {
    1: ("CUDA_ERROR_INVALID_VALUE", "invalid argument"),
    2: ("CUDA_ERROR_OUT_OF_MEMORY", "out of memory"),
    3: ("CUDA_ERROR_NOT_INITIALIZED", "initialization error"),
    100: ("CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"),
    218: ("CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"),
    700: ("CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"),
    701: ("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"),
}


class FakeLibrary:
    """Functions of C, as ctypes finds them in NVIDIA's library, on memory of this process. What is
    put on a stream is done at once, unless the stream is captured.

    Attributes:
        calls: names and arguments of what was called.
        fail: name -> errors of its next calls, 0: none.
        lacking: functions that it does not have.
    """

    def __init__(
        self, capability: tuple[int, int] = (8, 0), devices: int = 1, memory: int = 1 << 20
    ):
        self.calls: list[tuple[Any, ...]] = []
        self.fail: dict[str, list[int]] = {}
        self.lacking: set[str] = set()
        self.attributes = {1: 1024, 97: 166912, 12: 65536, 13: 1410000, 16: 108, 39: 2048}
        self.attributes |= {75: capability[0], 76: capability[1]}
        self.devices, self.memory = devices, memory
        self.blocks: dict[int, tuple[Any, int]] = {}
        self.handles: dict[int, Any] = {}
        self.captured: dict[int, list[Callable[[], None]] | None] = {}
        self.dead = 0
        self._made: dict[str, Any] = {}
        self._texts = [*(s.encode() for pair in ERRORS.values() for s in pair)]

    def __getattr__(self, name: str) -> Any:
        if name not in SIGNATURES or name in self.lacking:
            raise AttributeError(name)
        if name not in self._made:
            copies = name.startswith("cuMemcpy")
            body = FakeLibrary._copy if copies else getattr(type(self), f"do_{name}", None)

            def call(*args: Any) -> int:
                self.calls.append((name, *args))
                if name.startswith("cuGetError"):
                    return int(body(self, *args))
                if self.dead and name != "cuCtxSetCurrent":
                    return self.dead
                planned = self.fail.get(name)
                if planned and (code := planned.pop(0)):
                    self.dead = code if code == 700 else 0
                    return code
                return int((body(self, *args) if body else 0) or 0)

            self._made[name] = ctypes.CFUNCTYPE(ctypes.c_int, *SIGNATURES[name])(call)
        return self._made[name]

    def named(self, name: str) -> list[tuple[Any, ...]]:
        """Arguments of the calls of a function."""
        return [c[1:] for c in self.calls if c[0] == name]

    def _new(self, at: int, value: Any) -> None:
        handle = 0x1000 + 16 * len(self.handles)
        self.handles[handle] = value
        ctypes.c_void_p.from_address(at).value = handle

    def _put(self, stream: int, action: Callable[[], None]) -> None:
        captured = self.captured.get(stream)
        if captured is None:
            action()
        else:
            captured.append(action)

    def _words(self, which: int, code: int, at: int) -> int:
        if code not in ERRORS:
            return 1
        text = self._texts[2 * [*ERRORS].index(code) + which]
        pointer = ctypes.cast(ctypes.c_char_p(text), ctypes.c_void_p)
        ctypes.c_void_p.from_address(at).value = pointer.value
        return 0

    def do_cuGetErrorName(self, code: int, at: int) -> int:
        return self._words(0, code, at)

    def do_cuGetErrorString(self, code: int, at: int) -> int:
        return self._words(1, code, at)

    def do_cuDeviceGetCount(self, at: int) -> None:
        ctypes.c_int.from_address(at).value = self.devices

    def do_cuDeviceGetName(self, at: int, size: int, device: int) -> None:
        ctypes.memmove(at, b"Made Up 100\0", 12)

    def do_cuDeviceTotalMem_v2(self, at: int, device: int) -> None:
        ctypes.c_size_t.from_address(at).value = self.memory

    def do_cuDeviceGetAttribute(self, at: int, which: int, device: int) -> None:
        ctypes.c_int.from_address(at).value = self.attributes[which]

    def do_cuDevicePrimaryCtxRetain(self, at: int, device: int) -> None:
        ctypes.c_void_p.from_address(at).value = 77

    @property
    def used(self) -> int:
        return sum(nbytes for _, nbytes in self.blocks.values())

    def do_cuMemGetInfo_v2(self, free: int, total: int) -> None:
        ctypes.c_size_t.from_address(free).value = self.memory - self.used
        ctypes.c_size_t.from_address(total).value = self.memory

    def do_cuMemAlloc_v2(self, at: int, nbytes: int) -> int:
        if nbytes > self.memory - self.used:
            return 2
        block = (ctypes.c_uint8 * (nbytes + 256))()
        address = -(-ctypes.addressof(block) // 256) * 256
        self.blocks[address] = block, nbytes
        ctypes.c_uint64.from_address(at).value = address
        return 0

    def do_cuMemFree_v2(self, address: int) -> None:
        del self.blocks[address]

    def do_cuMemsetD8Async(self, address: int, value: int, nbytes: int, stream: int) -> None:
        self._put(stream, lambda: ctypes.memset(address, value, nbytes) and None)

    def _copy(self, to: int, source: int, nbytes: int, stream: int) -> None:
        self._put(stream, lambda: ctypes.memmove(to, source, nbytes) and None)

    def do_cuModuleLoadDataEx(self, at: int, image: int, n: int, options: int, values: int) -> int:
        text = ctypes.string_at(image)
        if not text.startswith(b"module"):
            assert list((ctypes.c_int * n).from_address(options)) == [5, 6]
            log, size = (ctypes.c_uint64 * n).from_address(values)
            said = b"ptxas line 1; error : no such thing\0"
            assert size > len(said)
            ctypes.memmove(log, said, len(said))
            return 218
        self._new(at, text.decode().split()[1:])
        return 0

    def do_cuModuleGetFunction(self, at: int, module: int, name: bytes) -> int:
        if name.decode() not in self.handles[module]:
            return 500
        self._new(at, name.decode())
        return 0

    def do_cuFuncGetAttribute(self, at: int, which: int, function: int) -> None:
        ctypes.c_int.from_address(at).value = {4: 40, 1: 2048, 3: 0}[which]

    def do_cuOccupancyMaxActiveBlocksPerMultiprocessor(
        self, at: int, function: int, threads: int, shared: int
    ) -> None:
        ctypes.c_int.from_address(at).value = 2048 // threads

    def do_cuLaunchKernel(self, function: int, *args: Any) -> int:
        *grid, shared, stream, params, _ = args
        if min(grid) < 1:
            return 1
        name = self.handles[function]
        count = {"add_0": 4, "relu_0": 3, "grow_0": 2}[name]
        pointers = (ctypes.c_uint64 * count).from_address(params)
        values = [ctypes.c_uint64.from_address(p).value for p in pointers]
        self.calls[-1] = ("cuLaunchKernel", name, tuple(grid), shared, stream, values)
        self._put(stream, lambda: KERNELS[name](HostMemory, *values))
        return 0

    def do_cuStreamCreate(self, at: int, flags: int) -> None:
        self._new(at, "stream")

    def do_cuStreamSynchronize(self, stream: int) -> int:
        return 900 if self.captured.get(stream) is not None else 0

    def do_cuStreamBeginCapture_v2(self, stream: int, mode: int) -> None:
        self.captured[stream] = []

    def do_cuStreamEndCapture(self, stream: int, at: int) -> None:
        self._new(at, self.captured[stream])
        self.captured[stream] = None

    def do_cuGraphInstantiateWithFlags(self, at: int, graph: int, flags: int) -> None:
        self._new(at, self.handles[graph])

    def do_cuGraphLaunch(self, graph: int, stream: int) -> None:
        for action in self.handles[graph]:
            self._put(stream, action)

    def do_cuEventCreate(self, at: int, flags: int) -> None:
        self._new(at, "event")

    def do_cuEventElapsedTime(self, at: int, first: int, second: int) -> None:
        ctypes.c_float.from_address(at).value = 0.5
