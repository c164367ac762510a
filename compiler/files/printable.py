"""Text from files and models as it may be shown: nothing in it commands a terminal, or ends a line.

Names of models, nodes and files are what somebody else chose. Escape sequences in them would move
the cursor and change what stands there already, newlines would make lines that nobody printed, and
marks of direction would show something else than is there.
"""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` in one line, with everything that is no visible character escaped as in Python."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def printable_lines(text: str) -> str:
    """The same for text of several lines, which are told apart by newlines."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
