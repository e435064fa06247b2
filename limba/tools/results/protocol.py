"""How everything is measured, in one place: a change of it is a new version, and asks for all results again."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass


@dataclass(frozen=True)
class Protocol:
    """The choices of all tasks. docs/results.md has their sources."""

    version: int = 6
    # fine-tuning: each rate is tried with the first seed, the rest of the seeds train with the best one
    learning_rates: tuple[float, ...] = (1e-4, 3e-4, 1e-3)
    epochs: int = 10  # at most
    patience: int = 2  # epochs without a lower loss on the development part
    batch_size: int = 32
    dropout: float = 0.1
    most_train: int | None = None  # examples of each task, evenly from its training part; None: all
    most_dev: int | None = None
    most_test: int | None = None  # figures have the interval that follows; None: all
    test_groups: int = 50  # that the interval leaves out in turn
    dev_share: int = 10  # without a development part, one example in so many of the training part becomes it
    most_tokens: tuple[int, int] = (512, 256)  # of inputs and targets; longer ones are cut
    whole_percent: float = 100.0  # of a task's examples are so short that they are not cut
    between_texts: str = " | "  # that are read together
    no_names: str = "none"  # what is written of a sentence without names
    # minimal pairs
    resamples: int = 1_000  # of the bootstrap
    confidence: float = 0.95
    # bits per byte
    window_bytes: int = 1_000  # of a text that is read at once, cut between words
    gap_every: int = 20  # words; a T5's gap hides the last `gap_words` of so many
    gap_words: int = 3


PROTOCOL = Protocol()
# `--quick`: a first look on two cores; figures of it are compared with each other only
QUICK = dataclasses.replace(
    PROTOCOL, learning_rates=(1e-3, 1e-2), epochs=6, most_train=300, most_dev=150, most_test=500, whole_percent=95.0
)
