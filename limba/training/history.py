"""The places in the text of every hundredth step, kept for ever, from which the documents of any step are found.

`positions/<step>.json.gz` in the run's directory has those since the save before the step in its name, as
{step: {shard: …}}. They came with the batches, so a step pays nothing for them. Where places are large, as in a mixture
of many tasks and with tf.data's checkpoints, the places of fewer steps are kept.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping
from typing import Any

from etils import epath

from limba.config import InputError, reason_of
from limba.data.stream.positions import Position
from limba.sharding.agreement import gather_bytes, is_first
from limba.storage.files import read_bytes, resolved, try_to_write

FOLDER = "positions"
EVERY = 100  # steps
MOST_BYTES = 1 << 20  # of one process's places between two saves, compressed
LEFT_OUT = ("about", "files")  # of a data position: every checkpoint has them
Kept = Mapping[int, Mapping[int, Mapping[str, Any]]]  # step -> shard -> where it was


class History:
    """What a process keeps of its shards' places since the last save.

    Where that is more than MOST_BYTES, every second step is left out from then on. Processes may do so at different
    times: the multiples of the greatest distance are kept by all.
    """

    def __init__(self, model_dir: str):
        self._folder = epath.Path(model_dir) / FOLDER
        self._distance = EVERY  # of the steps that are kept
        self._kept: dict[int, bytes] = {}  # step -> {shard: place} as JSON, compressed

    def is_due(self, step: int) -> bool:
        """Returns whether the places after a step are wanted."""
        return step % self._distance == 0

    def add(self, step: int, positions: Mapping[int, Position]) -> None:
        """Keeps where the shards of this process are after a step."""
        places = {
            shard: {name: part for name, part in position.items() if name not in LEFT_OUT}
            for shard, position in positions.items()
        }
        self._kept[step] = zlib.compress(_as_json(places))
        while len(self._kept) > 1 and sum(map(len, self._kept.values())) > MOST_BYTES:
            self._distance *= 2
            self._kept = {step: places for step, places in self._kept.items() if self.is_due(step)}

    def write(self, step: int) -> None:
        """Writes the places of all processes since the last time; all call it when they save a step."""
        by_shard: dict[str, dict[int, Mapping[str, Any]]] = {}
        for kept_step, places in self._kept.items():
            for shard, shard_place in json.loads(zlib.decompress(places)).items():
                by_shard.setdefault(shard, {})[kept_step] = shard_place
        parts = gather_bytes({int(shard): _as_json(of_steps) for shard, of_steps in by_shard.items()})
        of_steps: dict[str, dict[str, Any]] = {}
        for shard, part in sorted(parts.items()):
            for kept_step, shard_place in json.loads(part).items():
                of_steps.setdefault(kept_step, {})[str(shard)] = shard_place
        # Processes that have left out other steps do not have all shards of those.
        of_steps = {kept_step: places for kept_step, places in of_steps.items() if len(places) == len(parts)}
        if not of_steps:
            return
        is_written = True
        if is_first():
            content = gzip.compress(_as_json(of_steps), mtime=0)
            is_written = try_to_write(str(self._folder / f"{step}.json.gz"), content)
        if is_written:  # else with the next save
            self._kept = {}


def _as_json(places: Mapping[Any, Any]) -> bytes:
    return json.dumps(places, separators=(",", ":")).encode()


def kept_before(model_dir: str, step: int) -> tuple[int, dict[int, dict[str, Any]]] | None:
    """Returns the last step before this one whose places are kept, and those by shard; None without one.

    Raises InputError for a file that cannot be read.
    """
    folder = resolved(model_dir) / FOLDER
    if not folder.is_dir():
        return None
    saved = sorted(int(path.name.split(".")[0]) for path in folder.iterdir() if path.name.split(".")[0].isdigit())
    # The first save at or after the step has those before it, and if there are none the save before.
    later = [number for number in saved if number >= step][:1]
    earlier = [number for number in saved if number < step][-1:]
    for number in (*later, *earlier):
        path = folder / f"{number}.json.gz"
        try:
            entries = json.loads(gzip.decompress(read_bytes(path)))
            kept = {int(kept_step): places for kept_step, places in entries.items()}
        except (OSError, EOFError, ValueError, AttributeError, zlib.error) as error:
            raise InputError(f"{path} cannot be read ({reason_of(error)}); restore it, or remove it.") from error
        before = [kept_step for kept_step in kept if kept_step < step]
        if before:
            last = max(before)
            return last, {int(shard): place for shard, place in kept[last].items()}
    return None
