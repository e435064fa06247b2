"""Text that a model writes: for a list of inputs, and into the gaps of a text."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, Key

from limba.config import GenerationConfig, InputError, LossConfig
from limba.data.streams import model_features, place_batch
from limba.data.vocabulary.load import num_sentinels, sentinel_ids
from limba.inference import search as decoding
from limba.model import Network
from limba.sharding.mesh import batch_sharding
from limba.training.losses import cross_entropy

EOS = 1
SENTINEL = re.compile(r"<extra_id_(\d+)>")
LENGTH_STEP = 32  # inputs are padded to a multiple of it


@functools.partial(jax.jit, static_argnames=("model", "config", "eos_id"))
def generate(
    model: Network,
    params: Any,
    inputs: Int[Array, "B K"],
    banned: Bool[Array | np.ndarray, " V"],
    config: GenerationConfig,
    eos_id: int = EOS,
    keys: Key[Array, " B"] | None = None,
) -> decoding.Generated:
    """Returns what the model writes for inputs padded with 0; `keys`, one per input, where it draws."""
    step, cache = model.cached_decoder(params, inputs, config.max_tokens)
    prompt = jnp.zeros((inputs.shape[0], 1), jnp.int32)  # T5 starts with its padding
    return decoding.generate(step, cache, prompt, banned, config, eos_id=eos_id, keys=keys)


def greedy(
    model: Network,
    params: Any,
    inputs: Int[Array | np.ndarray, "B K"],
    num_tokens: int,
    num_ids: int,
    eos_id: int = EOS,
) -> Int[Array, "B Q"]:
    """Returns the likeliest continuation token by token, 0 after the end of sequence.

    Ids from `num_ids` on, the rows that only pad the embedding, are never produced.
    """
    banned = jnp.asarray(decoding.banned_mask(model.config.vocab_size, num_ids))
    config = GenerationConfig(max_tokens=num_tokens)
    return generate(model, params, jnp.asarray(inputs), banned, config, eos_id).tokens[:, 0]


class Written(NamedTuple):
    """One text, its score and its ids, int32 [Q], as `decoding.Generated` defines them."""

    text: str
    score: float
    ids: np.ndarray


class Writer:
    """Writes text for inputs of any length, in batches of like lengths over all devices of the mesh.

    All processes call it with the same inputs, and all get the texts. Raises ConfigError where `num_rows` does not
    divide over the mesh.
    """

    def __init__(self, model: Network, mesh: Mesh, vocabulary: Any, config: GenerationConfig, num_rows: int):
        groups = mesh.shape["data"] * mesh.shape["fsdp"]
        if num_rows % groups:
            raise InputError(
                f"A batch of {num_rows} inputs does not divide over {groups} groups of devices; give a multiple."
            )
        self._model, self._vocabulary, self._config, self.num_rows = model, vocabulary, config, num_rows
        self._mesh, self._sharding = mesh, batch_sharding(mesh)
        sentinels = sentinel_ids(vocabulary, num_sentinels(vocabulary)) if config.ban_sentinels else []
        sentinels += sorted(getattr(vocabulary, "special_ids", ())) if config.ban_sentinels else []
        rows = model.config.vocab_size
        self._banned = decoding.banned_mask(rows, vocabulary.vocab_size, [*sentinels, *config.banned_ids])

    def batches(self, inputs: Sequence[np.ndarray], chosen: Iterable[int] | None = None) -> Iterator[list[int]]:
        """Yields the numbers of (chosen) inputs that go together: like lengths, the longest first."""
        order = sorted(
            range(len(inputs)) if chosen is None else chosen, key=lambda number: (-len(inputs[number]), number)
        )
        for start in range(0, len(order), self.num_rows):
            yield order[start : start + self.num_rows]

    def write(self, params: Any, inputs: Sequence[np.ndarray], numbers: Sequence[int]) -> list[list[Written]]:
        """Returns the texts of one batch, `num_samples` for each; what is drawn depends on an input's number alone."""
        width = -(-max(1, *map(len, inputs)) // LENGTH_STEP) * LENGTH_STEP  # few widths are few programs
        padded = np.zeros((self.num_rows, width), np.int32)
        for row, ids in enumerate(inputs):
            padded[row, : len(ids)] = ids
        keys = None
        if self._config.sample:
            all_numbers = np.zeros(self.num_rows, np.uint32)
            all_numbers[: len(numbers)] = numbers
            keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(self._config.seed), all_numbers)
        placed = jax.make_array_from_callback(padded.shape, self._sharding, lambda index: padded[index])
        eos = int(self._vocabulary.eos_id)
        found = generate(self._model, params, placed, self._banned, self._config, eos, keys)
        tokens, scores = fetched(found.tokens), fetched(found.scores)
        return [
            [
                Written(self._text(ids, eos), float(score), ids)
                for ids, score in zip(tokens[row], scores[row], strict=True)
            ]
            for row in range(len(inputs))
        ]

    def write_all(self, params: Any, inputs: Sequence[np.ndarray]) -> list[list[Written]]:
        """Returns the texts of all inputs, in their order."""
        found: list[list[Written]] = [[] for _ in inputs]
        for numbers in self.batches(inputs):
            for number, samples in zip(numbers, self.write(params, [inputs[i] for i in numbers], numbers), strict=True):
                found[number] = samples
        return found

    def score_all(self, params: Any, inputs: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> np.ndarray:
        """Returns ln p(targets | inputs) of each pair, float32 [n], in their order."""
        found = np.zeros(len(inputs), np.float32)
        for numbers in self.batches(inputs):
            pairs = [(inputs[i], targets[i]) for i in numbers]
            found[numbers] = log_likelihoods(self._model, params, self._mesh, pairs, self.num_rows)
        return found

    def _text(self, tokens: np.ndarray, eos: int) -> str:
        ids = [int(token) for token in tokens]
        ids = ids[: ids.index(eos)] if eos in ids else ids
        return self._vocabulary.decode([token for token in ids if token > 0])


def fetched(array: jax.Array) -> np.ndarray:
    """Returns a global array whole on every process."""
    if jax.process_count() == 1:
        return np.asarray(array)
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def join_infill(
    inputs: np.ndarray, targets: np.ndarray, sentinels: np.ndarray, vocabulary: Any, eos_id: int = EOS
) -> str:
    """Returns the corrupted text with each sentinel replaced by [what the targets put there].

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
    """Returns the corrupted text with each sentinel by its name, <extra_id_0> and so on."""
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


def encode(text: str, vocabulary: Any, length: int) -> np.ndarray:
    """Returns ids cut to the length, the end of sequence last; <extra_id_0> and so on are sentinels."""
    sentinels = sentinel_ids(vocabulary, num_sentinels(vocabulary))
    ids: list[int] = []
    for place, part in enumerate(SENTINEL.split(text)):  # its one group: every second part is a number
        if place % 2:
            if int(part) >= len(sentinels):
                raise InputError(f"A text holds <extra_id_{part}>, and the vocabulary {len(sentinels)} sentinels.")
            ids.append(sentinels[int(part)])
        elif part.strip():
            ids += vocabulary.encode(part)
    return np.asarray([*ids[: length - 1], int(vocabulary.eos_id)], np.int32)


@functools.partial(jax.jit, static_argnames=("model",))
def _log_likelihoods(model: Network, params: Any, batch: dict[str, Int[Array, "B L"]]) -> Float[Array, " B"]:
    logits = model.apply(params, batch)
    _, nats, _ = cross_entropy(logits, batch["decoder_target_tokens"], LossConfig(z_loss=0.0))
    return -jnp.sum(nats * batch["decoder_loss_weights"], axis=1)


def log_likelihoods(
    model: Network, params: Any, mesh: Mesh, pairs: Sequence[tuple[np.ndarray, np.ndarray]], num_rows: int
) -> np.ndarray:
    """Returns ln p(targets | inputs) of each pair of ids, float32 [n], n <= num_rows; the targets' end counts too."""
    rows = {}
    for place, name in enumerate(("inputs", "targets")):
        width = -(-max(1, *(len(pair[place]) for pair in pairs)) // LENGTH_STEP) * LENGTH_STEP
        rows[name] = np.zeros((num_rows, width), np.int32)
        for row, pair in enumerate(pairs):
            rows[name][row, : len(pair[place])] = pair[place]
    batch = place_batch(model_features(rows), batch_sharding(mesh))
    return fetched(_log_likelihoods(model, params, batch))[: len(pairs)]
