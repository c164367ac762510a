"""The columns of a row that a plan of `quantize` decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quantize import Plan, QConfig


def plan_columns(plan: Plan, config: QConfig) -> dict[str, Any]:
    """Bits, granularity, symmetry, calibrator, accumulation, and what stays float and why."""
    shared = {
        "accumulate": _accumulate_text(config),
        "skipped": "; ".join(f"{name} ({reason})" for name, reason in plan.skipped.items()),
    }
    return (_scaled(config) if config.in_formats else _integers(config)) | shared


def _accumulate_text(config: QConfig) -> str:
    if config.in_formats and config.compute == "storage":
        return "float32"
    if isinstance(config.accumulate, str):
        return config.accumulate
    return "; ".join(f"{pattern}: {mode}" for pattern, mode in config.accumulators)


def _integers(config: QConfig) -> dict[str, Any]:
    alone = config.weight_only
    symmetry = [
        f"{side} {'symmetric' if getattr(config, f'{side}_symmetric') else 'asymmetric'}"
        for side in ("weight", "activation")[: 1 if alone else 2]
    ]
    return {
        "weight_bits": int(config.weight_bits),
        "activation_bits": 32 if alone else int(config.activation_bits),
        "granularity": _granularity(config),
        "symmetry": ", ".join(symmetry),
        "calibrator": "" if alone else str(config.calibrate),
    }


def _granularity(config: QConfig) -> str:
    """That of weights; and of activations, where they do not have one scale."""
    from quantize.formats.blocks import block_format

    chosen, data = str(config.weight_granularity), str(config.activation_granularity)
    weights = f"group of {config.weight_group_size}" if chosen == "group" else chosen
    if config.in_formats and (block := block_format(config.weight_dtype)) is not None:
        weights = f"block of {block.block}"
    return weights if data == "tensor" else f"{weights}; {data}"


def _scaled(config: QConfig) -> dict[str, Any]:
    from quantize.formats.blocks import block_format
    from quantize.formats.storage import format_bits

    scaled = block_format(config.activation_dtype)
    return {
        "weight_bits": format_bits(config.weight_format),
        "activation_bits": format_bits(config.activation_format),
        "granularity": _granularity(config),
        "calibrator": "" if scaled is not None and scaled.powers else str(config.calibrate),
    }
