"""Programs on several devices are linked: calls of what devices compute, and copies, become calls
of registered functions, which the program of the host makes.

The host has a number for each value on a device, which says where that keeps it: a place for each
value of the program and each thread that runs it. A value goes when all that read it have done so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from compiler.boundary.registered import Registered, failing, naming
from compiler.devices.device import Device, Runner, usable
from compiler.errors import ConfigError, MachineError, VerifyError, unknown
from compiler.ir.devices import (
    DEVICE_COPY,
    HOST,
    Copied,
    is_called,
    placed_function,
    placements,
)
from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Function,
    IRModule,
    TupleGetItem,
    Var,
    atom_type,
    nested,
    operands,
    tensor_type,
    uses,
)
from compiler.ir.function_calls import call_dps_packed
from compiler.ir.inference import infer_module
from compiler.ir.outside import nodes_in
from compiler.ir.substitution import substitute
from compiler.types.dtypes import INT64, Array
from compiler.types.tensor_types import TensorType, TupleType, Type

_HANDLE = TensorType((), INT64)


class _Values(threading.local):
    """The values on devices of one thread: place -> value, and how often it is yet to be read."""

    def __init__(self) -> None:
        self.held: dict[int, tuple[Any, int]] = {}


class _Memory:
    def __init__(self) -> None:
        self.values = _Values()

    def keep(self, place: int, value: Any, readers: int) -> None:
        self.values.held[place] = (value, readers)

    def read(self, handle: Array) -> Any:
        place = int(handle)
        value, readers = self.values.held.pop(place)
        if readers > 1:
            self.values.held[place] = (value, readers - 1)
        return value


class Linked(Registered):
    """What runs the parts of an executable that devices compute, for as long as this is alive.

    Attributes:
        copied: what has been copied.
    """

    def __init__(self) -> None:
        super().__init__()
        self.copied = Copied()


def linked(mod: IRModule, devices: Mapping[str, Device]) -> tuple[IRModule, Linked]:
    """A module whose main calls registered functions for what devices compute (see PlanDevices),
    and what keeps these registered.

    Raises:
        ConfigError: there is no such device; names the nearest.
        UnsupportedError: what a device needs is not installed, or it cannot compile a function.
        VerifyError: a value is read where it is not, or what a device computes is not called at the
            top of main.
    """
    link = _Link(infer_module(mod), devices)
    return link.run(), link.holder


class _Link:
    def __init__(self, mod: IRModule, devices: Mapping[str, Device]):
        self.mod, self.devices = mod, devices
        self.placed = {p.name: p for p in placements(mod)}
        self.holder, self.memory = Linked(), _Memory()
        self.readers = uses(mod.main)
        self.home: dict[Var, str] = {}  # of values on devices
        self.new: dict[Var, Atom] = {}  # the number of such a value
        self.nodes: dict[Var, str] = {}  # what it comes from, for messages
        self.count = 0

    def run(self) -> IRModule:
        mod, placed = self.mod, self.placed
        for p in placed.values():
            if p.device not in self.devices:
                raise ConfigError(unknown("device", p.device, [*self.devices, HOST]))
        for name, f in mod.functions.items():
            if name != "main" and isinstance(f, Function):
                _refuse_calls(f, placed, f"@{name}")
        if not placed and not any(is_called(b.value, DEVICE_COPY) for b in mod.main.bindings):
            return mod
        bindings = [made for b in mod.main.bindings for made in self.binding(b)]
        for r in mod.main.results:
            self.must_be(HOST, r, "a result of main")
        main = mod.main.with_body(bindings, mod.main.results)
        rest = {k: f for k, f in mod.functions.items() if k not in placed}
        return infer_module(replace(mod, functions={**rest, "main": main}))

    def binding(self, b: Binding) -> list[Binding]:
        v = b.value
        if name := placed_function(v, self.placed):
            return [self.part(b, name)]
        if is_called(v, DEVICE_COPY):
            return [self.copy(b)]
        if isinstance(v, TupleGetItem) and v.value in self.home:
            self.home[b.var] = self.home[v.value]
            self.nodes[b.var] = ", ".join(b.origins) or self.nodes[v.value]
            self.new[b.var] = handle = Var(b.var.name, _HANDLE)
            return [Binding(handle, substitute(v, self.new), b.origins)]
        for g in nested(v):
            _refuse_calls(g, self.placed, f"a function in {b.var!r}")
        for a in operands(v):
            self.must_be(HOST, a, repr(b.var))
        return [b]

    def must_be(self, device: str, a: Atom, reader: str) -> None:
        """Raise VerifyError where a value is elsewhere."""
        there = self.home.get(a, HOST) if isinstance(a, Var) else device
        if there != device:
            raise VerifyError(
                f"{a!r} is on device {there!r}, and {reader} reads it on {device!r}: copy it by "
                "device_copy"
            )

    def places(self, count: int) -> list[int]:
        self.count += count
        return list(range(self.count - count, self.count))

    # ---- what devices compute --------------------------------------------------------------------
    def part(self, b: Binding, name: str) -> Binding:
        assert isinstance(b.value, Call)
        f, device = self.mod[name], self.devices[self.placed[name].device]
        for a in b.value.args:
            self.must_be(device.name, a, repr(b.var))
        nodes = ", ".join(nodes_in(f, names=True))
        where = f"device {device.name!r}, @{name} (node {nodes})"
        runner = _compiled(f, name, device, where)
        t = atom_type(b.var)
        several = isinstance(t, TupleType)
        vars_ = self._fields(b.var) if several else [b.var]
        readers = [len(self.readers.get(v, ())) if v is not None else 0 for v in vars_]
        places = self.places(len(readers))
        expected = [tensor_type(r) for r in f.results]
        run = self._runner(runner, places, readers, expected, where, len(b.value.args))
        handles: Type = TupleType((_HANDLE,) * len(places)) if several else _HANDLE
        self.home[b.var], self.nodes[b.var] = device.name, nodes
        self.new[b.var] = new = Var(b.var.name, handles)
        args = tuple(self.new[a] for a in b.value.args if isinstance(a, Var))
        title = self.holder.add(f"{device.name}/{name}", run)
        return Binding(new, call_dps_packed(title, args, handles), b.origins)

    def _fields(self, v: Var) -> list[Var | None]:
        """Who takes which of several results; a result may have no reader."""
        t = atom_type(v)
        assert isinstance(t, TupleType)
        out: list[Var | None] = [None] * len(t.fields)
        for r in self.readers.get(v, ()):
            if r is None or not isinstance(r.value, TupleGetItem):
                raise VerifyError(f"{v!r}, of several values on a device, is read as a whole")
            if out[r.value.index] is not None:
                raise VerifyError(f"{v!r}.{r.value.index} is taken twice: take it once")
            out[r.value.index] = r.var
        return out

    def _runner(
        self,
        runner: Runner,
        places: Sequence[int],
        readers: Sequence[int],
        expected: Sequence[TensorType],
        where: str,
        given: int,
    ) -> Callable[..., None]:
        memory = self.memory

        def run(*arrays: Array) -> None:
            values = [memory.read(a) for a in arrays[:given]]
            with failing(f"{where} failed"):
                found = list(runner(values))
            if len(found) != len(expected):
                raise MachineError(f"{where} gave {len(found)} results, and has {len(expected)}")
            for handle, place, value, count in zip(
                arrays[given:], places, found, readers, strict=True
            ):
                if count:
                    memory.keep(place, value, count)
                handle[()] = place

        return run

    # ---- copies ----------------------------------------------------------------------------------
    def copy(self, b: Binding) -> Binding:
        assert isinstance(b.value, Call)
        src, dst, (a,) = b.value.attrs.src, b.value.attrs.dst, b.value.args
        for name in (src, dst):
            if name != HOST and name not in self.devices:
                raise ConfigError(unknown("device", name, [*self.devices, HOST]))
        self.must_be(src, a, repr(b.var))
        if (src == HOST) == (dst == HOST):
            raise VerifyError(
                f"{b.var!r} copies from {src!r} to {dst!r}: one of them must be {HOST!r}"
            )
        if dst == HOST:
            assert isinstance(a, Var)
            node = self.nodes[a]
            where = f"device {src!r} (node {node}) giving back {a!r}"
            t = tensor_type(b.var)
            run = self._getter(self.devices[src], where, f"{t.dtype}")
            title = self.holder.add(f"{src}/{b.var.name}", run)
            return Binding(b.var, call_dps_packed(title, (self.new[a],), t), b.origins)
        device = usable(self.devices[dst])
        self.home[b.var] = dst
        self.nodes[b.var] = node = ", ".join(b.origins) or repr(a)
        self.new[b.var] = new = Var(b.var.name, _HANDLE)
        (place,) = self.places(1)
        where = f"device {dst!r} (node {node}) taking {a!r}"
        run = self._putter(device, place, len(self.readers.get(b.var, ())), where)
        title = self.holder.add(f"{dst}/{b.var.name}", run)
        return Binding(new, call_dps_packed(title, (a,), _HANDLE), b.origins)

    def _putter(self, device: Device, place: int, readers: int, where: str) -> Callable[..., None]:
        memory, copied = self.memory, self.holder.copied

        def run(x: Array, handle: Array) -> None:
            with failing(f"{where} failed"):
                value = device.put(x)
            copied.add(x.nbytes)
            if readers:
                memory.keep(place, value, readers)
            handle[()] = place

        return run

    def _getter(self, device: Device, where: str, dtype: str) -> Callable[..., None]:
        memory, copied = self.memory, self.holder.copied

        def run(handle: Array, out: Array) -> None:
            value = memory.read(handle)
            with failing(f"{where} failed"):
                found = np.asarray(device.get(value))
            if found.shape != out.shape or found.dtype != out.dtype:
                raise MachineError(
                    f"{where}: it is {found.dtype}{list(found.shape)}, and should be "
                    f"{dtype}{list(out.shape)}"
                )
            copied.add(out.nbytes)
            np.copyto(out, found)

        return run


def _refuse_calls(f: Function, placed: Mapping[str, object], where: str) -> None:
    """Raise VerifyError where something else than the top of main has to do with devices."""
    for b in f.bindings:
        name = placed_function(b.value, placed)
        if name or is_called(b.value, DEVICE_COPY):
            what = f"calls @{name}, which a device computes" if name else "copies between devices"
            raise VerifyError(f"{where} {what}: only main does, outside branches and loops")
        for g in nested(b.value):
            _refuse_calls(g, placed, where)


def _compiled(f: Function, name: str, device: Device, where: str) -> Runner:
    usable(device)
    with naming(where):
        return device.compile(f, name)
