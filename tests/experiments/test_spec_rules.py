"""Axes, partial cells and settings from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiler.errors import ConfigError
from experiments.spec.cells import Cell, SweepSpec
from experiments.spec.specification import load_spec

pytestmark = pytest.mark.usefixtures("fake")

BASE: dict[str, Any] = {
    "models": ["mnist_mlp", "mnist_resnet8"],
    "schemes": ["float32", "int8_channel", "bfloat16", {"scheme": "posit16_es1", "n_eval": 50}],
    "threads": [1, 2],
    "n_eval": 200,
}


def cells(overrides: tuple[str, ...] = (), **changes: Any) -> tuple[Cell, ...]:
    return load_spec({**BASE, **changes}, overrides).cells


def hashes(found: tuple[Cell, ...]) -> list[str]:
    return [cell.config_hash for cell in found]


# ---- seeds and repeats ---------------------------------------------------------------------------
def test_seeds_cross_what_is_calibrated_only() -> None:
    found = cells(seeds=[0, 7], threads=[1])
    seeds: dict[str, list[int]] = {}
    for cell in found:
        seeds.setdefault(cell.scheme.label, []).append(cell.seed)
    assert seeds["int8_channel"] == [0, 7] * 2
    assert seeds["float32"] == seeds["bfloat16"] == [0, 0]
    assert len(set(hashes(found))) == len(found)
    assert hashes(cells(seeds=[3])) == hashes(cells(seed=3))
    with pytest.raises(ConfigError, match="either seed or seeds"):
        cells(seed=1, seeds=[1])


def test_repeats_are_cells_of_their_own_and_the_first_is_the_cell_itself() -> None:
    once, thrice = cells(), cells(repeats=3)
    assert len(thrice) == 3 * len(once)
    assert len(set(hashes(thrice))) == len(thrice)
    assert hashes(tuple(c for c in thrice if c.repeat == 0)) == hashes(once)
    (again,) = load_spec(thrice[2].specification()).cells
    assert (again.repeat, again.config_hash) == (2, thrice[2].config_hash)


def test_a_model_of_the_list_may_bring_settings_of_its_own() -> None:
    models = ["mnist_mlp", {"model": "mnist_resnet8", "n_eval": 20, "runs": 1}]
    found = cells(models=models, threads=[1])
    assert [(c.settings.n_eval, c.settings.runs) for c in found] == [
        *((200, 20), (200, 20), (200, 20), (50, 20)),
        *((20, 1), (20, 1), (20, 1), (50, 1)),
    ]


# ---- partial cells -------------------------------------------------------------------------------
def test_excluded_cells_are_left_out_and_the_others_are_as_before() -> None:
    whole = cells()
    rules = [
        {"model": "*resnet*", "scheme": ["posit*", "bfloat16"]},
        {"threads": 2, "scheme": "*16*"},
    ]
    left = cells(exclude=rules)
    expected = [
        c.config_hash
        for c in whole
        if not (c.model.name == "mnist_resnet8" and c.scheme.label in ("posit16_es1", "bfloat16"))
        and not (c.threads == 2 and "16" in c.scheme.label)
    ]
    assert hashes(left) == expected
    assert 0 < len(left) < len(whole)


def test_included_cells_take_what_they_leave_out_from_the_lists() -> None:
    whole = cells()
    more = cells(include=[{"scheme": "posit8_es0", "threads": 4, "n_eval": 9}])
    assert hashes(more[: len(whole)]) == hashes(whole)
    assert [
        (c.model.name, c.scheme.label, c.threads, c.settings.n_eval) for c in more[len(whole) :]
    ] == [
        ("mnist_mlp", "posit8_es0", 4, 9),
        ("mnist_resnet8", "posit8_es0", 4, 9),
    ]
    # What the product has already is not there twice.
    assert hashes(cells(include=[{"scheme": "bfloat16"}])) == hashes(whole)
    assert len(cells(include=[{"model": "mnist_dwsep"}])) == len(whole) * 3 // 2
    assert len(cells(include=[{"scheme": "float32", "seed": 3, "repeat": 1}])) == len(whole) + 4
    # An excluded cell may come back.
    assert hashes(cells(exclude=[{"threads": 2}], include=[{"threads": 2}])) == [
        *hashes(tuple(c for c in whole if c.threads == 1)),
        *hashes(tuple(c for c in whole if c.threads == 2)),
    ]


def test_overrides_change_the_settings_of_matching_cells_and_later_ones_win() -> None:
    rules = [{"scheme": ["posit*", "bfloat16"], "n_eval": 30, "runs": 2},
             {"model": "mnist_mlp", "scheme": "posit*", "n_eval": 10}]  # fmt: skip
    found = {(c.model.name, c.scheme.label): c.settings for c in cells(override=rules)}
    evaluated = {key: (s.n_eval, s.runs) for key, s in found.items()}
    assert evaluated["mnist_mlp", "posit16_es1"] == (10, 2)
    assert evaluated["mnist_resnet8", "posit16_es1"] == (30, 2)
    assert evaluated["mnist_mlp", "bfloat16"] == (30, 2)
    assert evaluated["mnist_mlp", "float32"] == (200, 20)


@pytest.mark.thorough
@given(st.data())
def test_exclude_is_the_complement_of_what_it_names(data: st.DataObject) -> None:
    import fake_pipeline

    with pytest.MonkeyPatch.context() as patch:
        fake_pipeline.install(patch.setattr)
        keys = {
            "model": ["mnist_mlp", "mnist_resnet8"],
            "scheme": ["float32", "int8_channel", "bfloat16", "posit16_es1"],
            "threads": [1, 2],
        }
        rule = {
            key: data.draw(st.lists(st.sampled_from(values), min_size=1, unique=True))
            for key, values in keys.items()
            if data.draw(st.booleans(), label=key)
        }
        if not rule or all(len(rule.get(k, v)) == len(v) for k, v in keys.items()):
            return
        whole = cells()
        left = set(hashes(cells(exclude=[rule])))
        for cell in whole:
            has = {"model": cell.model.name, "scheme": cell.scheme.label, "threads": cell.threads}
            assert (cell.config_hash not in left) == all(has[k] in rule[k] for k in rule)


MISTAKES = [
    ("[[exclude]]\nmodel = \"mnist_mpl\" #!", "no cell is like this rule"),
    ("[[exclude]]\nmodle = \"mnist_mlp\" #!", "unknown key 'modle'; did you mean 'model'"),
    ("[[exclude]]\nn_eval = 3 #!", "unknown key 'n_eval'"),
    ("[[exclude]]\nthreads = 1.5 #!", "threads must be a name, a number"),
    ("exclude = [3] #!", "exclude is a list of tables"),
    ("[[exclude]] #!\n", "names what it is for"),
    ("[[exclude]] #!\nthreads = 1", "every cell is excluded"),
    ("[[override]] #!\nmodel = \"mnist_mlp\"", "sets something: n_eval, n_calib"),
    ("[[override]]\nmodel = \"*\"\nn_eval = 1001 #!", "n_eval is 1001, but data set"),
    ("[[override]]\nmodel = \"*\"\nn_eval = 0 #!", "n_eval must be at least 1"),
    ("[[include]]\nscheme = \"posit9\" #!", "unknown scheme or format 'posit9'"),
    ("[[include]]\nthreads = [1, 0] #!", "threads must be at least 1"),
    ("[[include]]\nmodel = \"mnist\" #!", "unknown model 'mnist'; did you mean"),
    ("[[include]]\nthread = 2 #!", "unknown key 'thread'; did you mean 'threads'"),
    ("repeats = 0 #!", "repeats must be at least 1"),
    ("seeds = [0, 0] #!", "seeds lists 0 twice"),
    ('models = [{model = "mnist_mlp", n_evl = 3}] #!', "unknown key 'n_evl'"),
    ('models = [{model = "mnist_mlp", n_eval = 1001}] #!', "n_eval is 1001, but data set"),
    ('models = [{dataset = "mnist1k"}] #!', "the key 'model' is missing"),
    ('models = ["mnist_mlp",\n {model = "mnist_dwsep", metric = "top2"}] #!', "metric 'top2'"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), MISTAKES)
def test_mistakes_in_rules_are_named_with_their_line(
    tmp_path: Path, text: str, message: str
) -> None:
    needed = {"models": 'models = ["mnist_mlp"]', "schemes": 'schemes = ["float32"]'}
    document = "\n".join([*(v for k, v in needed.items() if f"{k} =" not in text), text])
    (tmp_path / "spec.toml").write_text(document)
    lines = document.splitlines()
    line = next(i for i, line in enumerate(lines, 1) if line.endswith("#!"))
    with pytest.raises(ConfigError, match=message) as error:
        load_spec(tmp_path / "spec.toml")
    found = int(str(error.value).split(":")[1])
    assert found in (line, line - 1), str(error.value)  # the rule or the key in it


# ---- settings from the command line --------------------------------------------------------------
def of_file(folder: Path, *overrides: str) -> SweepSpec:
    path = folder / "spec.toml"
    path.write_text(
        'models = ["mnist_mlp"]\nschemes = ["float32",\n {scheme = "bfloat16", n_eval = 7}]\n'
        "[latency]\nruns = 9\n"
    )
    return load_spec(path, overrides)


def test_dotted_settings_replace_those_of_the_file(tmp_path: Path) -> None:
    spec = of_file(
        tmp_path, "latency.runs=5", 'models=["mnist_resnet8"]', "schemes.1.n_eval=3", "n_eval=90"
    )
    assert [(c.model.name, c.settings.n_eval, c.settings.runs) for c in spec.cells] == [
        ("mnist_resnet8", 90, 5),
        ("mnist_resnet8", 3, 5),
    ]
    (cell, _) = of_file(tmp_path, "dataset=mnist1k", "latency.batch = 4").cells
    assert (cell.dataset, cell.settings.batch) == ("mnist1k", 4)
    assert load_spec("quickstart", ["latency.runs=0"]).cells[0].settings.runs == 0


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("latency.runs=-1", "--set latency.runs=-1: runs must be at least 0, not -1"),
        ("latency.run=1", "--set latency.run=1: unknown key 'run'; did you mean 'runs'"),
        ("modles=3", "--set modles=3: unknown key 'modles'"),
        ('models=["a"]', "--set models=\\[\"a\"\\]: unknown model 'a'"),
        ('schemes=["float32", "bflot16"]', "--set schemes=.*: unknown scheme or format 'bflot16'"),
        ("schemes.1.n_eval=2000", "--set schemes.1.n_eval=2000: n_eval is 2000, but data set"),
        ("schemes.9.n_eval=2", "--set schemes.9.n_eval=2: schemes has no place 9"),
        ("n_eval.x=2", "--set n_eval.x=2: n_eval must be an integer, not a table"),
        ("n_eval", "--set 'n_eval' is not KEY=VALUE"),
        ("=3", "--set '=3' is not KEY=VALUE"),
        ('exclude=[{model="nobody"}]', "--set exclude=.*: no cell is like this rule"),
    ],
)
def test_wrong_settings_are_named_as_such(tmp_path: Path, setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        of_file(tmp_path, setting)
    assert "spec.toml:" not in str(error.value)


def test_other_complaints_keep_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text('models = ["mnist_mlp"]\nschemes = ["float32",\n "bflot16"]\n')
    with pytest.raises(ConfigError, match=r"spec\.toml:3: unknown scheme"):
        load_spec(path, ["n_eval=3"])
