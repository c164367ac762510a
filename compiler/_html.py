"""How objects show themselves in notebooks."""

from __future__ import annotations

import html

from compiler.files.printable import printable


def preformatted(text: str) -> str:
    """Text as HTML, its columns kept; what is long or wide scrolls."""
    style = "white-space: pre; overflow: auto; max-height: 40em; line-height: 1.3"
    return f'<pre style="{style}">{html.escape(text)}</pre>'


def escaped(text: str) -> str:
    """Text as the content of an element or the value of an attribute of HTML, XML or SVG."""
    return html.escape(printable(text))
