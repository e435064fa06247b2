"""What `limba new` proposes: two runs, each with how it fits into memory, what it costs and what may go wrong."""

from __future__ import annotations

from typing import NamedTuple

from limba.api import size_text
from limba.config import ModelConfig
from limba.tools.corpus.hardware import Hardware
from limba.tools.corpus.sizes import FREE_EPOCHS, REPEATED_DROPOUT, Start
from limba.tools.corpus.survey import Survey


class Asked(NamedTuple):
    """What a user gives: a text, a machine, days, and maybe more."""

    corpus: Survey
    machine: Hardware
    days: float
    kind: str = "t5"  # or lm, encoder
    chosen: str | Start | None = None  # a size, or a published model
    dollars: float | None = None  # of a chip-hour, in place of the list's
    # Seconds of a row's step on this machine, by size, where it was timed.
    measured: dict[str, float] = {}  # noqa: RUF012  it is never changed

    @property
    def start(self) -> Start | None:
        """The published model that a run goes on from."""
        return self.chosen if isinstance(self.chosen, Start) else None

    @property
    def price(self) -> float | None:
        """Dollars of a chip-hour."""
        return self.machine.price if self.dollars is None else self.dollars


class Memory(NamedTuple):
    """How a step fits on a device, and the bytes that it takes there."""

    remat: str
    parts: int  # micro-batches
    fsdp: int  # devices that share the parameters
    used: float  # bytes of a device
    limit: float  # bytes that a device has for programs
    checkpoint: int  # bytes of one

    def words(self) -> str:
        """Returns the memory needed and the memory there is, and the size of a checkpoint."""
        gib = 2**30
        used = self.used / gib
        taken = f"{used:.1f}" if used >= 0.1 else "under 0.1"
        return f"{taken} of {self.limit / gib:.1f} GiB a device, {size_text(self.checkpoint)} a checkpoint"


class Plan(NamedTuple):
    """A proposed run; `reasons` are sentences for the user and for the header of the gin file."""

    choice: str  # safe or more
    kind: str  # t5, lm or encoder
    size: str
    description: str  # the model in words
    config: ModelConfig
    parameters: int
    vocabulary: int  # ids, sentinels included
    rows: int  # of the embedding
    inputs: int
    targets: int
    batch: int
    memory: Memory
    shards: int
    steps: int
    tokens: float  # of text, repetitions included
    epochs: float
    hours: tuple[float, float]  # at least and at most
    dollars: tuple[float, float] | None
    share: float  # of the days, at most
    checkpoints: int  # steps between two
    evaluations: int
    eval_steps: int
    patience: int | None  # evaluations without a better loss that end the run
    log: int
    start: Start | None
    is_timed: bool  # whether its step was timed on this machine
    risk: str
    reasons: tuple[str, ...]

    @property
    def dropout(self) -> float:
        """The dropout rate, also of a step that is timed."""
        return REPEATED_DROPOUT if self.epochs > FREE_EPOCHS else 0.0

    @property
    def ratio(self) -> float:
        """Tokens a parameter."""
        return self.tokens / self.parameters


class Proposal(NamedTuple):
    """The answer for a text, a machine and days: a verdict, what little text means, and one or two runs."""

    verdict: str
    of_text: tuple[str, ...]
    plans: tuple[Plan, ...]
    no_more: str  # why there is no second one; "" if there is
