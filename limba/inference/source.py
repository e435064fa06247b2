"""Detects the model at a path: a Limba or T5X run, one of its checkpoints, or a Hugging Face folder."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jax
from etils import epath

from limba import toolbox
from limba.config import InputError, ModelConfig, RunConfig, UntrustedModuleError, plain, reason_of
from limba.config.environment import quiet_imports
from limba.data import task_modules
from limba.formats import hub_models, huggingface, huggingface_files, limba_checkpoint, t5x
from limba.formats.architectures import check_arrays
from limba.formats.names import Arrays, Json
from limba.formats.sentence_modules import SentenceModules, read_modules, transformer_folder
from limba.formats.t5x import network_of
from limba.storage.files import read_text, resolved

if TYPE_CHECKING:
    from limba.data.tasks import Provider
    from limba.data.vocabulary.load import Vocabulary
    from limba.data.vocabulary.published import PublishedVocabulary
    from limba.data.vocabulary.special_ids import SpecialIds

LIMBA, T5X, HUGGING_FACE = "Limba", "T5X", "Hugging Face"
VOCABULARIES = ("spiece.model", "tokenizer.json")  # beside a model; the first that exists
# Of which transformers makes a tokenizer.json.
OTHER_VOCABULARIES = ("tokenizer.model", "sentencepiece.bpe.model", "vocab.json", "vocab.txt")
OF_A_RUN = ("metrics.jsonl", "lease.json")  # from before its first checkpoint on


class VocabularyName(NamedTuple):
    """The name of a vocabulary in a configuration; it is not opened yet."""

    path: str  # of a SentencePiece model or a tokenizer.json, or 'byte'
    extra_ids: int | None = (
        None  # sentinels above the pieces; None: as the model's own, else 100, and 0 for bytes and for a language model
    )
    place: str = ""  # the file that names it


@dataclass(frozen=True)
class Source:
    """A model on disk; only its configuration has been read. `find` makes it."""

    path: str  # as it was given
    directory: epath.Path  # of the run, or the folder
    steps: Mapping[int, epath.Path]  # step -> its checkpoint; a Hugging Face folder is step 0
    kind: str  # LIMBA, T5X or HUGGING_FACE
    model: ModelConfig
    run: RunConfig | None = None  # None if only the network is known
    vocabulary: VocabularyName | None = None
    best: epath.Path | None = None  # the best checkpoint, in a directory of its own
    imports: tuple[str, ...] = ()  # modules that may be imported beside Limba's and those of tasks/
    length: int | None = None  # of a folder: the longest text that its files say it was trained with, in tokens
    fills_gaps: bool = False  # of a folder: its record says that the T5 has learned to fill gaps, and nothing else
    average: bool = True  # False: the weights as they were trained, also where the run evaluates their average

    def step_of(self, step: int | None) -> int:
        """Returns the step, or the newest one for None; InputError if the source has no such checkpoint."""
        if step is not None and step not in self.steps:
            raise InputError(f"There is no checkpoint at step {step} in {self.path}; choose from {sorted(self.steps)}.")
        return max(self.steps) if step is None else step

    def arrays(self, step: int | None) -> Arrays:
        """Returns the parameters at a step, None for `best`'s, by T5X's names: an array per layer, read on access.

        Raises InputError for a file that is not as it was saved, and for an array that is missing, truncated, or not
        in the network.
        """
        path = self.best if step is None else self.steps[step]
        assert path is not None, "a run without a best checkpoint"
        if self.kind == HUGGING_FACE:
            return open_folder(Path(path), self.model)
        if self.kind == LIMBA:
            from limba.training.checkpoints.directory import check_together

            check_together(path, self.verify)
            arrays = limba_checkpoint.LimbaCheckpoint(path, verify=None, average=self.averages)
        else:
            tree = t5x.open_checkpoint(path)
            tree.check_whole()
            stored = t5x.unscanned(tree, self.model).stored.items()
            targets = {name.removeprefix("target/"): each for name, each in stored if name.startswith("target/")}
            arrays = Arrays(targets)
        check_arrays(arrays, self.model, str(path), "give the model's own configuration")
        return arrays

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


def open_folder(folder: Path, model: ModelConfig) -> Arrays:
    """Returns `Source.arrays` of a Hugging Face folder."""
    arrays = huggingface.open_folder(folder, model)
    check_arrays(arrays, model, str(folder), "its config.json belongs to another model: copy the folder again")
    return arrays


def find(
    path: str,
    config: RunConfig | ModelConfig | None = None,
    vocabulary: VocabularyName | None = None,
    allowed: Sequence[str] = (),
) -> Source:
    """Returns the model at `path`; the format is detected.

    `path` is a Limba or T5X run (legacy or Orbax), one of its checkpoints, a Hugging Face folder, or a hub id
    (user/name or user/name@revision), which is downloaded unless a local path has that name. Without `config` the
    network is that of config.json; a T5X checkpoint without one gets it from its arrays' shapes. The modules of
    `allowed` may be imported for the task; see `limba/inference/source.py`. Raises InputError if there is no model.
    """
    place, best = resolved(path), {}
    if limba_checkpoint.is_own(place):
        directory, steps, kind = place.parent.parent, {int(place.name): place}, LIMBA
    elif steps := limba_checkpoint.checkpoints_of(place):
        directory, kind, best = place, LIMBA, limba_checkpoint.checkpoints_of(place / "best")
    elif t5x.is_t5x(place):
        directory, steps, kind = place.parent, {t5x.open_checkpoint(place).step: place}, T5X
    elif steps := t5x.checkpoints_of(place):
        directory, kind = place, T5X
    else:
        directory = epath.Path(local_folder(path))
        steps, kind = {0: directory}, HUGGING_FACE
    if config is None and kind == T5X:
        config, migrate = t5x_network(steps[max(steps)]), toolbox.find("migrate")
        if migrate is not None:  # T5X's gin file beside it is read by a tool
            config, beside = migrate.described(place, config)
            vocabulary = vocabulary or beside
    elif config is None:
        config = read_config(directory) if kind == LIMBA else huggingface.model_config(Path(directory))
    run = config if isinstance(config, RunConfig) else None
    model = config.model if isinstance(config, RunConfig) else config
    assert model is not None, "T5X's arrays and both kinds of folders tell the network"
    vocabulary = vocabulary or vocabulary_beside(directory, run)
    newest_best = best[max(best)] if best else None
    length = None
    fills_gaps = False
    if kind == HUGGING_FACE:
        length = _length_beside(directory, model)
        fills_gaps = _json_of(directory / huggingface.RECORD).get(huggingface.ONLY_FILLS_GAPS) is True
    return Source(path, directory, steps, kind, model, run, vocabulary, newest_best, tuple(allowed), length, fills_gaps)


def trained_length(source: Source) -> int | None:
    """Returns the longest text that a model was trained with, in tokens; None where that is not known."""
    if source.run is None:
        return source.length
    data = source.run.data
    return data.sequence_length or data.task_feature_lengths.get("inputs")


def _length_beside(folder: epath.Path, model: ModelConfig) -> int | None:
    """Returns the longest text that a folder's files allow: tokenizer_config.json's, and the network's positions."""
    about = _json_of(folder / "tokenizer_config.json")
    given = about.get("model_max_length")
    found = [int(given)] if isinstance(given, int | float) and 0 < given < huggingface_files.UNKNOWN_LENGTH else []
    if model.is_encoder or (found and model.is_decoder_only):  # a tokenizer may be another, longer model's
        found.append(model.max_length)
    return min(found, default=None)


def _json_of(file: epath.Path) -> Json:
    """Returns a file's JSON object; {} where there is none, which is said where it matters."""
    try:
        found = json.loads(read_text(file)) if file.exists() else {}
    except (InputError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def described(path: str) -> tuple[ModelConfig, VocabularyName | None]:
    """Returns a model's network and its vocabulary's name, by `find`; of the hub's models the weights are not fetched.

    Raises InputError if there is no model.
    """
    if is_hub_id(path):
        folder = hub_models.download(path, weights=False)
        return huggingface.model_config(folder), vocabulary_beside(epath.Path(folder), None)
    source = find(path)
    return source.model, source.vocabulary


def read_config(directory: epath.Path) -> RunConfig | ModelConfig:
    """Returns the configuration of a run directory, read from its file; InputError if there is none."""
    file = directory / "config.json"
    if not file.exists():
        raise InputError(f"{directory} has no config.json; copy it there, or give `config`.")
    config = plain.from_text(read_text(file), str(file))
    return plain.moved(config, str(directory)) if isinstance(config, RunConfig) else config


def t5x_network(checkpoint: epath.Path) -> ModelConfig:
    """Returns the network that follows from the array shapes of a T5X checkpoint."""
    stored = t5x.open_checkpoint(checkpoint)
    names = [name for name in stored if name.startswith("target/")]
    shapes = {name.removeprefix("target/"): stored.describe(name)[0] for name in names}
    return network_of(shapes, str(checkpoint))


def is_hub_id(path: str) -> bool:
    """Returns whether the text is a hub id and not a local path."""
    return "://" not in path and not os.path.exists(os.path.expanduser(path)) and hub_models.is_id(path)


def local_folder(path: str) -> Path:
    """Returns a Hugging Face folder, downloaded if it is a hub id or in a bucket; InputError if there is none."""
    if "://" in path:
        folder = hub_models.from_bucket(path)
    else:
        folder = hub_models.download(path) if is_hub_id(path) else Path(os.path.expanduser(path))
    if folder is not None:
        folder = transformer_folder(folder)
    if folder is not None and huggingface.is_huggingface(folder):
        return folder.resolve()
    raise InputError(
        f"{path} {_instead(path)}: looked there for a Limba run (checkpoints/<step>), a T5X checkpoint"
        " (checkpoint_<step>) and a Hugging Face folder (config.json with model.safetensors, flax_model.msgpack or"
        " pytorch_model.bin); give one of these, or a hub id as user/name."
    )


def _instead(path: str) -> str:
    """Returns what is at a path without a model; InputError for a run that has no checkpoint yet, or is a newer one."""
    place = resolved(path)
    if any((place / name).exists() for name in OF_A_RUN):
        if (place / plain.FILE).exists():
            read_config(place)
        raise InputError(
            f"{path} is a run that holds no checkpoint yet; wait until it has saved its first one, or give another run."
        )
    if place.is_dir() and not any(place.iterdir()):
        return "is an empty folder"
    return "is not a model" if place.exists() else "does not exist"


def vocabulary_beside(directory: epath.Path, run: RunConfig | None) -> VocabularyName | None:
    """Returns the vocabulary that a run names, or the one in a folder."""
    if run is not None:
        data = run.data
        return None if data.vocabulary is None else VocabularyName(data.vocabulary, data.extra_ids, str(directory))
    file = directory / "tokenizer_config.json"
    try:
        about: Json = json.loads(read_text(file)) if file.exists() else {}
        if not isinstance(about, dict):
            raise ValueError("it is no JSON object")
        specials = [name for name in about.get("additional_special_tokens") or () if "<extra_id_" in str(name)]
        extra_ids = about.get("extra_ids", len(specials) if about else None)
        if not isinstance(extra_ids, int | None) or (extra_ids or 0) < 0:
            raise ValueError(f"its extra_ids are {extra_ids!r}")
    except InputError:
        raise
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{file} cannot be used ({reason_of(error)}); copy the folder again.") from error
    name = next((name for name in VOCABULARIES if (directory / name).exists()), None)
    if name is not None:
        return VocabularyName(str(directory / name), extra_ids, str(directory))
    if str(about.get("tokenizer_class", "")).startswith("ByT5"):
        return VocabularyName("byte", huggingface_files.extra_ids_of(about), str(directory))
    return None


def open_vocabulary(source: Source, given: VocabularyName | None = None) -> tuple[VocabularyName, Vocabulary] | None:
    """Returns (name, seqio's vocabulary) of `given` or of the source; None if neither names one.

    A run that names none uses its task's. A folder for transformers is read as its AutoTokenizer reads it; what is
    trained from it reads the file that the name has, as a trainer does (`tokenizers.TokenizersVocabulary`). Raises
    InputError for a vocabulary that cannot be read, or that has more ids than the network has rows.
    """
    with quiet_imports():
        from limba.data.vocabulary.files import place_of
        from limba.data.vocabulary.load import NUM_SENTINELS, address_of, check_rows, load_vocabulary
        from limba.data.vocabulary.published import PublishedVocabulary
    name = given or source.vocabulary
    if name is not None:
        own, has_none = source.vocabulary, source.model.is_decoder_only or name.path == "byte"
        of_own = own.extra_ids if own is not None and own.path == name.path else None
        choices = (name.extra_ids, of_own, 0 if has_none else NUM_SENTINELS)
        extra_ids = next(each for each in choices if each is not None)
        name = name if given is not None else name._replace(path=place_of(name.path, str(source.directory)))
        try:
            loaded = _published(source, name) if given is None else None
            if loaded is None:
                loaded = load_vocabulary(name.path, extra_ids)
        except InputError as error:
            if given is not None:
                raise
            reason = f"{name.path} gives: {reason_of(error.__cause__ or error)}"
            raise InputError(
                f"{name.place} names a vocabulary that cannot be read here ({reason}); give a copy as `vocabulary`."
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

    That is a SentencePiece model alone, where transformers has no class for it: Limba reads it by SentencePiece.
    """
    from limba.data.vocabulary import published

    if source.kind != HUGGING_FACE or name.path == "byte":
        return None
    is_alone = not (source.directory / "tokenizer.json").exists()
    if is_alone and published.class_of(published.Files.of(source.directory)) != "T5Tokenizer":
        return None
    return published.open_folder(source.directory)


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
    place = place_of(name.path, str(source.directory))
    return open_address(place) if is_folder(place) else None


def published_folder(source: Source) -> epath.Path | None:
    """Returns the folder for transformers that is the vocabulary of a run; None for others."""
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

    An encoder does, if it is no hybrid; so does the T5 of a run whose task has spans hidden, and no other objective,
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


def import_tasks(modules: Sequence[str], place: str, allowed: Sequence[str], directory: str) -> None:
    """Imports the task modules that the file or folder `place` names, if `check_imports` lets them.

    Raises InputError for one that is not found, or fails.
    """
    check_imports(modules, place, allowed, directory)
    jax.process_index()  # jax looks for its plugins, before the current folder is on the module search path
    for module in modules:
        task_modules.check(module, f"{place} imports")
    check_imports(modules, place, allowed, directory)  # again: the folders of tasks/ are known now
    with quiet_imports():
        task_modules.import_all(modules)


def evaluated(model: ModelConfig) -> ModelConfig:
    """Returns the network for evaluation: float32, no dropout, no rematerialization."""
    return dataclasses.replace(model, dtype="float32", dropout_rate=0.0, remat="none")


FREE = ("limba", "tasks")
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def check_imports(
    modules: Sequence[str], place: str, allowed: Sequence[str] = (), directory: str | None = None
) -> None:
    """Raises UntrustedModuleError for modules, named in the file or folder `place`, that may not be imported.

    Free are modules of `limba` and `tasks`, unless Python would find these inside the model's `directory`, and those of
    `allowed`, each a module or a package. Imports nothing.

    >>> check_imports(["tasks.ro", "mine.corpus"], "runs/mine", allowed=["mine"])
    """
    if refused := [name for name in modules if not _is_allowed(name, directory, allowed)]:
        is_inside = any(name.partition(".")[0] in FREE for name in refused)
        whose = "of a folder inside the model's own" if is_inside else "neither Limba's nor one of tasks/"
        fact = f"{place} names the module {' and '.join(map(repr, refused))}, {whose}, and an import would run its code"
        raise UntrustedModuleError(fact, refused)


def _is_allowed(name: str, directory: str | None, allowed: Sequence[str]) -> bool:
    if _NAME.fullmatch(name) is None:
        return False
    if any(name == each or name.startswith(f"{each}.") for each in allowed):
        return True
    package = name.partition(".")[0]
    return package in FREE and not any(_is_inside(place, directory) for place in _places(package))


def _places(package: str) -> list[str]:
    """Returns the folders of a package, where Python would look for its modules: in the current directory too."""
    if package in sys.modules:  # other folders may have been added to it
        return list(getattr(sys.modules[package], "__path__", ()))
    spec = PathFinder.find_spec(package, [*sys.path, os.getcwd()])
    return [] if spec is None else list(spec.submodule_search_locations or ())


def _is_inside(place: str, directory: str | None) -> bool:
    if directory is None or "://" in directory:
        return False
    folder = Path(os.path.realpath(os.path.expanduser(directory)))
    return Path(os.path.realpath(place)).is_relative_to(folder)
