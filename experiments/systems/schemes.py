"""Schemes: the number system a sweep puts a network in, and how it gets there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from compiler.errors import ConfigError, DtypelabError, unknown

#: The last form stands for a table; its values may be tables too.
Option: TypeAlias = str | int | float | bool | tuple[str, ...] | tuple[tuple[str, Any], ...]
Kind: TypeAlias = Literal["float32", "int8", "scaled", "format"]

_INT8 = {"int8_tensor": "tensor", "int8_channel": "channel"}
#: Other names of options: short ones of `quantize.QConfig` fields, and what `compiler.build` says.
ALIASES = {
    "granularity": "weight_granularity",
    "calibrator": "calibrate",
    "dtype_lowering": "lowering",
}
FORMAT_OPTIONS = ("accumulate", "lowering")
#: float32 but for its sums, which an accumulator holds.
ACCUMULATED = "float32 accumulated"
#: What is no format, nor a block format.
NAMES = ("float32", "int8", *_INT8, "scaled")


@dataclass(frozen=True)
class Scheme:
    """One number system and its options.

    `kind` float32 leaves the network alone, int8 quantizes it with the `quantize.QConfig` fields in
    `options`, scaled puts it in scaled formats by the same fields, format retypes it to `dtype`;
    `options` are then "accumulate" and "lowering". The
    `label` is what the results call it.
    """

    label: str
    kind: Kind
    dtype: str
    options: tuple[tuple[str, Option], ...] = ()

    def option(self, name: str) -> Option | None:
        """The option's value, None when the specification leaves it at its default."""
        return dict(self.options).get(name)

    @property
    def calibrated(self) -> bool:
        """Whether it comes from a calibrated `quantize.Plan`."""
        return self.kind in ("int8", "scaled")

    def with_calibrator(self, calibrator: str) -> Scheme:
        """This calibrated scheme with a calibrator, unless it names its own."""
        return self._with("calibrate", calibrator) if self.calibrated else self

    def with_accumulation(self, accumulate: str) -> Scheme:
        """This scheme with an accumulation that it takes, unless it names its own."""
        return self._with("accumulate", accumulate) if self.takes(accumulate) else self

    def takes(self, accumulate: str) -> bool:
        """Whether there are sums of this kind that can be accumulated so."""
        from . import number_systems

        stored = self.kind == "scaled" and self.option("compute") != "native"
        return not stored and self.kind in number_systems.accumulated_kinds(accumulate)

    def _with(self, name: str, value: Option) -> Scheme:
        if self.option(name) is not None:
            return self
        return replace(self, options=_sorted({**dict(self.options), name: value}))


def parse(name: str, options: Mapping[str, Any] | None = None) -> Scheme:
    """The scheme called `name`.

    That is float32, int8, int8_tensor, int8_channel, scaled (formats with scales, named by the
    options weight_dtype and activation_dtype, which is the same unless given), a block format such
    as mxfp8_e4m3, the name of a format, a datatype that this process has registered, written
    `custom[NAME]BITS`, or formats by layer, as an inline TOML table (`number_systems.mixture`).

    float32 takes `accumulate`, an accumulator (`compiler.op.accumulator`).
    `options` of int8 and scaled schemes are fields of `quantize.QConfig` (also by the short names
    granularity and calibrator), those of a format `accumulate` and `lowering` (also
    `dtype_lowering`).

    Raises:
        ConfigError: unknown name or option, or a value that does not fit.
    """
    from . import number_systems

    given = {ALIASES.get(key, key): value for key, value in (options or {}).items()}
    if "accumulate" in given:
        given["accumulate"] = number_systems.accumulation(given["accumulate"])
    if name == "float32":
        if other := next((key for key in given if key != "accumulate"), None):
            raise ConfigError(f"scheme 'float32' takes no option {other!r}")
        if given:
            _check_sums(name, given["accumulate"])
            return Scheme(ACCUMULATED, "format", "float32", _sorted(given))
        return Scheme("float32", "float32", "float32")
    if name == "int8" or name in _INT8:
        if name in _INT8:
            if "weight_granularity" in given:
                raise ConfigError(
                    f"scheme {name!r} fixes the granularity; use 'int8' to choose another"
                )
            given["weight_granularity"] = _INT8[name]
        frozen = {key: _freeze(value) for key, value in given.items()}
        number_systems.check_qconfig(frozen)
        return Scheme(_int8_label(frozen), "int8", "int8", _sorted(frozen))
    if name == "scaled" or name in number_systems.block_format_names():
        return _scaled(name, {key: _freeze(value) for key, value in given.items()})
    try:
        number_systems.format_bits(name)
    except DtypelabError as error:
        if name.startswith(("custom[", "{")):
            raise
        names = [*NAMES, *number_systems.block_format_names()]
        names += number_systems.format_names()
        raise ConfigError(unknown("scheme or format", name, names)) from error
    for key, value in given.items():
        if key not in FORMAT_OPTIONS:
            raise ConfigError(unknown(f"option of format {name!r}", key, FORMAT_OPTIONS))
        if not isinstance(value, str):
            raise ConfigError(f"option {key} of format {name!r} must be a string, not {value!r}")
    if "lowering" in given:
        number_systems.check_lowering(given["lowering"])
    if "accumulate" in given:
        _check_sums(name, given["accumulate"])
    return Scheme(name, "format", name, _sorted(given))


def _check_sums(name: str, mode: Any) -> None:
    """Raise a ConfigError unless sums of numbers can be formed so."""
    from . import number_systems

    if not isinstance(mode, str) or "format" not in number_systems.accumulated_kinds(mode):
        raise ConfigError(f"{name!r} has no sums of integers, which accumulate={mode!r} is for")


def of_config(fields: Mapping[str, Any]) -> str:
    """The name of the scheme that fields of `quantize.QConfig` are options of."""
    return "int8" if fields.get("weight_dtype", "int8") == "int8" else "scaled"


def number_format(name: str, accumulate: str | None, lowering: str | None) -> Scheme:
    """The scheme of a format by name ("float32" or a datatype), as command line options give it.

    Raises:
        ConfigError: unknown name, or float32 with an option of formats.
    """
    from . import number_systems

    options = {"accumulate": accumulate, "lowering": lowering}
    given = {key: value for key, value in options.items() if value is not None}
    if name == "int8" or name in _INT8 or name in number_systems.block_format_names():
        raise ConfigError(
            f"{name} needs calibration: quantize the model first with `dtypelab quantize`, "
            "or use it as a scheme of a sweep"
        )
    return parse(name, given)


def _scaled(name: str, given: dict[str, Option]) -> Scheme:
    """Formats with scales, or a block format, on both sides unless options say otherwise."""
    from . import number_systems

    if name != "scaled":
        for key in ("weight_dtype", "activation_dtype"):
            if key in given:
                raise ConfigError(f"scheme {name!r} fixes the formats; use 'scaled' to choose them")
        given["weight_dtype"] = name
    weights = given.get("weight_dtype")
    if weights is None or weights == "int8":
        raise ConfigError("scheme 'scaled' needs the name of a number format as weight_dtype")
    given.setdefault("activation_dtype", weights)
    for side in ("weight_dtype", "activation_dtype"):
        number_systems.check_operand_format(str(given[side]))
    number_systems.check_qconfig(given)
    activations = given["activation_dtype"]
    dtype = str(weights) if weights == activations else f"{activations} x {weights}"
    shown = {"weight_dtype", "activation_dtype", "calibrate", "accumulate"}
    rest = ",".join(f"{k}={_text(v)}" for k, v in sorted(given.items()) if k not in shown)
    base = dtype if dtype in number_systems.block_format_names() else f"scaled {dtype}"
    return Scheme(f"{base}[{rest}]" if rest else base, "scaled", dtype, _sorted(given))


def _int8_label(options: Mapping[str, Option]) -> str:
    """Base name, then the options that no column of the results shows."""
    shown = {"weight_granularity", "calibrate", "accumulate"}
    base = "int8"
    if "weight_granularity" in options:
        base += f"_{options['weight_granularity']}"
    rest = ",".join(f"{k}={_text(v)}" for k, v in sorted(options.items()) if k not in shown)
    return f"{base}[{rest}]" if rest else base


def _text(value: Option) -> str:
    """An option in a label: tables as {key: value}, all else as Python writes it."""
    table = thaw(value)
    if not isinstance(table, dict):
        return str(value)
    return f"{{{', '.join(f'{k}: {_text(_freeze(v))}' for k, v in table.items())}}}"


def _sorted(options: Mapping[str, Option]) -> tuple[tuple[str, Option], ...]:
    return tuple(sorted(options.items()))


def _freeze(value: Any) -> Option:
    if isinstance(value, dict):
        return tuple((key, _freeze(inner)) for key, inner in value.items())
    return tuple(value) if isinstance(value, list) else value


def thaw(value: Option) -> Any:
    """An option as a specification gives it."""
    if not isinstance(value, tuple):
        return value
    pairs = [item for item in value if isinstance(item, tuple)]
    return {key: thaw(inner) for key, inner in pairs} if pairs else list(value)


def names_in(*values: Any) -> set[str]:
    """All that could be names in texts, and in tuples of them."""
    found: set[str] = set()
    for value in values:
        if isinstance(value, str):
            found |= {*re.findall(r"[A-Za-z_]\w*", value)}
        elif isinstance(value, tuple):
            found |= names_in(*value)
    return found
