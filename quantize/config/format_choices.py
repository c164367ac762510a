"""The choices of a QConfig that are about number formats, checked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from compiler.errors import ConfigError, DtypelabError, TypeInferenceError, unknown
from compiler.op.accumulate import MODES, check_mode
from compiler.op.accumulator_width import FORM, width
from compiler.types.dtypes import format_dtype
from quantize.config.checks import CERTIFIED
from quantize.config.sites import ATTENTION, GRANULARITIES, OWN, Site
from quantize.formats.blocks import FLOAT, BlockFormat, block_format, block_formats
from quantize.formats.element import element, unsigned_bits
from quantize.formats.operand_format import check_scale_dtype

if TYPE_CHECKING:
    from quantize.config.qconfig import QConfig

SITES = tuple(GRANULARITIES)
INTEGERS = ("int8", "uint8")
INTEGER = re.compile("u?int[2-8]")


def check_formats(c: QConfig) -> None:
    """Check the dtypes of a configuration, and what must go with them.

    Raises:
        ConfigError: an unknown format, or choices that do not go together.
    """
    if c.activation_aware and c.smoothing not in (0, "auto"):
        raise ConfigError("smoothing and activation_aware choose the same factors: give one")
    check_scale_dtype("the configuration", c.scale_dtype)
    check_scale_dtype("the configuration", c.activation_scale_dtype or FLOAT)
    for site in ATTENTION:
        granularity = getattr(c, f"{site}_granularity")
        if granularity != "tensor" and not getattr(c, f"{site}_dtype"):
            raise ConfigError(
                f"{site}_granularity={granularity!r} needs {site}_dtype: without one they are as "
                "other activations"
            )
    _check_rounding_of_scales(c)
    _check_rounding(c)
    modes = [mode for _, mode in c.accumulators]
    if c.in_formats:
        _check_in_formats(c, modes)
    elif c.activation_dtype == FLOAT:
        _check_weight_only(c, modes)
    else:
        whole = ("sequential", CERTIFIED)
        if named := next((m for m in modes if m not in whole and width(m) is None), None):
            raise ConfigError(
                f"accumulate must be sequential, {FORM}, not {named!r}, which is for number formats"
            )
        if c.compute != "storage":
            raise ConfigError("compute='native' is for number formats; integers have kernels")


def _check_rounding_of_scales(c: QConfig) -> None:
    if c.block_scale_rounding == "floor":
        return
    names = (c.weight_dtype, c.activation_dtype, *(c.site(site).format for site in ATTENTION))
    blocks = [block_format(name) for name in names]
    scales = (c.scale_dtype, c.activation_scale_dtype or FLOAT)
    powers = any(BlockFormat("", "int8", name).powers for name in scales)
    if not powers and not any(b is not None and b.powers for b in blocks):
        raise ConfigError(
            f"block_scale_rounding={c.block_scale_rounding!r} is for block formats whose scales "
            "are powers of two, such as mxfp8_e4m3, and for scale_dtype='float8_e8m0fnu'"
        )


def _check_in_formats(c: QConfig, modes: list[str]) -> None:
    names = (c.weight_format, c.activation_format)
    for field, bits in (("weight", c.weight_bits), ("activation", c.activation_bits)):
        if getattr(c, f"{field}_dtype") in INTEGERS and bits > 8:
            raise ConfigError(
                f"{field}_bits={bits} is for networks in integers; those that go with "
                f"{_others(c)} have 2 to 8"
            )
    for name in names:
        _check_format(name)
    for site in SITES:
        _check_site(c, site)
    if unsigned_bits(c.weight_format):
        raise ConfigError(
            f"weight_dtype={c.weight_dtype!r} is for activations; weights are int<N>, or int8 with "
            "weight_range='asymmetric'"
        )
    if c.weight_dtype == "int8" and c.weight_range != "restricted":
        raise ConfigError(
            f"weight_range={c.weight_range!r} does not go with {_others(c)}, which needs as many "
            "integers on either side of 0: leave it out"
        )
    for site in OWN:
        _check_own(c, site)
    if {*names, *(c.site(site).format for site in (*ATTENTION, *OWN))} == {FLOAT}:
        raise ConfigError("weight_dtype and activation_dtype are both float32: nothing is rounded")
    if wide := next((m for m in modes if width(m) is not None or m == CERTIFIED), None):
        whole = ", and for networks all in one format" if wide == CERTIFIED else ""
        raise ConfigError(
            f"accumulate={wide!r} is for integers{whole}; choose one of {', '.join(MODES)}"
        )
    _check_methods(c)
    if c.compute == "native":
        _check_native(c)
    elif modes != ["sequential"]:
        raise ConfigError(
            f"accumulate={modes[0]!r} needs compute='native'; stored formats are summed in float32"
        )


def _check_own(c: QConfig, site: str) -> None:
    """Check the format of a site that is without one unless it is named."""
    name = getattr(c, f"{site}_dtype")
    if not name or name == FLOAT:
        return
    _check_format(name)
    if c.compute == "native":
        raise ConfigError(
            f"{site}_dtype={name!r} needs compute='storage'; with 'native' use formats by layer"
        )
    if unsigned_bits(name):
        raise ConfigError(
            f"{site}_dtype={name!r} is for activations; use {name.removeprefix('u')}, symmetric"
        )
    if site in ("softmax", "norm") and (block_format(name) or INTEGER.fullmatch(name)):
        raise ConfigError(
            f"{site}_dtype={name!r} has scales; what a {site} is computed in has none: choose a "
            "scalar number format, such as bfloat16"
        )


def _check_site(c: QConfig, site: str) -> None:
    """Check the format of a site, and what its scales are for."""
    field, own = f"{site}_granularity", getattr(c, f"{site}_dtype")
    granularity = getattr(c, field)
    if not own:
        return
    name = c.site(site).format
    _check_format(name)
    if (block_format(name) is not None) != (granularity == "block") and granularity != "tensor":
        raise ConfigError(
            f"{field}={granularity!r} does not go with {site}_dtype={own!r}: blocks are those of "
            f"block formats ({', '.join(block_formats()[:3])} ...), which have no other scales"
        )
    if unsigned_bits(name) and granularity in ("channel", "head"):
        raise ConfigError(
            f"{field}={granularity!r} does not go with {site}_dtype={own!r}: zero points are for "
            f"a tensor or tokens; use {name.removeprefix('u')}, which is symmetric"
        )


def _others(c: QConfig) -> str:
    """The choice by which factors are in formats."""
    if c.weight_dtype != "int8":
        return f"weight_dtype={c.weight_dtype!r}"
    if c.activation_dtype not in (*INTEGERS, FLOAT):
        return f"activation_dtype={c.activation_dtype!r}"
    for field in ("scale_dtype", "activation_scale_dtype"):
        if getattr(c, field) not in ("", FLOAT):
            return f"{field}={getattr(c, field)!r}"
    if own := next((site for site in (*ATTENTION, *OWN) if getattr(c, f"{site}_dtype")), ""):
        return f"{own}_dtype={getattr(c, f'{own}_dtype')!r}"
    if c.activation_granularity != "tensor":
        return f"activation_granularity={c.activation_granularity!r}"
    return f"weight_granularity={c.weight_granularity!r}"


def _check_rounding(c: QConfig) -> None:
    """What chooses the weights of integers alone, or of formats alone."""
    if c.weight_rounding == "hqq":
        if not c.weight_only or c.weight_range != "asymmetric":
            raise ConfigError(
                "weight_rounding='hqq' chooses zero points of integer weights alone: set "
                "activation_dtype='float32' and weight_range='asymmetric' too"
            )
        if c.weight_calibrate == "output":
            raise ConfigError(
                "weight_rounding='hqq' keeps its scales: weight_calibrate must be max or mse"
            )
    if c.in_formats:
        return
    for name in ("wide_weight_dtype", "format_bias_correction"):
        if getattr(c, name) not in ("", "none"):
            raise ConfigError(
                f"{name} is for weights in number formats; integers have mean_weight_bits (wide "
                "ones have 8 bits) and bias_correction"
            )


def _check_methods(c: QConfig) -> None:
    """What chooses weights in formats by data."""
    chosen = [("weight_rounding", "gptq"), ("weight_calibrate", "output")]
    chosen = [(name, value) for name, value in chosen if getattr(c, name) == value]
    if c.weight_rounding not in ("nearest", "gptq"):
        raise ConfigError(
            f"weight_rounding={c.weight_rounding!r} is for integers; formats round to the nearest, "
            "or by 'gptq'"
        )
    if c.activation_aware:
        chosen.append(("activation_aware", "true"))
    for name, value in chosen:
        if c.weight_dtype == FLOAT:
            raise ConfigError(f"{name}={value!r} has no weights to choose: weight_dtype='float32'")
        if c.compute == "native":
            raise ConfigError(f"{name}={value!r} needs compute='storage'")
    if bool(c.mean_weight_bits) != bool(c.wide_weight_dtype):
        raise ConfigError(
            "mean_weight_bits and wide_weight_dtype go together, in formats: the format of "
            "sensitive nodes' weights, and how many bits a weight may have on average"
        )
    if c.wide_weight_dtype:
        _check_format(c.wide_weight_dtype)
        if c.compute == "native":
            raise ConfigError("wide_weight_dtype needs compute='storage'")


def _check_weight_only(c: QConfig, modes: list[str]) -> None:
    if modes != ["sequential"] or c.compute != "storage":
        raise ConfigError(
            "integer weights with activation_dtype='float32' are multiplied in float32: leave out "
            "accumulate and compute"
        )
    if c.weight_bits > 8:
        raise ConfigError(
            f"weight_bits={c.weight_bits} needs integer activations; with "
            "activation_dtype='float32' weights have 2 to 8"
        )


def _check_native(c: QConfig) -> None:
    if any(INTEGER.fullmatch(name) for name in (c.weight_format, c.activation_format)):
        raise ConfigError("compute='native' is for number formats; integers have kernels")
    if c.weight_dtype != c.activation_dtype:
        raise ConfigError(
            f"compute='native' needs one format, not {c.weight_dtype!r} for weights and "
            f"{c.activation_dtype!r} for activations"
        )
    if any(c.site(site) != Site(c.activation_dtype) for site in SITES):
        raise ConfigError(
            "compute='native' has one format and one scale for all activations: leave out "
            "granularities of activations, and the dtypes of keys, values and probabilities"
        )
    if {c.scale_dtype, c.activation_scale_dtype} - {"", FLOAT}:
        raise ConfigError("compute='native' has scales in float32: leave out scale_dtype")
    if c.weight_granularity == "group" or block_format(c.weight_dtype) is not None:
        raise ConfigError(
            "compute='native' needs scales that factor out of sums: neither blocks nor groups"
        )
    for _, mode in c.accumulators:
        try:
            check_mode("compute='native'", mode, format_dtype(c.weight_dtype))
        except TypeInferenceError as error:
            raise ConfigError(str(error)) from None


def _check_format(name: str) -> None:
    if name == FLOAT or block_format(name) is not None or INTEGER.fullmatch(name):
        return
    try:
        element(name)
    except DtypelabError:
        names = (FLOAT, *INTEGERS, *block_formats())
        raise ConfigError(
            f"{unknown('format', name, names)}; `dtypelab dtype list` shows the number formats"
        ) from None
