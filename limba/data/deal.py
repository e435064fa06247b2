"""The deal of a run: the tasks whose documents are counted, so that each epoch is dealt evenly to its shards.

Counted documents are dealt one by one, others in whole units (`sources/documents.py`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from limba.config import ConfigError, DataConfig
from limba.data.dataset import TEXT, Elements
from limba.data.draws import Draws
from limba.data.objectives.choice import examples_of
from limba.data.registry import Mixture, Task
from limba.data.sources.order import Counts
from limba.data.tasks import Provider, has_exact_positions, parts_of, unit_sources

VERSION = 2  # of how counted documents are dealt; part of the format of data positions
TRIED = 7  # documents with which a task's preprocessors are tried, without reading any


@dataclass(frozen=True)
class Deal:
    """Task -> the counts of its documents, in the order of the tasks; a task without them deals whole units.

    `rows` counts one epoch of all tasks; None if it cannot be known beforehand, and `reason` then says why.
    `is_exact` is False if they are an estimate.
    """

    counts: Mapping[str, Counts] = field(default_factory=dict)
    rows: int | None = None
    is_exact: bool = True
    reason: str = ""

    @property
    def identity(self) -> dict[str, object] | None:
        """What a data position says of it; None if nothing is counted."""
        return {"version": VERSION, "tasks": sorted(self.counts)} if self.counts else None

    def offset(self, task: str, num_epochs: int | None) -> int:
        """Returns the number of documents of the tasks before this one, in all their epochs."""
        names = list(self.counts)
        return (num_epochs or 0) * sum(self.counts[name].total for name in names[: names.index(task)])

    def to_text(self) -> str:
        """Returns the deal as JSON."""
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def of_text(text: str) -> Deal:
        """Returns what `to_text` has given."""
        plain = json.loads(text)
        plain.pop("marks_corpora", None)  # which versions before 0.3 wrote
        counts = {name: Counts.of(count) for name, count in plain["counts"].items()}
        return Deal(**{**plain, "counts": counts})


WHOLE_UNITS = Deal()


def corpora_of(task: Provider, config: DataConfig) -> str:
    """Returns a digest of what the counts depend on: files, columns, splits, chunks and the examples chosen."""
    facts = []
    for source in unit_sources(task).values():
        marks = [(mark.size, mark.content or mark.path) for mark in source.marks(config.train_split)]
        facts.append((marks, source.columns, source.carved_percent(config.train_split), source.num_tasks))
    text = repr((VERSION, task.name, config.train_split, config.max_examples, facts))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def deal_of(
    task: Provider,
    lengths: Mapping[str, int],
    config: DataConfig,
    wants_epochs: bool,
    names: Sequence[str] | None = None,
    known: Mapping[str, Counts] | None = None,
) -> Deal:
    """Returns the deal of a run; reads small local corpora once, to count their documents, unless they are `known`.

    With `wants_epochs`, where the run ends or saves by epochs, the sizes that large files say themselves count too.
    `names` are the tasks that a resumed run deals evenly; None for a new one. Raises ConfigError for
    `max_examples` of a corpus without documents to choose, and InputError for bad files.
    """
    counts = dict[str, Counts]()
    reasons = list[str]()
    sources = unit_sources(task) if has_exact_positions(task) else {}
    for part in parts_of(task):
        part_counts = None if known is None else known.get(part.name)
        if known is None and part.name in sources:
            part_counts = sources[part.name].count(config.train_split, config.max_examples)
        if part_counts is None and config.max_examples is not None:
            raise ConfigError(
                "DataConfig.max_examples",
                f"is {config.max_examples:,}, and {task.name} reads documents that cannot be counted; set"
                " DataConfig.data_files to its files.",
            )
        is_wanted = names is None or part.name in names
        if part_counts is not None and is_wanted and (part_counts.is_exact or wants_epochs):
            counts[part.name] = part_counts
        reasons.append(_unknown(part, lengths, config, counts.get(part.name)))
    reason = next(filter(None, reasons), "")
    if isinstance(task, Mixture) and config.num_epochs is None:
        reason = reason or f"{task.name} is a mixture without an end, whose tasks have epochs of their own"
    rows = None if reason else sum(count.total for count in counts.values())
    return Deal(counts, rows, all(count.is_exact for count in counts.values()), reason)


def _unknown(part: Task, lengths: Mapping[str, int], config: DataConfig, counts: Counts | None) -> str:
    """Returns why the number of a task's rows is not known beforehand, or ""."""
    if counts is None:
        return f"the documents of {part.name} are not counted, since its corpus is large or not on a local disk"
    if config.pack:
        return "DataConfig.pack joins examples into rows"
    if counts.num_pieces > counts.total:
        return f"{part.name} has long documents, which are read in pieces"
    if not has_row_per_document(part, lengths):
        return f"the preprocessors of {part.name} make any number of rows of a document"
    return ""


def has_row_per_document(part: Task, lengths: Mapping[str, int]) -> bool:
    """Returns whether each document gives exactly one row: no preprocessor cuts, joins or filters."""
    keys = unit_sources(part)[part.name].keys
    documents = Elements([dict.fromkeys(keys, b"")] * TRIED, dict.fromkeys(keys, TEXT))
    return examples_of(part, lengths, documents, Draws(seed=0)).cardinality == TRIED


def said(deal: Deal, config: DataConfig) -> Sequence[str]:
    """Returns the sentences on the deal that a run begins with."""
    if deal.rows is None:
        return ()
    kind = "examples" if deal.is_exact else "examples, about,"
    first = " (the first ones: DataConfig.max_examples)" if config.max_examples is not None else ""
    return (f"{deal.rows:,} {kind} an epoch{first}, {deal.rows / config.batch_size:,.2f} steps of {config.batch_size}",)
