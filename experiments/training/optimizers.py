"""Optimizers, as expressions of the step: new weights and a new state of old ones and gradients.

The order of operations is that of torch.optim (2.4), so that float32 agrees with it to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from compiler.errors import ConfigError, unknown
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Atom, Var


@dataclass(frozen=True)
class Optimizer:
    """How weights follow their gradients.

    Attributes:
        name: one of `NAMES`.
        momentum, nesterov: of "sgd".
        beta1, beta2, epsilon: of "adam" and "adamw" (Kingma and Ba 2015).
        weight_decay: added to gradients; of "adamw" weights shrink by rate * weight_decay instead
            (Loshchilov and Hutter 2019).
    """

    name: str = "sgd"
    momentum: float = 0.9
    nesterov: bool = False
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise ConfigError(unknown("optimizer", self.name, NAMES))
        shares = {k: getattr(self, k) for k in ("momentum", "beta1", "beta2")}
        for key, share in shares.items():
            if not 0 <= share < 1:
                raise ConfigError(f"{key} must be from 0 to below 1, not {share!r}")
        if self.nesterov and not self.momentum:
            raise ConfigError("nesterov needs a momentum above 0")

    @property
    def adaptive(self) -> bool:
        """Whether weights move by about the rate, whatever the size of their gradients."""
        return self.name != "sgd"

    @property
    def states(self) -> tuple[str, ...]:
        """What is kept of every weight, each an array of its shape that begins at 0."""
        if self.adaptive:
            return "first", "second"
        return ("velocity",) if self.momentum else ()

    @property
    def scalars(self) -> tuple[str, ...]:
        """The numbers that a step is given beside the learning rate; see `scalars_at`."""
        return ("unbias1", "unbias2") if self.adaptive else ()

    def scalars_at(self, updates: int) -> dict[str, float]:
        """Those numbers, at the update that so many others precede."""
        if not self.scalars:
            return {}
        count = updates + 1
        return {"unbias1": 1 / (1 - self.beta1**count), "unbias2": 1 / (1 - self.beta2**count)}


@dataclass(frozen=True)
class Update:
    """One weight on its way: `b` gets the expressions, `given` has the step's numbers by name."""

    b: FunctionBuilder
    given: Mapping[str, Var]

    def scaled(self, x: Atom, factor: float) -> Var:
        """x times a constant."""
        return self.b.call("multiply", x, self.b.const(factor, "float32"))

    def of(self, optimizer: Optimizer, w: Var, g: Atom, state: Mapping[str, Var]) -> list[Var]:
        """The new weight, then its new state in the order of `Optimizer.states`."""
        return _RULES[optimizer.name](self, optimizer, w, g, state)


def _decayed(u: Update, o: Optimizer, w: Var, g: Atom) -> Atom:
    return u.b.call("add", g, u.scaled(w, o.weight_decay)) if o.weight_decay else g


def _sgd(u: Update, o: Optimizer, w: Var, g: Atom, state: Mapping[str, Var]) -> list[Var]:
    """v = momentum * v + g; w = w - rate * v (with nesterov, g + momentum * v in place of v)."""
    g = _decayed(u, o, w, g)
    kept: list[Var] = []
    if o.momentum:
        v = u.b.call("add", u.scaled(state["velocity"], o.momentum), g)
        g = u.b.call("add", g, u.scaled(v, o.momentum)) if o.nesterov else v
        kept = [v]
    return [u.b.call("subtract", w, u.b.call("multiply", g, u.given["rate"])), *kept]


def _adam(u: Update, o: Optimizer, w: Var, g: Atom, state: Mapping[str, Var]) -> list[Var]:
    """m = b1 m + (1 - b1) g; s = b2 s + (1 - b2) g g; w = w - rate * m' / (sqrt(s') + epsilon),
    where m' and s' are without the bias of their beginning at 0."""
    return _adaptive(u, o, w, _decayed(u, o, w, g), state)


def _adamw(u: Update, o: Optimizer, w: Var, g: Atom, state: Mapping[str, Var]) -> list[Var]:
    if o.weight_decay:
        lost = u.b.call("multiply", w, u.scaled(u.given["rate"], o.weight_decay))
        w = u.b.call("subtract", w, lost)
    return _adaptive(u, o, w, g, state)


def _adaptive(u: Update, o: Optimizer, w: Var, g: Atom, state: Mapping[str, Var]) -> list[Var]:
    b = u.b
    m = b.call("add", u.scaled(state["first"], o.beta1), u.scaled(g, 1 - o.beta1))
    s = b.call(
        "add", u.scaled(state["second"], o.beta2), u.scaled(b.call("multiply", g, g), 1 - o.beta2)
    )
    root = b.call("sqrt", b.call("multiply", s, u.given["unbias2"]))
    size = b.call("add", root, b.const(o.epsilon, "float32"))
    move = b.call("divide", b.call("multiply", m, u.given["unbias1"]), size)
    return [b.call("subtract", w, b.call("multiply", move, u.given["rate"])), m, s]


_RULES: Mapping[str, Callable[[Update, Optimizer, Var, Atom, Mapping[str, Var]], list[Var]]] = {
    "sgd": _sgd,
    "adam": _adam,
    "adamw": _adamw,
}
NAMES = tuple(_RULES)
