"""Every result is a record: kept, found again, exported and imported. Nothing that was recorded is changed."""

from opforge.store.belief import (
    Beliefs as Beliefs,
    Evidence as Evidence,
    Installation as Installation,
    adopted_sources as adopted_sources,
    alike as alike,
    believed as believed,
    codes_said as codes_said,
    compatible as compatible,
    holds as holds,
)
from opforge.store.evidence_facts import Fact as Fact, fact_of as fact_of
from opforge.store.jsonl import append_file as append_file, read_file as read_file, write_file as write_file
from opforge.store.query_results import Health as Health, HistoryEntry as HistoryEntry
from opforge.store.records import Store as Store
from opforge.store.rows import (
    Damaged as Damaged,
    point_of as point_of,
    read_lines as read_lines,
    read_nouns as read_nouns,
)
