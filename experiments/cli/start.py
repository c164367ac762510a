"""What `dtypelab` begins with: the verbs take a while to import, which Ctrl-C may end, too."""

from __future__ import annotations

import contextlib
import sys


def main() -> None:
    """Entry point of the `dtypelab` command; see `experiments.cli.main.main`."""
    try:
        from experiments.cli.main import main as run
    except KeyboardInterrupt:
        with contextlib.suppress(OSError, AttributeError):  # a stream that is closed, or none
            print("dtypelab: interrupted", file=sys.stderr, flush=True)
        sys.exit(1)
    run()
