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
# Up to so many bytes of text, and up to such a width of the model, a vocabulary has at most these ids.
IDS_OF_TEXT = ((1 << 17, 1_000), (1 << 19, 2_000), (1 << 20, 4_000), (1 << 23, 8_000), (1 << 26, 16_000),
               (1 << 30, 32_000))  # fmt: skip
IDS_OF_WIDTH = ((128, 4_000), (256, 8_000), (384, 16_000), (512, 32_000))
MOST_IDS = 64_000
ROWS_OF_WIDTH = ((128, 32), (384, 64), (768, 128), (1024, 256), (2048, 512))  # of a batch, at most; wider: 1,024
USED_MEMORY = 0.85  # share of a device that the arithmetic may fill: it is right within 15 %
FEW_ROWS = 4  # of a device at once, below which stronger remat comes before more micro-batches
POLICIES = ("none", "minimal", "full")  # of remat
LEAST_ROWS, FEW_STEPS = 16, 2_000  # a batch is halved down to the first, while a run has fewer steps than the second
LITTLE_TEXT = 5e6  # tokens, below which rows are short, so that a step has more of them
# By kind, of long rows and of short ones: inputs, targets, tokens of text. A T5 hides 15 % in spans of 3.
LENGTHS = {"t5": ((512, 114, 568), (128, 29, 141)), "lm": ((0, 512, 512), (0, 128, 128))}
LENGTHS["encoder"] = LENGTHS["lm"]
HIDDEN = 0.3  # of an encoder's tokens, as in gin/runs/pretrain_encoder.gin
LEAST_PATIENCE = 5  # evaluations
REPEATED_DROPOUT = 0.1  # of a run that reads its text more often than FREE_EPOCHS
SAVED_SHARE, SAVED_SECONDS, RARELY_SECONDS = 0.02, 1800.0, 120.0  # what a preemption costs; of a run of minutes
RUN_FILES = {
    "t5": ("gin/runs/pretrain.gin", "gin/recipes/fast.gin"),
    "lm": ("gin/runs/pretrain_lm.gin", "gin/recipes/fast.gin"),
    "encoder": ("gin/runs/pretrain_encoder.gin",),
}
FUNCTIONS = {"t5": "span_corruption", "lm": "causal_lm", "encoder": "masked_lm"}  # objectives
EVALUATED_SHARE, EVAL_STEPS = 0.05, 20  # of the time, at most; batches of an evaluation
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
    d, inner = config.emb_dim, config.num_heads * config.head_dim
    mlp = (len(config.mlp_activations) + 1) * d * config.mlp_dim
    embeddings = (1 if config.logits_via_embedding else 2) * config.vocab_size * d
    if config.is_decoder_only:
        attention = 2 * d * (inner + config.kv_heads * config.head_dim)
        return config.num_decoder_layers * (attention + mlp + 2 * d) + d + embeddings
    encoder = config.num_encoder_layers * (4 * d * inner + mlp + 2 * d) + d
    decoder = config.num_decoder_layers * (8 * d * inner + mlp + 3 * d) + d
    biases = config.num_encoder_layers + config.num_decoder_layers if config.relative_bias_per_layer else 2
    return encoder + decoder + biases * config.num_relpos_buckets * config.num_heads + embeddings


def of_limit(table: tuple[tuple[int, int], ...], value: int, beyond: int) -> int:
    """Returns the entry of the first limit that a value does not exceed.

    >>> of_limit(((128, 4), (512, 8)), 300, 16)
    8
    """
    return next((entry for limit, entry in table if value <= limit), beyond)


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
    unique: float  # tokens of the text, without those of validation
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
