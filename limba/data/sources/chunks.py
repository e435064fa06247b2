"""Reads chunks of units in many threads at once, with readers that stay open between calls."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

from limba.data.sources.parquet import Footers, UnitError
from limba.data.sources.readers import PATIENT, Unit, read_chunks
from limba.data.sources.remote import ReadPolicy

logger = logging.getLogger(__name__)


class ChunkReader:
    """Returns chunk k of a unit, to many threads at once; reading forward reads each byte once.

    Readers stay open, each before the chunk that is probably next. If no reader fits, the unit is opened again and
    read up to the chunk, so the result never depends on earlier reads.

    With the policy 'skip' a unit ends where it fails, for the life of this object; `skipped` has its (name, reason).
    Another process may read more of it, and its data positions stay valid, since a chunk always has the same
    documents.
    """

    MOST_OPEN, MOST_CACHED = 512, 64

    def __init__(
        self,
        column: str | Sequence[str],
        policy: ReadPolicy = PATIENT,
        read: Callable[[Unit], Iterator[list[bytes]]] | None = None,
    ):
        self.footers = Footers()
        self._policy = policy
        self._read = read or (lambda unit: read_chunks(unit, column, policy, self.footers))
        self._lock = threading.Lock()
        self._open: OrderedDict[tuple[Unit, int], list[Iterator[list[bytes]]]] = OrderedDict()
        self._cache: OrderedDict[tuple[Unit, int], list[bytes] | None] = OrderedDict()
        self._ends: dict[Unit, tuple[int, str]] = {}  # of skipped units: the first missing chunk, and the reason

    @property
    def skipped(self) -> list[tuple[str, str]]:
        with self._lock:
            return [(unit.name, f"from chunk {end} on: {reason}") for unit, (end, reason) in self._ends.items()]

    def __call__(self, unit: Unit, chunk: int) -> list[bytes] | None:
        """Returns the documents of the chunk, or None if the unit ends before it."""
        key = (unit, chunk)
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
            if unit in self._ends and chunk >= self._ends[unit][0]:
                return None
            waiting = self._open.get(key)
            reader = waiting.pop() if waiting else None
            if waiting == []:
                del self._open[key]
        failure = None
        try:
            if reader is None:
                reader = self._read(unit)
                for _ in range(chunk):
                    next(reader, None)
            documents = next(reader, None)
        except UnitError as error:
            if self._policy.on_failure == "stop":
                raise
            documents, failure = None, error
        with self._lock:
            if failure is not None:
                self._skip(unit, chunk, str(failure))
            self._cache[key] = documents
            if len(self._cache) > self.MOST_CACHED:
                self._cache.popitem(last=False)
            if documents is not None and reader is not None:
                self._open.setdefault((unit, chunk + 1), []).append(reader)
            if len(self._open) > self.MOST_OPEN:
                self._open.popitem(last=False)  # its generator closes the file
        return documents

    def _skip(self, unit: Unit, chunk: int, reason: str) -> None:
        if unit not in self._ends:
            logger.warning("The rest of %s is skipped, from chunk %d on: %s", unit.name, chunk, reason)
        if unit not in self._ends or chunk < self._ends[unit][0]:
            self._ends[unit] = (chunk, reason)
