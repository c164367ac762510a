"""Targets are data: kind (the first word of a target's text), triple, CPU, and what its features
mean."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from compiler.errors import ConfigError, UnsupportedError, unknown
from compiler.target import cuda
from compiler.target.accelerator import KIND, Design
from compiler.target.cpus import GENERIC, TRIPLES, Architecture, architecture, cpus
from compiler.target.granted import TILES, tiles_granted


@dataclass(frozen=True)
class TargetKind:
    """One kind of target. `compiler.runtime.loader.register_target_kind` adds another.

    Attributes:
        name: the first word of the targets' texts.
        lowerings: the kind that lowering functions of datatypes are registered for.
        schedules: the machines that default schedules are made for (`compiler.scheduling.default`).
        grid: whether it has grids of threads.
        keeps_nan: whether an operation on NaN gives the sign and the bits of the first operand that
            is NaN; else it may be any NaN, such as the one with all bits set.
        anywhere: the CPU that code for machines elsewhere is made for, unless one is named; empty:
            this machine's.
    """

    name: str
    lowerings: str = "llvm"
    schedules: str = "cpu"
    grid: bool = False
    anywhere: str = ""
    keeps_nan: bool = True


_FIRST = (
    TargetKind("llvm"),
    TargetKind("c", anywhere="generic"),
    TargetKind(KIND),
    TargetKind(cuda.KIND, schedules="cuda", grid=True, keeps_nan=False),
)
_kinds = {k.name: k for k in _FIRST}


def add_kind(kind: TargetKind) -> None:
    """Let targets of a kind be parsed.

    Raises:
        UnsupportedError: the name is taken.
    """
    if kind.name in _kinds:
        raise UnsupportedError(f"there is a kind of target {kind.name!r} already")
    _kinds[kind.name] = kind


def remove_kind(name: str) -> None:
    """Forget a kind, if there is one of that name."""
    _kinds.pop(name, None)


def kind_of(name: str) -> TargetKind:
    """The kind of a name.

    Raises:
        UnsupportedError: there is none.
    """
    if name not in _kinds:
        raise UnsupportedError(unknown("kind of target", name, _kinds))
    return _kinds[name]


def kinds() -> tuple[str, ...]:
    """The names of all kinds."""
    return tuple(_kinds)


@dataclass(frozen=True)
class Target:
    """What to generate code for.

    Written `llvm` (this host), `llvm -mcpu=haswell`, for a CPU of the host's architecture that has
    no features the host lacks, or `llvm -mtriple=aarch64-linux`, for another machine. The first
    word is the kind (see `compiler.target.registry`). `-mattr=+dotprod,-neon` switches features
    besides; `-runner=node` names what runs code for other machines here (see
    `compiler.runtime.machines`). A short name of a triple alone, such as `wasm32`, stands for
    `llvm -mtriple=wasm32`. `accel -block=16` is a simulated accelerator beside this machine, which
    runs what that lacks (see `compiler.target.accelerator`). `cuda -arch=sm_80` is one of NVIDIA's
    GPUs; `-mattr=-mma` does without its products of matrices, `-runner=simt` runs its programs on
    this CPU (see `compiler.target.cuda`).

    Features that a process has to ask its system for (x86's tiles, `amx-tile` and `amx-int8`) are
    this machine's only if the system grants them, and no other machine's.

    Attributes:
        text: as written.
        triple: LLVM target triple.
        cpu: LLVM CPU name.
        features: LLVM feature string.
        enabled: the features that are on, by LLVM's names.
        runner: what runs it, if it is for a machine elsewhere; empty: the first that there is.
    """

    text: str
    triple: str = field(compare=False)
    cpu: str
    features: str
    enabled: frozenset[str] = field(compare=False)
    runner: str = ""

    @staticmethod
    def parse(target: str | Target) -> Target:
        """Target from its text: of this machine, or of a machine elsewhere, which
        `compiler.build` finds something to run it.

        Raises:
            ConfigError: no text.
            UnsupportedError: not a target we have, or a CPU like this one with features that this
                one lacks, or another machine for a kind that only runs here.
        """
        if isinstance(target, Target):
            return target
        found, here = _parse(_text(target)), _host()
        if found.kind == cuda.KIND or (found.elsewhere and found.kind in _ELSEWHERE):
            return found
        if missing := sorted(found.enabled - here.enabled):
            lacks = ", ".join(missing)
            raise UnsupportedError(f"target {found.text!r} needs {lacks}, which this CPU lacks")
        if not found.runnable:
            raise UnsupportedError(f"target {found.text!r} is for {found.triple}, unlike this CPU")
        return found

    @staticmethod
    def anywhere(text: str) -> Target:
        """Target from its text, whether this host can run it or not: to make code for it, not an
        executable.

        Raises:
            ConfigError: no text.
            UnsupportedError: not a target we have.
        """
        return _parse(_text(text))

    @property
    def kind(self) -> str:
        """The first word: who generates and runs its code."""
        return self.text.split()[0]

    @property
    def generator(self) -> str:
        """What generates and loads its code: its kind, but `simt` for programs of GPUs that this
        CPU runs."""
        loops = self.kind == cuda.KIND and self.runner == cuda.SIMT
        return cuda.ON_LOOPS if loops else self.kind

    @property
    def design(self) -> Design | None:
        """The accelerator that it is; None: it is a CPU."""
        return Design.parse(self.text) if self.kind == KIND else None

    def refuse_accelerator(self, what: str) -> None:
        """Raise UnsupportedError if this is an accelerator, of which `what` says what cannot be
        made for it."""
        if self.kind == KIND:
            raise UnsupportedError(
                f"target {self.text!r} is simulated in this process, and {what} cannot be made for "
                "it: name a CPU"
            )

    def require_cpu(self, what: str) -> None:
        """Raise UnsupportedError unless this is a CPU, of which `what` says what cannot be made for
        others."""
        self.refuse_accelerator(what)
        if kind_of(self.kind).grid:
            raise UnsupportedError(
                f"target {self.text!r} is a GPU, and {what} cannot be made for it: name a CPU"
            )

    @property
    def unasked(self) -> Target:
        """The same without features that a process has to ask its system for: for code that stands
        alone."""
        asked = sorted(f for f in self.enabled if f.startswith(TILES))
        if not asked:
            return self
        flags = [self.features] if self.features else []
        off = ",".join([*flags, *(f"-{f}" for f in asked)])
        return replace(self, features=off, enabled=self.enabled - {*asked})

    @property
    def machine(self) -> tuple[str, str, str, str]:
        """What code is the same for, whatever the text that names it."""
        off = cuda.CHIPS[self.cpu].features - self.enabled if self.kind == cuda.KIND else ()
        chip = " ".join([self.cpu, *sorted(off)])
        if self.generator == cuda.ON_LOOPS:
            _, *here = host().machine
            return f"{cuda.SIMT} {chip}", here[0], here[1], here[2]
        return self.kind, self.triple, chip, self.features

    @property
    def runnable(self) -> bool:
        """Whether code for it runs on this machine."""
        host = _host()
        return self.triple == host.triple and self.enabled <= host.enabled

    @property
    def elsewhere(self) -> bool:
        """Whether it is for a machine of another kind than this one."""
        return self.triple != _host().triple

    @property
    def architecture(self) -> Architecture:
        """Its family of CPUs."""
        return architecture(self.triple)

    @property
    def pointer_bytes(self) -> int:
        """Bytes of an address."""
        return self.architecture.pointer_bytes

    @property
    def index_type(self) -> str:
        """LLVM's integers that indices of generated code are: as wide as an address, and signed, so
        that of 4 bytes a buffer may have less than 2^31 elements."""
        return f"i{8 * self.pointer_bytes}"

    @property
    def vector_bytes(self) -> int:
        """Bytes of the widest vector register."""
        return self._vectors[0]

    @property
    def scalar(self) -> bool:
        """Whether it has no registers for vectors."""
        return self.vector_bytes < 16

    @property
    def short_vectors(self) -> bool:
        """Whether it has sixteen registers of 32 bytes, as AVX2: loops, sums that wait for each
        other and loads count for more there than on CPUs with more."""
        return self._vectors == (32, 16)

    @property
    def vectors_at_once(self) -> int:
        """Vectors in the body of a loop over elements (see `Architecture`)."""
        long = self.vector_bytes >= 32 and self.vector_registers >= 16
        return 4 if long else self.architecture.vectors_at_once

    @property
    def look_ups(self) -> bool:
        """Whether tables of results are quicker than arithmetic on floats, which has no vectors."""
        return self.architecture.look_ups

    @property
    def block(self) -> int:
        """The most channels of a block of data."""
        return self.architecture.block or self.vector_bytes // 4

    @property
    def vector_registers(self) -> int:
        """How many of those there are."""
        return self._vectors[1]

    @property
    def _vectors(self) -> tuple[int, int]:
        known = self.architecture.vectors
        return next(((size, n) for f, size, n in known if f in self.enabled), (16, 16))

    @property
    def isa(self) -> str:
        """The best instruction set that kernels can use, e.g. `avx512_vnni`."""
        known = self.architecture.isas
        return next((name for f, name in known if f in self.enabled), "scalar")

    @property
    def fma(self) -> bool:
        """Whether a fused multiply-add is an instruction."""
        return self._has(self.architecture.fma)

    @property
    def rounds(self) -> bool:
        """Whether rounding to an integer is an instruction, or a function that C libraries have."""
        known = self.architecture.rounds
        return not known or self._has(known)

    @property
    def exception_flags(self) -> bool:
        """Whether code can tell that it has rounded, by the CPU's sticky flags."""
        return self._has(self.architecture.flags)

    def _has(self, features: Iterable[str]) -> bool:
        return not self.enabled.isdisjoint(features)

    def __str__(self) -> str:
        return self.text


@functools.cache
def _host() -> Target:
    import llvmlite.binding as llvm

    features: dict[str, Any] = dict(llvm.get_host_cpu_features())
    if not any(features.get(f) for f in features if f.startswith(TILES)) or not tiles_granted():
        features |= {f: False for f in features if f.startswith(TILES)}
    flat = ",".join(f"{'+' if v else '-'}{f}" for f, v in sorted(features.items()))
    on = frozenset(f for f, v in features.items() if v)
    return Target(
        "llvm",
        llvm.get_process_triple(),
        llvm.get_host_cpu_name(),
        f"{flat},-prefer-256-bit",
        on,
    )


def host() -> Target:
    """This machine: the target `llvm`."""
    return _host()


def host_cpu() -> str:
    """LLVM's name of this machine's CPU, e.g. `znver4`."""
    return _host().cpu


def _text(target: object) -> str:
    """What was given as a target, if it is a text.

    Raises:
        ConfigError: it is none.
    """
    if isinstance(target, Mapping):
        raise ConfigError("several devices are for compiler.build: here, a target is one text")
    if not isinstance(target, str):
        raise ConfigError(f"a target is a text, for example 'llvm', not {target!r}")
    return target.strip()


def _parse(text: str) -> Target:
    """A target of any machine."""
    words, here = text.split(), _host()
    if words and words[0] in TRIPLES:
        words = ["llvm", f"-mtriple={words[0]}", *words[1:]]
        text = " ".join(words)
    if not words or words[0] not in kinds():
        of_cpus = [kind for kind in kinds() if kind not in _NO_CPUS]
        options = [f"{kind} -mcpu={c}" for kind in of_cpus for c in _named(here)]
        raise UnsupportedError(unknown("target", text, [*kinds(), *TRIPLES, *options]))
    if words[0] == KIND:
        Design.parse(text)
        return replace(here, text=text)
    if words[0] == cuda.KIND:
        chip, on, runner = cuda.options(text)
        return Target(text, cuda.TRIPLE, chip.name, f"+{chip.ptx}", on, runner)
    options_given = dict(w.lstrip("-").partition("=")[::2] for w in words[1:])
    for name in options_given:
        if name not in _OPTIONS:
            raise UnsupportedError(f"target {text!r}: {unknown('option', name, _OPTIONS)}")
    attributes, runner = options_given.pop("mattr", ""), options_given.pop("runner", "")
    if not options_given:
        found = replace(here, text=text, runner=runner)
        return _checked(_switched(found, attributes) if attributes else found)
    triple, name = _triple(options_given)
    cpu = cpus().get(name)
    if cpu is None:
        raise UnsupportedError(unknown("target CPU", name, _named(here, triple)))
    if triple and cpu.name != GENERIC and cpu.architecture is not architecture(triple):
        raise UnsupportedError(
            f"target {text!r}: {name} is a CPU of {cpu.architecture.name}, not of {triple}"
        )
    triple = triple or cpu.triple or here.triple
    found = Target(text, triple, cpu.llvm_name, cpu.flags, cpu.features, runner)
    return _checked(_switched(found, attributes) if attributes else found)


_NO_CPUS = (KIND, cuda.KIND)
"""Kinds of target that name no CPU."""
_OPTIONS = ("mcpu", "mtriple", "mattr", "runner")
_ELSEWHERE = ("llvm",)
"""Kinds of target whose code can be for a machine elsewhere and run there."""


def _checked(t: Target) -> Target:
    if t.runner and not (t.elsewhere and t.kind in _ELSEWHERE):
        raise UnsupportedError(
            f"target {t.text!r}: -runner names what runs code for another machine, and this is "
            "for this one: leave it out"
        )
    return t.unasked if t.elsewhere else t


def _switched(t: Target, attributes: str) -> Target:
    """A target with features switched on and off, as `+dotprod,-neon` says."""
    known, on, flags = t.architecture.features, set(t.enabled), [t.features] if t.features else []
    for word in attributes.split(","):
        sign, name = word[:1], word[1:]
        if sign not in ("+", "-"):
            raise UnsupportedError(
                f"target {t.text!r}: -mattr takes features such as +{known[0] if known else 'x'}, "
                f"not {word!r}"
            )
        if name not in known:
            of = f"feature of {t.architecture.name}"
            raise UnsupportedError(f"target {t.text!r}: {unknown(of, name, known)}")
        flags.append(word)
        (on.add if sign == "+" else on.discard)(name)
    return replace(t, features=",".join(flags), enabled=frozenset(on))


def _triple(options: Mapping[str, str]) -> tuple[str, str]:
    """LLVM's triple, empty if none is named, and the CPU."""
    if "mtriple" not in options:
        return "", options["mcpu"]
    given = options["mtriple"]
    for name, (triple, cpu) in TRIPLES.items():
        if given in (name, triple, triple.replace("-unknown-", "-")):
            return triple, options.get("mcpu", cpu)
    raise UnsupportedError(unknown("target triple", given, TRIPLES))


def known_targets() -> tuple[str, ...]:
    """Texts of all targets that have names."""
    found = cpus().values()
    llvm = ["llvm", *(f"llvm -mtriple={name}" for name in TRIPLES)]
    llvm += [f"llvm -mcpu={c.name}" for c in found]
    kinds_of = [k for k in kinds() if k != "llvm"]
    of_cpus = [k for k in kinds_of if k not in _NO_CPUS]
    c = [f"{k} -mcpu={c.name}" for k in of_cpus for c in found if not c.triple]
    return (*llvm, *kinds_of, *c, *(f"{cuda.KIND} -arch={chip}" for chip in cuda.CHIPS))


def _named(here: Target, triple: str = "") -> list[str]:
    """The CPUs that targets can name, with a triple or for this machine."""
    if triple:
        family = (GENERIC, architecture(triple).name)
        return [name for name, cpu in cpus().items() if cpu.architecture.name in family]
    return [name for name, cpu in cpus().items() if cpu.triple in ("", here.triple)]
