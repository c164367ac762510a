"""Targets are data: triple, CPU, features, vector width."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

from compiler.errors import UnsupportedError, unknown

_WIDTH = (("avx512f", 64), ("avx2", 32), ("avx", 32), ("sse2", 16), ("neon", 16))
_ISA = (
    ("avx512vnni", "avx512_vnni"), ("avx512f", "avx512"), ("avxvnni", "avx_vnni"), ("avx2", "avx2"),
    ("avx", "avx"), ("sse4.2", "sse4.2"), ("sse2", "sse2"), ("dotprod", "neon_dotprod"),
    ("neon", "neon"),
)  # fmt: skip
_X86_LEVELS: dict[str, tuple[str, ...]] = {
    "x86-64": ("sse2",),
    "x86-64-v2": ("sse2", "sse4.2"),
    "x86-64-v3": ("sse2", "sse4.2", "avx", "avx2", "fma"),
    "haswell": ("sse2", "sse4.2", "avx", "avx2", "fma"),
    "x86-64-v4": ("sse2", "sse4.2", "avx", "avx2", "fma", "avx512f", "avx512bw", "avx512vl"),
    "skylake-avx512": ("sse2", "sse4.2", "avx", "avx2", "fma", "avx512f", "avx512bw", "avx512vl"),
    "cascadelake": (
        "sse2", "sse4.2", "avx", "avx2", "fma", "avx512f", "avx512bw", "avx512vl", "avx512vnni",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Target:
    """What to generate code for.

    Written `llvm` (this host) or `llvm -mcpu=haswell`, for a CPU of the host's architecture that
    has no features the host lacks.

    Attributes:
        text: as written.
        triple: LLVM target triple.
        cpu: LLVM CPU name.
        features: LLVM feature string.
        enabled: the features that are on, by LLVM's names.
    """

    text: str
    triple: str = field(compare=False)
    cpu: str
    features: str
    enabled: frozenset[str] = field(compare=False)

    @staticmethod
    def parse(target: str | Target) -> Target:
        """Target from its text.

        Raises:
            UnsupportedError: not a target we have, or one this host cannot run.
        """
        return target if isinstance(target, Target) else _parse(target.strip())

    @property
    def kind(self) -> str:
        """`llvm`: what lowering functions of datatypes are registered for."""
        return self.text.split()[0]

    @property
    def vector_bytes(self) -> int:
        """Bytes of the widest vector register."""
        return next((w for f, w in _WIDTH if f in self.enabled), 16)

    @property
    def isa(self) -> str:
        """The best instruction set that kernels can use, e.g. `avx512_vnni`."""
        return next((name for f, name in _ISA if f in self.enabled), "scalar")

    def __str__(self) -> str:
        return self.text


@functools.cache
def _host() -> tuple[str, str, dict[str, bool]]:
    import llvmlite.binding as llvm

    features: Any = llvm.get_host_cpu_features()
    return llvm.get_process_triple(), llvm.get_host_cpu_name(), dict(features)


def host_cpu() -> str:
    """LLVM's name of this machine's CPU, e.g. `znver4`."""
    return _host()[1]


@functools.cache
def _parse(text: str) -> Target:
    words = text.split()
    if not words or words[0] != "llvm":
        known = ["llvm", *(f"llvm -mcpu={c}" for c in _X86_LEVELS)]
        raise UnsupportedError(unknown("target", text, known))
    triple, cpu, features = _host()
    on = frozenset(f for f, v in features.items() if v)
    options = dict(w.lstrip("-").partition("=")[::2] for w in words[1:])
    for name in options:
        if name != "mcpu":
            raise UnsupportedError(f"target {text!r}: {unknown('option', name, ['mcpu'])}")
    if not options:
        flat = ",".join(f"{'+' if v else '-'}{f}" for f, v in sorted(features.items()))
        return Target(text, triple, cpu, flat + ",-prefer-256-bit", on)
    cpu = options["mcpu"]
    if cpu not in _X86_LEVELS:
        raise UnsupportedError(unknown("target CPU", cpu, _X86_LEVELS))
    enabled = frozenset(_X86_LEVELS[cpu])
    if missing := sorted(enabled - on):
        raise UnsupportedError(f"target {text!r} needs {', '.join(missing)}, which this CPU lacks")
    return Target(text, triple, cpu, "-prefer-256-bit", enabled)
