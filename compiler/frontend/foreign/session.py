"""Regions of a model that onnxruntime computes, as functions that programs call.

The first operand holds the region as an ONNX model (see `compiler.ir.handed`).
`onnxruntime.regions` fills results whose sizes are known; where only a run says how large they are,
`onnxruntime.sizes` runs the region and gives the sizes of all results in a row, with a ticket
behind them, and `onnxruntime.found`, which takes these as its second operand, gives the results.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from compiler.boundary.external import register_func
from compiler.boundary.packed import is_packed, pack, unpack
from compiler.errors import MachineError, UnsupportedError
from compiler.ir.handed import DIGEST, decoded
from compiler.types.dtypes import Array

ENGINE = "onnxruntime"
REGIONS, SIZES, FOUND = f"{ENGINE}.regions", f"{ENGINE}.sizes", f"{ENGINE}.found"
MOST = 64
"""Sessions that are kept, and results that wait for the program to fetch them."""
PRECISION = "session.x64quantprecision"
"""Sums of products of bytes are exact: on x86 without VNNI they saturate otherwise."""
INSTALL = "onnxruntime is not installed: pip install 'dtypelab[onnxruntime]'"


def missing() -> str:
    """What to install before onnxruntime can compute regions; empty if nothing."""
    from importlib.util import find_spec

    return INSTALL if find_spec("onnxruntime") is None else ""


class Session:
    """A region, ready to run.

    Attributes:
        label: what it is, in words.
        inputs, outputs: names, types as text (`tensor(float)`) and shapes, as onnxruntime finds
            them: unknown dimensions are None or names, unknown shapes are empty.
    """

    def __init__(self, label: str, model: bytes):
        if said := missing():
            raise UnsupportedError(f"{label} needs onnxruntime: {said}")
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 4  # what is wrong is raised
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.add_session_config_entry(PRECISION, "1")
        self.label = label
        try:
            # Without the fallback to other providers, which prints.
            self._session = ort.InferenceSession(
                model, options, providers=["CPUExecutionProvider"], enable_fallback=0
            )
        except Exception as e:  # of several classes that share no other
            raise UnsupportedError(f"{label} cannot run in onnxruntime: {said_by(e)}") from None
        self.inputs = [(i.name, i.type, i.shape) for i in self._session.get_inputs()]
        self.outputs = [(o.name, o.type, o.shape) for o in self._session.get_outputs()]

    def run(self, operands: Sequence[Array]) -> list[Array]:
        """The results, of storage arrays; what is no tensor of numbers is packed.

        Raises:
            MachineError: it failed, or gave nothing where a tensor is needed.
        """
        given = {
            name: unpack(a, kind) if is_packed(kind) else a
            for (name, kind, _), a in zip(self.inputs, operands, strict=True)
        }
        try:
            found = self._session.run(None, given)
        except Exception as e:
            raise MachineError(f"{self.label} failed in onnxruntime: {said_by(e)}") from None
        return [
            pack(x, kind, self.label) if is_packed(kind) else np.asarray(x, order="C")
            for (_, kind, _), x in zip(self.outputs, found, strict=True)
        ]


def said_by(e: Exception) -> str:
    """What onnxruntime says is wrong, in one line, without its places in files."""
    lines = [line.strip() for line in str(e).splitlines() if line.strip()]
    said = (lines or [type(e).__name__])[0]
    if said.startswith("[ONNXRuntimeError]"):
        said = said.split(" : ", 3)[-1]
    return said if len(said) < 300 else said[:300] + "..."


_lock = threading.Lock()
_sessions: OrderedDict[bytes, Session] = OrderedDict()
_waiting: OrderedDict[int, list[Array]] = OrderedDict()
_tickets = 0


def session_of(region: Array) -> Session:
    """The session of a region that is an operand.

    Raises:
        ModelError: it is damaged.
        UnsupportedError: onnxruntime is not there, or cannot run it.
    """
    key = region[:DIGEST].tobytes()
    with _lock:
        if key in _sessions:
            _sessions.move_to_end(key)
            return _sessions[key]
    made = Session(*decoded(region))
    with _lock:
        _sessions[key] = made
        while len(_sessions) > MOST:
            _sessions.popitem(last=False)
    return made


def run_region(region: Array, *arrays: Array) -> None:
    """Fill the results, which come after the operands and are of known sizes.

    Raises:
        MachineError: it failed, or the results are of other sizes.
    """
    session = session_of(region)
    count = len(session.inputs)
    _fill(session, session.run(arrays[:count]), arrays[count:])


def find_sizes(region: Array, *arrays: Array) -> None:
    """Run a region, keep the results, and fill the last array: the sizes of all, and a ticket."""
    global _tickets
    *operands, sizes = arrays
    found = session_of(region).run(operands)
    dims = [n for a in found for n in a.shape]
    if len(dims) + 1 != len(sizes):
        label = session_of(region).label
        raise MachineError(f"{label}: a result has another number of axes than when imported")
    with _lock:
        _tickets += 1
        sizes[:-1], sizes[-1] = dims, _tickets
        _waiting[_tickets] = found
        while len(_waiting) > MOST:
            _waiting.popitem(last=False)


def fetch_results(region: Array, sizes: Array, *arrays: Array) -> None:
    """Fill the results of the run that `find_sizes` gave the ticket of; of a run of its own if that
    has been fetched already."""
    session = session_of(region)
    count = len(session.inputs)
    with _lock:
        found = _waiting.pop(int(sizes[-1]), None)
    _fill(session, session.run(arrays[:count]) if found is None else found, arrays[count:])


def _fill(session: Session, found: Sequence[Array], results: Sequence[Array]) -> None:
    for (name, _, _), x, out in zip(session.outputs, found, results, strict=True):
        if x.shape != out.shape or x.dtype != out.dtype:
            raise MachineError(
                f"{session.label}: {name!r} is {x.dtype}{list(x.shape)}, where the program has "
                f"{out.dtype}{list(out.shape)}"
            )
        out[...] = x


register_func(REGIONS, run_region)
register_func(SIZES, find_sizes)
register_func(FOUND, fetch_results)
