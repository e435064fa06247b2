"""What lies at a path: the one place that decides whether it is a model, and of which kind.

`open_path` takes whatever a user names: a run of Limba or of T5X, one of its checkpoints, a folder for transformers, an
address in a bucket, or a hub id. It looks at the names of files; configurations and arrays are read when they are asked
for. A path without a model gives one sentence, the same wherever it was named.

A model may be refused at four points, in this order: there is none at the path (`_without_model`); config.json
describes another network (`huggingface.model_config`, with the keys of `huggingface_keys.py`); the arrays do not fit
that network (`architectures.check_arrays`); the tokenizer is of a class that is not read here
(`limba/data/vocabulary/tokenizer_classes.py`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from etils import epath

from limba.config import InputError, ModelConfig, NoModelError, RunConfig, reason_of, saved_config
from limba.formats import hub_models, huggingface, limba_checkpoint, t5x, weights
from limba.formats.architectures import check_arrays
from limba.formats.huggingface_tokenizer import extra_ids_in
from limba.formats.names import Arrays, Json
from limba.formats.sentence_modules import transformer_folder
from limba.storage.files import read_text, resolved

Kind = Literal["Limba", "T5X", "Hugging Face"]
LIMBA: Kind = "Limba"
T5X: Kind = "T5X"
HUGGING_FACE: Kind = "Hugging Face"
# The vocabularies that are read beside a model; the first that exists is taken.
VOCABULARIES = ("spiece.model", "tokenizer.json")
# What a run writes before it saves its first checkpoint.
FILES_OF_A_RUN = ("metrics.jsonl", "lease")
OF_LIMBA = "a Limba run (checkpoints/<step>)"
OF_T5X = "a T5X checkpoint (checkpoint_<step>)"
OF_HUGGING_FACE = "a Hugging Face folder (config.json with model.safetensors, flax_model.msgpack or pytorch_model.bin)"
_HUB_ADDRESS = "hf://"  # of files, which are read as text and as vocabularies
_T5X_STEP = re.compile(r"checkpoint_\d+")
_EXPORT = re.compile(r"step_\d+")  # as export writes its folders
_MESH_TENSORFLOW = re.compile(r"(?:(mt5|byt5)/(\w+)/)?model\.ckpt-(\d+)$")


class VocabularyName(NamedTuple):
    """The name of a vocabulary in a configuration; it is not opened yet.

    >>> VocabularyName("byte").extra_ids is None
    True
    """

    path: str  # of a SentencePiece model or a tokenizer.json, or 'byte'
    # Sentinels above the pieces; None: as many as the model itself has, else 100, and 0 for bytes and a language model.
    extra_ids: int | None = None
    named_in: str = ""  # the folder whose files name it


@dataclass(frozen=True)
class Opened:
    """A model at a path, of which only the names of its files are known yet. `open_path` makes it."""

    path: str  # as it was given
    directory: epath.Path  # the run's, or the folder with the network's config.json
    steps: Mapping[int, epath.Path]  # step -> its checkpoint; a Hugging Face folder is step 0
    kind: Kind
    best: epath.Path | None = None  # the best checkpoint of a Limba run that keeps one, in a directory of its own
    is_checkpoint: bool = False  # the path names one checkpoint of a run, not the run

    @property
    def is_own_run(self) -> bool:
        """True for the directory of a Limba run, not one checkpoint in it."""
        return self.kind == LIMBA and not self.is_checkpoint

    @property
    def newest(self) -> epath.Path:
        """The checkpoint with the highest step."""
        return self.steps[max(self.steps)]

    @property
    def best_step(self) -> int | None:
        """The step of the best checkpoint; None without one."""
        return None if self.best is None else int(self.best.name)

    def step_of(self, step: int | None) -> int:
        """Returns the step, or the newest one for None; InputError if there is no such checkpoint."""
        if step is not None and step not in self.steps:
            raise no_step(step, self.path, self.steps)
        return max(self.steps) if step is None else step

    def checkpoint(self, step: int | None = None) -> epath.Path:
        """Returns the checkpoint at a step, the newest one for None; InputError if there is no such step."""
        return self.steps[self.step_of(step)]

    def read_config(self) -> RunConfig | ModelConfig:
        """Returns what the files say: a run's configuration, or the network alone.

        A T5X checkpoint's network follows from the shapes of its arrays. Raises InputError for a configuration that is
        missing, cannot be read, or describes a network that Limba does not have.
        """
        if self.kind == LIMBA:
            return read_config(self.directory)
        if self.kind == T5X:
            return t5x_network(self.newest)
        return huggingface.model_config(Path(self.directory))

    def vocabulary_in_folder(self) -> VocabularyName | None:
        """Returns the vocabulary in the folder; None without one. What a run names is in its configuration."""
        return vocabulary_beside(self.directory, None)


def open_path(path: str, with_weights: bool = True) -> Opened:
    """Returns the model at a path.

    `path` is a Limba or T5X run (legacy or Orbax), one of its checkpoints, a Hugging Face folder, or a hub id
    (user/name or user/name@revision), which is downloaded unless a local path has that name. In a folder with several
    of these the first in this order counts. Without `with_weights` only the small files of a hub model are downloaded.

    Raises NoModelError, with what there is instead, if no model is at the path; InputError for a hub id that cannot be
    downloaded.
    """
    _check_form(path)
    opened = look_at(path)
    if opened is not None:
        return opened
    if "://" in path:
        folder = hub_models.from_bucket(path)
    elif is_on_hub(path):
        folder = hub_models.download(path, weights=with_weights)
        if not with_weights:
            return _opened_folder(path, transformer_folder(folder))
    else:
        folder = Path(os.path.expanduser(path))
    if folder is not None:
        folder = transformer_folder(folder)
        if huggingface.has_flax_alone(folder):
            raise NoModelError(huggingface.OF_FLAX.format(path))
        if weights.is_huggingface(folder):
            return _opened_folder(path, folder)
        if is_on_hub(path):
            raise NoModelError(f"{path} is not a whole model in the hub's cache: {_without_model(str(folder))}")
    raise _without_model(path)


def look_at(path: str) -> Opened | None:
    """Returns the run or checkpoint at a path, here or in a bucket; None for anything else, and nothing is downloaded.

    Raises InputError for a path that no file can have.

    >>> opened = look_at("runs/demo")
    >>> opened.kind, list(opened.steps)
    ('Limba', [9])
    >>> look_at("runs") is None
    True
    """
    if is_hub_address(path):  # runs are kept elsewhere
        return None
    root = resolved(path)
    if limba_checkpoint.is_own(root):
        return Opened(path, root.parent.parent, {int(root.name): root}, LIMBA, is_checkpoint=True)
    own_steps = limba_checkpoint.checkpoints_of(root)
    if own_steps:
        best = limba_checkpoint.checkpoints_of(root / "best")
        return Opened(path, root, own_steps, LIMBA, best[max(best)] if best else None)
    if t5x.is_t5x(root):
        tree = t5x.open_checkpoint(root)
        if t5x.STEP not in tree.stored:
            raise _without_step(path, tree)
        return Opened(path, root.parent, {tree.step: root}, T5X, is_checkpoint=True)
    t5x_steps = t5x.checkpoints_of(root)
    if t5x_steps:
        return Opened(path, root, t5x_steps, T5X)
    return None


def is_hub_address(path: str) -> bool:
    """Returns whether a path is an address of files on the hub, where neither a run nor a model lies."""
    return path.startswith(_HUB_ADDRESS)


def is_on_hub(path: str) -> bool:
    """Returns whether the text is a hub id and not a local path."""
    return "://" not in path and not os.path.exists(os.path.expanduser(path)) and hub_models.is_id(path)


def _opened_folder(path: str, folder: Path) -> Opened:
    directory = epath.Path(folder.resolve())
    return Opened(path, directory, {0: directory}, HUGGING_FACE)


def open_arrays(kind: Kind, checkpoint: epath.Path, model: ModelConfig, average: bool = True) -> Arrays:
    """Returns a network's parameters by T5X's names: an array for each layer, read on access.

    With `average` they are the average of the weights, where a Limba checkpoint has one. Its files are not
    compared with their manifest here; `limba_checkpoint.check_whole` does that. Raises InputError for an array that is
    missing, truncated, or not in the network.
    """
    if kind == HUGGING_FACE:
        return open_folder(Path(checkpoint), model)
    if kind == LIMBA:
        arrays: Arrays = limba_checkpoint.LimbaCheckpoint(checkpoint, verify=None, average=average)
    else:
        tree = t5x.open_checkpoint(checkpoint)
        tree.check_whole()
        stored = t5x.unscanned(tree, model).stored
        parameters = {name: array for name, array in stored.items() if name.startswith("target/")}
        arrays = Arrays({name.removeprefix("target/"): array for name, array in parameters.items()})
    check_arrays(arrays, model, str(checkpoint), "give the model's own configuration")
    return arrays


def open_folder(folder: Path, model: ModelConfig) -> Arrays:
    """Returns `open_arrays` of a Hugging Face folder."""
    arrays = huggingface.open_folder(folder, model)
    check_arrays(arrays, model, str(folder), "its config.json belongs to another model: copy the folder again")
    return arrays


def read_config(directory: epath.Path) -> RunConfig | ModelConfig:
    """Returns the configuration of a run directory, read from its file; InputError if there is none."""
    file = directory / saved_config.FILE
    if not file.exists():
        raise InputError(f"{directory} has no {saved_config.FILE}; copy it there, or give `config`.")
    config = saved_config.from_text(read_text(file), str(file))
    return saved_config.moved(config, str(directory)) if isinstance(config, RunConfig) else config


def t5x_network(checkpoint: epath.Path) -> ModelConfig:
    """Returns the network that follows from the array shapes of a T5X checkpoint."""
    stored = t5x.open_checkpoint(checkpoint)
    names = [name for name in stored if name.startswith("target/")]
    shapes = {name.removeprefix("target/"): stored.describe(name)[0] for name in names}
    return t5x.network_of(shapes, str(checkpoint))


def vocabulary_beside(directory: epath.Path, run: RunConfig | None) -> VocabularyName | None:
    """Returns the vocabulary that a run names, or the one in a folder."""
    if run is not None:
        data = run.data
        return None if data.vocabulary is None else VocabularyName(data.vocabulary, data.extra_ids, str(directory))
    file = directory / "tokenizer_config.json"
    try:
        tokenizer_config: Json = json.loads(read_text(file)) if file.exists() else {}
        if not isinstance(tokenizer_config, dict):
            raise ValueError("it is not a JSON object")
        specials = [
            name for name in tokenizer_config.get("additional_special_tokens") or () if "<extra_id_" in str(name)
        ]
        extra_ids = tokenizer_config.get("extra_ids", len(specials) if tokenizer_config else None)
        if not isinstance(extra_ids, int | None) or (extra_ids or 0) < 0:
            raise ValueError(f"its extra_ids are {extra_ids!r}")
    except InputError:
        raise
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{file} cannot be used ({reason_of(error)}); copy the folder again.") from error
    of_bytes = extra_ids_in(directory)
    if of_bytes is not None:  # a ByT5, whatever other files are there
        return VocabularyName("byte", of_bytes, str(directory))
    name = next((name for name in VOCABULARIES if (directory / name).exists()), None)
    return None if name is None else VocabularyName(str(directory / name), extra_ids, str(directory))


def no_step(step: int, path: str, steps: Iterable[int]) -> InputError:
    """Returns the error for a step of which there is no checkpoint."""
    return InputError(f"There is no checkpoint at step {step} in {path}; choose from {sorted(steps)}.")


def _check_form(path: str) -> None:
    """Raises NoModelError for hf://… and for a checkpoint of Mesh TensorFlow, which the path alone tells."""
    if is_hub_address(path):
        raise NoModelError(
            f"{path} is an address of files on the hub, and a model there has an id; give user/name, or"
            " user/name@revision."
        )
    old = _MESH_TENSORFLOW.search(path)
    if old is None:
        return
    family, size, step = old.groups()
    # docs/models.md of T5X lists the same models under these addresses.
    there = f"t5x/{family or 'mt5'}_{size or 'base'}/checkpoint_{step}"
    raise NoModelError(
        f"{path} is a checkpoint of Mesh TensorFlow, which is not read; Google's models are also there for T5X: give a"
        f" folder such as gs://t5-data/pretrained_models/{there}."
    )


def _without_step(path: str, names: Iterable[str]) -> InputError:
    """Returns the error for a checkpoint of these arrays, among which there is no step of T5X's."""
    if any(name.startswith(limba_checkpoint.PARAMETERS) for name in names):
        return NoModelError(
            f"{path} has the files of a Limba checkpoint, but not its name: a run has set it aside or has not finished"
            " it, or it is a copy; give the run, or one of its checkpoints/<step>."
        )
    return NoModelError(f"{path} is not a whole T5X checkpoint: it has no {t5x.STEP}; copy it again.")


def _without_model(path: str) -> InputError:
    """Returns the error for a path at which there is no model: it says what is there, as far as that can be told."""
    root = resolved(path)
    if root.name.isdigit() and root.parent.name == "checkpoints":
        steps = limba_checkpoint.checkpoints_of(root.parent.parent)
        if root.exists():
            return NoModelError(
                f"The checkpoint {path} is damaged: it has no state/manifest.ocdbt; name another step, or copy it"
                " again."
            )
        if steps:
            return NoModelError(str(no_step(int(root.name), str(root.parent.parent), steps)))
    if not root.exists():
        return NoModelError(
            f"{path} does not exist: looked there for {OF_LIMBA}, {OF_T5X} and {OF_HUGGING_FACE}; give one of these, or"
            " a hub id as user/name."
        )
    if not root.is_dir():
        return NoModelError(
            f"{path} is a file, and a model is a folder; give {OF_LIMBA}, {OF_T5X}, {OF_HUGGING_FACE}, or a hub id as"
            " user/name."
        )
    names = {child.name for child in root.iterdir()}
    if names & {*FILES_OF_A_RUN, "checkpoints"}:
        if saved_config.FILE in names:
            read_config(root)  # a run of a newer Limba may keep its checkpoints elsewhere, which this says
        return NoModelError(
            f"{path} is a run that holds no checkpoint yet; wait until it has saved its first one, or give another run."
        )
    cut = root if _T5X_STEP.fullmatch(root.name) else next((root / n for n in names if _T5X_STEP.fullmatch(n)), None)
    if cut is not None:
        return NoModelError(
            f"{path} holds no whole T5X checkpoint: {cut.name} has neither the file checkpoint nor"
            " state/manifest.ocdbt; copy it again."
        )
    if weights.ADAPTER in names:
        return NoModelError(weights.OF_AN_ADAPTER.format(path))
    if "config.json" in names:
        return NoModelError(
            f"{path} has a config.json and no weights: looked there for model.safetensors, pytorch_model.bin, an index"
            " of one of them, and flax_model.msgpack; copy the folder again, or give another."
        )
    exports = [int(name.removeprefix("step_")) for name in names if _EXPORT.fullmatch(name)]
    if exports:
        return NoModelError(
            f"{path} holds folders of exported steps, each a model; give one of them: {path.rstrip('/')}/"
            f"step_{max(exports)}."
        )
    state = "is not a model" if names else "is an empty folder"
    return NoModelError(
        f"{path} {state}: looked there for {OF_LIMBA}, {OF_T5X} and {OF_HUGGING_FACE}; give one of these, or a hub id"
        " as user/name."
    )
