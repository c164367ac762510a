"""--place: which device computes what."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from compiler.errors import InputError
from experiments.systems import pipeline

from .common import say

if TYPE_CHECKING:
    from compiler import Executable
    from compiler.ir.expr import IRModule

F = TypeVar("F", bound=Callable[..., Any])


def place_option(function: F) -> F:
    """--place, as `Places.read` reads it."""
    text = "Compute a node on a device that an adapter registers, or a target. Repeatable."
    return click.option("--place", "places", multiple=True, metavar="NODE=DEVICE", help=text)(
        function
    )


@dataclass(frozen=True)
class Places:
    """What was placed: node -> name of a device, and name of a device -> target, for those that are
    no registered devices."""

    where: dict[str, str]
    targets: dict[str, str]

    @staticmethod
    def read(texts: Sequence[str]) -> Places:
        """NODE=DEVICE, where NODE may have `*` for any letters; the first that fits a node counts.

        Raises:
            InputError: a text is no such pair, or gives a node twice.
            UnsupportedError: a device is neither registered nor a target.
        """
        from compiler.target.registry import Target

        where: dict[str, str] = {}
        targets: dict[str, str] = {}
        for text in texts:
            node, device = _parted(text)
            name = device
            if not _registered(device):
                Target.parse(device)
                name = re.sub(r"\W+", "_", device, flags=re.ASCII).strip("_")
                targets[name] = device
            if where.setdefault(node, name) != name:
                raise InputError(f"--place gives node {node!r} twice: keep one")
        return Places(where, targets)

    def apply(self, module: IRModule) -> IRModule:
        """The module with what was placed.

        Raises:
            InputError: there is no such node; names the nearest.
        """
        import compiler

        return compiler.place(module, self.where) if self.where else module

    def target(self, host: str) -> str | dict[str, str]:
        """What to build for, if the rest is for the target `host`."""
        return {"host": host, **self.targets} if self.where else host


def _parted(text: str) -> tuple[str, str]:
    """The node and the device of NODE=DEVICE. Both may have = in them (`llvm -mcpu=haswell`): the
    first way to part them counts that gives a device.

    Raises:
        InputError: it is no such pair.
    """
    from compiler.errors import DtypelabError
    from compiler.target.registry import Target

    words = text.split("=")
    pairs = [
        ("=".join(words[:k]).strip(), "=".join(words[k:]).strip()) for k in range(1, len(words))
    ]
    pairs = [(node, device) for node, device in pairs if node and device]
    for node, device in pairs:
        try:
            if _registered(device) or Target.parse(device):
                return node, device
        except DtypelabError:
            continue
    if not pairs:
        raise InputError(f"--place {text!r} is not NODE=DEVICE")
    return pairs[0]


def _registered(device: str) -> bool:
    from compiler.devices.device import registered_devices

    return device == "host" or device in registered_devices()


def echo_places(executable: Executable) -> None:
    """Say what devices compute, and what was copied so far."""
    for p in executable.placements:
        more = f" ... ({len(p.nodes)} in all)" if len(p.nodes) > pipeline.NODES else ""
        say(f"on {p.device}: {', '.join(p.nodes[: pipeline.NODES])}{more}")
    if (copied := executable.copied) is not None:
        say(f"copied: {copied.bytes:,} bytes in {copied.count} copies")


def place_facts(executable: Executable) -> dict[str, Any]:
    """The same for --json; empty without devices."""
    copied = executable.copied
    if copied is None:
        return {}
    devices = [
        {"name": p.name, "device": p.device, "nodes": list(p.nodes)} for p in executable.placements
    ]
    return {"devices": devices, "copied_bytes": copied.bytes, "copies": copied.count}
