"""Which corpus of a mixture a token is from: each token carries the number of its task until its batch is taken.

The number stands in the upper bits of the token's id, so that rows, packed or not, are read ahead, saved and resumed
as all others are. Runs that began without it keep plain ids.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

ID_BITS = 24  # of a token's int32; no vocabulary has 16 million pieces
MOST_TASKS = 127  # whose numbers, from 1, fit into the other bits


def marked(example: Mapping[str, tf.Tensor], number: int) -> dict[str, tf.Tensor]:
    """Returns the features, int32 [L] each, with the number of a task in each token; padding stays 0."""
    found = dict(example)
    for name, tokens in example.items():
        if tokens.dtype.is_integer:
            tokens = tf.cast(tokens, tf.int32)
            found[name] = tf.where(tokens == 0, 0, tokens + (number << ID_BITS))
    return found


def unmarked(
    rows: Mapping[str, np.ndarray], names: Mapping[str, int], num_tasks: int
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Returns (the rows with plain ids, the tokens of each task in them, int64 [num_tasks]).

    `names` are those of the features whose tokens are marked.

    >>> rows, counts = unmarked({"targets": np.array([[7 + (2 << 24), 1 + (1 << 24), 0]], np.int32)}, {"targets": 3}, 2)
    >>> rows["targets"].tolist(), counts.tolist()
    ([[7, 1, 0]], [1, 1])
    """
    plain, counts = dict(rows), np.zeros(num_tasks + 1, np.int64)
    for name in names:
        counts += np.bincount((rows[name] >> ID_BITS).ravel(), minlength=num_tasks + 1)
        plain[name] = rows[name] & ((1 << ID_BITS) - 1)
    return plain, counts[1:]
