"""The validation split of labeled texts: loss, accuracy and F1 of labels, correlation of scores, found pairs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from limba.config import RunConfig
from limba.data.stream.placement import place_batch
from limba.model import Batch, Network
from limba.model.trees import Parameters
from limba.sharding.agreement import compiled_together
from limba.training.label_losses import label_sums, scores_of

Figures = dict[str, float]


def names_of(head: str) -> tuple[str, ...]:
    """Returns the names of a head's figures."""
    own = {"score": ("pearson",), "vectors": ("accuracy",)}.get(head, ("accuracy", "f1"))
    return ("loss", *own, "target_tokens", "seconds")


def label_evaluation(
    config: RunConfig, batches: Sequence[Mapping[str, np.ndarray]], model: Network, sharding: jax.sharding.Sharding
) -> Callable[[Parameters], Figures]:
    """Returns the function from parameters to the figures of batches of labeled texts.

    `accuracy` is the share of right labels (of tags, of words; of vectors, of pairs found in their batch), `f1` the
    mean over the labels that are given or predicted of 2 TP / (2 TP + FP + FN), `pearson` the correlation of scores.
    """

    def sums_of(params: Parameters, batch: Batch) -> dict[str, Array]:
        sums, found = label_sums(model, config.loss, params, batch, None)
        if found is None:
            return sums
        outputs, labels, weights = found
        if model.config.head == "score":
            x, y = outputs[..., 0], scores_of(labels)
            powers = jnp.stack([jnp.sum(weights * each) for each in (x, y, x * x, y * y, x * y)])
            return {**sums, "powers": powers}
        size = len(model.config.labels)
        given, chosen = (jax.nn.one_hot(each, size) for each in (labels, jnp.argmax(outputs, axis=-1)))
        return {**sums, "confusion": jnp.einsum("bq,bqi,bqj->ij", weights, given, chosen)}

    compiled = compiled_together(jax.jit(sums_of), "the evaluation", config.step_timeout_seconds)

    def evaluate(params: Parameters) -> Figures:
        began = time.monotonic()
        sums = jax.device_get([compiled(params, place_batch(batch, sharding)) for batch in batches])
        total = jax.tree.map(lambda *parts: np.sum(parts, axis=0, dtype=np.float64), *sums)
        count = max(float(total["tokens"]), 1.0)
        figures = {"loss": float(total["loss"]) / count, "target_tokens": int(total["tokens"])}
        if "powers" in total:
            figures["pearson"] = pearson(total["powers"] / count)
        else:
            figures["accuracy"] = float(total["correct"]) / count
        if "confusion" in total:
            figures["f1"] = macro_f1(total["confusion"])
        return {**figures, "seconds": time.monotonic() - began}

    return evaluate


def macro_f1(confusion: np.ndarray) -> float:
    """Returns the mean F1 of the labels that occur, from counts [given, predicted].

    >>> macro_f1(np.array([[3, 1, 0], [0, 4, 0], [0, 0, 0]]))
    0.873015873015873
    """
    both = confusion.sum(axis=0) + confusion.sum(axis=1)
    return float(np.mean(2 * np.diag(confusion)[both > 0] / both[both > 0])) if both.any() else 0.0


def pearson(means: np.ndarray) -> float:
    """Returns the correlation, from the means of x, y, x², y² and xy; 0 where one of them does not vary.

    >>> x, y = np.array([0.0, 1, 2]), np.array([1.0, 3, 5])
    >>> round(pearson(np.array([each.mean() for each in (x, y, x * x, y * y, x * y)])), 6)
    1.0
    """
    x, y, xx, yy, xy = means.tolist()
    spread = max(xx - x * x, 0.0) * max(yy - y * y, 0.0)
    return (xy - x * y) / spread**0.5 if spread > 0 else 0.0
