"""A run that continues from a published model: what its gin files leave to that model, and the lines that say it.

`include 'gin/recipes/continue_{family}.gin'` is such a file (gin/continue.gin). When all files and overrides are read,
the model at INITIAL_CHECKPOINT_PATH is looked at once: its family names the file, and its network, its vocabulary and,
of a run of Limba, its objective are set after that. Whatever follows the include overrides them.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from limba.cli.gin.statements import REQUIRED, Binding, Macro, Source
from limba.config import OBJECTIVES, ConfigError, InputError, ModelConfig, RunConfig
from limba.config.data import CAUSAL
from limba.config.environment import quiet_imports

if TYPE_CHECKING:
    from limba.data.run_data import RunData
    from limba.data.vocabulary.vocabularies import Vocabulary
    from limba.inference.source import Source as Model

logger = logging.getLogger(__name__)

PATH = "INITIAL_CHECKPOINT_PATH"
# The families of models, as in the names of gin/recipes/continue_*.gin; a T5 that reads bytes has a file of its own.
T5 = "t5"
ENCODER = "encoder"
LANGUAGE_MODEL = "lm"
OF_BYTES = "byt5"
NAMES = {T5: "an encoder-decoder", ENCODER: "an encoder", LANGUAGE_MODEL: "a decoder-only model"}
# Fields of the network that say how a run computes: they stay the run's own choice, whatever the model had.
OF_RUN = ("dropout_rate", "dtype", "scan_layers", "remat", "attention")
SAMPLE_BYTES = 200_000  # of the text, in which unknown pieces and single bytes are counted
# Fields of the data that say, besides the lengths, what a run of Limba has learned.
OF_OBJECTIVE = ("objective", "noise_density", "mean_noise_span_length", "mask_share", "causal_share")


@dataclass(frozen=True)
class Continued:
    """The model that a run continues from."""

    model: Model  # its `vocabulary` is named as a run names one; where it is None, the gin files must name one

    @property
    def path(self) -> str:
        return self.model.path

    @property
    def family(self) -> str:
        """T5, ENCODER or LANGUAGE_MODEL."""
        network = self.model.model
        if network.is_encoder:
            return ENCODER
        if network.is_decoder_only:
            return LANGUAGE_MODEL
        return T5

    @property
    def network_in_words(self) -> str:
        """What the model is: its family, layers and width."""
        network = self.model.model
        layers = f"{network.num_decoder_layers} layers"
        if not network.is_decoder_only:
            layers = f"{network.num_encoder_layers} + {network.num_decoder_layers} layers"
        return f"{NAMES[self.family]} of {layers}, width {network.emb_dim:,}"

    @property
    def longest_row(self) -> int | None:
        """The most tokens that the model reads at once; None where it does not say, and for a T5, without a limit."""
        from limba.data.vocabulary.published_files import read_json

        network = self.model.model
        if not network.is_decoder_only:
            return None
        limits = [] if self.model.length is None else [self.model.length]
        if network.is_encoder or network.positions == "learned":
            limits.append(network.max_length)
        elif self.model.run is None:  # rotary positions have no end; a Llama's folder says how far it was trained
            folder_config = read_json(self.model.directory, "config.json") or {}
            trained_length = folder_config.get("max_position_embeddings")
            if isinstance(trained_length, int) and trained_length > 0:
                limits.append(trained_length)
        return min(limits, default=None)

    @property
    def objectives(self) -> list[str]:
        """The objectives that its family can learn."""
        if self.family == T5:
            return [name for name, objective in OBJECTIVES.items() if objective.has_inputs]
        if self.family == ENCODER:
            return [name for name, objective in OBJECTIVES.items() if objective.is_masked]
        return [name for name, objective in OBJECTIVES.items() if objective.for_decoder and not objective.is_masked]

    def check_objective(self, objective: object) -> None:
        """Raises ConfigError for an objective that the model's family cannot learn; other values are checked later."""
        in_a_stage = self.family == ENCODER and objective == CAUSAL  # a hybrid's first stage, before masked text
        if objective not in OBJECTIVES or objective in self.objectives or in_a_stage:
            return
        raise ConfigError(
            "DataConfig.objective",
            f"is {objective!r}, and {self.path} is {self.network_in_words}, which learns {len(self.objectives)} of the"
            f" {len(OBJECTIVES)} objectives: choose {', '.join(self.objectives)}.",
            ("DataConfig.objective", self.objectives[0]),
        )


def complete(source: Source) -> Continued | None:
    """Reads the file that an include leaves to the model's family, and sets what the model says behind it.

    Returns the model; None where no file asks for one, or where its path is not given yet. Raises InputError for a path
    without a model, and for a model that cannot be trained.
    """
    include = source.of_family
    if include is None:
        return None
    source.of_family = None
    path = _path_in(source)
    model = None if path is None else _of_run_or_path(source, path)
    vocabulary = _value_of(source, "VOCABULARY", "config.DataConfig.vocabulary")
    # Of two bindings of a name the later one counts. So the family's file comes where its include stands, then what the
    # model says, and last what the user has set behind the include.
    behind = source.bindings[include.num_before :]
    del source.bindings[include.num_before :]
    if model is None:
        include.read(T5)  # any family does: the path is missing, and the error about that needs the names of a file
    else:
        if vocabulary == REQUIRED and model.model.vocabulary is not None:
            vocabulary = model.model.vocabulary.path
        include.read(OF_BYTES if model.family == T5 and vocabulary == "byte" else model.family)
        source.bindings += [_binding(source, model, name, value) for name, value in _set_by(model)]
        source.bindings += _rows_that_fit(source, model)
    num_before = len(source.bindings)
    source.bindings += behind
    if (
        model is not None and model.family == T5
    ):  # the other families have one objective that a trained model can go on with
        source.bindings[num_before:num_before] = _of_other_objectives(source, model)
    return model


def _path_in(source: Source) -> str | None:
    """Returns the path of the model, None where it is not given; ConfigError for a value that is not a path."""
    value = _value_of(source, PATH, "config.RunConfig.initial_checkpoint_path")
    if value == REQUIRED:
        return None
    if not isinstance(value, str) or not value:
        raise ConfigError(
            "RunConfig.initial_checkpoint_path",
            f"is {value!r}, and the run continues from a model; give a hub id such as google/umt5-base, a folder"
            " for transformers, or a run.",
        )
    return value


def _value_of(source: Source, *names: str) -> object:
    """Returns the value that was last given under one of these names, of a macro its own value; REQUIRED without one.

    gin has resolved no macro yet: the file that the include leaves open may set more of them.
    """
    binding = last_binding(source, *names)
    return REQUIRED if binding is None else binding.value


def last_binding(source: Source, *names: str) -> Binding | None:
    """Returns the last binding of one of these names, of a macro its own one; None without one."""
    binding = None
    wanted: tuple[str, ...] = names
    for _ in source.bindings:  # at most once for each: macros may name each other in a circle
        found = [binding for binding in source.bindings if binding.name in wanted]
        binding = found[-1] if found else None
        if binding is None or not isinstance(binding.value, Macro) or binding.value == REQUIRED:
            break
        wanted = (binding.value.name,)
    return binding


def _of_run_or_path(source: Source, path: str) -> Continued:
    """Returns the model at a path; where it is gone and the run has begun, the run itself, which has its network."""
    try:
        return _opened(path)
    except InputError as error:
        with quiet_imports():
            from limba.formats import limba_checkpoint
            from limba.storage.files import resolved
        directory = _value_of(source, "MODEL_DIR", "config.RunConfig.model_dir")
        if not isinstance(directory, str) or not limba_checkpoint.checkpoints_of(resolved(directory)):
            raise
        logger.warning("%s The network and the vocabulary are taken from the run in %s.", error, directory)
        return _opened(directory)


def _opened(path: str) -> Continued:
    with quiet_imports():
        from limba.inference import source as models
        from limba.training.checkpoints.initial import check_initial
    model = models.find(path)
    check_initial(path, reads_folder=True)
    opened = models.open_vocabulary(model)
    if opened is None:
        return Continued(model)
    name, _ = opened
    if model.kind == models.HUGGING_FACE and name.path != "byte":
        name = models.VocabularyName(path)  # the folder: its tokenizer and its own ids, as transformers reads them
    return Continued(dataclasses.replace(model, vocabulary=name))


def _set_by(continued: Continued) -> Iterator[tuple[str, object]]:
    """Yields the fields that the model decides, with their values."""
    network = continued.model.model
    for field in dataclasses.fields(ModelConfig):
        value = getattr(network, field.name)
        if field.name not in OF_RUN and value != field.default:
            yield f"ModelConfig.{field.name}", value
    name = continued.model.vocabulary
    yield "DataConfig.vocabulary", REQUIRED if name is None else name.path
    if name is not None and name.extra_ids is not None:
        yield "DataConfig.extra_ids", name.extra_ids
    run = continued.model.run
    if run is not None and not run.data.stages:  # of several stages no single objective could be taken over
        yield "DataConfig.task_feature_lengths", dict(run.data.task_feature_lengths)
        for field_name in OF_OBJECTIVE:
            value = getattr(run.data, field_name)
            # A run without a span length has its objective's own, and not that of gin/recipes/continue_byt5.gin.
            if value is not None or field_name == "mean_noise_span_length":
                yield f"DataConfig.{field_name}", value


def _binding(source: Source, continued: Continued, field: str, value: object) -> Binding:
    """Returns the statement that sets a field: its macro, where the files have given it one, so that users can too."""
    owner, _, name = f"config.{field}".rpartition(".")
    location = f"the model {continued.path}"
    comment = ""
    if value == REQUIRED:  # the vocabulary; the comment becomes part of the error that it is missing
        comment = f"{continued.path} names none; give the path of its file, or 'byte'"
    before = [binding.value for binding in source.bindings if binding.owner == owner and binding.field == name]
    if before and isinstance(before[-1], Macro) and before[-1] != REQUIRED:
        return Binding("", before[-1].name, "", value, location, comment)
    return Binding("", owner, name, value, location, comment)


def _rows_that_fit(source: Source, continued: Continued) -> Sequence[Binding]:
    """Returns the statement of shorter rows, where the recipe's rows are longer than the model reads."""
    lengths = [binding.value for binding in source.bindings if binding.name == "TASK_FEATURE_LENGTHS"]
    longest = continued.longest_row
    if longest is None or not lengths or not isinstance(lengths[-1], dict):
        return []
    if lengths[-1].get("targets", 0) <= longest:
        return []
    return [_binding(source, continued, "DataConfig.task_feature_lengths", {"targets": longest})]


def _of_other_objectives(source: Source, model: Continued) -> Sequence[Binding]:
    """Returns the statements that take back what the model or its recipe says of an objective that is not learned.

    A user who chooses another objective has not chosen the spans of the first one.
    """
    with quiet_imports():
        from limba.data.objectives.choice import function_of
        from limba.data.objectives.token_blocks import unwrapped
    objective = _value_of(source, "OBJECTIVE", "config.DataConfig.objective")
    choices: Container[str] = ()  # of the task's own objective, which has its choices already
    if objective is not None:
        if not isinstance(objective, str) or objective not in OBJECTIVES:
            return []  # a name that is refused later
        choices = inspect.signature(unwrapped(function_of(objective))).parameters
    taken_back = []
    for name in OF_OBJECTIVE:
        is_set = _value_of(source, f"config.DataConfig.{name}") not in (None, REQUIRED)
        if is_set and name != "objective" and name not in choices:
            taken_back.append(_binding(source, model, f"DataConfig.{name}", None))
    return taken_back


def lines(continued: Continued, config: RunConfig) -> Iterator[str]:
    """Yields what a run takes from the model that it continues from, and what else it begins with."""
    from limba.data.run_data import RunData
    from limba.data.vocabulary.shifted import published_of
    from limba.inference.source import special_ids_of

    data = config.data
    num_rows = continued.model.model.vocab_size
    yield f"Continues from {continued.path}: {continued.network_in_words}, {num_rows:,} rows."
    task = RunData(data).task
    vocabulary = published_of(task.output_features["targets"].vocabulary)
    ids = special_ids_of(continued.model, vocabulary)
    after = ids.after
    # Training ends a text also where the template does not; a language model reads it as a target, with its end.
    if continued.family == LANGUAGE_MODEL or not after:
        after = ids.target([])[len(ids.before) :]
    framed = " ".join([*_names_of(vocabulary, ids.before), "text", *_names_of(vocabulary, after)])
    mask = ""
    if continued.family == ENCODER and ids.mask is not None:
        mask = f"; the mask is {_names_of(vocabulary, (ids.mask,))[0]}"
    yield f"Vocabulary: {data.vocabulary}, {vocabulary.vocab_size:,} ids; a text is read as {framed}{mask}."
    if data.sequence_length is None:
        rows = " and ".join(f"{length:,} {name}" for name, length in RunData(data, task).lengths().items())
    else:
        rows = f"{data.sequence_length:,} tokens"
    hidden = ""
    if data.noise_density is not None:
        hidden = f", {data.noise_density:.0%} of the tokens hidden"
    if data.mean_noise_span_length is not None:
        hidden += f", spans of {data.mean_noise_span_length:g} tokens"
    yield f"Objective: {data.objective}{hidden}; {data.batch_size:,} rows of {rows}."
    if data.replay_files is not None:
        yield f"Replay: {data.replay_share:.0%} of the rows come from {data.replay_files}."
    yield f"Learning rate: {_rate(config)}."
    yield from _lacking(RunData(data, task))


def _lacking(run: RunData) -> Iterator[str]:
    """Yields a warning where the vocabulary has no pieces for much of the text, which may be of another language.

    Documents that were tokenized beforehand have no text to look at.
    """
    from limba.data.sources.json_documents import TOKENS
    from limba.data.sources.units import UnitSource
    from limba.data.vocabulary.coverage import LEAST, coverage
    from limba.data.vocabulary.shifted import published_of
    from limba.data.vocabulary.text_sample import Texts

    for part in run.parts:
        if not isinstance(part.source, UnitSource) or TOKENS in part.source.keys:
            continue
        texts = Texts.of_task(part)
        documents, _ = texts.sample(run.config.train_split, SAMPLE_BYTES)
        vocabulary = published_of(part.output_features["targets"].vocabulary)
        counted = coverage(vocabulary, [text.decode("utf-8", "replace") for text in texts.in_columns(documents)])
        if counted.share < LEAST:
            yield (
                f"Warning: {part.source.name} may be of a language that the model has not learned: of the"
                f" {counted.tokens:,} tokens of a sample {counted.share:.0%} are pieces of the vocabulary,"
                f" {counted.unknown:,} are unknown and {counted.single_bytes:,} are single bytes, as in"
                f" {', '.join(map(repr, counted.examples))}; look for a model with pieces for this text."
            )


def _names_of(vocabulary: Vocabulary, ids: Sequence[int]) -> list[str]:
    from limba.data.vocabulary.piece_table import PieceTable

    return [PieceTable(vocabulary).name(number) for number in ids]


def _rate(config: RunConfig) -> str:
    """Returns the optimizer, its highest rate, and how the rate goes."""
    schedule = config.optimizer.schedule
    if config.train_steps is not None:
        schedule = schedule.in_steps(config.train_steps)
    warmup = f", reached after {schedule.warmup_steps:,} steps" if schedule.warmup_steps else ""
    falls = "" if schedule.name == "factors" else f", {schedule.name.replace('_', ' ')}"
    return f"{config.optimizer.name}, {schedule.base_learning_rate:g}{warmup}{falls}"
