"""Instructions of whole warps, atomic ones and asynchronous copies, against plain Python."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ptx_runs import HEAD, Array, assemble

from compiler.codegen.ptx.assembler import assembler
from compiler.errors import MachineError
from compiler.runtime.machines import ptx

START = """.visible .entry k(.param .u64 a, .param .u64 out) {
  .reg .pred %p<4>; .reg .b16 %h<4>; .reg .b32 %r<16>; .reg .b64 %d<12>; .reg .f32 %f<8>;
  .shared .align 16 .b8 s[4096];
  mov.u32 %r0, %tid.x;
  ld.param.u64 %d0, [a];
  ld.param.u64 %d1, [out];
  mad.wide.u32 %d2, %r0, 4, %d0;
  mad.wide.u32 %d3, %r0, 4, %d1;
  ld.global.u32 %r1, [%d2];
  mov.u32 %r2, 0;
"""


def kernel(body: str, target: str = "sm_80") -> str:
    end = "\n  st.global.u32 [%d3], %r2;\n  ret;\n}\n"
    return HEAD.format(target=target) + START + body + end


def run(body: str, a: Array, threads: int = 64, out: Array | None = None, **options: Any) -> Array:
    memory = ptx.Memory(1 << 20)
    where, to = memory.allocate(a.nbytes), memory.allocate(max(4 * threads, 1024))
    memory.write(where, a)
    if out is not None:
        memory.write(to, out)
    module = ptx.parse(kernel(body))
    ptx.launch(module, "k", grid=(1, 1, 1), block=(threads, 1, 1), args=[where, to],
               memory=memory, **options)  # fmt: skip
    return np.frombuffer(memory.read(to, 4 * threads), np.uint32)


RNG = np.random.default_rng(7)
A = RNG.integers(0, 2**32, 64, dtype=np.uint32)
FEW = RNG.integers(0, 4, 64, dtype=np.uint32)


def shuffled(mode: str, by: int, c: int) -> list[int]:
    """By the PTX ISA's own words."""
    out = []
    for warp in A.reshape(2, 32):
        for lane in range(32):
            seg, clamp = c >> 8 & 31, c & 31
            top, low = (lane & seg) | (clamp & ~seg), lane & seg
            down, one = lane + by, low | by & ~seg
            j = {"up": lane - by, "down": down, "bfly": lane ^ by, "idx": one}[mode]
            fits = j >= top if mode == "up" else j <= top
            out.append(int(warp[j if fits else lane]) ^ (not fits))
    return out


SHUFFLES = [
    ("up", 3, 0), ("down", 5, 31), ("bfly", 16, 31), ("idx", 7, 31), ("up", 1, 24 << 8),
    ("down", 2, 24 << 8 | 31), ("bfly", 3, 28 << 8 | 31), ("idx", 2, 28 << 8 | 31),
]  # fmt: skip


@pytest.mark.parametrize(("mode", "by", "c"), SHUFFLES)
def test_shuffles(mode: str, by: int, c: int) -> None:
    body = (f"shfl.sync.{mode}.b32 %r2|%p0, %r1, {by}, {c}, -1;"
            "\n  selp.b32 %r3, 0, 1, %p0; xor.b32 %r2, %r2, %r3;")  # fmt: skip
    assert run(body, A).tolist() == shuffled(mode, by, c)


def test_votes_and_matches() -> None:
    odd = "and.b32 %r3, %r1, 1; setp.eq.u32 %p0, %r3, 1;"
    warps = FEW.reshape(2, 32)
    ballots = [sum(int(v) % 2 << k for k, v in enumerate(w)) for w in warps]
    assert run(odd + "vote.sync.ballot.b32 %r2, %p0, -1;", FEW).tolist() == [
        b for b in ballots for _ in range(32)
    ]
    for mode, want in (("any", [1, 1]), ("all", [0, 0]), ("uni", [0, 0])):
        got = run(odd + f"vote.sync.{mode}.pred %p1, %p0, -1; selp.b32 %r2, 1, 0, %p1;", FEW)
        assert got.reshape(2, 32)[:, 0].tolist() == want
        same = run(odd + f"vote.sync.{mode}.pred %p1, %p0, -1; selp.b32 %r2, 1, 0, %p1;", FEW | 1)
        assert same.tolist() == [1] * 64
    matches = [sum(int(u == v) << k for k, u in enumerate(w)) for w in warps for v in w]
    assert run("match.any.sync.b32 %r2, %r1, -1;", FEW).tolist() == matches
    every = "match.all.sync.b32 %r2|%p0, %r1, -1;"
    assert run(every, FEW).tolist() == [0] * 64
    assert run(every, FEW * 0 + 9).tolist() == [2**32 - 1] * 64
    # Half of each warp, with a mask of its own.
    half = "setp.lt.u32 %p0, %r0, 16; mov.u32 %r2, 5; @%p0 vote.sync.ballot.b32 %r2, %p0, 0xffff;"
    assert run(half, FEW).tolist() == [0xFFFF] * 16 + [5] * 48
    active = "and.b32 %r3, %r0, 3; setp.eq.u32 %p0, %r3, 0; @%p0 activemask.b32 %r2;"
    assert run(active, FEW).tolist() == [0x11111111 if k % 4 == 0 else 0 for k in range(64)]


def test_reductions_of_warps() -> None:
    for kind, signed in (("u32", A), ("s32", A.view(np.int32))):
        for op, f in (("add", sum), ("min", min), ("max", max)):
            want = [f(w.tolist()) % 2**32 for w in signed.reshape(2, 32) for _ in range(32)]
            assert run(f"redux.sync.{op}.{kind} %r2, %r1, -1;", A).tolist() == want
    for op, g in (("and", np.bitwise_and), ("or", np.bitwise_or), ("xor", np.bitwise_xor)):
        want = np.repeat(g.reduce(A.reshape(2, 32), axis=1), 32)
        assert np.array_equal(run(f"redux.sync.{op}.b32 %r2, %r1, -1;", A), want)


def test_lanes_that_parted_are_waited_for() -> None:
    parted = """
  and.b32 %r3, %r0, 1; setp.eq.u32 %p0, %r3, 0; mov.u32 %r4, 0;
  @%p0 bra LONG;
  bra SUM;
LONG:
  add.u32 %r4, %r4, 1; setp.lt.u32 %p1, %r4, %r0; @%p1 bra LONG;
SUM:
  redux.sync.add.u32 %r2, %r4, -1;"""
    n = [max(k, 1) if k % 2 == 0 else 0 for k in range(64)]
    for seed in (None, 1):
        got = run(parted, A, seed=seed)
        assert got.tolist() == [sum(n[:32])] * 32 + [sum(n[32:])] * 32


def test_reads_of_missing_lanes() -> None:
    with pytest.raises(MachineError, match="lane 20, which it reads, is not active"):
        run("shfl.sync.idx.b32 %r2, %r1, 20, 31, -1;", A, threads=16)
    with pytest.raises(MachineError, match="is not in its own mask"):
        run("setp.lt.u32 %p0, %r0, 40; @%p0 vote.sync.ballot.b32 %r2, %p0, 1;", A)


CHANGES = {
    "add.u32": lambda o, b: (o + b) % 2**32, "min.u32": min, "max.u32": max,
    "and.b32": lambda o, b: o & b, "or.b32": lambda o, b: o | b, "xor.b32": lambda o, b: o ^ b,
    "exch.b32": lambda o, b: b, "inc.u32": lambda o, b: 0 if o >= b else o + 1,
    "dec.u32": lambda o, b: b if o == 0 or o > b else o - 1,
}  # fmt: skip


@pytest.mark.parametrize("op", CHANGES)
@pytest.mark.parametrize("space", ["global", "shared", "generic"])
def test_atomics(op: str, space: str) -> None:
    """All threads of a bank of four addresses, one after the other."""
    to = "mov.u64 %d4, s; cvta.shared.u64 %d5, %d4;" if space != "global" else "mov.u64 %d4, %d1;"
    code = f"""
  and.b32 %r3, %r0, 3; shl.b32 %r3, %r3, 2; cvt.u64.u32 %d6, %r3;
  {to}
  {"mov.u64 %d4, %d5;" if space == "generic" else ""}
  add.u64 %d4, %d4, %d6; mov.u32 %r5, 77;
  st{"." + space if space != "generic" else ""}.u32 [%d4], %r5; bar.sync 0;
  atom{"." + space if space != "generic" else ""}.{op} %r2, [%d4], %r1; bar.sync 0;"""
    for values in (A, FEW * 40):
        old, want = [77] * 4, []
        for k, v in enumerate(values.tolist()):
            want.append(old[k % 4])
            old[k % 4] = CHANGES[op](old[k % 4], v)
        assert run(code, values).tolist() == want


def test_atomics_of_floats_and_cas() -> None:
    x = RNG.normal(size=64).astype(np.float32)
    zero = np.zeros(64, np.uint32)
    total = np.float32(0)
    for v in x:
        total += v
    code = "mov.b32 %f0, %r1; red.global.add.f32 [%d1+512], %f0;"
    code += "bar.sync 0; ld.global.u32 %r2, [%d1+512];"
    got = run(code, x.view(np.uint32), out=np.zeros(256, np.uint32))
    assert got[0] == np.array(total).view(np.uint32)
    cas = "atom.global.cas.b32 %r2, [%d1+512], %r0, 63; bar.sync 0;"
    out = np.zeros(256, np.uint32)
    assert run(cas, zero, out=out).tolist() == [0] + [63] * 63
    halves = np.array([1.5, 2.0], np.float16).view(np.uint32)
    code = "red.global.add.noftz.f16x2 [%d1+512], %r1; bar.sync 0; ld.global.u32 %r2, [%d1+512];"
    got = run(code, np.repeat(halves, 64), out=np.zeros(256, np.uint32))
    assert got.view(np.float16)[:2].tolist() == [96.0, 128.0]


COPY = """
  mad.wide.u32 %d2, %r0, 16, %d0; shl.b32 %r3, %r0, 4; mov.u32 %r4, s; add.u32 %r3, %r3, %r4;
  mov.u32 %r5, 7; st.shared.v4.u32 [%r3], {%r5, %r5, %r5, %r5};
  cp.async.cg.shared.global [%r3], [%d2], 16;
  cp.async.commit_group;
  WAIT
  BARRIER
  xor.b32 %r6, %r3, 16; READ"""


def copied(wait: str, **options: Any) -> Array:
    a = np.arange(256, dtype=np.uint32)
    code = COPY.replace("WAIT", wait).replace("BARRIER", "bar.sync 0;")
    return run(code.replace("READ", "ld.shared.u32 %r2, [%r6+4];"), a, **options)


@pytest.mark.parametrize("seed", [None, 4])
def test_copies_are_late(seed: int | None) -> None:
    want = [4 * (k ^ 1) + 1 for k in range(64)]
    for wait in ("cp.async.wait_group 0;", "cp.async.wait_all;"):
        assert copied(wait, seed=seed).tolist() == want
        assert copied(wait, seed=seed, races=True).tolist() == want
    for wait in ("", "cp.async.wait_group 1;"):  # nobody has waited for this group
        assert copied(wait, seed=seed).tolist() == [7] * 64
        with pytest.raises(MachineError, match="asynchronous copy that was not waited for"):
            copied(wait, seed=seed, races=True)
    again = "cp.async.cg.shared.global [%r3], [%d0], 16; cp.async.commit_group;"
    assert copied(again + "cp.async.wait_group 1;", seed=seed).tolist() == want
    assert copied(again + "cp.async.wait_group 0;", seed=seed).tolist() == [1] * 64
    more = again.replace("cp.async.commit_group;", "")  # in no group
    assert copied(more + "cp.async.wait_group 0;", seed=seed).tolist() == want
    assert copied(more + "cp.async.wait_all;", seed=seed).tolist() == [1] * 64


def test_copies_of_some_bytes() -> None:
    a = np.arange(256, dtype=np.uint32)
    body = """
  mov.u32 %r4, s; mad.lo.u32 %r3, %r0, 16, %r4; mad.wide.u32 %d2, %r0, 16, %d0;
  and.b32 %r5, %r0, 1; shl.b32 %r5, %r5, 3; setp.eq.u32 %p0, %r0, 6;
  cp.async.ca.shared.global [%r3], [%d2], 16, %r5;
  cp.async.ca.shared.global [%r3+8], [%d2], 4;
  cp.async.wait_all;
  ld.shared.v4.u32 {%r5, %r6, %r7, %r8}, [%r3];
  add.u32 %r2, %r5, %r6; add.u32 %r2, %r2, %r7; add.u32 %r2, %r2, %r8;"""
    want = [4 * k + (8 * k + 1 if k % 2 else 0) for k in range(64)]
    assert run(body, a).tolist() == want
    nothing = "mov.u64 %d5, 0; mov.u32 %r3, 0; cp.async.cg.shared.global [s], [%d5], 16, %r3;"
    run(nothing, a, threads=1)  # of which no byte is read
    with pytest.raises(MachineError, match=r"cp.async.cg\S* in line 14 .*address 0x0"):
        run(nothing.replace(", %r3;", ";"), a, threads=1)


@pytest.mark.thorough
@pytest.mark.skipif(not assembler(), reason="needs ptxas (package nvidia-cuda-nvcc)")
def test_ptxas_accepts_warps(tmp_path: Path) -> None:
    bodies = [f"shfl.sync.{m}.b32 %r2|%p0, %r1, {b}, {c}, -1;" for m, b, c in SHUFFLES]
    bodies += [f"atom.shared.{op} %r2, [s], %r1;" for op in CHANGES]
    bodies += [COPY.replace("WAIT", "cp.async.wait_group 0;").replace("BARRIER", "bar.sync 0;")
               .replace("READ", "ld.shared.u32 %r2, [%r6+4];")]  # fmt: skip
    bodies += [
        "match.any.sync.b32 %r2, %r1, -1; redux.sync.min.s32 %r3, %r1, -1;",
        "red.global.add.noftz.f16x2 [%d1+512], %r1; vote.sync.uni.pred %p1, %p0, -1;",
    ]
    for body in bodies:
        assert assemble(kernel(body), "sm_80", tmp_path) == ""
