"""Products of four warps with factors in shared memory, in each order of their bytes."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ptx_runs import Array, assemble

from compiler.codegen.ptx.assembler import assembler
from compiler.errors import MachineError
from compiler.runtime.machines import ptx

HEAD = ".version 8.4\n.target sm_90a\n.address_size 64\n"
WIDE = {0: 32, 1: 128, 2: 64, 3: 32}
"""Bytes of depth that a block of rows has, by the order."""
KINDS: dict[str, tuple[str, str, Any, str]] = {
    "s8": ("m64n{}k32.s32.s8.s8", "s32", np.int8, ""),
    "u8s8": ("m64n{}k32.s32.u8.s8", "s32", np.int8, ""),
    "f16": ("m64n{}k16.f32.f16.f16", "f32", np.float16, ", 1, 1, 0, 0"),
    "f16f16": ("m64n{}k16.f16.f16.f16", "f16", np.float16, ", 1, 1, 0, 0"),
    "bf16": ("m64n{}k16.f32.bf16.bf16", "f32", ml_dtypes.bfloat16, ", 1, -1, 0, 0"),
    "tf32": ("m64n{}k8.f32.tf32.tf32", "f32", np.float32, ", 1, 1"),
    "e4m3": ("m64n{}k32.f32.e4m3.e4m3", "f32", ml_dtypes.float8_e4m3fn, ", 1, 1"),
}


def placed(matrix: Array, mode: int) -> Array:
    """The bytes of a factor (rows, depth) in shared memory."""
    raw = np.ascontiguousarray(matrix).view(np.uint8)
    rows, depth = raw.shape
    r, k = np.indices((rows, depth))
    if mode == 0:  # 8 rows of 16 bytes are together, then the next 16 bytes of these
        at = (r // 8) * 8 * depth + (k // 16) * 128 + (r % 8) * 16 + k % 16
    else:
        at = r * depth + k
        at ^= (at >> 7 & {1: 7, 2: 3, 3: 1}[mode]) << 4
    out = np.zeros(rows * depth, np.uint8)
    out[at] = raw
    return out


def kernel(kind: str, n: int, mode: int, wait: str, registers_a: bool = False) -> str:
    shape, total, _, signs = KINDS[kind]
    depth, size = WIDE[mode], 64 * WIDE[mode]
    count = n // (4 if total == "f16" else 2)
    lead, stride = (128, 8 * depth) if mode == 0 else (16, 8 * depth)
    fixed = lead >> 4 << 16 | stride >> 4 << 32 | mode << 62
    sums = "{" + ", ".join(f"%c{k}" for k in range(count)) + "}"
    lines = []
    for step in range(depth // 32):
        a, b = f"%da{step}", f"%db{step}"
        first = "{%a0, %a1, %a2, %a3}" if registers_a else a
        for name, start in ((a, 32 * step), (b, size + 32 * step)):
            lines += [f"add.u64 %x, %s, {start}; shr.u64 %x, %x, 4; or.b64 {name}, %x, {fixed};"]
        lines += [f"setp.ne.u32 %p, %keep, {'0' if not step else '77'};"]
        lines += [
            f"wgmma.mma_async.sync.aligned.{shape.format(n)} {sums}, {first}, {b}, %p{signs};"
        ]
    body = "\n  ".join(lines)
    return f"""{HEAD}
.visible .entry k(.param .u64 p, .param .u64 q, .param .u32 keep, .param .u64 r)
.maxntid 128, 1, 1
{{
  .reg .pred %p, %more; .reg .b32 %t<6>, %keep, %c<{count}>, %a<4>;
  .reg .b64 %x, %s, %src, %dst, %da<4>, %db<4>, %ra;
  .shared .align 1024 .b8 s[{size + n * depth}];
  ld.param.u64 %src, [p]; ld.param.u64 %dst, [q]; ld.param.u32 %keep, [keep];
  ld.param.u64 %ra, [r];
  mov.u32 %t0, %tid.x; mov.u64 %s, s;
  mul.lo.u32 %t1, %t0, 16;
FILL:
  cvt.u64.u32 %x, %t1; add.u64 %x, %x, %src; ld.global.v4.b32 {{%a0, %a1, %a2, %a3}}, [%x];
  cvt.u64.u32 %x, %t1; add.u64 %x, %x, %s; st.shared.v4.b32 [%x], {{%a0, %a1, %a2, %a3}};
  add.u32 %t1, %t1, 2048; setp.lt.u32 %more, %t1, {size + n * depth}; @%more bra FILL;
  mad.wide.u32 %x, %t0, 16, %ra; ld.global.v4.b32 {{%a0, %a1, %a2, %a3}}, [%x];
  fence.proxy.async; bar.sync 0;
  mad.wide.u32 %dst, %t0, {4 * count}, %dst;
  {" ".join(f"ld.global.b32 %c{k}, [%dst+{4 * k}];" for k in range(count))}
  wgmma.fence.sync.aligned;
  {body}
  wgmma.commit_group.sync.aligned;
  {wait}
  {" ".join(f"st.global.b32 [%dst+{4 * k}], %c{k};" for k in range(count))}
  ret;
}}
"""


WAIT = "wgmma.wait_group.sync.aligned 0;"


def element(lane: int, j: int, n: int) -> tuple[int, int]:
    """Row and column of sum j of a thread."""
    warp, g, t = lane // 32, lane % 32 // 4, lane % 4
    return 16 * warp + g + 8 * (j // 2 % 2), 8 * (j // 4) + 2 * t + j % 2


def product(kind: str, n: int, mode: int, keep: int, wait: str = WAIT, registers_a: bool = False,
            **options: Any) -> tuple[Array, Array, Array]:  # fmt: skip
    """D as the kernel gives it, as it should be, and C."""
    _, total, dtype, _ = KINDS[kind]
    rng = np.random.default_rng(n + mode)
    depth = WIDE[mode] // np.dtype(dtype).itemsize
    a, b = (rng.integers(-9, 10, (m, depth)).astype(np.float32).astype(dtype) for m in (64, n))
    if kind == "u8s8":
        a = rng.integers(0, 256, a.shape).astype(np.uint8)
    of = {"s32": np.int32, "f32": np.float32, "f16": np.float16}[total]
    c = rng.integers(-99, 100, (64, n)).astype(of)
    held = np.zeros((128, n // 2), of)
    places = [(lane, j) for lane in range(128) for j in range(n // 2)]
    for lane, j in places:
        held[lane, j] = c[element(lane, j, n)]
    memory = ptx.Memory(1 << 20)
    p, q, r = (
        memory.allocate(64 * 128 + n * 128),
        memory.allocate(held.nbytes),
        memory.allocate(2048),
    )
    memory.write(p, np.concatenate([placed(a, mode), placed(b, mode)]))
    memory.write(q, held)
    words = np.ascontiguousarray(a).view(np.uint32)  # of registers: the fragments of m16n8k32
    k, j = np.indices((128, 4))
    memory.write(r, words[16 * (k // 32) + k % 32 // 4 + 8 * (j & 1), k % 4 + 4 * (j >> 1)])
    ptx.launch(ptx.parse(kernel(kind, n, mode, wait, registers_a)), "k", grid=(1, 1, 1),
               block=(128, 1, 1), args=[p, q, keep, r], memory=memory, **options)  # fmt: skip
    found = np.frombuffer(memory.read(q, held.nbytes), of).reshape(128, n // 2)
    got = np.zeros((64, n), of)
    for lane, j in places:
        got[element(lane, j, n)] = found[lane, j]
    exact = a.astype(np.float64) @ b.astype(np.float64).T * (-1 if kind == "bf16" else 1)
    return got, (exact + (c if keep else 0)).astype(of), c


@pytest.mark.thorough
@pytest.mark.parametrize("mode", WIDE)
def test_orders_of_bytes(mode: int) -> None:
    got, want, _ = product("s8", 16, mode, keep=1, races=True)
    assert np.array_equal(got, want)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [None, 2])
def test_kinds(kind: str, seed: int | None) -> None:
    for n, mode, keep in ((8, 3, 0), (64, 1, 1), (24, 2, 1)):
        got, want, _ = product(kind, n, mode, keep, seed=seed)
        assert np.array_equal(got, want)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["s8", "f16"])
def test_a_factor_in_registers(kind: str) -> None:
    got, want, _ = product(kind, 8, 3, keep=1, registers_a=True)
    assert np.array_equal(got, want)


def test_sums_are_late() -> None:
    for wait in ("", "wgmma.wait_group.sync.aligned 1;"):
        got, want, c = product("s8", 8, 3, keep=1, wait=wait)
        assert np.array_equal(got, c)
        assert not np.array_equal(got, want)


def test_other_forms_are_refused() -> None:
    text = kernel("f16", 8, 3, WAIT)
    for old, new, why in (("1, 1, 0, 0", "1, 1, 0, 1", "transposed"), ("n8k16", "n8k32", "shape"),
                          ("n8k16", "n16k16", "number of registers")):  # fmt: skip
        with pytest.raises(MachineError, match=f"unknown instruction 'wgmma.*{why}"):
            ptx.launch(ptx.parse(text.replace(old, new)), "k", grid=(1, 1, 1), block=(128, 1, 1),
                       args=[0, 0, 0, 0], memory=ptx.Memory(4096))  # fmt: skip


@pytest.mark.thorough
@pytest.mark.skipif(not assembler(), reason="needs ptxas (package nvidia-cuda-nvcc)")
def test_ptxas_accepts_these(tmp_path: Path) -> None:
    for kind in KINDS:
        assert assemble(kernel(kind, 16, 1, WAIT), "sm_90a", tmp_path) == ""
    assert assemble(kernel("s8", 8, 3, WAIT, registers_a=True), "sm_90a", tmp_path) == ""
