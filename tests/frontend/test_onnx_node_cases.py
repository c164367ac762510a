"""The onnx package's own single-operator cases: what is imported gives the right answer,
interpreted and compiled; what is not is refused in words."""

from __future__ import annotations

import warnings
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_cases import every_case

import datatypes  # noqa: F401  (the formats of 8 and 16 bits)
from compiler.boundary.elements import numbers
from compiler.build import build
from compiler.errors import DtypelabError
from compiler.frontend.local_functions import all_nodes
from compiler.frontend.onnx_importer import from_onnx
from compiler.interpret.graph import evaluate
from compiler.ir.expr import IRModule

PASSING = 1792
"""Cases that must pass; raise it as operators are added."""

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from onnx.backend.test.case import node


@cache
def cases() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {c.name: c for c in node.collect_testcases(None) if c.model is not None}


LISTED = """
    Conv ConvTranspose Gemm MatMul Add Sub Mul Div Sum Max Min Pow Sqrt Exp Log Neg Abs Floor Mod
    Reciprocal Erf Equal Greater Less Where Not And Relu LeakyRelu PRelu Elu Clip Sigmoid
    HardSigmoid HardSwish Tanh Softmax LogSoftmax Gelu Mish BatchNormalization LayerNormalization
    InstanceNormalization GroupNormalization LRN Dropout MaxPool AveragePool GlobalAveragePool
    GlobalMaxPool ReduceMean ReduceSum ReduceMax ArgMax TopK Resize Pad Concat Split Slice Reshape
    Flatten Transpose Squeeze Unsqueeze Gather GatherElements GatherND ScatterND Expand Tile Range
    Shape Cast Constant ConstantOfShape Identity DepthToSpace SpaceToDepth Einsum CumSum Trilu LSTM
    GRU If Loop NonMaxSuppression QuantizeLinear DequantizeLinear DynamicQuantizeLinear QLinearConv
    QLinearMatMul ConvInteger MatMulInteger CastLike Size Attention RotaryEmbedding
    RMSNormalization NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss ReduceL1 ReduceL2
    ReduceLogSum ReduceLogSumExp ReduceMin ReduceProd ReduceSumSquare Or Xor BitShift BitwiseAnd
    BitwiseNot BitwiseOr BitwiseXor Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh ArgMin
    ScatterElements GridSample DeformConv CumProd Celu Selu Softplus Softsign ThresholdedRelu Sign
    Round Ceil IsNaN IsInf OneHot EyeLike Hardmax ReverseSequence Col2Im LpPool LpNormalization
    MeanVarianceNormalization RNN Scan Det Unique
    """
"""The operators that dtypelab promises to import, of tensors of numbers, in every case."""


ROUNDED = {"test_dft_inverse", "test_dft_inverse_opset19"}
"""Cases whose expected values are off by float32's rounding: 1.9e-7 where the result is 0."""


RANKS = {"test_affine_grid_3d_align_corners_expanded"}
"""Cases with branches whose results differ in rank, chosen by an operand."""


def is_listed(case: Any) -> bool:
    """Whether a case has promised operators only, and tensors of numbers."""
    values = [*case.model.graph.input, *case.model.graph.output]
    kinds = {v.type.tensor_type.elem_type for v in values if v.type.HasField("tensor_type")}
    numeric = all(v.type.HasField("tensor_type") for v in values)
    operators = {n.op_type for n in all_nodes(case.model.graph)}
    if case.name in RANKS:
        return False
    return numeric and onnx.TensorProto.STRING not in kinds and operators <= set(LISTED.split())


def array(value: Any) -> Any:
    """A case's operand or result as an array."""
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return np.asarray(value)


def is_tensor(value: Any) -> bool:
    """Whether an operand is a tensor, not a sequence or an optional value."""
    return isinstance(value, (np.ndarray, np.generic, onnx.TensorProto))


def imported(case: Any, operands: list[Any]) -> tuple[IRModule, list[Any]]:
    """The module and its operands, with nothing given but shapes of nothing."""
    names = [i.name for i in case.model.graph.input]
    tensors = [(n, array(a)) for n, a in zip(names, operands, strict=True) if is_tensor(a)]
    shapes = {n: a.shape for n, a in tensors if not a.size}  # 0 in a file says "unknown"
    return from_onnx(case.model, shapes), [array(a) for a in operands]


_LOOSER = {"float16": 4e-3, "bfloat16": 3e-2}


def mistake(got: Any, wanted: Any, tolerance: tuple[float, float]) -> str:
    """What is wrong with a result; empty if nothing. 16-bit floats may be off by a few units in
    their last place, since the standard does not say in which precision sums are formed."""
    for g, w in zip(got if isinstance(got, list) else [got], map(array, wanted), strict=True):
        if (g.shape, g.dtype) != (w.shape, w.dtype):
            return f"{g.dtype}{g.shape} for {w.dtype}{w.shape}"
        rtol, atol = tolerance
        rtol = max(rtol, _LOOSER.get(w.dtype.name, 0))
        g, w = numbers(g), numbers(w)
        if not np.allclose(g, w, rtol, atol, equal_nan=w.dtype.kind == "f"):
            return "other values"
    return ""


def outcome(name: str) -> str:
    """As `outcome_of` the case of a name."""
    return outcome_of(cases()[name])


def outcome_of(case: Any) -> str:
    """ "pass", "refused: reason", or what is wrong with a case."""
    atol = 1e-6 if case.name in ROUNDED else case.atol
    said = {}
    for operands, wanted in case.data_sets:
        try:
            mod, given = imported(case, operands)
            runs = {"interpreted": evaluate(mod, *given), "compiled": build(mod)(*given)}
        except DtypelabError as error:
            return f"refused: {error}"
        said |= {how: mistake(got, wanted, (case.rtol, atol)) for how, got in runs.items()}
    return "; ".join(f"{how}: {what}" for how, what in said.items() if what) or "pass"


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    """The outcome of every case."""
    return {name: outcome(name) for name in cases()}


def test_some_of_the_cases_give_no_wrong_answer() -> None:
    """Of a fifth of the operators: to make the cases of all takes longer than to run these."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for operator in [m.name for m in iter_modules(node.__path__)][::5]:
            import_module(f"{node.__name__}.{operator}")
    some = {c.name: c for c in node._NodeTestCases if c.model is not None}
    found = {name: outcome_of(some[name]) for name in sorted(some)[:: len(some) // 24]}
    assert {n: o for n, o in found.items() if o != "pass" and not o.startswith("refused")} == {}
    assert sum(o == "pass" for o in found.values()) >= 0.9 * len(found)


@pytest.mark.thorough
def test_no_case_gives_a_wrong_answer(outcomes: dict[str, str]) -> None:
    wrong = {n: o for n, o in outcomes.items() if o != "pass" and not o.startswith("refused")}
    assert wrong == {}


@pytest.mark.thorough
def test_most_cases_pass(outcomes: dict[str, str]) -> None:
    assert sum(o == "pass" for o in outcomes.values()) >= PASSING


@pytest.mark.thorough
def test_every_case_of_promised_operators_on_numbers_passes(outcomes: dict[str, str]) -> None:
    listed = {n for n, c in cases().items() if is_listed(c)}
    assert {n: outcomes[n] for n in listed if outcomes[n] != "pass"} == {}
    assert len(listed) >= 1640


REASONS = {
    "strings": ("STRING", "String", "Regex", "TfIdf"),
    "sequences, and optional values that are no tensors": (
        "Sequence", "Optional", "is not a tensor",
    ),
    "training, and classic machine learning": ("ai.onnx.ml.", "preview.training."),
    "files of pictures": ("ImageDecoder",),
    "random numbers without a seed": ("RandomUniform",),
    "branches of different rank": ("branches whose output",),
    "tables and lengths of sound that are computed": ("MelWeightMatrix", "frame_length"),
}  # fmt: skip
"""Why cases are refused, and what the messages say then."""


def refused(outcomes: dict[str, str]) -> dict[str, list[str]]:
    """Reason -> the cases that are refused for it; "other" for what has no reason yet."""
    out: dict[str, list[str]] = {reason: [] for reason in (*REASONS, "other")}
    for name, said in outcomes.items():
        if said.startswith("refused"):
            reasons = (r for r, words in REASONS.items() if any(w in said for w in words))
            out[next(reasons, "other")].append(name)
    return out


@pytest.mark.thorough
def test_every_refusal_has_its_reason(outcomes: dict[str, str]) -> None:
    """The table of what is refused, as `-s` shows it."""
    table = refused(outcomes)
    for reason, names in table.items():
        print(f"{len(names):4}  {reason}: {', '.join(names)}")
    assert table["other"] == []
    assert sum(map(len, table.values())) <= len(cases()) - PASSING


@pytest.mark.thorough
def test_refusals_are_one_sentence_that_names_the_reason(outcomes: dict[str, str]) -> None:
    for name, said in outcomes.items():
        if said.startswith("refused"):
            assert len(said) > len("refused: ") + 20, name
            assert "\n" not in said, name


@pytest.mark.thorough
def test_every_imported_operator_is_in_a_case_that_passes(outcomes: dict[str, str]) -> None:
    from compiler.frontend.onnx_importer import supported_ops

    passed = {c.op for c in every_case().values()}
    for name, case in cases().items():
        if outcomes.get(name) == "pass":
            passed.update(n.op_type for n in case.model.graph.node)
    others = ("com.microsoft.", "qonnx.", "onnx.brevitas.")  # these have their own tests
    own = {op for op in supported_ops() if op.startswith(others)}
    assert set(supported_ops()) - own - passed == set()
