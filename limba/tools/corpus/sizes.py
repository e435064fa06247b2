"""The sizes that `limba new` proposes: their networks, and what one of them would do on some hardware in some days.

20 tokens a parameter use a budget of compute best (Hoffmann et al. 2022, arXiv:2203.15556; measured on decoder-only
models, and used here for T5s too, for which no such law is published). 4 passes over a text are worth nearly as much as
new text, 16 about two thirds of it, and more add next to nothing (Muennighoff et al. 2023, arXiv:2305.16264).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import NamedTuple

from limba.api import read_model
from limba.config import ModelConfig
from limba.tools.corpus.counting import Counted

BEST_RATIO = 20  # tokens a parameter that use compute best
BOLD_RATIO = 10  # of the larger choice, at least
LEAST_RATIO = 5  # below which more text, days or devices are what is needed
FREE_EPOCHS = 4  # passes that are worth nearly as much as new text
MOST_EPOCHS = 16  # beyond which passes add next to nothing
DECAY_EPOCHS = 15.39  # Muennighoff et al.'s R*: after so many repetitions a pass is worth 1/e of new text
LITTLE_BYTES = 1e9  # of text, below which its size is what limits the model
SIZES = {
    "t5": ("tiny", "mini", "little", "small", "base", "large", "xl", "xxl"),
    "lm": ("tiny", "0.05b", "0.1b", "1.0b"),
    "encoder": ("tiny", "small", "base", "large"),
}
FILES = {
    "t5": "gin/models/t5_1_1/{}.gin",
    "lm": "gin/models/lm_modern/{}.gin",
    "encoder": "gin/models/encoder/{}.gin",
}
PUBLISHED = {  # that a run of this kind can go on from
    "t5": "--from=google/umt5-base",
    "lm": "--from= with a decoder-only model of the hub (Llama, GPT-2)",
    "encoder": "--from= with an encoder of the hub (EuroBERT, ModernBERT)",
}
ABOUT = {"t5": "T5 1.1", "lm": "decoder-only", "encoder": "encoder"}
# Tables of (limit, entry), as `of_limit` reads them: the ids of a vocabulary at most, by the bytes of the text and by
# the width of the model, and the rows of a batch at most, by the width of the model.
IDS_OF_TEXT = (
    (1 << 17, 1_000),
    (1 << 19, 2_000),
    (1 << 20, 4_000),
    (1 << 23, 8_000),
    (1 << 26, 16_000),
    (1 << 30, 32_000),
)
IDS_OF_WIDTH = (
    (128, 4_000),
    (256, 8_000),
    (384, 16_000),
    (512, 32_000),
)
MOST_IDS = 64_000  # of more text and a wider model
ROWS_OF_WIDTH = (
    (128, 32),
    (384, 64),
    (768, 128),
    (1024, 256),
    (2048, 512),
)
MOST_ROWS = 1024  # of a wider model
USED_MEMORY = 0.85  # share of a device that the arithmetic may fill: it is right within 15 %
FEW_ROWS = 4  # of a device at once, below which stronger remat comes before more micro-batches
POLICIES = ("none", "minimal", "full")  # of remat
# A batch is halved while a run has fewer steps than FEW_STEPS, down to LEAST_ROWS.
LEAST_ROWS = 16
FEW_STEPS = 2_000
LITTLE_TEXT = 5e6  # tokens, below which rows are short, so that a step has more of them
# By kind, of long rows and of short ones: inputs, targets, tokens of text. A T5 hides 15 % in spans of 3.
LENGTHS = {
    "t5": ((512, 114, 568), (128, 29, 141)),
    "lm": ((0, 512, 512), (0, 128, 128)),
    "encoder": ((0, 512, 512), (0, 128, 128)),
}
HIDDEN = 0.3  # of an encoder's tokens, as in gin/runs/pretrain_encoder.gin
LEAST_PATIENCE = 5  # evaluations
REPEATED_DROPOUT = 0.1  # of a run that reads its text more often than FREE_EPOCHS
# Time between two checkpoints, which is what a preemption costs: this share of the run, at least RARELY_SECONDS and at
# most SAVED_SECONDS.
SAVED_SHARE = 0.02
RARELY_SECONDS = 120.0
SAVED_SECONDS = 1800.0
RUN_FILES = {
    "t5": ("gin/runs/pretrain.gin", "gin/recipes/fast.gin"),
    "lm": ("gin/runs/pretrain_lm.gin", "gin/recipes/fast.gin"),
    "encoder": ("gin/runs/pretrain_encoder.gin",),
}
FUNCTIONS = {"t5": "span_corruption", "lm": "causal_lm", "encoder": "masked_lm"}  # objectives
EVALUATED_SHARE = 0.05  # of the time that evaluations take, at most
EVAL_STEPS = 20  # batches of an evaluation, at most
UPDATE_PER_EVALUATION = 3  # forward and backward pass against the forward pass alone


class Start(NamedTuple):
    """A published model that a run goes on from."""

    name: str  # a hub id or a path
    config: ModelConfig
    vocabulary: str  # a path, an address, or 'byte'
    extra_ids: int | None


@functools.cache
def model_of(kind: str, size: str, rows: int) -> ModelConfig:
    """Returns the network of a size with so many rows of the embedding, from its gin file."""
    return dataclasses.replace(read_model(FILES[kind].format(size)), vocab_size=rows)


def num_parameters(config: ModelConfig) -> int:
    """Returns the parameters of a T5 or of a decoder-only model without biases by formula, without jax.

    >>> num_parameters(ModelConfig(32128, 768, 12, 64, 2048, 12, 12))
    247577856
    """
    d = config.emb_dim
    inner = config.num_heads * config.head_dim
    mlp = (len(config.mlp_activations) + 1) * d * config.mlp_dim
    embeddings = (1 if config.logits_via_embedding else 2) * config.vocab_size * d
    if config.is_decoder_only:
        attention = 2 * d * (inner + config.kv_heads * config.head_dim)
        return config.num_decoder_layers * (attention + mlp + 2 * d) + d + embeddings
    encoder = config.num_encoder_layers * (4 * d * inner + mlp + 2 * d) + d
    decoder = config.num_decoder_layers * (8 * d * inner + mlp + 3 * d) + d
    biases = 2  # tables of position biases, one for each stack
    if config.relative_bias_per_layer:
        biases = config.num_encoder_layers + config.num_decoder_layers
    return encoder + decoder + biases * config.num_relpos_buckets * config.num_heads + embeddings


def of_limit(table: tuple[tuple[int, int], ...], value: int, beyond: int) -> int:
    """Returns the entry of the first limit that a value does not exceed, or `beyond` if it exceeds all.

    >>> of_limit(((128, 4), (512, 8)), 300, 16)
    8
    """
    for limit, entry in table:
        if value <= limit:
            return entry
    return beyond


def worth(passes: float) -> float:
    """Returns how many passes over new text some passes over one text are worth.

    Muennighoff et al. 2023, arXiv:2305.16264, equation 5, with the decay that they fitted.

    >>> [round(worth(passes), 1) for passes in (1, 4, 16, 40)]
    [1, 3.7, 10.6, 15.2]
    """
    if passes <= 1:
        return passes
    return 1 + DECAY_EPOCHS * (1 - math.exp(-(passes - 1) / DECAY_EPOCHS))


class Candidate(NamedTuple):
    """One size, or a published model, on the hardware."""

    size: str
    config: ModelConfig
    counted: Counted
    lengths: tuple[int, int, int]
    unique: float  # tokens of the training text, each counted once
    batch: int
    step_seconds: tuple[float, float]  # at least and at most
    tokens_of_days: float  # that the days allow

    @property
    def parameters(self) -> int:
        return num_parameters(self.config)

    def tokens(self, passes: float) -> float:
        """Returns the tokens that a run sees in the days and in so many passes."""
        return min(self.tokens_of_days, passes * self.unique)

    def ratio(self, passes: float) -> float:
        """Returns the tokens a parameter in the days and in so many passes."""
        return self.tokens(passes) / self.parameters
