"""The red team against the verifier: `make redteam`, or `python scripts/redteam.py --quick`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.redteam.campaign import main

if __name__ == "__main__":
    sys.exit(main())
