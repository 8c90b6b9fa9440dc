"""What is shown of a long job where no terminal is, and what a trace holds."""

import json
import sys
import threading
import time
import types

from opforge.cli import progress
from opforge.core.language import spans


def test_silence_is_broken_by_a_line_that_says_what_is_under_way():
    """A log file is all that a user of a batch system sees: silence looks like a hang."""
    lines: list[str] = []
    begun = time.perf_counter()
    with progress.Lines(lines.append, silent_s=0.1), spans.span("verify", "softmax cuda_rows float32"):
        while len(lines) < 3 and time.perf_counter() - begun < 20:
            time.sleep(0.02)
    assert 3 <= len(lines) <= (time.perf_counter() - begun) / 0.1
    assert all("verify softmax cuda_rows float32" in line for line in lines)


def test_what_is_said_resets_the_silence_and_comes_no_faster_than_asked():
    """A thousand steps a second are no thousand lines; and a line just printed needs no second one."""
    lines: list[str] = []
    now = [0.0]
    with progress.Lines(lines.append, clock=lambda: now[0], silent_s=0.4) as shown:
        now[0] = 0.25
        for number in range(100):
            shown.say(f"step {number}", briefly_s=0.2)
        now[0] = 0.5
        time.sleep(0.5)
    assert [line.split("  ")[-1] for line in lines] == ["step 0"]


def test_ten_seconds_are_kept_with_the_time_that_a_busy_machine_takes_to_wake_a_thread():
    """What the manual promises is ten seconds between lines."""
    assert progress.SILENT_S <= 9


def test_a_trace_opens_in_perfetto(tmp_path):
    """Every lane is a thread with a name, and times are microseconds from the first."""
    with progress.tracing(tmp_path / "trace.json"):
        with spans.span("oracle", "case_a"):
            time.sleep(0.02)
        thread = threading.Thread(target=lambda: spans.kept("bind", "", "worker 7", 1.0, 2.0))
        thread.start()
        thread.join()
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    named = {event["args"]["name"]: event["tid"] for event in events if event["ph"] == "M"}
    whole = {event["cat"]: event for event in events if event["ph"] == "X"}
    assert whole["bind"]["tid"] == named["worker 7"] != whole["oracle"]["tid"]
    assert whole["bind"]["dur"] == 1e6
    assert 0.02e6 <= whole["oracle"]["dur"] < 1e6
    assert not spans.recorded()


def test_what_another_process_sends_as_spans_is_taken_for_what_it_is():
    """A worker's answer is foreign: what is no span is left out, and ends nothing."""
    spans.record()
    spans.adopt([["prepare", 1.0, 2.0], ["x", "y", 3.0], 7, ["z", float("nan"), 1.0], {"a": 1}, ["short"]], "worker 1")
    spans.adopt("nothing", "worker 1")
    assert [(item.name, item.lane) for item in spans.stop()] == [("prepare", "worker 1")]


def test_nothing_is_kept_while_nothing_is_recorded():
    """A run of hours must not grow by its spans."""
    with spans.span("verify", "x"):
        assert spans.under_way()[-1][:2] == ("verify", "x")
    assert spans.under_way() == ()
    assert spans.stop() == ()


def test_every_verb_breaks_its_silence(monkeypatch, capsys):
    """A check of minutes said nothing until its end; only six verbs told what they do. A new verb has it as well."""
    from opforge.cli import app

    monkeypatch.setattr(progress.Lines.__init__, "__defaults__", (time.perf_counter, 0.1))
    told: list[str] = []

    def slow(json: bool = False) -> None:
        with spans.span("verify", "softmax cuda_rows float32"):
            begun = time.perf_counter()
            with progress.telling(quiet=json):
                while len(told) < 6 and time.perf_counter() - begun < 20:
                    time.sleep(0.02)
                    told.extend(capsys.readouterr().err.splitlines())
            # one of the two that are open speaks, every 0.1 s at most; and one line while the second was not open yet
            assert 6 <= len(told) <= (time.perf_counter() - begun) / 0.1 + 1

    monkeypatch.setitem(app.VERBS, "slow", "slow:slow")
    monkeypatch.setitem(sys.modules, "opforge.cli.slow", types.SimpleNamespace(slow=slow))
    app.command_line(["slow"])(["slow"], standalone_mode=False)
    assert told and all("softmax cuda_rows" in line for line in told), told


def test_json_keeps_quiet(monkeypatch, capsys):
    from opforge.cli import app

    monkeypatch.setattr(progress.Lines.__init__, "__defaults__", (time.perf_counter, 0.1))
    app._with_progress(lambda json: time.sleep(0.3), bars=False)(json=True)
    assert capsys.readouterr().err == ""
