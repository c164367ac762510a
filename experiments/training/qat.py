"""Training with quantization: networks that compute on integers forward, whose weights (and steps)
follow the gradients of float32's simulation of them (see `quantize.trainable`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.errors import ConfigError
from compiler.ir.expr import Constant, IRModule, operands
from compiler.ir.substitution import with_operands
from experiments.systems import number_systems, schemes
from experiments.zoo import model_files

from .data import Examples
from .models import at_once, model
from .network import STEP, Floats, Network, Parameter, found_weights
from .partial import layers_of

if TYPE_CHECKING:
    from compiler.ir.expr import Var
    from quantize import Plan
    from quantize.trainable.steps import Step

LEARNED, FIXED = "learned", "fixed"
ALIKE, BY_CHANNEL = "alike", "by_channel"
_START = {"smoothing": 0, "bias_correction": "none"}
"""What a plan for training begins with unless it is said: nothing that training finds itself."""


@dataclass(frozen=True)
class Qat:
    """How a network is quantized while it is trained.

    Attributes:
        scheme: the plan's, as sweeps name it; of integers.
        steps: LEARNED: steps of weights and values are trained with the weights, from those of the
            plan; FIXED: they stay these.
        n_calib: the first examples, from which the plan is made.
        train: whether it is trained at all; if not, the plan is judged as it is, and may be of any
            calibrated scheme.
        layers: which are trained, by patterns of names as `overrides` have them; none for all.
            Others keep the weights of the model file and the steps of the plan.
        moves: of optimizers that move weights by the rate, whatever the gradient: ALIKE: all by it;
            BY_CHANNEL: those of an output channel, and its bias, by that share of the largest
            number on its grid, since channels with a batch norm in them differ much in size.
    """

    scheme: schemes.Scheme
    steps: str = LEARNED
    n_calib: int = 200
    train: bool = True
    layers: tuple[str, ...] = ()
    moves: str = ALIKE

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Qat:
        """What a table of a specification says: `scheme` with its options as in a sweep, `steps`
        and `n_calib`.

        Raises:
            ConfigError: there is no such scheme or option, or it is not of integers.
        """
        given = dict(table)
        train = given.pop("train", True)
        if not isinstance(train, bool):
            raise ConfigError(f"train must be true or false, not {train!r}")
        steps, n_calib = given.pop("steps", cls.steps), given.pop("n_calib", cls.n_calib)
        if steps not in (LEARNED, FIXED):
            raise ConfigError(f'steps must be "{LEARNED}" or "{FIXED}", not {steps!r}')
        if isinstance(n_calib, bool) or not isinstance(n_calib, int) or n_calib < 1:
            raise ConfigError(f"n_calib must be a number of examples, not {n_calib!r}")
        layers = given.pop("layers", ())
        if not isinstance(layers, list | tuple) or not all(isinstance(v, str) for v in layers):
            raise ConfigError(f"layers must be a list of names or patterns, not {layers!r}")
        if layers and not train:
            raise ConfigError("layers are those that are trained: not with train = false")
        moves = given.pop("moves", cls.moves)
        if moves not in (ALIKE, BY_CHANNEL):
            raise ConfigError(f'moves must be "{ALIKE}" or "{BY_CHANNEL}", not {moves!r}')
        name = given.pop("scheme", "int8_channel")
        of_integers = str(name).startswith("int8")
        given = _START | given if train and of_integers else given
        scheme = schemes.parse(name, given) if isinstance(name, str) else None
        if scheme is None or not scheme.calibrated or (train and scheme.kind != "int8"):
            raise ConfigError(
                f"training with quantization is of integers, not of {name!r}: name a scheme such "
                'as "int8_channel" with weight_bits and activation_bits; for a format, see formats'
            )
        return cls(scheme, steps, n_calib, train, tuple(layers), moves)

    def __str__(self) -> str:
        """As short as it can be said, without what is so unless it is said otherwise."""
        label = self.scheme.label
        for key, value in _START.items():
            label = label.replace(f",{key}={value}", "").replace(f"{key}={value},", "")
        of = f" of {' '.join(self.layers)}" if self.layers else ""
        of += ", moved by channel" if self.moves == BY_CHANNEL else ""
        return f"qat {label}, {self.steps} steps{of}" if self.train else f"post-training {label}"

    def table(self) -> dict[str, Any]:
        """As JSON values; without `layers` and `moves` if they are the default, as in rows of
        earlier versions."""
        later = {"layers": (), "moves": ALIKE}
        return {k: v for k, v in asdict(self).items() if k not in later or v != later[k]}


@dataclass(frozen=True, eq=False)
class Quantized:
    """A network to train that computes on integers.

    Attributes:
        network: its parameters are those that integers are made of, and learned steps.
        module: the prepared float32 module. plan: for it. steps: those that are learned.
        codes: name of a value on a grid -> the variable of the network that holds its integers.
    """

    network: Network
    module: IRModule
    plan: Plan
    steps: tuple[Step, ...]
    codes: Mapping[str, Var]

    def trained(self, weights: Mapping[str, Floats]) -> tuple[IRModule, Plan]:
        """The float32 module with trained weights, and the plan with the trained steps: what
        `quantize.realize` makes of both computes the integers of training."""
        from quantize.annotation.annotate import prepared
        from quantize.trainable.simulation import learned_plan

        f = self.module.main
        names = {k: p.name for k, (_, p) in found_weights(f).items() if p.name in weights}

        def new(a: Any) -> Any:
            name = names.get(id(a)) if isinstance(a, Constant) else None
            return a if name is None else Constant(np.ascontiguousarray(weights[name]), a.dtype)

        bindings = [
            replace(b, value=with_operands(b.value, map(new, operands(b.value))))
            for b in f.bindings
        ]
        made = prepared(self.module.with_function("main", f.with_body(bindings, f.results)))
        return made, learned_plan(self.plan, made, self.steps, weights)


def check_layers(path: Path, patterns: tuple[str, ...]) -> None:
    """Refuse patterns of layers that fit none of a model file.

    Raises:
        ConfigError: one does not fit; names it.
    """
    from quantize.annotation.annotate import prepared

    f = prepared(model_files.load_model(path, ())).main
    layers_of(f, found_weights(f), patterns)


@lru_cache(maxsize=4)
def planned(path: Path, digest: str, qat: Qat, data: Examples) -> Plan:
    """The plan that a training begins with. `digest`: of the file."""
    import quantize

    x = data.x[: qat.n_calib]
    config = number_systems.qconfig(dict(qat.scheme.options))
    size = at_once(len(x), x.shape[1:])
    parts = [x[k : k + size] for k in range(0, len(x), size)]
    return quantize.calibrate(model(path, size, x.shape[1:]), parts, config)


def quantized(mod: IRModule, plan: Plan, qat: Qat) -> Quantized:
    """A model that is trained as its plan quantizes it.

    Raises:
        ConfigError: a pattern of `qat.layers` fits no layer.
        UnsupportedError: the plan has decisions that are not trained, or it is no network to train.
    """
    from quantize.annotation.annotate import prepared
    from quantize.trainable.simulation import settled, trainable

    mod, plan = settled(prepared(mod), plan)
    found = found_weights(mod.main)
    layers = layers_of(mod.main, found, qat.layers)
    variables = {k: variable for k, (variable, _) in found.items() if k in layers.weights}
    fixed = layers.fixed_values, layers.fixed_nodes
    t = trainable(mod, plan, variables, qat.steps == LEARNED, *fixed)
    steps = (Parameter(s.var.name, STEP, s.value, pull=s.pull) for s in t.steps)
    sizes = _sizes(mod, plan) if qat.moves == BY_CHANNEL else {}
    weights = (replace(found[k][1], size=sizes.get(k)) for k in t.variables)
    parameters = (*weights, *steps)
    return Quantized(Network(t.function, parameters), mod, plan, t.steps, t.codes)


def _sizes(mod: IRModule, plan: Plan) -> dict[int, Floats]:
    """Id of a weight or bias on a grid -> the largest number there of each output channel, in the
    shape that it broadcasts from."""
    found: dict[int, Floats] = {}
    for b in mod.main.bindings:
        params = plan.weights.get(b.var.name)
        if params is None:
            continue
        largest = np.asarray(params.scales, np.float32) * np.float32((1 << (params.bits - 1)) - 1)
        for a in (a for a in operands(b.value)[1:] if isinstance(a, Constant)):
            found[id(a)] = largest.reshape(-1, *[1] * (a.data.ndim - 1))
    return found
