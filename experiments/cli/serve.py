"""dtypelab serve and dtypelab devices."""

from __future__ import annotations

import ipaddress
import math
import signal
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from experiments.running import provenance

from .common import json_option, print_json, say, token_option

if TYPE_CHECKING:
    from experiments.devices.machine import Machine
    from experiments.devices.server import Rules

_POSITIVE = click.FloatRange(min=0, min_open=True, max=1e6)


@click.command(short_help="Let other machines measure programs on this one.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="N",
    help="Where to listen; without it, a free port is taken.",
)
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS")
@token_option("Holds what clients must know; without it, a token is made and printed.")
@click.option(
    "--limit",
    type=_POSITIVE,
    default=120.0,
    show_default=True,
    metavar="S",
    help="Seconds after which a request is stopped.",
)
@click.option(
    "--memory",
    type=_POSITIVE,
    default=4.0,
    show_default=True,
    metavar="GIB",
    help="That a client's programs may take.",
)
@click.option(
    "--largest",
    type=_POSITIVE,
    default=1024.0,
    show_default=True,
    metavar="MIB",
    help="Of one message, a program or its inputs.",
)
@click.option(
    "--target",
    default="llvm",
    show_default=True,
    metavar="T",
    help="Be a machine that runs beside this one, an emulator or wasm32.",
)
@click.option(
    "--stdio",
    is_flag=True,
    help="Serve who has started this command, over its standard input and output.",
)
def serve(
    port: int,
    host: str,
    token_file: Path | None,
    limit: float,
    memory: float,
    largest: float,
    target: str,
    stdio: bool,
) -> None:
    """Run programs that clients with the token send, one at a time, and say how long they take.

    This is a tool that runs code for those who hold the token, with all rights of the user that it
    runs as. It listens on this machine alone unless --host says otherwise; what travels is signed
    with the token, but not encrypted: between machines, use a tunnel, as ssh -L makes. `bench`,
    `sweep` and `tune` take --device HOST:PORT, or --device "pipe:ssh BOARD dtypelab serve --stdio".

    Example: dtypelab serve --port 7411 --token-file token.txt
    """
    from experiments.devices import server, tokens

    machine = _machine(limit, largest, target)
    rules = server.Rules(memory=int(memory * 2**30), target=target)
    if stdio:
        if port or token_file:
            raise click.UsageError("--stdio takes no --port and no --token-file")
        server.serve_standard_streams(machine, rules)
        return
    token = tokens.token_given(token_file)
    made = "" if token else tokens.new_token()
    _serve(host, port, token or made, machine, rules, bool(made))


def _serve(host: str, port: int, token: str, machine: Machine, rules: Rules, made: bool) -> None:
    from experiments.devices import server

    listening = server.listen(host, port)
    running = server.Server(listening, token, machine, rules, _log)
    address, port = running.address
    name = f"[{address}]" if ":" in address else address
    say(f"listening on {name}:{port}")
    if made:
        say(f"token: {token}")
    if not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        say(
            "dtypelab: who has the token runs code here, and what travels is not encrypted",
            err=True,
        )
    signal.signal(signal.SIGTERM, _interrupted)
    try:
        running.serve()
    except KeyboardInterrupt:
        pass
    finally:
        running.close()


def _interrupted(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _log(text: str) -> None:
    say(text, err=True)


def _machine(limit_s: float, largest_mib: float, target: str) -> Machine:
    from experiments.devices.machine import this_machine

    known = provenance.collect()
    return this_machine(
        cpu=known.cpu, cores=known.cores, dtypelab_version=known.dtypelab_version,
        limit_s=limit_s, wait_s=2 * limit_s, largest=math.ceil(largest_mib * 2**20), target=target,
    )  # fmt: skip


@click.command(short_help="What devices are, and whether they answer.")
@click.argument("addresses", metavar="HOST:PORT...", nargs=-1, required=True)
@token_option("Holds the token of the devices.")
@json_option
def devices(addresses: Sequence[str], token_file: Path | None, as_json: bool) -> int:
    """Ask devices, which `dtypelab serve` serves, what they are; exit 1 if one does not answer.

    Example: dtypelab devices 127.0.0.1:7411 --token-file token.txt
    """
    from experiments.devices import client

    client.use_token_file(token_file)
    found: list[dict[str, Any]] = []
    for address in addresses:
        device = client.device(address)
        try:
            m = device.machine
        except client.DeviceError as error:
            found.append({"device": address, "error": str(error)})
            continue
        target = m.target()
        found.append({"device": address, **m.header(), "isa": target.isa})
        device.close()
    if as_json:
        print_json({"devices": found})
    else:
        for row in found:
            say(row["error"] if "error" in row else _sentence(row))
    return int(any("error" in row for row in found))


def _sentence(row: dict[str, Any]) -> str:
    cores = f"{row['cores']} core" + ("s" if row["cores"] != 1 else "")
    return f"{row['device']}: {row['cpu']}, {cores}, {row['isa']}, {row['triple']}, {row['os']}"
