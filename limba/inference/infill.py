"""Corrupted texts with the gaps that a model filled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from limba.inference.generate import EOS


def join_infill(
    inputs: np.ndarray, targets: np.ndarray, sentinels: np.ndarray, vocabulary: Any, eos_id: int = EOS
) -> str:
    """Returns the corrupted text with each sentinel replaced by its [span] in the targets.

    `inputs` and `targets` are token ids of one example; padding and the end of sequence are left out.
    """
    order = {int(sentinel): i for i, sentinel in enumerate(sentinels)}
    spans: dict[int, list[int]] = {}
    current: list[int] | None = None
    for token in map(int, targets):
        if token in order:
            current = spans.setdefault(order[token], [])
        elif token not in (0, eos_id) and current is not None:
            current.append(token)
    return _joined(inputs, order, vocabulary, eos_id, lambda i: f"[{vocabulary.decode(spans.get(i, []))}]")


def masked_text(inputs: np.ndarray, sentinels: np.ndarray, vocabulary: Any, eos_id: int = EOS) -> str:
    """Returns the corrupted text with sentinels written as <extra_id_0> and so on."""
    order = {int(sentinel): i for i, sentinel in enumerate(sentinels)}
    return _joined(inputs, order, vocabulary, eos_id, lambda i: f"<extra_id_{i}>")


def _joined(
    inputs: np.ndarray, order: Mapping[int, int], vocabulary: Any, eos_id: int, gap: Callable[[int], str]
) -> str:
    text, plain = [], []
    for token in map(int, inputs):
        if token in order:
            text += [vocabulary.decode(plain), gap(order[token])]
            plain = []
        elif token not in (0, eos_id):
            plain.append(token)
    return " ".join(part for part in [*text, vocabulary.decode(plain)] if part)
