"""The ledger of a run: the batches whose text it does not train on, and their rows that stood out.

model_dir/skipped_batches.jsonl has one object a line: {"batch", "data_batch", "action", "reason", "loss",
"gradient_norm", "rows": [{"shard", "row", "loss", "documents"}, …]}. Batch n is the batch of step n, and `data_batch`
the same batch counted from the beginning of the data. Numbers that are not finite are null.
"""

import json
from collections.abc import Callable, Sequence
from typing import NotRequired, TypedDict

import jax
from etils import epath

from limba.config import ConfigError, InputError, RunConfig, reason_of
from limba.sharding.agreement import is_first, of_first, together
from limba.storage.files import read_text, resolved, try_to_write
from limba.training.metrics.records import LEDGER

FILE = LEDGER


class DocumentEntry(TypedDict):
    """A document that a row was made of: the task that reads it, its unit, and its number there, from 0."""

    source: str
    unit: str
    document: int
    is_exact: NotRequired[bool]  # False: it was read shortly before the row was made


class RowEntry(TypedDict):
    """A row that stood out in its batch; `documents` where they are known."""

    shard: int
    row: int
    loss: float | None
    documents: NotRequired[list[DocumentEntry]]


class Entry(TypedDict):
    """A line of the ledger."""

    batch: int
    data_batch: int
    action: str
    reason: str
    loss: float | None
    gradient_norm: float | None
    rows: list[RowEntry]


class SkippedBatches:
    """The batches that a run passes over, by its own ledger and by `DataConfig.skip`.

    All processes make it together, and have the content that the first one reads. Raises InputError if a ledger cannot
    be read.
    """

    def __init__(self, config: RunConfig):
        self.path = epath.Path(config.model_dir) / FILE
        self._lines = _from_first_process(lambda: read_text(self.path) if self.path.exists() else "")
        self._is_written = True
        self._batches = {entry["batch"] for entry in entries_of(self._lines, str(self.path))}
        if config.data.skip is not None:
            self._batches |= {entry["batch"] for entry in _of_other_run(config)}

    def __contains__(self, batch: int) -> bool:
        return batch in self._batches

    def append(self, entries: Sequence[Entry]) -> None:
        """Adds batches; the first process writes the whole file again, so that it is never torn."""
        self._batches |= {entry["batch"] for entry in entries}
        self._lines += "".join(json.dumps(entry) + "\n" for entry in entries)
        self._is_written = False
        self.write()

    def write(self) -> None:
        """Writes the file if the last attempt has failed, as on a full disk; called at each save, too."""
        if jax.process_index() == 0 and not self._is_written:
            self._is_written = try_to_write(str(self.path), self._lines)


def entries_of(text: str, path: str) -> list[Entry]:
    """Returns the entries of a ledger's text; InputError names a line that is not an entry."""
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            rows = [{**row, "shard": int(row["shard"]), "row": int(row["row"])} for row in entry.get("rows", ())]
            entries.append({**entry, "batch": int(entry["batch"]), "rows": rows})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InputError(
                f"Line {number} of {path} is not a batch of a ledger ({reason_of(error)}); correct or remove the line."
            ) from error
    return entries


def _of_other_run(config: RunConfig) -> list[Entry]:
    data = config.data
    path = str(data.skip)

    def read() -> str:
        try:
            return resolved(path).read_text()
        except Exception as error:  # a bucket's client has errors of its own
            raise ConfigError(
                "DataConfig.skip", f"is {path}, which cannot be read ({reason_of(error)}); give the {FILE} of a run."
            ) from error

    entries = entries_of(_from_first_process(read), path)
    for entry in entries:
        for row in entry["rows"]:
            if row["shard"] >= (data.num_data_shards or 1) or row["row"] >= data.rows_per_shard:
                raise ConfigError(
                    "DataConfig.skip",
                    f"is {path}, whose batch {entry['batch']} has row {row['row']} of shard {row['shard']}, and this"
                    f" run has {data.num_data_shards} shards of {data.rows_per_shard} rows: it is the ledger of other"
                    " batches; set DataConfig.batch_size and DataConfig.num_data_shards as in that run.",
                )
    return entries


def _from_first_process(read: Callable[[], str]) -> str:
    """Returns what the first process reads; all raise its error."""
    with together():
        text = read() if is_first() else ""
    return of_first(text)
