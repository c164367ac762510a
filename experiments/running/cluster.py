"""Cells on the workers of an existing dask.distributed cluster.

Models and data travel with the cells, so that workers need dtypelab and nothing else. A cell whose
worker dies is run by another one. Rows are the same as those of a local sweep, but for the columns
that name the machine.
"""

from __future__ import annotations

import logging
import re
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from compiler.errors import ConfigError

if TYPE_CHECKING:
    from experiments.spec.cells import Cell, Workload

    from .session import Outcome, Session

T = TypeVar("T")

CONNECT_S = 10
"""Seconds that a scheduler has to answer in, at first and when it has gone."""


def cluster_outcomes(todo: Sequence[Cell], workload: Workload, address: str) -> Iterator[Outcome]:
    """What the cells give, as they are finished, from the cluster at `address`.

    Args:
        todo: cells that measure no latency.
        workload: what they need.
        address: of the scheduler, for example "tcp://10.0.0.1:8786".

    Raises:
        ConfigError: dask.distributed is not installed, no scheduler answers, a worker has another
            dtypelab, a cell kills worker after worker, or the scheduler goes away before the end.
    """
    if not re.fullmatch(r"((tcp|tls|ws|wss|ucx)://)?[^:/\s]+:\d+", address):
        raise ConfigError(f"{address!r} is not an address such as tcp://10.0.0.1:8786")
    try:
        import distributed
    except ImportError as error:
        raise ConfigError(
            "--scheduler needs dask.distributed: pip install 'dtypelab[cluster]'"
        ) from error
    # What goes wrong is our caller's to hear, in one sentence.
    for name in ("client", "comm", "core", "utils"):
        logging.getLogger(f"distributed.{name}").setLevel(logging.CRITICAL + 1)
    try:
        client = distributed.Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ConfigError(f"no dask scheduler answers at {address}: {error}") from error
    gone = (CancelledError, OSError, distributed.client.FutureCancelledError)
    try:
        _check_workers(client, address)
        # As tasks: what is scattered is lost with its worker, and everything that reads it.
        models = {cell.model.path: cell.model.path.read_bytes() for cell in todo}
        sent = {path: client.submit(_held, data, pure=False) for path, data in models.items()}
        parts = {cell.model.path: workload.part([cell]) for cell in todo}
        held = {path: client.submit(_held, part, pure=False) for path, part in parts.items()}
        pending = [
            client.submit(_outcome, cell, sent[cell.model.path], held[cell.model.path], pure=False)
            for cell in todo
        ]
        for done in distributed.as_completed(pending, loop=client.loop):
            if done.status == "cancelled" or client.status != "running":
                raise CancelledError(f"the client is {client.status}")
            yield done.result()
    except distributed.KilledWorker as error:
        raise ConfigError(f"a cell killed every worker it was given to: {error}") from error
    except gone as error:
        raise ConfigError(
            f"the dask scheduler at {address} has gone; the rows so far are written, continue with "
            "--resume"
        ) from error
    finally:
        client.close(timeout=2)


def _check_workers(client: Any, address: str) -> None:
    from .provenance import dtypelab_version

    ours = dtypelab_version()
    theirs = client.run(_version)
    if not theirs:
        raise ConfigError(f"the dask scheduler at {address} has no workers yet; start some first")
    for worker, version in theirs.items():
        if version != ours:
            what = f"dtypelab {version}" if version else "no dtypelab"
            raise ConfigError(f"the worker {worker} has {what}, but {ours} is needed there")


def _version() -> str:
    """On a worker: its version of dtypelab, empty without one."""
    try:
        from experiments.running.provenance import dtypelab_version
    except ImportError:
        return ""
    return dtypelab_version()


def _held(value: T) -> T:
    """On a worker: what was sent."""
    return value


def _outcome(cell: Cell, model: bytes, workload: Workload) -> Outcome:
    """On a worker: what a cell gives, its model read from `model`."""
    path = _model_file(cell.model.path.name, cell.model.sha256, model)
    local = replace(cell, model=replace(cell.model, path=path))
    return _session(workload).outcome(local)


_kept = threading.local()


def _session(workload: Workload) -> Session:
    """This thread's session, for what consecutive cells share."""
    from .session import Session

    key = (tuple(sorted(workload.data)), tuple(sorted(workload.images.items())), workload.adapters)
    if getattr(_kept, "key", None) != key:
        _kept.key, _kept.session = key, Session(workload)
    session: Session = _kept.session
    return session


@lru_cache(maxsize=8)
def _model_file(name: str, sha256: str, content: bytes) -> Path:
    path = Path(tempfile.mkdtemp(prefix=f"dtypelab-{sha256[:8]}-")) / name
    path.write_bytes(content)
    return path
