"""Tasks read from the offline caches that `seqio_cache_tasks` wrote, as T5X does with `use_cached`."""

from __future__ import annotations

import seqio
import tensorflow as tf

from limba.config import InputError


class CachedSource(seqio.DataSource):
    """The examples of a task's cache, by split."""

    def __init__(self, task: seqio.Task):
        prefix, ending = "info.", ".json"
        names = tf.io.gfile.listdir(task.cache_dir)
        splits = [name[len(prefix) : -len(ending)] for name in names if name.startswith(prefix)]
        # The only way to a cache's source; `Task.get_dataset` takes the same one, and preprocesses what it gives.
        self._sources = {split: task._get_cached_source(split) for split in sorted(splits)}
        super().__init__(tuple(self._sources), caching_permitted=False)

    @property
    def supports_arbitrary_sharding(self) -> bool:
        return False

    def list_shards(self, split: str) -> list[str]:
        return self._sources[split].list_shards(split)

    def get_dataset(self, split: str, *arguments, **choices) -> tf.data.Dataset:
        return self._sources[split].get_dataset(split, *arguments, **choices)


def from_cache(task: seqio.Task, directory: str) -> seqio.Task:
    """Returns the task as it goes on from its cache in the directory; ConfigError where there is none."""
    seqio.add_global_cache_dirs([directory])
    steps = list(task.preprocessors)
    places = [place for place, step in enumerate(steps) if isinstance(step, seqio.CacheDatasetPlaceholder)]
    if not places or not task.cache_dir:
        why = "has no seqio.CacheDatasetPlaceholder among its preprocessors" if not places else "has no cache"
        raise InputError(
            f"Task {task.name} {why} and DataConfig.cache_dir is {directory}; make the cache with seqio_cache_tasks"
            f" --tasks={task.name} --output_cache_dir={directory}, or leave cache_dir out."
        )
    return task.replace(source=CachedSource(task), preprocessors=steps[places[0] + 1 :])
