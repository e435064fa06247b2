"""The best step of a run by one of its evaluations' figures, kept in a folder of its own."""

import dataclasses
import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from etils import epath

from limba.config import InputError, RestartError, RunConfig, reason_of, saved_config
from limba.data.vocabulary.files import copies_in
from limba.formats import limba_checkpoint
from limba.storage.failures import limited
from limba.storage.files import make_folder, read_text, try_to_write, write_whole
from limba.training.checkpoints import step_directory
from limba.training.checkpoints.directory import Checkpoints, Positions
from limba.training.checkpoints.saver import GRACE_SECONDS
from limba.training.state import TrainState

logger = logging.getLogger(__name__)

COPIED_TO_BEST = ("config.gin", saved_config.FILE, "vocabulary.model")  # model_dir/best is then read like a run


class Best:
    """model_dir/best: a checkpoint, and best.json with the record, which a resumed run continues.

    The record is kept in memory too: a run trains on while best.json cannot be written, and `write` tries it again.
    """

    def __init__(self, config: RunConfig, may_commit: Callable[[], None] = lambda: None):
        self._config = config
        self._may_commit = may_commit  # as `Checkpoints` takes it
        self._run = epath.Path(config.model_dir)
        self.directory = self._run / "best"
        self._path = self.directory / "best.json"
        self._checkpoints: Checkpoints | None = None
        self._is_copied = True  # the files beside the step that was saved last
        self._is_written = True  # the record
        self._has_others = False  # steps beside the one that was saved last
        self._warns = True  # where they cannot be: once in an outage
        self._record = self._continued(_record_of(self._path)) if self._path.exists() else {}

    def _continued(self, record: dict[str, Any]) -> dict[str, Any]:
        """Returns the record that this run goes on with: begun anew where it is about another metric or mode.

        The last step stays, as what was evaluated up to it is not judged again.
        """
        checkpoint = self._config.checkpoint
        metric = record["metric"]
        mode = record["mode"]
        if (metric, mode) == (checkpoint.best_metric, checkpoint.best_mode):
            return record
        if jax.process_index() == 0:
            logger.warning(
                "%s is about %s (%s), and now the best step is looked for by %s (%s): the record begins anew, and what"
                " is in %s stays until a step is saved there.",
                self._path,
                metric,
                mode,
                checkpoint.best_metric,
                checkpoint.best_mode,
                self.directory,
            )
        return {"last_step": record["last_step"]}

    def judge(
        self, step: int, figures: Mapping[str, float], state: TrainState, positions: Callable[[], Positions]
    ) -> str:
        """Saves the state if its `best_metric` has improved; returns the reason to end the run, or "".

        `positions` returns the data position, which is saved with the state. A figure that is missing, or not finite,
        does not improve.
        """
        name = self._config.checkpoint.best_metric
        if name is None or not figures:
            return ""
        record = self._record
        if step > record.get("last_step", 0):  # else a resumed run repeats a step that was judged before
            value = figures.get(name, math.nan)
            if self._is_better(value):
                self._save(step, state, positions())
                self._is_copied = False
                record |= {"value": value, "step": step, "figures": dict(figures), "since": 0}
            else:
                record["since"] = record.get("since", 0) + 1
            record |= {"metric": name, "mode": self._config.checkpoint.best_mode, "last_step": step}
            self._is_written = False
        self.write()
        return self._reason_to_end(name)

    def ended(self, step: int) -> str:
        """Returns the sentence that has ended the run at this step, by `EvaluationConfig.patience`, else ""."""
        name = self._config.checkpoint.best_metric
        if name is None or step < self._record.get("last_step", step + 1):
            return ""
        return self._reason_to_end(name)

    def _is_better(self, value: float) -> bool:
        if not math.isfinite(value):
            return False
        if "value" not in self._record:
            return True
        if self._config.checkpoint.best_mode == "max":
            return value > self._record["value"]
        return value < self._record["value"]

    def write(self) -> None:
        """Writes what the last attempt could not write, as while model_dir is away; called at saves, too.

        The record comes last: it names only steps that are complete.
        """
        if jax.process_index() > 0:
            return
        if not self._is_copied:
            self._is_copied = self._copy()
        if self._is_copied and not self._is_written:
            self._is_written = try_to_write(self._path, json.dumps(self._record, indent=1) + "\n", self._warns)
        self._warns = self._is_copied and self._is_written
        if self._is_written and self._has_others:  # the step of the record before is not needed any more
            self._has_others = not self._remove_all_but(self._record["step"])

    def _copy(self) -> bool:
        """Copies the files that let model_dir/best be read like a run; returns whether it succeeded."""
        try:
            make_folder(self.directory)  # OSError where model_dir is away, which would seem to have no such files
            for name in (*COPIED_TO_BEST, *copies_in(self._run)):
                path = self._run / name
                if path.exists():
                    write_whole(self.directory / name, path.read_bytes())
        except Exception as error:  # noqa: BLE001  a bucket's client has errors of its own
            level = logging.WARNING if self._warns else logging.DEBUG
            logger.log(level, "%s cannot be completed (%s); the run goes on.", self.directory, reason_of(error))
            return False
        return True

    def _reason_to_end(self, name: str) -> str:
        """Returns the sentence that ends the run if `EvaluationConfig.patience` is over, else ""."""
        record = self._record
        patience = self._config.evaluation.patience
        if patience is None or record.get("since", 0) < patience:
            return ""
        if "value" not in record:
            return f"{name} has not been a finite number for {record['since']} evaluations: the run ends here."
        return (
            f"{name} has not been better than {record['value']:.4g} of step {record['step']:,} for"
            f" {record['since']} evaluations: the run ends here, and its best step is in {self.directory}."
        )

    def _save(self, step: int, state: TrainState, positions: Positions) -> None:
        """Saves the state, and waits for the commit: the record must name only steps that are complete."""
        if self._checkpoints is None:
            config = dataclasses.replace(self._config.checkpoint, keep=None)  # the newest need not be the best
            self._checkpoints = Checkpoints(str(self.directory), config, self._config.data, may_commit=self._may_commit)
        self._checkpoints.save(step, state, positions)
        self._checkpoints.wait()
        self._checkpoints.poll()
        self._has_others = True

    def _remove_all_but(self, step: int) -> bool:
        """Removes the other steps: also later ones, which a run has saved that ended before it could record them.

        Returns whether none is left.
        """
        assert self._checkpoints is not None, "it has saved the step"
        directory = self._checkpoints.directory

        def remove(others: Sequence[int]) -> None:
            for other in others:
                self._may_commit()  # else it may be a successor's
                step_directory.remove_step(directory, other)

        try:
            # Listed apart: a removal that stood still, and goes on later, must not see the next best step.
            listed = limited(lambda: sorted(limba_checkpoint.steps_in(directory)), GRACE_SECONDS, "the listing")
            others = [other for other in listed if other != step]
            limited(lambda: remove(others), GRACE_SECONDS, "the removal")
        except RestartError:  # the run's own look at its lease ends it
            return False
        except Exception as error:  # noqa: BLE001  the new step is good all the same; the next `write` tries again
            logger.warning("The steps beside %d in %s are not removed yet (%s).", step, directory, reason_of(error))
            return False
        return True


def _record_of(path: epath.Path) -> dict[str, Any]:
    """Returns the record; InputError, before anything is compiled, if it is damaged."""
    try:
        record = json.loads(read_text(path))
        numbers = [record["last_step"], record["since"]]
        if "value" in record:  # once a figure was finite
            numbers += [record["value"], record["step"]]
        are_numbers = all(isinstance(number, int | float) for number in numbers)
        if are_numbers and isinstance(record["metric"], str) and isinstance(record["mode"], str):
            return record
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
    raise InputError(
        f"{path} is not the record of a best step; restore it from a copy, or move {path.parent} away, and the best"
        " step is looked for again."
    )
