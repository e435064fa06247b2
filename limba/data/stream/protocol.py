"""What the three streams have in common: one process's, several processes', and several stages'."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping
from typing import Protocol, Self

from limba.data.stream.shard import Rows


class Stream(Iterator[dict[int, Rows]], Protocol):
    """Iterates over {shard: rows}: this host's logical shards and their rows of each global batch.

    A data position follows the batches that `next` has returned, not the prefetched ones. `next` and the other calls
    raise InputError if a bad part of the corpus is found during reading.
    """

    def __iter__(self) -> Self:
        return self

    @abc.abstractmethod
    def empty(self) -> dict[int, Rows]:
        """Returns rows of padding, for a host whose corpus ends before another host's."""

    @abc.abstractmethod
    def skipped(self) -> list[tuple[str, str]]:
        """Returns (unit, reason) of each unit that this host skipped, with on_read_failure 'skip'."""

    @abc.abstractmethod
    def epochs(self) -> dict[str, float]:
        """Returns task name -> epochs trained, a mean over this host's shards; nan where they are not known."""

    @abc.abstractmethod
    def tokens(self) -> dict[str, float]:
        """Returns task name -> tokens trained, of a mixture's tasks; all shards', if these are like the others."""

    @abc.abstractmethod
    def failure(self) -> BaseException | None:
        """Returns the error with which prefetching has failed: `next` raises it when the rows before it are used up."""

    @abc.abstractmethod
    def positions(self) -> dict[int, bytes]:
        """Returns each shard's data position after the batches returned so far, also where prefetching has failed."""

    @abc.abstractmethod
    def check(self, positions: Mapping[int, bytes]) -> None:
        """Opens all data positions fully, and changes nothing.

        Raises InputError as `begin` does, and PositionError, a ValueError, for damaged ones.
        """

    @abc.abstractmethod
    def begin(self, step: int, positions: Mapping[int, bytes] | None = None) -> None:
        """Sets a new stream to the batch after a step: by data positions, or the beginning of the data.

        Of the positions of all shards this host's are applied. Raises InputError if one is missing or belongs to other
        data, and if the corpus has changed with `on_changed_corpus` 'refuse'; with 'new_epoch' a new pass over the
        files of now begins.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Ends what reads."""
