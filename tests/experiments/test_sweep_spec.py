from pathlib import Path
from typing import Any

import pytest

import datatypes
from compiler.errors import ConfigError
from datatypes.formats import catalogue
from experiments.cli.main import run_command
from experiments.spec.shipped import shipped
from experiments.spec.specification import SweepSpec, load_spec
from experiments.spec.toml_lines import line_numbers, line_of

pytestmark = pytest.mark.usefixtures("fake")

BASE = {"models": ["mnist_mlp"], "schemes": ["float32"]}


def load_text(folder: Path, text: str) -> SweepSpec:
    path = folder / "spec.toml"
    path.write_text(text)
    return load_spec(path)


def test_line_numbers_of_every_kind_of_value() -> None:
    text = '''# comment [not.a.table]
a = 1
b = [
  "x", # ] comment
  {c = 2, d = [1,
    2]},
]
text = """
e = "not a key" [x]
"""
"quoted key" = 'literal # not a comment'

[t . "u"]
f.g = 1979-05-27
[[many]]
h = 1
[[many]]
h = 2
  [many.inner]
  k = true
'''
    lines = line_numbers(text)
    expected = {
        ("a",): 2,
        ("b",): 3,
        ("b", 0): 4,
        ("b", 1, "c"): 5,
        ("b", 1, "d", 0): 5,
        ("b", 1, "d", 1): 6,
        ("text",): 8,
        ("quoted key",): 11,
        ("t", "u"): 13,
        ("t", "u", "f", "g"): 14,
        ("many", 0, "h"): 16,
        ("many", 1): 17,
        ("many", 1, "h"): 18,
        ("many", 1, "inner", "k"): 20,
    }
    assert {path: lines.get(path) for path in expected} == expected
    assert ("e",) not in lines
    assert line_of(lines, ("b", 1, "zzz")) == 5
    assert line_of(lines, ("zzz",)) == 1


def test_cells_are_the_product_of_the_lists() -> None:
    spec = load_spec(
        {
            "models": ["mnist_mlp", "mnist_resnet8"],
            "schemes": ["float32", "int8_channel", {"scheme": "posit16_es1", "n_eval": 50}],
            "calibrators": ["minmax", "kl"],
            "threads": [1, 2],
            "n_eval": 200,
            "latency": {"warmup": 1, "runs": 4},
        }
    )
    # Calibrators cross int8 schemes only.
    assert len(spec.cells) == 2 * 2 * (1 + 2 + 1)
    first = spec.cells[:4]
    assert [c.scheme.label for c in first] == ["float32", *["int8_channel"] * 2, "posit16_es1"]
    assert [c.scheme.option("calibrate") for c in first] == [None, "minmax", "kl", None]
    assert [c.settings.n_eval for c in first] == [200, 200, 200, 50]
    assert {(c.settings.warmup, c.settings.runs) for c in first} == {(1, 4)}
    assert len({c.config_hash for c in spec.cells}) == len(spec.cells)


def test_accumulations_cross_the_schemes_that_take_them() -> None:
    spec = load_spec(
        {
            "models": ["mnist_mlp"],
            "schemes": [
                "float32",
                "int8_tensor",
                {"scheme": "int8_channel", "accumulate": "int10_wrap"},
                "posit16_es1",
            ],
            "accumulations": ["sequential", "int16_wrap", "int20_saturate", "exact"],
        }
    )
    assert [(c.scheme.label, c.scheme.option("accumulate")) for c in spec.cells] == [
        ("float32", None),
        ("int8_tensor", "sequential"),
        ("int8_tensor", "int16_wrap"),
        ("int8_tensor", "int20_saturate"),
        ("int8_channel", "int10_wrap"),
        ("posit16_es1", "sequential"),
        ("posit16_es1", "exact"),
    ]
    assert len({c.config_hash for c in spec.cells}) == len(spec.cells)


def test_n_eval_is_all_images_by_default() -> None:
    assert load_spec(BASE).cells[0].settings.n_eval == 1000


def hashes(**changes: Any) -> list[str]:
    return [cell.config_hash for cell in load_spec({**BASE, **changes}).cells]


def test_the_hash_says_what_was_computed_not_how_it_was_written() -> None:
    assert hashes() == hashes(n_eval=1000, targets=["llvm"], latency={})
    # float32 does not calibrate: how it would have does not matter.
    assert hashes() == hashes(n_calib=10, seed=3)
    assert hashes(schemes=["int8_channel"]) == hashes(
        schemes=[{"scheme": "int8", "granularity": "channel"}]
    )
    spelled = [{"scheme": "bfloat16", how: "vector"} for how in ("lowering", "dtype_lowering")]
    assert hashes(schemes=spelled[:1]) == hashes(schemes=spelled[1:])
    int8 = {"schemes": ["int8_channel"]}
    variants = [
        hashes(),
        hashes(n_eval=10),
        hashes(threads=[2]),
        hashes(targets=["llvm -mcpu=haswell"]),
        hashes(latency={"runs": 7}),
        hashes(models=["mnist_resnet8"]),
        hashes(**int8),
        hashes(**int8, seed=1),
        hashes(**int8, n_calib=10),
        hashes(**int8, calibrators=["kl"]),
        hashes(schemes=["posit16_es1"]),
        hashes(schemes=[{"scheme": "posit16_es1", "accumulate": "exact"}]),
    ]
    assert len({h for (h,) in variants}) == len(variants)


def test_the_hash_of_the_default_protocol_is_that_of_rows_older_than_the_others() -> None:
    """Rows of schema version 3 and before keep their configuration."""
    content = {**BASE, "n_eval": 200, "latency": {"warmup": 3, "runs": 30, "batch": 1}}
    protocols = [{}, {"precision": 0.02, "budget_s": 2}, {"precision": 0.01}, {"budget_s": 0}]
    cells = [load_spec({**content, "latency": p | content["latency"]}).cells[0] for p in protocols]
    assert cells[0].settings.protocol == [3, 30, 1]
    assert cells[0].config_hash == cells[1].config_hash
    assert len({cell.config_hash for cell in cells}) == 3
    given = cells[3].specification()["latency"]
    assert given == {"warmup": 3, "runs": 30, "batch": 1, "precision": 0.02, "budget_s": 0.0}


def test_models_are_found_beside_the_specification(tmp_path: Path) -> None:
    (tmp_path / "mine.onnx").write_bytes(b"anything: the importer judges it later")
    spec = load_text(tmp_path, 'models = ["mine.onnx"]\nschemes = ["float32"]\n')
    assert spec.cells[0].model.name == "mine"


#: What is wrong (the offending line ends in "#!"), and what the error says about it.
MISTAKES = [
    ('scheme = ["float32"] #!', "unknown key 'scheme'; did you mean 'schemes'"),
    ('models = "mnist_mlp" #!', "models must be a list, not a string"),
    ('models = ["mnist_mlp",\n 3] #!', "a model is a name or a table with the key model"),
    ('models = ["mnist_mpl"] #!', "unknown model 'mnist_mpl'; did you mean 'mnist_mlp'"),
    ('models = ["gone.onnx"] #!', "no model file .*gone.onnx"),
    ("models = [] #!", "models is empty"),
    ('models = ["mnist_mlp", "mnist_mlp"] #!', "models lists 'mnist_mlp' twice"),
    ('dataset = "mnist2k" #!', "unknown data set 'mnist2k'; did you mean 'mnist1k'"),
    ('dataset = "gone.npz" #!', "cannot read .*gone.npz: No such file"),
    ("n_eval = true #!", "n_eval must be an integer, not true or false"),
    ("n_eval = 0 #!", "n_eval must be at least 1, not 0"),
    ("n_eval = 1001 #!", "n_eval is 1001, but data set 'mnist1k' has 1000 examples"),
    ("n_calib = 1.5 #!", "n_calib must be an integer, not a number"),
    ("threads = [1,\n\n0] #!", "threads must be at least 1, not 0"),
    ('targets = ["lvm"] #!', "unknown target 'lvm'"),
    ('calibrators = ["kl", "percentil"] #!', "unknown calibrator 'percentil'; .*'percentile'"),
    ("[layers]\nimages = -1 #!", "images must be at least 0"),
    ("[layers]\nimages = 1001 #!", "images is 1001, but the data set has 1000"),
    ("[layers]\nimages = 1\nevents = 1 #!", "events must be true or false, not an integer"),
    ("[layers]\nevent = true #!", "unknown key 'event'; did you mean 'events'"),
    ('accumulations = ["exat"] #!', "unknown accumulation 'exat'; .*int<N>_wrap"),
    (
        'schemes = [{ scheme = "float32", accumulate = "exat" }] #!',
        "unknown accumulation 'exat'",
    ),
    (
        'schemes = [{ scheme = "bfloat16", accumulate = "int16_wrap" }] #!',
        "has no sums of integers",
    ),
    (
        'schemes = ["bfloat16"]\naccumulations = ["sequential",\n"int16_wrap"] #!',
        "no scheme takes accumulation 'int16_wrap'",
    ),
    ("latency = 3 #!", "latency must be a table, not an integer"),
    ("[latency]\nrun = 3 #!", "unknown key 'run'; did you mean 'runs'"),
    ("[latency]\nprecision = -0.1 #!", "precision must be a number of at least 0, not -0.1"),
    ("[latency]\nprecision = nan #!", "precision must be a number of at least 0, not nan"),
    ("[latency]\nbudget_s = inf #!", "budget_s must be a number of at least 0, not inf"),
    ("[latency]\nbudget_s = true #!", "budget_s must be a number of at least 0, not True"),
    ('[latency]\n\nruns = "3" #!', "runs must be an integer, not a string"),
    ('schemes = ["float32",\n "posit16_es"] #!', "unknown scheme or format .*'posit16_es1'"),
    ("schemes = [3] #!", "a scheme is a name or a table"),
    ('schemes = ["float32",\n{n_eval = 3}] #!', "the key 'scheme' is missing"),
    ('schemes = [{scheme = "bfloat16", acumulate = "x"}] #!', "option .* 'acumulate'; did you"),
    ('schemes = [{scheme = "bfloat16", lowering = 3}] #!', "lowering .* must be a string"),
    ('schemes = [{scheme = "bfloat16", lowering = "vectr"}] #!', "lowering 'vectr'; did you mean"),
    ('schemes = [{scheme = "float32", bits = 3}] #!', "'float32' takes no option 'bits'"),
    ('schemes = [{scheme = "int8_tensor", granularity = "x"}] #!', "fixes the granularity"),
    ('schemes = ["int8",\n{scheme = "int8", calibrator = "kll"}] #!', "unknown calibrator 'kll'"),
    ('schemes = [\n{scheme = "int8", n_calib = 201}] #!', "has only 200 calibration inputs"),
    ('[[schemes]]\nscheme = "bfloat16"\nn_eval = -1 #!', "n_eval must be at least 1"),
    ('schemes = ["int8_channel", {scheme = "int8", granularity = "channel"}] #!', "are the same"),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES)
def test_mistakes_are_named_with_their_line(tmp_path: Path, text: str, message: str) -> None:
    needed = {"models": 'models = ["mnist_mlp"]', "schemes": 'schemes = ["float32"]'}
    document = "\n".join([*(v for k, v in needed.items() if k not in text.split("#")[0]), text])
    line = next(i for i, line in enumerate(document.splitlines(), 1) if line.endswith("#!"))
    with pytest.raises(ConfigError, match=rf"spec.toml:{line}: .*{message}"):
        load_text(tmp_path, document)


def test_required_keys_and_toml_itself(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"spec.toml:1: the key 'models' is missing"):
        load_text(tmp_path, 'schemes = ["float32"]')
    with pytest.raises(ConfigError, match=r"spec.toml:2: not valid TOML: "):
        load_text(tmp_path, '\nmodels = ["mnist_mlp"')
    with pytest.raises(ConfigError, match=r"spec.toml:3: not valid TOML: "):
        load_text(tmp_path, "seed = 1\n\nmodels = = 3\n")
    with pytest.raises(ConfigError, match=r"cannot read .*gone.toml: No such file"):
        load_spec(tmp_path / "gone.toml")
    with pytest.raises(ConfigError, match=r"unknown sweep .*'quickstrt'; did you .*'quickstart'"):
        load_spec("quickstrt")


def test_a_dict_is_checked_like_a_file() -> None:
    with pytest.raises(ConfigError, match=r"^spec: threads must be an integer, not a string"):
        load_spec({**BASE, "threads": ["2"]})


def test_the_shipped_specification_is_valid() -> None:
    spec = load_spec("quickstart")
    assert len(spec.cells) == 3 * 6
    assert {cell.settings.n_eval for cell in spec.cells} == {1000}


@pytest.mark.thorough
def test_two_definitions_of_one_name_are_two_configurations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()  # the real pipeline knows formats
    known = dict(catalogue._known)
    ways: list[dict[str, Any]] = [
        {"exponent": 4, "mantissa": 3},
        {"exponent": 4, "mantissa": 3, "nan": False},
        {"exponent": 4, "mantissa": 3, "rounding": "zero"},
        {"exponent": 4, "mantissa": 3, "tables": {"exp": [0] * 256}},
        {"exponent": 4, "mantissa": 3, "tables": {"log": [0] * 256}},
        {"values": [k / 4 for k in range(-128, 128)]},
        {"nbits": 8, "decode": lambda code: code / 8},
        {"nbits": 8, "decode": lambda code: code / 16},
    ]

    def defined(name: str, way: dict[str, Any], scheme: Any) -> str:
        catalogue._known.clear()
        catalogue._known.update(known)
        datatypes.define(name, **way)
        (found,) = hashes(schemes=[scheme])
        return found

    try:
        for scheme in ("mine", {"scheme": {"fc*": ["mine", "fma"], "*": "bfloat16"}}):
            found = [defined("mine", way, scheme) for way in ways]
            assert len(set(found)) == len(ways)
            assert found == [defined("mine", way, scheme) for way in ways]
    finally:
        catalogue._known.clear()
        catalogue._known.update(known)


def test_the_help_of_sweep_names_what_ships(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["sweep", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"shipped specification ({', '.join(shipped())})" in said
    assert {"quickstart", "language"} <= set(shipped())
