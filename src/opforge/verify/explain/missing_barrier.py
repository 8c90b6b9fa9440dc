"""Where a barrier is missing: the line that reads shared memory which an earlier line writes, with none between.

The emulator shows that shared memory is read before it is written; its threads are plain code and have no lines. The
text has: what is read here is what was written last, in the order of the text.
"""

from __future__ import annotations

import re

DECLARED = re.compile(r"__shared__[^;=(]*?\b(\w+)\s*\[")
BARRIER = re.compile(
    r"__sync(threads|warp)\w*|\.\s*(sync|arrive_and_wait|wait)\s*\(|\bsync\s*\(|barrier|__pipeline_wait|cp_async_wait"
)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def missing_barrier(text: str) -> str | None:
    """Words that name both lines of the first such pair; None where the text shows none.

    >>> missing_barrier("__shared__ float s[32];\\ns[i] = x[i];\\ny[i] = s[31 - i];")
    'line 3 reads s[31 - i], which line 2 writes, and no barrier stands between them: add __syncthreads() before line 3'
    """
    plain = COMMENT.sub(lambda match: "\n" * match[0].count("\n"), text)
    names = set(DECLARED.findall(plain))
    if not names:
        return None
    access = re.compile(rf"\b({'|'.join(map(re.escape, sorted(names)))})\s*((?:\[[^\[\]]*(?:\[[^\]]*\][^\[\]]*)*\])+)")
    written: dict[str, tuple[int, set[str]]] = {}
    for number, line in enumerate(plain.splitlines(), start=1):
        if "__shared__" in line:
            continue
        if BARRIER.search(line):
            written.clear()
        stores = []
        for found in access.finditer(line):
            name, index = found[1], "".join(found[2].split())
            stored = re.match(r"\s*(?:[-+*/|&^]|<<|>>)?=(?!=)", line[found.end() :])
            if stored:
                stores.append((name, index))
            elif name in written and index not in written[name][1]:
                return (
                    f"line {number} reads {found[0].strip()}, which line {written[name][0]} writes, and no barrier "
                    f"stands between them: add __syncthreads() before line {number}"
                )
        for name, index in stores:
            written[name] = (number, {*written.get(name, (0, set()))[1], index})
    return None
