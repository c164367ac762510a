"""A device for tests: it interprets what it computes, and its memory is a table of bytes of its
own, so that nothing on it is an array of the host."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from compiler.devices import Device, register_device, remove_device
from compiler.interpret.graph import evaluate
from compiler.ir.expr import Call, Function, IRModule
from compiler.types.dtypes import Array


@dataclass(frozen=True)
class Address:
    """Where a value is, and what it is."""

    number: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


@dataclass
class Simulated:
    """`log`: what it has done. `broken`: what becomes of results, of tests that break it."""

    name: str
    lacks: tuple[str, ...] = ()
    memory: dict[int, bytes] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    compiled: dict[str, list[str]] = field(default_factory=dict)
    broken: Callable[[list[Any]], list[Any]] | None = None
    missing: str = ""
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def put(self, a: Array) -> Address:
        at = Address(next(self._numbers), a.dtype, a.shape)
        self.memory[at.number] = a.tobytes()
        self.log.append(f"put {list(a.shape)}")
        return at

    def get(self, at: Address) -> Array:
        self.log.append(f"get {list(at.shape)}")
        return self._read(at)

    def _read(self, at: Address) -> Array:
        return np.frombuffer(self.memory[at.number], at.dtype).reshape(at.shape).copy()

    def refuses(self, call: Call) -> str:
        name = getattr(call.op, "name", "")
        return f"it has no {name}" if name in self.lacks else ""

    def compile(self, f: Function, name: str) -> Callable[[Sequence[Address]], list[Any]]:
        self.compiled[name] = [getattr(b.value.op, "name", "") if isinstance(b.value, Call) else ""
                               for b in f.bindings]  # fmt: skip
        mod = IRModule({"main": Function(f.params, f.bindings, f.results)})

        def run(values: Sequence[Address]) -> list[Any]:
            self.log.append(f"run @{name}")
            outs = evaluate(mod, *map(self._read, values))
            found: list[Any] = []
            for a in outs if isinstance(outs, list) else [outs]:
                at = Address(next(self._numbers), a.dtype, a.shape)
                self.memory[at.number] = a.tobytes()
                found.append(at)
            return self.broken(found) if self.broken else found

        return run

    @property
    def device(self) -> Device:
        return Device(
            self.name, self.compile, self.put, self.get, self.refuses, lambda: self.missing
        )


@contextmanager
def simulated(*names: str, lacks: tuple[str, ...] = ()) -> Iterator[list[Simulated]]:
    """Devices of these names are registered."""
    made = [Simulated(name, lacks) for name in names]
    for d in made:
        register_device(d.device)
    try:
        yield made
    finally:
        for name in names:
            remove_device(name)
