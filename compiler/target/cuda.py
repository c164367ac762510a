"""NVIDIA's GPUs as data: chips that targets can name, and what runs code for them."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.errors import UnsupportedError, unknown

KIND = "cuda"
"""The first word of the texts of such targets."""
TRIPLE = "nvptx64-nvidia-cuda"
DRIVER, SIMT, PTX = "driver", "simt", "ptx"
RUNNERS = (DRIVER, SIMT, PTX)
"""What runs the code: the GPU of this machine, by NVIDIA's driver; this CPU, for which the same
program on a grid is compiled, threads as loops between barriers; an interpreter of the very PTX."""
ON_LOOPS = f"{KIND} as loops"
"""What generates and loads code for the runner simt; no kind that is registered has such a name."""
ON_CPUS = (SIMT, PTX)
"""Those of them that need no GPU."""
WARP = 32
"""Threads that run in step."""
SWITCHED = ("mma",)
"""What every chip has, and `-mattr=-mma` switches off: products of matrices by warps."""


@dataclass(frozen=True)
class Chip:
    """A generation of chips.

    Attributes:
        name: what `-arch=` is given, and LLVM's and ptxas's name of it.
        capability: NVIDIA's compute capability, times ten.
        ptx: the oldest version of the PTX language that knows it, as LLVM's feature.
        exact: whether code for it runs on no other chip, not on newer ones either.
        shared: bytes of shared memory that a block may have, of which 48 KiB without asking.
        registers: 32-bit registers of a multiprocessor.
        threads: threads that a multiprocessor holds at most.
    """

    name: str
    capability: int
    ptx: str
    exact: bool = False
    shared: int = 99 << 10
    registers: int = 1 << 16
    threads: int = 2048

    @property
    def features(self) -> frozenset[str]:
        """What instructions ask for: `sm_61` stands for all of capability 6.1 and newer."""
        known = (61, 70, 75, 80, 86, 89, 90, 100)
        own = {f"sm_{n}" for n in known if n <= self.capability}
        return frozenset({*own, *SWITCHED, self.name})


CHIPS = {
    c.name: c
    for c in (
        Chip("sm_75", 75, "ptx65", shared=64 << 10, threads=1024),
        Chip("sm_80", 80, "ptx70", shared=163 << 10),
        Chip("sm_86", 86, "ptx71", threads=1536),
        Chip("sm_89", 89, "ptx78", threads=1536),
        Chip("sm_90", 90, "ptx78", shared=227 << 10),
        Chip("sm_90a", 90, "ptx80", exact=True, shared=227 << 10),
    )
}
USUAL = "sm_80"
"""The chip of a target that names none: newer ones run its code too."""


def options(text: str) -> tuple[Chip, frozenset[str], str]:
    """The chip, its features that are on, and the runner that a target's text names.

    Raises:
        UnsupportedError: an unknown option, chip, feature or runner.
    """
    given = {"arch": USUAL, "mattr": "", "runner": DRIVER}
    for word in text.split()[1:]:
        name, _, value = word.lstrip("-").partition("=")
        if name not in given or not word.startswith("-"):
            raise UnsupportedError(f"target {text!r}: {unknown('option', name, given)}")
        given[name] = value
    chip, runner = given["arch"], given["runner"]
    if chip not in CHIPS:
        raise UnsupportedError(f"target {text!r}: {unknown('chip', chip, CHIPS)}")
    if runner not in RUNNERS:
        raise UnsupportedError(f"target {text!r}: {unknown('runner', runner, RUNNERS)}")
    on = set(CHIPS[chip].features)
    for word in given["mattr"].split(",") if given["mattr"] else ():
        if word[:1] not in ("+", "-"):
            raise UnsupportedError(
                f"target {text!r}: -mattr takes features such as -{SWITCHED[0]}, not {word!r}"
            )
        if word[1:] not in SWITCHED:
            raise UnsupportedError(f"target {text!r}: {unknown('feature', word[1:], SWITCHED)}")
        (on.add if word[0] == "+" else on.discard)(word[1:])
    return CHIPS[chip], frozenset(on), runner
