"""The memory plan: tensors alive at the same time never overlap, whatever the dimensions are."""

from hypothesis import given
from hypothesis import strategies as st

from compiler.runtime.memory import ALIGN, SLACK, Lifetime, MemoryPlan, packed, plan_memory
from compiler.symbolic import Index, Var

N, H = Var("n"), Var("h")


@st.composite
def lifetimes(draw: st.DrawFn) -> list[Lifetime]:
    out = []
    for _ in range(draw(st.integers(1, 12))):
        size = N * draw(st.integers(0, 300)) + draw(st.integers(0, 300))
        if draw(st.booleans()):
            size = size + N * H * draw(st.integers(0, 9))
        first = draw(st.integers(0, 9))
        out.append(Lifetime(Index.of(size), first, first + draw(st.integers(0, 4))))
    return out


@st.composite
def known(draw: st.DrawFn) -> list[Lifetime]:
    """Of known sizes."""
    steps, sizes = st.integers(0, 9), st.integers(0, 2000)
    return [
        Lifetime(Index.of(draw(sizes)), first, first + draw(steps))
        for first in draw(st.lists(steps, min_size=1, max_size=12))
    ]


@given(lifetimes() | known(), st.integers(1, 40), st.integers(1, 40))
def test_no_overlap(tensors: list[Lifetime], n: int, h: int) -> None:
    check(tensors, plan_memory(tensors), n, h)


@given(known())
def test_no_overlap_of_what_is_packed(tensors: list[Lifetime]) -> None:
    check(tensors, packed(tensors), 1, 1)


def check(tensors: list[Lifetime], plan: MemoryPlan, n: int, h: int) -> None:
    env = {N: n, H: h}
    spans = [
        (int(o.value(env)), int(o.value(env)) + int(t.size.value(env)))
        for o, t in zip(plan.offsets, tensors, strict=True)
    ]
    for k, (a, t) in enumerate(zip(spans, tensors, strict=True)):
        assert a[0] % ALIGN == 0
        assert a[1] <= int(plan.total.value(env))
        for b, u in zip(spans[:k], tensors[:k], strict=True):
            if t.first <= u.last and u.first <= t.last and a[0] < a[1] and b[0] < b[1]:
                assert a[1] <= b[0] or b[1] <= a[0]


def test_a_chain_needs_two_slots() -> None:
    chain = [Lifetime(N * 64, k, k + 1) for k in range(10)]
    assert plan_memory(chain).total == N * 128 + SLACK


def test_known_sizes_are_packed_where_slots_are_much_larger() -> None:
    """Two tensors take the place of a large one, as the parts of a gradient do."""
    sizes = [(4096, 0, 1), (2048, 2, 3), (2048, 2, 3), (1024, 4, 5), (1024, 4, 5), (1024, 4, 5)]
    tensors = [Lifetime(Index.of(n), first, last) for n, first, last in sizes]
    assert plan_memory(tensors).total == 4096 + SLACK
    chain = [Lifetime(Index.of(64), k, k + 1) for k in range(10)]
    assert plan_memory(chain).total == 128 + SLACK


def test_sizes_that_no_rule_orders_share_a_slot() -> None:
    """A half of an odd width, rounded up, may be more or less than what is compared with it."""
    halves, widths = (N + 1) // 2 * 128, N * 64
    chain = [Lifetime(Index.of(x), k, k) for k, x in enumerate([halves, widths, halves, widths])]
    plan = plan_memory(chain)
    for n in range(1, 40):
        env = {N: n}
        assert plan.total.value(env) == max(halves.value(env), widths.value(env)) + SLACK
