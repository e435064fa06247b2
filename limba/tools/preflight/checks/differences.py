"""What a configuration changes of the run that its directory holds."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from limba.api import RunDirectory
from limba.config import InputError, RunConfig, saved_config
from limba.config.kinds import class_name
from limba.tools.preflight.checks.verdict import Data, Line

CHANGED = "changed-run"  # the code of all findings here
# Fields whose change leaves what a resumed run learns as it was.
FREE = frozenset(
    (
        "RunConfig.train_steps",
        "RunConfig.model_dir",
        "RunConfig.initial_checkpoint_path",
        "RunConfig.reset_step",
        "RunConfig.export_to",
        "RunConfig.hub_model_id",
        "RunConfig.hub_private",
        "RunConfig.hub_strategy",
        "RunConfig.num_microbatches",
        "RunConfig.gradient_reduce_dtype",
        "RunConfig.log_every_steps",
        "RunConfig.step_timeout_seconds",
        "RunConfig.host_timeout_seconds",
        "RunConfig.report_to",
        "RunConfig.profile_steps",
        "DataConfig.task_modules",
        "DataConfig.num_reader_processes",
        "DataConfig.read_timeout_seconds",
        "DataConfig.read_attempts",
        "DataConfig.on_read_failure",
        "DataConfig.on_changed_corpus",
        "DataConfig.skip",
        "DataConfig.vocabulary",
        "DataConfig.cache_dir",
        "DataConfig.new_vocabulary_size",
        "DataConfig.new_vocabulary_bytes",
        "DataConfig.new_vocabulary_coverage",
        "DataConfig.num_epochs",
        "DataConfig.validation_split",
        "ModelConfig.remat",
        "ModelConfig.scan_layers",
        "ModelConfig.attention",
        "LossConfig.logits",
    )
)
# Classes all of whose fields are such.
FREE_CLASSES = ("CheckpointConfig", "EvaluationConfig", "GenerationConfig", "MeshConfig", "GuardConfig")
# A data position is only good with these: a run that changes them is refused.
FIXED = ("DataConfig.mixture_or_task_name", "DataConfig.seed", "DataConfig.num_data_shards")


class Difference(NamedTuple):
    """A field, as "DataConfig.seed", with its value in the directory's run and in the configuration."""

    field: str
    before: Any
    now: Any

    @property
    def is_free(self) -> bool:
        return self.field in FREE or self.field.startswith(FREE_CLASSES)

    def __str__(self) -> str:
        return f"{self.field} is {self.now!r} (it was {self.before!r})"


def saved_run(model_dir: str) -> RunConfig | None:
    """Returns the run that a directory describes; None without one. InputError for a damaged description."""
    return RunDirectory(model_dir).run()


def differences(config: RunConfig, saved: RunConfig) -> list[Difference]:
    """Returns the fields whose values differ, in their order; addresses are compared without their credentials.

    >>> from limba.config import DataConfig, ModelConfig
    >>> data = DataConfig("task", {"inputs": 512}, 8)
    >>> run = RunConfig(ModelConfig(1024, 32, 2, 16, 64, 2, 2), data, "/runs/a", 100)
    >>> other = dataclasses.replace(run, data=dataclasses.replace(data, seed=1), train_steps=200)
    >>> [str(each) for each in differences(other, run)]
    ['DataConfig.seed is 1 (it was 0)', 'RunConfig.train_steps is 200 (it was 100)']
    """
    now = json.loads(saved_config.to_text(config))["run"]
    before = json.loads(saved_config.to_text(saved))["run"]
    return list(_compared(config, now, before))


def _compared(owner: Any, now: dict[str, Any], before: dict[str, Any]) -> Iterator[Difference]:
    for entry in dataclasses.fields(owner):
        name = entry.name
        value = getattr(owner, name)
        if dataclasses.is_dataclass(value):
            yield from _compared(value, now[name], before[name])
        elif now[name] != before.get(name, now[name]):  # another optimizer lacks fields
            yield Difference(f"{class_name(owner)}.{name}", before[name], now[name])


def with_saved_run(config: RunConfig, data: Data) -> Iterator[Line]:
    """Yields what the configuration changes of the run in model_dir; nothing if that has no checkpoint."""
    try:
        saved = saved_run(config.model_dir)
        steps = RunDirectory(config.model_dir).checkpoints() if saved else {}
    except InputError:
        raise
    except Exception:  # noqa: BLE001  a bucket's client has errors of its own; the section Storage says them
        return
    if saved is None:
        yield Line("ok", f"{config.model_dir} holds no run.")
        return
    # Paths inside of the directory are compared as if both runs were in the same one.
    changed = differences(saved_config.moved(config, config.model_dir), saved_config.moved(saved, config.model_dir))
    data["differs_from_saved_run"] = [difference.field for difference in changed]
    if not steps:
        yield Line("ok", f"{config.model_dir} describes a run that has no checkpoint yet.")
        return
    newest = max(steps)
    text = f"{config.model_dir} is resumed at step {newest:,}"
    free = [str(difference) for difference in changed if difference.is_free]
    if free:
        yield Line("ok", f"{text}: {'; '.join(free)}")
    else:
        yield Line("ok", f"{text}.")
    yield from changes(changed, newest)


def changes(changed: list[Difference], step: int) -> Iterator[Line]:
    """Yields a line for each difference by which a run resumed at a step is refused, or learns something else."""
    for difference in changed:
        fix = (difference.field, difference.before)
        if difference.field == "DataConfig.stages" and _changes_past(difference, step):
            text = f"{difference}, and the stages before step {step:,} have been read."
            yield Line("error", text, fix, CHANGED)
        elif difference.field in FIXED:
            text = f"{difference}, and the data positions in the run's checkpoints only fit the value before."
            yield Line("error", text, fix, CHANGED)
        elif not difference.is_free:
            text = f"{difference}, when the run in its directory began or was last resumed."
            yield Line("warning", text, fix, CHANGED)


def _changes_past(difference: Difference, step: int) -> bool:
    """Returns whether stages differ that a run at this step has begun."""
    read_before = [stage for stage in difference.before if stage[0] < step]
    read_now = [stage for stage in difference.now if stage[0] < step]
    return read_now != read_before
