"""The proof of a decoder-only model's conversion: the same as `convert.check`'s, on texts that are gone on with."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from limba.config import GenerationConfig, ModelConfig
from limba.export.proof import NUM_TEXTS, NUM_TOKENS, ROW, TEXTS, TOLERANCES, Compared, Figures, end_of, parameters
from limba.formats.huggingface import open_folder
from limba.inference import search as decoding
from limba.inference.continuations import START
from limba.model import Network

PROMPT = 16  # ids of a text, the start included, that greedy text follows


def batch_of(vocabulary: Any | None, num_rows: int) -> dict[str, np.ndarray]:
    """Returns four texts, encoded and padded; random ids below `num_rows` without a vocabulary."""
    targets = np.zeros((len(TEXTS), ROW), np.int32)
    random = np.random.default_rng(0)
    for row, text in enumerate(TEXTS):
        ids = random.integers(2, num_rows, ROW - 8 * row).tolist() if vocabulary is None else vocabulary.encode(text)
        ids = [*ids[: ROW - 1], end_of(vocabulary)]
        targets[row, : len(ids)] = ids
    return {"decoder_target_tokens": targets, "decoder_input_tokens": np.pad(targets[:, :-1], ((0, 0), (1, 0)))}


class LanguageModelProof(Compared):
    """The source's logits, loss and greedy text on one batch, which a written folder is compared with."""

    def __init__(self, arrays: Mapping[str, np.ndarray], config: ModelConfig, vocabulary: Any | None):
        """`vocabulary` is seqio's, or None; reads all of `arrays` into memory."""
        self._config = dataclasses.replace(config, dtype="float32", dropout_rate=0.0, remat="none", scan_layers=True)
        self._model = Network(self._config)
        self._apply = jax.jit(self._model.apply)
        self._eos_id = end_of(vocabulary)
        self._batch = batch_of(vocabulary, config.vocab_size)
        self._prompt = self._batch["decoder_input_tokens"][:NUM_TEXTS, :PROMPT]
        params = parameters(arrays)
        self._tokens = self._greedy(params)
        self._logits = self._run(params, self._batch)
        inputs = np.zeros((len(TEXTS), ROW), np.int32)
        inputs[:NUM_TEXTS, : PROMPT + NUM_TOKENS] = np.concatenate([self._prompt, self._tokens], axis=1)
        following = {"decoder_input_tokens": inputs, "decoder_target_tokens": np.ones_like(inputs)}
        self._followed = self._run(params, following)[:, PROMPT - 1 :]  # the logits behind the greedy text

    def _run(self, params: Any, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        return np.asarray(self._apply(params, batch), np.float32)

    def _greedy(self, params: Any) -> np.ndarray:
        @jax.jit
        def written(params: Any, prompt: jax.Array) -> jax.Array:
            step, cache = self._model.cached_language_model(params, prompt, NUM_TOKENS)
            banned = jnp.arange(self._config.vocab_size) == START  # transformers takes padding for no text either
            config = GenerationConfig(max_tokens=NUM_TOKENS)
            return decoding.generate(step, cache, prompt, banned, config, eos_id=self._eos_id).tokens[:, 0]

        return np.asarray(written(params, jnp.asarray(self._prompt)))

    def check_own(self, directory: Path, dtype: str, flax: bool) -> Figures:
        """Compares the written weights, read by our own reader, through our own network."""
        del flax  # these classes have no Flax form
        params = parameters(open_folder(directory, self._config))
        reader = "model.safetensors in our own network"
        return self._figures(reader, self._run(params, self._batch), self._greedy(params), TOLERANCES[dtype])

    def check_transformers(self, directory: Path, dtype: str) -> Figures:
        """Compares transformers' own logits and greedy text; a weight missing or unexpected there is a failure."""
        import torch
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, about = transformers.AutoModelForCausalLM.from_pretrained(
                directory, dtype=torch.float32, output_loading_info=True
            )
        model.eval()
        whole = not about["missing_keys"] and not about["unexpected_keys"]
        inputs = torch.tensor(self._batch["decoder_input_tokens"], dtype=torch.long)
        prompt = torch.tensor(self._prompt, dtype=torch.long)
        with torch.no_grad():
            logits = model(input_ids=inputs, attention_mask=torch.ones_like(inputs)).logits.float().numpy()
            tokens = model.generate(
                input_ids=prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=NUM_TOKENS,
                do_sample=False,
                num_beams=1,
                suppress_tokens=[START],
            )[:, PROMPT:].numpy()
        tokens = np.pad(tokens, ((0, 0), (0, NUM_TOKENS - tokens.shape[1])))
        figures = self._figures(f"transformers {transformers.__version__}", logits, tokens, TOLERANCES[dtype])
        return figures if whole else dataclasses.replace(figures, logits=float("inf"))
