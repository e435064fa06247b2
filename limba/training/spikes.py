"""What a spike is: a step whose numbers are not finite, or far above the good steps' before it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from limba.config import GuardConfig
from limba.data.stream.names import NO_DOCUMENTS, BatchDocuments
from limba.training.row_reader import ShardRows

LAG = 8  # a step's limits come from steps at least this many before it, so that devices need not wait for the host
MIN_STEPS = 20  # good steps before anything but a number that is not finite is a spike
# The least deviations that count, since the deviation of a window can be near zero: of the loss as a share of its
# median; of the log gradient norm, which in ordinary runs rises by a factor of 3 within a window.
LEAST_OF_LOSS = 0.02
LEAST_OF_LOG_NORM = 0.2
MAD_TO_DEVIATION = 1.4826  # of a normal distribution: its standard deviation over its MAD
CHECKED = ("loss", "gradient_norm", "update_norm")


def upper_limit(values: Sequence[float], threshold: float, least: float) -> float:
    """Returns median + threshold x max(1.4826 x MAD, least); MAD is the median absolute deviation from the median.

    A value above it has a robust z-score above `threshold` (Iglewicz & Hoaglin 1993, "How to Detect and Handle
    Outliers"; Rousseeuw & Croux 1993). Spikes hardly change a median, as they would a mean and a standard deviation.
    For values of a normal distribution 1.4826 x MAD is the standard deviation.

    >>> round(upper_limit([1.0, 2.0, 3.0, 4.0, 500.0], threshold=2.0, least=0.0), 4)
    5.9652
    """
    median = float(np.median(values))
    deviation = MAD_TO_DEVIATION * float(np.median(np.abs(np.asarray(values) - median)))
    return median + threshold * max(deviation, least)


class Window:
    """The loss and the log gradient norm of recent good steps, and the limits that they give for a later step.

    The limits change every LAG steps. They depend on the good steps up to the last change but one, and on nothing
    else, so a resumed run has the same ones. Before there are MIN_STEPS of them the limits are infinite.
    """

    def __init__(self, config: GuardConfig):
        self._config = config
        self._steps: deque[tuple[int, float, float]] = deque(maxlen=config.window + 2 * LAG)
        # The limits that were computed last, and the last step that they come from.
        self._limits_bound = -1
        self._limits = np.zeros(2)

    def add(self, step: int, loss: float, gradient_norm: float) -> None:
        """Adds a good step."""
        self._steps.append((step, loss, math.log(max(gradient_norm, 1e-30))))

    def limits(self, step: int) -> np.ndarray:
        """Returns the largest ordinary loss and gradient norm of a step, float32 [2]."""
        bound = _bound(step)
        if bound != self._limits_bound:
            self._limits_bound = bound
            self._limits = self._computed(step)
        return self._limits

    def _computed(self, step: int) -> np.ndarray:
        threshold = self._config.threshold
        known = self._known(step)
        if len(known) < min(MIN_STEPS, self._config.window):
            return np.full(2, np.inf, np.float32)
        losses, norms = np.transpose(known)
        loss = upper_limit(losses, threshold, LEAST_OF_LOSS * abs(float(np.median(losses))))
        norm = upper_limit(norms, threshold, LEAST_OF_LOG_NORM)
        return np.array([loss, math.exp(min(norm, 80.0))], np.float32)  # exp(80) is finite in float32

    def typical_loss(self, step: int) -> float:
        """Returns the median loss of the steps that the limits come from; infinite if there is none."""
        known = self._known(step)
        return float(np.median([loss for loss, _ in known])) if known else math.inf

    def _known(self, step: int) -> list[list[float]]:
        return [values for number, *values in self._steps if number <= _bound(step)][-self._config.window :]

    def notes(self) -> list[list[float]]:
        """Returns the steps as JSON can hold them; `restore` takes them."""
        return [list(values) for values in self._steps]

    def restore(self, notes: Sequence[Sequence[float]]) -> None:
        """Starts again with the steps that `notes` gave; with none of them it starts anew."""
        self._steps.clear()
        self._limits_bound = -1
        self._steps.extend((int(step), loss, norm) for step, loss, norm in notes)


def _bound(step: int) -> int:
    """Returns the last step that a step's limits may come from.

    >>> [_bound(step) for step in (15, 16, 23, 24)]
    [0, 8, 8, 16]
    """
    return (step // LAG - 1) * LAG


class Spike(NamedTuple):
    """A step that is not finite or above its limits."""

    step: int
    rows: ShardRows  # this process's rows of its batch
    values: Mapping[str, float]  # loss, gradient_norm, update_norm
    reason: str  # begins with "its"
    documents: BatchDocuments = NO_DOCUMENTS  # of these rows
    typical_loss: float = math.inf  # the median of the good steps before it
    number: int = 1  # of the spikes in a row

    @classmethod
    def of(cls, step: int, rows: ShardRows, values: Mapping[str, float], limits: np.ndarray) -> Spike | None:
        """Returns the spike, or None for a good step; `jit_train_step` drops by the same comparison."""
        for name in CHECKED:
            if not math.isfinite(values[name]):
                reason = f"its {name.replace('_', ' ')} is {values[name]}"
                return cls(step, rows, values, reason)
        for name, limit in zip(CHECKED, limits.tolist(), strict=False):  # the update norm has no limit
            if values[name] > limit:
                reason = (
                    f"its {name.replace('_', ' ')} {values[name]:.4g} is above {limit:.4g}, the limit that the good"
                    " steps before it give"
                )
                return cls(step, rows, values, reason)
        return None
