"""Scaled formats and block formats as schemes of sweeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import datatypes
import experiments
from compiler.errors import ConfigError
from experiments.spec import identity
from experiments.spec.specification import load_spec
from experiments.systems import schemes
from quantize.formats.blocks import define_block_format

SMALL = {"models": ["mnist_mlp"], "n_eval": 60, "n_calib": 40, "latency": {"warmup": 0, "runs": 0}}


@pytest.mark.thorough
def test_a_sweep_over_scaled_formats_gives_a_row_for_each(tmp_path: Path) -> None:
    both = {"scheme": "scaled", "weight_dtype": "float8_e4m3fn"}
    table = experiments.sweep(
        {
            **SMALL,
            "schemes": [
                "float32",
                "mxfp8_e4m3",
                both,
                {**both, "activation_dtype": "float8_e5m2", "scales": "power_of_two"},
                {**both, "compute": "native", "accumulate": "exact"},
                {
                    "scheme": "scaled", "weight_dtype": "nf4", "activation_dtype": "float32",
                    "weight_granularity": "group", "weight_group_size": 32,
                },
            ],
        },
        tmp_path / "r.csv",
    )  # fmt: skip
    assert table["status"].tolist() == ["ok"] * len(table), table["error"].tolist()
    assert table["scheme"].tolist() == [
        "float32",
        "mxfp8_e4m3",
        "scaled float8_e4m3fn",
        "scaled float8_e5m2 x float8_e4m3fn[scales=power_of_two]",
        "scaled float8_e4m3fn[compute=native]",
        "scaled float32 x nf4[weight_granularity=group,weight_group_size=32]",
    ]
    assert table["weight_bits"].tolist() == [32, 8, 8, 8, 8, 4]
    assert table["activation_bits"].tolist() == [32, 8, 8, 8, 8, 32]
    assert table["accumulate"].fillna("").tolist()[1:] == ["float32"] * 3 + ["exact", "float32"]
    assert table["granularity"].tolist()[1:3] == ["block of 32", "channel"]
    assert (table["top1_agreement"] > 0.9).all()
    sizes = table["size_bytes"].tolist()
    weights = (784 * 128 + 128 * 10) if sizes[0] > 4e5 else sizes[0] / 4
    assert sizes[1] == pytest.approx(sizes[0] - weights * (32 - 8.25) / 8, rel=0.01)
    assert sizes[5] == pytest.approx(sizes[0] - weights * (32 - 5) / 8, rel=0.01)
    assert sizes[4] < sizes[0] / 3.5
    widths = table["weight_bits"] * table["activation_bits"]
    assert table["bit_operations"].tolist() == (table["macs"] * widths).tolist()


@pytest.mark.thorough
def test_few_bits_of_integers_are_counted_as_what_they_are(tmp_path: Path) -> None:
    """Not as the bytes that hold them: every node of the perceptron is in integers."""
    schemes = [
        "int8_channel",
        {"scheme": "int8_channel", "weight_bits": 4},
        {"scheme": "int8_channel", "weight_bits": 12, "activation_bits": 16},
        {"scheme": "int8_channel", "overrides": {"logits": {"skip": True}}},
    ]
    table = experiments.sweep({**SMALL, "schemes": schemes}, tmp_path / "r.csv")
    assert table["status"].tolist() == ["ok"] * 4, table["error"].tolist()
    macs, weights = table["macs"][0], 784 * 128 + 128 * 10
    assert macs == weights
    last = 128 * 10
    assert table["bit_operations"].tolist() == [
        *(macs * 8 * 8, macs * 4 * 8, macs * 12 * 16),
        (macs - last) * 8 * 8 + last * 32 * 32,
    ]
    eight, four, twelve, _ = table["size_bytes"]
    assert eight - four == weights / 2
    # Biases of 64 bits. Zero points of 16, where values are made and where they are read: of the
    # input instead of one of 8, of the hidden value, which had none.
    assert twelve - eight == weights / 2 + 138 * 4 + 2 * 1 + 2 * 2


def test_rows_can_be_run_again_from_what_they_record(tmp_path: Path) -> None:
    assert schemes.parse("mxfp4_e2m1") == schemes.parse("scaled", {"weight_dtype": "mxfp4_e2m1"})
    first = experiments.sweep({**SMALL, "schemes": ["mxfp4_e2m1"]}, tmp_path / "a.csv")
    again = experiments.sweep(json.loads(first["config"][0]), tmp_path / "b.csv")
    assert again["config_hash"][0] == first["config_hash"][0]
    assert again["sqnr_db"][0] == first["sqnr_db"][0]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("scaled", {}, "needs the name of a number format as weight_dtype"),
        ("scaled", {"weight_dtype": "int8"}, "needs the name of a number format as weight_dtype"),
        ("scaled", {"weight_dtype": "float8_e4m3fm"}, "float8_e4m3fn"),
        ("scaled", {"weight_dtype": "bfloat16", "weight_bit": 3}, "weight_bits"),
        ("mxfp8_e4m3", {"weight_dtype": "bfloat16"}, "fixes the formats; use 'scaled'"),
        ("mxfp8_e4m4", {}, "mxfp8_e4m3"),
    ],
)
def test_schemes_that_do_not_fit_are_refused(
    name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        schemes.parse(name, options)


def test_formats_that_a_process_defined_are_part_of_a_rows_identity() -> None:
    datatypes.define("sweep_e3m3", exponent=3, mantissa=3, nan=False)
    define_block_format("sweep_blocks", "sweep_e3m3", block=16)
    found = {
        name: identity.definitions(schemes.parse(name))
        for name in ("sweep_e3m3", "sweep_blocks", "mxfp8_e4m3")
    }
    assert list(found["sweep_e3m3"]) == ["formats"]
    assert list(found["sweep_e3m3"]["formats"]) == ["sweep_e3m3"]
    assert found["sweep_blocks"]["formats"] == found["sweep_e3m3"]["formats"]
    assert found["sweep_blocks"]["blocks"]["sweep_blocks"]["block"] == 16
    assert found["mxfp8_e4m3"] == {}


def test_sites_are_options_of_schemes(tmp_path: Path) -> None:
    """Integers of tokens, formats of scales, pairs of integers and formats: one row each."""
    tokens = {"activation_granularity": "token", "activation_dtype": "int8"}
    table = experiments.sweep(
        {
            **SMALL,
            "schemes": [
                {"scheme": "int8", **tokens},
                {
                    "scheme": "int8", **tokens, "weight_bits": 4, "weight_granularity": "group",
                    "weight_group_size": 16,
                },
                {
                    "scheme": "scaled", "weight_dtype": "int4",
                    "activation_dtype": "float8_e4m3fn", "scale_dtype": "bfloat16",
                },
                {
                    "scheme": "scaled", "weight_dtype": "mxfp4_e2m1", **tokens,
                    "key_dtype": "int8", "key_granularity": "token",
                },
            ],
        },
        tmp_path / "r.csv",
    )  # fmt: skip
    assert table["status"].tolist() == ["ok"] * 4, table["error"].tolist()
    assert table["weight_bits"].tolist() == [8, 4, 4, 4]
    assert table["activation_bits"].tolist() == [8, 8, 8, 8]
    assert table["granularity"].tolist() == [
        "channel; token", "group of 16; token", "channel", "block of 32; token"
    ]  # fmt: skip
    assert (table["top1_agreement"] > 0.9).all()
    assert table["size_bytes"].is_monotonic_decreasing or (
        table["size_bytes"][0] > table["size_bytes"][1:].max()
    )
    macs = table["macs"]
    assert table["bit_operations"].tolist() == [macs[0] * 64, *(macs[1:] * 32)]


def test_lists_among_the_options_of_a_scheme_span_schemes() -> None:
    spec = {
        "models": ["mnist_mlp"],
        "schemes": [
            "float32",
            {
                "scheme": "scaled", "weight_dtype": ["int4", "nf4"], "activation_dtype": "int8",
                "activation_granularity": ["tensor", "token"], "key_dtype": ["int8"],
                "skip": ["logits"],
            },
        ],
    }  # fmt: skip
    found = [dict(cell.scheme.options) for cell in load_spec(spec).cells[1:]]
    assert [(o["weight_dtype"], o["activation_granularity"]) for o in found] == [
        ("int4", "tensor"), ("int4", "token"), ("nf4", "tensor"), ("nf4", "token")
    ]  # fmt: skip
    assert all(o["key_dtype"] == "int8" and o["skip"] == ("logits",) for o in found)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ('activation_granularity = ["token", "tokn"]', ":4: .*did you mean 'token'"),
        ("weight_bits = []", ":[46]: .*weight_bits lists nothing"),
        ('key_dtype = "int9"', ":[46]: .*unknown format 'int9'"),
        ('keys_dtype = "int8"', ":[46]: .*unknown QConfig field 'keys_dtype'"),
        ('value_granularity = "head"', ":[46]: .*needs value_dtype"),
    ],
)
def test_mistakes_in_sites_are_named_with_their_line(
    tmp_path: Path, option: str, message: str
) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(
        'models = ["mnist_mlp"]\n\n[[schemes]]\n'
        f'scheme = "scaled"\nweight_dtype = "int4"\n{option}\n'
    )
    with pytest.raises(ConfigError, match=message):
        load_spec(path)
