"""The token that two ends prove to know, without saying it, and the key that they sign with."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

from compiler.errors import ConfigError

from .protocol import Channel, Kind, Limits, Message, ProtocolError

TOKEN, TOKEN_FILE = "DTYPELAB_TOKEN", "DTYPELAB_TOKEN_FILE"
"""Environment variables: the token, and a file that holds it."""
LEAST, MOST = 16, 4096
"""Characters of a token."""
NONCE = 32
"""Bytes that each end draws for a connection."""
FIRST = Limits(header=1024, payload=0, begin_s=10.0, transfer_s=10.0)
"""Of messages from somebody who has proved nothing."""


def new_token() -> str:
    """A token that nobody has."""
    return secrets.token_urlsafe(32)


def token_given(file: str | os.PathLike[str] | None) -> str:
    """The token in `file`, else in the one that DTYPELAB_TOKEN_FILE names, else DTYPELAB_TOKEN;
    empty: none is given.

    Raises:
        ConfigError: the file cannot be read, others may read it, or it holds no token.
    """
    named = file or os.environ.get(TOKEN_FILE)
    if not named:
        token = os.environ.get(TOKEN, "")
        return _checked(token, TOKEN) if token else ""
    path = Path(named)
    try:
        with path.open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise ConfigError(f"{path} holds no token: it is no file")
            if mode & 0o077:
                raise ConfigError(
                    f"{path} holds a token, and others may read it: say chmod 600 {path}"
                )
            text = opened.read(MOST + 2)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None
    return _checked(text.decode("ascii", "replace").strip(), str(path))


def _checked(token: str, where: str) -> str:
    plain = token.isascii() and token.isprintable() and " " not in token
    if not LEAST <= len(token) <= MOST or not plain:
        raise ConfigError(f"{where} holds no token: that is {LEAST} or more characters, no spaces")
    return token


def ask(channel: Channel, token: str) -> None:
    """The server's half: let nobody pass who does not know the token; sign what follows.

    Raises:
        ProtocolError: the other end does not know it, or does not speak the protocol.
        Closed, Late: see `Stream`.
    """
    own = secrets.token_bytes(NONCE)
    channel.send(Message(Kind.HELLO, {"nonce": own.hex()}), FIRST.transfer_s)
    answer = channel.receive(FIRST)
    if answer.kind is not Kind.PROOF:
        raise ProtocolError("a client must first prove that it knows the token")
    theirs = _nonce(answer)
    want = _proof(token, b"client", own, theirs).hex()
    if not hmac.compare_digest(answer.text("proof", 64).encode("utf-8", "replace"), want.encode()):
        raise ProtocolError("the token is wrong")
    said = _proof(token, b"server", own, theirs).hex()
    channel.send(Message(Kind.WELCOME, {"proof": said}), FIRST.transfer_s)
    channel.key = _proof(token, b"key", own, theirs)


def answer(channel: Channel, token: str) -> None:
    """The client's half: prove that this end knows the token, and see that the other does.

    Raises:
        ProtocolError: it does not, says that this one does not, or does not speak the protocol.
        Closed, Late: see `Stream`.
    """
    hello = _said(channel.receive(FIRST), Kind.HELLO)
    own, theirs = secrets.token_bytes(NONCE), _nonce(hello)
    proof = {"nonce": own.hex(), "proof": _proof(token, b"client", theirs, own).hex()}
    channel.send(Message(Kind.PROOF, proof), FIRST.transfer_s)
    welcome = _said(channel.receive(FIRST), Kind.WELCOME)
    want = _proof(token, b"server", theirs, own).hex()
    given = welcome.text("proof", 64).encode("utf-8", "replace")
    if not hmac.compare_digest(given, want.encode()):
        raise ProtocolError("it does not know the token")
    channel.key = _proof(token, b"key", theirs, own)


def _said(message: Message, kind: Kind) -> Message:
    if message.kind is Kind.ERROR:
        raise ProtocolError(message.text("error"))
    if message.kind is not kind:
        raise ProtocolError("it does not ask for a token")
    return message


def _nonce(message: Message) -> bytes:
    text = message.text("nonce", 2 * NONCE)
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != NONCE:
        raise ProtocolError(f"nonce of a message must be {NONCE} bytes in hexadecimal")
    return found


def _proof(token: str, what: bytes, server: bytes, client: bytes) -> bytes:
    return hmac.new(token.encode(), b"dtypelab " + what + server + client, hashlib.sha256).digest()
