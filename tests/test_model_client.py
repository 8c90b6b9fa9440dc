"""The client of a language model against a real HTTP server that answers well, wrong, late, short, or not at all."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from opforge.core.language.errors import UsageError
from opforge.forge.loop.model_client import Endpoint, ModelError, ask, endpoint_from

KEY = "sk-very-secret"
QUESTION = [{"role": "user", "content": "hello"}]
GOOD = {
    "model": "m-1",
    "choices": [{"message": {"content": "y = relu(x)"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 11, "completion_tokens": 5},
}


@pytest.fixture
def server():
    """A server that goes through a list of (status, headers, body, seconds); `asked` keeps what it was sent."""
    script, asked = [], []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            asked.append((self.path, dict(self.headers), json.loads(body)))
            status, headers, answer, wait = script.pop(0)
            time.sleep(wait)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if "Content-Length" not in headers:
                self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            with contextlib.suppress(BrokenPipeError):  # the client has gone: that is what is tested
                self.wfile.write(answer)

        def log_message(self, *_):
            pass

    found = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    found.script, found.asked = script, asked
    yield found
    found.shutdown()
    found.server_close()


def endpoint(server, **more):
    return Endpoint(url=f"http://127.0.0.1:{server.server_port}/v1", model="m", key=KEY, **more)


def reply(content, status=200, wait=0.0, **headers):
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return status, {name.replace("_", "-"): value for name, value in headers.items()}, body, wait


def test_an_answer_with_its_tokens(server):
    server.script.append(reply(GOOD))
    answer = ask(endpoint(server), QUESTION, temperature=0.7, max_tokens=99)
    assert (answer.text, answer.model, answer.finish) == ("y = relu(x)", "m-1", "stop")
    assert (answer.prompt_tokens, answer.answer_tokens, answer.retried) == (11, 5, 0)
    path, headers, body = server.asked[0]
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert body == {"model": "m", "messages": QUESTION, "temperature": 0.7, "max_tokens": 99}


def test_busy_and_failing_servers_are_asked_again_as_they_say(server):
    server.script += [reply({}, 429, Retry_After="2.5"), reply({}, 503), reply(GOOD)]
    waits = []
    assert ask(endpoint(server), QUESTION, sleep=waits.append).retried == 2
    assert waits == [2.5, 4.0]


def test_a_server_that_stays_busy_is_given_up(server):
    server.script += [reply({}, 429)] * 3
    with pytest.raises(ModelError, match="429 Too Many Requests after 3 tries") as caught:
        ask(endpoint(server, retries=2), QUESTION, sleep=lambda _: None)
    assert caught.value.retried == 2


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (reply({}, 401), "401 Unauthorized after 1 try"),
        (reply(b"<html>"), "not with a chat completion"),
        (reply({"choices": []}), "not with a chat completion"),
        (reply({"choices": [{"message": {"content": "  "}}]}), "no text"),
        (reply({"choices": [{"message": {"content": None}}]}), "no text"),
        (reply(b"", 302, Location="http://127.0.0.1:9/"), "302"),
        (reply(b'{"choices": [', Content_Length="500"), "broke"),
        (reply(GOOD, wait=0.6), "did not answer within 0.2 s"),
    ],
    ids=["key", "html", "empty", "blank", "none", "redirect", "truncated", "slow"],
)
def test_what_is_no_answer_is_said_and_the_key_is_not(server, answer, message):
    server.script.append(answer)
    with pytest.raises(ModelError, match=message) as caught:
        ask(endpoint(server, retries=0, timeout_s=0.2), QUESTION)
    assert KEY not in str(caught.value)
    assert len(server.asked) == 1


def test_no_network():
    nowhere = Endpoint(url="http://127.0.0.1:9/v1", model="m", retries=1)
    with pytest.raises(ModelError, match=r"cannot be reached .* after 2 tries. Is the server up"):
        ask(nowhere, QUESTION, sleep=lambda _: None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "OPFORGE_MODEL_URL is not set"),
        ({"OPFORGE_MODEL_URL": "http://h/v1"}, "OPFORGE_MODEL is not set"),
        ({"OPFORGE_MODEL_URL": "file:///etc", "OPFORGE_MODEL": "m"}, "no http address"),
        ({"OPFORGE_MODEL_URL": f"http://u:{KEY}@h/v1", "OPFORGE_MODEL": "m"}, "name or password"),
        ({"OPFORGE_MODEL_URL": "http://h", "OPFORGE_MODEL": "m", "OPFORGE_MODEL_KEY": f"{KEY}\r\nX: y"}, "no header"),
    ],
)
def test_environments_that_name_no_model(given, message):
    with pytest.raises(UsageError, match=message) as caught:
        endpoint_from(given)
    assert KEY not in str(caught.value)


def test_the_key_is_not_shown():
    given = {"OPFORGE_MODEL_URL": "http://h/v1/", "OPFORGE_MODEL": "m", "OPFORGE_MODEL_KEY": KEY}
    assert KEY not in repr(endpoint_from(given))
    assert endpoint_from(given).key == KEY
    assert endpoint_from(given).address == "http://h/v1/chat/completions"
