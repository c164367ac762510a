"""What rows of results are called, and how their figures of merit read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from experiments.measure import scoring

if TYPE_CHECKING:
    import pandas as pd

#: What a row's `config` says of the output that is judged, of a network with several.
OUTPUT = "output"
#: How sums are formed is a part of the number system; the other columns, and the output, which is
#: in none, tell rows of one network and one scheme apart.
_SUMS = "accumulate"
_DISTINGUISHING = (
    *("calibrator", "lowering", _SUMS, "target", "engine", "threads", "batch", "seed", "repeat"),
)
_LABELS = {
    "": "top-1",
    "top1": "top-1",
    "ctc_exact": "texts read exactly",
    "ctc_cer": "character error rate",
    "rmse": "RMSE",
    "r2": "R²",
    "cosine": "cosine",
    "sqnr": "SQNR, dB",
    "kl_float32": "KL to float32, nat",
    "top_token_agreement": "token agreement",
}


def system_names(rows: pd.DataFrame) -> list[str]:
    """What every row's number system is called: its scheme; how sums are formed, where that is not
    as usual, or not the same in all rows of the scheme; and what else tells the rows of that scheme
    apart, where they differ for some network."""
    schemes, sums = rows["scheme"], scheme_names(rows)
    extra: dict[str, list[str]] = {scheme: [] for scheme in schemes}
    filled = rows[list(_DISTINGUISHING)].astype(object).where(lambda t: t.notna(), "")
    filled = filled.assign(**{OUTPUT: [f"{OUTPUT}={o}" if o else "" for o in judged_outputs(rows)]})
    for name in (*_DISTINGUISHING, OUTPUT):
        values = filled[name].groupby([rows["model"], schemes], sort=False).nunique()
        for scheme in values.index[values > 1].get_level_values("scheme").unique():
            extra[scheme].append(name)
    named = []
    for (k, scheme), with_sums in zip(schemes.items(), sums, strict=True):
        shown = {n: _shown(n, filled.at[k, n]) for n in extra[scheme]}
        shown[_SUMS] = with_sums.removeprefix(scheme).strip()
        told = filter(None, (shown.get(n) for n in (*_DISTINGUISHING, OUTPUT)))
        named.append(" ".join([scheme, *told]))
    return named


def scheme_names(rows: pd.DataFrame) -> list[str]:
    """Every row's scheme, and how its sums are formed where that is not as usual, or not the same
    in all rows of the scheme."""
    text = rows[_SUMS].astype(object).where(rows[_SUMS].notna(), "")
    several = text.groupby(rows["scheme"], sort=False).transform("nunique") > 1
    return [
        f"{scheme} {mode}".strip() if differs or not _usual(scheme, mode, shared) else scheme
        for scheme, mode, differs, shared in zip(
            rows["scheme"], text, several, rows["granularity"], strict=True
        )
    ]


def _usual(scheme: str, mode: str, granularity: object) -> bool:
    """Whether sums of this scheme are formed so where nobody says how. What is stored with scales
    (and has a granularity of them) is computed with in float32."""
    scaled = isinstance(granularity, str) and bool(granularity)
    stored = scaled and "compute=native" not in scheme
    return mode in ("", "sequential") or (stored and mode == "float32")


def judged_outputs(rows: pd.DataFrame) -> list[str]:
    """The name of every row's output, empty for networks that have one."""
    return [_output(text) for text in rows["config"]] if "config" in rows else [""] * len(rows)


def _output(config: object) -> str:
    if not isinstance(config, str) or f'"{OUTPUT}"' not in config:
        return ""  # most: reading them all takes long
    try:
        return str(json.loads(config).get(OUTPUT, ""))
    except (ValueError, AttributeError):  # somebody edited it
        return ""


def _shown(name: str, value: object) -> str:
    """A distinguishing value: text as it is, a number with the name of its column."""
    return value if isinstance(value, str) else f"{name}={value}"


@dataclass(frozen=True)
class Merit:
    """How a metric reads: what it is called, whether more is better, and whether it is a share."""

    label: str
    higher_is_better: bool
    share: bool


def merits(rows: pd.DataFrame) -> dict[str, Merit]:
    """The metrics of results by `metric_name`.

    Results do not say of a user's metric whether more is better, but a drop is what got worse: its
    sign beside that of the difference tells.
    """
    worse = np.sign(rows["metric_fp32"] - rows["metric"]) * np.sign(rows["metric_drop"])
    votes = worse.astype(float).groupby(rows["metric_name"], sort=False).sum()
    return {
        str(name): Merit(metric_label(str(name)), _higher(str(name), vote), scoring.is_share(name))
        for name, vote in votes.items()
    }


def metric_label(metric_name: str) -> str:
    """A metric in words; `~float32` behind its name is the agreement with float32."""
    base = metric_name.removesuffix(scoring.OF_FLOAT32)
    label = _LABELS.get(base, base)
    return label if base == metric_name else f"agreement with float32 ({label})"


def _higher(metric_name: str, vote: float) -> bool:
    if vote:
        return vote > 0
    base = metric_name.removesuffix(scoring.OF_FLOAT32)
    return scoring.find(base).higher_is_better if base in scoring.names() else True
