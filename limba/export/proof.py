"""The proof of a conversion: what was written is read back and must give the source's logits, loss and text.

Source and written weights both run through our own network in float32; where torch and transformers are
installed, the PyTorch folder runs through transformers too. Differences of logits are in units of the source's
largest logit where that is above 1: float32 keeps seven figures, not decimal places.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import logging
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from limba.config import ModelConfig
from limba.formats.huggingface import T5xView
from limba.formats.names import unflatten
from limba.inference.generate import EOS, greedy
from limba.model import Network

TOLERANCES = {"float32": 1e-4, "bfloat16": 2e-2}
NUM_TOKENS = 8  # of greedy text
NUM_TEXTS = 2  # that are written on greedily
ROW = 64  # input tokens at most
_LAYER = re.compile(r"/layers_(\d+)/")
TEXTS = (
    "Toate ființele umane se nasc libere și egale în demnitate și în drepturi. Ele sunt înzestrate cu rațiune.",
    "All human beings are born free and equal in dignity and rights. They are endowed with reason and conscience.",
    "Tous les êtres humains naissent libres et égaux en dignité et en droits. Ils sont doués de raison.",
    "Усі люди народжуються вільними і рівними у своїй гідності та правах.",
)
Logits = Callable[[Mapping[str, np.ndarray]], np.ndarray]


@dataclass(frozen=True)
class Figures:
    """What a comparison found; `logits` is the largest difference, `loss` the relative one."""

    reader: str
    logits: float
    loss: float
    texts_equal: int
    texts: int
    texts_astray: int  # those that leave the source's where it was not between two as good as equal
    tolerance: float

    @property
    def passed(self) -> bool:
        # A comparison with something that is no number is false, and so fails.
        return self.logits <= self.tolerance and self.loss <= self.tolerance and not self.texts_astray

    def __str__(self) -> str:
        verdict = "passed" if self.passed else "FAILED"
        return (
            f"{self.reader}: logits differ by {self.logits:.1e}, loss by {self.loss:.1e}, greedy text equal in"
            f" {self.texts_equal} of {self.texts} ({verdict}, limit {self.tolerance:.0e})"
        )


def end_of(vocabulary: Any | None) -> int:
    """Returns a vocabulary's end of sequence, T5's where none is known."""
    return EOS if vocabulary is None else int(vocabulary.eos_id)


def batch_of(vocabulary: Any | None, num_rows: int) -> dict[str, np.ndarray]:
    """Returns four sentences with a gap each, encoded; random ids below `num_rows` without a vocabulary."""
    inputs = np.zeros((len(TEXTS), ROW), np.int32)
    targets = np.zeros((len(TEXTS), ROW // 2), np.int32)
    random, eos = np.random.default_rng(0), end_of(vocabulary)
    for row, text in enumerate(TEXTS):
        if vocabulary is None:
            ids, gap, end = random.integers(2, num_rows, ROW - 8 * row).tolist(), num_rows - 1, num_rows - 2
        else:
            ids, gap, end = list(vocabulary.encode(text)), vocabulary.vocab_size - 1, vocabulary.vocab_size - 2
        ids = ids[: ROW - 2]
        third = len(ids) // 3
        encoder = [*ids[:third], gap, *ids[2 * third :], eos]
        decoder = [gap, *ids[third : 2 * third], end, eos]
        inputs[row, : len(encoder)] = encoder
        targets[row, : len(decoder)] = decoder
    return {"encoder_input_tokens": inputs, **_shifted(targets)}


def _shifted(targets: np.ndarray) -> dict[str, np.ndarray]:
    shifted = np.pad(targets[:, :-1], ((0, 0), (1, 0)))
    return {"decoder_input_tokens": shifted.astype(np.int32), "decoder_target_tokens": targets.astype(np.int32)}


def parameters(arrays: Mapping[str, np.ndarray]) -> Any:
    """Returns our own tree, in float32, of arrays under T5X's names; one stack is put together at a time."""
    stacks: dict[str, dict[int, str]] = {}
    for name in arrays:
        match = _LAYER.search(name)
        stacks.setdefault(_LAYER.sub("/layers/", name), {})[int(match[1]) if match else -1] = name
    tree = {}
    for name, layers in stacks.items():
        read = [np.asarray(arrays[layers[i]], np.float32) for i in sorted(layers)]
        tree[name] = jnp.asarray(read[0] if -1 in layers else np.stack(read))
    return unflatten(tree)


class Compared:
    """The source's own numbers on a batch, and how far another reader's are from them."""

    _batch: Mapping[str, np.ndarray]
    _logits: np.ndarray  # [B, Q, V]
    _tokens: np.ndarray  # [texts, NUM_TOKENS], greedy
    _followed: np.ndarray  # [texts, NUM_TOKENS, V], the logits that these tokens were picked from

    def _figures(self, reader: str, logits: np.ndarray, tokens: np.ndarray, tolerance: float) -> Figures:
        targets = self._batch["decoder_target_tokens"]
        real = targets > 0
        unit = max(1.0, float(np.abs(self._logits[real]).max()))
        difference = float(np.abs(logits[real] - self._logits[real]).max()) / unit
        losses = [_loss(each[real], targets[real]) for each in (self._logits, logits)]
        loss = abs(losses[1] - losses[0]) / max(1.0, losses[0])
        differing = np.flatnonzero((tokens != self._tokens).any(axis=1))
        astray = sum(self._lead(row, tokens[row]) > 2 * tolerance * unit for row in differing)
        return Figures(reader, difference, loss, NUM_TEXTS - len(differing), NUM_TEXTS, astray, tolerance)

    def _lead(self, row: int, tokens: np.ndarray) -> float:
        """Returns by how much the source's logit of its own token is above the other's, where the two texts part."""
        place = int(np.flatnonzero(tokens != self._tokens[row])[0])
        logits = self._followed[row, place]
        return float(logits[self._tokens[row, place]] - logits[tokens[place]])


class Proof(Compared):
    """The source's logits, loss and greedy text on one batch, which written folders are compared with."""

    def __init__(self, arrays: Mapping[str, np.ndarray], config: ModelConfig, vocabulary: Any | None):
        """`vocabulary` is seqio's, or None; reads all of `arrays` into memory."""
        self._config = dataclasses.replace(
            config, dtype="float32", dropout_rate=0.0, remat="none", scan_layers=True, attention="auto"
        )
        self._model = Network(self._config)
        self._apply = jax.jit(self._model.apply)
        self._eos_id = end_of(vocabulary)
        self._batch = batch_of(vocabulary, config.vocab_size)
        params = parameters(arrays)
        inputs = self._batch["encoder_input_tokens"][:NUM_TEXTS]
        rows = self._config.vocab_size
        self._tokens = np.asarray(
            greedy(self._model, params, jnp.asarray(inputs), NUM_TOKENS, rows, eos_id=self._eos_id)
        )
        width = self._batch["decoder_target_tokens"].shape[1]
        following = _shifted(np.pad(self._tokens, ((0, 0), (0, width - NUM_TOKENS))))
        followed = {"encoder_input_tokens": inputs, **following}
        self._all = {name: np.concatenate([rows, followed[name]]) for name, rows in self._batch.items()}
        self._logits, self._followed = self._run(params)

    def _run(self, params: Any) -> tuple[np.ndarray, np.ndarray]:
        """Returns the logits of the batch, and those behind each token of the source's greedy text."""
        logits = np.asarray(self._apply(params, self._all), np.float32)
        return logits[: len(TEXTS)], logits[len(TEXTS) :, :NUM_TOKENS]

    def _greedy(self, followed: np.ndarray) -> np.ndarray:
        """Returns greedy text up to where it parts from the source's, given the logits behind the source's tokens."""
        ends = self._tokens == self._eos_id
        ended = np.cumsum(ends, axis=1) - ends
        return np.where(ended, 0, followed[..., : self._config.vocab_size].argmax(axis=-1))

    def check_own(self, directory: Path, dtype: str, flax: bool) -> Figures:
        """Compares the written weights, read by our own reader, through our own network."""
        logits, followed = self._run(parameters(T5xView(directory, self._config, flax=flax)))
        file = "flax_model.msgpack" if flax else "model.safetensors"
        return self._figures(f"{file} in our own network", logits, self._greedy(followed), TOLERANCES[dtype])

    def check_transformers(self, directory: Path, dtype: str) -> Figures:
        """Compares transformers' own logits and greedy text; a weight missing or unexpected there is a failure."""
        import torch
        import transformers

        model, about = load_in_transformers(directory)
        whole = not about["missing_keys"] and not about["unexpected_keys"]
        inputs = torch.tensor(self._batch["encoder_input_tokens"], dtype=torch.long)
        mask = (inputs > 0).long()
        with torch.no_grad():
            shifted = torch.tensor(self._batch["decoder_input_tokens"], dtype=torch.long)
            logits = model(input_ids=inputs, attention_mask=mask, decoder_input_ids=shifted).logits.float().numpy()
            tokens = model.generate(
                input_ids=inputs[:NUM_TEXTS],
                attention_mask=mask[:NUM_TEXTS],
                max_new_tokens=NUM_TOKENS,
                do_sample=False,
                num_beams=1,
            )[:, 1:].numpy()
        tokens = np.pad(tokens, ((0, 0), (0, NUM_TOKENS - tokens.shape[1])))
        figures = self._figures(f"transformers {transformers.__version__}", logits, tokens, TOLERANCES[dtype])
        return figures if whole else dataclasses.replace(figures, logits=float("inf"))


def load_in_transformers(directory: Path) -> tuple[Any, dict[str, Any]]:
    """Returns (transformers' model of a written folder in float32, what it says of missing and unexpected keys)."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, about = transformers.AutoModelForSeq2SeqLM.from_pretrained(
            directory, dtype=torch.float32, output_loading_info=True
        )
    model.eval()
    is_tied = json.loads((directory / "config.json").read_text())["tie_word_embeddings"]
    model.config.tie_word_embeddings = is_tied  # see docs/conversion.md, umT5
    return model, about


def _loss(logits: np.ndarray, targets: np.ndarray) -> float:
    """Returns the mean cross entropy in nats, summed in double precision."""
    logits = logits.astype(np.float64)
    highest = logits.max(axis=-1, keepdims=True)
    normalizer = np.log(np.exp(logits - highest).sum(axis=-1)) + highest[..., 0]
    return float((normalizer - np.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]).mean())


def has_transformers() -> bool:
    """True where torch and transformers can be imported; nothing is imported for it."""
    return all(importlib.util.find_spec(name) for name in ("torch", "transformers"))


def quiet_libraries() -> None:
    """Keeps notes of transformers' and its hub's below warnings off the console."""
    for name in ("transformers", "huggingface_hub", "httpx"):
        logging.getLogger(name).setLevel(logging.ERROR)
