"""Parts of steps that add many products at once: what is in them again and again, as modules.

Synthesis of a step as a whole takes minutes from eight products on. Its parts are small, and each
is synthesized once.
"""

from __future__ import annotations

from datatypes.hardware.accumulators import Staged
from datatypes.hardware.codecs import aligned_number
from datatypes.hardware.datapaths import Datapath, Rounded
from datatypes.hardware.netlist import Circuit, Steps
from datatypes.hardware.number import Layout, Number
from datatypes.hardware.staged import (
    comparable,
    group_sum,
    largest_of,
    placed,
    raised,
    sum_of,
    term,
)

WHOLE = 4
"""Most products whose step is synthesized as a whole."""


def staged_parts(path: Datapath, into: Staged, sums: Rounded) -> tuple[dict[str, Circuit], Steps]:
    """The parts of NAME_mac, and what a step passes."""
    return (_aligned if into.how.align_bits else _tree)(path, into, sums)


def _tree(path: Datapath, into: Staged, sums: Rounded) -> tuple[dict[str, Circuit], Steps]:
    """NAME_product, NAME_pair (the sum of two products) and NAME_node (of two codes)."""
    p, x = _product(path, into, sums)
    layout = _layout(x)
    pair = Circuit(f"{path.name}_pair", f"{path.name}: y = a + b, two of {path.name}_product")
    pair.about += f"\n{into.about}"
    a, b = (layout.split(pair.input(n, layout.width)) for n in ("a", "b"))
    pair.output("y", sum_of(pair, sums, a, b))
    node = Circuit(f"{path.name}_node", f"{path.name}: y = a + b, both in {into.fmt.name}")
    a, b = (sums.codec.decode(node, node.input(n, into.fmt.nbits)) for n in ("a", "b"))
    node.output("y", sum_of(node, sums, a, b))
    levels = [into.terms >> k for k in range(2, into.terms.bit_length())]
    steps = (("product", into.terms),), (("pair", into.terms // 2),)
    # The last node adds what was held.
    nodes = tuple((("node", n),) for n in (*levels, 1))
    return {"product": p, "pair": pair, "node": node}, (*steps, *nodes)


def _aligned(path: Datapath, into: Staged, sums: Rounded) -> tuple[dict[str, Circuit], Steps]:
    """NAME_product and NAME_held (decoded), NAME_largest (of their exponents), NAME_align and
    NAME_align_held (to it), and NAME_total."""
    name, kept = path.name, into.how.align_bits
    width = max(_product(path, into, sums)[1].exponent.width, sums.codec.layout.exponent)
    p, x = _product(path, into, sums, width)
    h = Circuit(f"{name}_held", f"{name}: {into.about}")
    acc = aligned_number(sums.codec, h, h.input("acc", into.fmt.nbits))
    held = comparable(h, raised(acc), width)
    h.output("y", h.joint(*held.bits))
    about = f"{name}: the largest of exponents, the first lowest"
    largest = Circuit(f"{name}_largest", about)
    every = largest.input("exponents", (into.terms + 1) * width)
    largest.output("y", largest_of([every[k : k + width] for k in range(0, every.width, width)]))
    circuits = {"product": p, "held": h, "largest": largest}
    for what, number in (("align", x), ("align_held", held)):
        c = Circuit(f"{name}_{what}", f"{name}: parts in units of the last of {kept} bits")
        layout = _layout(number)
        parts = layout.split(c.input("parts", layout.width))
        c.output("y", placed(parts, c.input("largest", width), kept))
        circuits[what] = c
    t = Circuit(f"{name}_total", f"{name}: y = all aligned terms; {into.about}")
    terms = t.input("terms", (into.terms + 1) * (kept + 2))
    each = [terms[k : k + kept + 2] for k in range(0, terms.width, kept + 2)]
    flags = [t.input(n, into.terms + 1) for n in ("nan", "plus", "minus")]
    total = group_sum(t, each, flags, t.input("largest", width), kept, sums.kept)
    t.output("y", sums.rounded(t, total))
    first = (("product", into.terms), ("held", 1)), (("largest", 1),)
    last = (("align", into.terms), ("align_held", 1)), (("total", 1),)
    return {**circuits, "total": t}, (*first, *last)


def _product(path: Datapath, into: Staged, sums: Rounded, width: int = 0) -> tuple[Circuit, Number]:
    """NAME_product, and the number that it gives; its exponent of a width, if one is given."""
    c = Circuit(f"{path.name}_product", f"{path.name}: parts of a * b")
    x = term(c, path, c.input("a", path.nbits), c.input("b", path.nbits), into, sums)
    if width:
        x = comparable(c, x, width)
    c.about += f"\n{_layout(x).about}"
    c.about += "\ntwice as much: two bits are before the point" if width else ""
    c.output("y", c.joint(*x.bits))
    return c, x


def _layout(x: Number) -> Layout:
    return Layout(x.exponent.width, x.significand.width)
