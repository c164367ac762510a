"""Rendered words: labels that are exact by construction, for networks that read or orient text.

Pillow draws them in the font that it carries (Aileron, CC0); sizes, colours, places, noise and blur
come from a fixed seed. Another version of Pillow may draw other pixels: results record the hash of
the arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import ConfigError

Array = NDArray[Any]

EVALUATION, CALIBRATION = 300, 60
HEIGHT, READ_WIDTH, ORIENT_WIDTH = 48, 320, 192


def words() -> Mapping[str, Any]:
    """Lines of text [n, 3, 48, 320] for PP-OCR's recogniser, BGR in [-1, 1], with their texts; the
    classes are the characters that the installed network knows.

    Raises:
        ConfigError: the network has no list of characters.
    """
    texts, images = _drawn(READ_WIDTH, seed=11)
    return _parts(images, np.array(texts, dtype=object)) | {
        "metric": "ctc_exact",
        "classes": _characters(),
    }


def upright() -> Mapping[str, Any]:
    """Lines of text [n, 3, 48, 192] for PP-OCR's classifier of orientation: label 1 is upside
    down."""
    _, images = _drawn(ORIENT_WIDTH, seed=12)
    turned = np.arange(len(images)) % 2
    images[turned == 1] = images[turned == 1, :, ::-1, ::-1]
    return _parts(images, turned)


def _parts(images: Array, labels: Array) -> dict[str, Any]:
    """The first lines to evaluate on, the rest to calibrate with."""
    x = np.ascontiguousarray(images.astype(np.float32) / np.float32(127.5) - np.float32(1))
    return {"x": x[:EVALUATION], "y": labels[:EVALUATION], "x_calib": x[EVALUATION:]}


def _drawn(width: int, seed: int) -> tuple[list[str], NDArray[np.uint8]]:
    """Texts, and images [n, 3, 48, width] of them."""
    random = np.random.default_rng(seed)
    known = Path(__file__).with_name("words.txt").read_text(encoding="utf-8").split()
    texts = [_text(known, random) for _ in range(EVALUATION + CALIBRATION)]
    return texts, np.stack([_image(text, width, random) for text in texts])


def _text(known: list[str], random: np.random.Generator) -> str:
    """A word, capitalized, or with a number behind it, or two words."""
    word, other = random.choice(known, 2)
    forms = (word, word.capitalize(), word.upper(), f"{word} {random.integers(10, 9999)}")
    short = f"{word} {other}" if len(word) + len(other) < 14 else word
    return str((*forms, short)[random.integers(0, 5)])


def _image(text: str, width: int, random: np.random.Generator) -> NDArray[np.uint8]:
    """Dark text on light paper or the other way round, a little blurred and noisy: [3, 48, width];
    what is right of the text is grey, as PP-OCR pads."""
    from PIL import Image, ImageDraw, ImageFilter, ImageFont

    paper, ink = random.integers(170, 256, 3), random.integers(0, 90, 3)
    if random.random() < 0.25:
        paper, ink = ink, paper
    size = int(random.integers(24, 37))
    font = ImageFont.load_default(size)
    left, top, right, bottom = font.getbbox(text)
    while right - left > width - 12:  # smaller, until it fits
        size -= 1
        font = ImageFont.load_default(size)
        left, top, right, bottom = font.getbbox(text)
    line = Image.new("RGB", (int(right - left) + 12, HEIGHT), tuple(int(c) for c in paper))
    down = (HEIGHT - (bottom - top)) / 2 - top + random.integers(-2, 3)
    ImageDraw.Draw(line).text((6 - left, down), text, tuple(int(c) for c in ink), font=font)
    line = line.filter(ImageFilter.GaussianBlur(float(random.uniform(0, 0.9))))
    pixels = np.asarray(line).astype(np.float64)
    pixels += random.normal(0, random.uniform(0, 12), pixels.shape)
    image = np.full((3, HEIGHT, width), 127, np.uint8)
    image[:, :, : pixels.shape[1]] = np.clip(np.rint(pixels), 0, 255).transpose(2, 0, 1)
    return image


def _characters() -> tuple[str, ...]:
    """The text of every class of PP-OCR's recogniser: the blank, its list, the space."""
    import onnx

    from experiments import zoo

    path = zoo.find("ppocr_rec")
    assert path is not None, "the zoo knows this name"
    properties = {p.key: p.value for p in onnx.load(path).metadata_props}
    if "character" not in properties:
        raise ConfigError(f"{path} has no list of characters; reinstall rapidocr-onnxruntime")
    return ("", *properties["character"].splitlines(), " ")
