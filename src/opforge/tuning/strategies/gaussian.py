"""A Gaussian process over the features of a legal set: Matérn 5/2, a length scale for each feature (Rasmussen and
Williams, Gaussian Processes for Machine Learning, 2006, §4.2 and §5.4.1).

Written out in numpy because the search fits it at every few trials: see docs/tuning.md for what scikit-learn's takes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

ROOT5 = math.sqrt(5.0)
JITTER = 1e-5
SCALE_SPREAD = 1.0
"""Standard deviation of the prior of a length scale's logarithm, around 0: features go from 0 to 1."""
NOISE, NOISE_SPREAD = 1e-3, 2.0
"""Median of the prior of the noise, as a share of the variance, and the standard deviation of its logarithm."""
NOISE_RANGE = (math.log(1e-4), math.log(0.3))
SCALE_RANGE = (-3.0, 4.0)


def matern(squared: Any) -> Any:
    """The correlation at these squared distances."""
    far = ROOT5 * np.sqrt(np.maximum(squared, 0.0))
    return (1.0 + far + far * far / 3.0) * np.exp(-far)


class GaussianProcess:
    """Fitted to values at points; mean and standard deviation elsewhere. Kept between fits: the hyperparameters, which
    the next fit starts from.
    """

    def __init__(self, features: int) -> None:
        self.scales = np.zeros(features)
        self.noise = math.log(NOISE)

    def learn(self, points: Any, values: Any, steps: int = 8) -> None:
        """Move the hyperparameters uphill on the posterior: `steps` of Rprop (signs of the gradient, own step sizes).

        points   float array [n, features]
        values   float array [n]
        """
        points, centred = points.astype(float), values - values.mean()
        apart = (points[:, None] - points[None]) ** 2
        count, size = len(values), len(self.scales)
        scales, noise = self.scales.copy(), self.noise
        step, last = np.full(size + 1, 0.15), np.zeros(size + 1)
        best = (-math.inf, scales, noise)
        for turn in range(steps + 1):
            inverse_square = np.exp(-2 * scales)
            squared = apart @ inverse_square
            far = ROOT5 * np.sqrt(squared)
            fall = np.exp(-far)
            covariance = (1 + far + 5 / 3 * squared) * fall + np.eye(count) * (math.exp(noise) + JITTER)
            root = np.linalg.cholesky(covariance)
            inverse = np.linalg.inv(root)
            inverse = inverse.T @ inverse
            weights = inverse @ centred
            variance = max(float(centred @ weights) / count, 1e-12)
            posterior = (
                -count / 2 * math.log(variance)
                - float(np.log(np.diag(root)).sum())
                - float((scales**2).sum()) / 2 / SCALE_SPREAD**2
                - (noise - math.log(NOISE)) ** 2 / 2 / NOISE_SPREAD**2
            )
            if posterior > best[0]:
                best = (posterior, scales.copy(), noise)
            if turn == steps:
                break
            uphill = np.outer(weights, weights) / variance - inverse
            slope = np.empty(size + 1)
            slope[:-1] = 0.5 * np.einsum("ij,ijk->k", uphill * (5 / 3) * (1 + far) * fall, apart) * inverse_square
            slope[:-1] -= scales / SCALE_SPREAD**2
            slope[-1] = 0.5 * np.trace(uphill) * math.exp(noise) - (noise - math.log(NOISE)) / NOISE_SPREAD**2
            sign = np.sign(slope)
            step = np.clip(np.where(sign == last, step * 1.3, step * 0.5), 0.01, 0.6)
            last = sign
            scales = np.clip(scales + step[:-1] * sign[:-1], *SCALE_RANGE)
            noise = min(max(noise + step[-1] * sign[-1], NOISE_RANGE[0]), NOISE_RANGE[1])
        _, self.scales, self.noise = best

    def condition(self, points: Any, values: Any) -> None:
        """Take these values for known: [n, features] and [n]."""
        inverse_scale = np.exp(-self.scales)
        self.points = points.astype(float) * inverse_scale
        squared = ((self.points[:, None] - self.points[None]) ** 2).sum(axis=2)
        covariance = matern(squared) + np.eye(len(values)) * (math.exp(self.noise) + JITTER)
        self.inverse_root = np.linalg.inv(np.linalg.cholesky(covariance))
        self.mean = float(values.mean())
        self.whitened = self.inverse_root @ (values - self.mean)
        self.variance = max(float(self.whitened @ self.whitened) / len(values), 1e-8)

    def predict(self, points: Any) -> tuple[Any, Any]:
        """Mean and standard deviation at `points` [m, features]: float arrays [m]."""
        there = (points * np.exp(-self.scales)).astype(np.float32)
        known = self.points.astype(np.float32)
        squared = (there**2).sum(axis=1)[:, None] + (known**2).sum(axis=1)[None] - 2 * there @ known.T
        # float32: the correlations of some thousand points are most of what a trial costs
        solved = matern(squared) @ self.inverse_root.T.astype(np.float32)
        mean = self.mean + solved @ self.whitened.astype(np.float32)
        return mean, np.sqrt(self.variance * np.maximum(1 - (solved**2).sum(axis=1), 1e-6))


def expected_improvement(mean: Any, deviation: Any, best: float) -> Any:
    """By how much a value falls below `best`, where it does, in expectation (Jones, Schonlau and Welch, 1998)."""
    ahead = (best - mean) / deviation
    below = 0.5 * (1 + _erf(ahead / math.sqrt(2)))
    return deviation * (ahead * below + np.exp(-(ahead**2) / 2) / math.sqrt(2 * math.pi))


def _erf(value: Any) -> Any:
    """Error function, right to 1.5e-7 (Abramowitz and Stegun, 7.1.26)."""
    size = np.abs(value)
    t = 1 / (1 + 0.3275911 * size)
    tail = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return np.sign(value) * (1 - tail * np.exp(-(size**2)))
