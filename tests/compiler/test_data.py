"""Algebraic data types: definitions, constructors and cases, typed, verified, printed, read back
and run."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from data_programs import LIST, MAP, PAIRS
from same_programs import round_trip

import compiler
from compiler.boundary.data import Datum
from compiler.errors import InputError, ParseError, TypeInferenceError, VerifyError
from compiler.ir.expr import Cases, Construct
from compiler.types import exhaustive
from compiler.types.data import Anything, Form, Named, Pattern, Several, pattern_text
from compiler.types.exhaustive import missing

TYPES = compiler.parse(PAIRS).types


def test_programs_print_and_read_back() -> None:
    mod = compiler.parse(PAIRS)
    round_trip(mod)
    assert "def @map[A, B](%f: fn(A) -> B, %xs: List[A]) -> List[B] {" in mod.astext()
    assert "%right = Right[Tensor[(n, 2), float32], List[Tensor[(n, 2), float32]]](%m)" in str(mod)


@pytest.mark.parametrize("flag", [True, False])
def test_programs_are_interpreted_and_compiled(flag: bool) -> None:
    a, b = np.float32([[1, -2], [3, 4]]), np.float32([[5, 6], [-7, 8]])
    want = (a + a) * (b + a) - a if flag else np.maximum(a, 0)
    mod = compiler.parse(PAIRS)
    np.testing.assert_array_equal(compiler.evaluate(mod, a, b, flag), want)
    np.testing.assert_array_equal(compiler.build(mod)(a, b, flag), want)


# ---- what does not fit is refused, and shown in the program --------------------------------------
def refused(text: str) -> str:
    with pytest.raises(TypeInferenceError) as e:
        compiler.parse(text)
    return str(e.value)


def body(binding: str, result: str = "%r") -> str:
    return f"""{LIST} type Option[A] {{ Some(A), None }}
def @main(%x: Tensor[(), int64], %xs: List[Tensor[(), int64]]) {{
  {binding}
  {result}
}}"""


@pytest.mark.parametrize(("cases", "left"), [
    ("Nil => { %x }", "Cons(_, _)"),
    ("Cons(%h, Nil) => { %h }, Nil => { %x }", "Cons(_, Cons(_, _))"),
    ("Cons(%h, Cons(_, Nil)) => { %h }, Cons(_, Cons(_, Cons(_, _))) => { %x }", "Nil"),
    ("Cons(_, Cons(_, _)) => { %x }, Nil => { %x }", "Cons(_, Nil)"),
])  # fmt: skip
def test_a_case_that_is_missing_is_named(cases: str, left: str) -> None:
    message = refused(body(f"%r = match (%xs) {{ {cases} }};"))
    assert message.startswith(f"no case is for {left} (at %r)")
    assert f"  }};\n  ^^^^ error: no case is for {left}\n" in message


@pytest.mark.parametrize(("cases", "where"), [
    ("Cons(%h, _) => { %h }, Nil => { %x }, Cons(_, _) => { %x }", "line 3, column 60"),
    ("_ => { %x }, Nil => { %x }", "line 3, column 35"),
    ("Cons(%h, Nil) => { %h }, Cons(_, Cons(_, _)) => { %x }, Cons(%a, Nil) => { %a }, _ => { %x }",
     "line 3, column 78"),
])  # fmt: skip
def test_cases_that_nothing_reaches_are_warned_of(cases: str, where: str) -> None:
    with pytest.warns(
        compiler.errors.DtypelabWarning, match=f"{where}: no value reaches this case"
    ):
        compiler.parse(body(f"%r = match (%xs) {{ {cases} }};"))


def test_infinite_types_are_refused_where_they_arise() -> None:
    message = refused(body("%n = Nil; %r = Cons(%n, %n);"))
    assert message.startswith("an infinite type: t would be List[t] (at %r)")
    assert "%r = Cons(%n, %n);\n  ^^^^ error: an infinite type" in message
    message = refused(f"{LIST} def @main[A](%x: A) {{ %l = Cons(%x, %x); %l }}")
    assert message.startswith("an infinite type: A would be List[A] (at %l)")


@pytest.mark.parametrize(("definition", "said"), [
    ("type Stream[A] { More(A, Stream[A]) }", "Stream[A] { More(A, Stream[A]) } is an infinite"),
    ("type One { One(Other) } type Other { Other(One) }", "each value of it holds another one"),
    ("type Rose[A] { Rose(A, Box[Rose[A]]) } type Box[A] { Box(A) }", "is an infinite type"),
    ("type Two { Cons }", "Cons is a constructor of Two and of List"),
    ("type Two { Yes, Yes }", "Yes is a constructor of Two and of Two"),
    ("type Two { yes, No }", "'yes' cannot be the name of a type or constructor"),
    ("type Box[A, A] { Box(A) }", "two parameters of one name"),
    ("type Box { Box(List[Tensor[(2, n), int8]]) }", "the size n would be that of no program"),
])  # fmt: skip
def test_definitions_that_make_no_sense_are_refused(definition: str, said: str) -> None:
    assert said in refused(f"{definition} {body('', '%x')}")


def test_types_that_end_are_taken() -> None:
    text = "type Rose[A] { Rose(A, List[Rose[A]]) } type Nest[A] { Deep(Nest[(A, A)]), Flat(A) }"
    round_trip(compiler.parse(f"{text} {body('', '%x')}"))


@pytest.mark.parametrize(("binding", "said"), [
    ("%r = Cons(%x);", "Cons(A, List[A]) of List[A] has 2 fields, not 1 (at %r)"),
    ("%r = Cons(%xs, %xs);", "field 1 of Cons must be List[List[Tensor[(), int64]]], not List["),
    ("%r = Some(%x, %x);", "Some(A) of Option[A] has 1 field, not 2 (at %r)"),
    ("%r = Nil;", "nothing tells what A of List[A] is here: write Nil[A] with types"),
    ("%r = Nil[Tensor[(), int64], Tensor[(), int64]];", "List[A] takes 1 types, not 2"),
    ("%r = match (%xs) { Some(%y) => { %y }, None => { %x } };", "Some is a form of Option[A]"),
    ("%r = match (%x) { Nil => { %x }, _ => { %x } };", "Nil is a form of List[A], not of Tensor"),
    ("%r = match (%xs) { Cons(%y) => { %y }, _ => { %x } };", "has 2 fields, not 1 (at %r)"),
    ("%r = match (%xs) { Cons(%y, %z) => { %z }, _ => { %x } };", "case 0 gives List[Tensor"),
    ("%r = match (%xs) { (%y, %z) => { %y } };", "a pattern of 2 fields, but a value of List["),
    ("%r = match (%xs) { };", "there is no case (at %r)"),

])  # fmt: skip
def test_constructors_and_patterns_that_do_not_fit_are_refused(binding: str, said: str) -> None:
    assert said in refused(body(binding))


@pytest.mark.parametrize(("text", "said"), [
    (body("%r = Kons(%x, %xs);"), "line 3, column 8: unknown constructor 'Kons'; did you mean"),
    (body("%r = match (%xs) { Nill => { %x } };"), "unknown constructor 'Nill'; did you mean"),
    (body("%r = match (%xs) { Cons(%y, %y) => { %y } };"), "%y stands in this pattern twice"),
    (body("", "%x").replace("%xs: List", "%xs: Lits"), "unknown type 'Lits'; did you mean 'List'"),
    (f"{LIST} {body('', '%x')}", "List is defined twice"),
    (f"type Box {{ Box(List) }} {body('', '%x')}", "line 1, column 16: List takes 1 types, not 0"),
    (body("%r = fn (%l: List) { %l };"), "line 3, column 16: List takes 1 types, not 0"),
])  # fmt: skip
def test_names_that_nothing_has_are_refused(text: str, said: str) -> None:
    with pytest.raises(ParseError) as e:
        compiler.parse(text)
    assert said in str(e.value)


def test_generic_functions_are_called_at_any_type_and_are_no_values_of_unknown_types() -> None:
    text = f"{LIST} {MAP} {body('', '%x').replace(LIST, '')}"
    with_value = text.replace("%x\n}", "%m = @map;\n  %x\n}")
    assert "@map of type fn(fn(A) -> B, List[A]) -> List[B] is generic, and no value" in refused(
        with_value
    )
    nothing = f"{text} def @none[A](%x: Tensor[(), int64]) -> List[A] {{ %n = Nil[A]; %n }}"
    assert "no operand tells what A is in a call" in refused(nothing)


INT = "Tensor[(), int64]"
VALUES = f"""
def @id[A](%x: A) -> A {{ %x }}
def @twice[A](%f: fn(A) -> A) -> fn(A) -> A {{ %g = @compose(%f, %f); %g }}
def @main(%xs: List[{INT}], %xss: List[List[{INT}]]) {{
  %i = @id; %a = @map(%i, %xs);
  %l = @length; %b = @map(%l, %xss);
  %m = @map; %inc = fn (%x: {INT}) {{ %y = add(%x, 1int64); %y }}; %c = %m(%inc, %xs);
  %t = @tail; %u = @twice(%t); %d = @map(%u, %xss);
  (%a, %b, %c, %d)
}}"""


def test_generic_functions_are_values_of_the_types_that_are_meant() -> None:
    mod = compiler.parse(VALUES, using=compiler.prelude())
    round_trip(mod)
    lists = Datum.listed([Datum.listed(range(k)) for k in range(4)])
    for run in (lambda *x: compiler.evaluate(mod, *x), compiler.build(mod)):
        a, b, c, d = run(Datum.listed([5, 6]), lists)
        assert (a.items(), b.items(), c.items()) == ([5, 6], [0, 1, 2, 3], [6, 7])
        assert [x.items() for x in d.items()] == [[], [], [], [2]]


def test_functions_are_no_operands() -> None:
    text = VALUES.replace("@map(%i, %xs)", "@map(@id, %xs)")
    with pytest.raises(ParseError, match="@id is a function: as a value it has a name, %f = @id;"):
        compiler.parse(text, using=compiler.prelude())


def test_the_verifier_knows_definitions() -> None:
    mod = compiler.parse(PAIRS)
    (value,) = [b.value for b in mod["map"].bindings]
    assert isinstance(value, Cases)
    for types in ({}, {n: d for n, d in mod.types.items() if n != "List"}):
        with pytest.raises(VerifyError, match="unknown type 'List'"):
            compiler.verify(replace(mod, types=types))
    more = replace(mod.types["List"], constructors=mod.types["List"].constructors[::-1])
    with pytest.raises(VerifyError, match="the module has no definition type List"):
        compiler.verify(replace(mod, types={**mod.types, "List": more}))
    odd = {**mod.types, "List": compiler.TypeDef("List", (), ())}
    with pytest.raises(VerifyError, match="infinite type"):
        compiler.verify(replace(mod, types=odd))


def test_modules_that_differ_in_data_are_not_equal() -> None:
    mod = compiler.parse(body("%r = Some(%x);"))
    for change in (("Some(%x)", "Some(%r0)"), ("Some(A), None", "Some(A), None, More")):
        text = body("%r0 = add(%x, %x);\n%r = Some(%x);").replace(*change)
        assert not compiler.structural_equal(mod, compiler.parse(text))


# ---- patterns ------------------------------------------------------------------------------------
def form(name: str, *fields: Pattern) -> Form:
    definition = next(d for d in TYPES.values() if any(c.name == name for c in d.constructors))
    return Form(definition, name, fields)


ANY = Anything()


@pytest.mark.parametrize(("patterns", "left"), [
    ([], "_"),
    ([Named()], None),
    ([form("Nil"), form("Cons", ANY, ANY)], None),
    ([form("Left", form("Nil")), form("Right", ANY)], "Left(Cons(_, _))"),
    ([Several((form("Nil"), ANY)), Several((ANY, form("Nil")))], "(Cons(_, _), Cons(_, _))"),
    ([Several((form("Nil"), ANY)), Several((ANY, form("Nil"))),
      Several((form("Cons", ANY, ANY), form("Cons", ANY, ANY)))], None),
    ([Several((form("Left", ANY), form("Left", ANY))),
      Several((form("Right", ANY), ANY))], "(Left(_), Right(_))"),
])  # fmt: skip
def test_what_patterns_leave_is_found(patterns: list[Pattern], left: str | None) -> None:
    found = missing(tuple(patterns))
    assert (None if found is None else pattern_text(found, iter(()))) == left


def test_patterns_that_are_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exhaustive, "MOST_MATRICES", 100)
    rng = random.Random(1)
    fields = [ANY, ANY, ANY, form("Nil"), form("Cons", ANY, ANY)]
    rows = [Several(tuple(rng.choices(fields, k=14))) for _ in range(40)]
    with pytest.raises(TypeInferenceError, match="too many patterns"):
        missing((*rows, Named()))


# ---- values in and out ---------------------------------------------------------------------------
SUMS = f"""{LIST} {MAP}
def @main(%xs: List[Tensor[(), int64]], %k: Tensor[(), int64]) {{
  %f = fn (%x: Tensor[(), int64]) {{
    %y = add(%x, %k);
    %y
  }};
  %ys = @map(%f, %xs);
  %p = (%ys, %k);
  (%ys, %p)
}}"""


def test_values_go_in_and_out_and_executables_keep_their_types(tmp_path: Path) -> None:
    mod = compiler.parse(SUMS)
    exe = compiler.build(mod)
    exe.save(tmp_path / "exe")
    given = Datum.listed(range(5))
    for run in (lambda *x: compiler.evaluate(mod, *x), exe, compiler.load(tmp_path / "exe")):
        ys, (again, k) = run(given, 3)
        assert ys.items() == again.items() == [3, 4, 5, 6, 7]
        assert k == 3
        assert {y.dtype.name for y in ys.items()} == {"int64"}
    assert "xs: List[Tensor[(), int64]], k: Tensor[(), int64] -> " in exe.signature()
    for instruction in ("= tag r", " is Nil goto ", "= field 0 of r", "= Cons(r"):
        assert instruction in exe.as_text()


def test_lists_are_made_and_read_in_python() -> None:
    assert Datum.listed([1, 2]).items() == [1, 2]
    assert Datum.listed([]).items() == []
    with pytest.raises(InputError, match="Some\\(3\\) is no list of Cons and Nil"):
        Datum("Cons", (1, Datum("Some", (3,)))).items()


def test_long_lists_need_no_stack() -> None:
    mod = compiler.parse(SUMS)
    given = Datum.listed(range(1500))
    for run in (lambda *x: compiler.evaluate(mod, *x), compiler.build(mod)):
        assert run(given, 1)[0].items() == list(range(1, 1501))
    assert str(given).startswith("Cons(0, Cons(1, ")
    assert len(str(given)) < 200


@pytest.mark.parametrize(("value", "said"), [
    (3, "input 'xs' must hold a compiler.Datum of List[Tensor[(), int64]], not int 3"),
    (Datum("Cons", (1,)), "input 'xs': Cons of List[Tensor[(), int64]] has 2 fields"),
    (Datum("Some", (1,)), "unknown constructor 'Some'; known: Cons, Nil"),
    (Datum.listed([1.5]), "input 'xs' must be int64, not float64"),
    (Datum.listed([[1]]), "input 'xs' must have rank 0"),
])  # fmt: skip
def test_values_of_other_types_are_refused(value: object, said: str) -> None:
    mod = compiler.parse(SUMS)
    for run in (lambda *x: compiler.evaluate(mod, *x), compiler.build(mod)):
        with pytest.raises(InputError) as e:
            run(value, 3)
        assert said in str(e.value)


def test_sizes_that_nothing_shows_are_an_error() -> None:
    t = "Tensor[(n, 2), float32]"
    mod = compiler.parse(f"""{LIST} def @main(%xs: List[{t}]) {{
      %r = match (%xs) {{
        Nil => {{ %z = broadcast_to(0.0float32, shape=[n, 2]); %z }},
        Cons(%x, _) => {{ %x }}
      }};
      %r
    }}""")
    ones = np.ones((3, 2), np.float32)
    for run in (lambda x: compiler.evaluate(mod, x), compiler.build(mod)):
        np.testing.assert_array_equal(run(Datum.listed([ones])), ones)
        with pytest.raises(InputError, match="the size of dimension n is not known"):
            run(Datum.listed([]))


@pytest.mark.parametrize("target", ["llvm", "c"])
def test_what_is_not_made_for_data_says_so(target: str) -> None:
    text = "def @main(%x: Tensor[(2,), float32]) { %n = Nil; %l = Cons(%x, %n); %r = @head(%l);"
    mod = compiler.parse(f"{text} %y = @get_or(%r, %x); %y }}", using=compiler.prelude())
    x = np.float32([1, -2])
    np.testing.assert_array_equal(compiler.build(mod, target=target)(x), x)
    with pytest.raises(compiler.UnsupportedError, match="the graph executor runs no control flow"):
        compiler.create_executor("graph", mod, target).evaluate()


def test_data_have_gradients() -> None:
    text = "def @main(%x: Tensor[(), float32]) { %n = Nil; %l = Cons(%x, %n); %r = match (%l) {"
    mod = compiler.parse(f"{LIST} {text} Cons(%y, _) => {{ %y }}, _ => {{ %x }} }}; %r }}")
    assert compiler.build(compiler.gradient(mod, wrt=["x"]))(np.float32(3)) == [3, 1]


def test_types_are_told_where_fields_tell_them() -> None:
    mod = compiler.parse(body("%r = Some(%x);"))
    (b,) = mod.main.bindings
    assert isinstance(b.value, Construct)
    assert b.value.types == (b.value.definition.fields("Some", b.value.types)[0],)
    assert str(b.var.type) == "Option[Tensor[(), int64]]"


# ---- programs made in Python ---------------------------------------------------------------------
X = compiler.var("x", (), "int64")


def test_programs_are_made_in_python() -> None:
    types = compiler.prelude().types
    nil = compiler.construct(types, "Nil", of=[X.type])
    xs = compiler.construct(types, "Cons", X, compiler.construct(types, "Cons", X + 1, nil))
    y = compiler.cases(xs, types, {
        "Cons(_, Cons(%y, _))": lambda y: y * X,
        "Cons(%y, Nil)": lambda y: y,
        "Nil": lambda: X,
    })  # fmt: skip
    mod = compiler.IRModule({"main": compiler.function([X], y)}, types=types)
    round_trip(mod)
    assert compiler.evaluate(mod, 6) == compiler.build(mod)(6) == 42


def test_cases_made_in_python_that_nothing_reaches_are_warned_of() -> None:
    types = compiler.prelude().types
    some = compiler.construct(types, "Some", X)
    cases = {"Some(%y)": lambda y: y, "_": lambda: X, "None": lambda: X}
    with pytest.warns(compiler.errors.DtypelabWarning, match="no value reaches the case 'None'"):
        compiler.cases(some, types, cases)


@pytest.mark.parametrize(("patterns", "said"), [
    (["Some(%y)"], "no case is for None"),
    (["Some(%y) None"], "'Some\\(%y\\) None' is more than a pattern"),
    (["Sum(%y)"], "unknown constructor 'Sum'; did you mean 'Some'"),
    (["Nil"], "Nil is a form of List"),
])  # fmt: skip
def test_cases_made_in_python_that_do_not_fit_are_refused(patterns: list[str], said: str) -> None:
    types = compiler.prelude().types
    some = compiler.construct(types, "Some", X)
    with pytest.raises(compiler.DtypelabError, match=said):
        compiler.cases(some, types, dict.fromkeys(patterns, lambda *_: X))
