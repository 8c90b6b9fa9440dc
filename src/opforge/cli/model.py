"""`opforge model`, the table of its actions: what a whole model is made of, and what opforge can do for it."""

from __future__ import annotations

ABOUT = "A whole model: what it is made of, and what opforge can do for it."
ACTIONS = {
    "analyse": "model_analyse:analyse",
    "patch": "model_patch:patch",
    "compare": "model_compare:compare",
    "checklist": "model_checklist:checklist",
}
"""Each action's module in this room, and its function."""
