"""Baselines: what a user calls instead, timed also where it is not accurate, and said to be so."""

from __future__ import annotations

from dataclasses import replace

from opforge.core.definition.implementation import COMPARED_AS_IS, Implementation
from opforge.core.evidence.verdict import Broken, Checked, Inaccurate, LibraryFallback, Mismatch, Pass, Proof, Verdict
from opforge.timing import Candidate
from opforge.verify import PreparedCase


def as_baseline(implementation: Implementation, verdict: Verdict) -> Verdict:
    """The verdict; of a baseline whose file says that it is inaccurate, a Mismatch is what was said."""
    if isinstance(verdict, Mismatch) and implementation.inaccurate and implementation.backend in COMPARED_AS_IS:
        return Inaccurate(reason=implementation.inaccurate, found=verdict)
    return verdict


def on_the_workload(
    implementation: Implementation, proof: Proof, found: Checked | Mismatch | Broken | LibraryFallback
) -> Verdict:
    """What is said of an implementation, given its proof from the operator's cases, once it was run on the workload
    that is to be timed.
    """
    if isinstance(found, Mismatch):
        return as_baseline(implementation, found)
    if isinstance(found, Checked) and isinstance(proof, Pass):
        return replace(proof, checked=(*proof.checked, found))
    return proof if isinstance(found, Checked) else found


def tolerated(candidate: Candidate, found: Checked | Mismatch | Broken, prepared: PreparedCase) -> bool:
    """Whether what was found after timing is what was known before it: a baseline that is inaccurate, and has computed
    all the same.
    """
    if not isinstance(found, Mismatch) or not isinstance(candidate.proof, Inaccurate):
        return False
    # a call that leaves everything as it was has computed nothing, however inaccurate it may be
    left = prepared.arena.bytes().to(prepared.pristine.device)
    return not bool((left == prepared.pristine).all())
