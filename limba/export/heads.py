"""The proof and the card of what gives no text: an encoder with a head of its own, the encoder of a T5 alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
from jaxtyping import PyTree

from limba.config import ModelConfig
from limba.export.card import OF_HEADS
from limba.export.proof import TOLERANCES, Figures, Proof, load_in_transformers
from limba.formats.architectures import class_of

PIPELINE = """\
## Use

```python
from transformers import pipeline

print(pipeline("{task}", ".")("A text"))  # this folder, or its name on the hub
```

For transformers 5; weights are {dtype}."""
SENTENCES = """\
## Use

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer(".")  # this folder, or its name on the hub
print(model.similarity(model.encode("A text"), model.encode(["Another text", "A third one"])))
```

A vector is the mean of a text's last hidden states; texts are compared by the cosine. For transformers 5; weights are
{dtype}."""


STATES = """\
## Use

```python
from transformers import AutoTokenizer, {encoder}

name = "."  # this folder, or its name on the hub
inputs = AutoTokenizer.from_pretrained(name)("A text", return_tensors="pt")
print({encoder}.from_pretrained(name)(**inputs).last_hidden_state)
```

The encoder of a T5 alone. For transformers 4.57 and 5; weights are {dtype}."""
OF_A_TEXT = """\
## Use

```python
from transformers import AutoTokenizer, {encoder}

name = "."  # this folder, or its name on the hub
inputs = AutoTokenizer.from_pretrained(name)("A text", return_tensors="pt")
outputs = {encoder}.from_pretrained(name)(**inputs).logits
print({result})
```

The encoder of a T5 alone, for which transformers has no class of texts: this one gives logits of each token, and a
text's are {those}. For transformers 4.57 and 5; weights are {dtype}."""


def usage(model: ModelConfig, dtype: str) -> str:
    """Returns the section of the card that shows how the model is used; "" for one that gives text."""
    if not (model.has_own_head or model.is_t5_encoder):
        return ""
    if model.is_t5_encoder and not model.has_own_head:
        return STATES.format(encoder=class_of(model), dtype=dtype)
    if model.is_t5_encoder and model.head in ("classes", "score"):
        logits, those = ("mean(1)", "their mean") if model.pooling == "mean" else ("[:, 0]", "those of the first one")
        pooled = f"outputs.{logits}".replace(".[", "[")
        result = f"{pooled}.softmax(-1)" if model.has_labels else pooled
        return OF_A_TEXT.format(encoder=class_of(model), result=result, those=those, dtype=dtype)
    text = SENTENCES if model.head == "vectors" else PIPELINE
    return text.format(task=OF_HEADS.get(model.head), dtype=dtype)


class HeadProof(Proof):
    """The source's outputs for one batch; in place of text, the likeliest label or the largest entry is compared."""

    def _run(self, params: PyTree) -> tuple[np.ndarray, np.ndarray]:
        outputs = np.asarray(self._apply(params, self._all), np.float32)
        return outputs, outputs

    @property
    def _inputs(self) -> str:
        return "encoder_input_tokens" if self._gives_states else "decoder_input_tokens"

    @property
    def _gives_states(self) -> bool:
        return not self._config.has_own_head

    def _greedy(self, followed: np.ndarray) -> np.ndarray:
        return followed.argmax(axis=-1)

    def _figures(self, reader: str, logits: np.ndarray, tokens: np.ndarray, tolerance: float) -> Figures:
        tokens_of = self._batch[self._inputs]
        is_of_tokens = self._config.head == "tags" or self._gives_states
        real = tokens_of > 0 if is_of_tokens else np.ones(logits.shape[:2], bool)
        unit = max(1.0, float(np.abs(self._logits[real]).max()))
        difference = float(np.abs(logits[real] - self._logits[real]).max()) / unit
        differs = ((tokens != self._tokens) & real).any(axis=1)
        chosen = np.take_along_axis(self._logits, tokens[..., None], axis=-1)[..., 0]
        leads = (self._logits.max(axis=-1) - chosen)[real]
        equal, astray = int((~differs).sum()), int((leads > 2 * tolerance * unit).sum())
        what = "likeliest labels" if self._config.has_labels else "largest entries"
        return Figures(reader, difference, 0.0, equal, len(differs), astray, tolerance, what)

    def check_transformers(self, directory: Path, dtype: str) -> Figures:
        """Compares the outputs in transformers; a missing or unexpected weight there is a failure."""
        import torch
        import transformers

        model, about = load_in_transformers(directory)
        inputs = torch.tensor(self._batch[self._inputs], dtype=torch.long)
        mask = (inputs > 0).long()
        with torch.no_grad():
            found = model(inputs, attention_mask=mask)
            is_of_vectors, config, weights = self._config.head == "vectors", self._config, mask[..., None].float()
            logits = (found.last_hidden_state if is_of_vectors or self._gives_states else found.logits).float()
            if is_of_vectors or (config.is_t5_encoder and config.head in ("classes", "score")):
                is_mean = config.pooling == "mean" or is_of_vectors
                logits = (logits * weights).sum(1) / weights.sum(1) if is_mean else logits[:, 0]
        logits = logits.numpy().reshape(self._logits.shape)
        figures = self._figures(
            f"transformers {transformers.__version__}", logits, self._greedy(logits), TOLERANCES[dtype]
        )
        is_whole = not about["missing_keys"] and not about["unexpected_keys"]
        return figures if is_whole else dataclasses.replace(figures, logits=float("inf"))
