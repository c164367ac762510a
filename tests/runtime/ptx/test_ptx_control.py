"""Kernels in PTX, by hand and from LLVM: lanes part and meet, blocks wait for each other, memory is
checked, and what fails says where."""

from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from ptx_runs import HEAD, Array, assemble

from compiler.codegen.ptx.assembler import assembler
from compiler.errors import MachineError, OutOfMemoryError, ParseError
from compiler.runtime.machines import ptx


def kernel(body: str, declared: str = "", params: str = ".param .u64 out, .param .u32 n") -> str:
    registers = ".reg .pred %p<4>; .reg .b32 %r<16>; .reg .b64 %d<8>; .reg .f32 %f<8>;"
    return f"""{HEAD.format(target="sm_80")}
.visible .entry k({params}) {{
  {registers}
  {declared}
  mov.u32 %r0, %tid.x;
  ld.param.u64 %d0, [out];
  cvta.to.global.u64 %d0, %d0;
  mad.wide.u32 %d1, %r0, 4, %d0;
{body}
  ret;
}}
"""


NESTED = kernel("""
  mov.u32 %r1, 0;
  and.b32 %r2, %r0, 1;
  setp.eq.u32 %p0, %r2, 0;
  @%p0 bra EVEN;
  setp.lt.u32 %p1, %r0, 20;
  @!%p1 bra BIG;
  add.u32 %r1, %r1, 100;
  bra.uni JOIN;
BIG:
  add.u32 %r1, %r1, 200;
JOIN:
  add.u32 %r1, %r1, 1000;
  bra DONE;
EVEN:
  mul.lo.u32 %r1, %r0, 3;
DONE:
  st.global.u32 [%d1], %r1;
""")
LOOPS = kernel("""
  mov.u32 %r1, 0;
  mov.u32 %r3, 0;
OUTER:
  setp.ge.u32 %p0, %r3, %r0;
  @%p0 bra END;
  mov.u32 %r4, 0;
INNER:
  add.u32 %r1, %r1, 1;
  add.u32 %r4, %r4, 1;
  setp.le.u32 %p1, %r4, %r3;
  @%p1 bra INNER;
  add.u32 %r3, %r3, 1;
  bra OUTER;
END:
  st.global.u32 [%d1], %r1;
""")
TURNED = kernel(
    """
  ld.param.u32 %r1, [n];
  mov.u32 %r5, s;
  shl.b32 %r2, %r0, 2;
  add.u32 %r2, %r2, %r5;
  st.shared.u32 [%r2], %r0;
  bar.sync 0;
  sub.u32 %r3, %r1, %r0;
  sub.u32 %r3, %r3, 1;
  shl.b32 %r3, %r3, 2;
  add.u32 %r3, %r3, %r5;
  ld.shared.u32 %r4, [%r3];
  st.global.u32 [%d1], %r4;
""",
    ".shared .align 4 .b8 s[512];",
)
NO_BARRIER = TURNED.replace("  bar.sync 0;\n", "")


def run(text: str, threads: int = 64, blocks: int = 1, **options: Any) -> Array:
    memory = ptx.Memory(1 << 20)
    out = memory.allocate(4 * threads)
    module = ptx.parse(text)
    ptx.launch(
        module, "k", grid=(blocks, 1, 1), block=(threads, 1, 1), args=[out, threads],
        memory=memory, **options,
    )  # fmt: skip
    return np.frombuffer(memory.read(out, 4 * threads), np.uint32)


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_branches_part_and_meet(seed: int | None) -> None:
    t = np.arange(50)
    want = np.where(t % 2 == 0, 3 * t, np.where(t < 20, 1100, 1200))
    assert np.array_equal(run(NESTED, 50, seed=seed), want)


@pytest.mark.parametrize("seed", [None, 2])
def test_loops_of_other_lengths(seed: int | None) -> None:
    t = np.arange(50)
    assert np.array_equal(run(LOOPS, 50, seed=seed), t * (t + 1) // 2)


def test_divergence_is_counted() -> None:
    memory = ptx.Memory(1 << 20)
    out = memory.allocate(256)
    found = ptx.launch(
        ptx.parse(NESTED), "k", grid=(1, 1, 1), block=(64, 1, 1), args=[out, 64], memory=memory
    )
    assert found.divergent == 3  # both warps at the first branch, the first one at the second
    assert found.instructions["bra"] == 2 + 2 + 2
    assert found.threads["mul.lo.u32"] == 32


@pytest.mark.parametrize("seed", [None, *range(4)])
@pytest.mark.parametrize("races", [False, True])
def test_a_barrier_orders_warps(seed: int | None, races: bool) -> None:
    assert np.array_equal(run(TURNED, 128, seed=seed, races=races), np.arange(128)[::-1])


def test_a_missing_barrier_is_a_race() -> None:
    with pytest.raises(MachineError, match=r"ld.shared.u32 in line .*race in shared memory: it re"):
        run(NO_BARRIER, 128, races=True)
    results = {run(NO_BARRIER, 128, seed=s).tobytes() for s in range(8)}
    assert len(results) > 1  # the order of warps shows


FAILING = {
    "outside": ("st.global.u32 [%d1+4], %r0;", r"st.global.u32 in line 12 .*thread \(63, 0, 0\) of "
                r"block \(0, 0, 0\): address 0x\w+ \(4 bytes\) is outside of every allocation"),
    "misaligned": ("ld.global.u32 %r1, [%d1+2];",
                   r"ld.global.u32 .*thread \(\d+, 0, 0\).*multiple of 4"),
    "null": ("mov.u64 %d2, 0; ld.u32 %r1, [%d2];", "address 0x0 .* is outside of every allocation"),
    "unknown": ("frobnicate.b32 %r1, %r2;",
                r"unknown instruction 'frobnicate.b32' in line 12 of the PTX, in 'k'"),
    "form": ("add.rz.s32 %r1, %r2, %r3;", r"unknown instruction 'add.rz.s32' \(modifier .rz\)"),
    "operands": ("add.s32 %r1, %r2;", "unknown instruction 'add.s32'"),
    "narrow": ("add.s64 %d1, %r2, %d2;", "%r2 does not hold a .s64"),
    "endless": ("L: bra L;", "bra in line 12 .*does not end within 5000 instructions"),
    "trap": ("trap;", r"trap .*thread \(\d+, 0, 0\) of block \(0, 0, 0\): the kernel stops itself"),
    "barrier": ("setp.lt.u32 %p0, %r0, 32; @%p0 bra L; bar.sync 0; L:",
                r"bar.sync in line 12 .*32 of the block's 64 threads wait at this barrier"),
    "lanes": ("setp.lt.u32 %p0, %r0, 7; @%p0 bra L; bar.warp.sync -1; bra M; L: bar.sync 0; M:",
              "bar.warp.sync in line 12 .*other lanes of the warp do not come here"),
    "label": ("bra NOWHERE;", "there is no such label"),
    "shared": ("ld.shared.u32 %r1, [s+512];", "outside of every variable in shared memory"),
}  # fmt: skip


@pytest.mark.parametrize("what", FAILING)
@pytest.mark.parametrize("seed", [None, 3])
def test_failures_say_where(what: str, seed: int | None) -> None:
    body, message = FAILING[what]
    text = kernel("  " + body, ".shared .align 4 .b8 s[512];")
    with pytest.raises(MachineError, match=message):
        run(text, seed=seed, budget=5000)


def launch(text: str, **changes: Any) -> None:
    memory = ptx.Memory(1 << 16)
    options: dict[str, Any] = {
        "grid": (1, 1, 1), "block": (8, 1, 1), "args": [memory.allocate(512), 8], "memory": memory
    }  # fmt: skip
    ptx.launch(ptx.parse(text), **{"name": "k", **options, **changes})


def test_launches_are_checked() -> None:
    def refused(message: str, text: str = NESTED, **changes: Any) -> None:
        with pytest.raises(MachineError, match=message):
            launch(text, **changes)

    refused("unknown kernel 'kk'; did you mean 'k'", name="kk")
    refused("takes 2 arguments, and 1 are given", args=[3])
    refused("is no value of parameter n, 4 bytes", args=[1024, 1 << 33])
    refused("no block has", block=(2048, 1, 1))
    refused("no grid has", grid=(0, 1, 1))
    refused("shared memory: sm_80 has", shared=200000)
    bounded = NESTED.replace(".param .u32 n) {", ".param .u32 n) .maxntid 4, 1, 1 {")
    refused(r"blocks of up to \(4, 1, 1\)", bounded)
    for text, message in (
        (".target sm_80\n.visible .entry k() { add.s32 %r1 }", "line 2 of the PTX"),
        ("\n\n $", "line 3 of the PTX"),
        ("", "no .target"),
        (".target sm_80 .entry k() {", "ends too early"),
    ):
        with pytest.raises(ParseError, match=message):
            ptx.parse(text)


def test_memory() -> None:
    memory = ptx.Memory(4096)
    a, b = memory.allocate(10), memory.allocate(1000)
    assert len({0, a, b}) == 3
    assert (a % 256, b % 256, memory.used) == (0, 0, 1010)
    memory.write(a, np.arange(5, dtype=np.int16))
    assert memory.read(a + 2, 4) == b"\1\0\2\0"
    for bad in (lambda: memory.read(a, 11), lambda: memory.free(a + 1), lambda: memory.read(9, 1)):
        with pytest.raises(MachineError):
            bad()
    with pytest.raises(OutOfMemoryError, match="4096 bytes of memory, of which 1010 are used"):
        memory.allocate(3087)
    memory.free(a)
    assert memory.allocate(10) not in (a, b)
    with pytest.raises(MachineError, match="not inside of one allocation"):
        memory.read(a, 1)
    memory.zero(b, 4)
    assert memory.read(b, 5) == b"\0\0\0\0\xff"
    for _ in range(3000):  # addresses come back when there are no others
        memory.free(memory.allocate(700))
    assert memory.used == 1010


llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()


def from_llvm(text: str, chip: str = "sm_80") -> str:
    target = llvm.Target.from_triple("nvptx64-nvidia-cuda")
    module = llvm.parse_assembly(f'target triple = "nvptx64-nvidia-cuda"\n{text}')
    return str(target.create_target_machine(cpu=chip, opt=3).emit_assembly(module))


LLVM = """
@sh = internal addrspace(3) global [256 x float] undef, align 16
@tab = internal addrspace(1) constant [4 x i32] [i32 10, i32 2, i32 3, i32 -4], align 16
@ptrs = internal addrspace(1) global [2 x ptr addrspace(1)] [ptr addrspace(1) @tab,
  ptr addrspace(1) getelementptr (i8, ptr addrspace(1) @tab, i64 8)]
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare void @llvm.nvvm.barrier0()
define internal float @f(float %x, i32 %n) noinline {
  %l = alloca [8 x float]
  store [8 x float] zeroinitializer, ptr %l
  %m = and i32 %n, 7
  %q = getelementptr float, ptr %l, i32 %m
  store float %x, ptr %q
  %q2 = getelementptr float, ptr %l, i32 3
  %y = load float, ptr %q2
  ret float %y
}
define ptx_kernel void @k(ptr %p, ptr addrspace(1) %o, i64 %n) {
  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %a = getelementptr <4 x float>, ptr %p, i32 %t
  %v = load <4 x float>, ptr %a, align 16
  %e = extractelement <4 x float> %v, i32 2
  %s = getelementptr float, ptr addrspace(3) @sh, i32 %t
  store float %e, ptr addrspace(3) %s
  call void @llvm.nvvm.barrier0()
  %u = xor i32 %t, 31
  %s2 = getelementptr float, ptr addrspace(3) @sh, i32 %u
  %z = load float, ptr addrspace(3) %s2
  %g = call float @f(float %z, i32 %t)
  %i = and i32 %t, 1
  %ps = getelementptr ptr addrspace(1), ptr addrspace(1) @ptrs, i32 %i
  %pp = load ptr addrspace(1), ptr addrspace(1) %ps
  %tv = load i32, ptr addrspace(1) %pp
  %tf = sitofp i32 %tv to float
  %r = fadd float %tf, %g
  %w = getelementptr float, ptr addrspace(1) %o, i32 %t
  store float %r, ptr addrspace(1) %w
  %k = and i32 %t, 7
  switch i32 %k, label %d [i32 0, label %c0
    i32 1, label %c1
    i32 2, label %c2
    i32 4, label %c4
    i32 5, label %c5]
c0:
  %aa = call i32 asm "{ .reg .b32 t; add.s32 t, $1, 1; mov.b32 $0, t; }", "=r,r"(i32 %t)
  %af = sitofp i32 %aa to float
  store float %af, ptr addrspace(1) %w
  br label %d
c1:
  store float 7.0, ptr addrspace(1) %w
  br label %d
c2:
  store float 9.0, ptr addrspace(1) %w
  br label %d
c4:
  %h = fptrunc float %r to half
  %hf = fpext half %h to float
  store float %hf, ptr addrspace(1) %w
  br label %d
c5:
  %b = fptrunc float %r to bfloat
  %bf = fpext bfloat %b to float
  store float %bf, ptr addrspace(1) %w
  br label %d
d:
  ret void
}
"""


@pytest.mark.parametrize("chip", ["sm_75", "sm_80", "sm_90"])
@pytest.mark.parametrize("seed", [None, 5])
def test_llvm_writes_what_it_reads(chip: str, seed: int | None) -> None:
    module, memory = ptx.parse(from_llvm(LLVM, chip)), ptx.Memory(1 << 20)
    x = np.random.default_rng(1).normal(size=(64, 4)).astype(np.float32)
    p, o = memory.allocate(x.nbytes), memory.allocate(256)
    memory.write(p, x)
    ptx.launch(module, "k", grid=(1, 1, 1), block=(64, 1, 1), args=[p, o, 0], memory=memory,
               seed=seed, races=True)  # fmt: skip
    got = np.frombuffer(memory.read(o, 256), np.float32)
    t = np.arange(64)
    base = np.where(t % 2, 3, 10).astype(np.float32)
    base = base + np.where(t % 8 == 3, x[t ^ 31, 2], np.float32(0))
    want = np.select([t % 8 == 0, t % 8 == 1, t % 8 == 2], [t + 1.0, 7.0, 9.0], base)
    assert np.array_equal(got, want.astype(np.float32))


@pytest.mark.thorough
@pytest.mark.skipif(not assembler(), reason="needs ptxas (package nvidia-cuda-nvcc)")
def test_ptxas_accepts_these_kernels(tmp_path: Path) -> None:
    for text in (NESTED, LOOPS, TURNED, from_llvm(LLVM)):
        assert assemble(text, "sm_80", tmp_path) == ""
