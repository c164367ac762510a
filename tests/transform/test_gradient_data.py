"""Gradients through algebraic data types and the prelude: of the interpreter and of the virtual
machine, against central differences in float64."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_lstm import TREE_LSTM, random_tree, weights

import compiler
import datatypes
from compiler.boundary.data import Datum, arrays_in, held_by, rebuilt
from compiler.errors import UnsupportedError
from compiler.types.dtypes import Array

V = "Tensor[(n,), float64]"
S = "Tensor[(), float64]"


def parsed(text: str) -> compiler.IRModule:
    return compiler.parse(text, using=compiler.prelude())


def leaves(value: Any) -> Iterator[Array]:
    """The arrays of floats in a value, in order."""
    if isinstance(value, Datum | tuple):
        for x in value.fields if isinstance(value, Datum) else value:
            yield from leaves(x)
    elif np.asarray(value).dtype.kind == "f":
        yield value


def moved(value: Any, k: int, by: Array) -> Any:
    """`value` with an array added to the leaf of that number."""
    count = iter(range(10**9))

    def go(x: Any) -> Any:
        if isinstance(x, Datum):
            return Datum(x.constructor, tuple(map(go, x.fields)))
        if isinstance(x, tuple):
            return tuple(map(go, x))
        return x + by if np.asarray(x).dtype.kind == "f" and next(count) == k else x

    return go(value)


def differences(f: Callable[[Any], Array], value: Any) -> list[Array]:
    """Central differences of a scalar function, for each leaf."""
    step, out = 1e-6, []
    for k, leaf in enumerate(leaves(value)):
        made = np.zeros_like(leaf)
        for at in np.ndindex(leaf.shape):
            by = np.zeros_like(leaf)
            by[at] = step
            made[at] = (f(moved(value, k, by)) - f(moved(value, k, -by))) / (2 * step)
        out.append(made)
    return out


def agree(text: str, wrt: list[str], *args: Any) -> None:
    """Gradients of all ways of running a program, and central differences."""
    mod = parsed(text)
    made = compiler.gradient(mod, wrt)
    compiler.verify(made)
    names = [p.name for p in mod.main.params]
    value, *got = compiler.evaluate(made, *args)
    again, *compiled = compiler.build(made)(*args)
    np.testing.assert_allclose(again, value, rtol=1e-12)
    for name, g, c in zip(wrt, got, compiled, strict=True):
        at = names.index(name)

        def f(x: Any, at: int = at) -> Array:
            return compiler.evaluate(mod, *(x if k == at else a for k, a in enumerate(args)))

        want = differences(f, args[at])
        assert len(want) == len(list(leaves(g)))
        for one, two, three in zip(want, leaves(g), leaves(c), strict=True):
            np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-7)
            np.testing.assert_allclose(three, two, rtol=1e-12)


RNG = np.random.default_rng(3)


def vector(n: int = 2) -> Array:
    return RNG.uniform(-1, 1, n)


def vectors(count: int, n: int = 2) -> Datum:
    return Datum.listed([vector(n) for _ in range(count)])


SUM = f"%plus = fn (%a: {V}, %b: {V}) {{ %c = tanh(%a); %d = add(%c, %b); %d }};"
LISTS = {
    "foldl": f"{SUM} %s = @foldl(%plus, %w, %xs);",
    "foldr": f"{SUM} %s = @foldr(%plus, %w, %xs);",
    "foldr1": f"{SUM} %o = @foldr1(%plus, %xs); %s = @get_or(%o, %w);",
    "map": f"""{SUM} %f = fn (%a: {V}) {{ %b = multiply(%a, %w); %c = sin(%b); %c }};
      %ys = @map(%f, %xs); %s = @foldl(%plus, %w, %ys);""",
    "filter": f"""{SUM} %f = fn (%a: {V}) {{ %t = sum(%a); %c = greater(%t, 0.0float64); %c }};
      %ys = @filter(%f, %xs); %s = @foldl(%plus, %w, %ys);""",
    "zip": f"""{SUM} %ys = @reverse(%xs); %ps = @zip(%xs, %ys);
      %f = fn (%p: ({V}, {V})) {{ %a = %p.0; %b = %p.1; %c = multiply(%a, %b); %c }};
      %qs = @map(%f, %ps); %s = @foldl(%plus, %w, %qs);""",
    "map_accuml": f"""{SUM}
      %f = fn (%a: {V}, %b: {V}) {{ %c = multiply(%a, %b); %d = tanh(%b); %p = (%c, %d); %p }};
      %both = @map_accuml(%f, %w, %xs); %last = %both.0; %ys = %both.1;
      %s = @foldr(%plus, %last, %ys);""",
    "map_accumr": f"""{SUM}
      %f = fn (%a: {V}, %b: {V}) {{ %c = add(%a, %b); %d = multiply(%b, %c); %p = (%c, %d); %p }};
      %both = @map_accumr(%f, %w, %xs); %ys = %both.1; %s = @foldr(%plus, %w, %ys);""",
    "nth": f"""{SUM} %o = @nth(%xs, 1int64); %x = @get_or(%o, %w); %s = multiply(%x, %w);""",
    "update": f"""{SUM} %ys = @update(%xs, 1int64, %w); %zs = @concat(%ys, %xs);
      %s = @foldl(%plus, %w, %zs);""",
    "take": f"""{SUM} %a = @take(%xs, 2int64); %b = @drop(%xs, 1int64); %n = Nil;
      %c = Cons(%b, %n); %d = Cons(%a, %c); %e = @flatten(%d); %s = @foldl(%plus, %w, %e);""",
    "append": f"%ys = @append(%xs, %w); {SUM} %z = @tail(%ys); %s = @foldr(%plus, %w, %z);",
    "iterate": f"""{SUM} %f = fn (%a: {V}) {{ %b = @foldl(%plus, %a, %xs); %b }};
      %s = @iterate(%f, 3int64, %w);""",
    "compose": f"""{SUM} %f = fn (%a: {V}) {{ %b = @foldl(%plus, %a, %xs); %b }};
      %g = fn (%a: {V}) {{ %b = multiply(%a, %w); %b }};
      %h = @compose(%f, %g); %s = %h(%w);""",
    "unfoldr": f"""{SUM} %f = fn (%p: ({V}, List[{V}])) {{
        %a = %p.0; %l = %p.1; %r = match (%l) {{
          Nil => {{ %o = None; %o }},
          Cons(%x, %rest) => {{
            %b = multiply(%a, %x); %next = (%b, %rest); %out = (%next, %b); %o = Some(%out); %o
          }}
        }}; %r
      }};
      %start = (%w, %xs); %ys = @unfoldr(%f, %start); %s = @foldl(%plus, %w, %ys);""",
    "loop": f"""{SUM} %go = less(0int64, 3int64);
      %out = loop (%go, %i: Tensor[(), int64] = 0int64, %l: List[{V}] = %xs, %a: {V} = %w) {{
        %j = add(%i, 1int64); %b = @foldl(%plus, %a, %l); %m = Cons(%b, %l);
        %again = less(%j, 3int64); (%again, %j, %m, %b)
      }};
      %m = %out.1; %s = @foldl(%plus, %w, %m);""",
    "if": f"""{SUM} %t = sum(%w); %c = greater(%t, 0.0float64);
      %l = if (%c) {{ %a = Cons(%w, %xs); %a }} else {{ %xs }}; %s = @foldl(%plus, %w, %l);""",
    "nested": f"""{SUM} %o = Some(%w); %p = (%xs, %o);
      %s = match (%p) {{
        (Cons(%a, Cons(_, %rest)), Some(%b)) => {{
          %q = multiply(%a, %b); %r = @foldl(%plus, %q, %rest); %r
        }},
        (Cons(%a, Nil), Some(%b)) => {{ %q = multiply(%a, %b); %q }},
        (_, Some(%b)) => {{ %b }},
        _ => {{ %w }}
      }};""",
    "tuples": f"""{SUM} %t = (%w, %xs); %u = (%t, 3int64); %a = %u.0; %b = %a.1; %c = %a.0;
      %yes = less(0int64, 3int64);
      %v = if (%yes) {{ %a }} else {{ %x = (%c, %b); %x }}; %l = %v.1; %z = %v.0;
      %s = @foldl(%plus, %z, %l);""",
}


QUICK = ["foldl", "map", "zip", "map_accuml", "loop", "nested", "tuples"]


def lists(name: str, count: int) -> None:
    head = f"def @main(%xs: List[{V}], %w: {V}) -> {S}"
    text = f"{head} {{ {LISTS[name]} %q = multiply(%s, %w); %r = sum(%q); %r }}"
    agree(text, ["w", "xs"], vectors(count), vector())


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", QUICK)
def test_lists(name: str) -> None:
    lists(name, 3)


@pytest.mark.thorough
@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("count", [0, 1, 4])
def test_more_lists(name: str, count: int) -> None:
    lists(name, count)


# ---- trees, and types of the program -------------------------------------------------------------
SHAPES = f"""
type Net {{ Leaf(Tensor[(), int64], Tensor[(2,), float64]), Node(Net, Net), Empty,
           Gate(Option[Net], (Tensor[(2,), float64], Tensor[(), int64])) }}
def @value(%n: Net, %w: Tensor[(2,), float64]) -> Tensor[(2,), float64] {{
  %r = match (%n) {{
    Leaf(%k, %x) => {{ %c = cast(%k, dtype="float64"); %y = multiply(%x, %c); %y }},
    Node(Empty, _) => {{ %w }},
    Node(%a, %b) => {{
      %x = @value(%a, %w); %y = @value(%b, %w); %p = multiply(%x, %w); %z = add(%p, %y);
      %t = tanh(%z); %t
    }},
    Empty => {{ %t = tanh(%w); %t }},
    Gate(Some(%a), (%g, _)) => {{ %x = @value(%a, %w); %y = multiply(%x, %g); %y }},
    Gate(None, %p) => {{ %g = %p.0; %k = %p.1; %c = cast(%k, dtype="float64");
                         %y = multiply(%g, %c); %y }}
  }};
  %r
}}
def @main(%n: Net, %w: Tensor[(2,), float64]) -> {S} {{
  %v = @value(%n, %w); %m = Node(%n, %n); %u = @value(%m, %w);
  %q = multiply(%u, %v); %r = sum(%q); %r
}}
"""


def net(rng: random.Random, depth: int) -> Datum:
    kind = rng.choice(["Leaf", "Empty", "Node", "Node", "Gate"]) if depth else "Leaf"
    if kind == "Node":
        return Datum("Node", (net(rng, depth - 1), net(rng, depth - 1)))
    if kind == "Gate":
        inside = Datum("Some", (net(rng, depth - 1),)) if rng.random() < 0.5 else Datum("None")
        return Datum("Gate", (inside, (vector(), np.asarray(rng.randint(1, 3)))))
    return Datum(kind, (np.asarray(rng.randint(1, 3)), vector()) if kind == "Leaf" else ())


@pytest.mark.parametrize("seed", [1, 2])
def test_types_of_the_program(seed: int) -> None:
    agree(SHAPES, ["n", "w"], net(random.Random(seed), 3), vector())


@pytest.mark.thorough
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_any_value_of_such_a_type(seed: int) -> None:
    agree(SHAPES, ["w", "n"], net(random.Random(seed), 3), vector())


TREE = f"""
def @main(%t: Tree[({V}, Tensor[(), int64])], %w: {V}) -> {S} {{
  %f = fn (%p: ({V}, Tensor[(), int64]), %below: List[{V}]) {{
    %x = %p.0; %k = %p.1; %c = cast(%k, dtype="float64"); %y = multiply(%x, %c);
    %g = fn (%a: {V}, %b: {V}) {{ %d = multiply(%b, %w); %e = add(%a, %d); %e }};
    %z = @foldl(%g, %y, %below); %v = tanh(%z); %v
  }};
  %h = fn (%p: ({V}, Tensor[(), int64])) {{
    %x = %p.0; %k = %p.1; %y = multiply(%x, %w); %q = (%y, %k); %q
  }};
  %u = @tmap(%h, %t);
  %a = @tfold(%f, %t); %b = @tfold(%f, %u); %c = multiply(%a, %b); %s = sum(%c); %s
}}
"""


def tree(rng: random.Random, depth: int) -> Datum:
    below = [tree(rng, depth - 1) for _ in range(rng.randint(0, 3) if depth else 0)]
    return Datum("Rose", ((vector(), np.asarray(rng.randint(1, 3))), Datum.listed(below)))


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [4, 5])
def test_trees(seed: int) -> None:
    agree(TREE, ["w", "t"], tree(random.Random(seed), 2), vector())


# ---- what does not change, and what is refused ---------------------------------------------------
def test_integers_in_data_stay_as_they_are() -> None:
    mod = compiler.gradient(parsed(TREE), ["t"])
    given = tree(random.Random(6), 2)
    _, got = compiler.evaluate(mod, given, vector())

    def integers(value: Any) -> list[int]:
        if isinstance(value, Datum | tuple):
            inner = value.fields if isinstance(value, Datum) else value
            return [k for x in inner for k in integers(x)]
        return [int(value)] if value.dtype.kind == "i" else []

    assert integers(got) == integers(given)


def test_constants_of_closures_have_gradients() -> None:
    x, y = compiler.var("x", (2,), "float64"), compiler.var("y", (2,), "float64")
    weight = compiler.const(np.array([2.0, 3.0]))
    scaled = compiler.function([y], (y * weight).named("z"))
    prelude = compiler.prelude()
    types = prelude.types
    first, each = (compiler.GlobalVar(n, prelude[n].type) for n in ("head", "map"))
    xs = compiler.construct(types, "Cons", x, compiler.construct(types, "Nil", of=[x.type]))
    head = first(each(scaled, xs))
    out = compiler.cases(head, types, {"Some(%a)": lambda a: a, "None": lambda: x})
    main = compiler.function([x], compiler.call("sum", out))
    functions = {"main": main, **{n: prelude[n] for n in ("head", "map")}}
    mod = compiler.IRModule(functions, types=types)
    made = compiler.gradient(mod, ["z.1"])
    given = np.array([5.0, 7.0]), weight.data
    assert compiler.evaluate(made, *given)[1].tolist() == [5, 7]


def test_what_nothing_flows_into_is_zeros() -> None:
    mod = parsed(f"def @main(%xs: List[{V}], %w: {V}) -> {S} {{ %s = sum(%w); %s }}")
    made = compiler.gradient(mod, ["xs"])
    for run in (lambda *x: compiler.evaluate(made, *x), compiler.build(made)):
        _, got = run(vectors(3), vector())
        assert [x.tolist() for x in got.items()] == [[0, 0]] * 3


def refused(body: str, wrt: str = "w") -> str:
    mod = parsed(f"type Box[A] {{ Box(A) }} def @main(%w: {S}, %k: Tensor[(), int64]) {{ {body} }}")
    with pytest.raises(compiler.DtypelabError) as e:
        compiler.gradient(mod, [wrt])
    return str(e.value)


F = f"%f = fn (%x: {S}) {{ %y = multiply(%x, %w); %y }}; %g = fn (%x: {S}) {{ %y = sin(%x); %y }};"


def test_functions_in_data_are_refused() -> None:
    message = refused(
        f"{F} %b = Box(%f); %y = match (%b) {{ Box(%h) => {{ %z = %h(%w); %z }} }}; %y"
    )
    assert "which function it calls is known only when it runs" in message


def test_inputs_with_functions_are_refused() -> None:
    head = f"def @main(%b: Box[fn({S}) -> {S}], %w: {S})"
    text = f"type Box[A] {{ Box(A) }} {head} {{ %y = sin(%w); %y }}"
    with pytest.raises(UnsupportedError, match="functions inside of data have no gradient"):
        compiler.gradient(compiler.parse(text), ["b"])


CHOICE = f"{F} %c = greater(%k, 0int64); %h = if (%c) {{ %f }} else {{ %g }};"


@pytest.mark.parametrize(("k", "slope"), [(1, 1.0), (0, np.cos(0.5))])
def test_functions_that_branches_choose_are_followed(k: int, slope: float) -> None:
    mod = parsed(f"def @main(%w: {S}, %k: Tensor[(), int64]) {{ {CHOICE} %y = %h(%w); %y }}")
    made = compiler.gradient(mod, ["w"])
    for run in (lambda *x: compiler.evaluate(made, *x), compiler.build(made)):
        _, got = run(np.float64(0.5), np.int64(k))
        np.testing.assert_allclose(got, slope, rtol=1e-12)


def test_functions_chosen_at_run_time_that_recursions_are_given_are_refused() -> None:
    assert "no gradient" in refused(
        f"{CHOICE} %n = Nil; %l = Cons(%w, %n); "
        f"%m = @map(%h, %l); %o = @head(%m); %y = @get_or(%o, %w); %y"
    )


def test_data_of_integers_have_no_gradient() -> None:
    mod = parsed(f"def @main(%l: List[Tensor[(), int64]], %w: {S}) {{ %y = sin(%w); %y }}")
    with pytest.raises(compiler.InputError, match="%l has no gradient: it is List"):
        compiler.gradient(mod, ["l"])


@pytest.mark.thorough
def test_closures_without_end_are_refused() -> None:
    text = f"""
    def @go(%f: fn({S}) -> {S}, %k: Tensor[(), int64], %x: {S}) -> {S} {{
      %c = greater(%k, 0int64);
      %r = if (%c) {{
        %g = fn (%a: {S}) {{ %b = %f(%a); %d = sin(%b); %d }};
        %j = subtract(%k, 1int64); %y = @go(%g, %j, %x); %y
      }} else {{ %y = %f(%x); %y }};
      %r
    }}
    def @main(%w: {S}, %k: Tensor[(), int64]) {{
      %f = fn (%a: {S}) {{ %b = multiply(%a, %w); %b }}; %y = @go(%f, %k, %w); %y
    }}"""
    with pytest.raises(UnsupportedError, match="calls itself with new functions"):
        compiler.gradient(parsed(text), ["w"])


def test_types_without_end_are_refused() -> None:
    text = f"""
    type Nest[A] {{ Deep(Nest[(A, A)]), Flat(A) }}
    def @go[A](%n: Nest[A], %w: {S}) -> {S} {{
      %r = match (%n) {{ Flat(_) => {{ %w }}, Deep(%m) => {{ %y = @go(%m, %w); %y }} }}; %r
    }}
    def @main(%n: Nest[{S}], %w: {S}) {{ %y = @go(%n, %w); %y }}"""
    with pytest.raises(UnsupportedError, match="calls itself with new functions or types"):
        compiler.gradient(parsed(text), ["w"])


MUTUAL = f"""
type Even {{ Even({S}, Odd), End }}
type Odd {{ Odd({S}, Even) }}
def @even(%a: Even, %w: {S}) -> {S} {{
  %r = match (%a) {{
    Even(%x, %b) => {{ %y = @odd(%b, %w); %z = multiply(%x, %w); %q = add(%y, %z); %q }},
    End => {{ %w }}
  }};
  %r
}}
def @odd(%b: Odd, %w: {S}) -> {S} {{
  %r = match (%b) {{ Odd(%x, %a) => {{ %y = @even(%a, %w); %z = multiply(%y, %x); %z }} }};
  %r
}}
def @main(%a: Even, %w: {S}) {{ %r = @even(%a, %w); %r }}
"""


def test_types_and_functions_that_name_each_other() -> None:
    numbers = iter(np.float64([2, 3, 5, 7]))
    inner = Datum("Even", (next(numbers), Datum("Odd", (next(numbers), Datum("End")))))
    agree(MUTUAL, ["a", "w"], Datum("Even", (next(numbers), Datum("Odd", (next(numbers), inner)))),
          np.float64(0.5))  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["posit16_es1", "bfloat16"])
def test_formats_compute_the_same_bits(dtype: str) -> None:
    made = compiler.gradient(parsed(TREE_LSTM), [*weights("float32"), "t"])
    mod = datatypes.change_dtype(made, "float32", dtype, boundary=False)
    given = random_tree(random.Random(7), 3), *weights("float32").values()
    encoded = rebuilt(given, None, held_by, lambda x, _: datatypes.encode(dtype, x))
    want, got = compiler.evaluate(mod, *encoded), compiler.build(mod)(*encoded)
    for x, y in zip(arrays_in(tuple(want)), arrays_in(tuple(got)), strict=True):
        np.testing.assert_array_equal(x, y)
    whole = compiler.evaluate(made, *given)
    for x, y in zip(arrays_in(tuple(whole)), arrays_in(tuple(got)), strict=True):
        np.testing.assert_allclose(datatypes.decode(dtype, y), x, atol=0.05)
