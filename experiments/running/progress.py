"""How far a sweep is: a bar in a terminal, a line in a notebook."""

from __future__ import annotations

import contextlib
import html
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from compiler.files.printable import printable
from experiments.user_code.isolation import echo


@dataclass(frozen=True)
class Advance:
    """To be called after each row with what it was about; `say` shows a text above that."""

    row: Callable[[str], None]
    say: Callable[[str], None] = echo

    def __call__(self, label: str) -> None:
        """A row is there."""
        self.row(label)


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook; IPython is not imported to find out."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and hasattr(shell, "kernel")


@contextlib.contextmanager
def sweep_progress(wanted: bool | None, *, done: int, total: int) -> Iterator[Advance]:
    """What to call after each row, which shows how far it is.

    `wanted`: None shows it in notebooks and where stderr is a terminal.
    """
    notebook = in_notebook()
    if not (notebook or sys.stderr.isatty() if wanted is None else wanted):
        yield Advance(lambda _label: None)
    elif notebook:
        yield _line(done, total)
    else:
        with _bar(done, total) as advance:
            yield advance


def _line(done: int, total: int) -> Advance:
    from IPython.display import HTML, display

    def shown(label: str) -> Any:
        bar = f'<progress max="{max(total, 1)}" value="{done}"></progress>'
        return HTML(f"sweep {bar} {done} of {total} cells {html.escape(label)}")

    handle = display(shown(""), display_id=True)

    def advance(label: str) -> None:
        nonlocal done
        done += 1
        handle.update(shown(label))

    return Advance(advance)


@contextlib.contextmanager
def _bar(done: int, total: int) -> Iterator[Advance]:
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns: Iterable[Any] = (
        TextColumn("sweep"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total, completed=done)
        yield Advance(
            lambda label: bar.update(task, advance=1, description=escape(printable(label))),
            lambda text: bar.console.out(text.rstrip("\n"), highlight=False),
        )
