"""How objects show themselves in notebooks."""

from __future__ import annotations

import html


def preformatted(text: str) -> str:
    """Text as HTML, its columns kept; what is long or wide scrolls."""
    style = "white-space: pre; overflow: auto; max-height: 40em; line-height: 1.3"
    return f'<pre style="{style}">{html.escape(text)}</pre>'
