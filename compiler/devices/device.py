"""Devices: what computes parts of a program in memory of its own, and which ones there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.errors import ConfigError, UnsupportedError, unknown
from compiler.ir.devices import HOST
from compiler.ir.expr import Call, Function
from compiler.types.dtypes import Array

Runner = Callable[[Sequence[Any]], Sequence[Any]]
"""Computes the results of a function from its operands: values in the device's memory. It may be
called from several threads at once."""


def _nothing() -> str:
    return ""


def _everything(_: Call) -> str:
    return ""


def _copied(a: Array) -> Array:
    return np.array(a, order="C")


@dataclass(frozen=True)
class Device:
    """Something that computes parts of a program.

    Attributes:
        name: how annotations call it: letters, digits and `_`.
        compile: makes what runs a typed function of operators on tensors, with its constants
            inside; and its name. Raises DtypelabError if it cannot.
        put: a value in the device's memory, from an array that is there for the time of the call
            (storage integers, if the dtype is custom).
        get: the array of such a value, in C order.
        refuses: says why it cannot compute a call of an operator, whose operands have types; empty:
            it can.
        missing: a sentence that says what to install for it to run here; empty: nothing.
        doc: what it is, in a line.
    """

    name: str
    compile: Callable[[Function, str], Runner]
    put: Callable[[Array], Any] = _copied
    get: Callable[[Any], Array] = np.asarray
    refuses: Callable[[Call], str] = _everything
    missing: Callable[[], str] = _nothing
    doc: str = ""


_devices: dict[str, Device] = {}


def check_name(name: str) -> None:
    """Raise ConfigError if a device cannot be called so."""
    if not isinstance(name, str) or not name.isidentifier() or not name.isascii():
        raise ConfigError(f"a device's name is letters, digits and '_', not {name!r}")
    if name == HOST:
        raise ConfigError(f"{HOST!r} is the device that calls the others: name this one otherwise")


def register_device(device: Device, override: bool = False) -> Device:
    """Let programs be computed on a device, by its name; returns it.

    Raises:
        ConfigError: the name is taken and `override` is false, or it is no name.
    """
    check_name(device.name)
    if device.name in _devices and not override:
        raise ConfigError(f"device {device.name!r} is already registered: pass override=True")
    _devices[device.name] = device
    return device


def remove_device(name: str) -> None:
    """Forget a device, if there is one of that name."""
    _devices.pop(name, None)


def registered_devices() -> dict[str, Device]:
    """Devices by name."""
    return dict(_devices)


def get_device(name: str) -> Device:
    """The device called `name`.

    Raises:
        ConfigError: there is none; names the nearest.
    """
    if name not in _devices:
        raise ConfigError(unknown("device", name, _devices))
    return _devices[name]


def usable(device: Device) -> Device:
    """A device that runs here.

    Raises:
        UnsupportedError: what it needs is not installed; says what that is.
    """
    if missing := device.missing():
        raise UnsupportedError(f"device {device.name!r} cannot run here: {missing}")
    return device
