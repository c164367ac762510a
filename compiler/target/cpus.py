"""Architectures and CPUs as data: what may be known of them without running on them.

A new CPU is one `Cpu` here (or given to `register_cpu`), and, if it has instructions of its own, a
file in `compiler.target.intrinsics`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from compiler.errors import UnsupportedError


class Caches(NamedTuple):
    """Bytes of a core's own caches, the nearest and the next: what is larger is fetched ahead."""

    near: int
    next: int


CACHES = Caches(1 << 15, 1 << 18)
"""As most cores have at least."""
LINE = 64
"""Bytes of a line of a cache."""


@dataclass(frozen=True)
class Architecture:
    """What the CPUs of one instruction set have in common. Features have LLVM's names; of lists of
    features with something else, the first that a CPU has counts.

    Attributes:
        name: how LLVM's triples begin.
        pointer_bytes: of an address.
        caches: of a core.
        abi: LLVM's name of how functions are called, where a triple does not say it.
        more: further features that targets may switch (`-mattr=`).
        relocation: LLVM's model of relocations for code that a linker takes.
        vectors: feature, bytes of a vector register, and how many of those there are.
        isas: feature, and the name of the instruction set that kernels use then.
        fma: features with a fused multiply-add.
        rounds: features with an instruction that rounds to the nearest integer; empty: if there is
            none, the C library has the function that LLVM calls.
        flags: features with sticky flags of floating-point exceptions that
            `compiler.target.intrinsics.exception_flags` can read.
        vector_constraint: what inline assembly calls a vector register; empty: none is known.
        block: the most channels of a block of data; 0: as many as a vector has lanes of 32 bits.
        row_copies: whether padded copies are made for a row of outputs at a time: memory is scarce,
            and programs run on one thread.
        look_ups: whether a result is looked up sooner than it is computed in floats.
        unrolled: reduction steps in the body of an innermost loop; 0: as schedules like.
        vectors_at_once: vectors in the body of a loop over elements, of which there is a known
            number, that are computed by few operations.
        slow_subnormals: whether products of subnormal numbers take many times as long as others.
        library: whether code can call the functions of C's library of mathematics.
        pause: declaration and call of what a waiting loop tells the processor, if LLVM has that.
    """

    name: str
    pointer_bytes: int = 8
    vectors: tuple[tuple[str, int, int], ...] = ()
    isas: tuple[tuple[str, str], ...] = ()
    fma: tuple[str, ...] = ()
    rounds: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    vector_constraint: str = ""
    pause: tuple[str, str] = ("", "")
    caches: Caches = CACHES
    abi: str = ""
    relocation: str = "pic"
    block: int = 0
    look_ups: bool = False
    unrolled: int = 0
    row_copies: bool = False
    vectors_at_once: int = 1
    slow_subnormals: bool = False
    more: tuple[str, ...] = ()
    library: bool = True

    @property
    def features(self) -> tuple[str, ...]:
        """What targets may switch on and off."""
        named = [f for part in (self.vectors, self.isas) for f, *_ in part]
        return tuple(dict.fromkeys([*named, *self.fma, *self.more]))


X86_64 = Architecture(
    "x86_64",
    vectors=(("avx512f", 64, 32), ("avx2", 32, 16), ("avx", 32, 16), ("sse2", 16, 16)),
    isas=(
        ("avx512vnni", "avx512_vnni"), ("avx512f", "avx512"), ("avxvnni", "avx_vnni"),
        ("avx2", "avx2"), ("avx", "avx"), ("sse4.2", "sse4.2"), ("sse2", "sse2"),
    ),
    fma=("fma",),
    flags=("sse2",),
    more=("avx512bw", "avx512vl", "avx512dq", "f16c", "amx-tile", "amx-int8"),
    vector_constraint="v",
    slow_subnormals=True,
    pause=("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
)  # fmt: skip
AARCH64 = Architecture(
    "aarch64",
    vectors=(("neon", 16, 32),),
    isas=(("i8mm", "neon_i8mm"), ("dotprod", "neon_dotprod"), ("neon", "neon")),
    fma=("neon",),
    more=("fullfp16",),
    vector_constraint="w",
    pause=("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
)
RISCV64 = Architecture(
    "riscv64",
    vectors=(("v", 64, 8), ("d", 8, 10)),
    isas=(("v", "rv64gcv"), ("d", "rv64gc")),
    fma=("d",),
    abi="lp64d",
)
"""Its vectors are groups of four registers of 128 bits. CPUs without vectors are given two elements
for one, which LLVM makes scalars of."""
WASM32 = Architecture(
    "wasm32",
    pointer_bytes=4,
    isas=(("relaxed-simd", "relaxed_simd"), ("simd128", "simd128")),
    unrolled=1,
    vectors_at_once=4,
    relocation="static",
)
"""LLVM writes the steps of a body sum by sum, and what compiles that keeps the order: of a tile's
sums, operands of several steps are more than there are registers. Engines make constant vectors
anew in each round of a loop: several vectors share them."""
_FPV5 = "fp-armv8d16sp"
THUMB = Architecture(
    "thumb",
    pointer_bytes=4,
    vectors=(("mve", 16, 8), ("dsp", 8, 6)),
    isas=(("mve", "mve"), ("dsp", "dsp")),
    fma=("vfp4d16sp",),
    rounds=(_FPV5,),
    block=16,
    look_ups=True,
    row_copies=True,
    relocation="static",
)
"""Microcontrollers. Those without vectors are given two elements for one, in few registers, which
LLVM makes scalars of."""
NVPTX64 = Architecture(
    "nvptx64",
    vectors=(("sm_61", 16, 255),),
    isas=tuple((f"sm_{n}", f"sm_{n}") for n in (90, 89, 86, 80, 75)),
    fma=("sm_61",),
    rounds=("sm_61",),
    library=False,
)
"""NVIDIA's GPUs: what a thread has."""
_ARCHITECTURES = {
    "x86_64": X86_64, "amd64": X86_64, "aarch64": AARCH64, "arm64": AARCH64, "wasm32": WASM32,
    "riscv64": RISCV64, "nvptx64": NVPTX64, "thumbv7em": THUMB, "thumbv8.1m.main": THUMB,
}  # fmt: skip


def architecture(triple: str) -> Architecture:
    """That of an LLVM triple; of one that is not known, what holds anywhere."""
    name = triple.partition("-")[0]
    return _ARCHITECTURES.get(name) or Architecture(name)


@dataclass(frozen=True)
class Cpu:
    """A CPU that targets can name.

    Attributes:
        name: what `-mcpu=` is given, and LLVM's name of it.
        architecture: its instruction set.
        features: those that kernels may use, by LLVM's names.
        triple: of an LLVM target; empty: that of this machine.
        flags: LLVM's feature string.
        base: LLVM's name, where that is another.
    """

    name: str
    architecture: Architecture
    features: frozenset[str]
    triple: str = ""
    flags: str = ""
    base: str = ""

    @property
    def llvm_name(self) -> str:
        """LLVM's name of it."""
        return self.base or self.name


GENERIC = "generic"
"""The CPU of which nothing is known, of any architecture."""
_V2 = frozenset({"sse2", "sse4.2"})
_V3 = _V2 | {"avx", "avx2", "fma"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512vl"}
_M4 = frozenset({"dsp", "vfp4d16sp"})
_M7 = _M4 | {_FPV5, "fp64"}
_M55 = _M7 | {"mve"}  # its vectors of floats take subnormal numbers for 0
_NEON = frozenset({"neon"})
_DOTPROD = _NEON | {"dotprod"}
_I8MM = _DOTPROD | {"i8mm"}
_NO_SVE = "-sve,-sve2"
"""Vectors are as long as we say, not as the machine does."""
_RV64GC = "+m,+a,+f,+d,+c"
_AARCH64, _RISCV64 = "aarch64-unknown-linux-gnu", "riscv64-unknown-linux-gnu"
_WASM = "+simd128,+bulk-memory,+bulk-memory-opt"
"""Copies are instructions, not calls of the C library."""
_WIDE = "-prefer-256-bit"
"""So that LLVM uses the registers of 512 bits."""


def _x86(name: str, features: frozenset[str]) -> Cpu:
    return Cpu(name, X86_64, features, flags=_WIDE)


_cpus: dict[str, Cpu] = {
    c.name: c
    for c in (
        Cpu(GENERIC, Architecture(GENERIC), frozenset()),
        _x86("x86-64", frozenset({"sse2"})),
        _x86("x86-64-v2", _V2),
        _x86("x86-64-v3", _V3),
        _x86("haswell", _V3),
        _x86("x86-64-v4", _V4),
        _x86("skylake-avx512", _V4),
        _x86("cascadelake", _V4 | {"avx512vnni"}),
        _x86("sapphirerapids", _V4 | {"avx512vnni", "avxvnni", "amx-tile", "amx-int8"}),
        Cpu("cortex-m4", THUMB, _M4, "thumbv7em-none-unknown-eabihf"),
        Cpu("cortex-m7", THUMB, _M7, "thumbv7em-none-unknown-eabihf"),
        Cpu("cortex-m55", THUMB, _M55, "thumbv8.1m.main-none-unknown-eabihf", "-mve.fp"),
        Cpu("cortex-a53", AARCH64, _NEON, _AARCH64),
        Cpu("cortex-a72", AARCH64, _NEON, _AARCH64),
        Cpu("cortex-a76", AARCH64, _DOTPROD, _AARCH64),
        Cpu("neoverse-n1", AARCH64, _DOTPROD, _AARCH64),
        Cpu("neoverse-v1", AARCH64, _I8MM, _AARCH64, _NO_SVE),
        Cpu("neoverse-n2", AARCH64, _I8MM, _AARCH64, _NO_SVE),
        Cpu("generic-rv64", RISCV64, frozenset({"d"}), _RISCV64, _RV64GC),
        Cpu(
            "generic-rv64gcv",
            RISCV64,
            frozenset({"d", "v"}),
            _RISCV64,
            f"{_RV64GC},+v,+zvl128b",
            "generic-rv64",
        ),
        Cpu("simd128", WASM32, frozenset({"simd128"}), "wasm32-unknown-unknown", _WASM, "mvp"),
    )
}

TRIPLES = {
    "x86_64-linux": ("x86_64-unknown-linux-gnu", "x86-64"),
    "aarch64-linux": ("aarch64-unknown-linux-gnu", "cortex-a53"),
    "riscv64-linux": ("riscv64-unknown-linux-gnu", "generic-rv64"),
    "wasm32": ("wasm32-unknown-unknown", "simd128"),
    "thumbv7em": ("thumbv7em-none-unknown-eabihf", "cortex-m4"),
    "thumbv8.1m": ("thumbv8.1m.main-none-unknown-eabihf", "cortex-m55"),
}
"""What `-mtriple=` is given -> LLVM's triple, and the CPU that is meant unless one is named."""


def register_cpu(cpu: Cpu) -> Cpu:
    """Let targets name a CPU.

    Raises:
        UnsupportedError: there is one of that name.
    """
    if cpu.name in _cpus:
        raise UnsupportedError(f"there is a target CPU {cpu.name!r} already")
    _cpus[cpu.name] = cpu
    return cpu


def remove_cpu(name: str) -> None:
    """Forget a CPU, if there is one of that name."""
    _cpus.pop(name, None)


def cpus() -> dict[str, Cpu]:
    """CPUs by name."""
    return dict(_cpus)
