"""What the fields of a QConfig may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from compiler.errors import ConfigError, DtypelabError, unknown
from compiler.op.accumulate import CERTIFIED as CERTIFIED
from compiler.op.accumulate import MODES, is_mode
from compiler.op.accumulator import accumulator, of_table
from compiler.op.accumulator_width import FORM, width
from compiler.op.qnn.formats import SCALE_ROUNDINGS
from compiler.op.qnn.requantize import ROUNDINGS
from quantize.config.sites import ATTENTION, GRANULARITIES, OWN

if TYPE_CHECKING:
    from quantize.config.qconfig import QConfig

CHOICES: dict[str, tuple[str, ...]] = {
    "calibrate": (
        "minmax",
        "moving_average",
        "percentile",
        "sigma",
        "kl",
        "mse",
        "power_of_two",
    ),
    "weight_granularity": ("tensor", "channel", "group"),
    "activation_granularity": (*GRANULARITIES["activation"], "group"),
    **{f"{site}_granularity": GRANULARITIES[site] for site in ATTENTION},
    "activation_range": ("full", "restricted"),
    "weight_range": ("restricted", "full", "asymmetric"),
    "compute": ("storage", "native"),
    "scales": ("float32", "power_of_two"),
    "block_scale_rounding": SCALE_ROUNDINGS,
    "requantize": ROUNDINGS,
    "functions": ("auto", "integer", "float"),
    "arithmetic": ("auto", "integer", "float"),
    "softmax": ("float", "integer"),
    "layer_norm": ("float", "integer"),
    "bias_correction": ("none", "analytic", "empirical"),
    "format_bias_correction": ("none", "analytic", "empirical"),
    "weight_calibrate": ("max", "mse", "output"),
    "weight_rounding": ("nearest", "adaround", "gptq", "hqq"),
    "target_metric": ("agreement", "sqnr"),
}
RANGES: dict[str, tuple[float, float]] = {
    "percentile": (50.0, 100.0),
    "kl_bins": (256, 65536),
    "momentum": (0.0, 0.999999),
    "sigmas": (0.01, 1000.0),
    "weight_bits": (2, 16),
    "activation_bits": (2, 16),
    "rounding_inputs": (1, 65536),
    "rounding_steps": (100, 100000),
    "rounding_damping": (1e-6, 10.0),
    "seed": (0, 2**31 - 1),
    "smoothing": (0.0, 1.0),
    "weight_group_size": (1, 1 << 20),
    "mean_weight_bits": (0.0, 16.0),
    "float_macs": (0.0, 1.0),
    "target": (0.0, 1000.0),
}
NAMES = (
    "weight_dtype", "activation_dtype", "scale_dtype", "activation_scale_dtype",
    "wide_weight_dtype",
    *(f"{site}_dtype" for site in (*ATTENTION, *OWN)),
)  # fmt: skip
WORDS = {"smoothing": "auto"}
"""What a field may be besides a number."""
FLAGS = ("activation_symmetric", "equalize", "activation_aware", "rotate", "rotate_heads")


def check_fields(config: QConfig) -> None:
    """Check all fields but those with patterns of nodes, and those of number formats.

    Raises:
        ConfigError: a value does not fit.
    """
    for name, choices in CHOICES.items():
        value = getattr(config, name)
        if value not in choices:
            raise ConfigError(unknown(f"value of {name}", str(value), choices))
    for name in NAMES:
        if not isinstance(value := getattr(config, name), str):
            raise ConfigError(f"{name} must be the name of a format, not {value!r}")
    for name, (low, high) in RANGES.items():
        value = getattr(config, name)
        if name in WORDS and value == WORDS[name]:
            continue
        kinds = (int, float) if isinstance(low, float) else int
        if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
            number = "a number" if isinstance(low, float) else "an integer"
            word = f"{WORDS[name]!r} or " if name in WORDS else ""
            raise ConfigError(
                f"{name} must be {word}{number} from {low:g} to {high:g}, not {value!r}"
            )
    granularity, integers = config.activation_granularity, config.weight_dtype == "int8"
    integers = integers and config.activation_dtype in ("int8", "uint8")
    if granularity == "group" or (integers and granularity == "channel"):
        raise ConfigError(
            f"activation_granularity={config.activation_granularity!r} has no integer form, as a "
            "sum runs over channels and groups: move their differences into the weights with "
            "smoothing or equalize"
        )
    if config.weight_range == "asymmetric" and config.weight_bits > 15:
        raise ConfigError(
            f"weight_bits={config.weight_bits} does not go with weight_range='asymmetric', whose "
            "distances from the zero point int16 does not hold: use 15 or fewer"
        )
    for name in FLAGS:
        if not isinstance(value := getattr(config, name), bool):
            raise ConfigError(f"{name} must be true or false, not {value!r}")
    if config.target and not config.float_macs:
        raise ConfigError(
            "a target needs float_macs, the share of the multiply-accumulates that may be left "
            "in float to reach it, for example 0.05"
        )
    if config.target > 1 and config.target_metric == "agreement":
        raise ConfigError(f"a target of agreement must be at most 1, not {config.target:g}")


def patterns(given: Any) -> tuple[str, ...]:
    """The names and patterns of nodes that `skip` was given, perhaps as one string.

    Raises:
        ConfigError: they are not names.
    """
    skip = [given] if isinstance(given, str) else given
    if not isinstance(skip, list | tuple) or not all(isinstance(s, str) and s for s in skip):
        raise ConfigError(f"skip must be names or patterns of nodes, not {given!r}")
    return tuple(skip)


def check_accumulate(mode: Any, chosen: tuple[str, ...] = ()) -> str:
    """The canonical text of `mode`, which must be an accumulation of integers or of number formats,
    the name of a format, the description of an accumulator, or one of `chosen`.

    Raises:
        ConfigError: it is none.
    """
    if isinstance(mode, str) and (mode in MODES or width(mode) is not None or mode in chosen):
        return mode
    try:
        found = of_table(mode) if isinstance(mode, Mapping) else accumulator(str(mode))
        if found is not None and is_mode(str(found)):
            return str(found)
    except DtypelabError as error:
        raise ConfigError(str(error)) from None
    others = "".join(f", {name}" for name in chosen)
    raise ConfigError(
        f"accumulate must be sequential, {FORM}{others}, for formats also {', '.join(MODES[1:])} "
        f"or a format, not {mode!r}"
    )


def accumulation(given: Any) -> str | tuple[tuple[str, str], ...]:
    """The accumulation of all nodes, or pairs of patterns and accumulations.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(given, str) or (isinstance(given, Mapping) and "format" in given):
        return check_accumulate(given, (CERTIFIED,))
    pairs = given.items() if isinstance(given, Mapping) else given
    try:
        chosen = tuple(
            (str(pattern), check_accumulate(mode, (CERTIFIED,))) for pattern, mode in pairs
        )
    except (TypeError, ValueError):
        chosen = ()
    if not chosen:
        raise ConfigError(
            "accumulate must be a name, or a mapping from patterns of nodes to names, not "
            f"{given!r}"
        )
    return chosen
