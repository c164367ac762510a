"""Branches, loops, calls, recursion and closures: typed, verified, printed, read back, run."""

import numpy as np
import pytest
from language import BRANCH, LOOP, PROGRAMS, RECURSION, Program

import compiler
from compiler.errors import InputError, TypeInferenceError, VerifyError
from compiler.ir.expr import If, names_in, nested
from compiler.ir.substitution import substitute_function
from compiler.transform.dead_code import DeadCodeElimination
from compiler.transform.preparation import prepare
from compiler.types.tokens import ParseError

by_name = pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)


def same(got: object, want: object) -> None:
    for a, b in zip(*((x if isinstance(x, list) else [x]) for x in (got, want)), strict=True):
        np.testing.assert_allclose(np.asarray(a), b, rtol=1e-5, atol=1e-6)


@by_name
def test_programs_print_and_read_back(program: Program) -> None:
    mod = compiler.parse(program.source)
    compiler.verify(mod)
    text = mod.astext(show_meta_data=True)
    again = compiler.parse(text)
    assert compiler.structural_equal(mod, again)
    assert again.astext(show_meta_data=True) == text


@by_name
@pytest.mark.parametrize("size", [1, 2, 5])
def test_programs_are_interpreted(program: Program, size: int) -> None:
    inputs = program.inputs(size)
    same(compiler.evaluate(compiler.parse(program.source), *inputs), program.expected(*inputs))


@by_name
def test_passes_go_through_control_flow(program: Program) -> None:
    with compiler.PassContext(instruments=[compiler.VerifyInstrument()]):
        mod = compiler.optimize(compiler.parse(program.source))
    inputs = program.inputs(3)
    same(compiler.evaluate(mod, *inputs), program.expected(*inputs))
    assert compiler.structural_equal(mod, compiler.parse(mod.astext(show_meta_data=True)))


def test_passes_descend_into_branches() -> None:
    text = BRANCH.source.replace("%z = multiply(%d, %x);", "%q = multiply(2.0float32, 3.0float32);"
                                 "%u = add(%d, %x); %z = multiply(%d, %q);")  # fmt: skip
    branch = next(b.value for b in prepare(compiler.parse(text)).main.bindings if nested(b.value))
    assert isinstance(branch, If)
    assert [b.var.name for b in branch.then.bindings] == ["z", "w"]


def test_values_that_only_a_branch_reads_are_live() -> None:
    mod = DeadCodeElimination()(compiler.parse(BRANCH.source))
    assert "%d = add(%x, %x)" in mod.astext()


def test_substitution_keeps_names_apart() -> None:
    mod = compiler.parse(BRANCH.source)
    branch = next(b.value for b in mod.main.bindings if isinstance(b.value, If))
    d = next(b.var for b in mod.main.bindings if b.var.name == "d")
    z = compiler.Var("z", d.type)
    changed = substitute_function(branch.then, {d: z})
    assert z in changed.captures
    assert names_in(changed) == {"z", "x", "z_1", "w"}


def errors_of(source: str) -> str:
    with pytest.raises(TypeInferenceError) as e:
        compiler.parse(source)
    return str(e.value)


def test_type_errors_show_the_program_at_the_offending_binding() -> None:
    text = errors_of(BRANCH.source.replace("subtract(%d, 1.0float32)", "subtract(%d, 1int64)"))
    lines = text.splitlines()
    at = next(k for k, line in enumerate(lines) if "^^^^ error" in line)
    assert "%z = subtract(%d, 1int64);" in lines[at - 1]
    assert any("def @main" in line for line in lines[:at])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("%w = nn.relu(%z)", "%w = sum(%z)", "one branch gives Tensor[(), float32], the other"),
        ("if (%c)", "if (%d)", "a condition must be Tensor[(), bool]"),
    ],
)
def test_branches_must_agree(old: str, new: str, message: str) -> None:
    assert message in errors_of(BRANCH.source.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("(%again, %j, %b, %row)", "(%again, %j, %j, %row)", "operand 1 of the next iteration"),
        ("(%again, %j, %b, %row)", "(%j, %j, %b, %row)", "what tells a loop to go on"),
        ("loop steps (", "loop (", "needs a name for their number"),
        ("= 0int64,", "= 0.0float32,", "operand 0 of the loop must be Tensor[(), int64]"),
    ],
)
def test_loops_keep_the_type_of_their_state(old: str, new: str, message: str) -> None:
    assert message in errors_of(LOOP.source.replace(old, new))


def test_recursion_needs_a_declared_result() -> None:
    head = "%a: Tensor[(m, 4), float32]) -> Tensor[(m, 4), float32]"
    assert "write the type of its result" in errors_of(
        RECURSION.source.replace(head, "%a: Tensor[(m, 4), float32])")
    )
    wrong = errors_of(RECURSION.source.replace(head, head.replace("-> Tensor[(m", "-> Tensor[(k")))
    assert "one branch gives" in wrong
    assert "has no function @more" in errors_of(RECURSION.source.replace("= @times", "= @more"))


def test_calls_check_their_operands() -> None:
    text = errors_of(RECURSION.source.replace("@times(%k, %x)", "@times(%x, %x)"))
    assert "operand 0 of @times must be Tensor[(), int64]" in text
    assert "@times takes 2 operands, not 1" in errors_of(
        RECURSION.source.replace("@times(%k, %x)", "@times(%k)")
    )
    assert "is called, but is no function" in errors_of(
        RECURSION.source.replace("@times(%k, %x)", "%x(%k)")
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("} else {", "} otherwise {", "line 8, column 5: expected else, found 'otherwise'"),
        ("if (%c)", "if (%e)", "line 4, column 12: %e is not defined"),
        ("%w = nn", "%z = nn", "line 6, column 5: %z is defined twice"),
        ("%r\n", "%z\n", "line 13, column 3: %z is not defined"),
    ],
)
def test_parse_errors_point_at_line_and_column(old: str, new: str, message: str) -> None:
    with pytest.raises(ParseError) as e:
        compiler.parse(BRANCH.source.replace(old, new))
    assert str(e.value) == message


def test_verifier_rejects_what_is_not_in_scope() -> None:
    mod = compiler.parse(BRANCH.source)
    f = mod.main
    late = f.with_body([f.bindings[1], f.bindings[0], f.bindings[2]], f.results)
    with pytest.raises(VerifyError, match="%d is used before it is defined"):
        compiler.verify(mod.with_function("main", late))
    lone = compiler.IRModule({"main": compiler.parse(RECURSION.source).main})
    with pytest.raises(VerifyError, match="no function @times"):
        compiler.verify(lone)


def test_endless_recursion_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compiler.interpret.graph.MOST_FRAMES", 500)
    endless = compiler.parse(RECURSION.source.replace("subtract(%i, 1int64)", "add(%i, 1int64)"))
    with pytest.raises(InputError, match="calls are under way"):
        compiler.evaluate(endless, *RECURSION.inputs(2))


def test_a_deep_recursion_runs() -> None:
    mod = compiler.parse(RECURSION.source.replace("multiply(%a, 2.0", "add(%a, 1.0"))
    x = np.zeros((1, 4), np.float32)
    assert compiler.evaluate(mod, x, np.asarray(3000)).max() == 3000


def test_sizes_that_contradict_each_other_are_named() -> None:
    source = """
def @main(%x: Tensor[(n, 2), float32], %y: Tensor[(k, 2), float32]) -> Tensor[(m, 2), float32] {
  %a = match(%x, Tensor[(m, 2), float32]);
  %b = match(%y, Tensor[(m, 2), float32]);
  %c = add(%a, %b);
  %c
}
"""
    mod = compiler.parse(source)
    x = np.ones((3, 2), np.float32)
    assert compiler.evaluate(mod, x, x).shape == (3, 2)
    with pytest.raises(InputError, match=r"%b has shape \(5, 2\), but \(m, 2\) with m = 3"):
        compiler.evaluate(mod, x, np.ones((5, 2), np.float32))
