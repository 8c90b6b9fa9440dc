"""Cheats that need a GPU, and honest kernels beside them: `python scripts/redteam_gpu.py --help`."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests.redteam.gpu_lanes import main  # noqa: E402

if __name__ == "__main__":
    raise SystemExit(main())
