"""Results files that others have opened and saved, or damaged."""

import contextlib
import csv
import io
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from result_mutations import mutated

from compiler.errors import ConfigError, DtypelabError
from experiments.page.picture import pareto_svg
from experiments.page.writing import page_data
from experiments.results import comparison, export, terminal
from experiments.results.store import COLUMNS, SCHEMA_VERSION, ResultsFile, read_rows
from experiments.running import reproduction
from experiments.spec.recorded_config import code_files, config_of

RECORDED = Path(__file__).parents[2] / "results" / "quickstart.csv"
DATA = RECORDED.read_bytes()
FEW = b"".join(DATA.splitlines(keepends=True)[:5])
ROWS = list(csv.reader(io.StringIO(DATA.decode())))


def written(rows: list[list[str]], sign: str = ",", quoting: Any = csv.QUOTE_MINIMAL) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n", delimiter=sign, quoting=quoting).writerows(rows)
    return text.getvalue().encode()


def reordered() -> bytes:
    order = list(range(len(ROWS[0])))
    random.Random(0).shuffle(order)
    return written([[row[k] for k in order] for row in ROWS])


def with_blank_lines() -> bytes:
    return DATA.replace(b"\n", b"\n\n") + b"," * (len(ROWS[0]) - 1) + b"\n"


FORMS: dict[str, Callable[[], bytes]] = {
    "as it is": lambda: DATA,
    "CRLF": lambda: DATA.replace(b"\n", b"\r\n"),
    "CR": lambda: DATA.replace(b"\n", b"\r"),
    "byte order mark": lambda: b"\xef\xbb\xbf" + DATA,
    "mark and CRLF": lambda: b"\xef\xbb\xbf" + DATA.replace(b"\n", b"\r\n"),
    "reordered": reordered,
    "empty columns": lambda: written([[*row, "", ""] for row in ROWS]),
    "blank lines": with_blank_lines,
    "quoted": lambda: written(ROWS, quoting=csv.QUOTE_ALL),
    "spaces": lambda: written([[f" {cell} " if cell else "" for cell in row] for row in ROWS]),
}


def current(folder: Path) -> bytes:
    """The recorded file as this schema version writes it."""
    (folder / "r.csv").write_bytes(DATA)
    ResultsFile(folder / "r.csv", resume=True)
    return (folder / "r.csv").read_bytes()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", FORMS)
def test_the_same_rows_are_read_and_continued(
    form: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path / "r.csv"
    path.write_bytes(FORMS[form]())
    if form != "spaces":  # of texts they are part
        pd.testing.assert_frame_equal(read_rows(path), read_rows(RECORDED))
    resumed = ResultsFile(path, resume=True)
    assert list(resumed.status) == read_rows(RECORDED)["config_hash"].tolist()
    assert path.read_bytes() == current(tmp_path_factory.mktemp("current"))
    assert [p.name for p in tmp_path.iterdir()] == ["r.csv"]


def test_columns_of_others_are_read_and_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    lines = [[*row[:5], "note" if k == 0 else f"n{k}", *row[5:]] for k, row in enumerate(ROWS)]
    path.write_bytes(written(lines))
    rows = read_rows(path)
    assert list(rows.columns) == [*COLUMNS, "note"]
    assert rows["note"].tolist() == [f"n{k}" for k in range(1, len(ROWS))]
    with pytest.raises(ConfigError, match="not ours, which would be lost: note"):
        ResultsFile(path, resume=True)
    assert path.read_bytes() == written(lines)


def with_cell(row: int, column: str, text: str) -> bytes:
    rows = [list(r) for r in ROWS]
    rows[row - 1][COLUMNS.index(column)] = text
    return written(rows)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda: with_cell(3, "metric", "0,97"), "row 3, column metric: '0,97' is no number"),
        (lambda: with_cell(2, "macs", "1.2E+05x"), "row 2, column macs: '1.2E.05x' is no number"),
        (lambda: with_cell(4, "size_bytes", "1e999"), "row 4, column size_bytes: .* too large"),
        (lambda: with_cell(4, "n_eval", "#N/A"), "row 4, column n_eval: '#N/A' is no number"),
        (lambda: written(ROWS, sign=";"), "separated by semicolons, as spreadsheets"),
        (lambda: written(ROWS, sign="\t"), "separated by tabs"),
        (lambda: DATA.decode().encode("utf-16"), "is UTF-16 text"),
        (lambda: written([[*r, "" if k else "model"] for k, r in enumerate(ROWS)]), "two columns"),
        (lambda: written([r[k == 2 :] for k, r in enumerate(ROWS)]), "row 3 has .* fields"),
        (lambda: written([r[1:] for r in ROWS]), "lacks the columns run_id"),
        (lambda: with_cell(2, "schema_version", str(SCHEMA_VERSION + 1)), "version newer than"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_and_left_alone(
    tmp_path: Path, data: Callable[[], bytes], message: str
) -> None:
    path = tmp_path / "r.csv"
    path.write_bytes(data())
    for action in (read_rows, lambda p: ResultsFile(p, resume=True)):
        with pytest.raises(ConfigError, match=message):
            action(path)
    assert path.read_bytes() == data()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("without", ["n_eval", "metric", "size_bytes", "metric_name", "scheme"])
@pytest.mark.parametrize("first", [True, False])
def test_pictures_are_drawn_of_rows_that_do_not_say_everything(without: str, first: bool) -> None:
    rows = read_rows(RECORDED).copy()
    texts = without in ("metric_name", "scheme")
    rows.loc[[0] if first else rows.index, without] = "" if texts else float("nan")
    assert pareto_svg(rows, "size_bytes").endswith("</svg>")


USES: tuple[Callable[[Path, pd.DataFrame], object], ...] = (
    lambda path, rows: terminal.results_table(rows),
    lambda path, rows: rows._repr_html_(),
    lambda path, rows: [export.export(rows, form) for form in export.FORMATS],
    lambda path, rows: comparison.compare(rows, read_rows(RECORDED)),
    lambda path, rows: page_data(path),
    lambda path, rows: export.pivot(rows, "model", "scheme", "metric"),
    lambda path, rows: reproduction.code_of(path, "1"),
    lambda path, rows: [code_files(config_of(row)) for row in rows.to_dict("records")],
    lambda path, rows: ResultsFile(path, resume=True),
)


def use(path: Path, ways: Iterable[Callable[[Path, pd.DataFrame], object]]) -> str:
    """How far a file gets; what is read is used in these ways."""
    try:
        rows = read_rows(path)
    except DtypelabError:
        return "refused"
    for way in ways:
        with contextlib.suppress(DtypelabError):
            way(path, rows)
    return "read"


def some(folder: Path, count: int, seed: int, ways: int = 2) -> set[str]:
    rng = random.Random(seed)
    found = set()
    for _ in range(count):
        path = folder / "r.csv"
        path.write_bytes(mutated(FEW, rng))
        found.add(use(path, rng.sample(USES, ways)))
    return found


@pytest.fixture(autouse=True)
def _no_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks do not run here: their values have tests of their own."""
    monkeypatch.setattr("experiments.page.writing.ranges_at_hand", lambda *_: "not here")


def test_a_few_mutations(tmp_path: Path) -> None:
    assert some(tmp_path, 7, 0) == {"read", "refused"}


@pytest.mark.thorough
def test_many_mutations(tmp_path: Path) -> None:
    some(tmp_path, 100, 1, len(USES))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_five_thousand_mutations(tmp_path: Path, seed: int) -> None:
    some(tmp_path, 500, 100 + seed, len(USES))
