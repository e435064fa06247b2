"""The places in the text of every hundredth step, kept for ever, from which the documents of any step are found.

`positions/<step>.json.gz` in the run's directory has those since the save before the step in its name, as
{step: {shard: …}}. They came with the batches, so a step pays nothing for them.
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
LEFT_OUT = ("about", "files")  # of a data position: every checkpoint has them
Kept = Mapping[int, Mapping[int, Mapping[str, Any]]]  # step -> shard -> where it was


class History:
    """What a process keeps of its shards' places since the last save."""

    def __init__(self, model_dir: str):
        self._folder = epath.Path(model_dir) / FOLDER
        self._kept: dict[int, dict[int, dict[str, Any]]] = {}

    def add(self, step: int, positions: Mapping[int, Position]) -> None:
        """Keeps where the shards of this process are after a step."""
        self._kept[step] = {
            shard: {name: part for name, part in position.items() if name not in LEFT_OUT}
            for shard, position in positions.items()
        }

    def write(self, step: int) -> None:
        """Writes the places of all processes since the last time; all call it when they save a step."""
        by_shard: dict[int, dict[int, Mapping[str, Any]]] = {}
        for kept_step, of_shards in self._kept.items():
            for shard, place in of_shards.items():
                by_shard.setdefault(shard, {})[kept_step] = place
        parts = gather_bytes({shard: json.dumps(places).encode() for shard, places in by_shard.items()})
        of_steps: dict[str, dict[str, Any]] = {}
        for shard, part in sorted(parts.items()):
            for kept_step, place in json.loads(part).items():
                of_steps.setdefault(kept_step, {})[str(shard)] = place
        if not of_steps:
            return
        is_written = True
        if is_first():
            content = gzip.compress(json.dumps(of_steps, separators=(",", ":")).encode(), mtime=0)
            is_written = try_to_write(str(self._folder / f"{step}.json.gz"), content)
        if is_written:  # else with the next save
            self._kept = {}


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
            kept = {int(each): places for each, places in json.loads(gzip.decompress(read_bytes(path))).items()}
        except (OSError, EOFError, ValueError, AttributeError, zlib.error) as error:
            raise InputError(f"{path} cannot be read ({reason_of(error)}); restore it, or remove it.") from error
        before = [each for each in kept if each < step]
        if before:
            last = max(before)
            return last, {int(shard): place for shard, place in kept[last].items()}
    return None
