"""Symbolic integers: simplification never changes a value; equality is canonical."""

from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.symbolic import Facts, Index, Var, ceil_div, imax, imin, product
from compiler.symbolic.quasi import function_of

N, ROW, COL = Var("n"), Var("i", 12), Var("j", 7)
TILE, STEP = Var("t", (N + 7) // 4), Var("s", N)  # loops whose extents are known at run time


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3) -> Index:
    if depth == 0 or draw(st.booleans()):
        leaf = draw(st.sampled_from([N, ROW, COL, TILE, STEP, None]))
        return leaf if leaf is not None else Index.of(draw(st.integers(-20, 20)))
    a = draw(expressions(depth=depth - 1))
    op = draw(st.sampled_from(["+", "-", "*k", "//", "%", "min", "max", "*"]))
    k = draw(st.integers(1, 9))
    if op == "*k":
        return a * k
    if op == "//":
        return a // k
    if op == "%":
        return a % k
    b = draw(expressions(depth=depth - 1))
    return {"+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b,
            "min": lambda: imin(a, b), "max": lambda: imax(a, b)}[op]()  # fmt: skip


def plain(e: Index, env: dict[Var, int]) -> int:
    return int(e.value(env))


@st.composite
def values(draw: st.DrawFn) -> dict[Var, int]:
    """What the variables may be at one time."""
    n = draw(st.integers(1, 50))
    t, s = draw(st.integers(0, (n + 7) // 4 - 1)), draw(st.integers(0, n - 1))
    return {N: n, ROW: draw(st.integers(0, 11)), COL: draw(st.integers(0, 6)), TILE: t, STEP: s}


@given(expressions(), values(), st.integers(1, 9))
def test_simplification_keeps_values_and_bounds(e: Index, env: dict[Var, int], k: int) -> None:
    v = plain(e, env)
    lo, hi = e.range()
    assert lo is None or lo <= v
    assert hi is None or v <= hi
    assert plain(e // k, env) == v // k
    assert plain(e % k, env) == v % k
    assert plain(e * 3 + 5 - e, env) == v * 3 + 5 - v
    assert plain(imin(e, 4), env) == min(v, 4)
    assert plain(imax(e, ROW), env) == max(v, env[ROW])
    assert plain(imin(e, STEP), env) == min(v, env[STEP])
    assert e.multiple_of(k) is False or v % k == 0


def test_factors_of_the_least_and_of_remainders() -> None:
    four = imin(ROW * 4 + 8, STEP * 12)
    assert (four * 4 + COL * 32).multiple_of(16)
    assert ((ROW * 8 % (STEP * 4 + 4)) * 2).multiple_of(8)
    assert not (four * 4).multiple_of(32)
    assert not (ROW * 8 % (STEP * 4 + 4)).multiple_of(8)


@given(expressions(), values())
def test_functions_of_variables_give_values(e: Index, env: dict[Var, int]) -> None:
    variables = list(env)
    assert function_of(e, variables)(*env.values()) == e.value(env)


def test_long_chains_become_functions() -> None:
    e: Index = N
    for k in range(60):
        e = imin(e * 2, ROW * (k + 2) + COL)
    assert function_of(e, [N, ROW, COL])(5, 7, 11) == e.value({N: 5, ROW: 7, COL: 11})


@given(expressions(), values())
def test_substitution_is_evaluation(e: Index, env: dict[Var, int]) -> None:
    assert e.subst(env).constant() == plain(e, env)


@given(st.integers(1, 40), st.sampled_from([N, (N + 3) // 8, N * 3 + 1]))
def test_tiles_of_a_symbolic_extent_are_whole_but_for_the_last(width: int, extent: Index) -> None:
    whole = Var("o", extent // width)
    assert imin(width, extent - whole * width) == width
    left = extent - extent // width * width
    assert imin(width, left) == left


def test_named_dimensions_are_equal_by_name_and_loops_by_identity() -> None:
    assert Var("n") == N
    assert hash(Var("n")) == hash(Index({N: 1}))
    assert Var("i", 12) != ROW
    assert N * 2 + 3 == 3 + N + N
    assert {N * 2: 1}[Var("n") * 2] == 1


def test_shapes_of_convolutions_simplify() -> None:
    assert (N * 8 + 4) // 4 == N * 2 + 1
    assert product([N, 4, 5]) == N * 20
    assert (N * 256) // 256 == N
    assert (N * N * 6) // N == N * 6
    assert str(ceil_div(N, 2)) == "((n + 1) // 2)"
    halved = ceil_div(ceil_div(N, 2), 2)
    assert halved == (N + 3) // 4
    assert (halved - 1) // 5 == (N - 1) // 20


H, W = Var("h"), Var("w")


@st.composite
def sizes_of_parts(draw: st.DrawFn) -> Index:
    """What windows, pools and larger copies make of sizes."""
    d = draw(st.sampled_from([H, W]))
    out: Index = d
    for _ in range(draw(st.integers(1, 3))):
        k = draw(st.integers(1, 4))
        out = draw(
            st.sampled_from([out // k, (out + k - 1) // k, out * k, (out + 1) // 2, out + k])
        )
    return out * draw(st.sampled_from([Index.of(1), H, W])) if draw(st.booleans()) else out


@settings(max_examples=30)
@given(
    st.lists(st.tuples(sizes_of_parts(), sizes_of_parts()), max_size=6),
    sizes_of_parts(),
    st.integers(1, 64),
    st.integers(1, 64),
)
def test_facts_that_hold_keep_values(
    pairs: list[tuple[Index, Index]], e: Index, h: int, w: int
) -> None:
    env, facts = {H: h, W: w}, Facts()
    for a, b in [*pairs, ((H + 15) // 16, (H + 31) // 32 * 2), (H // 2, H // 4 * 2), (H, W)]:
        if plain(a, env) != plain(b, env):
            assert not facts.equal(a, b)
        else:
            assert not facts.contradicted(a, b)
            if not facts.equal(a, b):
                facts.add(a, b)
    assert plain(Index.of(facts.simplified(e)), env) == plain(e, env)


def test_facts_are_used_in_all_that_follows() -> None:
    facts = Facts()
    facts.add((H + 15) // 16, (H + 31) // 32 * 2)
    facts.add((H + 7) // 8, (H + 31) // 32 * 4)
    assert facts.equal((H + 7) // 8, (H + 15) // 16 * 2)
    assert facts.simplified(((H + 15) // 16) * W) == ((H + 31) // 32) * W * 2
    facts.add(W * ((H + 47) // 48), W)  # one factor is the same
    assert facts.simplified((H + 47) // 48) == 1
    assert facts.contradicted(H * 2 + 1, W * 2)
    assert facts.contradicted(H + 1, H)
    assert not facts.contradicted(H, W)
