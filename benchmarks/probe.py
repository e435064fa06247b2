"""What an encoder knows of parts of speech before it is fine-tuned: `python -m benchmarks.probe MODEL TRAIN TEST`.

TRAIN and TEST are CoNLL-U files, such as UD_Romanian-RRT's dev and test. A multinomial logistic regression is fitted to
the frozen state of each word's first piece, and to that of the same network with random weights. Beside them stands the
tag that TRAIN gives most often. Intervals of 95 % are of 2,000 resamples of TEST's sentences; those of differences
resample both alike.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from limba.cli import program
from limba.cli.arguments import Parser
from limba.config import InputError, environment

if TYPE_CHECKING:
    from limba.inference.load import TrainedModel

Sentences = list[tuple[list[str], list[str]]]  # words, and their tags
STEPS, RATE, PENALTY = 400, 0.05, 1e-4  # of the regression: Adam on all words at once
RESAMPLES = 2_000
MOST_TOKENS = 512


def read(path: str) -> Sentences:
    """Returns the sentences of a CoNLL-U file with their universal parts of speech."""
    from limba.data.sources import FileSource

    source = FileSource(path, column={"inputs": "form", "targets": "upos"}, validation_percent=0.0)
    rows = (row.decode().split("\0") for row in source.rows_with_blanks("train"))
    return [(words.split(" "), tags.split(" ")) for words, tags in rows]


def states(model: TrainedModel, sentences: Sentences) -> list[np.ndarray]:
    """Returns each sentence's states of its words' first pieces, float32 [words, D]."""
    import jax

    from limba.inference.encoded import of_each, sentence_ids

    ids, starts = sentence_ids([words for words, _ in sentences], model.vocabulary, model.special_ids, MOST_TOKENS)

    @jax.jit
    def compute(tokens: jax.Array, lengths: jax.Array) -> jax.Array:
        real = np.arange(tokens.shape[1])[None] < lengths[:, None]
        batch = {"decoder_input_tokens": tokens, "decoder_target_tokens": tokens * real}
        return model.network.apply(model.params, batch, as_states=True).astype(np.float32)

    found = of_each(compute, ids, model.rows(32), model.mesh)
    return [row[at] for row, at in zip(found, starts, strict=True)]


def fitted(train: np.ndarray, tags: np.ndarray, test: np.ndarray, num_tags: int) -> np.ndarray:
    """Returns the likeliest tags of `test`, by a logistic regression of standardized states."""
    import jax
    import jax.numpy as jnp
    import optax

    mean, deviation = train.mean(axis=0), train.std(axis=0) + 1e-6
    scaled, optimizer = (train - mean) / deviation, optax.adam(RATE)

    def loss(weights: tuple[jax.Array, jax.Array]) -> jax.Array:
        logits = jnp.asarray(scaled) @ weights[0] + weights[1][None]
        nats = optax.softmax_cross_entropy_with_integer_labels(logits, tags).mean()
        return nats + PENALTY * jnp.sum(jnp.square(weights[0]))

    @jax.jit
    def step(weights: tuple[jax.Array, jax.Array], state: optax.OptState):
        updates, state = optimizer.update(jax.grad(loss)(weights), state)
        return optax.apply_updates(weights, updates), state

    weights = jnp.zeros((train.shape[1], num_tags)), jnp.zeros(num_tags)
    state = optimizer.init(weights)
    for _ in range(STEPS):
        weights, state = step(weights, state)
    return np.asarray(((test - mean) / deviation) @ weights[0] + weights[1][None]).argmax(axis=1)


def interval(right: np.ndarray, words: np.ndarray) -> tuple[float, float, float]:
    """Returns (share, lowest, highest) of right words, from counts by sentence; 95 % of the resamples lie between."""
    random = np.random.default_rng(0)
    picked = random.integers(0, len(words), (RESAMPLES, len(words)))
    shares = right[picked].sum(axis=1) / words[picked].sum(axis=1)
    return float(right.sum() / words.sum()), *np.quantile(shares, (0.025, 0.975)).tolist()


def probe(model: TrainedModel, train: Sentences, test: Sentences) -> dict[str, tuple[float, float, float]]:
    """Returns (share, lowest, highest) of right tags, and of the differences, by what gives them."""
    import jax

    names = sorted({tag for _, tags in train for tag in tags})
    number = {name: place for place, name in enumerate(names)}
    of_train = np.array([number[tag] for _, tags in train for tag in tags])
    of_test = np.array([number.get(tag, -1) for _, tags in test for tag in tags])
    sizes = np.array([len(tags) for _, tags in test])
    by_sentence = functools.partial(np.add.reduceat, indices=np.cumsum(sizes) - sizes)
    fresh = jax.jit(model.network.init)(jax.random.key(0))
    right = {"majority tag": by_sentence((of_test == np.bincount(of_train).argmax()).astype(int))}
    for name, params in (("random weights", fresh), ("encoder", model.params)):
        each = dataclasses.replace(model, params=params)
        both = [np.concatenate(states(each, rows)) for rows in (train, test)]
        right[name] = by_sentence((fitted(both[0], of_train, both[1], len(names)) == of_test).astype(int))
    found = {name: interval(counts, sizes) for name, counts in right.items()}
    for other in ("majority tag", "random weights"):
        found[f"encoder - {other}"] = interval(right["encoder"] - right[other], sizes)
    return found


def main(argv: Sequence[str]) -> None:
    parser = Parser("-m benchmarks.probe", __doc__ or "", "python")
    parser.add_argument("model")
    parser.add_argument("train")
    parser.add_argument("test")
    given = parser.parse_args(argv)
    with environment.quiet_imports():
        from limba.inference.load import load
    model = load(given.model)
    if not model.network.config.is_encoder:
        raise InputError(f"{given.model} is no encoder; give one that limba trained or transformers has as EuroBert.")
    print("| of the words | right, % | 95 % interval |\n| --- | --- | --- |")
    for name, (share, lowest, highest) in probe(model, read(given.train), read(given.test)).items():
        print(f"| {name} | {100 * share:.1f} | {100 * lowest:.1f} to {100 * highest:.1f} |")


if __name__ == "__main__":
    environment.set_variables()
    sys.exit(program.exit_code(main, sys.argv[1:]))
