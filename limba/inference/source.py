"""Detects the model at a path: a Limba or T5X run, one of its checkpoints, or a Hugging Face folder."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from etils import epath

from limba import toolbox
from limba.config import InputError, ModelConfig, RunConfig, UntrustedModuleError, plain
from limba.config.environment import quiet_imports
from limba.config.errors import reason_of
from limba.data import task_modules
from limba.formats import byt5, hub_models, huggingface, limba_checkpoint, t5x
from limba.formats.huggingface_files import check_arrays
from limba.formats.t5x import network_of
from limba.storage.files import read_text, resolved

LIMBA, T5X, HUGGING_FACE = "Limba", "T5X", "Hugging Face"
VOCABULARIES = ("spiece.model", "tokenizer.json")  # beside a model; the first that exists
OF_A_RUN = ("metrics.jsonl", "lease.json")  # from before its first checkpoint on
OTHER_NETWORK = "give the model's own configuration"


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
    average: bool = True  # False: the weights as they were trained, also where the run evaluates their average

    def step_of(self, step: int | None) -> int:
        """Returns the step, or the newest one for None; InputError if the source has no such checkpoint."""
        if step is not None and step not in self.steps:
            raise InputError(f"There is no checkpoint at step {step} in {self.path}; choose from {sorted(self.steps)}.")
        return max(self.steps) if step is None else step

    def arrays(self, step: int) -> Mapping[str, np.ndarray]:
        """Returns a checkpoint's parameters by T5X's names, one array per layer; each is read on access.

        Raises InputError for a file that is not as it was saved, and for an array that is missing, truncated, or not
        in the network.
        """
        return _checked(self.kind, self.steps[step], self.model, self.verify, self.averages)

    def best_arrays(self) -> Mapping[str, np.ndarray]:
        """Returns `arrays` of `best`."""
        assert self.best is not None
        return _checked(LIMBA, self.best, self.model, self.verify, self.averages)

    @property
    def averages(self) -> bool:
        """Whether the model is the average of the weights, where a checkpoint has one: what its run evaluates."""
        return self.average and (self.run is None or self.run.evaluation.average is not None)

    @property
    def verify(self) -> str:
        """How the files of a Limba checkpoint are checked: `CheckpointConfig.verify`."""
        return "checksums" if self.run is None else self.run.checkpoint.verify


def _checked(kind: str, path: epath.Path, model: ModelConfig, verify: str, average: bool) -> Mapping[str, np.ndarray]:
    arrays: Any
    if kind == LIMBA:
        from limba.training.checkpoints.directory import check_together

        check_together(path, verify)
        arrays = limba_checkpoint.LimbaCheckpoint(path, verify=None, average=average)
        shapes = {name: arrays.describe(name)[0] for name in arrays}
    elif kind == T5X:
        arrays = Targets(t5x.open_checkpoint(path), model)
        shapes = arrays.shapes()
    else:
        return open_folder(Path(path), model)
    check_arrays(shapes, model, str(path), OTHER_NETWORK)
    return arrays


def open_folder(folder: Path, model: ModelConfig) -> Mapping[str, np.ndarray]:
    """Returns `Source.arrays` of a Hugging Face folder."""
    arrays: Any
    if model.is_decoder_only:
        arrays = huggingface.open_folder(folder, model)
        shapes = {name: array.shape for name, array in arrays.items()}
    else:
        arrays = huggingface.T5xView(folder, model)
        shapes = {name: arrays.shape(name) for name in arrays}
    check_arrays(shapes, model, str(folder), "its config.json belongs to another model: copy the folder again")
    return arrays


class Targets(Mapping[str, np.ndarray]):
    """The parameters of a T5X checkpoint by name, without `target/`; scanned ones are unstacked."""

    def __init__(self, stored: t5x.StoredTree, model: ModelConfig):
        from limba.training.checkpoints.initial import unscanned

        stored.check_whole()
        self._stored = stored
        self._tree = unscanned(stored, model)
        self._names = [name.removeprefix("target/") for name in self._tree if name.startswith("target/")]

    def __getitem__(self, name: str) -> np.ndarray:
        return self._tree[f"target/{name}"]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns name -> shape; only a scanned checkpoint is read for it."""
        describe: Any = getattr(self._tree, "describe", None)
        return {name: describe(f"target/{name}")[0] if describe else self[name].shape for name in self._names}


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
    return dataclasses.replace(_found(path, config, vocabulary), imports=tuple(allowed))


def _found(path: str, config: RunConfig | ModelConfig | None, vocabulary: VocabularyName | None) -> Source:
    place = resolved(path)
    if limba_checkpoint.is_own(place):
        return _limba(path, place.parent.parent, {int(place.name): place}, config, vocabulary)
    if found := limba_checkpoint.checkpoints_of(place):
        return _limba(path, place, found, config, vocabulary)
    if t5x.is_t5x(place):
        directory, found = place.parent, {t5x.open_checkpoint(place).step: place}
    else:
        directory, found = place, t5x.checkpoints_of(place)
    if found:
        if config is None:
            config, beside = _described(place, t5x_network(found[max(found)]))
            vocabulary = vocabulary or beside
        return _made(path, directory, found, T5X, config, vocabulary)
    folder = epath.Path(local_folder(path))
    model = config or huggingface.model_config(Path(folder))
    return _made(path, folder, {0: folder}, HUGGING_FACE, model, vocabulary)


def _made(
    path: str,
    directory: epath.Path,
    steps: Mapping[int, epath.Path],
    kind: str,
    config: RunConfig | ModelConfig,
    vocabulary: VocabularyName | None,
    best: epath.Path | None = None,
) -> Source:
    run = config if isinstance(config, RunConfig) else None
    model = config.model if isinstance(config, RunConfig) else config
    return Source(path, directory, steps, kind, model, run, vocabulary or _vocabulary_beside(directory, run), best)


def _limba(
    path: str,
    directory: epath.Path,
    steps: Mapping[int, epath.Path],
    config: RunConfig | ModelConfig | None,
    vocabulary: VocabularyName | None,
) -> Source:
    best = limba_checkpoint.checkpoints_of(directory / "best") if resolved(path) == directory else {}
    best_path = best[max(best)] if best else None
    return _made(path, directory, steps, LIMBA, config or read_config(directory), vocabulary, best_path)


def read_config(directory: epath.Path) -> RunConfig | ModelConfig:
    """Returns the configuration of a run directory, read from its file; InputError if there is none."""
    file = directory / "config.json"
    if not file.exists():
        raise InputError(f"{directory} has no config.json; copy it there, or give `config`.")
    config = plain.from_text(read_text(file), str(file))
    return plain.moved(config, str(directory)) if isinstance(config, RunConfig) else config


def _described(place: epath.Path, network: ModelConfig) -> tuple[ModelConfig, VocabularyName | None]:
    """Returns a T5X model's network and vocabulary, as its gin file has them where a tool reads that."""
    migrate = toolbox.find("migrate")
    return (network, None) if migrate is None else migrate.described(place, network)


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


def _vocabulary_beside(directory: epath.Path, run: RunConfig | None) -> VocabularyName | None:
    """Returns the vocabulary that a run names, or the one in a folder."""
    if run is not None:
        data = run.data
        return None if data.vocabulary is None else VocabularyName(data.vocabulary, data.extra_ids, str(directory))
    about: dict[str, Any] = {}
    if (directory / "tokenizer_config.json").exists():
        try:
            about = json.loads(read_text(directory / "tokenizer_config.json"))
        except (ValueError, RecursionError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"{directory / 'tokenizer_config.json'} is not JSON ({reason_of(error)}); copy the folder again."
            ) from error
        if not isinstance(about, dict):
            raise InputError(f"{directory / 'tokenizer_config.json'} is no JSON object; copy the folder again.")
    specials = [name for name in about.get("additional_special_tokens") or () if "<extra_id_" in str(name)]
    extra_ids = about.get("extra_ids", len(specials) if about else None)
    if not isinstance(extra_ids, int | None) or (extra_ids or 0) < 0:
        raise InputError(f"{directory / 'tokenizer_config.json'} gives extra_ids {extra_ids!r}; copy the folder again.")
    name = next((name for name in VOCABULARIES if (directory / name).exists()), None)
    if name is not None:
        return VocabularyName(str(directory / name), extra_ids, str(directory))
    if str(about.get("tokenizer_class", "")).startswith("ByT5"):
        return VocabularyName("byte", byt5.extra_ids_of(about), str(directory))
    return None


def open_vocabulary(source: Source, given: VocabularyName | None = None) -> tuple[VocabularyName, Any] | None:
    """Returns (name, seqio's vocabulary) of `given` or of the source; None if neither names one.

    A run that names none uses its task's. Raises InputError for a vocabulary that cannot be read, or that has more ids
    than the network has rows.
    """
    with quiet_imports():
        from limba.data.vocabulary.files import place_of
        from limba.data.vocabulary.load import NUM_SENTINELS, address_of, check_vocabulary, load_vocabulary
    name = given or source.vocabulary
    if name is not None:
        own, has_none = source.vocabulary, source.model.is_decoder_only or name.path == "byte"
        of_own = own.extra_ids if own is not None and own.path == name.path else None
        choices = (name.extra_ids, of_own, 0 if has_none else NUM_SENTINELS)
        extra_ids = next(each for each in choices if each is not None)
        name = name if given is not None else name._replace(path=place_of(name.path, str(source.directory)))
        try:
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
    check_vocabulary(loaded, source.model.vocab_size, needs_sentinels=False)
    return name, loaded


def task_of(source: Source) -> Any:
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
