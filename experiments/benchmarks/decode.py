"""Products of one row with weights of few bits, as a decoder forms them for every token, against
the memory that they read and onnxruntime's MatMulNBits; and of 64 and 128 rows of int8, against our
own int8. Ratios of medians, PASS or FAIL.

A share is of the bandwidth that a loop reaches which only reads as many bytes as the weights and
scales take: of the memory's, or of a cache's where they fit there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from numpy.typing import NDArray

from experiments.benchmarks import peer
from experiments.benchmarks.bandwidth import reader
from experiments.benchmarks.networks import Row
from experiments.benchmarks.turns import Contender, Effort, always, medians
from experiments.measure.disturbance import pinned

if TYPE_CHECKING:
    from compiler.ir.expr import IRModule

Array = NDArray[Any]

SIZES = ((512, 512, 1), (2048, 2048, 1), (2048, 5632, 1), (4096, 4096, 1), (4096, 4096, 12))
"""(inputs, units, layers of that size that take turns); those of 12 layers come from memory, as a
decoder's do, since no cache holds 100 MB."""
QUICK = ((512, 512, 1), (4096, 4096, 12))
SHARE, PLENTY, RATIO = 0.8, 0.9, 1.5
"""Least share of the bandwidth; and either that share or that ratio to MatMulNBits."""
PREFILL = 0.7
"""Least rate of products by groups, of that of int8 without groups."""
ROWS = (64, 128)
PREFILL_SIZE = (2048, 2048)
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip
"""QLoRA's codebook (T. Dettmers et al., 2023, appendix E)."""


@dataclass(frozen=True)
class Weights:
    """Integers of `bits` bits with a scale for every `group` inputs; `table`: what codes stand
    for; `of_int8`: data is rounded to int8 first, with a scale found for the row."""

    bits: int
    group: int
    table: tuple[float, ...] = ()
    of_int8: bool = False

    def __str__(self) -> str:
        data = " x int8" if self.of_int8 else ""
        return f"{'nf' if self.table else 'int'}{self.bits} by {self.group}{data}"

    @property
    def level(self) -> int:
        """What MatMulNBits calls that way to treat data: its accuracy_level."""
        return 4 if self.of_int8 else 0

    def bytes(self, inputs: int, units: int) -> int:
        """Of integers and scales."""
        return inputs * units * self.bits // 8 + inputs * units // self.group * 4


KINDS = (
    Weights(8, 32), Weights(8, 128), Weights(4, 32), Weights(4, 128), Weights(4, 64, NF4),
    *(Weights(bits, group, of_int8=True) for bits in (8, 4) for group in (32, 128)),
)  # fmt: skip


def run(threads: Sequence[int], effort: Effort, quick: bool) -> bool:
    """Measure, print rows, and tell whether all pass.

    Raises:
        DtypelabError: onnxruntime is not installed.
    """
    peer.onnxruntime()
    passed = True
    for count in sorted(threads):
        with pinned(count):
            for inputs, units, layers in QUICK if quick else SIZES:
                passed &= _decode(inputs, units, layers, count, effort)
            for rows in ROWS:
                passed &= _prefill(rows, count, effort)
    return passed


def _decode(inputs: int, units: int, layers: int, threads: int, effort: Effort) -> bool:
    import compiler

    target = compiler.Target.parse("llvm")
    x = np.random.default_rng(0).standard_normal((1, inputs)).astype(np.float32)
    contenders: dict[str, Contender] = {}
    for kind in KINDS:
        built = [
            compiler.build(weight_only(inputs, units, kind, seed), threads=threads)
            for seed in range(layers)
        ]
        contenders[str(kind)] = _in_turn([partial(exe, x) for exe in built])
        size = layers * kind.bytes(inputs, units)
        contenders[f"reading {size}"] = always(reader(size, threads, target))
    for block in (32, 128):
        for level in (0, 4):
            made = [session(inputs, units, block, level, threads, x, n) for n in range(layers)]
            contenders[f"MatMulNBits by {block}, level {level}"] = _in_turn(made)
    times = medians(contenders, effort)
    held = "memory" if layers > 1 else "caches"
    title = f"{inputs} x {units} from {held}, {threads} threads"
    click.echo(f"{title}, {layers} layers")
    for name in times:
        if name.startswith("MatMul"):
            click.echo(f"        {name:<40} {times[name]:8.3f} ms")
    passed = True
    for kind in KINDS:
        size, taken = layers * kind.bytes(inputs, units), times[str(kind)]
        share = times[f"reading {size}"] / taken
        block = 128 if kind.group == 128 else 32
        rows = [Row(f"{title}: {kind}, share of the bandwidth", share, SHARE)]
        if kind.bits == 4:
            ratio = times[f"MatMulNBits by {block}, level {kind.level}"] / taken
            enough = RATIO if share < PLENTY else None
            rows.append(Row(f"{title}: {kind}, MatMulNBits level {kind.level}", ratio, enough))
        for row in rows:
            click.echo(f"{row}  {taken:.3f} ms, {size / taken / 1e6:.1f} GB/s")
            passed &= row.passed
    return passed


def _in_turn(calls: Sequence[Callable[[], object]]) -> Contender:
    """One call of each."""
    return always(lambda: [call() for call in calls])


def _prefill(rows: int, threads: int, effort: Effort) -> bool:
    import compiler

    inputs, units = PREFILL_SIZE
    rng = np.random.default_rng(0)
    data = rng.integers(-127, 128, (rows, inputs)).astype(np.int8)
    weights = rng.integers(-8, 8, (units, inputs)).astype(np.int8)
    calls: dict[str, Callable[[], object]] = {}
    x = compiler.var("x", (rows, inputs), "int8")
    sums = compiler.call("nn.dense", x, compiler.const(weights), out_dtype="int32")
    products = {"int8": compiler.call("cast", sums, dtype="float32")}
    for group in (32, 128):
        scales = rng.random((units, inputs // group)).astype(np.float32)
        products[f"by {group}"] = compiler.call(
            "qnn.grouped_dense", x, compiler.const(weights), compiler.const(scales), group=group
        )
    for name, y in products.items():
        module = compiler.IRModule({"main": compiler.function([x], y)})
        exe = compiler.build(module, threads=threads)
        calls[name] = partial(exe, data)
    times = medians({n: always(c) for n, c in calls.items()}, effort)
    passed = True
    for name, taken in times.items():
        if name == "int8":
            continue
        title = f"{rows} rows, {inputs} x {units}, {threads} threads: integers {name}, of int8"
        row = Row(title, times["int8"] / taken, PREFILL)
        click.echo(f"{row}  {taken:.3f} ms")
        passed &= row.passed
    return passed


def weight_only(inputs: int, units: int, kind: Weights, seed: int = 0) -> IRModule:
    """A dense layer of one row over random weights, as quantize leaves it, or, with a codebook, as
    it is read; data is float32 in each."""
    import compiler
    from compiler.op.qnn.packed_dense import packed_words

    rng = np.random.default_rng(seed)
    x = compiler.var("x", (1, inputs))
    groups, half = inputs // kind.group, 1 << (kind.bits - 1)
    codes = rng.integers(-half, half, (units * groups, kind.group)).astype(np.int8)
    scales = rng.random(units * groups).astype(np.float32)
    if kind.of_int8:
        real = compiler.call("qnn.row_scales", x, axis=-1, top=127.0)
        q = compiler.call("qnn.quantize", x, real, out_dtype="int8", qmin=-127, qmax=127)
        weight = compiler.const(codes.reshape(units, inputs))
        held = compiler.const(scales.reshape(units, groups))
        sums = compiler.call("qnn.grouped_dense", q, weight, held, group=kind.group)
        y = compiler.call("multiply", sums, real)
    elif kind.table:
        words = packed_words(codes.reshape(units, groups, -1), kind.bits)
        held = compiler.const(scales.reshape(units, groups))
        y = compiler.call(
            "qnn.packed_dense", x, compiler.const(words), held, bits=kind.bits, table=kind.table
        )
    else:
        real = compiler.call(
            "qnn.dequantize", compiler.const(codes), compiler.const(scales), axis=0
        )
        weight = compiler.call("reshape", real, newshape=(units, inputs))
        y = compiler.call("nn.dense", x, weight)
    mod: IRModule = compiler.IRModule({"main": compiler.function([x], y)})
    return mod


def session(
    inputs: int, units: int, block: int, level: int, threads: int, x: Array, seed: int = 0
) -> Callable[[], object]:
    """onnxruntime's product of float32 data and 4-bit weights; `level` 4: data rounded to int8."""
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(seed)
    blocks = inputs // block
    arrays: Mapping[str, Array] = {
        "w": rng.integers(0, 256, (units, blocks, block // 2)).astype(np.uint8),
        "s": rng.random(units * blocks).astype(np.float32),
    }
    node = helper.make_node(
        "MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=inputs, N=units, bits=4,
        block_size=block, accuracy_level=level,
    )  # fmt: skip
    graph = helper.make_graph(
        [node],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, inputs])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, units])],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    package = peer.onnxruntime()
    options = package.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    made = package.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda: made.run(None, {"x": x})
