"""A child-sum Tree-LSTM (K. S. Tai et al., Improved semantic representations from tree-structured
long short-term memory networks, 2015) as a program on trees of the prelude."""

from __future__ import annotations

import random

import numpy as np

from compiler.boundary.data import Datum
from compiler.types.dtypes import Array

SIZES = 3, 4
"""Of the vectors of the nodes, and of the state."""
X, H, W = (f"Tensor[{s}, float32]" for s in ("(1, 3)", "(1, 4)", "(4, 7)"))
TREE_LSTM = f"""
def @cell(%x: {X}, %below: List[({H}, {H})], %wi: {W}, %wf: {W}, %wo: {W}, %wu: {W})
    -> ({H}, {H}) {{
  %first = fn (%s: {H}, %p: ({H}, {H})) {{ %h = %p.0; %r = add(%s, %h); %r }};
  %none = broadcast_to(0.0float32, shape=[1, 4]);
  %sum = @foldl(%first, %none, %below);
  %both = concatenate(%x, %sum, axis=1);
  %i0 = nn.dense(%both, %wi); %i = sigmoid(%i0);
  %o0 = nn.dense(%both, %wo); %o = sigmoid(%o0);
  %u0 = nn.dense(%both, %wu); %u = tanh(%u0);
  %new = multiply(%i, %u);
  %keep = fn (%c: {H}, %p: ({H}, {H})) {{
    %h = %p.0; %ck = %p.1; %xh = concatenate(%x, %h, axis=1);
    %f0 = nn.dense(%xh, %wf); %f = sigmoid(%f0); %k = multiply(%f, %ck); %r = add(%c, %k); %r
  }};
  %c = @foldl(%keep, %new, %below);
  %t = tanh(%c); %h = multiply(%o, %t); %r = (%h, %c); %r
}}
def @main(%t: Tree[{X}], %wi: {W}, %wf: {W}, %wo: {W}, %wu: {W}) -> Tensor[(), float32] {{
  %f = fn (%x: {X}, %below: List[({H}, {H})]) {{
    %r = @cell(%x, %below, %wi, %wf, %wo, %wu); %r
  }};
  %state = @tfold(%f, %t); %h = %state.0; %q = multiply(%h, %h); %r = sum(%q); %r
}}
"""


def weights(dtype: str) -> dict[str, Array]:
    rng = np.random.default_rng(5)
    return {n: rng.uniform(-1, 1, (4, 7)).astype(dtype) for n in ("wi", "wf", "wo", "wu")}


def random_tree(rng: random.Random, depth: int, dtype: str = "float32") -> Datum:
    below = [random_tree(rng, depth - 1, dtype) for _ in range(rng.randint(0, 3) if depth else 0)]
    x = np.array([[rng.uniform(-1, 1) for _ in range(3)]], dtype)
    return Datum("Rose", (x, Datum.listed(below)))


def leaves(t: Datum) -> list[Array]:
    """What the nodes hold, those below first."""
    x, children = t.fields
    return [*(y for c in children.items() for y in leaves(c)), x]
