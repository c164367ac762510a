"""What a training computes in: a format and an accumulation for each part of the step."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from compiler.errors import ConfigError

if TYPE_CHECKING:
    from compiler.ir.expr import Binding, Function, IRModule

FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"
LOSS, STATISTICS = "loss", "statistics"
CONTROL = "control"
"""Whether gradients are finite, and their norm: always float32."""
PARTS = (FORWARD, BACKWARD, UPDATE, LOSS, STATISTICS)
FLOAT32, SEQUENTIAL = "float32", "sequential"
NEAREST, STOCHASTIC = "nearest", "stochastic"
ROUNDINGS = (NEAREST, STOCHASTIC)
_RANDOM = "_stochastic"
"""Ends the names of formats that round so, before their seeds."""
_GROUP = ":"
_GRADIENT = "/gradient"
"""Ends the origins of what `compiler.gradient` adds."""


@dataclass(frozen=True)
class Computed:
    """A format, and how its sums are formed (as `datatypes.change_dtype` takes both)."""

    format: str = FLOAT32
    accumulate: str = SEQUENTIAL

    @property
    def random(self) -> bool:
        """Whether it rounds stochastically."""
        import datatypes

        return self.format != FLOAT32 and datatypes.get(self.format).rounding == STOCHASTIC

    @property
    def to_nearest(self) -> Computed:
        """The same, rounding to nearest where its name says that it rounds stochastically."""
        return replace(self, format=self.format.partition(_RANDOM)[0]) if self.random else self

    def rounded(self, rounding: str) -> Computed:
        """The format with another rounding.

        Raises:
            ConfigError: it has none.
        """
        if rounding == NEAREST:
            if (nearest := self.to_nearest).random:
                raise ConfigError(f"{self.format} is defined to round stochastically")
            return nearest
        if self.random:
            return self
        if self.format == FLOAT32:
            raise ConfigError("float32 rounds to nearest: only other formats round stochastically")
        return replace(self, format=self.format + _RANDOM)

    @property
    def plain(self) -> bool:
        """Whether it is float32 as it is."""
        return self.format == FLOAT32 and self.accumulate == SEQUENTIAL

    def __str__(self) -> str:
        return self.format if self.accumulate == SEQUENTIAL else f"{self.format} {self.accumulate}"


@dataclass(frozen=True)
class Formats:
    """What each part of a step is computed in.

    Attributes:
        forward: the network. backward: what the gradients are made of. update: the weights that are
            kept, the optimizer and its state. A short format there means that there are no master
            weights. loss: the loss and its logarithms. statistics: mean and variance of batch
            normalization.
    """

    forward: Computed = Computed()
    backward: Computed = Computed()
    update: Computed = Computed()
    loss: Computed = Computed()
    statistics: Computed = Computed()

    @property
    def random(self) -> bool:
        """Whether a part rounds stochastically, so that each step takes a draw of random bits."""
        return any(getattr(self, part).random for part in PARTS)

    @classmethod
    def all(cls, name: str, accumulate: str = SEQUENTIAL) -> Formats:
        """Every part in one format."""
        return cls(*[Computed(name, accumulate)] * len(PARTS))

    def __post_init__(self) -> None:
        for part in PARTS:
            _check(part, getattr(self, part))

    def __str__(self) -> str:
        """As short as it can be said: `bfloat16`, or `float8_e4m3fn, backward float8_e5m2, ...`."""
        if self == Formats.all(self.forward.format, self.forward.accumulate):
            return str(self.forward)
        default = replace(Formats(), forward=self.forward, backward=self.forward)
        others = [
            f"{f.name} {mine}"
            for f in fields(self)
            if f.name != FORWARD and (mine := getattr(self, f.name)) != getattr(default, f.name)
        ]
        return ", ".join([str(self.forward), *others]) if others else f"{self.forward} mixed"

    def table(self) -> dict[str, dict[str, str]]:
        """As JSON values."""
        return asdict(self)


def _check(part: str, c: Computed) -> None:
    """Refuse what float32, in which weights go from step to step, does not hold."""
    import datatypes
    from experiments.systems import schemes

    # How a sweep reads them: it knows what sums each format has.
    schemes.parse(c.format, {} if c.accumulate == SEQUENTIAL else {"accumulate": c.accumulate})
    if c.format == FLOAT32:
        return
    fmt = datatypes.get(c.format)
    if part == UPDATE and not _held(fmt):
        raise ConfigError(
            f"weights go from step to step in float32, which does not hold all values of "
            f"{c.format}; choose a format of at most 24 significant bits within float32's range, "
            "for example bfloat16, float16 or posit16_es1"
        )


def _held(fmt: Any) -> bool:
    """Whether float32 holds every value of a format: of up to 16 bits by looking, else by name."""
    import numpy as np

    import datatypes

    if fmt.nbits > 16:
        return False
    codes = np.arange(1 << fmt.nbits).astype(fmt.storage)
    values = np.asarray(datatypes.decode(fmt.name, codes), np.float64)
    with np.errstate(over="ignore", under="ignore"):
        held = values.astype(np.float32)
    return bool(np.all((values == held) | ~np.isfinite(values)))


def tagged(f: Function, part: dict[str, str]) -> Function:
    """The function whose bindings say in their origins of which part of the step they are."""
    bindings = tuple(
        replace(b, origins=(f"{part[b.var.name]}{_GROUP}{b.var.name}",)) for b in f.bindings
    )
    return replace(f, bindings=bindings)


def part_of(b: Binding) -> str:
    """The part that a tagged binding is of. What flows back through one of the forward pass is of
    the backward pass; through one of the loss or of statistics, of these."""
    (origin,) = b.origins
    part = origin.partition(_GROUP)[0]
    return BACKWARD if part == FORWARD and origin.endswith(_GRADIENT) else part


def in_formats(mod: IRModule, formats: Formats) -> IRModule:
    """A module of tagged bindings with every part in its format; float32 outside and between.

    Raises:
        DtypelabError: an operator is not defined in a format, or sums cannot be formed so.
    """
    import datatypes

    there = {o.partition(_GROUP)[0] for b in mod.main.bindings for o in b.origins}
    chosen = {
        f"{part}{_GROUP}*": (c.format, c.accumulate)
        for part in PARTS
        if part in there and not (c := getattr(formats, part)).plain
    }
    if not chosen:
        return mod
    changed: IRModule = datatypes.change_dtype(mod, chosen)
    return changed
