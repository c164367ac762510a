"""Decoders: models that give scores of the next id, and take what they have read as a past.

Inputs `input_ids` [batch, sequence] and, a layer, `past_key_values.L.key` and `.value`, which have
an axis as long as the past; optional `attention_mask` [batch, past + sequence] and `position_ids`
[batch, sequence]; outputs `logits` [batch, sequence, ids] and, a layer, `present.L.key` and
`.value`: the names that exporters use. A model without a past is read from its first id every time.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.errors import ConfigError
from experiments.zoo import model_files

if TYPE_CHECKING:
    from compiler.decoding.session import Decoder
    from compiler.ir.expr import IRModule
    from compiler.types.tensor_types import TensorType

IDS, MASK, POSITIONS, LOGITS = "input_ids", "attention_mask", "position_ids", "logits"
PAST, PRESENT = "past_key_values.", "present."


@dataclass(frozen=True)
class Interface:
    """What a decoder takes and gives, for one sequence.

    `pasts`: shapes before the first id, by input; `presents`: the output that each becomes;
    `extras`: which of the mask and the positions it takes; `dtypes`: of the inputs, in storage.
    """

    path: Path
    pasts: Mapping[str, tuple[int, ...]]
    presents: Mapping[str, str]
    extras: tuple[str, ...]
    dtypes: Mapping[str, np.dtype[Any]]
    outputs: tuple[str, ...]

    @property
    def shapes(self) -> model_files.Shapes:
        """Sizes to import it with: one sequence, of any length, after a past of any length."""
        ids = [(name, (1, None)) for name in (IDS, *self.extras)]
        pasts = [(n, tuple(None if d == 0 else d for d in dims)) for n, dims in self.pasts.items()]
        return (*ids, *pasts)


def interface(path: Path) -> Interface:
    """The interface of the decoder at `path`.

    Raises:
        ConfigError: it is no decoder; says which input or output is missing or not understood.
        DtypelabError: it is no model.
    """
    types, outputs = model_files.input_types(path), model_files.output_names(path)

    def no_decoder(why: str) -> ConfigError:
        return ConfigError(f"{path.name} cannot generate: {why}")

    for name, kind, known in ((IDS, "input", types), (LOGITS, "output", outputs)):
        if name not in known:
            listed = ", ".join(map(repr, known))
            raise no_decoder(f"it has no {kind} {name!r}; its {kind}s are {listed}")
    if types[IDS].rank != 2 or types[IDS].dtype.kind not in ("int", "uint"):
        raise no_decoder(f"input {IDS!r} is a {types[IDS]}, not integers [batch, sequence]")
    extras = tuple(name for name in (MASK, POSITIONS) if name in types)
    pasts: dict[str, tuple[int, ...]] = {}
    presents: dict[str, str] = {}
    for name, t in types.items():
        if name in (IDS, *extras):
            continue
        if not name.startswith(PAST):
            raise no_decoder(
                f"what input {name!r} wants is not known; known are {IDS!r}, {MASK!r}, "
                f"{POSITIONS!r} and those that begin with {PAST!r}"
            )
        presents[name] = PRESENT + name.removeprefix(PAST)
        if presents[name] not in outputs:
            raise no_decoder(f"input {name!r} has no output {presents[name]!r}")
        pasts[name] = _empty(name, t, no_decoder)
    dtypes = {name: np.dtype(t.dtype.storage) for name, t in types.items()}
    return Interface(path, pasts, presents, extras, dtypes, outputs)


def _empty(name: str, t: TensorType, no_decoder: Any) -> tuple[int, ...]:
    """The shape of a past of one sequence before its first id."""
    dims = [1, *t.shape[1:]]
    open_axes = [axis for axis, d in enumerate(dims) if not isinstance(d, int)]
    if not t.rank or len(open_axes) != 1:
        raise no_decoder(f"input {name!r} is a {t}: one axis after the first must be open")
    return tuple(0 if axis in open_axes else int(str(d)) for axis, d in enumerate(dims))


def check_scores(path: Path, module: IRModule) -> None:
    """Check that the imported decoder scores ids at every place.

    Raises:
        ConfigError: its `logits` are something else, as those of a classifier.
    """
    from compiler.ir.expr import atom_type
    from compiler.types.tensor_types import TensorType

    names = list(module.attrs.get("outputs", ()))
    t = atom_type(module.main.results[names.index(LOGITS)])
    if not isinstance(t, TensorType) or t.rank != 3:
        raise ConfigError(
            f"{path.name} cannot generate: output {LOGITS!r} is a {t}, not scores "
            "[batch, sequence, ids]"
        )


def positions(module: IRModule) -> int | None:
    """How many ids an imported decoder has positions for, past and sequence together; None if
    nothing in it says so."""
    from compiler.boundary.index_ranges import index_ranges
    from compiler.ir.expr import tensor_type
    from compiler.symbolic import Index, Var

    sizes = {p.name: tensor_type(p).shape for p in module.main.params}
    past = {
        d for n, dims in sizes.items() if n.startswith(PAST) for d in dims if isinstance(d, Var)
    }
    ids = [d for d in sizes[IDS] if isinstance(d, Var)]
    found = []
    for r in index_ranges(module):
        total = Index.of(r.highest)
        if not r.input and isinstance(r.size, int) and total.vars() == {*ids, *past}:
            # Which of the two counts makes no difference for what is counted from the past on.
            at = total.value({**dict.fromkeys(past, 0), **dict.fromkeys(ids, 1)})
            found.append(r.size - int(at))
    return min(found, default=None)


# ---- compiled ones -------------------------------------------------------------------------------
def is_saved(path: Path) -> bool:
    """Whether a file is a compiled decoder (see `compiler.load_decoder`), not a model."""
    return zipfile.is_zipfile(path)


def saved_interface(path: Path, compiled: Decoder) -> Interface:
    """The interface of a compiled decoder.

    Raises:
        ConfigError: it takes no ids, or gives no scores.
    """
    types = compiled.executable.inputs
    extras = tuple(name for name in (MASK, POSITIONS) if name in types)
    for name, kind, known in (
        (IDS, "input", compiled.inputs), (LOGITS, "output", compiled.outputs)
    ):  # fmt: skip
        if name not in known:
            listed = ", ".join(map(repr, known))
            raise ConfigError(
                f"{path.name} cannot generate: it has no {kind} {name!r}; its {kind}s are {listed}"
            )
    pasts = {c.name: () for c in compiled.caches}
    presents = {c.name: c.output for c in compiled.caches}
    dtypes = {name: np.dtype(t.dtype.storage) for name, t in types.items()}
    return Interface(path, pasts, presents, extras, dtypes, tuple(compiled.outputs))


def saved_positions(compiled: Decoder) -> int | None:
    """How many ids a compiled decoder has positions for; None if nothing in it says so."""
    from compiler.symbolic import Index

    total, found = compiled.kept.total, []
    for r in compiled.executable.indices:
        highest = Index.of(r.highest)
        if not r.input and isinstance(r.size, int) and highest.vars() == {total}:
            found.append(r.size - int(highest.value({total: 1})))
    return min(found, default=None)
