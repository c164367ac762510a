"""The simulator of accelerators: numbers, cycles, tokens, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
import datatypes
from compiler.codegen.accel.instructions import (
    ACC,
    FINISH,
    INPUT,
    SET,
    TAKE,
    WEIGHT,
    Alu,
    Gemm,
    Instruction,
    Load,
    Save,
    Sum,
    Tokens,
    decoded,
    encoded,
)
from compiler.errors import MachineError, UnsupportedError
from compiler.runtime.accel.simulator import Report, simulator
from compiler.target.accelerator import Design
from compiler.types.dtypes import Array

ALONG = (0, 0, 0, 0, 0, 1)
LAST = Tokens(pop_prev=True)
VECTORS = 40
WEIGHTS_AT, PARAMETERS_AT, RESULTS_AT, SIZE = 4096, 8192, 16384, 1 << 15


def loops(n: int) -> tuple[int, ...]:
    return (1, 1, 1, 1, 1, n)


def products(signed: bool = False, times: int = 1) -> list[Instruction]:
    """A program: VECTORS vectors by one block of weights, `times` over, with a bias."""
    n = VECTORS
    every = (1, 1, 1, 1, times, n)
    return [
        Load(INPUT, 0, 0, 1, n, n),
        Load(WEIGHT, 0, WEIGHTS_AT, 1, 1, 1, tokens=Tokens(push_next=True)),
        Load(ACC, 100, PARAMETERS_AT, 1, 2, 2),
        Alu(SET, 0, 0, 100, loops(n), ALONG),
        Gemm(0, 0, 0, every, ALONG, ALONG, signed=signed, tokens=LAST),
    ]


def finished(instruction: Alu) -> list[Instruction]:
    return [
        *products(),
        instruction,
        Save(0, RESULTS_AT, 1, VECTORS, VECTORS, tokens=LAST),
    ]


def memory(block: int, x: Array, w: Array, *parameters: Array) -> Array:
    out = np.zeros(SIZE, np.uint8)
    at = PARAMETERS_AT
    for place, array in ((0, x), (WEIGHTS_AT, w)):
        out[place : place + array.size] = array.reshape(-1).view(np.uint8)
    for p in parameters:
        out[at : at + p.nbytes] = p.view(np.uint8)
        at += p.nbytes
    return out


def ran(design: str, program: list[Instruction], held: Array) -> tuple[Report, Array]:
    d = Design.parse(design)
    report = simulator(d).run(encoded(program), held)
    made = held[RESULTS_AT : RESULTS_AT + VECTORS * d.block]
    return report, made.reshape(VECTORS, d.block)


def integers(block: int = 16) -> tuple[Array, Array, Array, Array]:
    rng = np.random.default_rng(block)
    x = rng.integers(0, 256, (VECTORS, block)).astype(np.uint8)
    w = rng.integers(-128, 128, (block, block)).astype(np.int8)
    bias = rng.integers(-9000, 9000, block).astype(np.int32)
    return x, w, bias, rng.uniform(0.0005, 0.01, block).astype(np.float32)


FINISHES = Alu(
    FINISH, 0, 0, 101, loops(VECTORS), ALONG, ALONG, zero_point=-7, low=-128, high=100,
    tokens=Tokens(push_next=True),
)  # fmt: skip


@pytest.mark.parametrize("block", [8, 16])
def test_results_are_requantized_sums(block: int) -> None:
    x, w, bias, scale = integers(block)
    _, made = ran(f"accel -block={block}", finished(FINISHES), memory(block, x, w, bias, scale))
    sums = x.astype(np.int32) @ w.astype(np.int32) + bias
    wanted = np.rint(sums.astype(np.float32) * scale).astype(np.int64) - 7
    np.testing.assert_array_equal(made.view(np.int8), np.clip(wanted, -128, 100))
    assert len(np.unique(made)) > 50


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(
    ("accumulator", "low", "high"),
    [("int32", -(2**31), 2**31 - 1), ("int20_wrap", 0, 0), ("int18_saturate", -(2**17), 2**17 - 1)],
)
def test_bytes_of_accumulators(signed: bool, accumulator: str, low: int, high: int) -> None:
    x, w, bias, scale = integers()
    times, parts = 3, []
    for shift in (0, 8, 16, 24):
        take = Alu(
            TAKE, 0, 0, 0, loops(VECTORS), ALONG, ALONG, low=shift, tokens=Tokens(push_next=True)
        )
        program = [*products(signed, times), *finished(take)[5:]]
        held = memory(16, x, w, bias, scale)
        parts.append(ran(f"accel -accumulator={accumulator}", program, held)[1].copy())
    made = np.ascontiguousarray(np.stack(parts, axis=-1)).view(np.int32)[..., 0]
    data = (x.view(np.int8) if signed else x).astype(np.int64)
    sums = np.broadcast_to(bias.astype(np.int64), made.shape)
    for _ in range(times):
        sums = sums + data @ w.astype(np.int64)
        if accumulator.endswith("saturate"):
            sums = np.clip(sums, low, high)
    if accumulator == "int20_wrap":
        sums = (sums + 2**19) % 2**20 - 2**19
    np.testing.assert_array_equal(made, sums)
    if accumulator == "int18_saturate" and not signed:
        assert high in made


@pytest.mark.parametrize(
    ("code", "accumulator"),
    [
        ("posit8_es0", "exact"),
        ("float8_e4m3fn", "exact"),
        pytest.param("posit8_es1", "float32", marks=pytest.mark.thorough),
        pytest.param("float8_e5m2", "float32", marks=pytest.mark.thorough),
    ],
)
def test_cores_of_formats(code: str, accumulator: str) -> None:
    rng = np.random.default_rng(1)
    x = datatypes.encode(code, rng.normal(size=(VECTORS, 16)))
    w = datatypes.encode(code, rng.normal(size=(16, 16)))
    held = np.float64 if accumulator == "exact" else np.float32
    bias = datatypes.decode(code, datatypes.encode(code, rng.normal(size=16))).astype(held)
    parameters = memory(16, x, w, np.zeros(16, held), bias)
    _, made = ran(
        f"accel -format={code} -accumulator={accumulator}", finished(FINISHES), parameters
    )
    a, b = (datatypes.decode(code, v).astype(held) for v in (x, w))
    sums = np.zeros((VECTORS, 16), held)
    for k in range(16):
        sums = sums + a[:, k : k + 1] * b[k]
    np.testing.assert_array_equal(made, datatypes.encode(code, sums + bias))


def test_cycles_by_hand() -> None:
    x, w, bias, scale = integers()
    held = memory(16, x, w, bias, scale)
    report, _ = ran("accel -latency=32 -fill=8", finished(FINISHES), held)
    n = VECTORS
    # 16 bytes a cycle: 40 cycles of data, 16 of weights, 8 of parameters.
    data = (0, n + 32)
    weights = (data[1], data[1] + 16 + 32)
    parameters = (n, n + 8 + 32)  # the bus is free when the data are through
    sets = (parameters[1], parameters[1] + n + 8)
    gemm = (max(sets[1], weights[1]), max(sets[1], weights[1]) + n + 8)
    finish = (gemm[1], gemm[1] + n + 8)
    save = (finish[1], finish[1] + n + 32)
    wanted = [data, weights, parameters, sets, gemm, finish, save]
    np.testing.assert_array_equal(report.trace[:, :2], wanted)
    assert report.cycles == save[1]
    assert report.busy == (n + 32 + 48, 40 + 3 * (n + 8), n + 32)
    assert report.waiting[2] == finish[1]
    assert report.bus == (0, n, 0)
    assert (report.gemm, report.alu) == (n, 2 * n)
    assert (report.loaded, report.stored) == (16 * n + 256 + 128, 16 * n)
    assert report.utilization == n / save[1]


def test_cycles_need_no_numbers() -> None:
    x, w, bias, scale = integers()
    program = finished(FINISHES)
    report, made = ran("accel", program, memory(16, x, w, bias, scale))
    counted = simulator(Design()).run(encoded(program), None, functional=False)
    np.testing.assert_array_equal(report.trace, counted.trace)
    assert made.any()


def test_borders_are_filled() -> None:
    d, held = Design(), np.zeros(1024, np.uint8)
    held[:96] = np.arange(96)
    program = [
        Load(INPUT, 0, 0, 2, 3, 3, top=1, bottom=0, left=2, right=1, filling=9),
        Load(WEIGHT, 0, 256, 1, 1, 1, tokens=Tokens(push_next=True)),
        Gemm(0, 0, 0, loops(18), ALONG, ALONG, tokens=LAST),
        Alu(TAKE, 0, 0, 0, loops(18), ALONG, ALONG, tokens=Tokens(push_next=True)),
        Save(0, 512, 1, 18, 18, tokens=LAST),
    ]
    held[256:512] = np.eye(16, dtype=np.uint8).reshape(-1)
    simulator(d).run(encoded(program), held)
    wanted = np.full((3, 6, 16), 9)
    wanted[1:, 2:5] = np.arange(96).reshape(2, 3, 16)
    np.testing.assert_array_equal(held[512 : 512 + 288], wanted.reshape(-1))


# ---- what is refused -----------------------------------------------------------------------------
OUTSIDE = {
    "the input buffer of 2048 entries": Load(INPUT, 2040, 0, 1, 9, 9),
    "the weight buffer of 1024 entries": Gemm(0, 0, 1023, loops(2), (0,) * 6, (0,) * 6, ALONG),
    "the acc buffer of 2048 entries": Gemm(2000, 0, 0, loops(100), ALONG),
    "the output buffer of 2048 entries": Alu(FINISH, 2048, 0, 0),
    "memory": Load(INPUT, 0, SIZE - 16, 1, 2, 2),
}


@pytest.mark.parametrize(("said", "instruction"), OUTSIDE.items())
def test_outside_a_buffer(said: str, instruction: Instruction) -> None:
    program = [Alu(SET, 0, 0, 0), instruction]
    with pytest.raises(MachineError, match=rf"instruction 1 \(.*\) goes beyond {said}"):
        simulator(Design()).run(encoded(program), np.zeros(SIZE, np.uint8))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"apart": 2048}, "the input buffer"),
        ({"apart": -1}, "the input buffer"),
        ({"par": 2047}, "the acc buffer"),
        ({"dst": 2048}, "the output buffer"),
    ],
)
def test_sums_outside_a_buffer(change: dict[str, int], said: str) -> None:
    stream = encoded([Sum(**{"dst": 0, "src": 0, "par": 2046, "apart": 2047, **change})])
    with pytest.raises(MachineError, match=f"goes beyond {said} of 2048 entries"):
        simulator(Design()).run(stream, np.zeros(SIZE, np.uint8))


def test_cores_whose_accumulators_round_add_no_tensors() -> None:
    d = Design.parse("accel -format=posit8_es1 -accumulator=float32")
    with pytest.raises(MachineError, match=r"\(sum .*\) is no instruction of this accelerator"):
        simulator(d).run(encoded([Sum(0, 0, 0, 1)]), np.zeros(64, np.uint8))


@pytest.mark.parametrize("change", [{"dst": -1}, {"src_strides": (0, 0, 0, 0, 0, -1)}])
def test_negative_indices(change: dict[str, object]) -> None:
    gemm = Gemm(**{"dst": 0, "src": 5, "wgt": 0, "extents": loops(2), **change})  # type: ignore[arg-type]
    with pytest.raises(MachineError, match="instruction 0"):
        simulator(Design()).run(encoded([gemm]), np.zeros(64, np.uint8))


@pytest.mark.parametrize(
    ("left_out", "unit"), [(1, "compute"), (5, "store")], ids=["compute", "store"]
)
def test_deadlocks_are_named(left_out: int, unit: str) -> None:
    program = finished(FINISHES)
    program[left_out] = replace(program[left_out], tokens=Tokens())
    with pytest.raises(MachineError, match=rf"the {unit} unit waits for a token that no unit"):
        simulator(Design()).run(encoded(program), np.zeros(SIZE, np.uint8))


def test_tokens_of_no_neighbour() -> None:
    program = encoded([Load(INPUT, 0, 0, 1, 1, 1, tokens=LAST)])
    with pytest.raises(MachineError, match="is no instruction of this accelerator"):
        simulator(Design()).run(program, np.zeros(64, np.uint8))


def test_unknown_opcodes() -> None:
    for k, value in ((0, 7), (2, 9)):
        stream = encoded([Load(INPUT, 0, 0, 1, 1, 1)])
        stream[0, k] = value
        with pytest.raises(MachineError, match="is no instruction of this accelerator"):
            simulator(Design()).run(stream, np.zeros(64, np.uint8))


BAD = {
    "accel -blocks=16": "unknown option 'blocks'",
    "accel -bandwidth=0": "bandwidth must be from 1",
    "accel -block=x": "takes a whole number",
    "accel -block": "has no value",
    "accel -input=8": "input buffer of 8 bytes cannot hold one tile.*needs 16 bytes",
    "accel -weight=255": "weight buffer of 255 bytes cannot hold one tile.*give it -weight=256 or",
    "accel -acc=128": "acc buffer of 128 bytes.*needs 192 bytes",
    "accel -accumulator=int7_wrap": "int<N>_wrap",
    "accel -accumulator=exact": "int8 core has accumulator",
    "accel -format=posit8_es0 -accumulator=int32": "float32 or exact",
    "accel -format=posit8_es0 -weight_bits=4": "weight_bits is for int8",
}


@pytest.mark.parametrize(("text", "said"), BAD.items())
def test_bad_designs(text: str, said: str) -> None:
    with pytest.raises(UnsupportedError, match=said):
        compiler.Target.parse(text)


@pytest.mark.parametrize("code", ["posit16_es1", "float32"])
def test_formats_of_more_bits(code: str) -> None:
    with pytest.raises(compiler.DtypelabError, match=r"format of up to 8 bits|unknown format"):
        simulator(Design.parse(f"accel -format={code}"))


def test_formats_that_round_by_chance() -> None:
    """Every vector would be given the same random numbers."""
    with pytest.raises(UnsupportedError, match="posit8_es0_stochastic rounds stochastically"):
        simulator(Design.parse("accel -format=posit8_es0_stochastic"))


def test_exact_sums_that_need_more_bits() -> None:
    with pytest.raises(compiler.DtypelabError, match=r"exact sums of .*posit8_es2.* need"):
        simulator(Design.parse("accel -format=posit8_es2"))
    with pytest.raises(compiler.DtypelabError, match="go beyond float32"):
        simulator(Design.parse("accel -format=takum8 -accumulator=float32"))


# ---- data ----------------------------------------------------------------------------------------
TOKENS = st.builds(Tokens, st.booleans(), st.booleans(), st.booleans(), st.booleans())
SMALL = st.integers(0, 5000)
SIX = st.tuples(*[SMALL] * 6)
BYTE, LOW = st.integers(-128, 255), st.sampled_from([-128, 0])
INSTRUCTIONS = st.one_of(
    st.builds(Load, st.integers(0, 2), *[SMALL] * 9, BYTE, TOKENS),
    st.builds(Gemm, SMALL, SMALL, SMALL, SIX, SIX, SIX, SIX, st.booleans(), TOKENS),
    st.builds(Alu, st.integers(0, 4), *[SMALL] * 3, SIX, SIX, SIX, SIX, BYTE, BYTE, BYTE, TOKENS),
    st.builds(
        Sum, *[SMALL] * 4, SIX, SIX, SIX, SIX, BYTE, BYTE, LOW, LOW, BYTE, BYTE, BYTE, TOKENS
    ),
    st.builds(Save, *[SMALL] * 5, TOKENS),
)


@given(st.lists(INSTRUCTIONS, max_size=5))
@settings(max_examples=20, deadline=None)
def test_encoding(program: list[Instruction]) -> None:
    assert decoded(encoded(program)) == program
    assert all(str(i) for i in program)


@given(
    st.builds(
        Design,
        block=st.sampled_from([4, 16, 32]),
        input=st.sampled_from([1 << 12, 32 << 10, 5000]),
        bandwidth=st.integers(1, 64),
        accumulator=st.sampled_from(["int32", "int16_wrap", "int20_saturate"]),
    )
)
def test_texts_of_designs(design: Design) -> None:
    assert Design.parse(str(design)) == design
    assert compiler.Target.parse(str(design)).design == design
