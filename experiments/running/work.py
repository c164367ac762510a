"""What the cells of a sweep do, counted before they run: networks prepared and compiled, inputs
evaluated, timed, calibrated with and interpreted. `session.Session` does it in this order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from experiments.data.datasets import Dataset
from experiments.feeds import elements_of, sample_of
from experiments.gaps.chain import networks
from experiments.spec.cells import Cell
from experiments.systems.engine_choice import names_in
from experiments.zoo import model_batches, model_files

from .batchwise import in_batches

#: Inputs per call while accuracy is evaluated.
EVAL_BATCH = 100
#: Elements of the inputs of one call, where inputs are large.
EVAL_ELEMENTS = 2**20


@dataclass(frozen=True)
class Work:
    """What a cell does, beside what earlier cells left for it (the float32 network).

    Attributes:
        prepared, prepared_float: networks imported and transformed.
        built, built_float: executables compiled, those between simulation and execution included.
        evaluated, evaluated_float: inputs that they are called with for accuracy, in whole batches.
        calibrated: inputs that ranges are observed on.
        timed, timed_float: inputs of the calls for latency, those to warm up included; as many as
            the protocol makes at least.
        interpreted: inputs that all layers are compared on, in float32 and in the scheme.
        counted: of those, how many times events are counted.
    """

    prepared: int = 0
    prepared_float: int = 0
    built: int = 0
    built_float: int = 0
    evaluated: int = 0
    evaluated_float: int = 0
    calibrated: int = 0
    timed: int = 0
    timed_float: int = 0
    interpreted: int = 0
    counted: int = 0


def evaluation_batch(fixed: int | None, count: int, elements: int) -> int:
    """Inputs per call of `count` inputs of so many elements: `fixed`, which the network takes, else
    as many as stay small, `EVAL_BATCH` at most."""
    if fixed is not None:
        return fixed
    return max(1, min(EVAL_BATCH, count, EVAL_ELEMENTS // max(1, elements)))


def batch_of_tokens(cell: Cell, data: Dataset, fixed: int | None, images: int) -> int:
    """Inputs per call of a cell that is judged a batch at a time: scores of a vocabulary are larger
    than inputs. The same for all cells of a network, `images` being the most that any evaluates."""
    sample = sample_of(data.x)
    scores = model_batches.result_elements(cell.model.path, sample, fixed or 1, cell.output)
    return evaluation_batch(fixed, images, max(elements_of(data.x), scores))


def gap_inputs(cell: Cell, data: Dataset, fixed: int | None) -> tuple[int, int]:
    """How many inputs a cell is simulated for, and how many of them a call takes."""
    inputs = min(cell.gap.inputs, cell.settings.n_eval)
    if in_batches(cell, data):
        return inputs, batch_of_tokens(cell, data, fixed, inputs)
    return inputs, evaluation_batch(fixed, inputs, elements_of(data.x))


@dataclass
class _Float32:
    """The float32 network that cells are measured beside, and what it is compiled for."""

    key: object = None
    batches: set[int] = field(default_factory=set)


def work_of(cells: Iterable[Cell], data: Mapping[str, Dataset]) -> Iterator[Work]:
    """The work of each of the cells, run one after the other.

    Raises:
        DtypelabError: a model cannot be imported.
    """
    cells = list(cells)
    images: dict[tuple[str, str], int] = {}
    for cell in cells:
        key = (cell.model.sha256, cell.dataset_sha256)
        images[key] = max(images.get(key, 0), cell.settings.n_eval)
    float32 = _Float32()
    for cell in cells:
        with model_files.imported_with(names_in(cell.engine)):
            found = _work(cell, data, images, float32)
        yield found


def _work(
    cell: Cell,
    data: Mapping[str, Dataset],
    images: Mapping[tuple[str, str], int],
    float32: _Float32,
) -> Work:
    fed = data[cell.dataset_sha256].for_model(cell.model.path)
    x = fed.x
    fixed, elements = model_batches.fixed_batch(cell.model.path, sample_of(x)), elements_of(x)
    s, own, work = cell.settings, not cell.is_baseline, Work()
    count = images[cell.model.sha256, cell.dataset_sha256]
    apart = in_batches(cell, fed)
    place = (cell.reference_target, cell.threads, cell.device)
    model = (cell.model.path, model_files.importing_with())
    key = (*model, cell.dataset_sha256, *place, cell.output, apart)
    per = batch_of_tokens(cell, fed, fixed, count) if apart else None
    if float32.key != key:
        batch = per or evaluation_batch(fixed, count, elements)
        float32.key, float32.batches = key, {batch}
        evaluated = _whole(count, batch)
        work = replace(work, prepared_float=1, built_float=1, evaluated_float=evaluated)
    batches: set[int] = set()
    if own:
        batches = {batch := per or evaluation_batch(fixed, s.n_eval, elements)}
        work = replace(
            work,
            prepared=1,
            evaluated=_whole(s.n_eval, batch),
            # Certificates look at the sums of the same inputs once more.
            calibrated=s.n_calib * (1 + cell.certificates) if cell.scheme.calibrated else 0,
            interpreted=cell.layers.images,
            counted=cell.layers.images
            if cell.layers.events and cell.scheme.kind == "format"
            else 0,
        )
    simulated = 0
    if own and cell.gap.inputs:
        simulated = networks(cell.scheme)
        evaluated = work.evaluated + simulated * _whole(*gap_inputs(cell, fed, fixed))
        work = replace(work, evaluated=evaluated)
    if s.runs:
        calls = (s.warmup + s.runs) * s.batch
        built = work.built_float + (s.batch not in float32.batches)
        float32.batches.add(s.batch)
        batches |= {s.batch} if own else set()
        work = replace(work, timed=calls if own else 0, timed_float=calls, built_float=built)
    return replace(work, built=len(batches) + simulated)


def _whole(count: int, batch: int) -> int:
    """`count` filled up to whole batches."""
    return -(-count // batch) * batch
