"""Servers of devices on this machine's loopback, and libraries that do what no network does."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

import compiler
from compiler.codegen.c import system_compiler
from experiments.devices import client, server, tokens
from experiments.devices.machine import Machine, this_machine
from experiments.devices.protocol import Channel, Kind, Message
from experiments.devices.streams import Stream

TOKEN = "a token that nobody guesses".replace(" ", "-")
INTERNAL = "internal error"


@dataclass
class Served:
    """A running server, what it has logged, and how it is reached."""

    running: server.Server
    said: list[str] = field(default_factory=list)

    @property
    def address(self) -> str:
        host, port = self.running.address
        return f"{host}:{port}"

    def device(self) -> client.Device:
        """A client of its own."""
        return client.Device(self.address)

    def socket(self) -> socket.socket:
        """A connection, nothing said yet."""
        return socket.create_connection(self.running.address, 20)

    def channel(self, token: str = TOKEN) -> Channel:
        """One that has proved to know a token."""
        channel = Channel(Stream.of_socket(self.socket()), b"client", b"server")
        tokens.answer(channel, token)
        return channel


def machine(**changed: object) -> Machine:
    """This one."""
    here = this_machine(
        cpu="Test CPU", cores=3, dtypelab_version="0", limit_s=60, wait_s=120, largest=1 << 26
    )
    return replace(here, **{"os": "TestOS 1", **changed})  # type: ignore[arg-type]


@contextlib.contextmanager
def serving(rules: server.Rules | None = None, **changed: object) -> Iterator[Served]:
    """A server on a free port, on a thread of this process."""
    said: list[str] = []
    listening = server.listen("127.0.0.1", 0)
    running = server.Server(
        listening, TOKEN, machine(**changed), rules or server.Rules(), said.append
    )
    thread = threading.Thread(target=running.serve, daemon=True)
    thread.start()
    before = os.environ.get(tokens.TOKEN)
    os.environ[tokens.TOKEN] = TOKEN
    try:
        yield Served(running, said)
    finally:
        if before is None:
            del os.environ[tokens.TOKEN]
        else:
            os.environ[tokens.TOKEN] = before
        running.close()
        thread.join(10)
    assert not thread.is_alive()
    assert not [line for line in said if INTERNAL in line], said


def doubling() -> compiler.IRModule:
    """x + x, of vectors of any length."""
    x = compiler.var("x", ("n",))
    return compiler.IRModule({"main": compiler.function([x], x + x)})


@functools.cache
def hostile(body: str, before: str = "") -> bytes:
    """A shared library that doubles vectors, and does what `body` says in C when it is called,
    `before` when it is loaded."""
    with tempfile.TemporaryDirectory() as folder:
        compiler.export(doubling(), "c", Path(folder, "x"), forms=["source"])
        text = Path(folder, "x", "net.c").read_text()
        more = f"""
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#undef net_run
__attribute__((constructor)) static void before(void) {{ {before} }}
int net_run(const void *const *i, void *const *o, const int64_t *d, void *a) {{
  {body}
  return real_run(i, o, d, a);
}}
"""
        source = Path(folder, "hostile.c")
        source.write_text(f"#define net_run real_run\n{text}\n{more}")
        made = Path(folder, "hostile.so")
        flags = ["-std=gnu11", "-w", "-fPIC", "-shared", "-o", str(made)]
        call = [*system_compiler.command(), *flags, str(source), "-lm"]
        subprocess.run(call, check=True)
        return made.read_bytes()


ONES = np.ones(3, np.float32)


def works(device: client.Device) -> bool:
    """Whether a device computes."""
    (found,) = device.run(hostile(""), [ONES])
    return found.tolist() == [2, 2, 2]


def load(content: bytes) -> Message:
    """Asks for a library to be loaded."""
    return Message(Kind.LOAD, {"program": hashlib.sha256(content).hexdigest()}, content)


def processes(folder: str = "experiments.devices.runner") -> set[int]:
    """The runners that this process has started."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue
            if folder.encode() in words and parent == os.getpid():
                found.add(int(entry.name))
    return found


def no_more_processes() -> bool:
    """Whether they have all ended within 20 seconds."""
    until = time.monotonic() + 20
    while processes() and time.monotonic() < until:
        time.sleep(0.05)
    return not processes()
