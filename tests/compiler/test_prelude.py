"""The prelude's functions, interpreted and compiled, against Python on random lists and trees."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache, reduce
from itertools import accumulate
from typing import Any

import pytest

import compiler
from compiler.boundary.data import Datum

INT, FLAG = "Tensor[(), int64]", "Tensor[(), bool]"
CLOSURES = f"""
  %sub = fn (%x: {INT}, %y: {INT}) {{ %d = subtract(%x, %y); %d }};
  %twice = fn (%x: {INT}) {{ %d = multiply(%x, 2int64); %d }};
  %plus = fn (%x: {INT}) {{ %d = add(%x, %n); %d }};
  %big = fn (%x: {INT}) {{ %d = greater(%x, 0int64); %d }};
  %step = fn (%x: {INT}, %y: {INT}) {{
    %s = add(%x, %y); %p = multiply(%x, %y); %t = (%s, %p); %t
  }};
  %down = fn (%x: {INT}) {{
    %go = greater(%x, 0int64);
    %r = if (%go) {{
      %less = subtract(%x, 3int64); %t = (%less, %x); %o = Some(%t); %o
    }} else {{ %o = None; %o }};
    %r
  }};
  %node = fn (%x: {INT}, %below: List[{INT}]) {{
    %f = fn (%a: {INT}, %b: {INT}) {{ %m = maximum(%a, %b); %m }};
    %deep = @foldl(%f, 0int64, %below); %r = add(%deep, 1int64); %r
  }};
"""
CALLS = """
  %0 = @length(%xs); %1 = @sum(%xs); %2 = @tail(%xs); %3 = @head(%xs); %4 = @nth(%xs, %n);
  %5 = @update(%xs, %n, 77int64); %6 = @take(%xs, %n); %7 = @drop(%xs, %n);
  %8 = @map(%twice, %xs); %9 = @foldl(%sub, %n, %xs); %10 = @foldr(%sub, %n, %xs);
  %11 = @foldr1(%sub, %xs); %12 = @concat(%xs, %ys); %13 = @append(%xs, %n);
  %14 = @reverse(%xs); %15 = @filter(%big, %xs); %16 = @zip(%xs, %ys);
  %17 = @map_accuml(%step, %n, %xs); %18 = @map_accumr(%step, %n, %xs);
  %19 = @unfoldr(%down, %n); %20 = @unfoldl(%down, %n); %21 = @iterate(%twice, %n, 1int64);
  %both = @compose(%plus, %twice); %22 = %both(%n); %23 = @get_or(%3, %n);
  %24 = @map_option(%plus, %3); %none = Nil; %l1 = Cons(%ys, %none); %l2 = Cons(%xs, %l1);
  %25 = @flatten(%l2); %26 = @size(%t); %27 = @items(%t); %28 = @tmap(%plus, %t);
  %29 = @tfold(%node, %t);
"""
COUNT = 30


@cache
def module() -> compiler.IRModule:
    results = ", ".join(f"%{k}" for k in range(COUNT))
    head = f"%xs: List[{INT}], %ys: List[{INT}], %t: Tree[{INT}], %n: {INT}"
    text = f"def @main({head}) {{ {CLOSURES} {CALLS} ({results}) }}"
    return compiler.parse(text, using=compiler.prelude())


@cache
def compiled() -> compiler.Executable:
    return compiler.build(module())


Tree = tuple[int, list["Tree"]]


def rose(tree: Tree) -> Datum:
    return Datum("Rose", (tree[0], Datum.listed(map(rose, tree[1]))))


def plain(value: Any) -> Any:
    """A value of the program as Python has it."""
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if not isinstance(value, Datum):
        return int(value)
    if value.constructor in ("Some", "None"):
        return [plain(x) for x in value.fields]
    if value.constructor == "Rose":
        return plain(value.fields[0]), [plain(x) for x in value.fields[1].items()]
    return [plain(x) for x in value.items()]


def items(tree: Tree) -> list[int]:
    return [tree[0], *(x for child in tree[1] for x in items(child))]


def tmap(f: Callable[[int], int], tree: Tree) -> Tree:
    return f(tree[0]), [tmap(f, child) for child in tree[1]]


def depth(tree: Tree) -> int:
    return 1 + max(map(depth, tree[1]), default=0)


def expected(xs: list[int], ys: list[int], t: Tree, n: int) -> list[Any]:
    def foldr(items: list[int], y: int) -> int:
        return reduce(lambda z, x: x - z, reversed(items), y)

    def accumulated(items: list[int]) -> tuple[int, list[int]]:
        before = list(accumulate(items, initial=n))
        return before[-1], [a * x for a, x in zip(before[:-1], items, strict=True)]

    last, products = accumulated(xs[::-1])
    counted = list(range(n, 0, -3))
    at, head = max(n, 0), xs[:1]
    updated = [77 if k == n else x for k, x in enumerate(xs)]
    return [
        len(xs), sum(xs), xs[1:], head, xs[n : n + 1] if n >= 0 else [], updated, xs[:at], xs[at:],
        [2 * x for x in xs], n - sum(xs), foldr(xs, n), [foldr(xs[:-1], xs[-1])] if xs else [],
        xs + ys, [*xs, n], xs[::-1], [x for x in xs if x > 0], list(zip(xs, ys, strict=False)),
        accumulated(xs), (last, products[::-1]), counted, counted[::-1], 2**at, 2 * n + n,
        head[0] if head else n, [x + n for x in head], xs + ys, len(items(t)), items(t),
        tmap(lambda x: x + n, t), depth(t),
    ]  # fmt: skip


def drawn(rng: random.Random) -> tuple[list[int], list[int], Tree, int]:
    def numbers() -> list[int]:
        return [rng.randint(-9, 9) for _ in range(rng.choice((0, 1, 2, 3, 5, 9)))]

    def tree(left: int) -> Tree:
        return rng.randint(-9, 9), [tree(left - 1) for _ in range(rng.randint(0, left))]

    return numbers(), numbers(), tree(rng.randint(0, 3)), rng.randint(-2, 9)


def agree(run: Callable[..., Any], rng: random.Random) -> None:
    xs, ys, t, n = drawn(rng)
    got = run(Datum.listed(xs), Datum.listed(ys), rose(t), n)
    assert [plain(g) for g in got] == expected(xs, ys, t, n)


def interpreted(*args: Any) -> Any:
    return compiler.evaluate(module(), *args)


def test_the_prelude_prints_and_reads_back() -> None:
    mod = compiler.prelude()
    compiler.verify(mod)
    assert compiler.structural_equal(mod, compiler.parse(mod.astext(show_meta_data=True)))


def test_programs_have_what_they_use_of_it() -> None:
    text = f"def @main(%t: Tree[{INT}]) {{ %n = @size(%t); %n }}"
    mod = compiler.parse(text, using=compiler.prelude())
    assert set(mod.functions) == {"main", "size", "tfold", "map", "sum", "foldl"}
    assert set(mod.types) == {"List", "Tree"}
    with pytest.raises(compiler.DtypelabError, match="@size calls @sum, which the program defines"):
        compiler.parse(f"{text} def @sum(%x: {INT}) {{ %x }}", using=compiler.prelude())
    other = f"type List[A] {{ Empty }} {text} def @f(%x: List[{INT}]) {{ %x }}"
    with pytest.raises(compiler.DtypelabError, match="List is defined twice, and differently"):
        compiler.parse(other, using=compiler.prelude())


def test_functions_agree_with_python() -> None:
    rng = random.Random(1)
    for _ in range(4):
        agree(interpreted, rng)


@pytest.mark.thorough
def test_compiled_functions_agree_with_python() -> None:
    rng = random.Random(2)
    for _ in range(100):
        agree(compiled(), rng)


@pytest.mark.slow
def test_10000_lists_and_trees_agree_with_python() -> None:
    for k in range(10_000):
        for run in (compiled(), interpreted)[: 1 if k % 10 else 2]:
            agree(run, random.Random(f"drawn {k}"))
