"""The choice of data: task, corpus, vocabulary, objective, lengths, batch and shards."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from limba.config import kinds
from limba.config.errors import require
from limba.config.kinds import ClosedShare, Limit, NonNegativeInt, OpenShare, PositiveFloat, PositiveInt, choice


class Objective(NamedTuple):
    """What the rows of an objective are, and its module of `limba/data/objectives/`.

    The module has two functions: one with the objective's name, a preprocessor of seqio, and one with the ending
    _lengths, from the configured lengths to the lengths of the objective's rows (`spans.py` shows both). Nothing else
    has to know of it: choices, checks and messages follow from this table.
    """

    module: str
    has_inputs: bool = True  # which an encoder reads, and a decoder-only model as a prefix
    for_decoder: bool = False  # a decoder-only model can learn it
    is_masked: bool = False  # an encoder can: its inputs are its targets, some of them hidden
    has_only_gaps: bool = False  # a T5 that learned nothing else writes the words of gaps, not running text

    @property
    def has_prefix(self) -> bool:
        """Whether a decoder-only model reads a part of each row without predicting it."""
        return self.for_decoder and self.has_inputs


OBJECTIVES = {
    "span_corruption": Objective("spans", has_only_gaps=True),
    "whole_word_span_corruption": Objective("whole_words", has_only_gaps=True),
    "ul2": Objective("denoisers"),
    "prefix_lm": Objective("language_modeling", for_decoder=True),
    "lm_adaptation": Objective("language_modeling", for_decoder=True),
    "causal_lm": Objective("language_modeling", has_inputs=False, for_decoder=True),
    "masked_lm": Objective("masked_language_modeling", has_inputs=False, for_decoder=True, is_masked=True),
    "whole_word_masked_lm": Objective("masked_language_modeling", has_inputs=False, for_decoder=True, is_masked=True),
}
ObjectiveName = Annotated[str, Limit(OBJECTIVES.__contains__, f"one of {', '.join(OBJECTIVES)}", "choose")]
CAUSAL = "causal_lm"  # which encoders learn besides a masked objective
READ_FAILURES = ("stop", "skip")
LEAST_DENSITY = 0.001  # T5 tried 0.1 to 0.5 (arXiv:1910.10683, table 6); less hides a token of many rows
USUAL_DENSITY = 0.15  # of T5 and BERT, where the run leaves it to the task
DENSITIES = f"a share from {LEAST_DENSITY} to below 1 (usual: 0.1 to 0.5)"
Density = Annotated[float, Limit(lambda value: LEAST_DENSITY <= value < 1, DENSITIES)]
SpanLength = Annotated[float, Limit(lambda value: value >= 1, "a mean of 1 or more")]
Coverage = Annotated[float, Limit(lambda value: 0 < value <= 1, "a share above 0, up to 1")]
Percent = Annotated[float, Limit(lambda value: 0 <= value < 100, "a percentage from 0 to below 100")]
Temperature = Annotated[float, Limit(lambda value: value >= 1, "1 (by size) or more")]
Seed = Annotated[int, Limit(lambda value: value >= 0, "a whole number, 0 or more: unseeded shuffles cannot be resumed")]


class ReadStage(NamedTuple):
    """What is read from one batch on, until the next stage."""

    begins: int  # its first batch; 0 for the first stage
    name: str  # its task or mixture
    objective: str | None  # None: the task's own
    density: float | None  # share of tokens that are hidden; None: the task's own


@dataclass(frozen=True)
class DataConfig:
    """What is read, and how global batches are made from it.

    With `task_feature_lengths={'inputs': 512}` the length of the targets follows from the objective (114 for span
    corruption), so that there is no padding. {'targets': 256} is for a decoder-only model: each row is one sequence of
    256 tokens; with {'targets': 626, 'prefix': 512} a pair's inputs have 512 of it, not half, and with
    {'targets': 626, 'prefix': 0} rows have no inputs, whatever the task makes. `vocabulary` and `data_files` replace
    the task's own.

    >>> DataConfig("my_task", {"inputs": 512}, batch_size=128).rows_per_shard
    8
    """

    mixture_or_task_name: str  # name of a seqio task or mixture that the run imports
    task_feature_lengths: Mapping[str, int]  # tokens per example, such as {'inputs': 512}; what is missing is derived
    batch_size: PositiveInt  # examples per optimizer step, over all devices
    vocabulary: str | None = None  # path of a file, folder or hub id of a published model, 'byte'; None: the task's own
    extra_ids: NonNegativeInt = 100  # sentinels above `vocabulary`'s pieces; 0 with 'byte': the last bytes, as ByT5's
    new_vocabulary_size: PositiveInt | None = None  # ids, with sentinels, of one to train if the file is missing
    new_vocabulary_bytes: PositiveInt = 400_000_000  # maximum bytes of training text to train it on
    new_vocabulary_coverage: Coverage = 0.9995  # share of letters with a piece of their own; others are bytes
    objective: ObjectiveName | None = None  # None: the task's own
    noise_density: Density | None = None  # share of tokens that are hidden (T5, BERT: 0.15); None: the task's own
    mask_share: Coverage | None = None  # share of hidden tokens shown as a mask (BERT: 0.8); None: the task's own
    mean_noise_span_length: SpanLength | None = None  # in tokens (T5: 3); None: the task's own
    causal_share: ClosedShare | None = None  # of an encoder's texts that are read causally (GPT-BERT's hybrid)
    pack: bool = False  # several short examples in a row, separated by segment ids
    data_files: str | tuple[str, ...] | Mapping[str, str] | None = None  # read instead of the task's source
    column: str | Mapping[str, str] = "text"  # column of data_files, or {'inputs': 'en', 'targets': 'ms'}
    # other text, given as data_files is, that is mixed into the training text against forgetting; None: none
    replay_files: str | tuple[str, ...] | Mapping[str, str] | None = None
    replay_share: OpenShare = 0.05  # of the rows that come from replay_files
    prefix: str | None = None  # added before each input of a supervised task; None: the task's
    validation_percent: Percent = 1.0  # of data_files without a validation split; chosen by document hash
    read_timeout_seconds: PositiveFloat = 60.0  # time limit of one request for part of a remote file
    read_attempts: PositiveInt = 6  # attempts of a request, with growing pauses
    # after the last attempt, or for damaged files; 'skip' skips the rest of the unit
    on_read_failure: Annotated[str, choice(*READ_FAILURES)] = "stop"
    # if a resumed run finds other text; 'new_epoch' starts with the current files
    on_changed_corpus: Annotated[str, choice("refuse", "new_epoch")] = "refuse"
    skip: str | None = None  # a skipped_batches.jsonl of another run, whose batches are passed over
    train_split: str = "train"  # split that is trained on
    validation_split: str = "validation"  # split that is evaluated
    shuffle: bool = True  # False: documents in the order of the files
    shuffle_buffer: NonNegativeInt = 0  # rows of a window of each shard, which are shuffled again
    cache_dir: str | None = None  # folder of task caches, written by seqio_cache_tasks
    seed: Seed = 0  # of the order of documents, and of masks
    num_epochs: PositiveInt | None = None  # passes over the corpora, after which the run ends; None: no limit
    max_examples: PositiveInt | None = None  # the first documents of each corpus that are read; None: all
    # (step, task or mixture) whose text is read from that step on; or these and an objective, and its noise_density
    stages: tuple[tuple[int, str] | tuple[int, str, str] | tuple[int, str, str, float], ...] = ()
    # a mixture's rates from its corpora's sizes (mT5: 3.33); None: its own
    mixture_temperature: Temperature | None = None
    num_data_shards: PositiveInt | None = None  # fixed during a run; None: gcd(batch_size, 16)
    num_reader_processes: PositiveInt = 1  # processes that read a host's shards; may change when a run resumes
    task_modules: tuple[str, ...] = ()  # modules that register the tasks, for those processes; set by the front end

    def __post_init__(self) -> None:
        kinds.check(self, of_64_bits=("seed", "new_vocabulary_bytes"), may_be_empty=("prefix",))
        lengths = self.task_feature_lengths
        require(
            set(lengths) == {"targets", "prefix"} or (bool(lengths) and set(lengths) <= {"inputs", "targets"}),
            "DataConfig.task_feature_lengths",
            f"is {lengths!r}; give {{'inputs': 512}}, or with 'targets' too, or {{'targets': 256}}"
            " for a decoder-only model.",
        )
        for name, length in lengths.items():
            require(
                length > 0 or (name == "prefix" and length == 0),
                "DataConfig.task_feature_lengths",
                f"gives {length!r} for {name!r}; give a whole number above 0.",
            )
        require(
            "prefix" not in lengths or lengths["prefix"] < lengths["targets"],
            "DataConfig.task_feature_lengths",
            f"gives {dict(lengths)!r}, and 'prefix' is the inputs' part of 'targets'; give a smaller one.",
        )
        if self.sequence_length is not None and self.objective is not None:
            require(
                OBJECTIVES[self.objective].for_decoder,
                "DataConfig.objective",
                f"is {self.objective!r} and DataConfig.task_feature_lengths {dict(lengths)}, without inputs; choose one"
                f" of {', '.join(name for name, objective in OBJECTIVES.items() if objective.for_decoder)}, or give"
                " {'inputs': 512}.",
            )
        self._check_vocabulary()
        self._check_corpus()
        self._check_stages()
        num_shards = math.gcd(self.batch_size, 16) if self.num_data_shards is None else self.num_data_shards
        object.__setattr__(self, "num_data_shards", num_shards)
        require(
            self.batch_size % num_shards == 0,
            "DataConfig.batch_size",
            f"{self.batch_size} does not divide by the {num_shards} shards in which the text is read"
            f" (DataConfig.num_data_shards); make it a multiple of {num_shards}.",
            ("DataConfig.batch_size", -(-self.batch_size // num_shards) * num_shards),
        )

    def _check_vocabulary(self) -> None:
        size = self.new_vocabulary_size
        require(
            size is None or self.vocabulary != "byte",
            "DataConfig.new_vocabulary_size",
            f"is {size}, and DataConfig.vocabulary 'byte', which is trained on nothing; set it to None, or give the"
            " path of a vocabulary to train.",
            ("DataConfig.new_vocabulary_size", None),
        )
        require(
            size is None or size > self.extra_ids,
            "DataConfig.new_vocabulary_size",
            f"is {size}, and DataConfig.extra_ids {self.extra_ids} of these are sentinels; give more ids than that.",
        )

    def _check_corpus(self) -> None:
        require(
            self.cache_dir is None or self.data_files is None,
            "DataConfig.cache_dir",
            "is the cache of a task, and DataConfig.data_files names another corpus; leave out one of them.",
        )
        require(
            self.data_files is not None or self.column == "text",
            "DataConfig.column",
            f"is {self.column!r}, and DataConfig.data_files, whose column it is, is not set; set that too.",
        )
        for name in ("data_files", "replay_files"):
            files = getattr(self, name)
            require(
                files is None or isinstance(files, os.PathLike) or len(files) > 0,
                f"DataConfig.{name}",
                f"is {files!r}; give the path of a file, a pattern such as 'data/*.jsonl', or None.",
            )

    def _check_stages(self) -> None:
        wrong = self._wrong_stage()
        require(not wrong, "DataConfig.stages", f"is {self.stages!r}, and {wrong}.")

    def _wrong_stage(self) -> str:
        """Returns what is wrong with the stages, and what to do; "" if they can be read."""
        for stage in self._read:
            if stage.density is not None and not LEAST_DENSITY <= stage.density < 1:
                return f"{stage.density} is not a share of hidden tokens; give {DENSITIES}"
        for stage in self._read:
            if stage.objective is not None and stage.objective not in OBJECTIVES:
                return f"{stage.objective!r} is not an objective; choose one of {', '.join(OBJECTIVES)}"
        if self.stages and self.num_epochs is not None:
            return f"DataConfig.num_epochs {self.num_epochs}: stages end at steps; give RunConfig.train_steps instead"
        first = f"DataConfig.mixture_or_task_name, {self.mixture_or_task_name!r}"
        for before, stage in itertools.pairwise(self._read):
            step = stage.begins
            if step < 1:
                return f"one begins at step {step:,}: what is read from step 0 on is {first}; let them begin later"
            if step == before.begins:
                return f"two stages overlap: both begin at step {step:,}; leave out one of them, or name a mixture"
            if step < before.begins:
                return (
                    f"step {step:,} comes after {before.begins:,}: one stage follows another; order them by their steps"
                )
            if stage[1:] == before[1:]:
                return f"{stage.name!r} follows itself (the first stage is {first}); leave out one of the two"
        if self.is_masked:
            for stage in self._read:
                if stage.objective != CAUSAL and not _is_masked(stage.objective):
                    return (
                        f"an encoder's stages learn {CAUSAL} or masked tokens, not {stage.objective}; name one for each"
                    )
        return ""

    @property
    def of_stages(self) -> dict[int, DataConfig]:
        """The choice of data of each stage, by the number of its first batch; itself at 0 without `stages`.

        A later stage reads its task's own files, with the task's own prefix, unless it is the first one's task with an
        objective. Its seed is `seed` plus its first batch: where two stages share a corpus, the second one reads it in
        another order.
        """
        if not self.stages:
            return {0: self}
        masked = [stage.objective for stage in self._read if _is_masked(stage.objective)]
        mixes_both = bool(masked) and self._has_causal_stage
        choices: dict[int, DataConfig] = {}
        for index, stage in enumerate(self._read):
            objective = stage.objective
            causal_share = self.causal_share
            if mixes_both and objective == CAUSAL:  # causal rows are rows of the masked objective with nothing hidden
                objective = masked[0]
                causal_share = 1.0
            elif mixes_both:
                causal_share = causal_share or 0.0
            stage_config = dataclasses.replace(
                self,
                seed=self.seed + stage.begins,
                stages=(),
                objective=objective,
                causal_share=causal_share,
                noise_density=stage.density,
            )
            is_later = index > 0
            names_only_a_task = is_later and len(self.stages[index - 1]) == 2
            if is_later and (names_only_a_task or stage.name != self.mixture_or_task_name):
                stage_config = dataclasses.replace(
                    stage_config, mixture_or_task_name=stage.name, data_files=None, column="text", prefix=None
                )
            choices[stage.begins] = stage_config
        return choices

    @property
    def _read(self) -> tuple[ReadStage, ...]:
        """The stages, the first one included, with the run's own objective and density where they have none."""
        stages = [ReadStage(0, self.mixture_or_task_name, self.objective, self.noise_density)]
        for begins, name, *settings in self.stages:
            objective = settings[0] if settings else self.objective
            density = settings[1] if len(settings) > 1 else self.noise_density
            stages.append(ReadStage(begins, name, objective, density))  # pyright: ignore[reportArgumentType]
        return tuple(stages)

    @property
    def _has_causal_stage(self) -> bool:
        return any(stage.objective == CAUSAL for stage in self._read)

    def stage_of(self, batch: int) -> int:
        """Returns the first batch of the stage that a batch belongs to; batch n, from 0, is read in step n + 1.

        >>> DataConfig("a", {"inputs": 512}, 8, stages=((10, "b"),)).stage_of(9)
        0
        """
        return max(stage.begins for stage in self._read if stage.begins <= max(batch, 0))

    def stages_before(self, step: int) -> tuple[tuple[int, str], ...]:
        """Returns (first batch, name) of each stage that is read before a step; always the first one, at 0.

        The name is the task's or mixture's, with the objective and its share where stages have their own.

        >>> DataConfig("a", {"inputs": 512}, 8, stages=((10, "b"),)).stages_before(11)
        ((0, 'a'), (10, 'b'))
        """
        return tuple(stage for stage in self.named_stages if stage[0] < max(step, 1))

    @property
    def named_stages(self) -> tuple[tuple[int, str], ...]:
        """(first batch, name) of each stage; see `stages_before`."""
        differ_by_objective = len({stage.objective for stage in self._read}) > 1
        differ_by_density = len({stage.density for stage in self._read}) > 1
        names: list[tuple[int, str]] = []
        for stage in self._read:
            choices: list[str] = []
            if differ_by_objective and stage.objective is not None:
                choices.append(stage.objective)
            if differ_by_density and stage.density is not None:
                choices.append(str(stage.density))
            name = f"{stage.name} ({', '.join(choices)})" if choices else stage.name
            names.append((stage.begins, name))
        return tuple(names)

    @property
    def sequence_length(self) -> int | None:
        """The length of a decoder-only model's sequence; None for an encoder-decoder."""
        return None if "inputs" in self.task_feature_lengths else self.task_feature_lengths["targets"]

    @property
    def is_masked(self) -> bool:
        """Whether rows are for an encoder: targets, and the same with some of them hidden."""
        return any(_is_masked(stage.objective) for stage in self._read)

    @property
    def num_predicted(self) -> int | None:
        """The most tokens of an encoder's row that are predicted, a multiple of 8; None for other rows.

        A row of one text has no more: its share, the largest of all stages, rounded up. Packed ones, each with its own
        share, may have a few more: the row's last ones then have no weight. It is the whole sequence where some rows
        are causal.

        >>> DataConfig("a", {"targets": 512}, 8, objective="masked_lm").num_predicted
        80
        """
        if not self.is_masked or self.sequence_length is None:
            return None
        if self.causal_share is not None or self._has_causal_stage:
            return self.sequence_length
        largest_share = max(stage.density or USUAL_DENSITY for stage in self._read)
        hidden = math.ceil(largest_share * self.sequence_length)
        in_eights = -(-hidden // 8) * 8
        return min(in_eights, self.sequence_length)

    def predicted(self, train_steps: int) -> list[tuple[int, int, float, float]]:
        """Returns (first batch, steps, masked and causal tokens a step) of each stage; of an encoder's rows alone.

        The tokens are counted for full rows, all of whose tokens can be hidden.

        >>> DataConfig("a", {"targets": 512}, 8, objective="masked_lm", noise_density=0.25).predicted(10)
        [(0, 10, 1024.0, 0.0)]
        """
        stages = self.of_stages
        ends = (*list(stages)[1:], train_steps)
        predicted: list[tuple[int, int, float, float]] = []
        for (begins, stage), end in zip(stages.items(), ends, strict=True):
            steps = max(min(end, train_steps) - begins, 0)
            tokens = stage.batch_size * (stage.sequence_length or 0)
            causal_share = stage.causal_share or 0.0
            masked = tokens * (1 - causal_share) * (stage.noise_density or USUAL_DENSITY)
            predicted.append((begins, steps, masked, tokens * causal_share))
        return predicted

    @property
    def num_shards(self) -> int:
        """The logical data shards; `num_data_shards`, which may be given as None."""
        assert self.num_data_shards is not None  # __post_init__ has set it
        return self.num_data_shards

    @property
    def rows_per_shard(self) -> int:
        """Rows of a global batch that come from each logical data shard."""
        return self.batch_size // self.num_shards


def _is_masked(objective: str | None) -> bool:
    return objective is not None and objective in OBJECTIVES and OBJECTIVES[objective].is_masked
