"""Tasks read from the offline caches that seqio's `seqio_cache_tasks` writes, as T5X's `use_cached` does."""

from __future__ import annotations

from collections.abc import Sequence

import seqio
import tensorflow as tf

from limba.config import ConfigError


class CachedSource(seqio.DataSource):
    """The examples of a task's cache, by split."""

    def __init__(self, task: seqio.Task):
        prefix, ending = "info.", ".json"
        assert task.cache_dir is not None  # as `from_cache` checks
        names = tf.io.gfile.listdir(task.cache_dir)
        splits = [name[len(prefix) : -len(ending)] for name in names if name.startswith(prefix)]
        # seqio has no public function for the source of a cache; `Task.get_dataset` calls this one too.
        self._sources = {split: task._get_cached_source(split) for split in sorted(splits)}
        super().__init__(tuple(self._sources), caching_permitted=False)

    @property
    def supports_arbitrary_sharding(self) -> bool:
        return False

    def list_shards(self, split: str) -> Sequence[str]:
        return self._sources[split].list_shards(split)

    def get_dataset(self, split: str, *arguments, **choices) -> tf.data.Dataset:
        return self._sources[split].get_dataset(split, *arguments, **choices)


def from_cache(task: seqio.Task, directory: str) -> seqio.Task:
    """Returns the task with its cache in the directory as its source; ConfigError if there is no cache."""
    seqio.add_global_cache_dirs([directory])
    steps = list(task.preprocessors)
    places = [place for place, step in enumerate(steps) if isinstance(step, seqio.CacheDatasetPlaceholder)]
    if not places or not task.cache_dir:
        why = "has no seqio.CacheDatasetPlaceholder among its preprocessors" if not places else "has no cache"
        raise ConfigError(
            "DataConfig.cache_dir",
            f"is {directory}, and task {task.name} {why}; make the cache there with seqio_cache_tasks, or leave"
            " DataConfig.cache_dir out.",
        )
    return task.replace(source=CachedSource(task), preprocessors=steps[places[0] + 1 :])
