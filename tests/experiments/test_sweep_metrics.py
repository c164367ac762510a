import math

import numpy as np
import pytest

from compiler.errors import InputError
from experiments.measure.metrics import cosine, sqnr_db, top1, top1_agreement


def test_top1_counts_rows_whose_label_scores_highest() -> None:
    scores = [[0.1, 0.9], [0.8, 0.2], [0.5, 0.5], [math.nan, 1.0]]
    # Ties go to class 0, a NaN row is wrong whatever its label.
    assert top1(scores, [1, 0, 0, 1]) == 0.75
    assert top1(scores, [1, 1, 1, 0]) == 0.25


def test_agreement_ignores_the_scale_of_the_scores() -> None:
    reference = np.array([[0.0, 1.0, 2.0], [5.0, 4.0, 3.0]])
    assert top1_agreement(reference * 7 - 3, reference) == 1.0
    assert top1_agreement(-reference, reference) == 0.0
    assert top1_agreement([[math.nan, 1, 2], [5, 4, 3]], reference) == 0.5


def test_sqnr_of_a_known_ratio() -> None:
    reference = np.array([3.0, -4.0])
    # Noise energy 0.25, signal energy 25: a ratio of 100 is 20 dB.
    assert sqnr_db(reference + np.array([0.5, 0.0]), reference) == pytest.approx(20.0)
    assert sqnr_db(reference, reference) == math.inf
    assert sqnr_db([0.0, 1.0], [0.0, 0.0]) == -math.inf
    assert math.isnan(sqnr_db([math.inf, 1.0], reference))


def test_sqnr_survives_values_whose_squares_overflow() -> None:
    reference = np.array([3e200, -4e200])
    assert sqnr_db(reference + np.array([0.5e200, 0.0]), reference) == pytest.approx(20.0)
    assert cosine(reference, reference * 1e-300) == pytest.approx(1.0)


def test_cosine() -> None:
    assert cosine([1.0, 0.0], [0.0, 2.0]) == 0.0
    assert cosine([1.0, 2.0], [-2.0, -4.0]) == pytest.approx(-1.0)
    assert cosine([1.0, 1.0], [1.0, 0.0]) == pytest.approx(math.sqrt(0.5))
    assert cosine([0.0, 0.0], [0.0, 0.0]) == 1.0
    assert cosine([0.0, 0.0], [0.0, 1.0]) == 0.0
    assert math.isnan(cosine([math.nan, 0.0], [0.0, 1.0]))


@pytest.mark.parametrize("function", [sqnr_db, cosine, top1_agreement])
def test_shapes_must_agree(function) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=r"shapes \(2, 2\) and \(2, 3\)"):
        function(np.zeros((2, 2)), np.zeros((2, 3)))


def test_labels_and_rows_are_needed() -> None:
    with pytest.raises(InputError, match="one label for each of 2 rows"):
        top1(np.zeros((2, 2)), [1])
    with pytest.raises(InputError, match="score table"):
        top1(np.zeros((0, 2)), [])
    with pytest.raises(InputError, match="empty"):
        sqnr_db([], [])
