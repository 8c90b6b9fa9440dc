"""Writes the four faces of a report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from opforge.core.device import DeviceSpec
from opforge.core.record import Record


def write_reports(records: Sequence[Record], folder: Path, device: DeviceSpec | None, title: str = "opforge bench") -> list[Path]:
    """report.html, report.md, report.json and report.csv in `folder`; their paths."""
    from opforge.report import csv_text, html, json_text, markdown

    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "report.html": html(records, title=title, device=device),
        "report.md": markdown(records),
        "report.json": json_text(records),
        "report.csv": csv_text(records),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]
