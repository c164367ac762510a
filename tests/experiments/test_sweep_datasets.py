from pathlib import Path

import numpy as np
import pytest

from compiler.errors import ConfigError, InputError
from experiments import zoo
from experiments.data import datasets
from experiments.data.datasets import Dataset, load


def test_mnist1k_is_balanced_and_normalised() -> None:
    data = load("mnist1k")
    assert data.x.shape == (1000, 1, 28, 28)
    assert data.x.dtype == np.float32
    assert np.bincount(data.y).tolist() == [100] * 10
    raw = datasets.read_npz(zoo.FOLDER / "mnist1k.npz")["x_test"]
    expected = (raw.astype(np.float64) / 255 - 0.1307) / 0.3081
    np.testing.assert_allclose(data.x, expected, rtol=0, atol=1e-6)


def test_calibration_images_are_not_evaluation_images() -> None:
    data = load("mnist1k")
    evaluated = {image.tobytes() for image in data.x}
    assert len(data.calibration) == 200
    assert not any(image.tobytes() in evaluated for image in data.calibration)


def test_the_seed_chooses_the_calibration_sample() -> None:
    data = load("mnist1k")
    first, again, other = (data.calibration_sample(50, seed) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert len({image.tobytes() for image in first}) == 50
    whole = data.calibration_sample(200, 5)
    assert {i.tobytes() for i in whole} == {i.tobytes() for i in data.calibration}
    with pytest.raises(ConfigError, match="has only 200 calibration inputs"):
        data.calibration_sample(201, 0)
    with pytest.raises(ConfigError, match="seed must not be negative, not -1"):
        data.calibration_sample(2, -1)


def test_a_users_file_is_taken_as_it_is(tmp_path: Path) -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    np.savez(tmp_path / "mine.npz", x=x, y=np.array([0, 1, 2, 3], np.uint8), x_calib=x[:2] + 1)
    data = load("mine.npz", relative_to=tmp_path)
    assert data.name == "mine"
    assert np.array_equal(data.x, x)
    assert data.y.tolist() == [0, 1, 2, 3]
    assert len(data.calibration) == 2
    np.savez(tmp_path / "bare.npz", x=x, y=np.arange(4))
    with pytest.raises(ConfigError, match=r"has no calibration inputs \(array x_calib\)"):
        load(str(tmp_path / "bare.npz")).calibration_sample(1, 0)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": np.zeros(2, int)}, r"has no array x; it holds y$"),
        ({}, "has no array x; it holds none"),
        ({"x": np.zeros((2, 3)), "y": np.zeros(3, int)}, "needs one label in y for each of"),
        ({"x": np.zeros((2, 3)), "y": np.array(1)}, "needs one label in y .* of shape \\(\\)"),
        (
            {"x": np.zeros((2, 3)), "y": np.zeros(2, int), "x_calib": np.zeros((2, 4))},
            "inputs of one kind",
        ),
        (
            {"x": np.zeros(3), "x_calib": np.array(1.0)},
            r"shape \(\)\) and x \(float64, shape \(3,\)",
        ),
    ],
)
def test_arrays_must_fit_together(
    tmp_path: Path, arrays: dict[str, np.ndarray], message: str
) -> None:
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(ConfigError, match=message):
        load(str(tmp_path / "bad.npz"))


@pytest.mark.parametrize("beside", [{}, {"y": np.arange(3)}, {"x_calib": np.zeros((2, 784))}])
def test_a_scalar_is_no_row_of_images(beside: dict[str, np.ndarray]) -> None:
    scalar = Dataset.of("scalar", {"x": np.float32(1), **beside})
    with pytest.raises(InputError, match=r"'scalar': input 'input' must have rank 4, .* not \(\)"):
        scalar.for_model(zoo.FOLDER / "mnist_mlp.onnx")


def test_files_that_are_no_archives(tmp_path: Path) -> None:
    text, single, pickled = (tmp_path / f"{n}.npz" for n in ("text", "single", "pickled"))
    text.write_text("not an archive")
    with single.open("wb") as target:
        np.save(target, np.zeros(3))
    np.savez(pickled, x=np.array([{}], dtype=object), y=np.zeros(1, int))
    for path in (text, single, pickled):
        with pytest.raises(ConfigError, match=f"{path.name} is not an .npz archive"):
            load(str(path))
    with pytest.raises(ConfigError, match=r"cannot read .*No such file"):
        load(str(tmp_path / "gone.npz"))
    with pytest.raises(ConfigError, match="unknown data set 'mnist'; did you mean 'mnist1k'"):
        load("mnist")
