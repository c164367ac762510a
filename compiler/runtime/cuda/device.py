"""A device with what this process keeps there: memory, and code, each piece of it once."""

from __future__ import annotations

import functools
import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial

from compiler.errors import UnsupportedError
from compiler.runtime.cuda.driver import Driver, Properties
from compiler.runtime.cuda.memory import Pool
from compiler.target.cuda import CHIPS, PTX, Chip
from compiler.target.registry import Target

OLDEST = (7, 5)
"""The first compute capability that code is made for."""


class Module:
    """Code on a device, and its functions, which are asked for once."""

    def __init__(self, device: Device, code: bytes):
        self._driver = device.driver
        self.handle = device.driver.module(code)
        self._functions: dict[tuple[str, int], int] = {}
        weakref.finalize(
            self, device.later, partial(device.driver.unload, self.handle)
        ).atexit = False

    def function(self, name: str, shared: int = 0) -> int:
        """The handle of a function that is launched with `shared` bytes of shared memory."""
        key = (name, shared)
        if key not in self._functions:
            self._functions[key] = self._driver.function(self.handle, name, shared)
        return self._functions[key]


class Device:
    """A driver, the pool of its memory, and the modules that are in use."""

    def __init__(self, driver: Driver):
        self.driver, self.pool = driver, Pool(driver)
        self._lock = threading.Lock()
        self._modules: weakref.WeakValueDictionary[bytes, Module] = weakref.WeakValueDictionary()
        self._later: deque[Callable[[], None]] = deque()

    def module(self, code: bytes) -> Module:
        """The module of PTX, which is loaded if it is not.

        Raises:
            LoweringError: it is rejected.
        """
        with self._lock:
            found = self._modules.get(code)
            if found is None:
                found = self._modules[code] = Module(self, code)
            return found

    def later(self, action: Callable[[], None]) -> None:
        """Do something when the device is next used: for finalizers, which run anywhere."""
        self._later.append(action)

    def settle(self) -> None:
        """Do what was put off."""
        while self._later:
            try:
                action = self._later.popleft()
            except IndexError:  # another thread has done it
                return
            action()

    def refuse(self, target: Target) -> None:
        """Raise UnsupportedError if the device does not run code for a target."""
        found = self.driver.properties
        if found.capability < OLDEST:
            least = f"sm_{OLDEST[0]}{OLDEST[1]}"
            raise UnsupportedError(
                f"{found.name} is {found.chip}, and code for CUDA needs {least} or newer: "
                "use -runner=simt, which runs the same grids of threads on the CPU"
            )
        if said := unlike(CHIPS[target.cpu], found):
            raise UnsupportedError(f"target {target.text!r} {said}")


def unlike(chip: Chip, device: Properties) -> str:
    """Why a device does not run code for a chip; empty: it does. Newer devices run what is for
    older ones, unless it is for nothing but its chip."""
    major, minor = device.capability
    own = 10 * major + minor
    if own < chip.capability or (chip.exact and own != chip.capability):
        exactly = "nothing but" if chip.exact else "at least"
        return f"needs {exactly} sm_{chip.capability}, and {device.name} is {device.chip}"
    return ""


_opening = threading.Lock()


def opened(runner: str) -> Device:
    """The device that a runner of targets names, `driver` or `ptx`: one for all of a process, since
    its tensors are those of one pool.

    Raises:
        UnsupportedError: there is none here.
    """
    with _opening:
        return _opened(runner)


@functools.cache
def _opened(runner: str) -> Device:
    if runner == PTX:
        from compiler.runtime.cuda.emulated import EmulatedDriver

        return Device(EmulatedDriver())
    from compiler.runtime.cuda.libcuda import LibCuda

    return Device(LibCuda())
