"""Sends an answer of its own, so that every later one is a question too early.

catalogue  E4
guard      nonce
cases      normal
mode       verify
lowered    freeze
"""

import os
import socket
import stat
import struct

SENT = []


def run(a, b):
    if not SENT:
        SENT.append(1)
        body = b'{"status": "ok"}'
        for fd in range(3, 64):
            try:
                if stat.S_ISSOCK(os.fstat(fd).st_mode):
                    socket.socket(fileno=os.dup(fd)).send(struct.pack("!I", len(body)) + body, socket.MSG_DONTWAIT)
            except OSError:
                continue
    return a @ b
