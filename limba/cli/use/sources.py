"""What is to be converted: the checkpoints of a run, of ours or T5X's, with the network's configuration."""

from __future__ import annotations

import dataclasses
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import gin
import numpy as np
from etils import epath

from limba.cli import flags, gin_files
from limba.config import InputError, ModelConfig, RunConfig
from limba.formats import limba_checkpoint as own
from limba.formats import t5x
from limba.formats.huggingface_files import check_arrays
from limba.training.initial_checkpoint import unscanned

_SCANNED = re.compile(r"^target/(encoder|decoder)/\1/")
_FIELDS = {entry.name for entry in dataclasses.fields(ModelConfig)}
_TRAINING_ONLY = {"dropout_rate", "dtype", "remat", "scan_layers", "attention"}


class NamedVocabulary(NamedTuple):
    """A vocabulary as a config.gin of T5X's names it, not yet looked for."""

    path: str  # or 'byte'
    extra_ids: int | None
    place: str  # where it is named


@dataclass(frozen=True)
class Source:
    """`steps` gives each checkpoint's directory; `run` is None where only the network is known (T5X, imported)."""

    path: epath.Path  # what was named
    directory: epath.Path  # the run's
    steps: Mapping[int, epath.Path]
    kind: str  # "Limba" or "T5X"
    model: ModelConfig
    run: RunConfig | None = None
    modules: tuple[str, ...] = field(default=())  # of tasks/, that the run imports
    vocabulary: NamedVocabulary | None = None  # that a T5X config.gin names

    def arrays(self, step: int) -> Mapping[str, np.ndarray]:
        """Returns a checkpoint's parameters by T5X's names, unstacked, each read on demand.

        ConfigError where one is missing, cut short, or not the network's.
        """
        path = self.steps[step]
        if self.kind == "Limba":
            arrays: Any = own.LimbaCheckpoint(path)
            shapes = {name: arrays.describe(name)[0] for name in arrays}
        else:
            arrays = Targets(t5x.open_checkpoint(path), self.model)
            shapes = arrays.shapes()
        check_arrays(shapes, self.model, str(path), "give the model's own configuration with --config=FILE.gin")
        return arrays


class Targets(Mapping[str, np.ndarray]):
    """The parameters of a T5X checkpoint by their names, without `target/`; a scanned one is cut into layers."""

    def __init__(self, stored: t5x.StoredTree, model: ModelConfig):
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
        is_stored = self._tree is self._stored
        return {
            name: self._stored.describe(f"target/{name}")[0] if is_stored else self[name].shape for name in self._names
        }


def open_source(path: str, config: str | None) -> Source:
    """Returns what lies at `path`: a run of ours or T5X's, or one checkpoint of either.

    The network's configuration is `config`, a gin file of ours, or config.gin beside the checkpoints.
    ConfigError where there is no checkpoint, or no configuration.
    """
    place = epath.Path(path) if "://" in path else epath.Path(path).expanduser().resolve()
    if own.is_own(place):
        return _own(place, place.parent.parent, {int(place.name): place}, config)
    if found := own.checkpoints_of(place):
        return _own(place, place, found, config)
    if t5x.is_t5x(place):
        return _t5x(place, place.parent, {t5x.open_checkpoint(place).step: place}, config)
    if found := t5x.checkpoints_of(place):
        return _t5x(place, place, found, config)
    raise InputError(
        f"{path} holds no checkpoint of Limba's (checkpoints/<step>) or T5X's (checkpoint_<step>); give a run's"
        " MODEL_DIR or one checkpoint."
    )


def _own(place: epath.Path, directory: epath.Path, steps: Mapping[int, epath.Path], config: str | None) -> Source:
    source, model = _read_gin(directory / "config.gin", config, str(place), lambda source: _built(source, config))
    run = flags.build(source.text) if config is None and "RunConfig" in source.text else None
    if run is not None:
        run = _moved(run, str(directory))
    modules = tuple(dict.fromkeys(module for module, _ in source.modules))
    return Source(place, directory, steps, "Limba", model, run, modules)


def _moved(run: RunConfig, directory: str) -> RunConfig:
    """Returns the run as it is in this directory, which it may have been moved to, a vocabulary of its own too."""
    vocabulary = run.data.vocabulary
    if vocabulary is not None and vocabulary.startswith(f"{run.model_dir}/"):
        vocabulary = directory + vocabulary.removeprefix(run.model_dir)
    return dataclasses.replace(run, model_dir=directory, data=dataclasses.replace(run.data, vocabulary=vocabulary))


def _t5x(place: epath.Path, directory: epath.Path, steps: Mapping[int, epath.Path], config: str | None) -> Source:
    newest = t5x.open_checkpoint(steps[max(steps)])
    is_scanned = any(_SCANNED.match(name) for name in newest)
    beside = next((folder / "config.gin" for folder in (place, directory) if (folder / "config.gin").exists()), None)
    gin_source, model = _read_gin(
        beside or directory / "config.gin",
        config,
        str(place),
        lambda source: _built(source, config) if config else _t5x_network(source, is_scanned, str(beside)),
    )
    vocabulary = None if config else _t5x_vocabulary(gin_source, str(beside))
    return Source(place, directory, steps, "T5X", model, vocabulary=vocabulary)


def _read_gin(
    beside: epath.Path, config: str | None, place: str, build: Callable[[gin_files.Source], ModelConfig]
) -> tuple[gin_files.Source, ModelConfig]:
    """Returns the statements of `config`, or of the file beside the checkpoints, and the network they describe."""
    if config is None and not beside.exists():
        raise InputError(f"{place} has no config.gin beside it; give the network's gin file with --config=FILE.gin.")
    with tempfile.TemporaryDirectory() as folder:  # gin reads local files alone
        name = config or f"{folder}/config.gin"
        if config is None:
            Path(name).write_text(beside.read_text())
        source = gin_files.read([name], [], [Path.cwd(), flags.ROOT, flags.ROOT / "gin"])
    return source, build(source)


def _built(source: gin_files.Source, config: str | None) -> ModelConfig:
    bound = {binding.owner for binding in source.bindings if binding.field}
    if "config.ModelConfig" not in bound:
        raise InputError(f"{config or 'config.gin'} describes no config.ModelConfig; give a gin file of ours.")
    named = {binding.name: binding.value for binding in source.bindings if not binding.field}
    # gin/models/ leaves it to the run, and weights know nothing of it.
    given = "DROPOUT_RATE = 0.0\n" if named.get("DROPOUT_RATE") == gin_files.REQUIRED else ""
    gin.clear_config()
    gin.parse_config(source.text + given)
    try:
        return gin.get_configurable(ModelConfig)()
    except (InputError, TypeError) as error:
        reason = str(error).partition("\n  In call to configurable")[0].split("\n")[0]
        raise InputError(f"{config or 'config.gin'} makes no network: {reason}") from None


def _t5x_fields(source: gin_files.Source, *names: str) -> dict[str, Any]:
    """Returns the bound fields of the classes of these names, in whatever module, macros put in."""
    macros = {binding.name: binding.value for binding in source.bindings if not binding.field}
    found: dict[str, Any] = {}
    for binding in source.bindings:
        if binding.field and binding.owner.rpartition(".")[2] in names:
            value = binding.value
            for _ in range(8):  # a macro may name another
                if isinstance(value, gin_files.Macro):
                    value = macros.get(value.name, value)
            found[binding.field] = value
    return found


def _t5x_vocabulary(source: gin_files.Source, where: str) -> NamedVocabulary | None:
    """Returns the vocabulary that T5X's config names, seqio's SentencePiece or bytes, or None."""
    about = _t5x_fields(source, "SentencePieceVocabulary")
    path, extra_ids = about.get("sentencepiece_model_file"), about.get("extra_ids")
    if isinstance(path, str):
        return NamedVocabulary(path, extra_ids if isinstance(extra_ids, int) else None, where)
    used = {binding.value.name for binding in source.bindings if isinstance(binding.value, gin_files.Reference)}
    if any(name.rpartition(".")[2] == "ByteVocabulary" for name in used):
        extra_ids = _t5x_fields(source, "ByteVocabulary").get("extra_ids")
        return NamedVocabulary("byte", extra_ids if isinstance(extra_ids, int) else None, where)
    return None


def _t5x_network(source: gin_files.Source, is_scanned: bool, where: str) -> ModelConfig:
    """Returns the network of T5X's operative config: the fields of its T5Config."""
    found = _t5x_fields(source, "T5Config")
    missing = sorted(
        entry.name
        for entry in dataclasses.fields(ModelConfig)
        if entry.default is dataclasses.MISSING and not isinstance(found.get(entry.name), int)
    )
    if missing:
        raise InputError(f"{where} gives no T5Config.{missing[0]}; give the network's gin file with --config=FILE.gin.")
    fields = {name: value for name, value in found.items() if name in _FIELDS - _TRAINING_ONLY}
    fields.setdefault("mlp_activations", ("relu",))  # T5X's own default, and not ours
    return ModelConfig(**fields, relative_bias_per_layer=is_scanned)
