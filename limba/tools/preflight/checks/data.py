"""The data of a run: its text, its size, validation split and shards.

Its files are looked at in `files.py`, a sample of its text in `sample.py`, and its rows in `rows.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from limba.api import Mixture, PlannedRun, RunData, Task, UnitSource
from limba.config import InputError, Open, RunConfig
from limba.tools.preflight.checks import sample
from limba.tools.preflight.checks.files import check_patterns, equal_files
from limba.tools.preflight.checks.findings import Check, gathered
from limba.tools.preflight.checks.rows import in_words, of_rows
from limba.tools.preflight.checks.sample import rows_of
from limba.tools.preflight.checks.verdict import Data, Line, Section

if TYPE_CHECKING:
    from limba.tools.preflight.compiled.topologies import Topology

TITLE = "Data"
IDS = "tokens"  # the feature of documents that are ids already
SECONDS = 2.0  # for which reading is timed
# How much is read to compare the text of units with the bytes of their files.
UNITS_MEASURED = 3
BYTES_MEASURED = 1 << 23
MOST_COUNTED = 1 << 29  # bytes of local files, beyond which a split that is carved out is not counted
VALIDATION_BYTES = 1 << 24  # read at most to count the validation split
LARGER_PERCENT = 5.0  # of the training text, for a validation split that came out empty
LARGE = 1 << 28  # bytes of a corpus, from which on too few units cost time
BLANK = 0.05  # share of rows without text
FEW_DOCUMENTS = 8  # of a corpus, whose documents are cut if they are long
LONG = 1 << 14  # bytes of a long document, on average
LEAST_CUT = 1 << 15  # bytes of all documents, from which on a few become more by being cut


def data_of_run(
    config: RunConfig,
    task: Task | Mixture,
    lengths: Mapping[str, int] | None,
    chips: Topology | None = None,
    has_vocabulary: bool = True,
    is_learned: bool = False,
) -> Section:
    """Returns the section about a task's data; reads a sample, and times the reading for some seconds.

    Without lengths no rows are made. Without a vocabulary, where bytes stand for it, only documents are looked at; a
    vocabulary that is learned from a sample of the text is not judged.
    """
    run = RunData(config.data, task)
    judges_vocabulary = has_vocabulary and lengths is not None and not is_learned
    checks: list[Check] = [lambda data: _sources(config, run, data)]
    for part in run.parts:
        name = f"{part.name}: " if len(run.parts) > 1 else ""  # each line of a mixture says whose it is
        text = TextOfPart(config, part, name, lengths or {}, judges_vocabulary)
        checks.append(text.documents)
        if has_vocabulary:
            checks += [text.example, text.size]
        checks.append(text.validation)
    if lengths is not None and has_vocabulary:
        checks.append(lambda data: _rows(config, run, lengths, chips, data))
        if not is_learned:  # a later stage's task is opened by its vocabulary's file
            checks += [_of_stage(run, begins, lengths) for begins, *_ in config.data.stages]
    checks.append(lambda data: _shards(config, run, chips, data))
    checks.append(lambda data: _resume(run, data))
    return gathered(TITLE, *checks)


def _rows(
    config: RunConfig, run: RunData, lengths: Mapping[str, int], chips: Topology | None, data: Data
) -> Iterator[Line]:
    if data.get("documents") != 0:  # otherwise the text cannot be read, and an error says so
        yield from of_rows(config, run, lengths, chips, SECONDS, data)


def _sources(config: RunConfig, run: RunData, data: Data) -> Iterator[Line]:
    """Yields the files of each task and what is wrong with them; raises the InputError with which a start would end."""
    PlannedRun(config).check_prefix()
    split = run.config.train_split
    for part in run.parts:
        source = part.source
        if not isinstance(source, UnitSource):
            continue
        check_patterns(source, split)
        units = source.units(split)
        files = source.listed(split)
        sizes = [file.size for file in files if file.size is not None]
        counts = f"{_number(len(files), 'file')}, {_number(len(units), 'unit')}"
        if len(sizes) == len(files):
            counts += f", {sum(sizes) / 1e6:,.1f} MB"
        name = source.name[:1].lower() + source.name[1:]
        yield Line("ok", f"{part.name} reads {name}: {counts}.")
        yield from equal_files(source, split)
        yield from _blank(config, part, data)
    try:
        run.check()
    except InputError as error:
        is_small = error.fix is not None and error.fix[0] == "DataConfig.num_data_shards"
        line = _one_document(config, run.parts[0], data) if is_small else None
        if line is None:
            raise
        yield line
    for part in run.parts:
        if said := run.trained_validation(part):
            fix = "move the validation files to where no pattern of the training files matches them"
            yield Line("warning", f"{said}.", fix, "trained-validation")


def _blank(config: RunConfig, part: Task, data: Data) -> Iterator[Line]:
    """Yields a warning for each column that is often empty."""
    with contextlib.suppress(InputError):  # the check of the sample reports it
        for name, share in part.source.blank_shares(config.data.train_split).items():
            data.setdefault("blank_share", {})[name] = share
            if not BLANK <= share < 1:  # where all are empty there is no text, which is an error
                continue
            what = "documents" if name == "text" else name
            text = f"{share:.0%} of the {what} are empty; such rows are left out, so there is less text than it seems."
            fix = "nothing, unless the text stands in another column"
            yield Line("warning", text, fix, f"empty-{what}")


def _one_document(config: RunConfig, part: Task, data: Data) -> Line | None:
    """Returns the error of a corpus of a few long documents, which could be cut into more; None for any other one."""
    counts = RunData(config.data, part).documents(part)
    if not counts or counts.total > FEW_DOCUMENTS:
        return None
    sizes = [file.size for file in part.source.listed(config.data.train_split) if file.size is not None]
    if sizes and sum(sizes) < max(LEAST_CUT, counts.total * LONG):
        return None
    data["few_documents"] = True
    sentence = (
        f"{part.source.name} has only {_number(counts.total, 'document')}, which cannot be dealt to data shards and"
    )
    fix = "write the text as more documents, such as a line of JSON for each chapter"
    return Line("error", f"{sentence} a validation split.", fix, "one-document")


def _of_stage(run: RunData, begins: int, lengths: Mapping[str, int]) -> Check:
    """Returns the check of a later stage's task, files and rows, which must be like the first one's."""

    def stage(data: Data) -> Iterator[Line]:
        name = run.check_stage(begins, lengths).name
        yield Line("ok", f"From step {begins:,} on the text comes from {name}, with rows like those before.")

    return stage


@dataclasses.dataclass
class TextOfPart:
    """The checks of one task's text, which share one sample of it; `name` begins each line where there are several."""

    config: RunConfig
    part: Task
    name: str
    lengths: Mapping[str, int]
    judges_vocabulary: bool
    sample: Any = None  # of the corpus tool, once the documents were read

    def documents(self, data: Data) -> Iterator[Line]:
        """Yields what the sampled documents are, and what is wrong with their text."""
        if isinstance(self.part.source, UnitSource) and IDS in self.part.source.keys:
            data["documents"] = None
            yield Line("ok", f"{self.name}The corpus holds ids, tokenized beforehand; its text is not looked at.")
            return
        data["documents"] = 0  # unless they can be read
        self.sample = sample.sampled(self.config, self.part)
        if self.sample is None:
            data["documents"] = None
            yield Line("ok", f"{self.name}The text is not looked at, which needs limba/tools/corpus.")
            return
        yield from self._named(sample.of_documents(self.sample, data))
        yield from self._named(sample.of_text(self.config, self.part, self.sample, data, self.judges_vocabulary))

    def example(self, data: Data) -> Iterator[Line]:
        """Yields one example with its gaps, and how many pairs the lengths cut."""
        if self.sample is None:
            return
        rows = rows_of(self.sample.documents, len(self.sample.columns))
        yield from self._named(sample.of_example(self.config, self.part, self.sample, data))
        yield from self._named(sample.of_cuts(self.config, self.part, rows, self.lengths))

    def size(self, data: Data) -> Iterator[Line]:
        """Yields the tokens of the corpus."""
        if self.sample is not None:
            yield from self._named(_size(self.config, self.part, self.sample, data))

    def validation(self, data: Data) -> Iterator[Line]:
        """Yields the size of the validation split."""
        if self.sample is not None:
            yield from self._named(_validation(self.config, self.part, self.sample, data))

    def _named(self, lines: Iterator[Line]) -> Iterator[Line]:
        for line in lines:
            yield dataclasses.replace(line, text=self.name + line.text)


def _size(config: RunConfig, part: Task, text_sample: Any, data: Data) -> Iterator[Line]:
    """Yields the tokens of the corpus, counted or estimated."""
    if not isinstance(part.source, UnitSource):
        return
    per_document = text_sample.fertility.tokens / max(len(text_sample.documents) // len(text_sample.columns), 1)
    counts = RunData(config.data, part).documents(part)
    if counts is not None:
        tokens = counts.total * per_document
        how = f"{counts.total:,} documents"
        if not counts.is_exact:
            how += ", about"
    else:
        ratio = _text_in_files(part.source, config.data.train_split)
        num_bytes = part.source.num_bytes(config.data.train_split)
        if ratio is None or num_bytes is None:
            yield Line("ok", "The size of the corpus is not known: its files are compressed, or do not say theirs.")
            return
        tokens = num_bytes * ratio * text_sample.fertility.tokens_per_byte
        how = f"{in_words(num_bytes)} bytes, by its sample"
    data.setdefault("corpus_tokens", {})[part.name] = tokens
    data.setdefault("corpus_documents", {})[part.name] = tokens / per_document
    yield Line("ok", f"The corpus has about {in_words(tokens)} tokens ({how}).")


def _text_in_files(source: UnitSource, split: str) -> float | None:
    """Returns the bytes of text for each byte of a file, from a few units; None if units have no size."""
    units = [unit for unit in source.units(split) if unit.stop and not unit.path.lower().endswith(".parquet")]
    if not units or any(file.size is None for file in source.listed(split)):
        return None
    text = 0
    size = 0
    distance = max(1, len(units) // UNITS_MEASURED)
    for unit in units[::distance][:UNITS_MEASURED]:
        assert unit.stop is not None
        if size > BYTES_MEASURED:
            break
        for documents in source.chunks(split, unit):
            text += sum(len(document) for document in documents)
        size += unit.stop - unit.start
    return text / size if size else None


def _validation(config: RunConfig, part: Task, text_sample: Any, data: Data) -> Iterator[Line]:
    """Yields the validation split's size; an empty one is evaluated by nothing."""
    split = config.data.validation_split
    source = part.source
    if not isinstance(source, UnitSource):
        if split in part.splits:
            yield Line("ok", f"The validation split {split!r} is there.")
            return
        fix = ("DataConfig.validation_split", next(iter(part.splits), Open()))
        text = f"The validation split {split!r} is not there ({', '.join(part.splits)})."
        yield Line("warning", text, fix, "no-split")
        return
    number = 0
    num_bytes = 0
    is_all = True
    for unit in source.units(split):
        for documents in source.chunks(split, unit):
            number += len(documents)
            num_bytes += sum(map(len, documents))
        if num_bytes > VALIDATION_BYTES or _is_too_much(source, split, number):
            is_all = False
            break
    data.setdefault("validation_documents", {})[part.name] = number
    percent = source.carved_percent(split)
    origin = "" if percent is None else f", {percent:g} % of the training text by its hash"
    if number:
        at_least = "" if is_all else "at least "
        yield Line("ok", f"Validation split {split!r}: {at_least}{number:,} documents{origin}.")
        return
    if data.get("few_documents"):
        return  # which is an error already
    if len(text_sample.documents) <= FEW_DOCUMENTS:
        line = _one_document(config, part, data)
        if line is not None:
            yield line
            return
    # A run that keeps its best checkpoint has to evaluate.
    level = "error" if config.checkpoint.best_metric is not None else "warning"
    can_grow = percent is not None and percent < LARGER_PERCENT
    fix = ("DataConfig.validation_percent", LARGER_PERCENT) if can_grow else "add files to the split"
    yield Line(level, f"The validation split {split!r} is empty: nothing is evaluated.", fix, "empty-split")


def _is_too_much(source: UnitSource, split: str, number: int) -> bool:
    """Returns whether counting a split that is carved out of a large corpus would read too much of it."""
    files = source.listed(split)
    large = any(file.size is None or "://" in file.path for file in files)
    return number > 0 and (large or sum(file.size or 0 for file in files) > MOST_COUNTED)


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _shards(config: RunConfig, run: RunData, chips: Topology | None, data: Data) -> Iterator[Line]:
    """Yields how many units of the corpus there are for the data shards and the hosts."""
    shards = config.data.num_data_shards or 1
    hosts = chips.hosts if chips else 1
    data |= {"shards": shards, "hosts": hosts}
    for part in run.parts:
        if not isinstance(part.source, UnitSource):
            continue
        units = part.source.units(config.data.train_split)
        sizes = [file.size or 0 for file in part.source.listed(config.data.train_split)]
        text = f"{part.name}: {_number(len(units), 'unit')} in {_number(len(sizes), 'file')} for"
        text += f" {_number(shards, 'data shard')} on {_number(hosts, 'host')}"
        if len(units) < shards and sum(sizes) > LARGE:
            text += ": each shard reads all units, and takes only its own documents"
            fix = "split the text into more files, as examples/prepare_with_datatrove.py does with --shards"
            yield Line("warning", f"{text}.", fix, "few-units")
        else:
            yield Line("ok", f"{text}.")


def _resume(run: RunData, data: Data) -> Iterator[Line]:
    """Yields whether a resumed run goes on at its row at once, or has to read up to it first."""
    others = [part.name for part in run.parts if not isinstance(part.source, UnitSource)]
    data["resume_is_exact"] = not others
    if not others:
        yield Line("ok", "A resumed run continues at the very row where it stopped.")
    else:
        text = f"{', '.join(others)}: a resumed run reads its data again from the beginning up to its position, which"
        text += " takes time; sources of limba.data.sources save their position."
        yield Line("warning", text, ("DataConfig.data_files", Open()), "slow-resume")
