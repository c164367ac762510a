"""What a device says of itself, and the targets that its code is compiled for."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from compiler.errors import UnsupportedError
from compiler.target.registry import Target

from .protocol import Message, ProtocolError

WORDS = 1 << 15
"""Characters of LLVM's list of features, at most."""


@dataclass(frozen=True)
class Machine:
    """A device.

    Attributes:
        cpu, cores, os: as in rows of results.
        triple, llvm_cpu, features, enabled: those of `Target`, of its own CPU.
        dtypelab_version: what runs there.
        linker: whether it makes libraries of object files.
        runner: what emulates the CPU, or runs its code otherwise, on a machine of another kind;
            empty: it is a real one.
        emulated: whether times there say nothing of a real machine's.
        limit_s: seconds that it gives one request.
        wait_s: seconds after which it says that it has had no time for one.
        largest: bytes of a message.
    """

    cpu: str
    cores: int
    os: str
    triple: str
    llvm_cpu: str
    features: str
    enabled: tuple[str, ...]
    dtypelab_version: str
    linker: bool
    limit_s: float
    wait_s: float
    largest: int
    runner: str = ""
    emulated: bool = False

    def header(self) -> dict[str, Any]:
        """For a message."""
        return {**asdict(self), "enabled": list(self.enabled)}

    @classmethod
    def of(cls, m: Message) -> Machine:
        """That of a message.

        Raises:
            ProtocolError: it does not describe one.
        """
        names = {f.name for f in fields(cls)}
        if not names <= set(m.header):
            raise ProtocolError("the device does not say what it is: update dtypelab there")
        enabled = m.header["enabled"]
        return cls(
            cpu=m.text("cpu"), cores=m.integer("cores", 1, 1 << 20), os=m.text("os"),
            triple=m.text("triple"), llvm_cpu=m.text("llvm_cpu"),
            features=m.text("features", WORDS),
            enabled=tuple(m.texts("enabled", 4096)) if enabled else (),
            dtypelab_version=m.text("dtypelab_version"),
            linker=m.header["linker"] is True,
            runner=m.text("runner"), emulated=m.header["emulated"] is True,
            limit_s=m.number("limit_s", 0, 1e9), wait_s=m.number("wait_s", 0, 1e9),
            largest=m.integer("largest", 0, 1 << 62),
        )  # fmt: skip

    def target(self, text: str = "llvm") -> Target:
        """What `text` means on this device: `llvm` is its own CPU.

        Raises:
            UnsupportedError: there is no such target, or the device does not run its code.
        """
        words = text.split()
        if words[:1] != ["llvm"]:
            Target.anywhere(text)
            raise UnsupportedError(
                f"devices run what LLVM compiles: give a target that begins with llvm, not {text!r}"
            )
        if len(words) == 1:
            enabled = frozenset(self.enabled)
            return Target(text, self.triple, self.llvm_cpu, self.features, enabled)
        found = Target.anywhere(text)
        own = replace(found, triple=self.triple)
        if "-mtriple" in text and found.architecture is not own.architecture:
            raise UnsupportedError(f"target {text!r} is for {found.triple}, unlike the device")
        if missing := sorted(found.enabled - frozenset(self.enabled)):
            lacks = ", ".join(missing)
            raise UnsupportedError(f"target {text!r} needs {lacks}, which the device lacks")
        return own


def this_machine(
    *,
    cpu: str,
    cores: int,
    dtypelab_version: str,
    limit_s: float,
    wait_s: float,
    largest: int,
    target: str = "llvm",
) -> Machine:
    """This one, or one that runs beside it and `target` names: an emulator, say.

    Raises:
        UnsupportedError: there is no such target, or nothing runs it here; says what to install.
    """
    from compiler.codegen.c import system_compiler
    from compiler.errors import LoweringError
    from compiler.runtime.machines.registry import machine_of

    here, runner, emulated = Target.parse(target), "", False
    if here.elsewhere:
        found = machine_of(here)
        runner, emulated = found.name, found.emulated
        cpu = f"{here.cpu} by {runner} on {cpu}"
    try:
        system_compiler.command()
        linker = True
    except LoweringError:
        linker = False
    return Machine(
        cpu=cpu, cores=cores, os=f"{platform.system()} {platform.release()}",
        triple=here.triple, llvm_cpu=here.cpu, features=here.features,
        enabled=tuple(sorted(here.enabled)), dtypelab_version=dtypelab_version, linker=linker,
        limit_s=limit_s, wait_s=wait_s, largest=largest, runner=runner, emulated=emulated,
    )  # fmt: skip
