"""Models that score texts as they are: ours by `limba.load`, every other one by transformers' own classes."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from jaxtyping import Float

from limba.config import InputError, ModelConfig, NoModelError
from limba.tools.results.files import checksum, hub_id
from limba.tools.results.scoring_methods import CAUSAL, GAPS, HOW, MASKED

if TYPE_CHECKING:
    from limba.api import TrainedModel

NO_VOCABULARY = "{} has no vocabulary beside it, without which no text is read; copy it there."
OF_TOKENIZERS = ("tokenizer.json", "vocab.*", "*.model")  # files of transformers' tokenizers


class Scorer(Protocol):
    """A model that scores texts, in one of the three ways."""

    @property
    def name(self) -> str:
        """The folder, run or hub id."""
        ...

    @property
    def way(self) -> str:
        """CAUSAL, MASKED or GAPS."""
        ...

    @property
    def how(self) -> str:
        """The same in words, for a table's notes."""
        ...

    def log_likelihoods(self, texts: Sequence[str]) -> Float[np.ndarray, " N"]:
        """Returns the log likelihood of each text (CAUSAL), or its pseudo log likelihood (MASKED), in nats."""
        ...

    def in_gaps(self, pairs: Sequence[tuple[str, str]]) -> Float[np.ndarray, " N"]:
        """Returns ln p(written | read) of texts with sentinels, the end of sequence included (GAPS)."""
        ...

    def num_unscored_bytes(self, text: str) -> int:
        """Returns how many bytes of a text have no likelihood: a first token with nothing before it."""
        ...

    def checksum(self, is_random: bool) -> str:
        """Returns a checksum of all that decides what it computes, or what its random weights compute."""
        ...

    def with_random_weights(self) -> Scorer:
        """Returns a model of the same shape, its parameters drawn with seed 0."""
        ...


@dataclasses.dataclass(frozen=True)
class LimbaScorer:
    """A model that `limba.load` opened."""

    name: str
    trained: TrainedModel
    way: str

    @property
    def how(self) -> str:
        return HOW[self.way]

    def log_likelihoods(self, texts: Sequence[str]) -> Float[np.ndarray, " N"]:
        return self.trained.log_likelihoods([("", text) for text in texts], ends=False).astype(np.float64)

    def in_gaps(self, pairs: Sequence[tuple[str, str]]) -> Float[np.ndarray, " N"]:
        return self.trained.log_likelihoods(pairs).astype(np.float64)

    def num_unscored_bytes(self, text: str) -> int:
        return 0

    def checksum(self, is_random: bool) -> str:
        return checksum_of_model(self.trained, is_random)

    def with_random_weights(self) -> LimbaScorer:
        import jax

        drawn = self.trained.network.init(jax.random.key(0))
        placed = jax.tree.map(lambda old, new: jax.device_put(new, old.sharding), self.trained.params, drawn)
        return dataclasses.replace(self, trained=dataclasses.replace(self.trained, params=placed))


def checksum_of_model(trained: TrainedModel, is_random: bool = False) -> str:
    """Returns a checksum of a model: its network, its vocabulary and, unless these are drawn, its parameters."""
    digest = hashlib.sha256(repr(dataclasses.asdict(trained.network.config)).encode())
    for name, array in () if is_random else sorted(trained.arrays().items()):
        digest.update(f"{name}{array.shape}{array.dtype}".encode())
        digest.update(array.tobytes())
    if trained.tokenizer is not None:
        path = Path(trained.tokenizer[0].path)
        digest.update((checksum(path) if path.is_file() else str(path)).encode())
        digest.update(f"{trained.tokenizer[0].extra_ids} {trained.special_ids}".encode())
    return digest.hexdigest()


def open_scorers(name: str, imports: Sequence[str] = ()) -> tuple[Scorer, ...]:
    """Returns the model at a path or of the hub as what scores texts; a hybrid is two, as its two kinds of figures.

    What Limba reads is opened by it, and everything else by transformers, as far as it runs no foreign code. `imports`
    are modules that a run may import. Raises InputError for what neither opens, and for a model that scores no text.
    """
    from limba.api import load

    try:
        trained = load(name, imports=imports)
    except NoModelError:  # transformers would find nothing either
        raise
    except InputError as error:
        return (_foreign(name, error),)
    network = trained.network.config
    if trained.tokenizer is None:
        absent = InputError(NO_VOCABULARY.format(name))
        if not _has_vocabulary(name):
            raise absent
        return (_foreign(name, absent),)
    if network.is_decoder_only and not network.is_encoder and _has_no_start(trained):
        return (_foreign(name, None),)
    trained.log_likelihoods([])  # raises the sentence about a network without an output layer
    return tuple(LimbaScorer(name, trained.decoder if way == CAUSAL else trained, way) for way in _ways(network))


def ways_of(name: str) -> tuple[str, ...]:
    """Returns how a model would score texts, by its configuration alone: no weights are read.

    Raises InputError for one that scores none.
    """
    from limba.api import described

    try:
        network, vocabulary = described(name)
    except NoModelError:
        raise
    except InputError as error:
        if not _may_be_foreign(name):
            raise
        from limba.tools.results import foreign_scorer

        try:
            return (foreign_scorer.way_of(name),)
        except foreign_scorer.NotThereError:
            raise error from None
    if network.is_t5_encoder:
        raise InputError(f"{name} is the encoder of a T5 alone, which scores no texts; give the whole T5.")
    if vocabulary is None and not _has_vocabulary(name):
        raise InputError(NO_VOCABULARY.format(name))
    return _ways(network)


def _has_vocabulary(name: str) -> bool:
    """Returns whether a model that names no vocabulary may have one: a run its task's, a folder transformers' files."""
    from limba.api import RunDirectory

    home = run_of(name)
    if home is not None:
        return RunDirectory(str(home)).run() is not None
    folder = Path(name).expanduser()
    if folder.exists():
        return any(path.is_file() for pattern in OF_TOKENIZERS for path in folder.glob(pattern))
    return True  # of the hub: it is seen where it is opened


def run_of(name: str) -> Path | None:
    """Returns the directory of a local run, also from one of its checkpoints; None for any other model."""
    from limba.api import look_at

    opened = None if "://" in name else look_at(name)
    return Path(opened.directory) if opened is not None and opened.kind == "Limba" else None


def _ways(network: ModelConfig) -> tuple[str, ...]:
    if network.predicts_next:
        return MASKED, CAUSAL
    if network.is_encoder:
        return (MASKED,)
    return (CAUSAL,) if network.is_decoder_only else (GAPS,)


def _has_no_start(trained: TrainedModel) -> bool:
    special = trained.special_ids
    return special.start is None and not special.before


def _may_be_foreign(name: str) -> bool:
    """Returns whether a name is a folder for transformers, or may be a model on the hub."""
    from limba.api import look_at

    folder = Path(name).expanduser()
    if folder.exists():
        return (folder / "config.json").is_file() and look_at(name) is None
    return hub_id(name) is not None


def _foreign(name: str, error: InputError | None) -> Scorer:
    """Returns the model that transformers opens; raises the error of `limba.load` where no model has that name."""
    if error is not None and not _may_be_foreign(name):
        raise error
    from limba.tools.results import foreign_scorer

    try:
        return foreign_scorer.open_folder(name)
    except foreign_scorer.NotThereError as not_there:
        raise error or not_there from None
