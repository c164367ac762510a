"""One process from its start to a first output: `python -m experiments.benchmarks.first_output
ours|peer MODEL INPUT.npy`.

Prints one JSON object: seconds for imports, for the model's file (`read`; onnxruntime reads it
while it makes its session), for compilation, and for the first run; the growth of resident memory
from after the imports, the native libraries included, to after the first run, in MiB; and a hash of
the output.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
Steps = tuple[Any, Callable[[Path], Any], Callable[[Any], Callable[[Any], Any]]]
"""(numpy, read a model, compile it)"""


@dataclass(frozen=True)
class Start:
    """What one process took."""

    imports: float
    read: float
    compiled: float
    ran: float
    grown_mib: float
    output: str

    @property
    def seconds(self) -> float:
        """From imports to the first output, without reading the model."""
        return self.imports + self.compiled + self.ran

    @staticmethod
    def from_json(text: str) -> Start:
        """What `main` printed."""
        return Start(**json.loads(text))


def main(who: str, model: Path, data: Path) -> Start:
    """Start, read, compile and run.

    Raises:
        OSError: this system does not tell the resident memory.
    """
    imports, (np, read, compile_) = _timed(_ours if who == "ours" else _peer)
    x = np.load(data)
    before = resident_mib()
    reading, source = _timed(lambda: read(model))
    compiling, run = _timed(lambda: compile_(source))
    running, out = _timed(lambda: run(x))
    grown = resident_mib() - before
    output = hashlib.sha256(np.asarray(out).tobytes()).hexdigest()
    return Start(imports, reading, compiling, running, grown, output)


def _timed(act: Callable[[], T]) -> tuple[float, T]:
    begin = time.perf_counter()
    result = act()
    return time.perf_counter() - begin, result


def resident_mib() -> float:
    """Resident memory of this process."""
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def _ours() -> Steps:
    import numpy

    import compiler

    compiler.Target.parse("llvm")  # loads LLVM, as importing onnxruntime loads its library
    return numpy, lambda path: compiler.parse(path.read_text()), compiler.build


def _peer() -> Steps:
    import numpy

    from experiments.benchmarks import peer

    peer.onnxruntime()
    return numpy, lambda path: path, lambda path: peer.Session(path, 1)


if __name__ == "__main__":
    print(json.dumps(asdict(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))))
