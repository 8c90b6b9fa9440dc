"""Every result is a record: kept, found again, exported and imported. Nothing that was recorded is changed."""

from opforge.store.answers import Health as Health, Point as Point
from opforge.store.lines_file import read_file as read_file, write_file as write_file
from opforge.store.records import Store as Store
from opforge.store.rows import Damaged as Damaged, point_of as point_of, read_lines as read_lines
