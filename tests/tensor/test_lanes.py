"""Custom datatypes in lanes: schedules, second attempts and targets change no bit.

Every net is also run in the library lowering, which knows nothing of lanes, and every kernel also
by the interpreter.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor_support import aligned_copy
from toy_lanes import LIMIT, TOY_LANES

import compiler
from compiler.errors import LoweringError, UnsupportedError
from compiler.interpret import loop_nests
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.runtime.executable import Executable
from compiler.tensor.stmt import Attempt, walk_stmts
from compiler.types.dtypes import Array

TARGETS = ("llvm", "llvm -mcpu=haswell", "llvm -mcpu=x86-64-v2")


def codes(values: Any) -> Array:
    return np.asarray(values).astype(np.float16).view(np.uint16)


class Net:
    """Operators between a cast from float32 and a cast to float32."""

    def __init__(self, shape: tuple[int, ...]):
        self.b = FunctionBuilder()
        self.x: Any = self.b.call("cast", self.b.param("x", shape), dtype=str(TOY_LANES))

    def then(self, op: str, *constants: Any, **attrs: Any) -> Net:
        held = [self.b.const(codes(c), TOY_LANES) for c in constants]
        self.x = self.b.call(op, self.x, *held, **attrs)
        return self

    def module(self) -> IRModule:
        return IRModule({"main": self.b.finish(self.b.call("cast", self.x, dtype="float32"))})


def built(mod: IRModule, target: str = "llvm", lowering: str | None = "vector") -> Executable:
    try:
        return compiler.build(mod, target=target, dtype_lowering=lowering)
    except UnsupportedError as e:
        pytest.skip(str(e))


def check(mod: IRModule, x: Array, target: str = "llvm") -> Executable:
    """Vector and library lowering agree on every bit of the output."""
    exe = built(mod, target)
    assert exe(x).tobytes() == built(mod, lowering="library")(x).tobytes()
    return exe


def attempts(exe: Executable) -> list[Attempt]:
    found = [s for k in exe.program.kernels for s, _, _ in walk_stmts(k.func.body)]
    return [s for s in found if isinstance(s, Attempt)]


@pytest.mark.thorough
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("scale", [0.1, 1.0], ids=["sure", "again"])
def test_a_convolutional_net_gives_the_bits_of_the_library_lowering(
    target: str, scale: float
) -> None:
    rng = np.random.default_rng(0)
    net = Net((2, 3, 9, 11))
    net.then("nn.conv2d", rng.normal(size=(32, 3, 3, 3)), rng.normal(size=32), padding=(1, 1, 1, 1))
    net.then("nn.relu").then(
        "nn.conv2d", rng.normal(size=(20, 32, 3, 3)), strides=(2, 2), padding=(1, 0, 0, 1)
    )
    net.then("nn.conv2d", rng.normal(size=(20, 1, 3, 3)), groups=20, padding=(1, 1, 1, 1))
    net.then("nn.conv2d", rng.normal(size=(36, 20, 1, 1)))
    net.then("nn.max_pool2d", pool_size=(2, 2), strides=(2, 2), padding=(1, 1, 0, 0))
    net.then("nn.avg_pool2d", pool_size=(2, 2), padding=(0, 0, 1, 1))
    net.then("nn.global_avg_pool2d").then("reshape", newshape=(0, 36))
    net.then("nn.dense", rng.normal(size=(10, 36)), rng.normal(size=10))
    x = (rng.normal(size=(2, 3, 9, 11)) * scale * 0.1).astype(np.float32)
    exe = check(net.module(), x, target)
    assert exe.dtype_lowering == "vector"
    assert attempts(exe)


@pytest.mark.thorough
@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 3), st.integers(1, 37), st.integers(1, 40), st.integers(1, 3),
    st.integers(1, 2), st.integers(0, 2), st.sampled_from([0.3, 3.0]), st.sampled_from(TARGETS),
)  # fmt: skip
def test_convolutions_of_any_shape(
    n: int, c: int, o: int, k: int, stride: int, pad: int, scale: float, target: str
) -> None:
    rng = np.random.default_rng(c * 100 + o)
    net = Net((n, c, 5, 7)).then(
        "nn.conv2d", rng.normal(size=(o, c, k, k)), strides=(stride, stride), padding=(pad,) * 4
    )
    check(net.module(), (rng.normal(size=(n, c, 5, 7)) * scale).astype(np.float32), target)


@pytest.mark.thorough
@settings(max_examples=8, deadline=None)
@given(
    st.integers(1, 20), st.integers(1, 50), st.integers(1, 70), st.sampled_from([0.2, 3.0]),
    st.sampled_from(TARGETS),
)  # fmt: skip
def test_dense_layers_of_any_shape(m: int, k: int, n: int, scale: float, target: str) -> None:
    rng = np.random.default_rng(m * 100 + k)
    net = Net((m, k)).then("nn.dense", rng.normal(size=(n, k)))
    check(net.module(), (rng.normal(size=(m, k)) * scale).astype(np.float32), target)


def dense(weights: Array, m: int = 3) -> IRModule:
    return Net((m, weights.shape[1])).then("nn.dense", weights).module()


def kernel_inputs(exe: Executable, x: Array) -> Array:
    """The executable's kernels, one after another, in the interpreter."""
    held: dict[Any, Array] = {}
    value = x
    for kernel in exe.program.kernels:
        f = kernel.func
        given = [
            aligned_copy(value if a.array is None else a.array).reshape(
                [int(n.const) for n in b.shape]
            )
            for b, a in zip(f.params, kernel.arguments, strict=False)
        ]
        out = np.zeros([int(n.const) for n in f.params[-1].shape], f.params[-1].dtype.storage)
        with np.errstate(all="ignore"):
            loop_nests.run(f, [*given, out])
        value = out
    assert not held
    return value


@pytest.mark.thorough
@pytest.mark.parametrize("scale", [0.1, 3.0], ids=["sure", "again"])
def test_the_interpreter_runs_the_printed_program(scale: float) -> None:
    rng = np.random.default_rng(1)
    net = Net((3, 19)).then("nn.dense", rng.normal(size=(37, 19)), rng.normal(size=37))
    x = (rng.normal(size=(3, 19)) * scale).astype(np.float32)
    exe = check(net.then("nn.relu").module(), x)
    assert kernel_inputs(exe, x).tobytes() == exe(x).tobytes()


def test_an_attempt_is_printed_with_its_second_form() -> None:
    exe = built(dense(np.ones((16, 4))))
    text = exe.as_text()
    for line in ("attempt:", "where dense has no NaN:", "else, all again:"):
        assert line in text


@pytest.mark.thorough
def test_only_tiles_with_doubtful_sums_are_computed_again() -> None:
    """With the second form taken out, the sure outputs stay and the doubtful tile's are lost."""
    weights = np.ones((16, 4))
    exe = built(dense(weights, m=60))
    (attempt,) = {id(a): a for a in attempts(exe)}.values()
    x = np.full((60, 4), 0.5, np.float32)
    x[40] = LIMIT
    want = exe(x)
    assert want[0, 0] == 2.0
    assert want[40, 0] == 4 * LIMIT
    for s, _, _ in walk_stmts(attempt.again):
        if hasattr(s, "value"):
            s.value = s.value * 0.0
    (kernel,) = (k for k in exe.program.kernels if any(a.array is not None for a in k.arguments))
    f = kernel.func
    packed = next(a.array for a in kernel.arguments if a.array is not None)
    out = np.zeros((60, 16), np.float32)
    loop_nests.run(f, [x, packed.reshape([int(n.const) for n in f.params[1].shape]), out])
    lost = (out != want).any(axis=1)
    assert lost[40]
    assert lost.sum() < 32


def spread(m: int, k: int) -> Array:
    """Terms of which few are doubtful, so that most parts of their sums are sure; NaN in row 1."""
    x = np.random.default_rng(k).normal(size=(m, k)) * 0.05
    x[0, ::29] = LIMIT
    x[-1, -1] = -LIMIT
    if m > 1:
        x[1, k // 2] = np.nan
    return x.astype(np.float32)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("target", [*TARGETS, "c"])
@pytest.mark.parametrize("k", [61, 64])
def test_long_sums_are_tried_in_parts(k: int, target: str) -> None:
    """The bits are those of the library lowering, and of the interpreter."""
    rng, x = np.random.default_rng(k), spread(2, k)
    mod = Net((2, k)).then("nn.dense", rng.normal(size=(11, k)) * 0.1, rng.normal(size=11)).module()
    exe = check(mod, x, target)
    assert any(b.name.endswith(".tried") for a in attempts(exe) for b in a.watched)
    if target == "llvm":
        assert kernel_inputs(exe, x).tobytes() == exe(x).tobytes()


@pytest.mark.thorough
@settings(max_examples=20, deadline=None)
@given(st.integers(1, 9), st.integers(60, 300), st.integers(1, 70), st.sampled_from(TARGETS))
def test_long_sums_of_any_shape(m: int, k: int, n: int, target: str) -> None:
    weights = np.random.default_rng(m * 100 + k).normal(size=(n, k)) * 0.1
    check(Net((m, k)).then("nn.dense", weights).module(), spread(m, k), target)


@pytest.mark.thorough
def test_only_parts_with_doubtful_terms_are_computed_again() -> None:
    """With its second form taken out, a tile lacks the terms of the part that was doubtful."""
    exe = built(dense(np.ones((16, 64)), m=2))
    (attempt,) = {id(a): a for a in attempts(exe)}.values()
    x = np.full((2, 64), 2.0**-6, np.float32)
    x[1, 40:42] = LIMIT, -LIMIT
    assert (exe(x) == [[1.0], [1.0 - 2.0**-5]]).all()
    attempt.again.clear()
    (kernel,) = (f for f in exe.program.kernels if any(a.array is not None for a in f.arguments))
    f = kernel.func
    packed = next(a.array for a in kernel.arguments if a.array is not None)
    out = np.zeros((2, 16), np.float32)
    loop_nests.run(f, [x, packed.reshape([int(n.const) for n in f.params[1].shape]), out])
    assert (out == 0.75).all(), "16 of 64"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("odd", [np.inf, np.nan, -0.0], ids=str)
def test_padding_contributes_nothing_whatever_the_weights(odd: float) -> None:
    weights = np.ones((16, 16, 3, 3))
    weights[:, :, 0, :] = odd
    net = Net((1, 16, 4, 4)).then("nn.conv2d", weights, padding=(1, 1, 1, 1))
    x = np.ones((1, 16, 4, 4), np.float32)
    y = check(net.module(), x)(x)
    assert np.isfinite(y[0, 0, 0]).all()


def test_weights_computed_at_run_time_may_be_no_numbers() -> None:
    b = FunctionBuilder()
    x, w = b.param("x", (1, 2, 4, 4)), b.param("w", (3, 2, 3, 3))
    held = [b.call("cast", v, dtype=str(TOY_LANES)) for v in (x, w)]
    y = b.call("nn.conv2d", *held, padding=(1, 1, 1, 1))
    mod = IRModule({"main": b.finish(b.call("cast", y, dtype="float32"))})
    ws = np.ones((3, 2, 3, 3), np.float32)
    ws[:, :, 0] = np.inf
    xs = np.ones((1, 2, 4, 4), np.float32)
    one, two = (built(mod, lowering=how)(xs, ws) for how in ("vector", "library"))
    assert one.tobytes() == two.tobytes()
    assert np.isfinite(one[0, 0, 0]).all()


def test_parameters_and_results_in_codes_stay_codes() -> None:
    b = FunctionBuilder()
    x = b.param("x", (3, 5), str(TOY_LANES))
    y = b.call("add", x, x)
    mod = IRModule({"main": b.finish(y)})
    xs = codes(np.linspace(-3, 3, 15).reshape(3, 5))
    out = built(mod)(xs)
    assert out.dtype == np.uint16
    np.testing.assert_array_equal(out, compiler.evaluate(mod, xs))


def test_a_module_held_in_lanes_evaluates_to_the_same_codes() -> None:
    rng = np.random.default_rng(3)
    net = Net((2, 4, 5, 5)).then("nn.conv2d", rng.normal(size=(6, 4, 3, 3)), padding=(1, 1, 1, 1))
    mod = net.then("nn.relu").module()
    x = rng.normal(size=(2, 4, 5, 5)).astype(np.float32)
    with compiler.PassContext(disabled_pass=["FuseOps", "AlterOpLayout"]):
        held = compiler.optimize(mod)
    assert f"{TOY_LANES}:float32" in held.astext()
    want = compiler.evaluate(mod, x)
    assert built(mod)(x).tobytes() == want.tobytes()


def test_the_choice_of_lowering_is_reported() -> None:
    exe = built(dense(np.ones((4, 4))), lowering=None)
    (choice,) = exe.lowerings
    assert choice.lowering == "vector"
    assert str(choice) == f"{TOY_LANES}: vector, because float32 holds every float16"
    assert built(dense(np.ones((4, 4))), lowering="library").dtype_lowering == "library"


def test_a_datatype_of_functions_only_has_no_vector_lowering() -> None:
    from toy_dtype import TOY

    b = FunctionBuilder()
    x = b.param("x", (3,), str(TOY))
    mod = IRModule({"main": b.finish(b.call("add", x, x))})
    with pytest.raises(LoweringError, match="no vector lowering, because only functions"):
        compiler.build(mod, dtype_lowering="vector")
    assert compiler.build(mod).dtype_lowering == "library"


def test_a_vector_lowering_of_the_wrong_dtype_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from toy_lanes import ToyLanes

    def wrong(self: ToyLanes, node: Any, deferred: bool, keeps_nan: bool = True) -> Any:
        return node.a

    b = FunctionBuilder()
    x = b.param("x", (3,), str(TOY_LANES))
    mod = IRModule({"main": b.finish(b.call("less", x, x))})
    monkeypatch.setattr(ToyLanes, "vector", wrong)
    with pytest.raises(LoweringError, match="must be an expression of bool"):
        compiler.build(mod, dtype_lowering="vector")
