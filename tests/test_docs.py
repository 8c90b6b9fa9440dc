"""Pages that people read name what is there: links, commands and their options, implementations; the two READMEs say
the same.
"""

import importlib.util
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import typer

from opforge.cli.app import command_line
from opforge.registry import load

ROOT = Path(__file__).resolve().parent.parent
OPERATORS = {path.parent.name: path for path in sorted((ROOT / "src/opforge/ops").rglob("README.md"))}
NOTES = sorted((ROOT / "src/opforge/ops").rglob("NOTES.md"))
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")), *OPERATORS.values(), *NOTES]
TEMPLATE = ROOT / "src/opforge/forge/write/template/README.md.txt"


def written(page: Path) -> str:
    """A page without the tables that are made from records."""
    return re.sub(r"<!-- table:.*?<!-- end -->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def commands(text: str) -> list[list[str]]:
    """The commands of a page: code spans, and lines of code blocks, without their comments."""
    blocks = "\n".join(re.findall(r"^```(?:yaml)?\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE))
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))
    lines = [re.sub(r"^\s*(\$ |- run: |run: |entry: )?", "", line).split("  #")[0] for line in blocks.splitlines()]
    return [
        shlex.split(line)
        for line in (*lines, *spans)
        if re.match(r"(opforge|make) \S", line) and line.count("'") % 2 == 0
    ]


def mistake(words: list[str], verbs: dict) -> str:
    """What of a command is not there; empty where all is."""
    if words[0] == "make":
        targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
        return "" if words[1] in targets else f"make has no {words[1]}"
    rest = words[1:]
    while rest and rest[0] in ("--home", "--store"):
        rest = rest[2:]
    if not rest or rest[0] in ("…", "VERB", "--help", "--version"):
        return ""
    if rest[0] not in verbs:
        return f"no verb {rest[0]}"
    verb = verbs[rest[0]]
    if hasattr(verb, "commands"):
        if len(rest) < 2 or rest[1] not in verb.commands:
            return "" if rest[1:2] in ([], ["--help"]) else f"{rest[0]} has no {rest[1]}"
        verb = verb.commands[rest[1]]
    known = {name for option in verb.params for name in (*option.opts, *option.secondary_opts)} | {"--help"}
    return ", ".join(
        f"{rest[0]} has no {word}"
        for word in rest[1:]
        if re.match(r"--?[a-z]", word) and word.split("=")[0] not in known
    )


@pytest.mark.parametrize(
    "words, wanted", [([], ""), (["QUICK=1", "PARTS=kept", "LIMIT=120"], " --quick --parts kept --limit 120")]
)
def test_make_trust_asks_everything_unless_it_is_told_not_to(words, wanted):
    """A list of quick tests was named QUICK, so `make trust` was quick whatever was asked."""
    # what a make around these tests was given is not theirs
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in ("MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "QUICK")
    }
    told = subprocess.run(
        ["make", "-n", "trust", *words], cwd=ROOT, env=env, capture_output=True, text=True, check=True
    )
    asked = next(line for line in told.stdout.splitlines() if "scripts/trust.py" in line)
    assert asked.split("scripts/trust.py")[1].split() == wanted.split()


@pytest.fixture(scope="module")
def verbs():
    return typer.main.get_command(command_line()).commands


@pytest.fixture(scope="module")
def implementations():
    registry = load([])
    return {name: {item.name for item in registry.implementations(name)} for name in registry.names()}


def test_every_verb_speaks_json(verbs):
    """The README says so, and scripts rely on it."""
    actions = {
        f"{name} {action}".strip(): one
        for name, verb in verbs.items()
        for action, one in getattr(verb, "commands", {"": verb}).items()
    }
    assert [
        name
        for name, action in actions.items()
        if "--json" not in {option for parameter in action.params for option in parameter.opts}
    ] == []


def test_links_lead_somewhere():
    broken = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in PAGES
        for link in re.findall(r"\]\(([^)\s]+)\)", written(page))
        if not (page.parent / link.split("#")[0]).exists()
    ]
    assert broken == []


def test_commands_have_their_verbs_and_options(verbs):
    """A new user copies them line by line."""
    found = {page: commands(written(page)) for page in (*PAGES, TEMPLATE)}
    assert sum(map(len, found.values())) > 60 and found[TEMPLATE]
    assert [
        f"{page.relative_to(ROOT)}: {' '.join(words)}: {wrong}"
        for page, spoken in found.items()
        for words in spoken
        if (wrong := mistake(words, verbs))
    ] == []
    assert mistake(["opforge", "--home", "x", "bench", "squares", "--house", "x"], verbs) == "bench has no --house"
    assert mistake(["opforge", "model", "analyze", "x"], verbs) == "model has no analyze"


def test_messages_name_verbs_and_options_that_are_there(verbs):
    """An error ends with the next step, which has to be one."""
    said = [
        (path.relative_to(ROOT), shlex.split(re.sub(r"\{\w*\}", "", command)))
        for path in sorted((ROOT / "src/opforge").rglob("*.py"))
        for command in re.findall(
            r"(?:[a-z]: |[^`]`)(opforge [a-z-]+[^\"'`;.,()\n\\]*)", path.read_text(encoding="utf-8")
        )
    ]
    assert len(said) > 40
    assert [f"{path}: {' '.join(words)}: {wrong}" for path, words in said if (wrong := mistake(words, verbs))] == []


def test_pages_name_implementations_that_exist_and_leave_none_out(implementations):
    everything = set().union(*implementations.values())
    backends = "cuda|triton|tilelang|cpp|torch|library"
    # the map is made from the tree, and names functions too
    for page in set(PAGES) - {ROOT / "docs" / "map.md"}:
        named = set(re.findall(rf"`(?:\.\./(?:\.\./\w+/)?\w+/)?((?:{backends})_[a-z0-9_]+)`", written(page)))
        assert named <= everything | {"cuda_graph", "cuda_event"}, page
    for name, page in OPERATORS.items():
        assert {found for found in implementations[name] if found != "torch_compile"} <= set(
            re.findall(r"`(\w+)`", written(page))
        ), name


@pytest.fixture(scope="module")
def docs():
    """scripts/docs.py, which makes the pages."""
    spec = importlib.util.spec_from_file_location("docs_script", ROOT / "scripts" / "docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.campaign
def test_tables_are_those_of_the_records_and_of_the_sources(docs):
    """A kernel that changed is marked beside its time from then on."""
    stale = [
        str(page.relative_to(ROOT))
        for page in docs.pages_with_tables()
        if docs.with_tables(text := page.read_text(encoding="utf-8")) != text
    ]
    if (drawn := docs.picture()) and (ROOT / "docs/images/rows.svg").read_text(encoding="utf-8") != drawn:
        stale.append("docs/images/rows.svg")
    assert stale == [], "renew them with: make docs"


def test_signatures_are_those_of_the_definitions(docs):
    stale = [
        name
        for name, page in OPERATORS.items()
        if "<!-- signature -->" not in (text := page.read_text(encoding="utf-8"))
        or docs.with_signature(page, text) != text
    ]
    assert stale == [], "renew them with: make docs"


def test_both_readmes_say_the_same():
    """Sections, links, tables and commands; the words are for a reader."""
    english, chinese = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh-CN.md"))
    for pattern in (
        r"^(#+) ",
        r"^(<!-- .* -->)$",
        r"^\| [a-z_]+ \| .*$",
        r"^(?:\$ |\. )?(?:opforge|make) .*?(?=\s+#|$)",
    ):
        assert re.findall(pattern, english, flags=re.MULTILINE) == re.findall(pattern, chinese, flags=re.MULTILINE), (
            pattern
        )
    links = [set(re.findall(r"\]\(([^)]+)\)", text)) - {"README.md", "README.zh-CN.md"} for text in (english, chinese)]
    assert links[0] == links[1]


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md"])
def test_the_first_tables_speed_up_is_over_a_time_that_it_shows(page):
    """1.13 was Liger's time over ours, under the words "the better of the two", which were two others."""
    text = (ROOT / page).read_text(encoding="utf-8").split("--lead")[1].split("<!-- end -->")[0]
    rows = [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    head, _, *rows = rows
    ours, gain = head.index("opforge"), head.index("speed-up")
    assert len(rows) > 5
    for row in rows:
        shown = [float(cell.split()[0]) for cell in row[2:ours] if cell != "–"]
        assert {cell.split()[1] for cell in row[2 : ours + 1] if cell != "–"} == {"us"}
        # the ratio is of pairs, the times are medians
        assert min(shown) / float(row[ours].split()[0]) == pytest.approx(float(row[gain].rstrip("x")), rel=0.03)
