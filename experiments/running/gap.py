"""`experiments.gap`: what each ingredient of bit-exact execution costs, beside simulation."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from compiler.errors import InputError
from experiments.data import datasets
from experiments.feeds import elements_of, sample_of
from experiments.gaps.measuring import COLUMNS, Subject, Tell, steps
from experiments.measure import outputs, scoring
from experiments.systems import schemes
from experiments.zoo import model_batches, model_files

from .work import evaluation_batch

if TYPE_CHECKING:
    import pandas as pd


def gap(
    model: str | os.PathLike[str],
    data: str | os.PathLike[str] = "mnist1k",
    scheme: str | Mapping[str, Any] = "posit8_es1",
    *,
    n_eval: int = 200,
    n_calib: int = 32,
    seed: int = 0,
    metric: str = "",
    output: str = "",
    threads: int = 1,
    progress: Tell | None = None,
) -> pd.DataFrame:
    """Simulate a number system in float32 as is usual, execute it bit by bit, and exchange one
    ingredient after the other between the two.

    Of a number format the ingredients are those of `experiments.gaps.between`, in two orders, since
    what one of them costs depends on those that were exchanged before; of scaled formats with
    compute="native" where scales are applied, what holds sums, and rounded products; of int8 all of
    integer arithmetic at once.

    Args:
        model: a shipped name or the path of an ONNX file.
        data: a data set, as specifications name it.
        scheme: as in specifications: a name, or a mapping with `scheme` and its options.
        n_eval: how many inputs.
        n_calib, seed: of calibrated schemes.
        metric, output: what judges which result, if not what fits the data.
        threads: of the networks; results do not depend on it.

    Returns:
        A row a step of each order (the first is the simulation beside float32), and one of order
        "whole" from the simulation to the bit-exact network. `delta` is what the figure `metric`
        grows by in that step, from `low` to `high` with 95 %; `sqnr_delta` and `kl_delta` with
        their ends are the same of SQNR in dB and of the KL divergence from float32 in nats an
        answer (NaN where outputs are no scores, or a figure is not finite); `sqnr_db` and `kl` are
        of the network then.

    Raises:
        ConfigError: nothing lies between the two, or settings do not fit.
        DtypelabError: the model or the data cannot be read, or an operator is not defined.
    """
    import pandas as pd

    options = dict(scheme) if isinstance(scheme, Mapping) else {"scheme": scheme}
    parsed = schemes.parse(str(options.pop("scheme", "")), options)
    path = model_files.model_file(os.fspath(model))
    fed = datasets.load(os.fspath(data)).for_model(path)
    if not 1 <= n_eval <= len(fed.x):
        raise InputError(f"the data has {len(fed.x)} inputs, but {n_eval} are wanted")
    judged = outputs.chosen(path, fed, metric, output)
    fixed = model_batches.fixed_batch(path, sample_of(fed.x))
    subject = Subject(
        path=path,
        scheme=parsed,
        data=fed,
        inputs=n_eval,
        batch=evaluation_batch(fixed, n_eval, elements_of(fed.x[:n_eval])),
        calibration=fed.calibration_sample(n_calib, seed) if parsed.calibrated else fed.x[:0],
        metric=scoring.find(judged.metric, fed.classes),
        output=judged.name,
        threads=threads,
    )
    return pd.DataFrame(steps(subject, progress), columns=list(COLUMNS))
