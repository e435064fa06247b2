"""Fine-tunes a model on a task: each rate with one seed, the best of them with the others."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from limba.tools.results.kinds.learned import Learned, Parts, has_no_decoder
from limba.tools.results.outcome import Outcome

if TYPE_CHECKING:
    from limba.api import TrainedModel
    from limba.tools.results.protocol import Protocol

STEP = 16  # `max_tokens` and lengths are a multiple of it, so that tasks share compiled programs


class Learnt(NamedTuple):
    """The best parameters of a run, which its rate, its seed and its weights name, and their epoch."""

    run: tuple[float, int, bool]
    params: PyTree
    epoch: int


class FineTuning:
    """A task's runs on a model that is open. What a run has learned is kept until the next one, or while it is held."""

    def __init__(self, trained: TrainedModel, task: Learned, parts: Parts, protocol: Protocol):
        self.task, self.parts, self._trained, self._protocol = task, parts, trained, protocol
        inputs, targets = protocol.most_tokens
        if trained.network.config.positions == "learned":  # a row holds both
            longest = trained.network.config.max_length
            inputs, targets = min(inputs, longest - longest // 3), min(targets, longest // 3)
        self._lengths = (inputs, targets)
        self._head = task.of_head(parts) if has_no_decoder(trained.network.config) else ()
        self._last: Learnt | None = None
        self._held: Learnt | None = None

    @functools.cached_property
    def _tuning(self):
        return self._trained.tuning(self._protocol.dropout, self._protocol.batch_size, self._head)

    @functools.cached_property
    def pairs(self):
        """The ids of each part's examples; longer ones are cut."""
        parts = {"train": self.parts.train, "dev": self.parts.dev, "test": self.parts.test}
        texts = lambda each: self.task.labeled(each, self.parts) if self._head else (each.inputs, each.targets)
        cut = lambda name, lengths: [self._tuning.pair(*texts(each), lengths) for each in parts[name]]
        lengths, share = self._lengths, self._protocol.whole_percent
        if share < 100:
            known = [tuple(map(len, each)) for name in ("train", "dev") for each in cut(name, lengths)]
            inputs, targets = (-(-int(each) // STEP) * STEP for each in np.percentile(known, share, axis=0))
            lengths = min(lengths[0], inputs), min(lengths[1], targets)
        return {name: cut(name, lengths) for name in parts}

    @functools.cached_property
    def _max_tokens(self) -> int:
        longest = max(len(targets) for name in ("train", "dev") for _, targets in self.pairs[name])
        return min(self._lengths[1], -(-longest // STEP) * STEP)

    def outcome(self, rate: float, seed: int, on_test: bool, is_random: bool = False) -> Outcome:
        """Returns the figures of one run on the development or the test part; trains it unless it is kept.

        `is_random`: it begins with random weights of the model's shape.
        """
        run = rate, seed, is_random
        name, examples = ("test", self.parts.test) if on_test else ("dev", self.parts.dev)
        learnt = next((each for each in (self._last, self._held) if each and each.run == run), None)
        self._last = None  # room for another copy of the parameters
        self._last = learnt or self._learnt(*run)
        written = self._tuning.write(self._last.params, self.pairs[name], self._max_tokens)
        if self._head:
            written = [self.task.as_text(each, label) for each, label in zip(examples, written, strict=True)]
        judge = functools.partial(self.task.on_test, protocol=self._protocol) if on_test else self.task.judge
        found = judge(examples, written, self.parts)
        found.notes["epoch"] = self._last.epoch
        return found

    def hold(self) -> None:
        """Keeps what the last run has learned, and of the runs before nothing."""
        self._held, self._last = self._last, None

    def _learnt(self, rate: float, seed: int, is_random: bool) -> Learnt:
        """Returns the parameters of the epoch with the lowest loss on the development part, and its number."""
        state = self._tuning.begin(seed, is_random)
        key, order = jax.random.key(seed), np.random.default_rng(seed)
        best, lowest, best_epoch = state.params, 0.0, 0
        for epoch in range(1, self._protocol.epochs + 1):
            for part in self._tuning.parts(self.pairs["train"], order):
                state = self._tuning.update(state, self.pairs["train"], part, rate, key)
            loss = self._tuning.loss(state.params, self.pairs["dev"])
            if loss < lowest or epoch == 1:
                best, lowest, best_epoch = jax.tree.map(lambda leaf: leaf.copy(), state.params), loss, epoch
            elif epoch - best_epoch >= self._protocol.patience:
                break
        return Learnt((rate, seed, is_random), best, best_epoch)
