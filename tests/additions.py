"""What the additions of CONTRIBUTING.md give, run in a copy of the packages that has them:

python tests/additions.py operator
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import compiler
import datatypes
import quantize
from compiler.build import compile_program, optimize
from compiler.frontend.foreign.session import PRECISION
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Call, Function, IRModule
from compiler.op.accumulate import MODES
from compiler.passes.manager import PassContext
from compiler.symbolic import Var
from compiler.target.registry import Target
from compiler.tensor.intrinsic import dot_product
from compiler.types.dtypes import Array

RNG = np.random.default_rng(0)
DATA = RNG.normal(0, 1, (2, 4, 17)).astype(np.float32)
KERNELS = [RNG.normal(0, 0.3, shape).astype(np.float32) for shape in ((6, 2, 3), (4, 6, 2))]
BIAS = RNG.normal(0, 0.3, 6).astype(np.float32)


def signal_net() -> onnx.ModelProto:
    """Two dilated convolutions of a signal, the first in two groups and padded."""
    nodes = [
        helper.make_node("Conv", ["x", "v", "b"], ["h"], dilations=[2], group=2, pads=[2, 1]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Conv", ["r", "w"], ["y"], dilations=[3], strides=[2]),
    ]
    given = helper.make_tensor_value_info("x", 1, DATA.shape)
    made = helper.make_tensor_value_info("y", 1, None)
    weights = [numpy_helper.from_array(a, n) for n, a in zip("vwb", (*KERNELS, BIAS), strict=True)]
    graph = helper.make_graph(nodes, "signals", [given], [made], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def convolved(x: Array, w: Array, groups: int, dilation: int, stride: int) -> Array:
    """The definition, in float64."""
    count = (x.shape[2] - (w.shape[2] - 1) * dilation - 1) // stride + 1
    out = np.zeros((len(x), len(w), count))
    for unit, t in np.ndindex(len(w), count):
        first = unit // (len(w) // groups) * w.shape[1]
        taps = t * stride + dilation * np.arange(w.shape[2])
        under = x[:, first : first + w.shape[1]][:, :, taps].astype(float)
        out[:, unit, t] = (under * w[unit]).sum((1, 2))
    return out


def expected() -> Array:
    """What the net gives, by numpy."""
    padded = np.pad(DATA, ((0, 0), (0, 0), (2, 1)))
    hidden = np.maximum(convolved(padded, KERNELS[0], 2, 2, 1) + BIAS[:, None], 0)
    return convolved(hidden, KERNELS[1], 1, 3, 2)


def names(mod: IRModule) -> list[str]:
    """The operators of a module."""
    return [str(b.value.op) for b in mod.main.bindings if isinstance(b.value, Call)]


def check_same(mod: IRModule, x: Array = DATA) -> Any:
    """Compiled and interpreted, every bit; returns it."""
    got = compiler.build(mod)(x)
    np.testing.assert_array_equal(got, compiler.evaluate(mod, x))
    return got


def kernels(mod: IRModule) -> list[str]:
    """The operators of a module that is optimized, those of fused kernels too."""
    main = optimize(mod).main
    inner = [b.value.op.bindings for b in main.bindings if isinstance(b.value.op, Function)]
    return [str(b.value.op) for bindings in inner for b in bindings]


# ---- an operator ---------------------------------------------------------------------------------
def operator() -> None:
    """A contraction: imported, float32, quantized, in formats, exported, drawn."""
    mod, want = compiler.from_onnx(signal_net()), expected()
    assert names(mod) == ["nn.conv1d", "nn.relu", "nn.conv1d"]
    for got in (compiler.build(mod)(DATA), compiler.evaluate(mod, DATA)):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    _quantized(mod, want)
    _in_formats(mod, want)
    _exported(mod)
    _drawn()


def _quantized(mod: IRModule, want: Array) -> None:
    for fields in (
        {},
        {"weight_rounding": "gptq", "bias_correction": "analytic"},
        {"accumulate": "int20_saturate", "activation_bits": 8},
        {"activation_bits": 16},
    ):
        plan = quantize.calibrate(mod, [DATA], quantize.QConfig(**fields))
        assert [n.decision for n in plan.nodes.values()] == ["integer", "folded", "integer"]
        integers = quantize.realize(mod, plan)
        got = check_same(integers)
        assert np.abs(got - want).max() < 0.05
        *_, last = quantize.trace_plan(mod, plan, DATA).values()
        *_, scale = [b.value for b in integers.main.bindings if isinstance(b.value, Call)]
        assert last.kind == "accumulator"
        assert str(scale.op) == "qnn.dequantize"
        real = last.values.astype(np.float32) * scale.args[1].data.reshape(-1, 1)
        np.testing.assert_array_equal(got, real.astype(np.float32))
    plan = quantize.calibrate(mod, [DATA], quantize.QConfig(activation_dtype="float32"))
    assert len(plan.weights) == 2
    posit = {"weight_dtype": "posit8_es1", "activation_dtype": "posit8_es1"}
    for fields in (posit, posit | {"compute": "native"}):
        plan = quantize.calibrate(mod, [DATA], quantize.QConfig(**fields))
        assert [n.decision for n in plan.nodes.values()] == ["format", "float", "format"]
        got = compiler.build(quantize.realize(mod, plan))(DATA)
        assert np.abs(got - want).max() < 0.5
    blocks = quantize.QConfig(weight_dtype="mxfp8_e4m3", activation_dtype="mxfp8_e4m3")
    plan = quantize.calibrate(mod, [DATA], blocks)
    assert np.abs(compiler.build(quantize.realize(mod, plan))(DATA) - want).max() < 0.5


def _in_formats(mod: IRModule, want: Array) -> None:
    for name, modes in (("float8_e4m3fn", MODES), ("posit16_es1", ("fma", "exact"))):
        for mode in modes:
            got = check_same(datatypes.change_dtype(mod, "float32", name, accumulate=mode))
            assert np.abs(got - want).max() < 0.5
    check_same(datatypes.change_dtype(mod, "float32", "bfloat16", accumulate="exact"))


def _exported(mod: IRModule) -> None:
    plan = quantize.calibrate(mod, [DATA])
    want = compiler.build(quantize.realize(mod, plan))(DATA)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "signals.onnx"
        quantize.export_onnx(mod, plan, path)
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry(PRECISION, "1")  # or sums saturate without VNNI
        (got,) = onnxruntime.InferenceSession(str(path), options).run(None, {"x": DATA})
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
        again = compiler.from_onnx(path)
        assert names(again).count("nn.conv1d") == 2
        assert not {"nn.relu", "qnn.simulated_quantize"} & set(names(again))
        np.testing.assert_array_equal(compiler.build(again)(DATA), want)


def _drawn() -> None:
    """The tests of every operator and every sum, random networks and random graphs have it."""
    import test_every_op
    import test_every_sum
    from random_graphs import drawing, running
    from random_graphs.whole import imported
    from random_nets import CONTRACTIONS, Net, images_of

    runs = [r for r in test_every_op.RUNS if r[0].op == "nn.conv1d"]
    assert len(runs) == 4
    for run in runs:
        test_every_op.test_reference_and_loops_and_compiled_code_agree(run)
    (many,) = [s for s in test_every_sum.SUMS if s.op == "nn.conv1d"]
    for mode in MODES:
        test_every_sum.check_oracle(many, "posit8_es0", mode)
    assert CONTRACTIONS == [("nn.conv1d", 1)]
    net = Net(3, symbolic=False)
    for step in ("conv", "contraction", "relu"):
        net.step(step)
    grown = net.finish("classifier")
    plan = quantize.calibrate(grown, [images_of(1)])
    check_same(quantize.realize(grown, plan), images_of(2))
    few = ("Conv", "Relu", "Tanh")
    graphs = {seed: drawing.drawn_graph(seed, 6, few)[0] for seed in range(30)}
    seeds = [k for k, g in graphs.items() if any(_of_signal(n, g) for n in g.nodes)][:4]
    mods = [mod for k in seeds if (mod := imported(graphs[k], graphs[k].ends)) is not None]
    assert sum("nn.conv1d" in names(mod) for mod in mods) > 2
    with TemporaryDirectory() as folder:
        for compare in (running.compare_nodes, running.compare_formats, running.compare_quantized):
            outcome = compare(seeds, 6, Path(folder), ops=few)
            assert not outcome.faults, str(outcome)


def _of_signal(n: Any, g: Any) -> bool:
    return bool(n.op == "Conv" and g.arrays[n.reads[0]].ndim == 3)


# ---- a scalar function ---------------------------------------------------------------------------
def scalar_function() -> None:
    """What the tests of all functions, and of added ones, say of it."""
    from test_added_function import TESTS

    options = ["-q", "-m", "", "-p", "no:cacheprovider", "-k", "log1p"]
    assert pytest.main([*options, *(f"tests/{t}" for t in TESTS)]) == 0


# ---- a number format -----------------------------------------------------------------------------
def number_format() -> None:
    """Of 8 bits: its codes, its arithmetic in every lowering, layers in it, its place in lists."""
    from random_graphs.settings import format_names

    name = "float8_e3m4fn"
    codes = np.arange(256, dtype=np.uint8)
    values = datatypes.decode(name, codes)
    finite = np.isfinite(values)
    assert finite.sum() == 254
    np.testing.assert_array_equal(datatypes.encode(name, values[finite]), codes[finite])
    assert name in datatypes.list_formats()
    assert name in format_names()
    net = compiler.from_onnx(signal_net())
    for mode in MODES:
        changed = datatypes.change_dtype(net, "float32", name, accumulate=mode)
        want = compiler.evaluate(changed, DATA)
        for lowering in ("vector", "table", "library"):
            got = compiler.build(changed, dtype_lowering=lowering)(DATA)
            np.testing.assert_array_equal(got, want)
        assert np.abs(got - expected()).max() < 0.5
    config = quantize.QConfig(weight_dtype=name, activation_dtype=name, compute="native")
    plan = quantize.calibrate(net, [DATA], config)
    assert "format" in [n.decision for n in plan.nodes.values()]
    check_same(quantize.realize(net, plan))


# ---- a pass --------------------------------------------------------------------------------------
def graph_pass() -> None:
    """Runs where the table says, changes no bit, is shown, and can be left out."""
    from compiler.transform import MergeClips

    b = FunctionBuilder()
    x = b.call("nn.relu", b.call("clip", b.param("x", DATA.shape), a_min=-1.0, a_max=9.0))
    x = b.call("clip", x, a_min=-2.0, a_max=1.5)
    other = b.call("clip", b.call("tanh", x), a_min=0.5)
    mod = IRModule({"main": b.finish(other)})
    kept, want = names(MergeClips()(mod)), np.maximum(np.tanh(np.clip(DATA, 0, 1.5)), 0.5)
    assert kept == ["clip", "tanh", "clip"], kept
    for level, disabled, count in ((3, (), 2), (3, ("MergeClips",), 4), (2, (), 4)):
        with PassContext(opt_level=level, disabled_pass=disabled) as context:
            np.testing.assert_allclose(compiler.build(mod)(DATA), want, rtol=1e-5)
            assert sum(n in ("clip", "nn.relu") for n in kernels(mod)) == count, kernels(mod)
        assert "MergeClips" in str(context)
    for extreme in (np.nan, -np.inf, np.inf, -0.0):
        odd = np.full_like(DATA, extreme)
        with PassContext(opt_level=3):
            np.testing.assert_array_equal(compiler.build(mod)(odd), compiler.evaluate(mod, odd))


# ---- a target ------------------------------------------------------------------------------------
POWER64_ELF = 21


def cpu() -> None:
    """Code for it, with its instruction; the same loops on the CPU that is here."""
    there, other = (Target.anywhere(f"llvm -mcpu={name}") for name in ("pwr9", "neoverse-n1"))
    b = FunctionBuilder()
    x = b.param("x", (2, 8, 5, 5), "uint8")
    w = b.const(RNG.integers(-128, 128, (16, 8, 3, 3)).astype(np.int8))
    mod = IRModule({"main": b.finish(b.call("nn.conv2d", x, w, out_dtype="int32"))})
    program = compile_program(mod, there)
    for k in program.kernels:
        _, _, content = k.code.partition(b"\n")
        assert content[:4] == b"\x7fELF"
        assert int.from_bytes(content[18:20], "little") == POWER64_ELF
    assert any("vmsummbm" in k.as_text() and ".vmsummbm" in k.llvm_text() for k in program.kernels)
    assert not any("vmsummbm" in k.as_text() for k in compile_program(mod, other).kernels)
    # As the loops that it means, for any target: what the instruction adds up is right.
    compiler.register_intrinsic(dot_product("vmsummbm.loops", 4, features=()))
    exe = compiler.build(mod)
    data = RNG.integers(0, 256, (2, 8, 5, 5)).astype(np.uint8)
    assert "vmsummbm.loops" in exe.as_text()
    np.testing.assert_array_equal(exe(data), compiler.evaluate(mod, data))


# ---- a backend -----------------------------------------------------------------------------------
def backend() -> None:
    """A kernel, and an MLP in float32, int8 and a format, any batch: the bits of LLVM's code."""
    image, kernel = (RNG.normal(0, 1, s).astype(np.float32) for s in ((1, 3, 5, 5), (4, 3, 3, 3)))
    b = FunctionBuilder()
    y = b.call("nn.conv2d", b.param("image", image.shape), b.const(kernel))
    _as_llvm(IRModule({"main": b.finish(y)}), image)
    b = FunctionBuilder()
    first, last = (RNG.normal(0, 0.4, s).astype(np.float32) for s in ((9, 12), (5, 9)))
    h = b.call("nn.relu", b.call("nn.dense", b.param("x", (Var("n"), 12)), b.const(first)))
    y = b.call("nn.softmax", b.call("nn.dense", h, b.const(last)))
    mlp, data = IRModule({"main": b.finish(y)}), RNG.normal(0, 1, (3, 12)).astype(np.float32)
    exact = datatypes.change_dtype(mlp, "float32", "posit16_es1", accumulate="exact")
    for mod in (mlp, quantize.realize(mlp, quantize.calibrate(mlp, [data])), exact):
        _as_llvm(mod, data, data[:1], data[:0])
    exe = compiler.build(exact, target="loops")
    assert "primfunc @" in exe.source
    assert any(s.watch for s in exe.program.steps)  # sums that are tried in floats
    with TemporaryDirectory() as folder:
        exe.save(Path(folder) / "mlp.exe")
        again = compiler.load(Path(folder) / "mlp.exe")
        np.testing.assert_array_equal(again(data), exe(data))
    with pytest.raises(compiler.DtypelabError, match="loops run on one thread"):
        compiler.build(mlp, target="loops", threads=2)


def _as_llvm(mod: IRModule, *inputs: Array) -> None:
    loops, native = (compiler.build(mod, target=target) for target in ("loops", "llvm"))
    assert loops.target.kind == "loops"
    for x in inputs:
        np.testing.assert_array_equal(loops(x), native(x))


ADDITIONS: dict[str, Callable[[], None]] = {
    "operator": operator,
    "function": scalar_function,
    "format": number_format,
    "pass": graph_pass,
    "target": cpu,
    "backend": backend,
}

if __name__ == "__main__":
    ADDITIONS[sys.argv[1]]()
