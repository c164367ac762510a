"""Results files as others leave them, or damage them."""

from __future__ import annotations

import csv
import io
import json
import random

CELLS = (
    *("", " ", "nan", "NaN", "inf", "-inf", "-1", "0", "1e999", "9" * 40, "1,5", "1_000", "0x10"),
    *("TRUE", "#N/A", "#REF!", "=1+1", "+1", "-x", "@x", "\x1b[2J", "\x00", "a\nb", '"', '""'),
    *("{}", "[]", "null", '{"models": 3}', '{"models": [], "dataset": [1]}', "[" * 3000),
    *("1.7976931348623157e308", "-1e308", "1e-320", "٣", "½", "\ufeff", "\ud7ff", "x" * 200_000),
)
"""What cells are changed to."""
Table = list[list[str]]


def mutated(data: bytes, rng: random.Random) -> bytes:
    """A CSV file with one to three changes: of cells, rows, columns, form or bytes."""
    table = list(csv.reader(io.StringIO(data.decode())))
    for _ in range(rng.choice((1, 1, 2, 3))):
        rng.choice(_CHANGES)(table, rng)
    text = io.StringIO()
    ends = rng.choice(("\n", "\n", "\r\n", "\r"))
    sign = rng.choice((*[","] * 12, ";", "\t"))
    quoting = rng.choice((csv.QUOTE_MINIMAL, csv.QUOTE_ALL))
    csv.writer(text, lineterminator=ends, delimiter=sign, quoting=quoting).writerows(table)
    encoding = rng.choice((*["utf-8"] * 8, "utf-8-sig", "utf-16"))
    return rng.choice((*[_whole] * 6, _cut, _byte))(text.getvalue().encode(encoding), rng)


def _cell(table: Table, rng: random.Random) -> None:
    row = rng.choice(table)
    if row:
        row[rng.randrange(len(row))] = rng.choice(CELLS)


def _config(table: Table, rng: random.Random) -> None:
    """A configuration with something else in it."""
    if "config" not in table[0]:
        return
    place = table[0].index("config")
    row = rng.choice(table[1:] or table)
    try:
        config = json.loads(row[place])
        config[rng.choice([*config])] = rng.choice((None, 3, "", [], {}, [{}], ["gone.py:f"], "x"))
        row[place] = json.dumps(config)
    except (ValueError, IndexError, TypeError):
        return


def _shuffle(table: Table, rng: random.Random) -> None:
    order = list(range(len(table[0])))
    rng.shuffle(order)
    for row in table:
        row[:] = [row[k] for k in order if k < len(row)]


def _swap(table: Table, rng: random.Random) -> None:
    a, b = rng.choice(table), rng.choice(table)
    if a and b:
        a[rng.randrange(len(a))] = b[rng.randrange(len(b))]


def _row(table: Table, rng: random.Random) -> None:
    place = rng.randrange(len(table))
    change = rng.randrange(4)
    if change == 0 and len(table) > 1:
        table.pop(place)
    elif change == 1:
        table.insert(place, list(rng.choice(table)))
    elif change == 2:
        table[place] = table[place][: rng.randrange(len(table[place]) + 1)]
    else:
        table.insert(place, [])


def _column(table: Table, rng: random.Random) -> None:
    place = rng.randrange(len(table[0]) or 1)
    change = rng.randrange(3)
    for number, row in enumerate(table):
        if change == 0:
            del row[place : place + 1]
        elif change == 1:
            row.insert(place, "note" if number == 0 else rng.choice(CELLS))
        else:
            row += ["", ""]


def _same(table: Table, rng: random.Random) -> None:
    pass


_CHANGES = (_cell, _cell, _cell, _shuffle, _swap, _row, _column, _same, _config)


def _whole(data: bytes, rng: random.Random) -> bytes:
    return data


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def _byte(data: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(data))
    return data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :]
