"""A language model that is a list: a real HTTP server that goes through answers somebody wrote down."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextlib.contextmanager
def scripted_model():
    """A server that goes through its `script`: (status, text of the answer, finish), or with seconds to wait before it
    as a fourth. `asked` keeps the conversations.
    """
    script, asked = [], []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"])
            status, text, finish, *wait = script.pop(0) if script else (500, "", "")
            time.sleep(sum(wait))
            choice = {"message": {"content": text}, "finish_reason": finish}
            usage = {"prompt_tokens": 900, "completion_tokens": 100}
            body = json.dumps({"model": "scripted", "choices": [choice], "usage": usage}).encode()
            self.send_response(status)
            self.send_header("Retry-After", "0.01")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    made.script, made.asked = script, asked
    try:
        yield made
    finally:
        made.shutdown()
        made.server_close()
