"""The generator behind dropout, where no operator's case reaches: indices past 32 bits."""

import pytest

from opforge.core.philox import threshold, words

torch = pytest.importorskip("torch")

FAR = 2**34  # the first index whose block number needs the counter's upper half


def test_tensors_and_integers_give_the_same_words():
    """The reference runs on int64 tensors, whose products would overflow if they were not taken in halves."""
    index = torch.arange(97, dtype=torch.int64) * 3001 + FAR - 150_000
    assert words(index, 2**63 - 5).tolist() == [words(int(i), 2**63 - 5) for i in index]


def test_the_upper_half_of_the_counter_counts():
    """Were it dropped, a tensor of more than 2^34 elements would repeat its mask."""
    near, far = [words(i, 7) for i in range(64)], [words(i + FAR, 7) for i in range(64)]
    assert not set(near) & set(far)


def test_a_word_below_the_threshold_is_dropped_with_probability_p():
    """Six standard deviations of a binomial distribution."""
    count, p = 100_000, 0.3
    dropped = (words(torch.arange(count), 99) < threshold(p)).sum().item()
    assert abs(dropped - count * p) < 6 * (count * p * (1 - p)) ** 0.5
