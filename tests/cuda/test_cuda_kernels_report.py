"""The table of what kernels take of NVIDIA's chips: occupancy as NVIDIA's calculator has it, counts
of instructions, and recorded figures that are those of today's code."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from compiler.codegen.ptx.assembler import assembler
from compiler.target.cuda import CHIPS
from experiments.benchmarks.cuda_kernels import Kernel, body, mix, occupancy, peak, rows_of
from experiments.benchmarks.row_files import read_rows

RECORDED = Path(__file__).resolve().parents[2] / "results" / "cuda_kernels.csv"

LOOPS = """
$L__BB0_1:
	mov.b32 	%r1, 0;
$L__BB0_2:
	ld.global.v4.b32 	{%r1, %r2, %r3, %r4}, [%rd12];
	ld.shared.b64 	%rd9, [%rd11];
	fma.rn.f32 	%r14, %r8, %r9, %r14;
	dp4a.s32.s32 	%r3, %r1, %r2, %r3;
	@%p1 bra 	$L__BB0_2;
	setp.lt.s32 	%p2, %r13, 512;
	@%p2 bra 	$L__BB0_1;
	st.global.b32 	[%rd10], %r14;
	ret;
"""


@pytest.mark.parametrize(
    ("chip", "registers", "shared", "threads", "warps"),
    [
        ("sm_80", 32, 0, 256, 64),
        ("sm_80", 33, 0, 256, 48),  # 40 registers a thread are taken: 51 warps, 48 by fours
        ("sm_80", 255, 0, 128, 8),
        ("sm_80", 32, 40 << 10, 128, 16),  # 41 KiB a block of 164
        ("sm_90", 32, 40 << 10, 128, 20),
        ("sm_75", 32, 32 << 10, 128, 8),
        ("sm_75", 64, 0, 1024, 32),
        ("sm_80", 16, 0, 32, 32),  # so many blocks
        ("sm_80", 255, 0, 1024, 0),
    ],
)
def test_occupancy(chip: str, registers: int, shared: int, threads: int, warps: int) -> None:
    assert occupancy(CHIPS[chip], registers, shared, threads) == warps


def test_instructions_of_the_innermost_loop() -> None:
    ops = body(LOOPS)
    assert ops == ["ld.global.v4.b32", "ld.shared.b64", "fma.rn.f32", "dp4a.s32.s32", "bra"]
    m = mix(ops)
    assert (m.instructions, m.products, m.accesses) == (5, 5, 2)
    assert (m.of_global, m.of_shared) == (16, 8)
    assert m.multiplying == {"f32": 1, "int": 1}
    assert peak(CHIPS["sm_80"], m) == 0.5 / 2  # two accesses take 2 cycles


WARPS = """
	ld.param.b64 	%rd1, [p];
	bra.uni 	$L__BB0_1;
$L__BB0_4:
	ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r44, %r45, %r46, %r47}, [%rd18];
	mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32
		{%r1, %r2, %r3, %r4},
		{%r5, %r6, %r7, %r8},
		{%r9, %r10},
		{%r1, %r2, %r3, %r4};
	setp.ne.b32 	%p4, %r404, 128;
	@%p4 bra 	$L__BB0_1;
	bra.uni 	$L__BB0_5;
$L__BB0_1:
	cp.async.wait_group 	2;
	bar.sync 	0;
	@%p1 bra 	$L__BB0_4;
	mov.b32 	%r533, 0;
$L__BB0_3:
	mul.lo.s32 	%r27, %r404, %r5;
	cp.async.cg.shared.global [%rd13+4096], [%rd14+524480], 16, %r3;
	cp.async.ca.shared.global [%rd13], [%rd14], 4;
	@%p2 bra 	$L__BB0_3;
	bra.uni 	$L__BB0_4;
$L__BB0_5:
	st.global.v2.b32 	[%rd26], {%r263, %r262};
	ret;
"""


def test_the_loop_around_what_brings_operands() -> None:
    """Wherever its code stands; products of warps, matrices and copies count with their bytes."""
    ops = body(WARPS)
    assert sum(x.startswith("mma.sync") for x in ops) == 1
    assert "ldmatrix.sync.aligned.m8n8.x4.shared.b16" in ops
    assert "cp.async.cg.shared.global.b128" in ops
    assert not {"ld.param.b64", "st.global.v2.b32"} & {*ops}
    m = mix(ops)
    assert (m.instructions, m.accesses, m.products) == (13, 3, 128 + 1)
    assert (m.of_global, m.of_shared) == (16 + 4, 16 + 16 + 4)
    assert m.multiplying == {"matrix": 128, "int": 1}
    # 16 * 8 * 32 products of a warp: 2 cycles of an A100, 4 of Turing; 13 instructions take 3.25.
    assert peak(CHIPS["sm_80"], m) == 2 / 3.25
    assert peak(CHIPS["sm_75"], m) == 1


@pytest.mark.thorough
@pytest.mark.skipif(not assembler(), reason="ptxas is not installed")
@pytest.mark.parametrize("name", ["gemm float32", "gemm int8", "pooling float32"])
def test_recorded_figures_are_today_s(name: str) -> None:
    """But for registers and spills, which another ptxas may count otherwise."""
    recorded = {r.kernel: r for r in read_rows(RECORDED, Kernel) if r.chip == "sm_80"}
    found = rows_of(name, "sm_80")
    assert found
    for row in found:
        now, then = asdict(row), asdict(recorded[row.kernel])
        for key in ("shared", "threads", "instructions", "products", "loads"):
            assert now[key] == then[key], key
        for key in ("global_bytes", "shared_bytes", "per_instruction", "peak"):
            assert now[key] == pytest.approx(then[key], rel=1e-4), key
