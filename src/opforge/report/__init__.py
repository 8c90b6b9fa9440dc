"""Records and bounds into words and pictures. Functions return text; nothing here prints or writes."""

from opforge.report.device_table import device_lines as device_lines, device_page as device_page
from opforge.report.inspection_text import inspection_lines as inspection_lines
from opforge.report.markdown_tables import (
    benchmark_table as benchmark_table,
    implementation_table as implementation_table,
    markdown as markdown,
)
from opforge.report.page import html as html
from opforge.report.ratios import ratio_table as ratio_table
from opforge.report.record_text import describe as describe, notes as notes
from opforge.report.tabular import (
    Grid as Grid,
    Line as Line,
    TableRow as TableRow,
    confessions as confessions,
    csv_text as csv_text,
    json_text as json_text,
    kept_rows as kept_rows,
    rows as rows,
    table as table,
)
from opforge.report.timing_evidence import Past as Past, rerun as rerun
from opforge.report.verdict_table import verdict_table as verdict_table
from opforge.report.verification_page import (
    verification_page as verification_page,
    verification_rows as verification_rows,
)
