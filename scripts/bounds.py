"""Sums of products in float32, in many orders, against definitions/bounds: the measurement that chose its constants.

    python scripts/bounds.py [SEED] [K...]
    python scripts/bounds.py repeated [SEED]
    python scripts/bounds.py returning [SEED]

For each length and distribution: the worst element and the root mean square, in units of eps * sqrt(k) * peak, of
honest orders of summation; of a tensor core that cuts off ("tensor core": 16 products at a time, one digit more than
float32), in units of eps * k * peak; and of TF32 factors, added exactly. `repeated`: sums of exp(x - max(x)) for x
in 16 bits, and for x that is 0 at nine of ten places, in units of eps * sqrt(sum of squares of how often each value
occurs) / LANES. `returning`: sums of n terms that return in the same order c times, in units of
eps * sqrt(c * n) * peak (definitions/attention/decode.py).
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from opforge.definitions.bounds.sums import EPSILON, LANES, peak_of_products
from opforge.runner.worker.inputs import DISTRIBUTIONS
from opforge.verify.extra.reduced_precision import cut_off, rounded

LENGTHS = (64, 65, 256, 1024, 4096, 28672)
ROWS = 16
KINDS = ("normal", "uniform", "offset", "skewed", "sparse", "constant_rows")
HALVES = (torch.bfloat16, torch.float16)


def in_turn(terms):
    """One term after another, each product exact (FMA): [..., k] -> [...]."""
    total = torch.zeros(terms.shape[:-1], dtype=torch.float32)
    for k in range(terms.shape[-1]):
        total = (total.double() + terms[..., k]).float()
    return total


def lanes(terms, count):
    """`count` strided accumulators, which meet in a tree."""
    padded = torch.nn.functional.pad(terms, (0, -terms.shape[-1] % count)).unflatten(-1, (-1, count))
    return tree(in_turn(padded.transpose(-1, -2)).double())


def parts(terms, count):
    """Split-K: parts that lie side by side, added one after another."""
    return in_turn(torch.stack([in_turn(part) for part in terms.tensor_split(count, dim=-1)], dim=-1).double())


def tree(terms):
    """Halves, and halves of halves."""
    total = terms.float()
    while total.shape[-1] > 1:
        total = torch.nn.functional.pad(total, (0, total.shape[-1] % 2))
        total = total[..., ::2] + total[..., 1::2]
    return total[..., 0]


def compensated(terms):
    """Kahan's sum."""
    total, lost = torch.zeros(terms.shape[:-1]), torch.zeros(terms.shape[:-1])
    for k in range(terms.shape[-1]):
        term = terms[..., k].float() - lost
        grown = total + term
        lost = (grown - total) - term
        total = grown
    return total


def tensor_core(terms, together=16, digits=25):
    """All of a step are aligned with the largest of them, cut off, added exactly, and cut off to float32."""
    total = torch.zeros(terms.shape[:-1], dtype=torch.float64)
    for first in range(0, terms.shape[-1], together):
        step = torch.cat([total[..., None], terms[..., first : first + together]], dim=-1)
        unit = 2.0 ** (step.abs().amax(dim=-1, keepdim=True).clamp(min=1e-300).log2().floor() - digits + 1)
        total = cut_off(((step / unit).trunc() * unit).sum(dim=-1), 24)
    return total


ORDERS = {
    "one after another": in_turn,
    "2 lanes": lambda terms: lanes(terms, 2),
    "32 lanes": lambda terms: lanes(terms, 32),
    "7 parts": lambda terms: parts(terms, 7),
    "tree": tree,
    "Kahan": compensated,
}


def repeated(seed: int) -> int:
    """Few values that occur often, by 8 and 32 accumulators: what chose REPEATED."""
    for count, rows in ((1024, 256), (2048, 256), (8192, 128), (16384, 32), (65536, 16), (263168, 8)):
        for kind, dtypes in {"normal": HALVES, "uniform": HALVES, "sparse": (torch.float32,)}.items():
            for dtype in dtypes:
                generator = torch.Generator().manual_seed(seed)
                x = DISTRIBUTIONS[kind]((rows, count), 1.0, generator).to(dtype).float()
                terms = (x - x.amax(dim=-1, keepdim=True)).exp()
                exact = terms.double().sum(dim=-1)
                squares = [row.unique(return_counts=True)[1].double().square().sum().sqrt() for row in x]
                unit = EPSILON * torch.stack(squares) / LANES
                shares = []
                for width in (8, 32):
                    lane_sums = torch.zeros(rows, width)
                    for step in terms.unflatten(-1, (-1, width)).unbind(1):
                        lane_sums += step
                    share = (lane_sums.double().sum(dim=-1) / exact - 1).abs() / unit
                    shares.append(f"{width} lanes {share.max().item():.2f}/{share.square().mean().sqrt().item():.2f}")
                print(f"n = {count:6} {str(dtype)[6:]:8} {kind:8}", "  ".join(shares), flush=True)
    return 0


def returning(seed: int) -> int:
    """A round of few terms again and again, one after another and by 8 accumulators: what errors of one round add up
    to.
    """
    generator = torch.Generator().manual_seed(seed)
    for one_round in (1, 2, 5, 16, 40):
        for count in (256, 4096, 16384):
            times = count // one_round
            terms = DISTRIBUTIONS["normal"]((400, one_round), 1.0, generator).double().repeat(1, times)
            peak = peak_of_products(terms, terms.new_ones(terms.shape[-1], 1))[0].squeeze(-1)
            unit, words = EPSILON * (times * terms.shape[-1]) ** 0.5 * peak, []
            for name, order in (("one after another", in_turn), ("8 lanes", lambda terms: lanes(terms, 8))):
                share = (order(terms).double() - terms.sum(dim=-1)).abs() / unit
                words.append(f"{name} {share.max().item():.3f}/{share.square().mean().sqrt().item():.3f}")
            print(f"n = {terms.shape[-1]:5} c = {times:5}", "  ".join(words), flush=True)
    return 0


def main() -> int:
    for word, measure in (("repeated", repeated), ("returning", returning)):
        if sys.argv[1:2] == [word]:
            return measure(int((sys.argv[2:] or ["0"])[0]))
    seed, lengths = int((sys.argv[1:] or ["0"])[0]), [int(word) for word in sys.argv[2:]] or LENGTHS
    generator = torch.Generator().manual_seed(seed)
    for k in lengths:
        for kind in KINDS:
            a, b = (DISTRIBUTIONS[kind]((ROWS, k), 1.0, generator).double() for _ in range(2))
            narrow = [rounded(factor, 11) for factor in (a, b)]
            words = []
            for name, order, (left, right), unit in (
                *((name, order, (a, b), k**0.5) for name, order in ORDERS.items()),
                ("tensor core", tensor_core, narrow, float(k)),
                ("TF32 factors", None, (a, b), k**0.5),
            ):
                terms = left[:, None, :] * right[None, :, :]
                exact, peak = terms.sum(dim=-1), peak_of_products(left, right.T)[0]
                found = (
                    (narrow[0][:, None, :] * narrow[1][None, :, :]).sum(dim=-1)
                    if order is None
                    else order(terms).double()
                )
                share = (found - exact).abs() / (EPSILON * unit * peak).clamp(min=1e-300)
                words.append(f"{name} {share.max().item():.3f}/{share.square().mean().sqrt().item():.3f}")
            print(f"k = {k:5} {kind:14}", "  ".join(words), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
