"""Operands that say what an operator does (axes, counts, sizes, scales), computed by the program or
given when it runs: one build serves all their values, and its results are onnxruntime's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx_models import assert_close, model, run_onnxruntime

from compiler.build import build
from compiler.errors import InputError
from compiler.frontend.onnx_importer import from_onnx
from compiler.interpret.graph import evaluate
from compiler.ir.expr import Function, nested
from compiler.ir.verifier import verify

node = helper.make_node
X = np.linspace(-1, 2, 48, dtype=np.float32).reshape(2, 4, 6)
IMAGE = np.random.default_rng(5).standard_normal((1, 2, 5, 6)).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@dataclass(frozen=True)
class Operator:
    """An operator on `x`, with operands that are given when it runs."""

    op: str
    values: list[dict[str, np.ndarray]]
    attrs: dict[str, Any] = field(default_factory=dict)
    x: np.ndarray = field(default_factory=lambda: X)
    inputs: tuple[str, ...] = ()
    outputs: int = 1
    opset: int = 18

    def model(self, open_sizes: bool = False) -> Any:
        names = self.inputs or ("x", *self.values[0])
        outputs = [f"y{k}" for k in range(self.outputs)]
        shapes: dict[str, list[Any]] = {n: list(a.shape) for n, a in self.values[0].items()}
        own = [f"n{k}" for k in range(self.x.ndim)] if open_sizes else list(self.x.shape)
        given = {"x": self.x, **self.values[0]}
        codes = {n: helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in given.items()}
        return model([node(self.op, list(names), outputs, **self.attrs)], {"x": own, **shapes},
                     outputs, opset=self.opset, dtypes=codes)  # fmt: skip


def axes(*values: Any) -> list[dict[str, np.ndarray]]:
    return [{"axes": ints(*v)} for v in values]


def resize(name: str, *values: np.ndarray, **attrs: Any) -> Operator:
    given = ("x", "", "scales") if name == "scales" else ("x", "", "", "sizes")
    return Operator("Resize", [{name: v} for v in values], attrs, IMAGE, given)


ONE = axes([0], [-1], [1], [2])
TWO = axes([0, 1], [2, 0], [-1, -2])
SCALES = (floats(1, 1, 2, 3), floats(1, 1, 0.6, 1.7), floats(1, 1, 1, 0.5))
SIZES = (ints(1, 2, 10, 18), ints(1, 2, 3, 4), ints(1, 2, 5, 6))
BITS = np.array([[0, 1, 1, 0], [1, 0, 0, 0]], np.float32)
OPERATORS = {
    "reduce_sum": Operator("ReduceSum", ONE, {"keepdims": 0}, opset=13),
    "reduce_max_kept": Operator("ReduceMax", ONE, {"keepdims": 1}),
    "reduce_mean_two": Operator("ReduceMean", TWO, {"keepdims": 0}),
    "reduce_l2": Operator("ReduceL2", TWO, {"keepdims": 1}),
    "unsqueeze": Operator("Unsqueeze", ONE),
    "unsqueeze_two": Operator("Unsqueeze", TWO),
    "squeeze": Operator("Squeeze", axes([0], [2], [-3]), x=X.reshape(1, 48, 1)),
    "cumsum": Operator("CumSum", [{"axis": np.array(k)} for k in (0, -1, 1)], {"reverse": 1}),
    "top_k": Operator("TopK", [{"k": ints(k)} for k in (1, 3, 6)], outputs=2),
    "one_hot": Operator(
        "OneHot", [{"depth": ints(d), "v": floats(2, 5)} for d in (3, 1, 7)],
        x=np.array([[0, 2], [-1, 4]]),
    ),
    "split": Operator("Split", [{"sizes": ints(*s)} for s in ((1, 5), (4, 2))], {"axis": 2},
                      outputs=2, opset=13),
    "slice_axes": Operator("Slice", [
        {"starts": ints(*a), "ends": ints(*b), "axes": ints(*c), "steps": ints(*d)}
        for a, b, c, d in (
            ((0, 1), (9, 3), (0, 2), (1, 1)), ((-2, 5), (9, -9), (-2, 2), (1, -2)),
            ((3, 0), (0, 2), (1, 0), (-1, 2)),
        )
    ]),
    "pad_axes": Operator("Pad", [
        {"pads": ints(*p), "value": np.array(7, np.float32), "axes": ints(*a)}
        for p, a in (((1, 2, 0, 3), (0, 2)), ((0, 1, 2, 0), (-1, 1)))
    ]),
    "reverse_sequence": Operator(
        "ReverseSequence", [{"lens": ints(*v)} for v in ((2, 4), (1, 3))],
        {"batch_axis": 0, "time_axis": 1},
    ),
    "resize_linear": resize("scales", *SCALES, mode="linear"),
    "resize_cubic": resize("sizes", *SIZES, mode="cubic", exclude_outside=1),
    "resize_corners": resize(
        "sizes", *SIZES, mode="linear", coordinate_transformation_mode="align_corners"
    ),
    "resize_nearest": resize(
        "scales", *SCALES, mode="nearest", coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    ),
    "resize_antialias": resize("sizes", *SIZES, mode="linear", antialias=1),
    "upsample": Operator("Upsample", [{"scales": s} for s in SCALES[:1]], x=IMAGE, opset=9),
    "non_zero": Operator("NonZero", [{}], x=BITS),
    "compress": Operator(
        "Compress", [{"c": np.array(c)} for c in ([True, False], [False, False])], {"axis": 0}
    ),
}  # fmt: skip
"""Operators whose operands are computed, with several values of these."""


@pytest.mark.sampled(24)
@pytest.mark.parametrize("open_sizes", [False, True])
@pytest.mark.parametrize("name", OPERATORS)
def test_one_build_serves_every_value_of_an_operand(name: str, open_sizes: bool) -> None:
    case = OPERATORS[name]
    if open_sizes and name in ("squeeze", "compress"):
        pytest.skip("which axis is 1 must be known")
    proto = case.model(open_sizes)
    mod = from_onnx(proto)
    verify(mod)
    executable = build(mod)
    for values in case.values:
        arrays = {"x": case.x, **values}
        want = run_onnxruntime(proto, arrays)
        got = evaluate(mod, arrays)
        assert_close(got, want)
        made = executable(**arrays)
        pairs = zip(*(v if isinstance(v, list) else [v] for v in (made, got)), strict=True)
        for a, b in pairs:  # the interpreter's, but for contracted products in sums
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("open_sizes", [False, True])
def test_axes_of_computed_shapes_are_those_of_known_ones(open_sizes: bool) -> None:
    """A few of the operators in the first tier whatever the sample is."""
    for name in ("reduce_sum", "top_k"):
        test_one_build_serves_every_value_of_an_operand(name, open_sizes)


def names_in(f: Function) -> list[str]:
    inner = [name for b in f.bindings for g in nested(b.value) for name in names_in(g)]
    return [b.var.name for b in f.bindings] + inner


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", OPERATORS)
def test_every_way_to_write_a_node_has_names_of_its_own(name: str) -> None:
    """Plans name values, so no two may have one name, whatever the model calls its others."""
    proto = OPERATORS[name].model()
    for other in ("y0/0", "y0/1", "y0/2", "y0/4", "y0_1", "y0_2"):
        proto.graph.node.append(node("Cast", ["x"], [other], to=TensorProto.FLOAT16))
        proto.graph.output.append(helper.make_empty_tensor_value_info(other))
    names = names_in(from_onnx(proto).main)
    assert len(set(names)) == len(names)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("reduce_sum", {"axes": ints(3)}, "axes_is_possible"),
        ("reduce_mean_two", {"axes": ints(1, 1)}, "axes_is_possible"),
        ("unsqueeze", {"axes": ints(-9)}, "axes_is_possible"),
        ("top_k", {"k": ints(7)}, "k_is_possible"),
        ("top_k", {"k": ints(-1)}, "negative"),
        ("split", {"sizes": ints(1, 4)}, "remainder"),
        ("reverse_sequence", {"lens": ints(2, 9)}, "lengths_that_fit"),
    ],
)
def test_a_value_that_is_not_possible_is_refused_when_it_runs(
    name: str, values: dict[str, np.ndarray], said: str
) -> None:
    mod = from_onnx(OPERATORS[name].model())
    for run in (build(mod), lambda **a: evaluate(mod, a)):
        with pytest.raises(InputError, match=said):
            run(x=OPERATORS[name].x, **values)

    """Exporters cut sizes out of vectors, join them, and cast them: parts still fit together."""
    weights = {"zero": np.int64(0), "one": np.int64(1), "f0": np.float32(0), "f1": np.float32(1)}
    nodes = [
        node("Split", ["s"], ["h", "w"], axis=0),
        node("Concat", ["w", "h"], ["turned"], axis=0),
        node("ConstantOfShape", ["turned"], ["zeros"]),
        node("Cast", ["w"], ["wf"], to=TensorProto.FLOAT),
        node("Squeeze", ["wf"], ["wide"]),
        node("Range", ["f0", "wide", "f1"], ["row"]),
        node("Transpose", ["zeros"], ["t"], perm=[1, 0]),
        node("Add", ["t", "row"], ["y"]),
    ]
    proto = model(nodes, {"s": [2]}, ["y"], weights, dtypes={"s": TensorProto.INT64})
    mod = from_onnx(proto)
    executable = build(mod)
    for h, w in ((2, 3), (1, 5), (4, 1)):
        want = run_onnxruntime(proto, {"s": ints(h, w)})
        assert_close(executable(ints(h, w)), want)
        assert_close(evaluate(mod, ints(h, w)), want)
