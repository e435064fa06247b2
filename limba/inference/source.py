"""A model at a path with its configuration and vocabulary; its arrays are read when they are asked for."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

import jax
from etils import epath

from limba import tool_registry
from limba.config import InputError, ModelConfig, RunConfig, UntrustedModuleError, reason_of
from limba.config.environment import quiet_imports
from limba.data import task_modules
from limba.formats import huggingface, huggingface_tokenizer
from limba.formats.names import Arrays, Json
from limba.formats.open import (
    HUGGING_FACE,
    LIMBA,
    T5X,
    Opened,
    VocabularyName,
    is_on_hub,
    open_arrays,
    open_path,
    vocabulary_beside,
)
from limba.formats.sentence_modules import SentenceModules, read_modules
from limba.storage.files import read_text

if TYPE_CHECKING:
    from limba.data.tasks import Provider
    from limba.data.vocabulary.published import PublishedVocabulary
    from limba.data.vocabulary.special_ids import SpecialIds
    from limba.data.vocabulary.vocabularies import Vocabulary

logger = logging.getLogger(__name__)

# Of which transformers makes a tokenizer.json.
OTHER_VOCABULARIES = ("tokenizer.model", "sentencepiece.bpe.model", "vocab.json", "vocab.txt")

FREE = ("limba", "tasks")
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True, kw_only=True)
class Source(Opened):
    """A model at a path, whose configuration has been read. `find` makes it.

    >>> source = find("runs/demo")
    >>> source.kind, source.model.emb_dim, source.arrays(9)["token_embedder/embedding"].shape
    ('Limba', 64, (384, 64))
    """

    model: ModelConfig
    run: RunConfig | None = None  # None if only the network is known
    vocabulary: VocabularyName | None = None
    imports: tuple[str, ...] = ()  # modules that may be imported besides Limba's and tasks/'s
    length: int | None = None  # of a folder: the longest text that its files say it was trained with, in tokens
    # Of a model without a run, by the record of its folder (`learned`):
    fills_gaps: bool = False  # the T5 has learned to fill gaps, and nothing else
    ends_inputs: bool = False  # the language model has learned pairs
    average: bool = True  # False: the weights as they were trained, also where the run evaluates their average

    def arrays(self, step: int | None) -> Arrays:
        """Returns the parameters at a step, None for `best`'s, by T5X's names: an array per layer, read on access.

        Raises InputError for a file that is not as it was saved, and for an array that is missing, truncated, or not
        in the network.
        """
        path = self.best if step is None else self.steps[step]
        assert path is not None, "a run without a best checkpoint"
        if self.kind == LIMBA:
            from limba.training.checkpoints.directory import check_together

            check_together(path, self.verify)
        return open_arrays(self.kind, path, self.model, self.averages)

    def sentence_modules(self) -> SentenceModules | None:
        """Returns what a folder of sentence-transformers makes of the hidden states; None for any other model.

        Raises InputError for modules that are not known here.
        """
        if self.kind != HUGGING_FACE:
            return None
        return read_modules(Path(self.directory), huggingface.open_pytorch)

    @property
    def averages(self) -> bool:
        """Whether the model is the average of the weights, where a checkpoint has one: what its run evaluates."""
        return self.average and (self.run is None or self.run.evaluation.average is not None)

    @property
    def verify(self) -> str:
        """How the files of a Limba checkpoint are checked: `CheckpointConfig.verify`."""
        return "checksums" if self.run is None else self.run.checkpoint.verify


def find(
    path: str,
    config: RunConfig | ModelConfig | None = None,
    vocabulary: VocabularyName | None = None,
    allowed: Sequence[str] = (),
) -> Source:
    """Returns the model at `path`, which `limba.formats.open.open_path` opens, with its configuration and vocabulary.

    Without `config` config.json says the network; for a T5X checkpoint without one it follows from the arrays' shapes.
    The modules of `allowed` may be imported for the task; see `check_imports`. Raises NoModelError if there is no model
    at the path, and InputError for one that cannot be read.
    """
    opened = open_path(path)
    directory = opened.directory
    if config is None:
        config = opened.read_config()
        migrate = tool_registry.find("migrate") if opened.kind == T5X else None
        if migrate is not None:  # T5X's gin file beside it is read by a tool
            folders = (opened.newest, directory) if opened.is_checkpoint else (directory,)
            config, beside = migrate.described(folders, config)
            vocabulary = vocabulary or beside
    run = config if isinstance(config, RunConfig) else None
    model = config.model if isinstance(config, RunConfig) else config
    assert model is not None, "the files of each kind tell the network"
    length = None
    fills_gaps = False
    ends_inputs = False
    if opened.kind == HUGGING_FACE:
        length = _length_beside(directory, model)
    if run is None:
        record = json_of(directory / huggingface.RECORD)
        fills_gaps = record.get(huggingface.ONLY_FILLS_GAPS) is True
        ends_inputs = record.get(huggingface.ENDS_INPUTS) is True
    return Source(
        **vars(opened),
        model=model,
        run=run,
        vocabulary=vocabulary or vocabulary_beside(directory, run),
        imports=tuple(allowed),
        length=length,
        fills_gaps=fills_gaps,
        ends_inputs=ends_inputs,
    )


def trained_length(source: Source) -> int | None:
    """Returns the longest text that a model was trained with, in tokens; None where that is not known.

    A run that continues from a folder for transformers has that model's, unless its own rows are longer.
    """
    run = source.run
    if run is None:
        return source.length
    length = run.data.sequence_length
    if length is None:
        return run.data.task_feature_lengths.get("inputs")
    if run.initial_checkpoint_path is not None and published_of_run(source) is not None:
        return max(length, source.model.max_length)
    return length


def _length_beside(folder: epath.Path, model: ModelConfig) -> int | None:
    """Returns the longest text that a folder's files allow: tokenizer_config.json's, and the network's positions."""
    tokenizer_config = json_of(folder / "tokenizer_config.json")
    length = tokenizer_config.get("model_max_length")
    lengths = []
    if isinstance(length, int | float) and 0 < length < huggingface_tokenizer.UNKNOWN_LENGTH:
        lengths.append(int(length))
    if model.is_encoder or (lengths and model.is_decoder_only):  # a tokenizer may be another, longer model's
        lengths.append(model.max_length)
    return min(lengths, default=None)


def json_of(file: epath.Path) -> Json:
    """Returns a file's JSON object; {} where there is none, which is reported where it matters."""
    try:
        content = json.loads(read_text(file)) if file.exists() else {}
    except (InputError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def described(path: str) -> tuple[ModelConfig, VocabularyName | None]:
    """Returns a model's network and its vocabulary's name, by `find`; of the hub's models the weights are not fetched.

    Raises InputError if there is no model.

    >>> network, vocabulary = described("runs/demo")
    >>> network.emb_dim, vocabulary.path
    (64, 'byte')
    """
    if is_on_hub(path):
        opened = open_path(path, with_weights=False)
        return huggingface.model_config(Path(opened.directory)), opened.vocabulary_in_folder()
    source = find(path)
    return source.model, source.vocabulary


def open_vocabulary(source: Source, chosen: VocabularyName | None = None) -> tuple[VocabularyName, Vocabulary] | None:
    """Returns the name and the vocabulary of `chosen` or of the source; None if neither names one.

    A run that names none uses its task's. A folder for transformers is read as its AutoTokenizer reads it; what is
    trained from it reads the file that the name has, as a trainer does (`tokenizers.TokenizersVocabulary`). Raises
    InputError for a vocabulary that cannot be read, or that has more ids than the network has rows.
    """
    with quiet_imports():
        from limba.data.vocabulary.addresses import address_of
        from limba.data.vocabulary.files import place_of
        from limba.data.vocabulary.load import NUM_SENTINELS, check_rows, load_vocabulary
        from limba.data.vocabulary.published import PublishedVocabulary
    name = chosen or source.vocabulary
    if name is not None:
        of_source = source.vocabulary
        has_none = source.model.is_decoder_only or name.path == "byte"
        of_own = of_source.extra_ids if of_source is not None and of_source.path == name.path else None
        choices = (name.extra_ids, of_own, 0 if has_none else NUM_SENTINELS)
        extra_ids = next(number for number in choices if number is not None)
        name = name if chosen is not None else name._replace(path=place_of(name.path, str(source.directory)))
        loaded = _published(source, name) if chosen is None else None  # whose sentence says itself what to do
        try:
            if loaded is None:
                loaded = load_vocabulary(name.path, extra_ids)
        except InputError as error:
            if chosen is not None:
                raise
            reason = f"{name.path} gives: {reason_of(error.__cause__ or error)}"
            raise InputError(
                f"{name.named_in} names a vocabulary that cannot be read here ({reason}); give a copy as `vocabulary`."
            ) from error
        name = name._replace(extra_ids=extra_ids)
    elif source.run is not None:
        loaded = task_of(source).output_features["targets"].vocabulary
        name = VocabularyName(address_of(loaded) or "byte", loaded.extra_ids, str(source.directory))
    else:
        return None
    if isinstance(loaded, PublishedVocabulary):
        loaded.check_rows(source.model.vocab_size)
    else:
        check_rows(loaded, source.model.vocab_size)
    return name, loaded


def _published(source: Source, name: VocabularyName) -> Vocabulary | None:
    """Returns what AutoTokenizer reads in a folder for transformers; None for bytes, and for what it cannot read.

    That is a SentencePiece model alone, where transformers has no class for it: Limba reads it by SentencePiece. Raises
    InputError for a ByT5 with tokens of its own.
    """
    from limba.data.vocabulary.published import check_bytes, open_folder
    from limba.data.vocabulary.published_files import Files
    from limba.data.vocabulary.tokenizer_classes import class_of

    if source.kind != HUGGING_FACE:
        return None
    if name.path == "byte":
        check_bytes(source.directory)
        return None
    is_alone = not (source.directory / "tokenizer.json").exists()
    if is_alone and class_of(Files.of(source.directory)) != "T5Tokenizer":
        return None
    return open_folder(source.directory)


def special_ids_of(source: Source, vocabulary: Vocabulary | None) -> SpecialIds:
    """Returns the ids with a role in a source's model, which reads its text by this vocabulary."""
    from limba.data.vocabulary.special_ids import of_folder, of_run

    if source.kind == HUGGING_FACE:
        return of_folder(source.directory, vocabulary, source.model)
    return of_run(published_of_run(source) or vocabulary, source.model)


def published_of_run(source: Source) -> PublishedVocabulary | None:
    """Returns the vocabulary of a run that is a folder for transformers, from the run's own copy; None for others."""
    name = source.vocabulary
    if source.run is None or name is None:
        return None
    with quiet_imports():
        from limba.data.vocabulary.files import is_folder, place_of
        from limba.data.vocabulary.published import open_address
    address = place_of(name.path, str(source.directory))
    return open_address(address) if is_folder(address) else None


def published_folder(source: Source, opened: VocabularyName | None) -> epath.Path | None:
    """Returns the folder for transformers whose files say how a model's text is read; None for Limba's own layout.

    It is a run's vocabulary, or the model itself, unless that was opened with another vocabulary than its own.
    """
    if source.kind == HUGGING_FACE:
        own = None if source.vocabulary is None else source.vocabulary.path
        return source.directory if opened is None or opened.path == own else None
    published = published_of_run(source)
    return None if published is None else published.folder


def task_of(source: Source) -> Provider:
    """Imports the task modules of the source's run, and returns its seqio task or mixture.

    Raises UntrustedModuleError for a module that may not be imported, and InputError if an import fails.
    """
    run = source.run
    assert run is not None
    directory = str(source.directory)
    import_tasks(run.data.task_modules, directory, source.imports, directory)
    with quiet_imports():
        from limba.data.tasks import resolve_task
    return resolve_task(run.data, directory)


def only_fills_gaps(source: Source) -> bool:
    """Returns whether a model is known to fill gaps and to write no running text.

    An encoder does, unless it is a hybrid; so does the T5 of a run whose task has spans hidden, and no other objective,
    and the folder that is exported from it. Of any other T5 without a run, and of a run whose task cannot be imported
    here, it is not known.
    """
    model = source.model
    if not model.has_logits:
        return False
    if model.is_encoder:
        return not model.predicts_next
    if source.run is None:
        return source.fills_gaps and not model.is_decoder_only
    if model.is_decoder_only or source.run.data.stages:
        return False
    try:
        task = task_of(source)
    except InputError:
        return False
    from limba.data.objectives.choice import has_only_gaps

    return has_only_gaps(task)


def input_end_of(source: Source, special: SpecialIds) -> int | None:
    """Returns the id that ends the inputs of a language model that learned pairs; None for any other model.

    A run's task says it, and for a model without a run the record of its folder. If the task cannot be imported, it is
    not known.
    """
    model = source.model
    if not model.is_decoder_only or model.is_encoder:
        return None
    run = source.run
    if run is None:
        return special.end_of_row if source.ends_inputs else None
    if run.data.objective is not None:  # rows of text
        return None
    try:
        task = task_of(source)
    except InputError as error:
        logger.warning("Prompts are read without an end, whatever the model learned: %s", error)
        return None
    from limba.data.objectives.supervised import input_end_of

    return input_end_of(task)


def learned(source: Source, special: SpecialIds) -> dict[str, bool]:
    """Returns what a folder's record (`huggingface.RECORD`) keeps of what a model has learned; `find` reads it."""
    record = {}
    is_t5 = source.model.num_encoder_layers > 0
    if is_t5 and only_fills_gaps(source):
        record[huggingface.ONLY_FILLS_GAPS] = True
    if input_end_of(source, special) is not None:
        record[huggingface.ENDS_INPUTS] = True
    return record


def unused_sentinels(source: Source, vocabulary: Vocabulary | None) -> list[int]:
    """Returns the sentinels of a model that was fine-tuned without them; pretraining needs them."""
    if source.run is None or vocabulary is None or source.model.is_decoder_only:
        return []
    try:
        task = task_of(source)
    except InputError:
        return []
    from limba.data.tasks import needs_sentinels
    from limba.data.vocabulary.sentinels import num_sentinels, sentinel_ids

    return [] if needs_sentinels(task) else sentinel_ids(vocabulary, num_sentinels(vocabulary))


def import_tasks(modules: Sequence[str], where: str, allowed: Sequence[str], directory: str) -> None:
    """Imports the task modules that the file or folder `where` names, if `check_imports` lets them.

    Raises InputError for one that is not found, or fails.
    """
    check_imports(modules, where, allowed, directory)
    jax.process_index()  # jax looks for its plugins, before the current folder is on the module search path
    for module in modules:
        task_modules.check(module, f"{where} imports")
    check_imports(modules, where, allowed, directory)  # again: the folders of tasks/ are known now
    with quiet_imports():
        task_modules.import_all(modules)


def evaluated(model: ModelConfig) -> ModelConfig:
    """Returns the network for evaluation: float32, no dropout, no rematerialization."""
    return dataclasses.replace(model, dtype="float32", dropout_rate=0.0, remat="none")


def check_imports(
    modules: Sequence[str], where: str, allowed: Sequence[str] = (), directory: str | None = None
) -> None:
    """Raises UntrustedModuleError for modules, named in the file or folder `where`, that may not be imported.

    Modules of `limba` and `tasks` are free, unless Python would find them inside the model's `directory`; `allowed`
    names other modules and packages that are. Imports nothing.

    >>> check_imports(["tasks.ro", "mine.corpus"], "runs/mine", allowed=["mine"])
    """
    if refused := [name for name in modules if not _is_allowed(name, directory, allowed)]:
        is_inside = any(name.partition(".")[0] in FREE for name in refused)
        whose = "of a folder inside the model's own" if is_inside else "neither Limba's nor one of tasks/"
        fact = f"{where} names the module {' and '.join(map(repr, refused))}, {whose}, and an import would run its code"
        raise UntrustedModuleError(fact, refused)


def _is_allowed(name: str, directory: str | None, allowed: Sequence[str]) -> bool:
    if _NAME.fullmatch(name) is None:
        return False
    if any(name == known or name.startswith(f"{known}.") for known in allowed):
        return True
    package = name.partition(".")[0]
    return package in FREE and not any(_is_inside(path, directory) for path in _package_folders(package))


def _package_folders(package: str) -> list[str]:
    """Returns the folders of a package, where Python would look for its modules: in the current directory too."""
    if package in sys.modules:  # other folders may have been added to it
        return list(getattr(sys.modules[package], "__path__", ()))
    spec = PathFinder.find_spec(package, [*sys.path, os.getcwd()])
    return [] if spec is None else list(spec.submodule_search_locations or ())


def _is_inside(path: str, directory: str | None) -> bool:
    if directory is None or "://" in directory:
        return False
    folder = Path(os.path.realpath(os.path.expanduser(directory)))
    return Path(os.path.realpath(path)).is_relative_to(folder)
