"""The training step: forward, loss, gradients and update as one program.

Its parameters are the batch, what the weights and the optimizer's state are before the step, and
the step's numbers (learning rate and others); its results what they are after it. All are float32
there; inside, every part is computed in its format.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from compiler.ir import draws
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Atom, Function, IRModule, Var, tensor_type

from .batch_norm import by_batch
from .formats import (
    CONTROL,
    FORWARD,
    LOSS,
    STATISTICS,
    UPDATE,
    Formats,
    in_formats,
    part_of,
    tagged,
)
from .loss_scale import LossScale
from .network import STEP, Network, Parameter
from .optimizers import Optimizer, Update

RATE, SCALE, UNSCALE, TARGETS = "rate", "loss_scale", "loss_unscale", "targets"
DRAW = "rounding_draw"
"""The parameter that stochastic roundings depend on: another number in every step."""
_LARGEST = 3.0e38
"""What sums of finite gradients are below."""
_TINY = 1e-6
"""Keeps the norm that gradients are divided by above 0, as in torch."""
_LEAST_STEP = 2.0**-5
"""Steps of grids do not become smaller than this part of what training begins with: a step of
gradient descent that overshoots would end at 0, where a bias is more units than an int32 counts."""


@dataclass(frozen=True)
class Rules:
    """What a step does with gradients.

    Attributes:
        optimizer: how weights follow them.
        loss_scale: what the loss is multiplied by.
        clip_norm: the norm of all of them together is at most this; 0: whatever it is.
        temperature: what scores are divided by before the loss; its targets are shares of such
            scores. The loss is multiplied by the square, so that gradients keep their size
            (Hinton, Vinyals and Dean 2015).
    """

    optimizer: Optimizer = field(default_factory=Optimizer)
    loss_scale: LossScale = field(default_factory=LossScale)
    clip_norm: float = 0.0
    temperature: float = 1.0

    def table(self) -> dict[str, Any]:
        """As JSON values; without a temperature of 1, as in rows of earlier versions."""
        found = asdict(self)
        if self.temperature == 1:
            del found["temperature"]
        return found


@dataclass(frozen=True, eq=False)
class Step:
    """The program of a step.

    Attributes:
        module: what to compile or to interpret.
        inputs: names of its parameters that are the batch; `TARGETS` is [N, classes]: the share
            that each class should have.
        kept: names of the weights and states that it takes and gives, in the order of its results.
        numbers: names of the scalars that it takes.
        results: what it gives before `kept`: the mean loss, and, where a step may be skipped,
            whether the gradients were finite.
        random: whether it takes DRAW, an int64, too, since a part rounds stochastically.
    """

    module: IRModule
    inputs: tuple[str, ...]
    kept: tuple[str, ...]
    numbers: tuple[str, ...]
    results: tuple[str, ...]
    random: bool = False


def training_step(network: Network, rules: Rules, formats: Formats) -> Step:
    """The step of a network whose batch has a size.

    Raises:
        UnsupportedError: an operator has no gradient, or is not defined in a format; names it.
    """
    import compiler

    trained = [p.name for p in network.trained]
    forward = by_batch(network.function)
    part = {
        b.var.name: STATISTICS if b.var.name in forward.moments else FORWARD
        for b in forward.function.bindings
    }
    before = _with_loss(forward.function, rules)
    part |= {b.var.name: LOSS for b in before.bindings if b.var.name not in part}
    joint = compiler.gradient(IRModule({"main": tagged(before, part)}), wrt=trained).main
    part = {b.var.name: part_of(b) for b in joint.bindings}
    return _Builder(network, rules, joint, part).step(formats)


def _with_loss(f: Function, rules: Rules) -> Function:
    """The function whose results are the mean cross entropy of its scores at the temperature, times
    the loss scale, the same without that, and what its own were behind the scores."""
    b = FunctionBuilder()
    for p in f.params:
        b.add_param(p)
    for binding in f.bindings:
        b.emit(binding)
    scores = f.results[0]
    shape = tensor_type(scores).static_shape
    targets = b.param(TARGETS, shape)
    at: Atom = scores
    if rules.temperature != 1:
        cooler = b.const(1 / rules.temperature, "float32")
        at = b.call("multiply", scores, cooler, name="loss_scores")
    logs = b.call("nn.log_softmax", at, name="loss_logarithms", axis=-1)
    weighted = b.call("multiply", targets, logs, name="loss_weighted")
    total = b.call("sum", weighted, name="loss_sum")
    share = -(rules.temperature**2) / shape[0]
    loss = b.call("multiply", total, b.const(share, "float32"), name="loss")
    first = loss
    if rules.loss_scale.used:
        first = b.call("multiply", loss, b.param(SCALE, ()), name="loss_scaled")
    return b.finish(first, loss, *f.results[1:])


class _Builder:
    """Adds the update to the joint function of forward and backward."""

    def __init__(self, network: Network, rules: Rules, joint: Function, part: dict[str, str]):
        self.network, self.rules, self.part = network, rules, part
        self.b = FunctionBuilder()
        for p in joint.params:
            self.b.add_param(p)
        for binding in joint.bindings:
            self.b.emit(binding)
        self.value = {p.name: p for p in joint.params}
        _, self.loss, *others = joint.results
        count = len(network.statistics)
        self.statistics, self.gradients = others[:count], others[count:]

    def step(self, formats: Formats) -> Step:
        scale, optimizer = self.rules.loss_scale, self.rules.optimizer
        numbers = [RATE, *optimizer.scalars, *([SCALE, UNSCALE] if scale.used else [])]
        given = {n: self.value.get(n) or self.b.param(n, ()) for n in numbers}
        gradients = self.pulled(self.scaled(self.gradients, given))
        finite = self.finite(gradients) if scale.dynamic else None
        gradients = self.clipped(gradients)
        kept: dict[str, Atom] = {}
        for p, g in zip(self.network.trained, gradients, strict=True):
            state = {s: self.state(p.name, s) for s in optimizer.states}
            w = self.value[p.name]
            with self.of(UPDATE):
                rule = replace(optimizer, weight_decay=0.0) if p.kind == STEP else optimizer
                own = {**given, RATE: self.rate_of(p, rule, w, given)}
                new = Update(self.b, own).of(rule, w, g, state)
                if p.kind == STEP:
                    least = self.b.const(_LEAST_STEP * p.value, "float32")
                    new[0] = self.b.call("maximum", new[0], least)
                if finite is not None:
                    old = [w, *state.values()]
                    new = [
                        self.b.call("where", finite, n, o) for n, o in zip(new, old, strict=True)
                    ]
            names = [p.name, *(state_name(p.name, s) for s in optimizer.states)]
            kept |= zip(names, new, strict=True)
        kept |= zip((p.name for p in self.network.statistics), self.statistics, strict=True)
        results = {"loss": self.loss, **({} if finite is None else {"finite": finite})}
        attrs = {draws.DRAW: self.b.param(DRAW, (), "int64").name} if formats.random else {}
        f = self.b.finish(*results.values(), *kept.values(), attrs=attrs)
        outputs = {"outputs": (*results, *kept)}
        module = IRModule({"main": tagged(f, self.part)}, outputs)
        return Step(
            in_formats(module, formats),
            tuple(p.name for p in self.network.inputs),
            (*kept,),
            (*numbers,),
            (*results,),
            formats.random,
        )

    def rate_of(self, p: Parameter, rule: Optimizer, w: Var, given: Mapping[str, Var]) -> Var:
        """The learning rate of a parameter. What moves by the rate, whatever the gradient's size,
        moves a step by that share of the step: steps are as small as the grid is fine; and what
        has a size by that share of it."""
        rate = given[RATE]
        if not rule.adaptive:
            return rate
        if p.size is not None:
            return self.b.call("multiply", rate, self.b.const(p.size, "float32"))
        return self.b.call("multiply", rate, w) if p.kind == STEP else rate

    @contextmanager
    def of(self, part: str) -> Iterator[None]:
        """What is added meanwhile belongs to that part of the step."""
        before = len(self.b.bindings)
        yield
        self.part |= {x.var.name: part for x in self.b.bindings[before:]}

    def state(self, weight: str, state: str) -> Var:
        like = tensor_type(self.value[weight])
        return self.b.param(state_name(weight, state), like.shape)

    def scaled(self, gradients: Sequence[Atom], given: Mapping[str, Var]) -> list[Atom]:
        """The gradients of the loss, of those of what it was multiplied to."""
        if UNSCALE not in given:
            return [*gradients]
        with self.of(UPDATE):
            return [self.b.call("multiply", g, given[UNSCALE]) for g in gradients]

    def pulled(self, gradients: Sequence[Atom]) -> list[Atom]:
        """The gradients, those of steps by as much as they are to follow."""
        found: list[Atom] = []
        with self.of(UPDATE):
            for p, g in zip(self.network.trained, gradients, strict=True):
                pull = self.b.const(p.pull, "float32")
                found.append(g if p.pull == 1 else self.b.call("multiply", g, pull))
        return found

    def finite(self, gradients: Sequence[Atom]) -> Var:
        """Whether no gradient is infinite or NaN: their magnitudes have a sum."""
        with self.of(CONTROL):
            sizes = [self.b.call("sum", self.b.call("abs", g)) for g in gradients]
            total = self.summed(sizes)
            return self.b.call("less", total, self.b.const(_LARGEST, "float32"), name="finite")

    def clipped(self, gradients: Sequence[Atom]) -> list[Atom]:
        """The gradients, shortened together to the norm that is asked for."""
        if not self.rules.clip_norm:
            return [*gradients]
        with self.of(CONTROL):
            squares = [self.b.call("sum", self.b.call("multiply", g, g)) for g in gradients]
            norm = self.b.call("sqrt", self.summed(squares), name="gradient_norm")
            size = self.b.call("add", norm, self.b.const(_TINY, "float32"))
            share = self.b.call("divide", self.b.const(self.rules.clip_norm, "float32"), size)
            share = self.b.call("minimum", share, self.b.const(1.0, "float32"), name="clip")
        with self.of(UPDATE):
            return [self.b.call("multiply", g, share) for g in gradients]

    def summed(self, parts: Sequence[Var]) -> Var:
        total, *others = parts
        for part in others:
            total = self.b.call("add", total, part)
        return total


def state_name(weight: str, state: str) -> str:
    """What a weight's state is called."""
    return f"{weight}.{state}"
