"""PassContext, Sequential, decorators, instruments."""

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from compiler.build import build, optimize
from compiler.errors import ConfigError, TypeInferenceError, VerifyError
from compiler.interpret.graph import evaluate
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Binding, Call, Function, IRModule, Var
from compiler.ir.verifier import verify
from compiler.op.library import get_op
from compiler.passes.decorators import function_pass, module_pass
from compiler.passes.infer_type import InferType
from compiler.passes.instruments import PrintIR, TimingInstrument, VerifyInstrument
from compiler.passes.manager import ModulePass, PassContext, PassInfo, Sequential, find_pass
from compiler.symbolic import Var as Dim
from compiler.transform.fuse_ops import FuseOps
from compiler.types.tensor_types import TensorType


def chain() -> IRModule:
    b = FunctionBuilder()
    x = b.param("x", (Dim("n"), 4))
    y = b.call("add", x, b.const(np.ones(4, np.float32)), origins=["first"])
    z = b.call("nn.relu", y, origins=["second"])
    w = b.call("multiply", z, z, origins=["third"])
    return IRModule({"main": b.finish(w)})


def test_context_selects_passes_by_level_and_name() -> None:
    ran = []

    @module_pass(name="High", opt_level=3)
    def high(mod: IRModule, ctx: PassContext) -> IRModule:
        ran.append("High")
        return mod

    @function_pass(name="Low")
    class Low:
        def __init__(self, note: str = "low"):
            self.note = note

        def transform_function(self, f: Function, mod: IRModule, ctx: PassContext) -> Function:
            ran.append(self.note)
            return f

    seq = Sequential([high, Low("noted")])
    mod = chain()
    seq(mod)
    assert ran == ["noted"]
    with PassContext(opt_level=3):
        seq(mod)
    assert ran[1:] == ["High", "noted"]
    with PassContext(required_pass=["High"], disabled_pass=["Low"]):
        seq(mod)
    assert ran[3:] == ["High"]


def groups(mod: IRModule) -> list[int]:
    """Operators in each primitive function."""
    return [
        len(b.value.op.bindings)
        for b in mod.main.bindings
        if isinstance(b.value, Call) and isinstance(b.value.op, Function)
    ]


def test_fusion_levels_and_disabling() -> None:
    mod = chain()
    assert groups(FuseOps()(mod)) == [3]
    assert groups(FuseOps(fuse_opt_level=0)(mod)) == [1, 1, 1]
    fused = FuseOps()(mod)
    verify(fused)
    assert fused.main.bindings[0].origins == ("first", "second", "third")
    with PassContext(disabled_pass=["FuseOps"]):
        assert groups(Sequential([FuseOps()])(mod)) == []


def test_instruments_see_every_pass_and_verify_what_it_leaves() -> None:
    timing = TimingInstrument()
    with PassContext(instruments=[timing, VerifyInstrument()]):
        Sequential([InferType(), FuseOps()])(chain())
    assert [n for n, _ in timing.times] == ["InferType", "FuseOps", "sequential"]
    assert "FuseOps" in timing.render()

    @module_pass(name="Breaker")
    def breaker(mod: IRModule, ctx: PassContext) -> IRModule:
        f = mod.main
        return mod.with_function("main", f.with_body(f.bindings[1:], f.results))

    with PassContext(instruments=[VerifyInstrument()]), pytest.raises(VerifyError, match="Breaker"):
        breaker(chain())


def test_print_ir_shows_the_program_where_it_stands() -> None:
    out = io.StringIO()
    Sequential([PrintIR("before", file=out), FuseOps(), PrintIR("after", file=out)])(chain())
    text = out.getvalue()
    assert text.index("// before") < text.index("// after")
    assert "primitive=True" in text.split("// after")[1]
    assert "primitive=True" not in text.split("// after")[0]


def test_unknown_required_pass_is_an_error() -> None:
    needy = note([], "Needy", "InferTypes")
    with pytest.raises(ConfigError, match="did you mean 'InferType'"):
        Sequential([needy])(chain())


def note(ran: list[str], name: str, *required: str, change: bool = False) -> ModulePass:
    """A pass that notes that it ran, and gives the same module or an equal one."""

    @module_pass(name=name, required=required)
    def run(mod: IRModule, ctx: PassContext) -> IRModule:
        ran.append(name)
        return replace(mod) if change else mod

    assert isinstance(run, ModulePass)
    return run


def test_requirements_of_requirements_run_first_and_once_while_nothing_changes() -> None:
    ran: list[str] = []
    first = note(ran, "First")
    second = note(ran, "Second", "First")
    third = note(ran, "Third", "Second", "First")
    changing = note(ran, "Changing", "First", change=True)
    Sequential([third, first])(chain())
    assert ran == ["First", "Second", "Third", "First"]
    ran.clear()
    Sequential([second, third, changing, third])(chain())
    assert ran == ["First", "Second", "Third", "Changing", "First", "Second", "Third"]
    ran.clear()
    with PassContext(opt_level=0):  # requirements run whatever their level
        Sequential([note(ran, "Folding", "FoldConstant")])(chain())
    assert ran == ["Folding"]


def test_requirements_that_cannot_be_met_are_errors() -> None:
    second = note([], "B", "A")
    first = note([], "A", "B")
    with pytest.raises(ConfigError, match="require each other: A requires B requires A"):
        Sequential([first])(chain())
    with (
        PassContext(disabled_pass=["A"]),
        pytest.raises(ConfigError, match="B requires A: disable both or neither"),
    ):
        Sequential([second])(chain())
    with pytest.raises(ConfigError, match="pass RepresentCustomDtypes takes arguments"):
        Sequential([note([], "C", "RepresentCustomDtypes")])(chain())


@pytest.mark.parametrize("given", [
    {"disabled_pass": ["FuseOp"]}, {"required_pass": ["fuseops"]},
    {"config": {"FuseOps.maxdepth": 3}},
])  # fmt: skip
def test_a_context_refuses_names_that_nobody_has(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="did you mean 'FuseOps"):
        PassContext(**given)


def test_options_of_passes_come_from_the_context() -> None:
    with PassContext(config={"FuseOps.max_depth": 2}):
        assert groups(FuseOps()(chain())) == [2, 1]
        assert groups(FuseOps(max_depth=3)(chain())) == [3]
    with PassContext(config={"FuseOps.fuse_opt_level": 0}):
        assert groups(FuseOps()(chain())) == [1, 1, 1]
    with PassContext(config={"FuseOps.max_depth": "2"}), pytest.raises(ConfigError, match="'2'"):
        FuseOps()(chain())


def test_a_decorated_pass_tells_its_name_level_and_requirements() -> None:
    @function_pass(opt_level=1, required=["InferType"])
    class CustomPipeline:
        """Keeps every function."""

        def transform_function(self, f: Function, mod: IRModule, ctx: PassContext) -> Function:
            return f

    assert CustomPipeline().info == PassInfo("CustomPipeline", 1, ("InferType",))
    assert CustomPipeline.__doc__ == "Keeps every function."
    assert isinstance(find_pass("CustomPipeline"), CustomPipeline)

    @module_pass(opt_level=3)
    class Whole:
        def transform_module(self, mod: IRModule, ctx: PassContext) -> IRModule:
            return mod.with_function("twin", mod.main)

    assert sorted(Whole()(chain()).functions) == ["main", "twin"]


def test_type_errors_are_shown_in_the_program() -> None:
    x = Var("x", TensorType.of((2, 3), "float32"))
    i = Var("i", TensorType.of((2, 3), "int64"))
    y = Var("y")
    op = get_op("concatenate")
    f = Function((x, i), (Binding(y, Call(op, (x, i), op.make_attrs(axis=0))),), (y,))
    with pytest.raises(TypeInferenceError) as e:
        InferType()(IRModule({"main": f}))
    lines = str(e.value).splitlines()
    at = next(k for k, line in enumerate(lines) if "concatenate" in line and "%y" in line and k)
    assert "^^^^ error" in lines[at + 1]
    assert "int64" in lines[at + 1]
    assert "float32" in lines[at + 1]


def test_verifier_rejects_broken_programs() -> None:
    mod = chain()
    f = mod.main
    first = f.bindings[0]
    wrong = Binding(Var(first.var.name, TensorType.of((1,), "float32")), first.value)
    for bad, message in [
        (f.with_body([*f.bindings, first], f.results), "defined twice"),
        (f.with_body(f.bindings[::-1], f.results), "before it is defined"),
        (f.with_body([wrong], [wrong.var]), "has type"),
        (f.with_body(f.bindings, []), "returns nothing"),
    ]:
        with pytest.raises(VerifyError, match=message):
            verify(IRModule({"main": bad}))


def test_readers_that_meet_again_fuse_with_what_they_read() -> None:
    b = FunctionBuilder()
    x = b.param("x", (Dim("n"), 4))
    y = b.call("negative", x)
    z = b.call("multiply", y, b.call("sigmoid", y))
    inside = IRModule({"main": b.finish(z)})
    seen = IRModule({"main": b.finish(z, y)})  # y is a result too: it must come out
    outer = b.call("sum", y, axis=(1,), keepdims=True)  # another way out, and back in
    around = IRModule({"main": b.finish(b.call("add", z, outer))})
    assert groups(FuseOps()(inside)) == [3]
    assert groups(FuseOps(max_depth=2)(inside)) == [1, 2]
    assert groups(FuseOps()(seen)) == [1, 2]
    assert groups(FuseOps()(around)) == [1, 1, 3]
    data = np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)
    for mod in (inside, seen, around):
        verify(FuseOps()(mod))
        wanted = np.atleast_1d(evaluate(mod, data))
        got = np.atleast_1d(build(mod)(data))
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_values_that_are_read_several_times_are_not_computed_again_too_often() -> None:
    b = FunctionBuilder()
    y = b.param("x", (4,))
    for _ in range(32):  # in one kernel, the last of them would be 2**32 additions
        y = b.call("add", y, y)
    for _ in range(10):
        y = b.call("multiply", y, b.call("sigmoid", y))
    for _ in range(20):
        y = b.call("negative", y)
    mod = IRModule({"main": b.finish(y)})
    sizes = groups(FuseOps()(mod))
    assert max(sizes) == 22
    assert sizes[0] == 4  # 1, 3, 7 and 15 additions; the next would be 31
    data = np.full(4, 2.0**-40, np.float32)
    np.testing.assert_allclose(build(mod)(data), evaluate(mod, data), rtol=1e-5)


def test_builds_run_the_stronger_passes_where_they_are_asked_for() -> None:
    b = FunctionBuilder()
    x = b.param("x", (2, 4))
    y = b.call("add", b.call("exp", x), b.call("exp", x))
    mod = IRModule({"main": b.finish(y)})

    def exponentials(**context: Any) -> int:
        with PassContext(**context):
            return optimize(mod).astext().count("exp(%")

    assert exponentials() == 2
    assert exponentials(opt_level=3) == 1
    assert exponentials(required_pass=["EliminateCommonSubexpr"]) == 1
    assert exponentials(opt_level=4, disabled_pass=["EliminateCommonSubexpr"]) == 2
