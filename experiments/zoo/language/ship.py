"""Write what ships: `python -m experiments.zoo.language.ship lm --work FOLDER --out FOLDER`.

Of the weights, tokenizer and modules of a training run: `stdlib_lm.onnx`, the data set
`stdlib_text.npz`, the tokenizer `stdlib_text.tokenizer.json`, the hashes of the modules and their
licence; or, for `encoder`, `stdlib_encoder.onnx` and `stdlib_pieces.npz`. Needs no torch.
"""

from __future__ import annotations

import argparse
import sysconfig
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.files import write_whole

from . import corpus, pieces, tokenizer
from .decoder_graph import decoder_model
from .encoder_graph import encoder_model
from .provenance import provenance
from .shape import EncoderShape, Shape

#: Windows of 256 ids: 65 536 held out to judge by, 16 384 to calibrate with.
HELD_OUT, CALIBRATION = 256, 64
#: Pieces to judge the encoder by, and to calibrate it with.
PIECES, PIECES_CALIB = 2000, 256


def text_arrays(tokens: tokenizer.Tokenizer, shape: Shape) -> dict[str, NDArray[np.generic]]:
    """The data set: `input_ids` and next ids `y` [n, 256], `input_ids_calib`, and empty pasts."""
    parts: dict[str, list[corpus.Module]] = {"held-out": [], "calibration": [], "train": []}
    for module in corpus.modules():
        parts[module.part].append(module)
    x, y = corpus.windows(corpus.stream(parts["held-out"], tokens))
    held = corpus.spread(len(x), HELD_OUT)
    calibration, _ = corpus.windows(corpus.stream(parts["calibration"], tokens))
    calibration = calibration[corpus.spread(len(calibration), CALIBRATION)]
    arrays: dict[str, NDArray[np.generic]] = {"input_ids": x[held], "y": y[held]}
    arrays["input_ids_calib"] = calibration
    for layer in range(shape.layers):
        for part in ("key", "value"):
            dims = (shape.kv_heads, 0, shape.head_size)
            name = f"past_key_values.{layer}.{part}"
            arrays[name] = np.zeros((HELD_OUT, *dims), np.float32)
            arrays[f"{name}_calib"] = np.zeros((CALIBRATION, *dims), np.float32)
    return arrays


def ship_decoder(work: Path, out: Path) -> None:
    """The files of the language model."""
    tokens, shape = tokenizer.read(work / "tokenizer.json"), Shape()
    with np.load(work / "state.npz") as state:
        model = decoder_model(shape, dict(state))
    write_whole(out / "stdlib_lm.onnx", model.SerializeToString(deterministic=True))
    np.savez_compressed(out / "stdlib_text.npz", allow_pickle=False, **text_arrays(tokens, shape))
    write_whole(out / "stdlib_text.tokenizer.json", tokens.to_json().encode())
    write_whole(out / "stdlib_text.modules.json", provenance(corpus.modules()).encode())
    licence = Path(sysconfig.get_path("stdlib")) / "LICENSE.txt"
    write_whole(out / "stdlib_text.licence.txt", licence.read_bytes())


def piece_arrays(tokens: tokenizer.Tokenizer) -> dict[str, NDArray[np.generic]]:
    """The data set of the encoder: pieces [n, 64] with their masks, and packages `y` [n]."""
    parts, start = pieces.stretches(corpus.modules(), tokens), tokens.start or 0
    random = np.random.default_rng(0)
    x, mask, y = pieces.drawn(parts["held-out"], start, PIECES, random)
    x_calib, mask_calib, _ = pieces.drawn(parts["calibration"], start, PIECES_CALIB, random)
    calibration = {"input_ids_calib": x_calib, "attention_mask_calib": mask_calib}
    return {"input_ids": x, "attention_mask": mask, "y": y, **calibration}


def ship_encoder(work: Path, out: Path) -> None:
    """The files of the encoder."""
    with np.load(work / "state.npz") as state:
        model = encoder_model(EncoderShape(), dict(state))
    write_whole(out / "stdlib_encoder.onnx", model.SerializeToString(deterministic=True))
    arrays = piece_arrays(tokenizer.read(work / "tokenizer.json"))
    np.savez_compressed(out / "stdlib_pieces.npz", allow_pickle=False, **arrays)


def main() -> None:
    """Write what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("network", choices=["lm", "encoder"])
    parser.add_argument("--work", type=Path, required=True, help="folder of the training run")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    arguments = parser.parse_args()
    ship = {"lm": ship_decoder, "encoder": ship_encoder}[arguments.network]
    ship(arguments.work, arguments.out)


if __name__ == "__main__":
    main()
