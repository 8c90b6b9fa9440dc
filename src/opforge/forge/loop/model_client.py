"""A language model behind any OpenAI-compatible endpoint: one question, one answer, with the tokens it took.

`OPFORGE_MODEL_URL` (ends in /v1, or in /chat/completions), `OPFORGE_MODEL` and, where one is needed,
`OPFORGE_MODEL_KEY` say where. The key goes into one header and nowhere else: no error and no repr shows it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from opforge.core.language.errors import OpforgeError, UsageError

LARGEST_ANSWER = 4 << 20
"""Bytes of a reply that are read: what is longer is no kernel."""

WAITED = (1.0, 4.0, 10.0)
"""Seconds before each further try, where the server does not say how long."""

LONGEST_WAIT_S = 60.0


class ModelError(OpforgeError):
    """A model that gave no usable answer: what happened, and what to do next.

    retried   how many further tries there were
    """

    def __init__(self, message: str, retried: int = 0) -> None:
        super().__init__(message)
        self.retried = retried


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where a model is asked. `timeout_s` is for one try, from the question to the last byte."""

    url: str
    model: str
    key: str = field(default="", repr=False)
    timeout_s: float = 120.0
    retries: int = 3

    @property
    def address(self) -> str:
        """The address that questions go to."""
        base = self.url.rstrip("/")
        return base if base.endswith("/chat/completions") else base + "/chat/completions"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a model said. Tokens are the server's counts; None where it gave none.

    finish   the server's word for why it ended: "stop"; "length" where it was cut off
    """

    text: str
    model: str
    finish: str
    prompt_tokens: int | None
    answer_tokens: int | None
    wall_s: float
    retried: int


def endpoint_from(environment: Mapping[str, str] | None = None) -> Endpoint:
    """The Endpoint that the environment names. Raises UsageError that says which variable is missing."""
    given = os.environ if environment is None else environment
    url, model = given.get("OPFORGE_MODEL_URL", "").strip(), given.get("OPFORGE_MODEL", "").strip()
    if not url or not model:
        missing = "OPFORGE_MODEL_URL" if not url else "OPFORGE_MODEL"
        raise UsageError(
            f"{missing} is not set, so there is no model to ask. Set OPFORGE_MODEL_URL (for example "
            "http://localhost:8000/v1) and OPFORGE_MODEL, and OPFORGE_MODEL_KEY where the server wants a key."
        )
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError("OPFORGE_MODEL_URL is no http address. Write for example http://localhost:8000/v1")
    if parts.username or parts.password:
        raise UsageError("OPFORGE_MODEL_URL has a name or password in it. Put the key into OPFORGE_MODEL_KEY.")
    key = given.get("OPFORGE_MODEL_KEY", "").strip()
    if not key.isascii() or not key.isprintable():
        raise UsageError("OPFORGE_MODEL_KEY has letters that no header can carry. Copy it again.")
    return Endpoint(url=url, model=model, key=key)


def ask(
    endpoint: Endpoint,
    messages: Sequence[Mapping[str, str]],
    *,
    temperature: float = 0.0,
    max_tokens: int | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Answer:
    """The model's Answer to `messages` ({"role": ..., "content": ...} each).

    Busy (429) and failing (5xx) servers and broken connections are asked again, at most `endpoint.retries` times.
    Raises ModelError where there is no answer, or one that is no chat completion, or an empty one.
    """
    body: dict[str, Any] = {"model": endpoint.model, "messages": list(messages), "temperature": temperature}
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    begun = time.monotonic()
    for tried in range(endpoint.retries + 1):
        reply, problem, wait = _tried(endpoint, json.dumps(body).encode())
        if reply is not None:
            return _answer(endpoint, reply, time.monotonic() - begun, tried)
        if wait is None or tried == endpoint.retries:
            raise ModelError(f"{problem} after {tried + 1} {'try' if tried == 0 else 'tries'}. {_next(wait)}", tried)
        sleep(min(wait or WAITED[min(tried, len(WAITED) - 1)], LONGEST_WAIT_S))
    raise AssertionError("the last try returns or raises")


def _next(wait: float | None) -> str:
    if wait is None:
        return "Look at OPFORGE_MODEL_URL, OPFORGE_MODEL and OPFORGE_MODEL_KEY."
    return "Is the server up, and this machine on its network? Try again later, or work without a model."


class _NoRedirects(HTTPRedirectHandler):
    """A redirect would carry the key to another host."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _tried(endpoint: Endpoint, body: bytes) -> tuple[bytes | None, str, float | None]:
    """(reply, "", None), or (None, what happened, seconds before a further try; 0: as usual, None: none)."""
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    if endpoint.key:
        headers["Authorization"] = f"Bearer {endpoint.key}"
    request = Request(endpoint.address, data=body, headers=headers, method="POST")
    host = urlsplit(endpoint.url).netloc
    ends = time.monotonic() + endpoint.timeout_s
    try:
        with build_opener(_NoRedirects).open(request, timeout=endpoint.timeout_s) as response:
            parts, size = [], 0
            # read1 returns what there is: a server that sends a byte at a time is noticed
            while part := response.read1(65536):
                parts.append(part)
                size += len(part)
                if size > LARGEST_ANSWER:
                    return None, f"{host} sent more than {LARGEST_ANSWER >> 20} MiB", None
                if time.monotonic() > ends:
                    return None, f"{host} was not done within {endpoint.timeout_s:g} s", 0.0
            if response.length:
                return None, f"{host} broke off its answer", 0.0
            return b"".join(parts), "", None
    except HTTPError as error:
        error.close()
        again = error.code == 429 or error.code >= 500
        return None, f"{host} said {error.code} {error.reason}", _seconds(error.headers) if again else None
    except TimeoutError:
        return None, f"{host} did not answer within {endpoint.timeout_s:g} s", 0.0
    except (URLError, OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        return None, f"{host} cannot be reached ({reason})", 0.0


def _seconds(headers: Any) -> float:
    try:
        return max(0.0, float(headers.get("Retry-After", "0")))
    except ValueError:
        # a date: the usual wait will do
        return 0.0


def _answer(endpoint: Endpoint, reply: bytes, wall_s: float, tried: int) -> Answer:
    host = urlsplit(endpoint.url).netloc
    try:
        content = json.loads(reply)
        choice = content["choices"][0]
        text = choice["message"]["content"]
        usage = content.get("usage") or {}
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise ModelError(
            f"{host} answered, but not with a chat completion. Does OPFORGE_MODEL_URL end in /v1?", tried
        ) from error
    if not isinstance(text, str) or not text.strip():
        raise ModelError(f"{host} answered with no text. Ask again, or another model (OPFORGE_MODEL).", tried)
    return Answer(
        text=text,
        model=str(content.get("model", endpoint.model)),
        finish=str(choice.get("finish_reason") or ""),
        prompt_tokens=_count(usage, "prompt_tokens"),
        answer_tokens=_count(usage, "completion_tokens"),
        wall_s=wall_s,
        retried=tried,
    )


def _count(usage: Any, name: str) -> int | None:
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
