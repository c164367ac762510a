"""results/qat.csv: whole, and what results/README.md says of it."""

import re

import pytest
from recorded_qat import FILE, NETWORKS, OF, RESULTS, found, line, said

from experiments import zoo
from experiments.layers.answers import answers_path, read_answers
from experiments.layers.trainings import read_runs
from experiments.training.spec import load_training

pytestmark = pytest.mark.skipif(not FILE.is_file(), reason="results/qat.csv is not recorded")


def test_rows_are_those_of_the_specification() -> None:
    rows = read_runs(FILE)
    assert set(rows["status"]) == {"ok"}
    assert set(rows["git_dirty"]) == {"false"}
    assert sorted(set(rows["model"])) == sorted(NETWORKS)
    assert rows["config_hash"].is_unique
    assert set(rows["config_hash"]) == set(read_answers(answers_path(FILE)))
    for name in set(NETWORKS) & set(zoo.model_names()):
        runs = load_training(RESULTS / "qat.toml", [f'models=["{name}"]']).runs
        part = rows[rows["model"] == name]
        assert set(part["config_hash"]) == {run.config_hash for run in runs}


def test_every_network_was_trained_with_three_seeds() -> None:
    assert [(g.model, g.measure, of, g.seeds) for of, g in found()] == [
        (name, measure, of, 3) for name in NETWORKS for measure in ("top1", "kl") for of in OF
    ]


def test_the_readme_has_every_line() -> None:
    text = (RESULTS / "README.md").read_text()
    shown = re.findall(r"^\| mnist_\S+ \| (?:top1|kl) \|.*\|$", text, re.M)
    assert shown == [line(*pair) for pair in found()]
    assert said() in re.sub(r"\n", " ", text)
