"""Fields of a configuration that are different for some nodes, and configurations as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from quantize_nets import mixed_net, noise

import compiler
import quantize
from compiler.errors import ConfigError
from compiler.interpret.graph import trace
from compiler.ir.expr import IRModule
from compiler.types.dtypes import Array
from quantize import Plan, QConfig
from quantize.config.node_configs import node_configs


def plan(overrides: dict[str, dict[str, Any]], **fields: Any) -> Plan:
    config = QConfig(bias_correction="none", **fields, overrides=overrides)
    return quantize.calibrate(mixed_net(), [noise(4)], config)


def integers(q: IRModule, x: Array) -> dict[str, Array]:
    """All integers between the results of float nodes, the same compiled and interpreted."""
    values = [(b.var, v) for b, v in trace(q, x) if isinstance(v, np.ndarray)]
    found = {v: a for v, a in values if a.dtype != np.float32}
    f = q.main
    program = compiler.build(q.with_function("main", f.with_body(f.bindings, list(found))))
    for values, wanted in zip(program(x), found.values(), strict=True):
        np.testing.assert_array_equal(values, wanted)
    return {v.name: values for v, values in found.items()}


# ---- what they say -------------------------------------------------------------------------------
def test_weights_and_results_have_the_bits_of_their_own_override() -> None:
    base = plan({})
    p = plan({"c1": {"weight_bits": 4, "weight_granularity": "tensor"}, "conv_2": {
        "activation_bits": 5, "activation_dtype": "int8", "calibrate": "minmax"}})  # fmt: skip
    assert p.weights["c1"].bits == 4
    assert len(p.weights["c1"].scales) == 1
    assert (p.values["c2"].bits, p.values["c2"].dtype) == (5, "int8")
    same = {k for k in base.weights if k not in ("c1", "c2")}
    assert {k: p.weights[k] for k in same} == {k: base.weights[k] for k in same}
    assert {k: v for k, v in p.values.items() if k != "c2"} == {
        k: v for k, v in base.values.items() if k != "c2"
    }
    assert Plan.from_json(p.to_json()) == p


def test_a_result_has_the_names_of_the_activations_folded_into_its_node() -> None:
    for name in ("c1", "conv_1", "r1", "relu_1", "relu*"):
        assert plan({name: {"activation_bits": 4}}).values["r1"].bits == 4
    assert plan({"image": {"activation_bits": 6}}).values["image"].bits == 6


def test_the_first_override_that_gives_a_field_decides_it() -> None:
    p = plan({
        "conv_1": {"weight_bits": 3},
        "c1": {"activation_bits": 6},
        "c*": {"weight_bits": 5, "activation_bits": 7},
    })  # fmt: skip
    assert [p.weights[k].bits for k in ("c1", "c2", "c3", "d1")] == [3, 5, 5, 8]
    assert [p.values[k].bits for k in ("r1", "c2", "c3")] == [6, 7, 7]


def test_overrides_skip_nodes_and_keep_them_from_skip() -> None:
    p = plan({"c2": {"skip": True}})
    assert p.skipped["c2"] == "excluded by overrides of 'c2'"
    p = plan({"c2": {"skip": False}}, skip=("c*",))
    assert p.nodes["c2"].decision == "integer"
    assert p.nodes["c1"].reason == "excluded by skip='c*'"


def test_overrides_of_accumulators_go_before_accumulate() -> None:
    p = plan({"c1": {"accumulate": "int20_wrap"}}, accumulate={"c*": "int24_wrap"})
    assert [p.nodes[k].accumulate for k in ("c1", "c2", "d1")] == [
        "int20_wrap", "int24_wrap", "sequential",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="unknown node 'c1'"):
        plan({"c1": {"accumulate": "int20_wrap"}}, accumulate={"c1": "int24_wrap"})


@pytest.mark.thorough
def test_concatenated_values_share_parameters_only_where_no_override_differs() -> None:
    base = plan({})
    assert base.values["c3"] == base.values["both"]
    p = plan({"c3": {"activation_bits": 4}}, skip=("d2",))
    assert p.values["c3"].bits == 4
    assert set(integers(quantize.realize(mixed_net(), p), noise(3, 2))) >= {"c3_q", "both_q"}


def test_realized_networks_keep_the_integers_of_their_overrides() -> None:
    p = plan({"c1": {"weight_bits": 2}, "r1": {"activation_bits": 3}}, skip=("d2",))
    assert integers(quantize.realize(mixed_net(), p), noise(5, 7))["r1_q"].max() == 7


# ---- what is refused -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"c1": {"weight_bit": 4}}, "overrides of 'c1': unknown field.*did you mean 'weight_bits'"),
        ({"c1": {"requantise": 4}}, "unknown field of a node 'requantise'"),
        ({"c1": {"weight_bits": 1}}, "overrides of 'c1': weight_bits must be an integer from 2"),
        ({"c1": {"calibrate": "kll"}}, "overrides of 'c1': .*did you mean 'kl'"),
        ({"c1": {"skip": 1}}, "skip must be true or false"),
        ({"c1": {"accumulate": {"a": "int16_wrap"}}}, "accumulate must be one value"),
        ({"c1": {}}, "say nothing"),
        ({"": {"skip": True}}, "a pattern must be a name"),
        ({"c1": 4}, "overrides must be a mapping"),
        ("c1", "overrides must be a mapping"),
        (4, "overrides must be a mapping"),
    ],
)
def test_overrides_that_are_none(overrides: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        QConfig(overrides=overrides)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"conv_11": {"skip": True}}, "unknown node 'conv_11'; did you mean 'conv_1'"),
        ({"sooft": {"activation_bits": 4}}, "unknown node 'sooft'; did you mean 'soft'"),
        ({"soft": {"weight_bits": 4}}, "'soft': weight_bits decides nothing"),
        ({"out": {"activation_bits": 4}}, "'out': activation_bits decides nothing"),
        ({"c*": {"weight_bits": 4}, "c1": {"weight_bits": 5}}, "'c1': weight_bits decides nothing"),
        ({"c1": {"skip": True, "weight_bits": 4}}, "'c1': weight_bits decides nothing"),
    ],
)
def test_overrides_that_decide_nothing(overrides: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        quantize.annotate(mixed_net(), QConfig(overrides=overrides))


# ---- as data -------------------------------------------------------------------------------------
names = st.text(st.characters(codec="utf-8", exclude_characters="*?["), min_size=1, max_size=8)
fields = st.fixed_dictionaries(
    {},
    optional={
        "weight_bits": st.integers(2, 8),
        "calibrate": st.sampled_from(["kl", "mse"]),
        "percentile": st.floats(50, 100),
        "skip": st.booleans(),
        "accumulate": st.sampled_from(["int16_wrap", "sequential"]),
    },
).filter(bool)


@pytest.mark.thorough
@given(
    overrides=st.dictionaries(names, fields, max_size=4),
    accumulate=st.just("sequential") | st.dictionaries(names, st.just("int9_wrap"), min_size=1),
    skip=st.lists(names, max_size=3),
    percentile=st.floats(50, 100),
)
def test_configurations_survive_toml_and_json(
    tmp_path_factory: pytest.TempPathFactory,
    overrides: Any,
    accumulate: Any,
    skip: Any,
    percentile: float,
) -> None:
    config = QConfig(
        percentile=percentile, overrides=overrides, accumulate=accumulate, skip=tuple(skip)
    )
    path = tmp_path_factory.getbasetemp() / "config.toml"
    assert config.to_toml(path) == path.read_bytes().decode()
    assert QConfig.from_toml(path) == config
    assert QConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert QConfig(overrides=config.overrides) == QConfig(overrides=overrides)
    assert hash(config) == hash(QConfig.from_toml(path))


@given(
    overrides=st.lists(st.tuples(st.sampled_from(["a", "b", "ab", "a*", "*"]), fields), max_size=4),
    name=st.sampled_from(["a", "b", "ab", "c"]),
)
def test_for_node_is_the_first_override_of_each_field(overrides: Any, name: str) -> None:
    """Against the rule spelled out field by field."""
    config = QConfig(overrides=tuple((p, tuple(f.items())) for p, f in overrides))
    fitting = [f for p, f in overrides if p in (name, "*") or (p == "a*" and name.startswith("a"))]
    chosen = config.for_node([name])
    for field in ("weight_bits", "calibrate", "percentile", "accumulate"):
        given_ = [f[field] for f in fitting if field in f]
        assert getattr(chosen, field) == (given_[0] if given_ else getattr(QConfig(), field))
    skipped = [f["skip"] for f in fitting if "skip" in f]
    assert chosen.skip == (("*",) if skipped and skipped[0] else ())
    assert chosen.overrides == ()


def test_names_with_brackets_mean_themselves() -> None:
    config = QConfig(overrides={"conv[1]": {"weight_bits": 4}})
    names = {"y": ("y", "conv[1]"), "z": ("z", "conv1")}
    found = node_configs(config, names, ["y", "z"], {})
    assert (found["y"].weight_bits, found["z"].weight_bits) == (4, 4)


def test_configuration_files_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    with pytest.raises(ConfigError, match=r"cannot read the configuration .*: No such file"):
        QConfig.from_toml(path)
    path.write_text("weight_bits = ")
    with pytest.raises(ConfigError, match="is not TOML"):
        QConfig.from_toml(path)
    path.write_text("weight_bit = 4")
    with pytest.raises(ConfigError, match="did you mean 'weight_bits'"):
        QConfig.from_toml(path)
    with pytest.raises(ConfigError, match="cannot write"):
        QConfig().to_toml(tmp_path / "no" / "config.toml")
