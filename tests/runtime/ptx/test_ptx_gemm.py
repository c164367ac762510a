"""A product of int8 matrices as GPUs do it: two stages of asynchronous copies, ldmatrix, mma."""

from pathlib import Path

import numpy as np
import pytest
from ptx_runs import HEAD, Array, assemble

from compiler.codegen.ptx.assembler import assembler
from compiler.errors import MachineError
from compiler.runtime.machines import ptx

TILE, STAGE = 64, 32  # rows and columns of a block; bytes of depth in a stage


def gemm() -> str:
    """C (m, n) int32 = A (m, k) B (n, k)^T; a block of four warps does 64 x 64 elements, warp w of
    them rows 16 w .. 16 w + 15."""
    tiles = TILE // 8
    lines = [
        "mov.u32 %me, %tid.x; mov.u32 %by, %ctaid.y; mov.u32 %bx, %ctaid.x;",
        "ld.param.u64 %pa, [pa]; ld.param.u64 %pb, [pb]; ld.param.u64 %pc, [pc];",
        "ld.param.u32 %n, [n]; ld.param.u32 %k, [k];",
        # Each thread copies 16 bytes of a row of A and of B.
        "shr.u32 %row, %me, 1; and.b32 %half, %me, 1; shl.b32 %half, %half, 4;",
        "mad.lo.u32 %r0, %by, 64, %row; mad.lo.u32 %r0, %r0, %k, %half;",
        "cvt.u64.u32 %o, %r0; add.u64 %pa, %pa, %o;",
        "mad.lo.u32 %r0, %bx, 64, %row; mad.lo.u32 %r0, %r0, %k, %half;",
        "cvt.u64.u32 %o, %r0; add.u64 %pb, %pb, %o;",
        f"mov.u32 %sa, s; mad.lo.u32 %to, %row, {STAGE}, %half; add.u32 %to, %to, %sa;",
        # Which rows ldmatrix is given: of A by 16 rows of two halves, of B by 8.
        "and.b32 %lane, %me, 31; shr.u32 %warp, %me, 5;",
        "and.b32 %r0, %lane, 15; mad.lo.u32 %r0, %warp, 16, %r0; shr.u32 %r1, %lane, 4;",
        f"shl.b32 %r1, %r1, 4; mad.lo.u32 %fa, %r0, {STAGE}, %r1; add.u32 %fa, %fa, %sa;",
        "and.b32 %r0, %lane, 7; shr.u32 %r1, %lane, 3; and.b32 %r1, %r1, 1; shl.b32 %r1, %r1, 4;",
        f"mad.lo.u32 %fb, %r0, {STAGE}, %r1; add.u32 %fb, %fb, %sa; add.u32 %fb, %fb, 4096;",
        *(f"mov.u32 %c{i}, 0;" for i in range(4 * tiles)),
        "mov.u32 %at, 0; mov.u32 %stage, 0;",
    ]  # fmt: skip
    copy = [
        "cp.async.cg.shared.global [{to}], [%pa], 16;",
        "cp.async.cg.shared.global [{to}+4096], [%pb], 16;",
        "cp.async.commit_group; add.u64 %pa, %pa, 32; add.u64 %pb, %pb, 32;",
    ]
    lines += [x.format(to="%to") for x in copy]
    lines += [
        "LOOP:",
        f"add.u32 %at, %at, {STAGE}; setp.ge.u32 %last, %at, %k;",
        "@%last bra LAST;",
        "xor.b32 %next, %stage, 2048; add.u32 %r0, %to, %next;",
        *(x.format(to="%r0") for x in copy),
        "cp.async.wait_group 1;",
        "bra GO;",
        "LAST: cp.async.wait_group 0;",
        "GO: bar.sync 0;",
        "add.u32 %r0, %fa, %stage; add.u32 %r1, %fb, %stage;",
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%a0, %a1, %a2, %a3}, [%r0];",
    ]
    for t in range(tiles):
        c = ", ".join(f"%c{4 * t + j}" for j in range(4))
        lines += [
            f"ldmatrix.sync.aligned.m8n8.x2.shared.b16 {{%b0, %b1}}, [%r1+{8 * STAGE * t}];",
            "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
            f"{{{c}}}, {{%a0, %a1, %a2, %a3}}, {{%b0, %b1}}, {{{c}}};",
        ]
    lines += [
        "bar.sync 0;", "xor.b32 %stage, %stage, 2048;", "@!%last bra LOOP;",
        "shr.u32 %r0, %lane, 2; mad.lo.u32 %r0, %warp, 16, %r0; mad.lo.u32 %r0, %by, 64, %r0;",
        "and.b32 %r1, %lane, 3; shl.b32 %r1, %r1, 1; mad.lo.u32 %r1, %bx, 64, %r1;",
        "mad.lo.u32 %r0, %r0, %n, %r1; mad.wide.u32 %pc, %r0, 4, %pc;",
        "shl.b32 %r1, %n, 5; cvt.u64.u32 %o, %r1; add.u64 %o, %pc, %o;",
    ]  # fmt: skip
    for t in range(tiles):
        lines += [f"st.global.v2.b32 [%pc+{32 * t}], {{%c{4 * t}, %c{4 * t + 1}}};",
                  f"st.global.v2.b32 [%o+{32 * t}], {{%c{4 * t + 2}, %c{4 * t + 3}}};"]  # fmt: skip
    words = "me, by, bx, n, k, row, half, r0, r1, sa, to, lane, warp, fa, fb, at, stage, next"
    registers = ", ".join(f"%{w}" for w in words.split(", "))
    body = "\n  ".join(lines)
    return f"""{HEAD.format(target="sm_80")}
.visible .entry gemm(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u32 n, .param .u32 k)
.maxntid 128, 1, 1
{{
  .reg .pred %last; .reg .b64 %pa, %pb, %pc, %o;
  .reg .b32 {registers}, %a<4>, %b<2>, %c<{4 * tiles}>;
  .shared .align 128 .b8 s[8192];
  {body}
  ret;
}}
"""


def run(text: str, a: Array, b: Array, seed: int | None = None, races: bool = False) -> Array:
    (m, k), n = a.shape, len(b)
    memory = ptx.Memory(1 << 24)
    places = [memory.allocate(size) for size in (a.nbytes, b.nbytes, 4 * m * n)]
    memory.write(places[0], a)
    memory.write(places[1], b)
    found = ptx.launch(
        ptx.parse(text), "gemm", grid=(n // TILE, m // TILE, 1), block=(128, 1, 1),
        args=[*places, n, k], memory=memory, seed=seed, races=races,
    )  # fmt: skip
    products = "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32"
    assert found.instructions[products] == m * n * k // (16 * 8 * 32)
    return np.frombuffer(memory.read(places[2], 4 * m * n), np.int32).reshape(m, n)


def factors(m: int, n: int, k: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(m + n + k)
    return (rng.integers(-128, 128, (m, k)).astype(np.int8),
            rng.integers(-128, 128, (n, k)).astype(np.int8))  # fmt: skip


def test_a_product() -> None:
    a, b = factors(64, 64, 64)
    assert np.array_equal(run(gemm(), a, b), a.astype(np.int32) @ b.T.astype(np.int32))


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [None, 0, 1, 2])
@pytest.mark.parametrize("races", [False, True])
def test_products_of_blocks(seed: int | None, races: bool) -> None:
    a, b = factors(128, 192, 160)
    got = run(gemm(), a, b, seed, races)
    assert np.array_equal(got, a.astype(np.int32) @ b.T.astype(np.int32))


WRONG = {
    "waits for the stage before": ("cp.async.wait_group 1;", "cp.async.wait_group 2;"),
    "does not wait": ("LAST: cp.async.wait_group 0;", "LAST: cp.async.wait_group 1;"),
    "no barrier behind the copies": ("GO: bar.sync 0;", "GO:"),
    "no barrier before the next stage": ("bar.sync 0;\n  xor.b32 %stage", "xor.b32 %stage"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("what", WRONG)
def test_what_is_left_out_is_found(what: str) -> None:
    old, new = WRONG[what]
    text = gemm()
    assert old in text
    a, b = factors(64, 64, 160)
    with pytest.raises(MachineError, match="race in shared memory"):
        run(text.replace(old, new), a, b, races=True)
    if "barrier" not in what:  # bytes that nobody waited for are not there
        want = a.astype(np.int32) @ b.T.astype(np.int32)
        assert not np.array_equal(run(text.replace(old, new), a, b), want)


@pytest.mark.thorough
@pytest.mark.skipif(not assembler(), reason="needs ptxas (package nvidia-cuda-nvcc)")
def test_ptxas_accepts_the_product(tmp_path: Path) -> None:
    assert assemble(gemm(), "sm_80", tmp_path) == ""
