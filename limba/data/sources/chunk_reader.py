"""The chunks of units, read by many threads at once: forward, each byte once, and each chunk as often as it is asked.

The units that are open and the chunks that are kept are bounded for a whole process, whatever the number of sources.
"""

from __future__ import annotations

import functools
import itertools
import logging
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

from limba.data.sources import listing, readers, remote
from limba.data.sources.failures import UnitError
from limba.data.sources.parquet import read_footer
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

    MOST_FOOTERS = 512

    def __init__(
        self,
        column: str | Sequence[str],
        policy: ReadPolicy = remote.PATIENT,
        read: Callable[[listing.Unit], Iterator[list[bytes]]] | None = None,
    ):
        self.footers = functools.lru_cache(self.MOST_FOOTERS)(read_footer)
        self._policy = policy
        self._read = read or (lambda unit: readers.read_chunks(unit, column, policy, self.footers))
        self._owner = OPEN.new_owner()
        weakref.finalize(self, OPEN.close_of, self._owner)
        weakref.finalize(self, KEPT.forget_of, self._owner)
        self._lock = threading.Lock()
        # Of skipped units: the first missing chunk, and the reason.
        self._ends: dict[listing.Unit, tuple[int, str]] = {}

    @property
    def skipped(self) -> list[tuple[str, str]]:
        with self._lock:
            return [(unit.name, f"from chunk {end} on: {reason}") for unit, (end, reason) in self._ends.items()]

    def __call__(self, unit: listing.Unit, chunk: int) -> list[bytes] | None:
        """Returns the documents of the chunk, or None if the unit ends before it."""
        is_kept, kept = KEPT.get(self._owner, unit, chunk)
        if is_kept:
            return kept
        with self._lock:
            if unit in self._ends and chunk >= self._ends[unit][0]:
                return None
        reader = OPEN.take(self._owner, unit, chunk)
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
            documents = None
            failure = error
        if failure is not None:
            with self._lock:
                self._skip(unit, chunk, str(failure))
        KEPT.put(self._owner, unit, chunk, documents)
        if documents is not None and reader is not None:
            OPEN.put(self._owner, unit, chunk + 1, reader)
        return documents

    def _skip(self, unit: listing.Unit, chunk: int, reason: str) -> None:
        if unit not in self._ends:
            logger.warning("The rest of %s is skipped, from chunk %d on: %s", unit.name, chunk, reason)
        if unit not in self._ends or chunk < self._ends[unit][0]:
            self._ends[unit] = (chunk, reason)


class OpenUnits:
    """The units that are open before a chunk, of all sources of this process: the oldest are closed first."""

    MOST = 512

    def __init__(self) -> None:
        self._lock = threading.RLock()  # Python may collect a reader of chunks, and call `close_of`, at any place
        self._numbers = itertools.count()
        self._open: OrderedDict[tuple[int, listing.Unit, int], list[Iterator[list[bytes]]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def new_owner(self) -> int:
        """Returns the number by which a reader of chunks knows its own."""
        return next(self._numbers)

    def take(self, owner: int, unit: listing.Unit, chunk: int) -> Iterator[list[bytes]] | None:
        """Returns a reader of the unit whose next chunk is this one; None if none is open."""
        key = (owner, unit, chunk)
        with self._lock:
            waiting = self._open.get(key)
            if waiting is None:
                return None
            reader = waiting.pop()
            if not waiting:
                del self._open[key]
            return reader

    def put(self, owner: int, unit: listing.Unit, chunk: int, reader: Iterator[list[bytes]]) -> None:
        """Keeps a reader of the unit, whose next chunk is this one."""
        with self._lock:
            self._open.setdefault((owner, unit, chunk), []).append(reader)
            if len(self._open) > self.MOST:
                self._open.popitem(last=False)  # its generator closes the file

    def close_of(self, owner: int) -> None:
        """Closes the units of one reader of chunks."""
        with self._lock:
            for key in list(self._open):
                if key[0] == owner:
                    self._open.pop(key, None)


class KeptChunks:
    """The chunks that were read last, of all sources of this process, since shards that divide a unit read each chunk.

    They take at most `BYTES_A_SOURCE` for each source, and `MOST_BYTES` for all of them.
    """

    BYTES_A_SOURCE = 1 << 24
    MOST_BYTES = 1 << 27
    BYTES_A_CHUNK = 400  # of Python's own, about
    BYTES_A_DOCUMENT = 50

    def __init__(self) -> None:
        self._lock = threading.RLock()  # as above
        self._kept: OrderedDict[tuple[int, listing.Unit, int], tuple[list[bytes] | None, int]] = OrderedDict()
        self._owners = set[int]()
        self._num_bytes = 0

    def get(self, owner: int, unit: listing.Unit, chunk: int) -> tuple[bool, list[bytes] | None]:
        """Returns whether a chunk is kept, and its documents."""
        key = (owner, unit, chunk)
        with self._lock:
            if key not in self._kept:
                return False, None
            self._kept.move_to_end(key)
            return True, self._kept[key][0]

    def put(self, owner: int, unit: listing.Unit, chunk: int, documents: list[bytes] | None) -> None:
        """Keeps a chunk, and forgets those that were asked for longest ago."""
        size = self.BYTES_A_CHUNK
        if documents is not None:
            size += sum(map(len, documents)) + self.BYTES_A_DOCUMENT * len(documents)
        with self._lock:
            self._forget((owner, unit, chunk))
            self._owners.add(owner)
            self._kept[owner, unit, chunk] = documents, size
            self._num_bytes += size
            most = min(self.BYTES_A_SOURCE * len(self._owners), self.MOST_BYTES)
            while self._num_bytes > most and len(self._kept) > 1:
                self._forget(next(iter(self._kept)))

    def _forget(self, key: tuple[int, listing.Unit, int]) -> None:
        _, size = self._kept.pop(key, (None, 0))
        self._num_bytes -= size

    def forget_of(self, owner: int) -> None:
        """Forgets the chunks of one reader of chunks."""
        with self._lock:
            self._owners.discard(owner)
            for key in list(self._kept):
                if key[0] == owner:
                    self._forget(key)


OPEN = OpenUnits()
KEPT = KeptChunks()
