"""Fine-tunes an open model on pairs: updates at any learning rate, compiled once for each width of a batch.

An encoder learns labels by a head of its own.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from limba.config import GenerationConfig, LossConfig, OptimizerConfig, ScheduleConfig
from limba.data.objectives.labels import labeled_row
from limba.data.packing import model_features
from limba.data.stream.placement import place_batch
from limba.data.vocabulary.special_ids import of_run
from limba.formats.names import flatten, unflatten
from limba.inference.encoded import of_each, outputs
from limba.inference.generate import Pair, Writer, features_of, fetched, input_ids, padded, prompt_ids, target_ids
from limba.inference.texts import whole_letters
from limba.model import Network
from limba.model.trees import Parameters
from limba.sharding.mesh import batch_sharding, replicated
from limba.training.checkpoints.initial import HEAD_OF_LABELS
from limba.training.losses import Sums
from limba.training.optimizer import make_optimizer
from limba.training.state import TrainState, state_shardings
from limba.training.step import Gradient, loss_sums, train_step

if TYPE_CHECKING:
    from limba.data.vocabulary.load import Vocabulary

WIDTHS = (32, 64, 96, 128, 192, 256, 384, 512)  # of a batch's rows; longer ones are padded to multiples of the last
READ_WIDTHS = WIDTHS[1::2]  # where texts are written; a T5's encoder is a small part of that work
FEWEST = 4  # batches of a width of its own, since compiling it takes as long as many steps
TARGET_STEP = 8  # a T5's targets are padded to a multiple
Batch = dict[str, Array]


class Part(NamedTuple):
    """A batch: the places of its pairs, and the widths that its rows are padded to, of inputs and of targets."""

    numbers: Sequence[int]
    widths: tuple[int, int]


class Tuning:
    """The training step of a run on copies of an open model's parameters: Adafactor, float32, dropout.

    The rate is an argument of the compiled step, so that all rates and seeds share it. A language model reads a pair
    from left to right.
    """

    def __init__(self, network: Network, params: Parameters, vocabulary: Vocabulary, dropout: float, num_rows: int):
        mesh = network.mesh
        assert mesh is not None
        self._network, self._mesh, self._params, self._vocabulary = network, mesh, params, vocabulary
        self._num_rows = num_rows
        network = Network(dataclasses.replace(network.config, scan_layers=True), mesh)  # compiles soon
        once = ScheduleConfig(base_learning_rate=1.0, factors="constant", warmup_steps=0)
        rule = make_optimizer(OptimizerConfig("adafactor", once), None)
        at_rate = lambda rate: optax.chain(rule, optax.scale(rate))
        shardings = state_shardings(network, at_rate(1.0), mesh, shard_update=False)
        gradient = Gradient(Network(dataclasses.replace(network.config, dropout_rate=dropout), mesh), LossConfig())

        def begin(params: Parameters) -> TrainState:
            return TrainState(jnp.zeros((), jnp.int32), jax.tree.map(jnp.copy, params), at_rate(1.0).init(params))

        def update(state: TrainState, batch: Batch, key: Array, rate: Array) -> tuple[TrainState, Array]:
            optimizer, schedule = at_rate(rate), lambda _: rate
            state, metrics = train_step(state, batch, key, gradient=gradient, optimizer=optimizer, schedule=schedule)
            return state, metrics["loss"]

        def sums(params: Parameters, batch: Batch) -> Sums:
            return loss_sums(network, LossConfig(z_loss=0.0), params, batch, None)

        self._begin = jax.jit(begin, out_shardings=shardings)
        self._update = jax.jit(update, donate_argnums=0, out_shardings=(shardings, replicated(mesh)))
        self._sums = jax.jit(sums)

    def begin(self, seed: int = 0, is_random: bool = False) -> TrainState:
        """Returns a new state with the model's parameters; the seed draws an encoder's new head, or all of them."""
        return self._begin(self._network.init(jax.random.key(seed)) if is_random else self._params)

    def pair(self, inputs: str, targets: str, lengths: tuple[int, int]) -> Pair:
        """Returns the ids of a pair, cut to so many tokens of inputs and of targets."""
        vocabulary, inputs = self._vocabulary, whole_letters(inputs)
        is_decoder, special = self._network.config.is_decoder_only, of_run(self._vocabulary, self._network.config)
        if is_decoder:
            read = prompt_ids(inputs, vocabulary, special)[: lengths[0]]
        else:
            read = input_ids(inputs, vocabulary, special, lengths[0])
        return read, target_ids(whole_letters(targets), vocabulary, special, lengths[1], follows=is_decoder)

    def parts(self, pairs: Sequence[Pair], order: np.random.Generator | None = None) -> list[Part]:
        """Returns batches of pairs of like lengths, in the order that is drawn, or the shorter ones first.

        Pairs are dealt by the widths that they need; those that fill no batch, or are fewer than a quarter of all or
        than FEWEST batches, are dealt with the next longer ones: each width is a program that is compiled. The order
        decides no width, so all seeds and epochs share the programs.
        """
        config = self._network.config
        is_decoder, longest = config.is_decoder_only or config.has_own_head, config.max_length
        sizes = list(map(self._size, pairs))
        dealt: dict[int, list[int]] = {}
        for number in range(len(pairs)) if order is None else order.permutation(len(pairs)).tolist():
            dealt.setdefault(_width(sizes[number], longest), []).append(number)
        parts, rest, targets = list[Part](), list[int](), 1
        fewest = max(len(pairs) / 4, FEWEST * self._num_rows)
        for width in sorted(dealt):
            rest += dealt[width]
            targets = max(targets, *(len(pairs[number][1]) for number in dealt[width]))
            whole = len(rest) if width == max(dealt) else len(rest) // self._num_rows * self._num_rows
            if len(rest) < fewest and width != max(dealt):
                continue
            widths = (width, width if is_decoder else -(-targets // TARGET_STEP) * TARGET_STEP)
            parts += [Part(rest[:whole][i : i + self._num_rows], widths) for i in range(0, whole, self._num_rows)]
            rest = rest[whole:]
        return parts if order is None else [parts[place] for place in order.permutation(len(parts))]

    def update(self, state: TrainState, pairs: Sequence[Pair], part: Part, rate: float, key: Array) -> TrainState:
        """Returns the state after a step on a batch; `key` is the run's own."""
        return self._update(state, self._placed(pairs, part), key, jnp.float32(rate))[0]

    def loss(self, params: Parameters, pairs: Sequence[Pair]) -> float:
        """Returns the nats per target token of pairs, ends included."""
        sums = [self._sums(params, self._placed(pairs, part)) for part in self.parts(pairs)]
        nats, tokens = (sum(float(fetched(each[name])) for each in sums) for name in ("nats", "tokens"))
        return nats / tokens

    def write(self, params: Parameters, pairs: Sequence[Pair], max_tokens: int) -> list[str]:
        """Returns what parameters write for the inputs of pairs, greedily."""
        inputs = [read for read, _ in pairs]
        config = GenerationConfig(max_tokens=max_tokens)
        writer = Writer(self._network, self._mesh, self._vocabulary, config, self._num_rows, with_prompt=False)
        if not self._network.config.is_decoder_only:  # padded to few widths, for which programs are compiled
            inputs = [np.pad(ids, (0, _width(len(ids), None, READ_WIDTHS) - len(ids))) for ids in inputs]
        return [samples[0].text for samples in writer.write_all(params, inputs)]

    def _placed(self, pairs: Sequence[Pair], part: Part) -> Batch:
        features = self._features([pairs[number] for number in part.numbers])
        return place_batch(_widened(features, part.widths), batch_sharding(self._mesh))

    def _size(self, pair: Pair) -> int:
        return len(pair[0]) + self._network.config.is_decoder_only * (len(pair[1]) - 1)

    def _features(self, pairs: Sequence[Pair]) -> dict[str, np.ndarray]:
        return features_of(self._network, pairs, self._num_rows)


class HeadTuning(Tuning):
    """As `Tuning`, of an encoder with a new head, its kind and its labels: a pair is a text's ids and its labels'."""

    def __init__(
        self, encoder: Network, params: Parameters, vocabulary: Vocabulary, dropout: float, num_rows: int,
        head: Sequence[str],
    ):  # fmt: skip
        config = dataclasses.replace(encoder.config, head=head[0], labels=tuple(head[1:]))
        super().__init__(Network(config, encoder.mesh), params, vocabulary, dropout, num_rows)
        self._row_of = functools.cache(functools.partial(labeled_row, vocabulary, head))

    def begin(self, seed: int = 0, is_random: bool = False) -> TrainState:
        kept, drawn = flatten(self._params), flatten(self._network.init(jax.random.key(seed)))
        is_new = lambda name: is_random or name.startswith(HEAD_OF_LABELS) or name not in kept
        return self._begin(unflatten({name: leaf if is_new(name) else kept[name] for name, leaf in drawn.items()}))

    def pair(self, inputs: str, targets: str, lengths: tuple[int, int]) -> Pair:
        """Returns the ids of a text, cut to so many tokens, and of its label, or its words' tags, as `labeled` does."""
        row = self._row_of(lengths[0])({"inputs": whole_letters(inputs).encode(), "targets": targets.encode()})
        return row["inputs"], row["targets"]

    def write(self, params: Parameters, pairs: Sequence[Pair], max_tokens: int) -> list[str]:
        """Returns the likeliest labels, with a space between those of words, or the score."""
        compute = functools.partial(outputs, self._network, params)
        rows = of_each(compute, [ids for ids, _ in pairs], self._num_rows, self._mesh)
        if not (names := self._network.config.labels):
            return [str(float(row[0, 0])) for row in rows]
        best = [row[np.flatnonzero(labels)].argmax(axis=-1) for row, (_, labels) in zip(rows, pairs, strict=True)]
        return [" ".join(names[number] for number in numbers) for numbers in best]

    def _size(self, pair: Pair) -> int:
        return len(pair[0])

    def _features(self, pairs: Sequence[Pair]) -> dict[str, np.ndarray]:
        width = max(len(ids) for ids, _ in pairs)
        sides = {"inputs": [ids for ids, _ in pairs], "targets": [np.pad(n, (0, width - len(n))) for _, n in pairs]}
        return model_features({name: padded(side, self._num_rows) for name, side in sides.items()}, num_predicted=0)


def _width(size: int, longest: int | None, widths: Sequence[int] = WIDTHS) -> int:
    width = next((width for width in widths if width >= size), -(-size // widths[-1]) * widths[-1])
    return width if longest is None else min(width, max(size, longest))


def _widened(features: Mapping[str, np.ndarray], widths: tuple[int, int]) -> dict[str, np.ndarray]:
    """Returns features with rows of these widths, which hold all of their tokens."""
    found = {}
    for name, rows in features.items():
        width = widths[0] if name.startswith("encoder_") else widths[1]
        found[name] = np.pad(rows[:, :width], [(0, 0), (0, max(0, width - rows.shape[1]))])
    return found
