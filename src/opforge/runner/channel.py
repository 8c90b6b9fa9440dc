"""Messages between the parent and a worker: JSON behind a length, file descriptors beside it, over a Unix socket pair."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any

LARGEST_MESSAGE = 1 << 26


class Closed(Exception):
    """The other side is gone."""


class Late(Exception):
    """No answer before the deadline."""


def send(sock: socket.socket, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
    """One message, with descriptors. Raises Closed when nobody listens."""
    body = json.dumps(message).encode()
    frame = struct.pack("!I", len(body)) + body
    try:
        sent = socket.send_fds(sock, [frame], list(fds)) if fds else 0
        sock.sendall(frame[sent:])
    except OSError as error:
        raise Closed(str(error)) from error


def receive(sock: socket.socket, timeout_s: float | None = None) -> tuple[dict[str, Any], list[int]]:
    """One message and its descriptors. Raises Closed, Late, or Closed again when what comes is not a message."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    head, fds = _exactly(sock, 4, deadline)
    (length,) = struct.unpack("!I", head)
    if length > LARGEST_MESSAGE:
        raise Closed(f"a message of {length} bytes")
    body, more = _exactly(sock, length, deadline)
    try:
        message = json.loads(body)
    except ValueError as error:
        raise Closed(f"not a message: {error}") from error
    if not isinstance(message, dict):
        raise Closed("not a message")
    return message, fds + more


def _exactly(sock: socket.socket, count: int, deadline: float | None) -> tuple[bytes, list[int]]:
    data = b""
    fds: list[int] = []
    while len(data) < count:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise Late
        sock.settimeout(left)
        try:
            piece, new, _, _ = socket.recv_fds(sock, min(count - len(data), 1 << 16), 4)
        except TimeoutError as error:
            raise Late from error
        except OSError as error:
            raise Closed(str(error)) from error
        fds += new
        if not piece:
            raise Closed("the other side closed the connection")
        data += piece
    return data, fds
