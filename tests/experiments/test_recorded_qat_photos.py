"""results/qat_photos.csv: whole, and what results/README.md says of it."""

import json
import re

import pytest
from recorded_qat_photos import FILE, RESULTS, SPEC, found, line, said

from experiments.layers.answers import answers_path, read_answers
from experiments.layers.trainings import read_runs
from experiments.training.qat import Qat

pytestmark = pytest.mark.skipif(
    not FILE.is_file(), reason="not recorded yet: dtypelab train results/qat_photos.toml"
)


def test_rows_are_those_of_the_specification() -> None:
    rows = read_runs(FILE)
    assert set(rows["status"]) == {"ok"}
    assert set(rows["git_dirty"]) == {"false"}
    assert set(rows["model"]) == {"efficientnet_lite0"}
    wanted = []
    for table in SPEC["qat"]:
        qat = Qat.of(table)
        wanted += [(str(qat), s) for s in (SPEC["seeds"] if qat.train else SPEC["seeds"][:1])]
    there = [
        (s.split(", from float32")[0], k) for s, k in zip(rows["system"], rows["seed"], strict=True)
    ]
    assert sorted(there) == sorted(wanted)
    for config in map(json.loads, rows["config"]):
        for key in ("epochs", "batch", "shift", "mirror", "views", "targets"):
            assert config[key] == SPEC[key]
        assert config["rules"]["temperature"] == SPEC["temperature"]
        assert config["schedule"]["rate"] == SPEC["schedule"]["rate"]


def test_views_of_a_photograph_are_a_group() -> None:
    rows, answers = read_runs(FILE), read_answers(answers_path(FILE))
    assert set(rows["config_hash"]) == set(answers)
    for a in answers.values():
        assert (len(a.kl), len(a.each("kl"))) == (376, 94)


def test_the_readme_has_every_line() -> None:
    text = (RESULTS / "README.md").read_text()
    section = text.partition("### qat_photos.csv")[2].partition("\n#")[0]
    shown = re.findall(r"^\| (?:top1|kl) \|.*\|$", section, re.M)
    assert shown == [line(*pair) for pair in found()]
    assert said() in section.replace("\n", " ")
