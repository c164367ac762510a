"""Patterns: what they find, and the reason wherever they do not fit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
from compiler.errors import DtypelabError, TypeInferenceError
from compiler.ir.expr import Call, Constant, Value, Var
from compiler.op.opdef import OpDef
from compiler.passes.rewrite import Rewriter, call
from compiler.pattern import (
    Found,
    Mismatch,
    Pattern,
    Refusal,
    Rule,
    RulePass,
    any_order,
    apply_rules,
    constant,
    dominates,
    either,
    find_all,
    is_op,
    item,
    match,
    rule,
    tuple_of,
    wildcard,
)
from compiler.transform import Sequential

SOURCE = """
def @main(%x: Tensor[(1, 4, 6, 6), float32], %w: Tensor[(4, 4, 3, 3), float32])
    -> (Tensor[(1, 4, 6, 6), float32], Tensor[(1, 2, 6, 6), float32]) {
  %c = nn.conv2d(%x, %w, padding=[1, 1, 1, 1]);
  %r = nn.relu(%c);
  %s = sigmoid(%c);
  %m = multiply(%r, %s);
  %d = multiply(2.0float32, %m);
  %e = add(%d, %r);
  %t = split(%e, sizes=[2, 2], axis=1);
  %p = %t.0;
  %q = %t.1;
  %u = (%p, %q);
  (%e, %p)
}
"""
F = compiler.parse(SOURCE).main
VARS = {b.var.name: b.var for b in F.bindings} | {p.name: p for p in F.params}
CONV = is_op("nn.conv2d", groups=1)


def found(pattern: Pattern, name: str) -> Found:
    result = match(pattern, VARS[name], F)
    assert isinstance(result, Found), result
    return result


def reason(pattern: Pattern, name: str) -> str:
    result = match(pattern, VARS[name], F)
    assert isinstance(result, Mismatch), result
    return str(result)


def test_operators_operands_and_attributes() -> None:
    hit = found(is_op("nn.relu")(CONV.bind("conv")(wildcard("x"), wildcard("w"))), "r")
    assert {k: str(v) for k, v in hit.values.items()} == {"conv": "%c", "x": "%x", "w": "%w"}
    assert [b.var.name for b in hit.bindings] == ["r", "c"]
    found(is_op("nn.conv2d", padding=lambda p: sum(p) == 4), "c")
    assert reason(is_op("nn.conv2d", groups=2), "c") == "%c has groups=1, not 2"
    assert reason(is_op("nn.conv2d", padding=lambda p: sum(p) == 3), "c").startswith(
        "%c has padding=(1, 1, 1, 1)"
    )
    assert reason(is_op("nn.relu")(is_op("nn.dense")), "r") == "%c is nn.conv2d, not nn.dense"
    assert reason(CONV(wildcard()), "c") == "%c has 2 operands, not 1"
    assert reason(is_op("nn.relu"), "x") == "%x is not computed here, not nn.relu"
    assert reason(CONV(wildcard(), constant()), "c") == "%w is no constant"
    assert reason(is_op("nn.relu"), "u") == "%u is tuple, not nn.relu"


def test_constants_types_and_conditions() -> None:
    doubled = any_order(is_op("multiply"), wildcard("y"), constant("two", 2.0))
    assert found(doubled, "d").constant("two").data == 2
    three = any_order(is_op("multiply"), wildcard(), constant("", 3.0))
    assert "is not 3.0" in reason(three, "d")
    found(wildcard("y").typed("float32", rank=4), "x")
    assert reason(wildcard().typed("int8"), "x") == "%x is of float32, not of int8"
    assert reason(wildcard().typed(rank=2), "x") == "%x has rank 4, not 2"
    assert reason(wildcard().typed(rank=2), "t").endswith("and is no tensor")
    assert reason(wildcard("y").where(lambda f: f"is {f['y']}"), "x") == "%x is %x"


def test_used_once_counts_every_reader_and_results() -> None:
    found(is_op("multiply")(wildcard(), is_op("sigmoid").once()), "m")
    assert reason(is_op("sigmoid")(CONV.once()), "s") == "%c is read 2 times, not once"
    assert reason(is_op("add").once(), "e") == "%e is read 2 times, not once"


def test_alternatives_tell_all_reasons_the_deepest_first() -> None:
    options = either(is_op("nn.dense"), is_op("nn.relu")(is_op("nn.dense")), is_op("nn.gelu"))
    assert reason(options, "r") == (
        "%c is nn.conv2d, not nn.dense; or %r is nn.relu, not nn.dense; "
        "or %r is nn.relu, not nn.gelu"
    )
    assert found(is_op("tanh") | is_op("nn.relu").bind("y"), "r").var("y") is VARS["r"]


def test_one_name_is_one_value() -> None:
    twice = is_op("multiply")(is_op("nn.relu")(wildcard("x")), is_op("sigmoid")(wildcard("x")))
    assert found(twice, "m").var("x") is VARS["c"]
    other = is_op("add")(is_op("multiply")(constant(), wildcard("x")), wildcard("x"))
    assert reason(other, "e") == "%r is not %m, which 'x' was before"


def test_tuples_and_their_fields() -> None:
    found(tuple_of(item(is_op("split").bind("t"), 0), item(is_op("split").bind("t"), 1)), "u")
    assert reason(item(is_op("split"), 1), "p") == "%p is field 0, not field 1"
    assert reason(tuple_of(wildcard()), "u") == "%u is tuple, not 1 fields"


DIAMOND = """
def @main(%x: Tensor[(1, 4, 6, 6), float32], %w: Tensor[(4, 4, 3, 3), float32])
    -> (Tensor[(1, 4, 6, 6), float32], Tensor[(1, 4, 6, 6), float32]) {
  %c = nn.conv2d(%x, %w, padding=[1, 1, 1, 1]);
  %r = nn.relu(%c);
  %s = sigmoid(%c);
  %b = add(%s, %x);
  %m = multiply(%r, %b);
  %k = nn.conv2d(%m, %w, padding=[1, 1, 1, 1]);
  %o = nn.relu(%k);
  %n = tanh(%k);
  %l = multiply(%o, %o);
  (%l, %n)
}
"""


def test_dominates_follows_every_path_and_lets_none_out() -> None:
    f = compiler.parse(DIAMOND).main
    at = {b.var.name: b.var for b in f.bindings}
    path = either(is_op("nn.relu"), is_op("sigmoid"), is_op("add"))
    pattern = dominates(CONV.bind("conv"), path, is_op("multiply"))
    hit = match(pattern, at["m"], f)
    assert isinstance(hit, Found)
    assert hit.var("conv") is at["c"]
    assert sorted(b.var.name for b in hit.bindings) == ["b", "c", "m", "r", "s"]

    def why(p: Pattern, name: str) -> str:
        out = match(p, at[name], f)
        assert isinstance(out, Mismatch)
        return str(out)

    leaves = why(pattern, "l")  # tanh reads the convolution as well
    assert leaves == "%k is read by others than what leads to the last value"
    narrow = dominates(CONV, is_op("nn.relu"), is_op("multiply"))
    assert why(narrow, "m") == "%c is read by others than what leads to the last value"
    assert "not nn.conv2d" in why(dominates(CONV, is_op("tanh"), is_op("multiply")), "m")
    both = dominates(either(CONV, is_op("sigmoid")), is_op("nn.relu") | is_op("add"),
                     is_op("multiply"))  # fmt: skip
    assert why(both, "m").endswith("has two parents before it: %s and %c")
    assert why(pattern, "r") == "%r is nn.relu, not multiply"


def test_unknown_operators_and_attributes_are_errors() -> None:
    with pytest.raises(DtypelabError, match=r"nn\.conv2d"):
        is_op("nn.conv2")
    with pytest.raises(DtypelabError, match="groups"):
        is_op("nn.conv2d", group=1)


# ---- rules ---------------------------------------------------------------------------------------
@rule("twice", any_order(is_op("multiply"), wildcard("x"), constant("", 2.0)))
def twice(found: Found, r: Rewriter) -> Value | str:
    if isinstance(found["x"], Constant):
        return "a constant is folded anyway"
    return call("add", found["x"], found["x"])


class Twice(RulePass):
    name = "Twice"
    rules = (twice,)


def test_a_rule_rewrites_and_tells_what_it_leaves() -> None:
    mod = compiler.parse(SOURCE)
    out = Sequential([Twice()])(mod)
    compiler.verify(out)
    assert "%d = add(%m, %m);" in str(out)
    assert {b.var.name: b.origins for b in out.main.bindings}.keys() == VARS.keys() - {
        "x",
        "w",
        "u",
        "q",
    }
    rng = np.random.default_rng(0)
    args = [rng.standard_normal(p.type.shape).astype(np.float32) for p in mod.main.params]
    for a, b in zip(compiler.evaluate(mod, *args), compiler.evaluate(out, *args), strict=True):
        assert np.array_equal(a, b)
    refused = {r.value: r.reason for r in Twice().explain(mod)}
    assert refused.keys() == VARS.keys() - {"x", "w", "d"}  # a reason for everything else
    assert refused["c"] == "%c is nn.conv2d, not multiply"
    assert refused["m"] == "%s is no constant; or %r is no constant"


def test_what_a_rule_says_itself_is_a_reason_too() -> None:
    mod = compiler.parse("""
def @main(%x: Tensor[(2,), float32]) -> Tensor[(2,), float32] {
  %c = multiply(2.0float32, 3.0float32);
  %y = multiply(%x, %c);
  %y
}
""")
    (refusal, _) = Twice().explain(mod)
    assert str(refusal) == "%c: twice does not apply: a constant is folded anyway"
    assert Sequential([Twice()])(mod) is mod


def test_results_keep_a_value_of_their_own() -> None:
    mod = compiler.parse("""
def @main(%x: Tensor[(2,), float32]) -> Tensor[(2,), float32] {
  %y = nn.dropout(%x);
  %y
}
""")
    gone = Rule("gone", is_op("nn.dropout")(wildcard("x")), lambda found, _: found["x"])
    refusals: list[Refusal] = []
    assert apply_rules(mod.main, [gone], refusals) is mod.main
    assert refusals == [
        Refusal("gone", "y", "the value is a result, and must keep a value of its own")
    ]


def test_a_rule_that_changes_a_type_is_an_error() -> None:
    wrong = Rule("wrong", CONV(wildcard("x"), wildcard()),
                 lambda found, _: call("cast", found["x"], dtype="int8"))  # fmt: skip
    with pytest.raises(TypeInferenceError, match="rule wrong gives %c type"):
        apply_rules(F, [wrong])


OPS = ("nn.relu", "sigmoid", "add", "multiply")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(OPS), st.integers(0, 4), st.integers(0, 4)),
                min_size=1, max_size=9))  # fmt: skip
def test_patterns_of_random_functions_find_them(plan: list[tuple[str, int, int]]) -> None:
    """The pattern written from a value finds it and those like it, and no others."""
    b = compiler.FunctionBuilder()
    values = [b.param("x", (3,))]
    for op, i, j in plan:
        a, c = values[-1 - i % len(values)], values[-1 - j % len(values)]
        values.append(b.call(op, *((a, c) if op in ("add", "multiply") else (a,))))
    f = b.finish(values[-1])
    made = {x.var: x.value for x in f.bindings}

    def pattern(v: Var) -> Pattern:
        value = made.get(v)
        if not isinstance(value, Call):
            return wildcard("x")
        assert isinstance(value.op, OpDef)
        return is_op(value.op.name)(*(pattern(a) for a in value.args if isinstance(a, Var)))

    def fits(v: Var, w: Var, leaf: dict[str, Var]) -> bool:
        x, y = made.get(v), made.get(w)
        if not isinstance(x, Call):
            return leaf.setdefault("x", w) is w
        return (
            isinstance(y, Call)
            and x.op is y.op
            and all(fits(a, c, leaf) for a, c in zip(x.args, y.args, strict=True))
        )

    wanted = pattern(values[-1])
    for binding, result in find_all(wanted, f):
        assert isinstance(result, Found) == fits(values[-1], binding.var, {}), str(result)
    assert isinstance(match(wanted, values[-1], f), Found)
