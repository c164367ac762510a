"""Whole networks in scaled formats and block formats, against an emulation with ml_dtypes."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from format_emulation import assert_same, mx, nvfp4, scaled
from quantize_nets import NETS, images, plan_of, sized

import compiler
import datatypes  # noqa: F401  (the formats)
from compiler.interpret.graph import call_reference
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Binding, Call, Constant, IRModule, TupleGetItem, Var
from compiler.types.dtypes import FLOAT32, Array
from compiler.types.tensor_types import TensorType
from experiments.benchmarks import accuracy_tasks as tasks
from quantize import Plan, QConfig, calibrate, realize
from quantize.annotation.annotate import prepared
from quantize.formats.operand_format import OperandFormat

Run = Callable[[Binding, Call, list[Array]], Any]


def in_numpy(b: Binding, call: Call, args: list[Array]) -> Array:
    """One operator by its reference."""
    return call_reference(call, args, b.var, {})


def compiled(b: Binding, call: Call, args: list[Array]) -> Array:
    """One operator as a module of its own, in which constants stay constants."""
    if not isinstance(b.var.type, TensorType) or b.var.type.dtype != FLOAT32:
        return call_reference(call, args, b.var, {})
    f = FunctionBuilder()
    atoms = [
        Constant(x, a.dtype) if isinstance(a, Constant) else f.param(f"x{k}", x.shape, str(x.dtype))
        for k, (a, x) in enumerate(zip(call.args, args, strict=True))
    ]
    y = f.bind(replace(call, args=tuple(atoms)), "y")
    given = [x for x, a in zip(args, call.args, strict=True) if isinstance(a, Var)]
    return np.asarray(compiler.build(IRModule({"main": f.finish(y)}))(*given))


def emulated(mod: IRModule, plan: Plan, x: Array, run: Run = in_numpy) -> Array:
    """The float network, node by node, with the operands that the plan names rounded by numpy."""
    f = prepared(mod).main
    values: dict[Any, Any] = {f.params[0]: x}
    for b in f.bindings:
        if isinstance(b.value, TupleGetItem):
            values[b.var] = values[b.value.value][b.value.index]
            continue
        assert isinstance(b.value, Call)
        args = [a.data if isinstance(a, Constant) else values[a] for a in b.value.args]
        formats = plan.formats.get(b.var.name, ())
        args[: len(formats)] = [rounded(a, p) for a, p in zip(args, formats, strict=False)]
        values[b.var] = run(b, b.value, args)
    (result,) = f.results
    assert isinstance(result, Var)
    return np.asarray(values[result])


ELEMENTS = {
    "mxfp8_e4m3": "float8_e4m3fn",
    "mxfp8_e5m2": "float8_e5m2",
    "mxfp6_e3m2": "float6_e3m2fn",
    "mxfp6_e2m3": "float6_e2m3fn",
    "mxfp4_e2m1": "float4_e2m1fn",
}


def rounded(x: Array, p: OperandFormat) -> Array:
    """An operand as ml_dtypes rounds it."""
    if p.format == "float32":
        return x
    if p.flat:  # weights of one input channel: blocks run on over the kernel
        return rounded(x.reshape(len(x), -1), replace(p, flat=False)).reshape(x.shape)
    if p.format in ELEMENTS:
        return mx(x, ELEMENTS[p.format], p.axis)
    if p.format == "nvfp4":
        return np.moveaxis(nvfp4(np.moveaxis(x, p.axis, -1), p.scales[0]), -1, p.axis)
    scales = np.float32(p.scales)
    if p.group:
        rows = x.reshape(len(x), -1)
        each = scales.reshape(len(x), -1).repeat(p.group, axis=1)[:, : rows.shape[1]]
        return scaled(rows, each, p.format).reshape(x.shape)
    shape = [-1 if k == p.axis and len(scales) > 1 else 1 for k in range(x.ndim)]
    return scaled(x, scales.reshape(shape), p.format)


def config(weights: str, activations: str = "", **fields: Any) -> QConfig:
    """A configuration of formats; activations in that of weights unless given."""
    return QConfig(weight_dtype=weights, activation_dtype=activations or weights, **fields)


SCALED = ("float8_e4m3fn", "float8_e5m2", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn")
CASES = [
    *(config(name) for name in SCALED),
    *(config(name) for name in (*ELEMENTS, "nvfp4")),
    config("float8_e4m3fn", scales="power_of_two", weight_granularity="tensor"),
    config("float4_e2m1fn", "float32", weight_granularity="group", weight_group_size=40),
    config("float4_e2m1fn", "float8_e4m3fn", calibrate="minmax"),
    config("mxfp4_e2m1", "float8_e5m2", calibrate="percentile"),
]


IMAGES = 2


RUNS = [
    pytest.param(
        n, c, marks=() if k % 11 == 0 else pytest.mark.slow, id=f"{n}-{c.weight_dtype}-{k}"
    )
    for k, (c, n) in enumerate(itertools.product(CASES, NETS))
]


@pytest.mark.sampled(10)
@pytest.mark.parametrize(("name", "case"), RUNS)
@pytest.mark.parametrize("run", [in_numpy, compiled])
def test_stored_formats_have_the_bits_of_an_ml_dtypes_emulation(
    name: str, case: QConfig, run: Run
) -> None:
    plan, x = plan_of(name, case), images()[1][:IMAGES]
    assert plan.coverage == 1.0
    q = realize(sized(name, IMAGES), plan)
    got = compiler.build(q)(x) if run is compiled else compiler.evaluate(q, x)
    assert_same(got, emulated(sized(name, IMAGES), plan, x, run))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["efficientnet_lite0", "pp_ocrv4_rec"])
@pytest.mark.parametrize("fmt", ["float8_e4m3fn", "float8_e5m2"])
def test_fp8_rows_of_the_table_have_the_bits_of_an_ml_dtypes_emulation(name: str, fmt: str) -> None:
    folder = os.environ.get("DTYPELAB_DATA")
    task = tasks.load(name, Path(folder) if folder else None, {})
    if isinstance(task, str):
        pytest.skip(f"{task}; the folder is taken from DTYPELAB_DATA")
    module, x = task.module(), task.inputs[:1]
    plan = calibrate(module, task.calibration[:4], config(fmt))
    one = compiler.from_onnx(task.path, shapes={module.attrs["inputs"][0]: x.shape})
    assert_same(compiler.build(realize(one, plan))(x), emulated(one, plan, x, compiled))
