"""A branch of a run: from one of its checkpoints on, in a directory of its own, with a learning rate that falls to 0.

A branch is a run like any other. Its directory begins with a copy of the checkpoint (parameters, optimizer state, data
position) and with the original's configuration, of which only the schedule and the length are changed.
"""

import contextlib
import dataclasses
import glob
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from etils import epath

from limba.config import (
    ConfigError,
    InputError,
    RestartError,
    RunConfig,
    ScheduleConfig,
    StorageError,
    saved_config,
    without_credentials,
)
from limba.config.schedule import LEAST_RATE
from limba.data.vocabulary.files import copies_in
from limba.formats import limba_checkpoint
from limba.storage import lease
from limba.storage.failures import short_reason
from limba.storage.files import read_text, resolved, write_whole
from limba.storage.literal_names import matching
from limba.training.checkpoints import step_directory
from limba.training.schedule import make_schedule
from limba.training.skipped_batches import FILE as LEDGER_FILE
from limba.training.start import FILE as ROWS_FILE
from limba.training.start import known_end

FILE = "branch.json"  # in a branch's directory: where it comes from
# What a resumed run reads of its directory: the branch has to see the same batches.
COPIED = ("vocabulary.model", "data_revisions.json", ROWS_FILE, LEDGER_FILE)


@dataclass(frozen=True)
class Branch:
    """Where a branch begins, and how its rate falls."""

    run: str  # the directory of the original
    step: int  # its checkpoint
    decay_steps: int
    shape: str  # one of BRANCH_SHAPES

    @property
    def end(self) -> int:
        """The last step."""
        return self.step + self.decay_steps

    def name(self) -> str:
        """Returns the directory of the branch, unless another is named.

        >>> Branch("runs/ro", 80_000, 8_000, "linear").name()
        'runs/ro-decay-80000-8000-linear'
        """
        return f"{self.run.rstrip('/')}-decay-{self.step}-{self.decay_steps}-{self.shape}"


def found_at(directory: str) -> Branch | None:
    """Returns the branch that a directory is; None if there is nothing. InputError for anything else."""
    path = resolved(directory)
    if (path / FILE).exists():
        try:
            fields = json.loads(read_text(path / FILE))
            return Branch(**{entry.name: fields[entry.name] for entry in dataclasses.fields(Branch)})
        except (ValueError, TypeError, KeyError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{path / FILE} is not the record of a branch; name a new directory.") from error
    if path.exists() and any(child.name != lease.FILE for child in path.iterdir()):
        raise InputError(f"{directory} is not empty, and it is not a branch; name a new directory.")
    return None


def chosen(run: str, there: Sequence[int], decay_steps: int, shape: str, step: int | None, out: str | None) -> Branch:
    """Returns the branch that is meant: one that has begun and not ended, or a new one.

    Without `step` a branch that has begun is resumed, the one with the highest step of several; if there is none, it is
    one from the newest of the steps `there`. Raises InputError for a step that is not there, and if `out` is another
    branch.
    """
    run = without_credentials(str(resolved(run))).rstrip("/")
    old = found_at(out) if out is not None else None
    if old is not None:
        wanted = Branch(run, old.step if step is None else step, decay_steps, shape)
        if old != wanted:
            raise InputError(
                f"{out} is another branch: of {old.run} from step {old.step}, {old.shape} over {old.decay_steps} steps;"
                " name another directory, or give what it was begun with."
            )
        return old
    if step is None and out is None:
        begun = [branch for branch in _begun(run) if (branch.decay_steps, branch.shape) == (decay_steps, shape)]
        open_ones = [branch for branch in begun if branch.end not in _steps_at(branch.name())]
        if open_ones:
            return max(open_ones, key=lambda branch: branch.step)
    if step is None and not there:
        raise InputError(f"{run} holds no checkpoint to branch from.")
    branch = Branch(run, max(there) if step is None else step, decay_steps, shape)
    if branch.step not in there and (out is not None or not _steps_at(branch.name())):
        kept = ", ".join(map(str, sorted(there)))
        raise InputError(
            f"There is no checkpoint at step {branch.step} in {run}: it holds {kept} (CheckpointConfig.keep says how"
            " many are kept)."
        )
    if out is None:
        old = found_at(branch.name())
        if old is not None and old != branch:
            raise InputError(f"{branch.name()} is another branch, of {old.run}; name another directory.")
    return branch


def _begun(run: str) -> Iterator[Branch]:
    """Yields the branches of a run that lie beside it, under their own names."""
    path = resolved(run)
    for child in matching(path.parent, f"{glob.escape(path.name)}-decay-*"):
        with contextlib.suppress(InputError):
            branch = found_at(str(child))
            if branch is not None and branch.run == run and resolved(branch.name()) == child:
                yield branch


def _steps_at(directory: str) -> Mapping[int, epath.Path]:
    return limba_checkpoint.checkpoints_of(resolved(directory))


def schedule_of(original: RunConfig, branch: Branch) -> ScheduleConfig:
    """Returns the schedule of a branch: the original's up to its step, and a decay after it.

    Raises InputError if the original's rate is 0 there, or falls there already as in a branch.
    """
    before = original.optimizer.schedule
    is_branch = before.branch_step is not None
    if is_branch and before.branch_shape != "constant" and branch.step > (before.branch_step or 0):
        raise InputError(
            f"{branch.run} is a branch itself, whose rate falls since step {before.branch_step}; branch from the run"
            " before it."
        )
    unbranched = dataclasses.replace(before, branch_step=None, branch_steps=None)
    planned = before.planned_steps if is_branch else known_end(original)
    schedule = dataclasses.replace(unbranched, planned_steps=planned)
    if not float(np.asarray(make_schedule(schedule, planned)(branch.step))) > LEAST_RATE:
        raise InputError(
            f"The learning rate of {branch.run} has already reached its end at step {branch.step}; branch from an"
            " earlier step."
        )
    return dataclasses.replace(
        schedule, branch_step=branch.step, branch_steps=branch.decay_steps, branch_shape=branch.shape
    )


def changed(run: RunConfig, values: Mapping[str, object]) -> RunConfig:
    """Returns a run with other fields of itself and of its schedule, by their names: "RunConfig.train_steps".

    A vocabulary in the run's directory becomes the same file in the new directory.
    """
    fields = {name.partition(".")[2]: value for name, value in values.items() if name.startswith("RunConfig.")}
    of_schedule = {name.partition(".")[2]: value for name, value in values.items() if name.startswith("Schedule")}
    optimizer = dataclasses.replace(run.optimizer, schedule=dataclasses.replace(run.optimizer.schedule, **of_schedule))
    data = run.data
    before = f"{run.model_dir.rstrip('/')}/"
    if data.vocabulary is not None and data.vocabulary.startswith(before) and "model_dir" in fields:
        vocabulary = f"{str(fields['model_dir']).rstrip('/')}/{data.vocabulary.removeprefix(before)}"
        data = dataclasses.replace(data, vocabulary=vocabulary)
    return dataclasses.replace(run, data=data, optimizer=optimizer, **fields)


def check_data(config: RunConfig, branch: Branch) -> None:
    """Raises ConfigError if the epochs of the corpus end before the branch does, as far as that is known."""
    if config.data.num_epochs is None:
        return
    ends = known_end(dataclasses.replace(config, model_dir=branch.run, train_steps=None))
    if ends is not None and ends < branch.end:
        raise ConfigError(
            "DataConfig.num_epochs",
            f"is {config.data.num_epochs}, which ends after step {ends:,}, and the branch would end after step"
            f" {branch.end:,}: {max(0, ends - branch.step):,} steps are left after step {branch.step:,}; give a shorter"
            " decay, an earlier step, or more epochs.",
        )


@contextlib.contextmanager
def begun(branch: Branch, config: RunConfig, texts: Mapping[str, str]) -> Iterator[None]:
    """Makes the directory of a branch, `config.model_dir`, if it has no checkpoint yet; one process does it.

    `texts` are further files of it. Raises InputError if the checkpoint is not there any more, or damaged, StorageError
    if the storage fails, and RestartError if another process has the directory.
    """
    directory = resolved(config.model_dir)
    directory.mkdir(parents=True, exist_ok=True)
    with lease.held(str(directory)) as mine:
        try:
            if not _steps_at(str(directory)):
                _make(branch, config, texts, directory, mine.confirm)
        except (InputError, StorageError, RestartError):
            raise
        except Exception as error:  # a bucket's clients have errors of their own
            raise StorageError(
                f"{branch.run}/checkpoints/{branch.step} cannot be copied to {directory} ({short_reason(error)}); fix"
                " that, and start the same command again."
            ) from error
    yield


def _make(
    branch: Branch, config: RunConfig, texts: Mapping[str, str], directory: epath.Path, may_commit: Callable[[], None]
) -> None:
    """Fills the directory of a branch, the checkpoint last; `may_commit` as in `step_directory.open_step`."""
    original = resolved(branch.run)
    there = _steps_at(branch.run)
    if branch.step not in there:
        raise InputError(
            f"{branch.run} has no checkpoint at step {branch.step} any more, and the branch in {directory} has none"
            f" yet; remove it, and branch from one of {', '.join(map(str, there)) or 'none'}."
        )
    limba_checkpoint.check_whole(there[branch.step], config.checkpoint.verify)
    write_whole(directory / FILE, json.dumps(asdict(branch), indent=1) + "\n")
    for name in (*COPIED, *copies_in(original)):
        if (original / name).exists():
            write_whole(directory / name, (original / name).read_bytes())
    for name, text in {saved_config.FILE: saved_config.to_text(config), **texts}.items():
        write_whole(directory / name, text)
    step_directory.copy_step(there[branch.step], directory / "checkpoints", may_commit)
