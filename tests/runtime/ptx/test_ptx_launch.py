"""Grids, kinds of memory and scopes of names of PTX kernels; random control flow against Python."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ptx_runs import HEAD, Array, assemble

from compiler.codegen.ptx.assembler import assembler
from compiler.errors import MachineError
from compiler.runtime.machines import ptx

GRID = (
    HEAD.format(target="sm_80")
    + """
.visible .entry k(.param .u64 out) {
  .reg .b32 %r<20>; .reg .b64 %d<4>;
  mov.u32 %r0, %tid.x; mov.u32 %r1, %tid.y; mov.u32 %r2, %tid.z;
  mov.u32 %r3, %ntid.x; mov.u32 %r4, %ntid.y; mov.u32 %r5, %ntid.z;
  mov.u32 %r6, %ctaid.x; mov.u32 %r7, %ctaid.y; mov.u32 %r8, %ctaid.z;
  mov.u32 %r9, %nctaid.x; mov.u32 %r10, %nctaid.y;
  mad.lo.u32 %r11, %r2, %r4, %r1; mad.lo.u32 %r11, %r11, %r3, %r0;
  mad.lo.u32 %r12, %r8, %r10, %r7; mad.lo.u32 %r12, %r12, %r9, %r6;
  mul.lo.u32 %r13, %r3, %r4; mul.lo.u32 %r13, %r13, %r5;
  mad.lo.u32 %r14, %r12, %r13, %r11;
  mov.u32 %r15, %laneid; mov.u32 %r16, %warpid; mov.u32 %r17, %lanemask_lt;
  ld.param.u64 %d0, [out]; mad.wide.u32 %d0, %r14, 16, %d0;
  st.global.v4.u32 [%d0], {%r14, %r15, %r16, %r17};
  ret;
}
"""
)


@pytest.mark.parametrize("seed", [None, 3])
def test_threads_know_who_they_are(seed: int | None) -> None:
    grid, block = (3, 2, 4), (5, 4, 3)
    threads, blocks = 60, 24
    memory = ptx.Memory(1 << 20)
    out = memory.allocate(16 * threads * blocks)
    found = ptx.launch(ptx.parse(GRID), "k", grid=grid, block=block, args=[out], memory=memory,
                       seed=seed)  # fmt: skip
    got = np.frombuffer(memory.read(out, 16 * threads * blocks), np.uint32).reshape(-1, 4)
    k = np.arange(threads * blocks)
    lane = k % threads % 32
    want = np.stack([k, lane, k % threads // 32, (1 << lane) - 1], 1)
    assert np.array_equal(got, want)
    assert found.threads["ret"] == threads * blocks
    assert found.instructions["ret"] == 2 * blocks


SPACES = (
    HEAD.format(target="sm_80")
    + """
.const .align 4 .u32 primes[4] = {2, 3, 5, 7};
.global .align 4 .u32 count[2] = {10, -1};
.global .align 4 .f32 halves[3] = {0f3F000000, 0.25, 4.0};
.global .align 8 .u64 where[2] = {generic(halves), generic(count)+4};
.shared .align 4 .b8 common[16];
.extern .shared .align 16 .b8 more[];
.func (.param .b32 result) twice(.param .b32 x, .param .align 4 .b8 pair[8]) {
  .reg .b32 %r<4>; .reg .pred %p;
  ld.param.u32 %r0, [x]; ld.param.v2.u32 {%r1, %r2}, [pair];
  setp.lt.u32 %p, %r0, 3;
  @%p bra SMALL;
  mad.lo.u32 %r3, %r0, %r1, %r2;
  st.param.u32 [result], %r3;
  ret;
SMALL:
  st.param.u32 [result], 1000;
  ret;
}
.visible .entry k(.param .u64 out, .param .f32 x, .param .align 4 .b8 bytes[6], .param .u16 w) {
  .reg .b16 %h<4>; .reg .b32 %r<20>; .reg .b64 %d<8>; .reg .f32 %f<4>; .reg .pred %p<2>;
  .local .align 8 .b8 own[40];
  .shared .align 4 .b8 mine[16];
  mov.u32 %r0, %tid.x;
  and.b32 %r1, %r0, 3; shl.b32 %r1, %r1, 2; cvt.u64.u32 %d1, %r1;
  mov.u64 %d2, primes; add.u64 %d2, %d2, %d1; ld.const.u32 %r2, [%d2];
  ld.global.u64 %d3, [where+8]; ld.u32 %r3, [%d3];
  atom.global.add.u32 %r4, [count], 1;
  mov.u64 %d4, own; cvta.local.u64 %d5, %d4; add.u64 %d5, %d5, %d1; st.u32 [%d5+8], %r0;
  ld.local.u32 %r5, [own+8]; ld.local.v2.u32 {%r6, %r7}, [%d4+8];
  isspacep.local %p0, %d5; selp.u32 %r8, 1, 0, %p0;
  mov.u64 %d6, more; cvta.shared.u64 %d7, %d6; isspacep.shared %p1, %d7; selp.u32 %r9, 1, 0, %p1;
  st.shared.u32 [common], %r0; st.shared.u32 [mine+12], %r0; st.u32 [%d7+60], %r9;
  ld.shared.u32 %r10, [more+60];
  ld.param.f32 %f0, [x]; ld.global.f32 %f1, [halves+4]; fma.rn.f32 %f0, %f0, %f1, 0f3F800000;
  cvt.rzi.u32.f32 %r11, %f0;
  ld.param.u16 %h0, [bytes+4]; cvt.u32.u16 %r12, %h0; ld.param.s16 %h1, [w];
  cvt.s32.s16 %r13, %h1;
  {
    .reg .b32 %r1; .reg .pred %p0; .param .b32 a; .param .align 4 .b8 b[8]; .param .b32 c;
    mov.u32 %r1, 9; setp.lt.u32 %p0, %r0, 2; @%p0 bra SMALL; mov.u32 %r1, 11;
  SMALL:
    st.param.u32 [a], %r0; st.param.u32 [b], %r1; st.param.u32 [b+4], 5;
    call.uni (c), twice, (a, b);
    ld.param.u32 %r14, [c];
  }
  ld.param.u64 %d0, [out]; mad.wide.u32 %d0, %r0, 32, %d0;
  add.u32 %r4, %r8, %r10; add.u32 %r5, %r5, %r6;
  st.global.v4.u32 [%d0], {%r2, %r3, %r4, %r5};
  st.global.v4.u32 [%d0+16], {%r11, %r12, %r13, %r14};
  ret;
}
"""
)


def spaces(**options: Any) -> tuple[Array, ptx.Memory, ptx.PtxModule, int]:
    module, memory = ptx.parse(SPACES), ptx.Memory(1 << 20)
    out = memory.allocate(32 * 40)
    ptx.launch(module, "k", grid=(1, 1, 1), block=(40, 1, 1), memory=memory, shared=64,
               args=[out, 8.0, b"\1\2\3\4\5\6", 65535], **options)  # fmt: skip
    return np.frombuffer(memory.read(out, 32 * 40), np.uint32).reshape(40, 8), memory, module, out


@pytest.mark.parametrize("seed", [None, 1])
def test_kinds_of_memory(seed: int | None) -> None:
    got, memory, module, _ = spaces(seed=seed)
    k = np.arange(40)
    assert got[:, 0].tolist() == [[2, 3, 5, 7][t % 4] for t in k]
    assert got[:, 1].tolist() == [2**32 - 1] * 40
    assert got[:, 2].tolist() == [2] * 40
    at_0 = np.where(k % 4 == 0, 2 * k, 2 * 2**32 - 2) % 2**32  # own memory is new for each thread
    assert got[:, 3].tolist() == at_0.tolist()
    assert got[:, 4].tolist() == [3] * 40
    assert got[:, 5].tolist() == [0x0605] * 40
    assert got[:, 6].tolist() == [2**32 - 1] * 40
    want = [1000 if t < 3 else t * (9 if t < 2 else 11) + 5 for t in k]
    assert got[:, 7].tolist() == want
    kernel = module.kernels["k"]
    assert [(p.name, p.type, p.bytes) for p in kernel.params] == [
        ("out", "u64", 8), ("x", "f32", 4), ("bytes", "b8", 6), ("w", "u16", 2)
    ]  # fmt: skip
    assert kernel.shared == 32
    count = memory.addresses_of(module)["count"]
    assert memory.read(count, 4) == (50).to_bytes(4, "little")  # it stays between launches


def test_shared_memory_has_an_end() -> None:
    module, memory = ptx.parse(SPACES), ptx.Memory(1 << 20)
    out = memory.allocate(32 * 40)
    with pytest.raises(MachineError, match=r"st.u32 .*outside of every variable in shared memory"):
        ptx.launch(module, "k", grid=(1, 1, 1), block=(8, 1, 1), memory=memory, shared=60,
                   args=[out, 8.0, bytes(6), 0])  # fmt: skip
    wrong = SPACES.replace("[mine+12]", "[mine+16]")  # one variable further
    with pytest.raises(MachineError, match=r"st.shared.u32 .*outside of every variable"):
        ptx.launch(ptx.parse(wrong), "k", grid=(1, 1, 1), block=(8, 1, 1), memory=memory,
                   shared=64, args=[out, 8.0, bytes(6), 0])  # fmt: skip


def test_named_barriers() -> None:
    """Two warps hand values to two others, who go on alone."""
    text = (
        HEAD.format(target="sm_80")
        + """
.visible .entry k(.param .u64 out) {
  .reg .b32 %r<8>; .reg .b64 %d<4>; .reg .pred %p<4>; .shared .align 4 .b8 s[256];
  mov.u32 %r0, %tid.x; mov.u32 %r1, s; setp.ge.u32 %p0, %r0, 64; @%p0 bra CONSUMER;
  shl.b32 %r2, %r0, 2; add.u32 %r2, %r2, %r1;
  mul.lo.u32 %r3, %r0, 3; st.shared.u32 [%r2], %r3;
  bar.arrive 1, 128;
  ret;
CONSUMER:
  bar.sync 1, 128;
  sub.u32 %r2, 127, %r0; shl.b32 %r2, %r2, 2; add.u32 %r2, %r2, %r1;
  ld.shared.u32 %r3, [%r2];
  ld.param.u64 %d0, [out]; mad.wide.u32 %d0, %r0, 4, %d0; st.global.u32 [%d0+-256], %r3;
  ret;
}
"""
    )
    for seed in (None, 0, 1, 2):
        memory = ptx.Memory(1 << 20)
        out = memory.allocate(256)
        ptx.launch(ptx.parse(text), "k", grid=(1, 1, 1), block=(128, 1, 1), args=[out],
                   memory=memory, seed=seed, races=True)  # fmt: skip
        got = np.frombuffer(memory.read(out, 256), np.uint32)
        assert got.tolist() == [3 * (63 - t) for t in range(64)]


Tree = list[Any]
CONDITIONS = st.tuples(st.sampled_from("tx"), st.integers(1, 7), st.integers(0, 6))
LEAVES = st.tuples(st.just("do"), st.integers(0, 5), st.integers(1, 9))
BLOCKS = st.recursive(
    st.lists(LEAVES, min_size=1, max_size=2),
    lambda inner: st.lists(
        st.one_of(
            LEAVES,
            st.tuples(st.just("if"), CONDITIONS, inner, inner),
            st.tuples(st.just("loop"), st.integers(1, 4), inner),
            st.tuples(st.just("leave"), CONDITIONS),
        ),
        min_size=1,
        max_size=3,
    ),
    max_leaves=8,
)
"""Programs on x and the number t of the thread: steps, branches on (t or x) % m > n, loops of t % m
rounds, and ends."""
STEPS = ("add.u32 %x, %x, {};", "mul.lo.u32 %x, %x, {};", "xor.b32 %x, %x, {};",
         "mad.lo.u32 %x, %t, {}, %x;", "shr.u32 %x, %x, {};", "sub.u32 %x, %t, %x;")  # fmt: skip


def written(tree: Tree, names: itertools.count[int]) -> list[str]:
    """A program as PTX."""
    out = []

    def test(c: tuple[str, int, int]) -> str:
        return f"rem.u32 %r, %{c[0]}, {c[1]}; setp.gt.u32 %p, %r, {c[2]};"

    for node in tree:
        k = next(names)
        if node[0] == "do":
            out.append(STEPS[node[1]].format(node[2]))
        elif node[0] == "leave":
            out.append(f"{test(node[1])} @%p bra END;")
        elif node[0] == "if":
            out += [f"{test(node[1])} @!%p bra ELSE{k};", *written(node[2], names)]
            out += [f"bra DONE{k};", f"ELSE{k}:", *written(node[3], names), f"DONE{k}:"]
        else:
            out += ["{ .reg .b32 %i;", f"rem.u32 %i, %t, {node[1]};", f"HEAD{k}:",
                    f"setp.eq.u32 %p, %i, 0; @%p bra OUT{k};", *written(node[2], names),
                    f"sub.u32 %i, %i, 1; bra HEAD{k};", f"OUT{k}: }}"]  # fmt: skip
    return out


def meant(tree: Tree, t: int, x: int) -> tuple[int, bool]:
    """What one thread does: x, and whether it has ended."""
    for node in tree:
        if node[0] == "do":
            v = node[2]
            x = (x + v, x * v, x ^ v, t * v + x, x >> v, t - x)[node[1]] % 2**32
            continue
        if node[0] == "loop":
            for _ in range(t % node[1]):
                x, ended = meant(node[2], t, x)
                if ended:
                    return x, True
            continue
        which, m, n = node[1]
        holds = (t if which == "t" else x) % m > n
        if node[0] == "leave" and holds:
            return x, True
        if node[0] == "if":
            x, ended = meant(node[2] if holds else node[3], t, x)
            if ended:
                return x, True
    return x, False


def program(tree: Tree) -> str:
    return f"""{HEAD.format(target="sm_80")}
.visible .entry k(.param .u64 out) {{
  .reg .b32 %t, %x, %r; .reg .b64 %d; .reg .pred %p;
  mov.u32 %t, %tid.x; mov.u32 %x, %t;
  {" ".join(written(tree, itertools.count()))}
END:
  ld.param.u64 %d, [out]; mad.wide.u32 %d, %t, 4, %d; st.global.u32 [%d], %x;
  ret;
}}
"""


def check(tree: Tree) -> None:
    module = ptx.parse(program(tree))
    want = [meant(tree, t, t)[0] for t in range(40)]
    for seed in (None, 1):
        memory = ptx.Memory(1 << 12)
        out = memory.allocate(160)
        ptx.launch(module, "k", grid=(1, 1, 1), block=(40, 1, 1), args=[out], memory=memory,
                   seed=seed)  # fmt: skip
        assert np.frombuffer(memory.read(out, 160), np.uint32).tolist() == want


@settings(max_examples=8, deadline=None)
@given(BLOCKS)
def test_random_control_flow(tree: Tree) -> None:
    check(tree)


@pytest.mark.thorough
@settings(max_examples=200, deadline=None)
@given(BLOCKS)
def test_much_random_control_flow(tree: Tree) -> None:
    check(tree)


@pytest.mark.thorough
@pytest.mark.skipif(not assembler(), reason="needs ptxas (package nvidia-cuda-nvcc)")
def test_ptxas_accepts_grids(tmp_path: Path) -> None:
    tree: Tree = [("loop", 3, [("if", ("x", 3, 1), [("do", 0, 2)], [("leave", ("t", 2, 0))])])]
    for text in (GRID, SPACES, program(tree)):
        assert assemble(text, "sm_80", tmp_path) == ""
