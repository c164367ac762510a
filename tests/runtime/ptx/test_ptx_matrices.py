"""Products of small matrices by warps: registers filled and read element by element, as the PTX ISA
says, against numpy's matrix products."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ptx_runs import HEAD, Array, assemble

from compiler.codegen.ptx.assembler import assembler
from compiler.errors import MachineError
from compiler.runtime.machines import ptx

RNG = np.random.default_rng(3)
INTEGERS = [
    (shape, a, b) for shape in ("m8n8k16", "m16n8k16", "m16n8k32") for a in ("s8", "u8")
    for b in ("s8", "u8")
]  # fmt: skip
FLOATS = [
    ("m16n8k8", "f16", "f32"), ("m16n8k16", "f16", "f32"), ("m16n8k16", "f16", "f16"),
    ("m16n8k8", "bf16", "f32"), ("m16n8k16", "bf16", "f32"), ("m16n8k4", "tf32", "f32"),
    ("m16n8k8", "tf32", "f32"), ("m16n8k32", "e4m3", "f32"), ("m16n8k32", "e5m2", "f32"),
]  # fmt: skip
DTYPES: dict[str, Any] = {
    "s8": np.int8, "u8": np.uint8, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32, "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip


def sizes(shape: str) -> tuple[int, int]:
    rows, depth = shape[1:].split("n8k")
    return int(rows), int(depth)


def left_place(rows: int, size: int, lane: int, j: int, i: int) -> tuple[int, int]:
    """Row and column of element i of register j of A."""
    g, t, r = lane >> 2, lane & 3, 4 // size
    if rows == 8:
        return g, 4 * r * j + t * r + i
    return g + 8 * (j & 1), 4 * r * (j >> 1) + t * r + i


def packed(matrix: Array, places: Any, registers: int) -> Array:
    """Registers (registers, 32 lanes) of a matrix."""
    size = matrix.dtype.itemsize
    out = np.zeros((registers, 32, 4 // size), matrix.dtype)
    for j in range(registers):
        for lane in range(32):
            for i in range(4 // size):
                out[j, lane, i] = matrix[places(lane, j, i)]
    return np.ascontiguousarray(out).view(np.uint32).reshape(registers, 32)


def kernel(name: str, shape: str, a: str, b: str, c: str, extra: str = "") -> str:
    rows, depth = sizes(shape)
    size = 4 if a == "tf32" else 2 if a in ("f16", "bf16") else 1
    n_a, n_b, n_c = rows * depth * size // 128, depth * size // 16, rows // 4
    n_c = n_c // 2 if c == "f16" else n_c
    lines = [f".visible .entry {name}(.param .u64 p, .param .u64 q) {{",
             "  .reg .b32 %x<4>, %a<4>, %b<4>, %c<4>, %d<4>; .reg .b64 %p<4>;",
             "  mov.u32 %x0, %tid.x; ld.param.u64 %p0, [p]; ld.param.u64 %p1, [q];",
             "  mov.u32 %x1, %tid.y; mad.lo.u32 %x2, %x1, 512, %x0;",
             "  mad.wide.u32 %p0, %x2, 4, %p0; mad.wide.u32 %p1, %x2, 4, %p1;"]  # fmt: skip
    at = 0
    for letter, n in (("a", n_a), ("b", n_b), ("c", n_c)):
        for j in range(n):
            lines.append(f"  ld.global.b32 %{letter}{j}, [%p0+{128 * at}];")
            at += 1
    groups = ["{" + ", ".join(f"%{x}{j}" for j in range(n)) + "}"
              for x, n in (("d", n_c), ("a", n_a), ("b", n_b), ("c", n_c))]  # fmt: skip
    lines.append(f"  mma.sync.aligned.{shape}.row.col{extra}.{c}.{a}.{b}.{c} {', '.join(groups)};")
    lines += [f"  st.global.b32 [%p1+{128 * j}], %d{j};" for j in range(n_c)]
    return "\n".join([*lines, "  ret;", "}"]) + "\n"


def product(text: str, matrices: list[tuple[Array, Array, Array]], shape: str) -> list[Array]:
    """D of each warp of a block, from A, B and C."""
    rows, _ = sizes(shape)
    memory = ptx.Memory(1 << 20)
    p, q = memory.allocate(2048 * len(matrices)), memory.allocate(2048 * len(matrices))
    for k, (a, b, c) in enumerate(matrices):
        size = a.dtype.itemsize
        r = 4 // size

        def in_b(lane: int, j: int, i: int, r: int = r) -> tuple[int, int]:
            return 4 * r * j + (lane & 3) * r + i, lane >> 2

        def in_c(lane: int, j: int, i: int, per: int = 4 // c.dtype.itemsize) -> tuple[int, int]:
            row = (lane >> 2) + 8 * (j if per == 2 else j >> 1)
            return row, 2 * (lane & 3) + (i if per == 2 else j & 1)

        left = packed(
            a, lambda lane, j, i, n=size: left_place(rows, n, lane, j, i), a.size * size // 128
        )
        right = packed(b, in_b, b.size * size // 128)
        old = packed(c, in_c, c.nbytes // 128)
        memory.write(p + 2048 * k, np.concatenate([left, right, old]))
    ptx.launch(ptx.parse(text), "k", grid=(1, 1, 1), block=(32, len(matrices), 1), args=[p, q],
               memory=memory)  # fmt: skip
    out = []
    for k, (_, _, c) in enumerate(matrices):
        raw = np.frombuffer(memory.read(q + 2048 * k, 2048), c.dtype)
        d = np.zeros((rows, 8), c.dtype)
        per = 4 // c.dtype.itemsize
        for j in range(rows // 4 // per):
            for lane in range(32):
                for i in range(per):
                    row = (lane >> 2) + 8 * (j if per == 2 else j >> 1)
                    column = 2 * (lane & 3) + (i if per == 2 else j & 1)
                    d[row, column] = raw[(32 * j + lane) * per + i]
        out.append(d)
    return out


@pytest.mark.parametrize(("shape", "a", "b"), INTEGERS)
@pytest.mark.parametrize("extra", ["", ".satfinite"])
def test_integer_products(shape: str, a: str, b: str, extra: str) -> None:
    rows, depth = sizes(shape)
    text = HEAD.format(target="sm_80") + kernel("k", shape, a, b, "s32", extra)
    cases = []
    for edge in (False, True):
        x = RNG.integers(-128, 128, (rows, depth)).astype(DTYPES[a])
        y = RNG.integers(-128, 128, (depth, 8)).astype(DTYPES[b])
        c = RNG.integers(-(2**31), 2**31, (rows, 8)).astype(np.int32)
        if edge:
            x[:], y[:], c[:4], c[4:] = x.max(), y.max(), 2**31 - 5, -(2**31)
        cases.append((x, y, c))
    for (x, y, c), got in zip(cases, product(text, cases, shape), strict=True):
        want = x.astype(np.int64) @ y.astype(np.int64) + c
        if extra:
            want = np.clip(want, -(2**31), 2**31 - 1)
        assert np.array_equal(got, want.astype(np.int32))


def floats(kind: str, shape: tuple[int, ...], exact: bool) -> Array:
    dtype = DTYPES[kind]
    if exact:  # few bits, so that float32 sums are exact in any order
        return RNG.integers(-7, 8, shape).astype(np.float32).astype(dtype)
    x = RNG.normal(size=shape).astype(np.float32)
    if kind == "tf32":
        x.view(np.uint32)[:] &= 0xFFFFE000
    return x.astype(dtype)


@pytest.mark.parametrize(("shape", "kind", "total"), FLOATS)
def test_float_products(shape: str, kind: str, total: str) -> None:
    rows, depth = sizes(shape)
    text = HEAD.format(target="sm_90") + kernel("k", shape, kind, kind, total)
    dtype = np.float32 if total == "f32" else np.float16
    cases = []
    for exact in (True, False):
        c = RNG.integers(-50, 50, (rows, 8)).astype(dtype)
        cases.append((floats(kind, (rows, depth), exact), floats(kind, (depth, 8), exact), c))
    first, second = product(text, cases, shape)
    x, y, c = (v.astype(np.float64) for v in cases[0])
    assert np.array_equal(first, (x @ y + c).astype(dtype))
    x, y, c = (v.astype(np.float64) for v in cases[1])
    want = x @ y + c
    # Rounded once from sums in float64, whose order may differ: half a unit and very little.
    unit = np.spacing(np.abs(want).astype(dtype)).astype(np.float64)
    assert (np.abs(second.astype(np.float64) - want) <= 0.500001 * unit).all()


def test_low_bits_of_tf32_do_not_count() -> None:
    text = HEAD.format(target="sm_80") + kernel("k", "m16n8k8", "tf32", "tf32", "f32")
    x, y = floats("tf32", (16, 8), False), floats("tf32", (8, 8), False)
    c = np.zeros((16, 8), np.float32)
    rough = (x.view(np.uint32) | 0x1FFF).view(np.float32)
    one, other = product(text, [(x, y, c), (rough, y, c)], "m16n8k8")
    assert np.array_equal(one, other)


LOADS = """.visible .entry k(.param .u64 p, .param .u64 q) {{
  .reg .b32 %x<4>, %a<4>; .reg .b64 %p<4>; .shared .align 16 .b8 s[1024];
  mov.u32 %x0, %tid.x; ld.param.u64 %p0, [p]; ld.param.u64 %p1, [q];
  mad.wide.u32 %p0, %x0, 16, %p0; mad.wide.u32 %p1, %x0, 16, %p1;
  ld.global.v4.b32 {{%a0, %a1, %a2, %a3}}, [%p0];
  mov.u32 %x2, s; mad.lo.u32 %x1, %x0, 16, %x2;
  st.shared.v4.b32 [%x1], {{%a0, %a1, %a2, %a3}}; bar.sync 0;
  xor.b32 %x3, %x0, 5; mad.lo.u32 %x1, %x3, 16, %x2;
  {code}
  st.global.v4.b32 [%p1], {{%a0, %a1, %a2, %a3}}; ret;
}}
"""


def loads(count: int, turned: str) -> str:
    registers = ", ".join(f"%a{k}" for k in range(count))
    code = f"ldmatrix.sync.aligned.m8n8.x{count}{turned}.shared.b16 {{{registers}}}, [%x1];"
    return HEAD.format(target="sm_80") + LOADS.format(code=code)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("turned", ["", ".trans"])
def test_ldmatrix(count: int, turned: str) -> None:
    memory = ptx.Memory(1 << 20)
    rows = RNG.integers(0, 2**16, (32, 8)).astype(np.uint16)
    p, q = memory.allocate(512), memory.allocate(512)
    memory.write(p, rows)
    ptx.launch(ptx.parse(loads(count, turned)), "k", grid=(1, 1, 1), block=(32, 1, 1),
               args=[p, q], memory=memory, races=True)  # fmt: skip
    got = np.frombuffer(memory.read(q, 512), np.uint16).reshape(32, 4, 2)
    for k in range(count):
        matrix = rows[[(8 * k + r) ^ 5 for r in range(8)]]
        matrix = matrix.T if turned else matrix
        for lane in range(32):
            row, column = lane // 4, 2 * (lane % 4)
            assert got[lane, k].tolist() == matrix[row, column : column + 2].tolist()
    assert np.array_equal(got[:, count:].reshape(32, -1), rows[:, 2 * count :])


def test_stmatrix_is_the_way_back() -> None:
    for turned in ("", ".trans"):
        registers = "{%a0, %a1, %a2, %a3}"
        code = (f"ldmatrix.sync.aligned.m8n8.x4{turned}.shared.b16 {registers}, [%x1];"
                f" stmatrix.sync.aligned.m8n8.x4{turned}.shared.b16 [%x1], {registers};"
                f" ld.shared.v4.b32 {registers}, [%x1];")  # fmt: skip
        text = HEAD.format(target="sm_90") + LOADS.format(code=code)
        memory = ptx.Memory(1 << 20)
        rows = RNG.integers(0, 2**16, (32, 8)).astype(np.uint16)
        p, q = memory.allocate(512), memory.allocate(512)
        memory.write(p, rows)
        ptx.launch(ptx.parse(text), "k", grid=(1, 1, 1), block=(32, 1, 1), args=[p, q],
                   memory=memory)  # fmt: skip
        assert memory.read(q, 512) == rows[np.arange(32) ^ 5].tobytes()


def test_what_products_need() -> None:
    memory = ptx.Memory(1 << 20)
    p = memory.allocate(4096)
    text = HEAD.format(target="sm_80") + kernel("k", "m16n8k32", "s8", "s8", "s32")

    def run(text: str, threads: int) -> None:
        ptx.launch(ptx.parse(text), "k", grid=(1, 1, 1), block=(threads, 1, 1), args=[p, p],
                   memory=memory)  # fmt: skip

    with pytest.raises(MachineError, match=r"mma.sync.* in line \d+ .*all 32 lanes of a warp must"):
        run(text, 24)
    for wrong, why in ((".m16n8k32", "m16n8k24"), ("s32.s8.s8.s32", "f32.s8.s8.f32")):
        with pytest.raises(MachineError, match=r"unknown instruction 'mma.sync.*\(the "):
            run(text.replace(wrong, why if "." in why else f".{why}"), 32)


@pytest.mark.thorough
@pytest.mark.skipif(not assembler(), reason="needs ptxas (package nvidia-cuda-nvcc)")
def test_ptxas_accepts_products(tmp_path: Path) -> None:
    text = HEAD.format(target="sm_90")
    for k, (shape, a, b) in enumerate(INTEGERS):
        text += kernel(f"k{k}", shape, a, b, "s32", ".satfinite" if k % 2 else "")
    for k, (shape, kind, total) in enumerate(FLOATS):
        if kind not in ("e4m3", "e5m2"):  # these need a newer version of PTX
            text += kernel(f"f{k}", shape, kind, kind, total)
    assert assemble(text, "sm_90", tmp_path) == ""
    for count in (1, 2, 4):
        assert assemble(loads(count, ".trans"), "sm_80", tmp_path) == ""
