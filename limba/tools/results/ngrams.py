"""An n-gram model of bytes, the floor of bits per byte and of minimal pairs."""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from limba.tools.results.files import letters
from limba.tools.results.protocol import PROTOCOL


@dataclass(frozen=True)
class Ngrams:
    """Counts of bytes after each context, interpolated by Witten and Bell (Chen & Goodman 1999, section 2.4).

    An order's share is the number of times its context was seen, the lower order's the number of different bytes after
    it; below all orders each of 256 bytes is alike.
    """

    order: int
    counts: dict[bytes, tuple[int, collections.Counter[int]]]  # in all, and of each byte

    def nats(self, text: str) -> float:
        """Returns -ln p of a text, which begins a line.

        >>> round(trained_on("aaaa", 2).nats("a"), 1) < round(trained_on("aaaa", 2).nats("b"), 1)
        True
        """
        data, total = b"\n" + text.encode("utf-8", "replace"), 0.0
        for place in range(1, len(data)):
            total -= math.log(self._probability(data[max(0, place - self.order + 1) : place], data[place]))
        return total

    def _probability(self, context: bytes, byte: int) -> float:
        probability = 1 / 256
        for start in range(len(context), -1, -1):  # from no context to the longest
            found = self.counts.get(context[start:])
            if found is None:
                break
            total, seen = found
            kinds = len(seen)
            probability = (seen[byte] + kinds * probability) / (total + kinds)
        return probability


def trained_on(text: str, order: int) -> Ngrams:
    """Returns the model of a text's lines with contexts of up to `order` - 1 bytes."""
    counts: dict[bytes, collections.Counter[int]] = collections.defaultdict(collections.Counter)
    data = b"\n" + text.encode("utf-8", "replace")
    for place in range(1, len(data)):
        for length in range(min(order, place + 1)):
            counts[data[place - length : place]][data[place]] += 1
    return Ngrams(order, {context: (seen.total(), seen) for context, seen in counts.items()})


def nats_of(rows: Sequence[Sequence[str]], train: str | None) -> np.ndarray:
    """Returns -ln p, [N, K], of K texts in each of N rows, by a model that has not read the first text of the row.

    It has read the lines of `train` but those that are the first text of a row, letter by letter. Without `train` there
    are two, one for each half of these texts, which has read the other half.
    """
    own = [letters(row[0]) for row in rows]
    firsts = {each: row[0] for each, row in zip(own, rows, strict=True)}
    if train is None:
        half = {each: place % 2 for place, each in enumerate(firsts)}
        parts = [[text for each, text in firsts.items() if half[each] != number] for number in (0, 1)]
    else:
        half, parts = dict.fromkeys(firsts, 0), [[line for line in train.splitlines() if letters(line) not in firsts]]
    evenly = lambda part: part[:: 1 + sum(map(len, part)) // PROTOCOL.ngram_train_letters]
    models = [trained_on("\n".join(evenly(part)), PROTOCOL.ngram_bytes) for part in parts]
    return np.array([[models[half[each]].nats(text) for text in row] for each, row in zip(own, rows, strict=True)])
