"""Times as text, so that text order is time order."""

from __future__ import annotations

import datetime

from opforge.core.language.errors import UsageError


def instant(text: str) -> str:
    """A time in UTC with a fixed width, so that text order is time order.

    >>> instant("2026-11-21T10:00:00+01:00")
    '2026-11-21T09:00:00.000000+00:00'

    Raises UsageError for anything but an ISO 8601 time with a zone.
    """
    try:
        moment = datetime.datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError("it has no time zone")
        return moment.astimezone(datetime.UTC).isoformat(timespec="microseconds")
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{text!r:.60} is not a time ({error}). Write it as 2026-11-21T09:00:00+00:00.") from error
