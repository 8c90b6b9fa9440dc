"""The report room: what it shows, what it must never show, and that nothing from a record becomes markup."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import random
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from opforge import report
from opforge.backends.shared_code import source_sha256
from opforge.cli.app import command_line
from opforge.core.definition.device import Ceiling, DeviceSpec
from opforge.core.definition.implementation import Config
from opforge.core.definition.operator import Case, Cost
from opforge.core.evidence.record import Environment, Record, from_json, to_json
from opforge.core.evidence.timing import Moment, Timing
from opforge.core.evidence.verdict import (
    Broken,
    Checked,
    Crash,
    LibraryFallback,
    Metrics,
    Mismatch,
    Pass,
    Statement,
    Timeout,
    Unsupported,
    Window,
)
from opforge.core.language.errors import UsageError
from opforge.registry import load
from opforge.report import Past, svg
from opforge.report.histogram import error_histogram
from opforge.report.markdown_tables import CHANGED, escaped
from opforge.report.roof_chart import roofs
from opforge.report.summary import sentences
from opforge.report.timing_evidence import over_run
from opforge.report.view import groups, timing_of

NAN = float("nan")
ISOLATION = "worker process, guarded shared memory"
CPU = Environment(
    device="Example CPU",
    host="Example CPU, 2 cores",
    facts={"cpu.model": "Example CPU", "python": "CPython 3.11", "version.torch": "2.13", "load.average_1m": "0.31"},
)
CASE = Case(name="odd_tail", axes={"lead": (7,), "cols": 129}, why="one past a block of 128", seed=2)
SPEC = DeviceSpec(
    name="Example CPU", kind="cpu", target="host", units=2, warp_size=1, vector_bytes=32, registers_per_unit=0,
    shared_bytes_per_unit=0, shared_bytes_per_block=0,
    threads_per_unit=0, blocks_per_unit=0, cache_bytes=32 << 20, memory_bytes=8 << 30, nominal_bytes_per_s=0.0,
    nominal_flops_per_s={}, capabilities=(), source="made up",
    ceilings=(
        Ceiling(name="copy", value=14e9, unit="B/s", measured_at="2026-01-02", how="256 MiB"),
        Ceiling(name="matrix_float32", value=120e9, unit="FLOP/s", measured_at="2026-01-02", how="1024^3"),
        Ceiling(name="matrix_bfloat16", value=60e9, unit="FLOP/s", measured_at="2026-01-02", how="1024^3"),
        Ceiling(name="call", value=1e-6, unit="s", measured_at="2026-01-02", how="torch.add"),
    ),
)  # fmt: skip


def metrics(
    worst: float = 0.3, max_abs: float = 1.2e-7, histogram: tuple[int, ...] = (900, 3, 10, 44, 120, 300, 260, 0, 0)
) -> Metrics:
    return Metrics(
        output="y", elements=903, max_abs=max_abs, mean_abs=1e-8, max_rel=1e-6, mean_rel=1e-7, l2_rel=1e-7,
        quantiles_abs=(1e-8, 5e-8, 1e-7), cosine=1.0, sqnr_db=140.0,
        max_ulp=1.5, worst_ratio=worst, worst_index=(6, 128), worst_expected=0.25, worst_actual=0.25, worst_bound=1e-6,
        histogram=histogram, kl=0.0,
    )  # fmt: skip


def passed(worst: float = 0.3, **changes: object) -> Pass:
    values = {
        "checked": (Checked(case=CASE, dtype="float32", metrics=(metrics(worst),)),),
        "not_taken": (("transposed", "takes rows, not strided"),),
        "isolation": ISOLATION,
        "statements": (Statement(name="deterministic", holds=True, detail="3 runs"),),
    }
    return Pass(**{**values, **changes})


def mismatch(**changes: object) -> Mismatch:
    values = {
        "case": CASE, "dtype": "float32", "output": "y", "index": (6, 128), "expected": 0.25, "actual": NAN,
        "tolerance": 3e-7, "wrong": 7, "total": 903,
        "window": Window(
            output="y", corner=(5, 126), expected=((0.5, 0.25, 0.125), (0.5, 0.25, 0.25)), actual=((0.5, 0.25, NAN),
            (0.5, 0.25, NAN)), wrong=((False, False, True),) * 2
        ),
        "shrunk_from": dataclasses.replace(CASE, axes={"lead": (70,), "cols": 1290}), "metrics": None,
        "isolation": ISOLATION,
        "law": None, "cause": "only columns from 128 on are wrong: the mask of the last block",
    }  # fmt: skip
    return Mismatch(**{**values, **changes})


def timing(median: float, *, spread: float = 0.01, samples: int = 41, seed: int = 0) -> Timing:
    rng = random.Random(seed)
    found = tuple(
        median * max(0.6, 1 + spread * rng.gauss(0, 0.74) + (0.3 * spread * 10 if rng.random() < 0.03 else 0))
        for _ in range(samples)
    )
    return Timing(
        samples_s=found,
        batch=10,
        timer="host",
        cache="warm",
        overhead_s=4e-8,
        terms="call",
        conditions=("threads 2 on 2 processors",),
    )


def record(implementation: str = "torch_eager", **changes: object) -> Record:
    values: dict[str, object] = {
        "id": f"{implementation}-id", "created_at": "2026-01-02T03:04:05.678+00:00", "operator": "softmax",
        "implementation": implementation,
        "backend": implementation.split("_")[0], "source_sha256": "ab" * 32, "workload": "attention_gpt2",
        "axes": {"lead": (12, 256), "cols": 256}, "scalars": {},
        "dtype": "float32", "device": "Example CPU", "config": Config(), "cost": Cost(flops=3_932_160,
        bytes_read=3_145_728, bytes_written=3_145_728), "verdict": passed(),
        "timing": timing(1e-3), "roof_s": 449e-6, "limiter": "copy", "environment": CPU, "run": "run1",
    }  # fmt: skip
    return Record(**{**values, **changes})


def sample_records() -> list[Record]:
    """A run as `opforge bench` leaves it on a machine without a GPU: every kind of verdict once, three operators, two
    dtypes.
    """
    found: list[Record] = []
    plans = {
        "softmax": ("attention_gpt2", {"lead": (12, 256), "cols": 256}, 5 * 786432, 786432, 1.0, "copy"),
        "layernorm": ("hidden_bert", {"lead": (16, 512), "cols": 768}, 8 * 6291456, 6291456, 1.0, "copy"),
        "matmul": ("mlp_gpt2", {"m": 256, "n": 3072, "k": 768}, 2 * 256 * 3072 * 768, 3342336, 0.5, "matrix"),
    }
    speeds = {
        "torch_eager": 0.42,
        "compile_default": 0.5,
        "cpp_vectorised": 0.78,
        "cpp_twopass": 0.76,
        "tilelang_onepass": 0.05,
        "cpp_naive": 0.02,
    }
    seed = 0
    for operator, (workload, axes, flops, elements, written, limiter) in plans.items():
        for dtype, itemsize in (("float32", 4), ("bfloat16", 2)):
            cost = Cost(flops=flops, bytes_read=elements * itemsize, bytes_written=int(elements * itemsize * written))
            roof = max(
                cost.bytes / 14e9, flops / (120e9 if dtype == "float32" else 60e9) if operator == "matmul" else 0.0
            )
            shared = {
                "operator": operator,
                "dtype": dtype,
                "axes": axes,
                "cost": cost,
                "roof_s": roof,
                "limiter": limiter if operator != "matmul" else f"matrix_{dtype}",
            }
            for name, share in speeds.items():
                seed += 1
                if (operator, name) in (("layernorm", "tilelang_onepass"), ("matmul", "cpp_twopass")):
                    continue
                own = share * (0.8 + 0.4 * random.Random(seed).random())
                spread = 0.26 if (operator, name, dtype) == ("softmax", "tilelang_onepass", "bfloat16") else 0.012
                found.append(
                    record(
                        name,
                        id=f"{seed}",
                        workload=workload,
                        timing=timing(roof / own, spread=spread, seed=seed),
                        verdict=passed(0.2 + 0.6 * random.Random(seed).random()),
                        **shared,
                    )
                )
            bare = {**shared, "axes": {}, "workload": "", "timing": None, "roof_s": None, "limiter": None}
            found.append(record("triton_onepass", id=f"t{seed}", **bare))
            found.append(
                record(
                    "cuda_block",
                    id=f"c{seed}",
                    verdict=Unsupported(
                        reason="torch sees no cuda device here; run this on a machine with an NVIDIA GPU"
                    ),
                    **bare,
                )
            )
            if operator == "layernorm" and dtype == "float32":
                found.append(record("tilelang_onepass", id="m1", verdict=mismatch(), **bare))
                found.append(
                    record(
                        "tilelang_twopass",
                        id="x1",
                        verdict=Crash(
                            case=CASE,
                            dtype=dtype,
                            status=-11,
                            stderr="loading\nSegmentation fault: address 0x10\n",
                            isolation=ISOLATION,
                        ),
                        **bare,
                    )
                )
            if operator == "matmul" and dtype == "bfloat16":
                found.append(
                    record(
                        "cpp_spin",
                        id="o1",
                        verdict=Timeout(case=CASE, dtype=dtype, limit_s=120.0, isolation=ISOLATION),
                        **bare,
                    )
                )
                found.append(
                    record(
                        "cpp_aliasing",
                        id="b1",
                        verdict=Broken(case=CASE, dtype=dtype, reason="input x was changed", isolation=ISOLATION),
                        **bare,
                    )
                )
    return found


class Page(HTMLParser):
    """Reads a page: every tag, its attributes, the text, and whether all tags close in order."""

    VOID = frozenset({"meta", "link", "br", "img", "input", "hr"})

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes <{self.open[-1:]}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def page(records: list[Record], **options: object) -> str:
    return report.html(records, **{"title": "opforge bench", "device": SPEC, **options})


HOSTILE = "<script>alert(1)</script>\"' onload=x \x1b[31m\x00\u202e"


def hostile_records() -> list[Record]:
    """Markup in every text that a record holds, and numbers that are none."""
    case = dataclasses.replace(CASE, name=HOSTILE, why=HOSTILE, distribution=HOSTILE)
    environment = Environment(device=HOSTILE, host=HOSTILE, facts={HOSTILE: HOSTILE, "way.x": HOSTILE})
    texts = {
        "operator": HOSTILE,
        "workload": HOSTILE,
        "backend": HOSTILE,
        "dtype": HOSTILE,
        "device": HOSTILE,
        "limiter": HOSTILE,
        "environment": environment,
        "axes": {HOSTILE: 3},
    }
    own = dataclasses.replace(timing(1e-3), conditions=(HOSTILE,), timer=HOSTILE)
    return [
        record(
            HOSTILE,
            id="1",
            timing=own,
            verdict=passed(not_taken=((HOSTILE, HOSTILE),), isolation=HOSTILE),
            config=Config(((HOSTILE, HOSTILE),)),
            **texts,
        ),
        record("torch_eager", id="2", timing=own, **texts),
        record(
            HOSTILE,
            id="3",
            timing=None,
            verdict=mismatch(case=case, cause=HOSTILE, output=HOSTILE, expected=NAN, tolerance=NAN, isolation=HOSTILE),
            **texts,
        ),
        record(
            HOSTILE,
            id="4",
            timing=None,
            verdict=Crash(case=case, dtype=HOSTILE, status=-6, stderr=HOSTILE * 3, isolation=HOSTILE),
            **texts,
        ),
        record(
            HOSTILE,
            id="5",
            timing=None,
            verdict=Broken(case=None, dtype=HOSTILE, reason=HOSTILE, isolation=HOSTILE),
            **texts,
        ),
        record(HOSTILE, id="6", timing=None, verdict=Unsupported(reason=HOSTILE), **texts),
        record(HOSTILE, id="7", timing=None, verdict=mismatch(law=HOSTILE, index=(), cause=HOSTILE), **texts),
    ]


@pytest.mark.parametrize("records", [[], sample_records(), hostile_records()], ids=["none", "sample", "hostile"])
def test_the_page_is_well_formed_and_needs_nothing_else(records):
    """One file that opens anywhere: no script, no request, every tag closed, every link inside the page."""
    read = Page(page(records))
    assert read.open == []
    names = {tag for tag, _ in read.tags}
    assert not names & {"script", "iframe", "object", "embed", "img", "form"}
    policy = next(attributes["content"] for tag, attributes in read.tags if attributes.get("http-equiv"))
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    ids = [attributes["id"] for _, attributes in read.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in read.tags:
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
        target = attributes.get("href")
        if target and tag != "link":
            assert target.startswith("#") and target[1:] in ids
        assert not any(name in ("src", "srcset", "action") for name in attributes)
    assert "url(" not in page(records) and "@import" not in page(records)


@pytest.mark.parametrize("records", [sample_records(), hostile_records()], ids=["sample", "hostile"])
def test_every_picture_is_xml_with_finite_numbers(records):
    """A single NaN in a path hides a whole picture without a word."""
    pictures = re.findall(r"<svg.*?</svg>", page(records), re.DOTALL)
    assert len(pictures) >= 4
    for picture in pictures:
        for node in ElementTree.fromstring(picture).iter():
            for name, value in node.attrib.items():
                if name not in ("aria-label", "href", "class"):
                    assert "nan" not in value.lower() and "inf" not in value.lower()


def test_text_of_a_record_stays_text():
    """A record may come from anybody; its words must not run in the reader's browser, terminal or spreadsheet."""
    text = page(hostile_records(), title=HOSTILE)
    assert "<script" not in text
    assert "<script>alert(1)</script>" in Page(text).text
    for face in (
        text,
        report.markdown(hostile_records()),
        report.csv_text(hostile_records()),
        report.benchmark_table(hostile_records()),
    ):
        assert "\x1b" not in face and "\x00" not in face and "\u202e" not in face
    assert "<script" not in report.markdown(hostile_records())
    for row in report.table(hostile_records()):
        assert all(
            text.isprintable() for text in (row.operator, row.implementation, row.verdict, row.detail, *row.notes)
        )
    assert all(cell.isprintable() for line in report.rows(hostile_records()).rows for cell in line.cells)


def test_the_same_records_give_the_same_page():
    """A report that differs from itself cannot be compared or kept under version control."""
    assert page(sample_records()) == page(sample_records())
    assert report.markdown(sample_records()) == report.markdown(sample_records())
    assert report.csv_text(sample_records()) == report.csv_text(sample_records())


def test_spreadsheets_get_no_formula():
    """A cell that begins with an equals sign is run when the file is opened."""
    rows = list(
        csv.DictReader(
            io.StringIO(
                report.csv_text(
                    [record("=cmd()", limiter="@SUM(A1)", workload="  +1", device="-2+3", dtype="\uff1dcmd()")]
                )
            )
        )
    )
    assert len(rows) == 1
    row = rows[0]
    assert row["implementation"] == "'=cmd()"
    assert row["limiter"] == "'@SUM(A1)"
    assert row["workload"] == "'+1"
    assert row["device"] == "'-2+3"
    assert row["dtype"] == "'\uff1dcmd()"
    assert float(row["median_s"]) == pytest.approx(1e-3, rel=0.05)


def test_csv_has_one_row_per_record_and_json_all_of_it():
    """JSON is the complete form: what it holds reads back as the same records."""
    records = sample_records()
    rows = list(csv.DictReader(io.StringIO(report.csv_text(records))))
    assert len(rows) == len(records)
    assert {row["id"] for row in rows} == {item.id for item in records}
    without_nan = [item for item in records if not isinstance(item.verdict, Mismatch)]
    assert [from_json(item) for item in json.loads(report.json_text(without_nan))] == without_nan
    back = next(
        item
        for item in (from_json(data) for data in json.loads(report.json_text(records)))
        if isinstance(item.verdict, Mismatch)
    )
    assert math.isnan(back.verdict.actual)


def test_no_time_without_a_pass():
    """A fast kernel with a wrong answer is not fast; the time that someone recorded for it is not shown anywhere."""
    wrong = record("cpp_wrong", verdict=mismatch(), timing=timing(12.34e-6, spread=0.0))
    records = [record(), wrong]
    assert timing_of(wrong) is None
    assert groups(records)[0].speedup(wrong) is None
    for face in (page(records), report.markdown(records), report.csv_text(records), report.benchmark_table(records)):
        assert "12.3 us" not in face and "1.234e-05" not in face
    row = next(row for row in report.table(records) if row.implementation == "cpp_wrong")
    assert (row.time, row.speedup, row.style, row.best) == ("", "", "bad", False)
    assert report.notes(wrong) == ("a time was recorded without a Pass; it is not shown: verify first",)


def test_a_speedup_needs_both_sides_in_one_run():
    """Two runs may have had two clocks, two loads, two machines."""
    eager, same = record(timing=timing(2e-3, spread=0.0)), record("cpp_fast", timing=timing(1e-3, spread=0.0))
    other = dataclasses.replace(same, run="run2", id="other")
    by_id = {item.id: group.speedup(item) for group in groups([eager, same, other]) for item in group.records}
    assert by_id == {"torch_eager-id": pytest.approx(1.0), "cpp_fast-id": pytest.approx(2.0), "other": None}
    assert groups([dataclasses.replace(eager, verdict=mismatch()), same])[0].speedup(same) is None
    assert groups([dataclasses.replace(eager, dtype="float16"), same])[1].speedup(same) is None
    assert "2.00x" in report.markdown([eager, same]) and "2.00x" not in report.markdown([other])


def test_what_cannot_be_told_apart_shares_the_lead():
    """A winner by less than the noise is no winner."""
    first, near, far = (
        record(name, timing=timing(seconds, spread=0.05, seed=3))
        for name, seconds in (("cpp_a", 1e-3), ("cpp_b", 1.001e-3), ("cpp_c", 2e-3))
    )
    assert [item.implementation for item in groups([far, near, first])[0].leaders] == ["cpp_a", "cpp_b"]
    assert [row.best for row in report.table([far, near, first])] == [True, True, False]


@pytest.mark.parametrize(
    ("timed", "words"),
    [
        (timing(1e-3, spread=0.3, samples=30), "unsteady: "),
        (timing(1e-3, samples=6), "only 6 samples"),
        (dataclasses.replace(timing(1e-3), overhead_s=2e-4), "the timing loop itself takes 20% of this"),
        (timing(1e-4), "of peak: data stayed in a cache"),
        (dataclasses.replace(timing(1e-3), samples_s=(1e-3, NAN)), "not every sample is a positive number"),
        (dataclasses.replace(timing(1e-3), samples_s=(0.0,) * 9), "not every sample is a positive number"),
    ],
)
def test_a_row_confesses_its_weakness(timed, words):
    """A weak number that looks like a strong one misleads; each confession says what to do."""
    found = report.notes(record(timing=timed))
    assert any(words in note for note in found)
    assert all(
        re.search(r"try --samples|larger workload|opforge machine|measure again|fix clocks", note) for note in found
    )
    assert any(words in line for line in report.confessions([record(timing=timed)]))
    assert (
        words in Page(page([record(timing=timed), record("cpp_steady", id="s")])).text
        or timing_of(record(timing=timed)) is None
    )


def test_a_suspect_time_leads_nothing():
    """A time that cannot be true is shown with the doubt beside it, and wins no comparison."""
    odd = record(
        "cpp_odd",
        timing=dataclasses.replace(
            timing(1e-6), suspect="faster than memory; renew the ceilings with: opforge machine"
        ),
    )
    group = groups([odd, record(), record("cpp_a", timing=timing(9e-4))])[0]
    assert [item.implementation for item in group.records] == ["cpp_a", "torch_eager", "cpp_odd"]
    assert [item.implementation for item in group.leaders] == ["cpp_a"]
    assert group.speedup(odd) is None
    assert report.notes(odd)[0].startswith("suspect: faster than memory")
    assert groups([odd])[0].leaders == ()
    assert "no time here can be trusted" in Page(page([odd])).text


def test_a_steady_row_has_nothing_to_confess():
    assert report.notes(record()) == ()
    assert report.notes(record(timing=None)) == ()


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (passed(), "agrees with the oracle in 1 case, worst error 30% of its bound, 1 case not taken"),
        (passed(NAN), "worst error not a number of its bound"),
        (
            mismatch(),
            "wrong in case odd_tail: y[6, 128] is nan, expected 0.25 within 3e-07; only columns from 128 on are "
            "wrong: the mask of the last block",
        ),
        (
            mismatch(law="rows_sum_to_one", cause="a row sums to 2"),
            "wrong in case odd_tail: the law rows_sum_to_one does not hold: a row sums to 2",
        ),
        (
            Broken(case=CASE, dtype="float32", reason="input x was changed", isolation=ISOLATION),
            "broke the contract in case odd_tail: input x was changed",
        ),
        (
            Crash(case=None, dtype="float32", status=-11, stderr="a\nlast words\n", isolation=ISOLATION),
            "crashed with SIGSEGV: last words",
        ),
        (Crash(case=None, dtype="float32", status=70, stderr="", isolation=ISOLATION), "crashed with exit status 70"),
        (
            Timeout(case=CASE, dtype="float32", limit_s=120.0, isolation=ISOLATION),
            "gave no answer in case odd_tail within 120 s",
        ),
        (
            LibraryFallback(
                case=CASE, dtype="float32", reason="a library computes", evidence=("aten::mm x 3",), isolation=ISOLATION
            ),
            "refused by policy: a library computes",
        ),
        (Unsupported(reason="no nvcc; install it"), "not run: no nvcc; install it"),
    ],
)
def test_a_verdict_in_one_sentence(verdict, words):
    assert words in report.describe(verdict)
    assert "\n" not in report.describe(verdict)


def test_a_failure_shows_its_evidence():
    """Index, expected, actual, tolerance and cause are what one needs to begin with."""
    text = Page(page(sample_records())).text
    for words in (
        "y[6, 128]",
        "expected 0.25",
        "actual nan",
        "tolerance 3e-07",
        "7 of 903 elements",
        "the mask of the last block",
        "SIGSEGV",
        "Segmentation fault: address 0x10",
        "input x was changed",
    ):
        assert words in text
    assert page(sample_records()).index('id="failures"') < page(sample_records()).index('id="roofline"')


def test_what_policy_refuses_is_shown_with_its_evidence_and_counted_apart():
    """Right results from a library are no failure, and no kernel either."""
    refused = record(
        "triton_mm",
        timing=None,
        verdict=LibraryFallback(
            case=CASE, dtype="float32", reason="a library computes", evidence=("aten::mm x 3",), isolation=ISOLATION
        ),
    )
    text = Page(page([record(), refused])).text
    assert "2 implementations: 1 passed verification, 0 failed, 0 could not be run, 1 refused by policy." in text
    assert "evidence aten::mm x 3" in text
    assert report.table([refused])[0].style == "bad"


def test_interpreted_kernels_are_verified_and_not_timed():
    """The time of an interpreter says nothing about a kernel."""
    item = record("triton_onepass", timing=None, workload="")
    for face in (Page(page([record(), item])).text, report.markdown([record(), item])):
        assert "verified by interpreter, not timed" in face
    assert report.table([item])[0].verdict == "verified by interpreter, not timed"
    gpu = dataclasses.replace(CPU, facts={**CPU.facts, "device.name": "Example GPU"})
    assert report.table([dataclasses.replace(item, environment=gpu)])[0].verdict == "verified, not timed"
    modes = [
        dataclasses.replace(CPU, facts={**CPU.facts, name: "an emulator"}) for name in ("execution mode.npu", "way.npu")
    ]
    for emulated in modes:
        assert (
            report.table([record("npu_x", timing=None, environment=emulated)])[0].verdict
            == "verified by an emulator, not timed"
        )
    assert modes[0].fingerprint == modes[1].fingerprint, "earlier records of this machine stay in its histories"


def test_what_was_not_run_says_why_once():
    """Thirty lines with one reason are read by nobody."""
    text = Page(page(sample_records())).text
    assert (
        text.count("torch sees no cuda device here; run this on a machine with an NVIDIA GPU") == 6 + 1
    )  # each verification row, and the reason once
    assert sum("torch sees no cuda" in line for line in report.confessions(sample_records())) == 1
    assert sum("torch sees no cuda" in line for line in report.markdown(sample_records()).splitlines()) == 1


def test_every_timed_kernel_stands_on_the_roofline_and_every_sample_on_its_strip():
    """A picture that leaves points out is a choice the reader cannot see."""
    records = sample_records()
    text = page(records)
    timed = [item for item in records if timing_of(item)]
    assert text.count('class="mark ') == len(timed)
    drawn = sum(match.count("h0") for match in re.findall(r'<path d="([^"]*)" class="dots', text))
    assert drawn == sum(len(item.timing.samples_s) for item in timed)
    assert "copy 14.0 GB/s" in text and "matrix_float32 120 GFLOP/s" in text


def test_roofs_are_those_of_the_dtypes_at_hand_measured_before_nominal():
    """A float32 kernel is not to be judged by a bfloat16 ceiling, nor by a vendor's figure where there is a measured
    one.
    """
    assert [roof.name for roof in roofs(SPEC, ["float32"])] == ["copy", "matrix_float32"]
    bare = dataclasses.replace(
        SPEC, ceilings=(), nominal_bytes_per_s=20e9, nominal_flops_per_s={"float32": 2e11, "int8": 9e11}
    )
    assert [(roof.value, roof.memory, roof.nominal) for roof in roofs(bare, ["float32"])] == [
        (20e9, True, True),
        (2e11, False, True),
    ]
    assert "Dashed roofs are the vendor" in page([record()], device=bare)
    sizes = tuple(
        Ceiling(name=f"copy_{size}", value=value, unit="B/s", measured_at="2026-01-02", how="")
        for size, value in ((1 << 16, 60e9), (1 << 20, 30e9))
    )
    cached = roofs(dataclasses.replace(SPEC, ceilings=(*SPEC.ceilings, *sizes)), ["float32"])
    assert [(roof.name, roof.value) for roof in cached if roof.cached] == [("copy in cache", 60e9)]
    assert "copy in cache 60.0 GB/s" in page(
        [record()], device=dataclasses.replace(SPEC, ceilings=(*SPEC.ceilings, *sizes))
    )
    assert roofs(dataclasses.replace(bare, nominal_bytes_per_s=0.0, nominal_flops_per_s={}), ["float32"]) == ()


def test_without_a_device_no_roof_is_invented():
    text = Page(page([record()], device=None)).text
    assert "No description of this device was given, so no roofs are drawn" in text
    assert "GB/s" in text and "copy 14.0" not in text


def test_samples_far_from_the_median_are_counted_where_they_cannot_be_drawn():
    """Every sample is on the strip or counted at its edge."""
    far = dataclasses.replace(timing(1e-3), samples_s=(*(1e-3,) * 20, 9e-3, 20e-3))
    text = page([record(timing=far)])
    assert "+2 ▸" in text
    assert sum(match.count("h0") for match in re.findall(r'<path d="([^"]*)" class="dots', text)) == 20


def test_a_bar_too_long_is_cut_and_says_its_number():
    """A kernel that is a thousand times slower must not make the others invisible."""
    slow, fast = record("cpp_slow", timing=timing(2.0, spread=0.0)), record(timing=timing(1e-3, spread=0.0))
    text = page([slow, fast])
    assert 'class="tear"' in text and "2.00 s" in text
    assert 'class="tear"' not in page([fast])


def test_behind_each_time_stands_its_evidence():
    """Quantiles, memory, every clock that was tried, the machine over the run, the past, and the command that measures
    it again.
    """
    moments = tuple(
        Moment(
            at_s=place / 10,
            sm_mhz=1980.0 - 15 * place,
            power_w=300.0 + place,
            throttled=("power cap",) if place == 2 else (),
        )
        for place in range(4)
    )
    seen = {"cupti": 9e-4, "cuda_graph": 1e-3, "cuda_event": 1.1e-3}
    fields = {
        "timer": "cupti",
        "cache": "cold",
        "seen_by": seen,
        "launch_s": 4e-6,
        "extra_bytes": 3 << 20,
        "moments": moments,
    }
    mine = record("triton_onepass", id="0123456789abcdef", timing=dataclasses.replace(timing(9e-4), **fields))
    past = Past(
        medians_s=(1e-3, 1e-3, 9e-4), levels=((0, 2, 1e-3), (2, 3, 9e-4)), words="3 timings, 10% faster since Monday"
    )
    page = report.html([mine, record("torch_eager")], title="t", pasts={mine.id: past})
    for words in (
        "opforge records rerun 0123456789ab",
        "opforge bench softmax --implementation triton_onepass --workload attention_gpt2 --dtype float32",
        "CUPTI 900 us, graph 1.00 ms, events 1.10 ms; launch 4.00 us",
        "+ 3.00 MiB workspace",
        "workspace not seen here",
        "1935 to 1980 MHz",
        "red: clocks held back",
        "3 timings, 10% faster since Monday",
        'href="#record-0123456789abcdef"',
        'id="record-0123456789abcdef"',
    ):
        assert words in page, words


def test_a_quantity_that_hardly_moves_is_drawn_flat():
    """A picture must not make a storm of nothing; a single look is no line."""
    calm, storm = (
        over_run(tuple(Moment(at_s=float(place), sm_mhz=1980.0 - step * (place % 2)) for place in range(6)))
        for step in (2, 200)
    )
    heights = [
        {part.split(" ")[1] for part in re.search('d="M([^"]*)"', picture)[1].split("L")} for picture in (calm, storm)
    ]
    assert max(map(float, heights[0])) - min(map(float, heights[0])) < 2
    assert max(map(float, heights[1])) - min(map(float, heights[1])) > 7
    assert over_run((Moment(at_s=0.0, load=1.0),)) == ""


def test_the_readme_table_has_a_row_per_comparison_and_bolds_the_best():
    records = sample_records()
    lines = [line for line in report.benchmark_table(records).splitlines() if line.startswith("|")]
    assert lines[0] == "| operator | workload | dtype | torch | compile | tilelang | cpp | % of peak |"
    assert len(lines) == 2 + 6
    assert all(line.count("|") == 9 for line in lines)
    assert all("**" in line for line in lines[2:])
    older = [
        dataclasses.replace(item, run="run0", created_at="2025-01-01T00:00:00", timing=item.timing and timing(7.77))
        for item in records
    ]
    assert (
        report.benchmark_table(older + records)
        == report.benchmark_table(records)
        == report.benchmark_table(records + older)
    )
    assert report.benchmark_table([]).startswith("No timed records. Make some with: opforge bench")


def test_tables_mark_times_that_are_not_believed_and_those_of_an_earlier_source():
    """Unmarked, a suspect time seems beaten by the slow row that is bold, and an earlier kernel's time seems that of
    the kernel that is there.
    """
    odd = record("torch_eager", timing=dataclasses.replace(timing(1e-4), suspect="faster than memory"))
    sides = [odd, record("compile_default", timing=timing(9e-4)), record("cpp_twopass", timing=timing(1e-3))]
    head, _, _, _, row = report.benchmark_table(sides, {"cpp_twopass-id"}).splitlines()
    assert head.endswith(
        "cannot be told from; ?: more than the device was measured to be able to do, so it is not compared; †: "
        "the source, or shared code that it reaches, has changed since."
    )
    cells = [cell.strip() for cell in row.strip("|").split("|")][3:6]
    assert [cell[-3:] for cell in cells] == [") ?", ")**", ") †"]
    assert cells[1].startswith("**")
    text = report.implementation_table(sides, {"cpp_twopass-id"})
    rows = {
        cells[2]: cells
        for line in text.splitlines()[4:]
        if (cells := [cell.strip() for cell in line.strip("|").split("|")])
    }
    assert rows["cpp_twopass"][3:] == ["999 us †", "6.29 GB/s", "45% of memory", "0.90x"]
    assert rows["torch_eager"][3].endswith(" us ?") and rows["torch_eager"][6] == ""
    assert "999 us † | 900 us |" in re.sub(
        r" +",
        " ",
        report.ratio_table([record("torch_eager", timing=timing(9e-4)), sides[2]], "cpp", {"cpp_twopass-id"}),
    )
    plain = [
        report.benchmark_table(sides[1:]),
        report.implementation_table(sides[1:]),
        report.ratio_table(sides[1:]),
        report.verdict_table(sides),
    ]
    assert not any("†" in table or "?:" in table for table in plain)


def test_a_ratio_is_against_the_better_alternative_of_the_same_run():
    """The mean of both, or a time of another run, would flatter the kernel."""
    facts = {**CPU.facts, "host.copy_bytes_per_s": "2e10"}
    here = dataclasses.replace(CPU, facts=facts)
    sides = [
        record("torch_eager", timing=timing(3e-3)),
        record("compile_default", timing=timing(1.5e-3)),
        record("cpp_twopass", timing=timing(1e-3), environment=here),
    ]
    slower = [
        dataclasses.replace(item, dtype="bfloat16", timing=timing(2e-3) if item.backend == "cpp" else item.timing)
        for item in sides
    ]
    alone = [record("cpp_twopass", operator="relu", run="run2")]
    lines = [
        re.sub(r"\s*\|\s*", "|", line).strip("|").split("|")
        for line in report.ratio_table(sides + slower + alone).splitlines()
        if line.startswith("|")
    ]
    whole = [cells for cells in lines if cells[0] == "softmax"]
    assert [(cells[2], cells[6], cells[7]) for cells in whole] == [
        ("float32", "1.50x", "31%"),
        ("bfloat16", "**0.75x**", "16%"),
    ]
    assert [cells[:3] for cells in lines if cells[0] in ("float32", "bfloat16", "all")] == [
        ["float32", "1", "1.50x"],
        ["bfloat16", "1", "**0.75x**"],
        ["all", "2", "**1.06x**"],
    ]
    assert report.ratio_table(alone).startswith("No runs with cpp and an alternative. Make some with: opforge bench")
    # of all that are no alternatives the fastest counts, and less than 1 is marked
    own = [
        record("torch_eager", timing=timing(1e-3)),
        record("triton_onepass", timing=timing(1.25e-3)),
        record("cuda_onchip", timing=timing(1.1e-3)),
    ]
    (row,) = (line for line in report.ratio_table(own, "own").splitlines() if line.startswith("| softmax"))
    assert [cell.strip() for cell in row.strip("|").split("|")][3:8] == [
        "cuda_onchip",
        "1.10 ms",
        "999 us",
        "",
        "**0.91x**",
    ]


def test_the_verdict_table_shows_the_newest_of_each_and_what_failed():
    """A refusal of a workload hides no Pass; a refusal of everything hides the crash of a version that claimed more."""
    at = "2026-01-0{}T00:00:00.000+00:00".format
    crash = Crash(case=CASE, dtype="float32", status=-11, stderr="", isolation=ISOLATION)
    records = [
        record("cpp_twopass", created_at=at(1)),
        record("cpp_twopass", created_at=at(2), verdict=Unsupported(reason="too few rows"), timing=None),
        record("cpp_twopass", dtype="bfloat16", workload="", created_at=at(1), verdict=crash, timing=None),
        record("cuda_wide", workload="", created_at=at(1), verdict=crash, timing=None),
        record("cuda_wide", workload="", created_at=at(2), verdict=Unsupported(reason="no CUDA device"), timing=None),
    ]
    lines = report.verdict_table(records).splitlines()
    assert lines[0] == "Example CPU, 2026-01-01: 1 Pass of 2."
    assert [line for line in lines if line.startswith("| softmax")] == [
        f"| softmax | cpp_twopass | Pass ({len(passed().checked)}) | **Crash** |"
    ]
    assert report.verdict_table(records[3:]).startswith("No verdicts. Make some with: opforge verify --all")


def test_points_of_a_search_are_in_no_table():
    """Tuned once, a point that failed is no verdict on its implementation, and its time is no config's."""
    from opforge.cli.report import table_of

    records = sample_records()
    points = [dataclasses.replace(item, id=item.id[::-1], created_at="2099-01-01", trial=True) for item in records]
    for wanted in ({"verdicts": True}, {"ratios": "own"}, {"each": True}, {}):
        assert table_of([*records, *points], **wanted) == table_of(records, **wanted) != table_of(points, **wanted)


def test_a_later_quick_pass_hides_neither_a_failure_of_the_same_source_nor_a_verification_of_more_cases():
    """A bench verifies a selection of the cases before it times; that these pass takes nothing back of what a whole
    verification found.
    """
    at = "2026-01-0{}T00:00:00.000+00:00".format
    whole = passed(checked=passed().checked * 3)
    crash = Crash(case=CASE, dtype="float32", status=-11, stderr="", isolation=ISOLATION)

    def cell(*found: Record) -> str:
        return report.verdict_table(found).splitlines()[-1].strip("| ").split(" | ")[-1]

    assert (
        cell(record(created_at=at(1), workload="", verdict=crash, timing=None), record(created_at=at(2))) == "**Crash**"
    )
    assert (
        cell(record(created_at=at(1), workload="", verdict=whole, timing=None), record(created_at=at(2))) == "Pass (3)"
    )
    assert (
        cell(
            record(created_at=at(1), workload="", verdict=whole, timing=None),
            record(created_at=at(2), verdict=crash, timing=None),
            record(created_at=at(3)),
        )
        == "**Crash**"
    )
    assert (
        cell(
            record(created_at=at(1), verdict=crash, timing=None),
            record(created_at=at(2), workload="", verdict=whole, timing=None),
        )
        == "Pass (3)"
    )
    assert (
        cell(
            record(created_at=at(1), workload="", verdict=crash, timing=None),
            record(created_at=at(2), source_sha256="cd" * 32),
        )
        == "Pass (1)"
    )
    assert (
        report.verdict_table([record()], {"torch_eager-id"})
        .splitlines()[0]
        .endswith("1 Pass of 1. †: the source, or shared code that it reaches, has changed since.")
    )


def test_rows_of_one_code_or_adopted_bear_no_mark():
    """A comment, or another text that compiles to the same, takes nothing from what was measured (store.holds)."""
    from opforge.backends.program_hash import program_sha256
    from opforge.cli.report import of_other_sources
    from opforge.core.evidence.record import Adoption

    registry = load([])
    item = registry.implementation("softmax", "torch_eager")
    now, before = source_sha256(item.source), {"operator": "softmax", "source_sha256": "0" * 64}
    told = {
        "of_now": record(id="of_now", operator="softmax", source_sha256=now),
        "of_its_code": record(id="of_its_code", **before, code_sha256=program_sha256(item)),
        "adopted": record(id="adopted", **before),
        "adopted_once": record(id="adopted_once", **before),
        "of_other_code": record(id="of_other_code", **before, code_sha256="1" * 64),
        "unknown": record(id="unknown", **before),
        "gone": record("torch_gone", id="gone", **before),
    }
    adoptions = [
        Adoption(
            id=number, created_at="", record=name, operator="softmax", source_sha256=source, code_sha256="", how=""
        )
        for number, name, source in (("a", "adopted", now), ("b", "adopted_once", "2" * 64))
    ]
    changed = of_other_sources(list(told.values()), registry, adoptions)
    assert changed == {"adopted_once", "of_other_code", "unknown", "gone"}
    assert {
        name for name in told if name != "gone" and CHANGED in report.verdict_table([told[name]], changed)
    } == changed - {"gone"}
    # the verification of a source that was adopted is of what is there now: a later, quicker look takes nothing back
    whole = record(
        id="adopted",
        **before,
        created_at="2026-01-01T00:00:00.000+00:00",
        workload="",
        verdict=passed(checked=passed().checked * 3),
        timing=None,
    )
    later = record(id="later", operator="softmax", source_sha256=now, created_at="2026-01-02T00:00:00.000+00:00")
    assert "Pass (3)" in report.verdict_table([whole, later], (), {"adopted": {now}})
    assert "Pass (1)" in report.verdict_table([whole, later])


def test_markdown_tables_keep_their_columns():
    """A pipe in a name would move every number one column to the right."""
    text = report.markdown([record("cpp_a|b*c*", workload="w|x"), record()])
    assert "cpp_a\\|b\\*c\\*" in text
    rows = [re.sub(r"\\\|", "", line).count("|") for line in text.splitlines() if line.startswith("|")]
    assert set(rows) == {7}
    assert escaped("@all see http://x #1 <b>") == "&commat;all see http&colon;//x &num;1 &lt;b&gt;"


def test_verification_takes_all_workloads_together():
    """The worst error over bound of an implementation is its worst, wherever it was found."""
    wide = Checked(case=dataclasses.replace(CASE, name="wide"), dtype="float32", metrics=(metrics(0.91),))
    text = Page(page([record(), record(workload="vocabulary", id="2", verdict=passed(checked=(wide,)))])).text
    row = text[text.index("Verification of softmax") :]
    assert (
        "91%" in row
        and " 2 timed deterministic: yes " in row
        and "not taken: transposed (takes rows, not strided)" in row
    )


def test_the_error_histogram_counts_what_the_metrics_counted():
    text = error_histogram(passed().checked)
    assert "900 of 1637 elements" in text and "0.1 to 1: 260" in text
    assert error_histogram(()) == ""
    assert (
        error_histogram(
            passed(checked=(Checked(case=CASE, dtype="float32", metrics=(metrics(histogram=(0,) * 9),)),)).checked
        )
        == ""
    )


def test_a_coordinate_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match="no coordinate"):
        svg.coordinate(NAN)
    assert svg.decades(0.02, 30.0) == (0.1, 1.0, 10.0)
    assert svg.ticks(0.0) == (0.0,)


def test_configs_tell_records_of_one_implementation_apart():
    """A tuning run holds one implementation many times; its rows need names."""
    items = [record("cpp_a", id=str(block), config=Config((("block", block),))) for block in (64, 128)]
    assert {row.implementation for row in report.table(items)} == {"cpp_a [block=64]", "cpp_a [block=128]"}


def test_records_of_two_devices_are_kept_apart():
    """Roofs belong to one device; kernels of another do not stand under them."""
    other = record("cuda_block", device="Example GPU", id="g", timing=timing(1e-5), roof_s=9e-6)
    text = page([record(), record("cpp_a", id="a"), other])
    assert text.count("<h3>Example GPU</h3>") == 1 and text.count("<h3>Example CPU</h3>") == 1
    assert Page(text).text.count("no roofs are drawn") == 1
    assert "Example CPU, Example GPU · " in Page(text).text
    updated = record("cpp_b", id="u", environment=dataclasses.replace(CPU, facts={**CPU.facts, "torch": "another"}))
    assert '<p class="sub">Example CPU · ' in page([record(), updated]), "one device in two environments is one device"


def test_each_config_stands_with_its_own_time():
    """The rows of a tuning run share a name: the slowest time of all must not stand in each of them."""
    items = [
        record("cpp_a", id=str(block), config=Config((("block", block),)), timing=timing(block * 1e-5))
        for block in (64, 128)
    ]
    eager = record(timing=timing(128e-5))
    lines = [line.split("|") for line in report.implementation_table([*items, eager]).splitlines() if "cpp" in line]
    assert [(cells[4].strip(), cells[7].strip()) for cells in lines] == [("640 us", "2.00x"), ("1.28 ms", "1.00x")]


def test_a_suspect_time_has_no_ratio_and_is_nobodys_alternative():
    """Neither a kernel that is not believed nor a rival that is not believed says how fast the others are."""
    odd = [
        record(name, timing=dataclasses.replace(timing(1e-6), suspect="faster than memory"))
        for name in ("compile_default", "cpp_odd")
    ]
    records = [*odd, record(timing=timing(2e-3)), record("cpp_a", timing=timing(1e-3))]
    rows = {
        line.split("|")[3].strip(): line
        for line in report.implementation_table(records).splitlines()
        if line.startswith("| attention")
    }
    assert "ns ? |" in rows["cpp_odd"] and rows["cpp_odd"].endswith("|  |")
    assert rows["**cpp_a**"].endswith("| 2.00x |")
    assert report.benchmark_table([*odd[:1], *records[2:]]).count(") ? |") == 1


def test_the_roof_of_vector_arithmetic_stands_whatever_the_dtype():
    """A softmax in bfloat16 computes in float32: the matrix units' roof alone would be one that it can never reach."""
    vector = Ceiling(name="vector_float32", value=5e10, unit="FLOP/s", measured_at="2026-01-02", how="")
    assert "vector_float32" in [
        roof.name for roof in roofs(dataclasses.replace(SPEC, ceilings=(*SPEC.ceilings, vector)), ["bfloat16"])
    ]
    vendors = dataclasses.replace(SPEC, nominal_flops_per_s={"vector_float32": 5e10, "bfloat16": 9e11})
    assert [roof.name for roof in roofs(vendors, ["bfloat16"]) if not roof.memory] == [
        "matrix_bfloat16",
        "vector_float32 (vendor)",
    ]
    bare = dataclasses.replace(
        SPEC, ceilings=(), nominal_flops_per_s={"vector_float32": 5e10, "bfloat16": 9e11, "int8": 9e11}
    )
    assert [roof.name for roof in roofs(bare, ["bfloat16"]) if not roof.memory] == [
        "vector_float32 (vendor)",
        "bfloat16 (vendor)",
    ]


def test_a_ceiling_in_seconds_is_said_in_seconds():
    """1.33e-06 s is for a machine to read."""
    call = Ceiling(name="call", value=1.33e-6, unit="s", measured_at="2026-01-02", how="")
    assert (
        "1.33 us; ; 2026-01-02"
        in Page(page([record()], device=dataclasses.replace(SPEC, ceilings=(*SPEC.ceilings, call)))).text
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--dtype", "float12"), "No dtype named 'float12'"),
        (("--dtype", "float64"), "No records of float64 to report"),
        (("sofmax",), "No records of sofmax to report"),
        (("--run", "none"), "No records of run none to report"),
        (("--table", "--ratios", "cpb"), "No backend named 'cpb'. Did you mean 'cpp'"),
    ],
)
def test_a_report_of_nothing_says_what_was_asked(tmp_path, words, said):
    """Neither a trace nor an empty table: what was asked for, and where to look."""
    file = tmp_path / "records.jsonl"
    file.write_text(json.dumps(to_json(record(id="0" * 32))) + "\n")
    with pytest.raises(UsageError, match=said):
        command_line(["report"])(["report", "--from", str(file), *words], standalone_mode=False)


def test_what_a_table_shows_asks_for_the_table(tmp_path, monkeypatch, capsys):
    """--each alone wrote four files and showed nothing."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "records.jsonl"
    file.write_text(json.dumps(to_json(record(id="0" * 32))) + "\n")
    for words in (["--each"], ["--verdicts"], ["--ratios", "own"]):
        command_line(["report"])(["report", "--from", str(file), *words], standalone_mode=False)
        assert capsys.readouterr().out.strip() and not (tmp_path / "reports").exists()


def test_a_ratio_whose_sides_were_not_steady_is_unsure():
    """A bench on a busy machine must not open with "10 times the speed of torch eager": no headline, no mean, no leader
    is made of it.
    """
    shaken = dataclasses.replace(timing(1e-4), samples_s=(1e-4,) * 20 + (8e-4,) * 20)
    assert not shaken.steady and timing(1e-3).steady
    quick = record("cpp_shaken", timing=shaken)
    for members in (
        [quick, record()],
        [
            record("cpp_a", timing=timing(1e-4)),
            record(timing=dataclasses.replace(shaken, samples_s=tuple(10 * s for s in shaken.samples_s))),
        ],
    ):
        group = groups(members)[0]
        mine = next(item for item in members if item.implementation != "torch_eager")
        assert group.speedup(mine) is None and group.unsure(mine)
        text = Page(page(members)).text
        assert "the speed of torch eager" not in text and "no ratio is made of it" in text and "unsure" in text
    assert groups([quick, record()])[0].leaders == ()
    steady = [record("cpp_a", timing=timing(1e-4)), record()]
    assert groups(steady)[0].speedup(steady[0]) == pytest.approx(10) and not groups(steady)[0].unsure(steady[0])


def test_a_headline_of_times_on_a_cpu_says_in_which_processes_they_hold():
    """A third of users' processes give freed memory back, and a call there takes 3 to 6 times as long."""
    members = [record("cpp_a", timing=timing(1e-4)), record()]
    words = "in a process that keeps freed memory"
    assert words in " ".join(sentences(members, groups(members)))
    on_gpu = [
        dataclasses.replace(item, timing=dataclasses.replace(item.timing, timer="cuda_graph")) for item in members
    ]
    told = " ".join(sentences(on_gpu, groups(on_gpu)))
    assert "the speed of the best alternative" in told and words not in told
