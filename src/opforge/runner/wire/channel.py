"""Messages between the parent and a worker: JSON behind a length, file descriptors beside it, over a Unix
socket pair.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

LARGEST_MESSAGE = 1 << 24
"""Bytes. 4,096 samples, the most of a request, are a tenth of a megabyte: a longer message is no answer."""
WATCH_S = 0.03
"""How often a silent worker is looked at. A third of what the next one takes to be born (forkserver_client), so that
its end costs little more; 33 looks a second cost no processor.
"""
SEND_LIMIT_S = 30.0
"""A worker that reads nothing for so long hangs: the limit of a call that hangs (runner.parent.watchdog)."""
REST_S = 10.0
"""What a message that has begun may take to arrive, whatever the deadline: what was read of it cannot be put back."""


class Closed(Exception):
    """The other side is gone."""


class Late(Exception):
    """No answer before the deadline. `limit_s`: after so many seconds; 0 where the receiver's own limit says it."""

    def __init__(self, limit_s: float = 0.0) -> None:
        super().__init__(limit_s)
        self.limit_s = limit_s


def send(sock: socket.socket, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
    """One message, with descriptors. Raises Closed when nobody listens."""
    body = json.dumps(message).encode()
    frame = struct.pack("!I", len(body)) + body
    try:
        sock.settimeout(SEND_LIMIT_S)
        sent = socket.send_fds(sock, [frame], list(fds)) if fds else 0
        sock.sendall(frame[sent:])
    except OSError as error:
        raise Closed(str(error)) from error


def receive(
    sock: socket.socket, timeout_s: float | None = None, watch: Callable[[], None] | None = None
) -> tuple[dict[str, Any], list[int]]:
    """One message and its descriptors. Raises Closed, Late, or Closed again when what comes is not a message.

    What has arrived is taken even when this process was kept from looking until after the deadline.
    watch   called every WATCH_S while nothing comes; what it raises ends the wait
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    fds: list[int] = []
    try:
        (length,) = struct.unpack("!I", _exactly(sock, 4, deadline, fds, watch))
        if length > LARGEST_MESSAGE:
            raise Closed(f"a message of {length} bytes")
        message = json.loads(
            _exactly(sock, length, None if deadline is None else max(deadline, time.monotonic() + REST_S), fds, watch)
        )
        if not isinstance(message, dict):
            raise Closed("not a message")
    except (ValueError, RecursionError) as error:
        close_all(fds)
        raise Closed(f"not a message: {error}") from error
    except BaseException:
        close_all(fds)
        raise
    return message, fds


def close_all(fds: Sequence[int]) -> None:
    """Give descriptors back that nobody wants."""
    for fd in fds:
        os.close(fd)


def _exactly(
    sock: socket.socket, count: int, deadline: float | None, fds: list[int], watch: Callable[[], None] | None
) -> bytes:
    data = bytearray()
    while len(data) < count:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            sock.settimeout(left if watch is None else WATCH_S if left is None else min(left, WATCH_S))
            piece, new, _, _ = socket.recv_fds(sock, min(count - len(data), 1 << 16), 4)
        except (TimeoutError, BlockingIOError):
            if left == 0.0:
                raise Late from None
            if watch is not None:
                watch()
            continue
        except OSError as error:
            raise Closed(str(error)) from error
        fds += new
        if not piece:
            raise Closed("the other side closed the connection")
        data += piece
    return bytes(data)
