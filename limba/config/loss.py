"""The loss of a run: what is added to the cross entropy, and what its sum is divided by."""

from dataclasses import dataclass
from typing import Annotated

from limba.config import kinds
from limba.config.kinds import NonNegativeFloat, PositiveFloat, Share, choice

LOGITS = ("auto", "whole", "chunked")


@dataclass(frozen=True)
class LossConfig:
    """Cross entropy with T5X's z-loss and label smoothing; see `limba/training/losses.py`.

    >>> LossConfig(z_loss=0.0).label_smoothing
    0.0
    """

    z_loss: NonNegativeFloat = 1e-4  # weight of the squared log of the softmax's normalizer
    label_smoothing: Share = 0.0  # share of probability given to the other tokens
    # whole, chunked (some rows at a time: slower, gigabytes less), auto: chunked above 2 GiB
    logits: Annotated[str, choice(*LOGITS)] = "auto"
    # What the summed loss is divided by: tokens (real ones), all_tokens (padding too), sequences (each one's mean
    # counts the same), a number, or None (nothing, T5X's default).
    normalize_by: Annotated[str, choice("tokens", "all_tokens", "sequences")] | PositiveFloat | None = "tokens"

    def __post_init__(self) -> None:
        kinds.check(self)
