"""How everything is measured, in one place: a change of it is a new version, and asks for all results again."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass


@dataclass(frozen=True)
class Protocol:
    """The choices of all tasks. docs/development/results.md has their sources."""

    version: int = 9
    # Fine-tuning. The search tries each rate with each number of epochs, with one seed, and is judged by the
    # development part alone.
    learning_rates: tuple[float, ...] = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3)
    epochs: tuple[int, ...] = (3, 10)  # over which the rate falls to 0
    patience: int = 5  # epochs without a better figure on the development part, after which a training ends
    warmup_share: float = 0.1  # of the steps
    batch_size: int = 16
    weight_decay: float = 0.01
    most_tokens: int = 512  # of a text; longer ones are cut
    few_examples: int = 2_500  # fewer training examples than these have `seeds_of_few` seeds
    seeds_of_few: int = 5
    seeds: int = 3
    most_train: int | None = None  # examples of each task, evenly from its training part; None: all
    most_dev: int | None = None
    most_test: int | None = None
    dev_share: int = 10  # without a development part, one example in so many of the training part becomes it
    # intervals and comparisons
    resamples: int = 1_000  # of the bootstrap
    fewest_to_decide: int = 20  # test examples, or documents; of fewer the bootstrap sees too little to name a best
    most_blocks: int = 10_000  # of windows of a text, which are drawn together where there are more windows
    confidence: float = 0.95
    # bits per byte
    window_bytes: int = 1_000  # of a text that is read at once, cut between words
    gap_every: int = 20  # words; a T5's gap hides the last `gap_words` of so many
    gap_words: int = 3

    def num_seeds(self, num_train: int) -> int:
        """Returns how many seeds a task with so many training examples has."""
        return self.seeds_of_few if num_train < self.few_examples else self.seeds


PROTOCOL = Protocol()
# `--quick`: a first look on two cores; figures of it are compared with each other only. There is no search: the rate is
# the one of T5's own fine-tuning (Raffel et al. 2020, section 3.1.3).
QUICK = dataclasses.replace(
    PROTOCOL,
    learning_rates=(1e-3,),
    epochs=(5,),
    most_tokens=128,
    seeds_of_few=3,
    most_train=300,
    most_dev=150,
    most_test=500,
)
