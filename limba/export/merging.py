"""Averages of checkpoints: the parameters of several steps, weighted, as one checkpoint in a directory of its own.

Averaging steps of a stable learning rate does what a decay of the rate does (WSM, arXiv:2507.17634; PMA,
arXiv:2505.12082). The parameters are added up in float64 and written in float32, a block of one array at a time, so
that no host holds a whole model. What evaluating the result reads is the average of what evaluating each part reads:
the moving average of the weights where a run evaluates one, else the weights. All else of the checkpoint (optimizer
state, data position) is the newest part's.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
import tensorstore as ts
from etils import epath

from limba.config import (
    InputError,
    ModelConfig,
    RestartError,
    StorageError,
    reason_of,
    saved_config,
    without_credentials,
)
from limba.config.model import FREE_FIELDS
from limba.config.waiting import waiting
from limba.data.vocabulary.files import copies_in
from limba.formats import limba_checkpoint
from limba.formats.limba_checkpoint import PARAMETERS
from limba.formats.names import Json
from limba.inference.progress import Progress
from limba.inference.source import LIMBA, Source
from limba.storage import lease, manifest
from limba.storage.failures import is_passing, short_reason
from limba.storage.files import resolved, write_whole
from limba.training.checkpoints import arrays, step_directory

FILE = "merge.json"  # in the merged directory: which steps, with which weights
WEIGHTS = ("uniform", "ema", "wsm")
SHAPES = ("linear", "1-sqrt", "cosine")
COPIED = ("vocabulary.model", "data_revisions.json", "rows.json")  # of the newest part's run
BLOCK_BYTES = 1 << 26  # of an array, in float32, that is in memory at one time


@dataclass(frozen=True)
class Weighting:
    """How much each part counts: all the same, an exponential moving average, or as after a decay of the rate."""

    name: str = "uniform"  # one of WEIGHTS
    ema_decay: float = 0.8  # ema: the share of the average that each newer part leaves
    shape: str = "1-sqrt"  # wsm: the form of the decay, one of SHAPES

    def __post_init__(self) -> None:
        if self.name not in WEIGHTS:
            raise InputError(f"`weights` is {self.name!r}; choose from {', '.join(WEIGHTS)}.")
        if self.shape not in SHAPES:
            raise InputError(f"`shape` is {self.shape!r}; choose from {', '.join(SHAPES)}.")
        if not 0 < self.ema_decay < 1:
            raise InputError(f"`ema_decay` is {self.ema_decay!r}; give a number between 0 and 1.")

    def weights(self, steps: Sequence[int]) -> list[float]:
        """Returns the weight of each part, the oldest first; their sum is 1.

        `wsm` has the weights with which the average of checkpoints of a stable rate equals, to first order, a run
        whose rate is multiplied by w_i between parts i - 1 and i: c_0 = 1 - w_1, c_i = w_i - w_(i+1), c_k = w_k
        (arXiv:2507.17634, section 3). w_i is the decay's value at `(s_i - s_0) / (s_k - s_0)`, stretched by one
        more interval, so that for equal intervals a linear decay is the uniform average.

        >>> Weighting("wsm", shape="linear").weights([10, 20, 30, 40])
        [0.25, 0.25, 0.25, 0.25]
        >>> [round(weight, 3) for weight in Weighting("wsm", shape="1-sqrt").weights([10, 20, 30, 40])]
        [0.5, 0.207, 0.159, 0.134]
        >>> Weighting("ema", ema_decay=0.5).weights([1, 2, 3])
        [0.25, 0.25, 0.5]
        """
        k = len(steps) - 1
        if self.name == "ema":
            decay = self.ema_decay
            return [decay**k] + [(1 - decay) * decay ** (k - i) for i in range(1, k + 1)]
        if self.name == "uniform":
            return [1 / (k + 1)] * (k + 1)
        whole = (steps[-1] - steps[0]) * (k + 1) / k
        rates = [1.0, *(decayed(self.shape, (step - steps[0]) / whole) for step in steps[1:]), 0.0]
        return [rates[i] - rates[i + 1] for i in range(k + 1)]


def decayed(shape: str, part: float) -> float:
    """Returns the learning rate after a part of its decay to 0, as a share of the rate before; `part` is 0 to 1.

    >>> [decayed(shape, 0.25) for shape in ("linear", "1-sqrt")], round(decayed("cosine", 0.25), 3)
    ([0.75, 0.5], 0.854)
    """
    if shape == "cosine":
        return 0.5 * (1 + math.cos(math.pi * part))
    if shape == "linear":
        return 1 - part
    return 1 - math.sqrt(part)


class Part(NamedTuple):
    """A checkpoint that goes into the average."""

    source: Source
    step: int

    @property
    def path(self) -> epath.Path:
        return self.source.steps[self.step]


def parts_of(sources: Sequence[Source], last: int | None = None, steps: Sequence[int] = ()) -> list[Part]:
    """Returns the parts, the oldest first: the last steps of a run, the named ones, or all that it keeps.

    For several runs it is each one's newest step, in their order. Raises InputError for a single checkpoint, and for
    steps that do not exist.
    """
    for source in sources:
        if source.kind != LIMBA:
            raise InputError(
                f"{source.path} is a checkpoint of {source.kind}, and only checkpoints of Limba's runs are merged;"
                " start a run from it, or convert it first."
            )
    if len(sources) > 1:
        if last is not None or steps:
            raise InputError("Several runs are named, of which the newest steps are merged; leave out `last`, `steps`.")
        return [Part(source, max(source.steps)) for source in sources]
    (source,) = sources
    saved = sorted(source.steps)
    keeps = ""
    if source.run is not None:
        keeps = f" (it keeps {source.run.checkpoint.keep or 'all'}: CheckpointConfig.keep)"
    has = f"{source.path} has {', '.join(map(str, saved))}{keeps}"
    missing = sorted(set(steps) - set(saved))
    if missing:
        raise InputError(f"There is no checkpoint at step {missing[0]}; {has}.")
    if last is not None and steps:
        raise InputError(f"`last` is {last}, and `steps` is given too; leave one of them out.")
    if last is not None and last < 2:
        raise InputError(f"`last` is {last}; give 2 or more.")
    number = len(saved) if last is None else last
    chosen = sorted(set(steps)) if steps else saved[-number:]
    if len(chosen) < 2 or number > len(saved):
        raise InputError(f"An average needs two checkpoints or more, and `last` no more than there are; {has}.")
    return [Part(source, step) for step in chosen]


def merge(parts: Sequence[Part], weighting: Weighting, out: str, texts: Mapping[str, str] | None = None) -> str:
    """Writes OUT/checkpoints/<step of the last part> and what describes it; returns a sentence about it.

    `texts` are further files of OUT. Everything is checked before anything is written: the files of the parts against
    their manifests, their shapes against each other, and that OUT is free. An interrupted merge is repeated; where
    the same merge is complete already, nothing is done. Raises InputError for parts and folders that do not fit,
    StorageError if the storage fails.
    """
    if weighting.name != "uniform" and len({part.source.directory for part in parts}) > 1:
        raise InputError(f"`weights` is {weighting.name!r}, which needs the steps of one run; give uniform.")
    weights = weighting.weights([part.step for part in parts])
    try:
        record = _record(parts, weighting, weights)
        directory = resolved(out)
        if _is_there(directory, record):
            return f"{directory} has this average already."
        for part in parts:
            with waiting(f"checking the files of {part.path}"):
                limba_checkpoint.check_whole(part.path, part.source.verify)
        stores = [arrays.opened(part.path / "state") for part in parts]
        _check_same(parts, stores)
        directory.mkdir(parents=True, exist_ok=True)
        with lease.held(str(directory)) as mine:
            if _is_there(directory, record):  # by another process, in the meantime
                return f"{directory} has this average already."
            weights_or_none = None if weighting.name == "uniform" else weights
            return _written(parts, stores, weights_or_none, directory, record, texts, mine.confirm)
    except (InputError, StorageError, RestartError):
        raise
    except Exception as error:
        if is_passing(error) or isinstance(error, OSError):
            raise StorageError(
                f"No average can be made now ({short_reason(error)}); fix that, and try again."
            ) from error
        raise InputError(
            f"A checkpoint cannot be read ({reason_of(error)}): the run may have removed it meanwhile; name the steps."
        ) from error


def _record(parts: Sequence[Part], weighting: Weighting, weights: Sequence[float]) -> Json:
    def described(part: Part, weight: float) -> Json:
        digest = manifest.own_checksum(part.path)
        run = without_credentials(str(part.source.directory))
        return {"run": run, "step": part.step, "weight": weight, "manifest_crc32c": digest}

    chosen = asdict(weighting)
    used = {"uniform": ("name",), "ema": ("name", "ema_decay"), "wsm": ("name", "shape")}[weighting.name]
    return {
        "format": 1,
        "weights": {name: chosen[name] for name in used},
        "parts": [described(part, weight) for part, weight in zip(parts, weights, strict=True)],
    }


def _is_there(directory: epath.Path, record: Mapping[str, object]) -> bool:
    """Returns whether a directory has this average; InputError if it has anything else."""
    if not directory.exists():
        return False
    names = {child.name for child in directory.iterdir()}
    if not names - {lease.FILE}:
        return False
    is_same = FILE in names and (directory / FILE).read_text() == _text(record)
    if not is_same:
        raise InputError(f"{directory} is not empty, and nothing is overwritten; name a new directory.")
    return bool(limba_checkpoint.checkpoints_of(directory))  # if not, that merge was interrupted


def _text(record: Mapping[str, object]) -> str:
    return json.dumps(record, indent=1) + "\n"


def _check_same(parts: Sequence[Part], stores: Sequence[arrays.Stores]) -> None:
    """Raises InputError that names the first parameter, or field of the network, in which a part differs."""

    def described(part: Part, opened: arrays.Stores) -> dict[str, object]:
        shapes = {name: tuple(store.shape) for name, store in sorted(opened.items()) if name.startswith(PARAMETERS)}
        fields = {name: value for name, value in vars(part.source.model).items() if name not in FREE_FIELDS}
        named = {f"ModelConfig.{name}": repr(value) for name, value in fields.items()}
        return {**{name.removeprefix(PARAMETERS): shape for name, shape in shapes.items()}, **named}

    first = parts[0]
    of_first = described(first, stores[0])
    for part, opened in zip(parts[1:], stores[1:], strict=True):
        of_part = described(part, opened)
        for name in [*of_part, *of_first]:
            if of_part.get(name) != of_first.get(name):
                raise InputError(
                    f"Only checkpoints of one network can be merged: {name} is {of_first.get(name, 'absent')} in"
                    f" {first.path} and {of_part.get(name, 'absent')} in {part.path}."
                )


def _terms(parts: Sequence[Part], stores: Sequence[arrays.Stores]) -> dict[str, list[ts.TensorStore]]:
    """Returns name -> one array of each part, whose average is that array of the newest part; all others are copied.

    An array's name in the optimizer's state says nothing, as it depends on the optimizer: averages of the weights are
    found by their parameter. A part without one gives its weights, which evaluating it reads, and as which an average
    begins.
    """
    # The same names in all parts: `_check_same`.
    trained = {name.removeprefix(PARAMETERS): name for name in stores[-1] if name.startswith(PARAMETERS)}
    averaged = [trained | limba_checkpoint.averages_in(opened) for opened in stores]
    evaluated = [averaged[i] if part.source.averages else trained for i, part in enumerate(parts)]
    terms: dict[str, list[ts.TensorStore]] = {}
    # Where the newest part has one array for several of these, the last counts: evaluating the result reads it.
    for array_of in ([trained] * len(parts), averaged, evaluated):
        for parameter, name in array_of[-1].items():
            terms[name] = [opened[array_of[i][parameter]] for i, opened in enumerate(stores)]
    return terms


def _about_averages(parts: Sequence[Part], stores: Sequence[arrays.Stores]) -> str:
    """Returns a sentence if some parts are evaluated by an average of their weights, and some are not; else ""."""
    as_trained: list[str] = []
    for part, opened in zip(parts, stores, strict=True):
        if not (part.source.averages and limba_checkpoint.averages_in(opened)):
            as_trained.append(str(part.path))
    if len(as_trained) in (0, len(parts)):
        return ""
    return (
        f" Of {', '.join(as_trained)} the weights as trained were averaged, of the others their moving average, as each"
        " is evaluated."
    )


def _written(
    parts: Sequence[Part],
    stores: Sequence[arrays.Stores],
    weights: Sequence[float] | None,
    directory: epath.Path,
    record: Json,
    texts: Mapping[str, str] | None,
    may_commit: Callable[[], None],
) -> str:
    newest = parts[-1]
    step = newest.step
    write_whole(directory / FILE, _text(record))
    for name in (*COPIED, *copies_in(newest.source.directory)):
        path = newest.source.directory / name
        if path.exists():
            write_whole(directory / name, path.read_bytes())
    config = newest.source.run or newest.source.model
    if not isinstance(config, ModelConfig):
        config = saved_config.moved(config, str(directory))
    for name, text in {saved_config.FILE: saved_config.to_text(config), **(texts or {})}.items():
        write_whole(directory / name, text)
    checkpoints = directory / "checkpoints"
    terms = _terms(parts, stores)
    needed = sum(math.prod(store.shape) * store.dtype.numpy_dtype.itemsize for store in stores[-1].values())
    blocks = [(name, block) for name, store in stores[-1].items() for block in blocks_of(store)]
    with Progress(len(blocks), 0, unit="block", what="merging") as progress:

        def merged() -> Iterator[arrays.HostArray]:
            for name, block in blocks:
                yield _merged(stores[-1][name], block, terms.get(name), weights)
                progress.update()

        data = limba_checkpoint.read_data(newest.path)
        write_step(checkpoints, step, needed, merged(), data, may_commit)
    counts = ", ".join(f"{part['step']:,} ({part['weight']:.3g})" for part in record["parts"])
    about = _about_averages(parts, stores)
    return f"{checkpoints / str(step)}: the average of steps {counts}; {directory / FILE} says so.{about}"


def write_step(
    directory: epath.Path,
    step: int,
    needed: int,
    parts: Iterable[arrays.HostArray],
    data: limba_checkpoint.DataItem,
    may_commit: Callable[[], None] = lambda: None,
) -> None:
    """Writes `directory`/<step> of parts of arrays, about BLOCK_BYTES of them at a time.

    `needed` bytes must be free, `data` is the item of that name, and `may_commit` is `step_directory.commit_step`'s.
    """
    attempt = step_directory.new_attempt(directory, step)
    step_directory.open_step(attempt, needed, may_commit)
    state = attempt.path / "state"
    held = list[arrays.HostArray]()
    for part in parts:
        held.append(part)
        if sum(array.parts[0][1].nbytes for array in held) >= BLOCK_BYTES:
            arrays.write_arrays(state, arrays.Snapshot(tuple(held), 0), attempt.name)
            held = []
    arrays.write_arrays(state, arrays.Snapshot(tuple(held), 0), attempt.name)
    step_directory.commit_step(attempt, data, {}, may_commit)


def _merged(
    store: ts.TensorStore,
    block: tuple[slice, ...],
    terms: Sequence[ts.TensorStore] | None,
    weights: Sequence[float] | None,
) -> arrays.HostArray:
    """Returns a block of an array of the newest part, or the average of its terms where it has any."""
    if terms is None:
        part = np.asarray(store[block].read().result())
    else:
        part = average([term[block].read().result() for term in terms], weights)
    return block_to_write(store, block, part)


def block_to_write(store: ts.TensorStore, block: tuple[slice, ...], part: np.ndarray) -> arrays.HostArray:
    """Returns a block as it is written to a new array of the name, the shape and the chunks of a stored one."""
    return arrays.HostArray(name_in_store(store), tuple(store.shape), part.dtype, _chunk(store), ((block, part),))


def name_in_store(store: ts.TensorStore) -> str:
    """Returns the name of an array in its store."""
    return store.spec().to_json()["kvstore"]["path"].rstrip("/")


def average(blocks: Sequence[np.ndarray], weights: Sequence[float] | None) -> np.ndarray:
    """Returns the weighted mean in float32, computed in float64; `weights` None: all count the same.

    >>> average([np.float32([1, 2]), np.float32([2, 4])], None).tolist(), average([np.ones(1)] * 2, [0.5, 0.5]).dtype
    ([1.5, 3.0], dtype('float32'))
    """
    total = np.zeros(np.shape(blocks[0]), np.float64)
    for i, block in enumerate(blocks):
        weight = 1.0 if weights is None else weights[i]
        total += np.asarray(block).astype(np.float64) * weight
    if weights is None:
        total = total / len(blocks)
    return np.asarray(total, np.float32)


def _chunk(store: ts.TensorStore) -> tuple[int, ...]:
    return tuple(size or 1 for size in store.chunk_layout.read_chunk.shape or ())


def blocks_of(store: ts.TensorStore) -> Iterator[tuple[slice, ...]]:
    """Yields the blocks of a stored array, as `blocks` has them."""
    return blocks(tuple(store.shape), _chunk(store))


def blocks(shape: tuple[int, ...], chunk: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """Yields the blocks of an array: whole chunks of rows of axis 0, of about BLOCK_BYTES in float32 together."""
    if not shape or not math.prod(shape):
        yield ()
        return
    rows = max(1, BLOCK_BYTES // (4 * math.prod(shape[1:]))) // chunk[0] * chunk[0] or chunk[0]
    for start in range(0, shape[0], rows):
        yield (slice(start, min(start + rows, shape[0])),)
