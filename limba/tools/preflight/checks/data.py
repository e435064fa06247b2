"""The data of a run: its text, rows, size, validation split, shards, and the speed at which it is read here."""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import glob
import hashlib
import itertools
import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from limba.api import Mixture, PieceTable, RunData, Task, UnitSource
from limba.config import InputError, Open, RunConfig, nearest
from limba.config.speed import LEAST_STEP_SECONDS
from limba.tools.preflight.checks import sample
from limba.tools.preflight.checks.findings import Check, gathered, logged, shorter
from limba.tools.preflight.checks.objective import TITLE as OBJECTIVE
from limba.tools.preflight.checks.objective import needed_targets, wasted_share
from limba.tools.preflight.checks.sample import cleaning, rewritten, rows_of
from limba.tools.preflight.checks.verdict import Data, Line, Section
from limba.tools.preflight.texts.faults import EMPTY, ONE_DOCUMENT

if TYPE_CHECKING:
    from limba.tools.preflight.compiled.topologies import Topology

TITLE = "Data"
# What `limba prepare` has written is read faster, and comes in as many files as there are shards.
PREPARE = "limba prepare {} --output=prepared/train", "prepared/train/*.array_record"
SECONDS = 2.0  # for which reading is timed
PADDED = 0.1  # share of a step's FLOPs for padding that is found in rows
MOST_EPOCHS = 64  # with which T5 lost little (Raffel et al. 2020, table 9); with 256 and more it did
WORDS = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"))
MFU = 0.4  # at which devices are taken to compute, for what they want to read
CORES_OF_HOST = 96  # of a TPU's host, or a node with GPUs, at least
UNITS_MEASURED, BYTES_MEASURED = 3, 1 << 23  # of units whose text is compared with their size
MOST_COUNTED = 1 << 29  # bytes of local files, beyond which a split that is carved out is not counted
VALIDATION_BYTES = 1 << 24  # read at most to count the validation split
LARGER_PERCENT = 5.0  # of the training text, for a validation split that came out empty
MOST_MOVED = 8  # copies of files that are named one by one
LARGE = 1 << 28  # bytes, from which on too few units cost time
BLANK = 0.05  # share of rows without text
FEW_DOCUMENTS = 8  # of a corpus, whose documents are cut if they are long
LONG, LEAST_CUT = 1 << 14, 1 << 15  # bytes of a long document on average, and of the few in all
SUFFIXES = (".txt", ".jsonl", ".json", ".csv", ".tsv", ".parquet", ".gz", ".zst", ".bz2", ".xz", ".array_record")


def data_of_run(
    config: RunConfig,
    task: Task | Mixture,
    lengths: Mapping[str, int] | None,
    chips: Topology | None = None,
    has_vocabulary: bool = True,
    is_learned: bool = False,
) -> Section:
    """Returns the section about a task's data; reads a sample, and times the reading for some seconds.

    Without lengths rows are not made. Without a vocabulary, where bytes stand for it, only documents are looked at; one
    that is learned from a sample of the text is not judged.
    """
    run = RunData(config.data, task)
    checks: list[Check] = [lambda data: _sources(config, run, data)]
    several = len(run.parts) > 1
    for part in run.parts:
        name, rows_of = f"{part.name}: " if several else "", lengths if has_vocabulary else None
        checks += _of_part(config, part, name, rows_of, is_learned)[:: 1 if has_vocabulary else 3]
    if lengths is not None and has_vocabulary:
        checks.append(lambda data: _rows(config, run, lengths, chips, data) if data.get("documents") != 0 else ())
        # A later stage's task is opened by its vocabulary's file.
        checks += [_of_stage(run, begins, lengths) for begins, *_ in config.data.stages if not is_learned]
    checks += [lambda data: _shards(config, run, chips, data), lambda data: _resume(run, data)]
    return gathered(TITLE, *checks)


def _sources(config: RunConfig, run: RunData, data: Data) -> Iterator[Line]:
    for part in run.parts:
        if isinstance(part.source, UnitSource):
            _check_patterns(run, part.source)
            units, files = part.source.units(run.config.train_split), part.source.listed(run.config.train_split)
            sizes = [file.size for file in files if file.size]
            size = f", {sum(sizes) / 1e6:,.1f} MB" if len(sizes) == len(files) else ""
            name = part.source.name[:1].lower() + part.source.name[1:]
            said = f"{_number(len(files), 'file')}, {_number(len(units), 'unit')}{size}"
            yield Line("ok", f"{part.name} reads {name}: {said}.")
            yield from _equal_files(run, part.source, data)
            yield from _blank(config, part, data)
    try:
        run.check()
    except InputError as error:
        is_small = error.fix is not None and error.fix[0] == "DataConfig.num_data_shards"
        if (line := _one_document(config, run.parts[0], data) if is_small else None) is None:
            raise
        yield line


def _check_patterns(run: RunData, source: UnitSource) -> None:
    """Raises InputError for a pattern of local files that matches none, with the files beside it as its fix."""
    for pattern in source.patterns_of_split(run.config.train_split):
        if "://" in pattern or glob.glob(pattern, recursive=True):
            continue
        folder = next(each for each in Path(pattern).parents if each.is_dir())
        files = [path for path in sorted([*folder.glob("*"), *folder.glob("*/*")]) if path.name.endswith(SUFFIXES)]
        near = nearest(pattern, map(str, files)) or next(map(str, files), "")
        fix = ("DataConfig.data_files", near or Open("files that exist"))
        raise InputError(f"The corpus path {pattern} matches no file; nearest is {near or 'none'}.", fix=fix)


def _equal_files(run: RunData, source: UnitSource, data: Data) -> Iterator[Line]:
    """Yields a warning where local files of a split have the same bytes: one, however many they are."""
    seen: dict[tuple[int, str], str] = {}
    copies: list[tuple[str, str]] = []  # and the file whose bytes they are
    for file in source.listed(run.config.train_split):
        if "://" in file.path or not file.size or file.size > LARGE:
            continue
        with open(file.path, "rb") as content:
            key = file.size, hashlib.file_digest(content, "blake2b").hexdigest()
        if (first := seen.setdefault(key, file.path)) != file.path:
            copies.append((file.path, first))
    if not copies:
        return
    data["equal_files"] = True
    path, first = copies[0]
    if len(copies) == 1:
        says = f"Two files are equal, {first} and {path}: their text is read twice in each epoch."
    else:
        says = f"{len(copies):,} files are copies of others, such as {path} of {first}: their text is read again in"
        says += " each epoch."
    patterns = list(source.patterns_of_split(run.config.train_split))
    named = [each for each, _ in copies if each in patterns]
    if named:  # without it, its name would match no file
        yield Line("warning", says, ("DataConfig.data_files", Open(f"the files without {named[0]}")), "equal-files")
        return
    folder = _folder_beside(patterns)
    is_read_again = any(fnmatch.fnmatch(f"{each}.copy", pattern) for each, _ in copies for pattern in patterns)
    if len(copies) <= MOST_MOVED:
        quoted = [shlex.quote(each) for each, _ in copies]
        fixes = [f"mv {each} {each}.copy" for each in quoted]
        if is_read_again:
            fixes = [f"mkdir -p {shlex.quote(folder)}"]
            fixes += [f"mv --backup=numbered {each} {shlex.quote(folder)}" for each in quoted]
        yield Line("warning", says, fixes, "equal-files")
        return
    # The shell reads the patterns as they are, but for spaces.
    files = " ".join(each.replace(" ", "\\ ") for each in patterns)
    later = "awk 'seen[$1]++ { print substr($0, 35) }'"  # md5sum's line: 32 digits, two spaces, the path
    fix = f"md5sum {files} | {later} | xargs -d '\\n' -I @ mv @ @.copy"
    if is_read_again:
        move = f"xargs -d '\\n' -I @ mv --backup=numbered @ {shlex.quote(folder)}"
        fix = f"mkdir -p {shlex.quote(folder)} && md5sum {files} | {later} | {move}"
    yield Line("warning", says, fix, "equal-files")


def _folder_beside(patterns: Sequence[str]) -> str:
    """Returns a folder beside that of the first pattern, from which no pattern reads."""
    parts = list(itertools.takewhile(lambda part: not glob.has_magic(part), Path(patterns[0]).parts))
    return f"{Path(*parts)}.copies" if parts else "copies"


def _blank(config: RunConfig, part: Task, data: Data) -> Iterator[Line]:
    with contextlib.suppress(InputError):  # which is said of the sample
        for name, share in part.source.blank_shares(config.data.train_split).items():
            data.setdefault("blank_share", {})[name] = share
            if BLANK <= share < 1:  # else there is no text, an error
                what = "documents" if name == "text" else name
                says = (
                    f"{share:.0%} of the {what} are empty; such rows are left out, so there is less text than it seems"
                )
                yield Line("warning", f"{says}.", cleaning(config, part, [EMPTY]), f"empty-{what}")


def _one_document(config: RunConfig, part: Task, data: Data) -> Line | None:
    """Returns the error of a corpus of a few long documents, which become more by being cut; None of another one."""
    counts = RunData(config.data, part).documents(part)
    if not counts or counts.total > FEW_DOCUMENTS:
        return None
    sizes = [file.size for file in part.source.listed(config.data.train_split) if file.size is not None]
    if sizes and sum(sizes) < max(LEAST_CUT, counts.total * LONG):
        return None
    data["few_documents"] = True
    says = f"{part.source.name} has only {_number(counts.total, 'document')}, which cannot be dealt to data shards and"
    fix = cleaning(config, part, [ONE_DOCUMENT])
    return Line("error", f"{says} a validation split.", fix, ONE_DOCUMENT)


def _of_stage(run: RunData, begins: int, lengths: Mapping[str, int]) -> Check:
    """Returns the check of a later stage's task, files and rows, which must be like the first one's."""

    def stage(data: Data) -> Iterator[Line]:
        name = run.check_stage(begins, lengths).name
        yield Line("ok", f"From step {begins:,} on the text is that of {name}, with rows like those before.")

    return stage


def _of_part(
    config: RunConfig, part: Task, name: str, lengths: Mapping[str, int] | None, is_learned: bool
) -> list[Check]:
    """Returns the checks of a task's text, which share one sample."""
    kept: list[Any] = []  # of the corpus tool

    def named(data: Data, lines: Iterator[Line]) -> Iterator[Line]:
        for line in lines:
            yield dataclasses.replace(line, text=name + line.text)

    def documents(data: Data) -> Iterator[Line]:
        data["documents"] = 0  # unless it can be read
        if (found := sample.sampled(config, part)) is None:
            data["documents"] = None
            return iter([Line("ok", f"{name}The text is not looked at, which needs limba/tools/corpus.")])
        kept.append(found)
        of_text = sample.of_text(config, part, found, data, lengths is not None and not is_learned)
        return named(data, itertools.chain(sample.of_documents(found, data), of_text))

    def others(data: Data) -> Iterator[Line]:
        for found in kept:  # none if it cannot be read
            yield from named(data, sample.of_example(config, part, found, data))
            yield from named(
                data, sample.of_cuts(config, part, rows_of(found.documents, len(found.columns)), lengths or {})
            )

    def size(data: Data) -> Iterator[Line]:
        for found in kept:
            yield from named(data, _size(config, part, found, data))

    return [documents, others, size, lambda data: named(data, _validation(config, part, kept[0], data)) if kept else ()]


def _size(config: RunConfig, part: Task, found: Any, data: Data) -> Iterator[Line]:
    """Yields the tokens of the corpus, counted or estimated."""
    if not isinstance(part.source, UnitSource):
        return
    per_document = found.fertility.tokens / max(len(found.documents) // len(found.columns), 1)
    counts = RunData(config.data, part).documents(part)
    if counts is not None:
        tokens, how = counts.total * per_document, f"{counts.total:,} documents{'' if counts.is_exact else ', about'}"
    else:
        ratio = _text_in_files(part.source, config.data.train_split)
        if ratio is None:
            yield Line("ok", "The size of the corpus is not known: its files are compressed, or do not say theirs.")
            return
        num_bytes = part.source.num_bytes(config.data.train_split)
        tokens, how = num_bytes * ratio * found.fertility.tokens_per_byte, f"{in_words(num_bytes)} bytes, by its sample"
    data.setdefault("corpus_tokens", {})[part.name] = tokens
    data.setdefault("corpus_documents", {})[part.name] = tokens / per_document
    yield Line("ok", f"The corpus has about {in_words(tokens)} tokens ({how}).")


def _text_in_files(source: UnitSource, split: str) -> float | None:
    """Returns the bytes of text for each byte of a file, from a few units; None if units have no size."""
    units = [unit for unit in source.units(split) if unit.stop and not unit.path.lower().endswith(".parquet")]
    if not units or any(file.size is None for file in source.listed(split)):
        return None
    text = size = 0
    for unit in units[:: max(1, len(units) // UNITS_MEASURED)][:UNITS_MEASURED]:
        assert unit.stop is not None
        if size > BYTES_MEASURED:
            break
        text += sum(len(document) for documents in source.chunks(split, unit) for document in documents)
        size += unit.stop - unit.start
    return text / size if size else None


def _validation(config: RunConfig, part: Task, found: Any, data: Data) -> Iterator[Line]:
    """Yields the validation split's size; an empty one is evaluated by nothing."""
    split, source = config.data.validation_split, part.source
    if not isinstance(source, UnitSource):
        level = "ok" if split in part.splits else "warning"
        known = "there" if level == "ok" else f"not there ({', '.join(part.splits)})"
        fix = ("DataConfig.validation_split", next(iter(part.splits), Open()))
        yield Line(level, f"The validation split {split!r} is {known}.", None if level == "ok" else fix, "no-split")
        return
    number = num_bytes = 0
    is_all, texts = True, list[bytes]()
    for unit in source.units(split):
        for documents in source.chunks(split, unit):
            number += len(documents)
            num_bytes += sum(map(len, documents))
            texts += documents if num_bytes < sample.SAMPLE_BYTES else []
        if num_bytes > VALIDATION_BYTES or _is_too_much(source, split, number):
            is_all = False
            break
    data.setdefault("validation_documents", {})[part.name] = number
    percent = source.carved_percent(split)
    origin = "" if percent is None else f", {percent:g} % of the training text by its hash"
    if number:
        at_least = "" if is_all else "at least "
        yield Line("ok", f"Validation split {split!r}: {at_least}{number:,} documents{origin}.")
        yield from sample.of_overlap(config, part, rows_of(found.documents, len(found.columns)), texts, data)
        return
    if data.get("few_documents"):
        return  # said already
    if len(found.documents) <= FEW_DOCUMENTS and (line := _one_document(config, part, data)) is not None:
        yield line
        return
    needs = config.checkpoint.best_metric is not None
    can_grow = percent is not None and percent < LARGER_PERCENT
    fix = ("DataConfig.validation_percent", LARGER_PERCENT) if can_grow else "add files to the split"
    yield Line(
        "error" if needs else "warning",
        f"The validation split {split!r} is empty: nothing is evaluated.",
        fix,
        "empty-split",
    )


def _is_too_much(source: UnitSource, split: str, number: int) -> bool:
    """Returns whether counting a split that is carved out of a large corpus would read too much of it."""
    files = source.listed(split)
    large = any(file.size is None or "://" in file.path for file in files)
    return number > 0 and (large or sum(file.size or 0 for file in files) > MOST_COUNTED)


def _rows(
    config: RunConfig, run: RunData, lengths: Mapping[str, int], chips: Topology | None, data: Data
) -> Iterator[Line]:
    """Yields what rows hold, and how fast they are read; they are the first shard's, as training reads them."""
    rows, filled, seconds, cpu_seconds = _timed(run, lengths, SECONDS)
    if not rows:
        yield Line("warning", "The first data shard gives no row.", "give more text", "no-rows")
        return
    data["text_share"] = _text_share(config, run, lengths)
    filled, lengths = _read(config, filled), _read(config, lengths)
    shares = {name: 1 - filled[name] / (rows * lengths[name]) for name in filled}
    real = {name: filled[name] / rows for name in filled}
    tokens = sum(real.values())
    data |= {
        "padding": shares,
        "tokens_per_row": tokens,
        "tokens_per_cpu_second": rows * tokens / max(cpu_seconds, 1e-9),
    }
    yield from _padding(config, run, lengths, shares, real, data)
    yield from _totals(config, tokens, data)
    speed = rows * tokens / max(cpu_seconds, 1e-9)
    clock = rows * tokens / max(seconds, 1e-9)
    data["tokens_per_second_of_one_shard"] = clock
    here = f"Reading: {speed / 1e6:.2f} million tokens per second of one core of this machine ({os.cpu_count()} cores)"
    here += f", {clock / 1e6:.2f} million by the clock from one data shard"
    if chips is None or not chips.peak_flops or wanted_tokens(config, chips, real) == 0:
        yield Line("ok", f"{here}.")
        return
    wanted = wanted_tokens(config, chips, real) / chips.hosts
    cores = wanted / speed
    data |= {"tokens_wanted_per_host": wanted, "cores_wanted_per_host": cores}
    want = "wants" if chips.hosts == 1 else "want"
    of_all = f"{_number(chips.hosts, 'host')} of {chips.name} {want} {wanted / 1e6:.2f} million each"
    of_all += f" at {MFU:.0%} of the peak"
    text = f"{here}; {of_all} (an assumption), the work of {cores:.1f} such cores."
    if cores > CORES_OF_HOST:
        yield Line("warning", text, rewritten(config, run.parts[0], *PREPARE), "reading-too-slow")
    else:
        processes = config.data.num_reader_processes
        advice = f"DataConfig.num_reader_processes = {min(16, int(cores) + 1)}" if cores > 2 * processes else ""
        yield Line("ok", text + (f" More than one process reads faster: {advice}." if advice else ""))


def _read(config: RunConfig, sides: Mapping[str, int]) -> Mapping[str, int]:
    """Returns the sides of a row that a network reads: one of an encoder's, a text and the same again or its labels."""
    is_one_text = (config.model.is_encoder or config.model.has_own_head) and config.model.head != "vectors"
    return {"targets": sides["inputs"]} if is_one_text else sides


def wanted_tokens(config: RunConfig, chips: Topology, real: Mapping[str, float]) -> float:
    """Returns the tokens a second that all devices take at MFU of their peak, of rows with these many real tokens.

    A step of a small model takes at least LEAST_STEP_SECONDS, whatever the peak is.
    """
    from limba.api import flops_per_sequence

    sides = round(real.get("inputs", 0)), round(real.get("targets", 0))
    per_row = flops_per_sequence(config.model, *sides, config.data.num_predicted)
    rows = MFU * chips.peak_flops * chips.devices / per_row if per_row else 0.0
    return min(rows, config.data.batch_size / LEAST_STEP_SECONDS) * sum(real.values())


def _timed(run: RunData, lengths: Mapping[str, int], most: float) -> tuple[int, dict[str, int], float, float]:
    """Returns (rows, real tokens by feature, seconds, seconds of processor) of reading for `most` seconds."""
    rows, filled = 0, dict.fromkeys(lengths, 0)
    with logged():  # of units and shards `_shards` says more
        iterator = run.rows(lengths)
        first = next(iterator, None)  # opens files, and is not timed
        began, cpu = time.monotonic(), time.process_time()
        for batch in iterator:
            rows += len(next(iter(batch.values())))
            for name in filled:
                filled[name] += int(np.count_nonzero(batch[name]))
            if time.monotonic() - began > most:
                break
        seconds, cpu = time.monotonic() - began, time.process_time() - cpu
    if not rows and first is not None:
        rows = len(next(iter(first.values())))
        filled = {name: int(np.count_nonzero(first[name])) for name in filled}
    return rows, filled, seconds, cpu


def _text_share(config: RunConfig, run: RunData, lengths: Mapping[str, int]) -> float:
    """Returns the share of a row's real tokens that is text, which sentinels are not."""
    if config.model.is_decoder_only or not run.fills_gaps:
        return 1.0
    with logged():
        batch = next(run.rows(lengths))
    sentinels = PieceTable(run.task.output_features["targets"].vocabulary).sentinels
    marks = sum(np.count_nonzero(np.isin(batch[name], sentinels)) for name in lengths)
    return 1 - marks / sum(np.count_nonzero(batch[name]) for name in lengths)


def _padding(
    config: RunConfig, run: RunData, lengths: Mapping[str, int], shares: Mapping[str, float],
    real: Mapping[str, float], data: Data,
) -> Iterator[Line]:  # fmt: skip
    said = ", ".join(f"{share:.1%} of the {name}" for name, share in shares.items())
    inputs, targets = lengths.get("inputs", 0), lengths.get("targets", 0)
    waste = wasted_share(config, inputs, real.get("targets", 0), targets, real.get("inputs", 0))
    data["padding_flops_share_of_rows"] = waste
    needed = needed_targets(run, inputs) if inputs else None
    by_lengths = 0.0 if needed is None else wasted_share(config, inputs, needed, targets)
    # Packed rows are as full as their examples allow, and labeled ones are never packed.
    if waste - by_lengths < PADDED or config.data.pack or config.data.head:
        why = f"; {waste:.0%} of a step's FLOPs, by the lengths: see {OBJECTIVE}" if by_lengths >= PADDED else ""
        yield Line("ok", f"Padding in the rows that are trained on: {said}{why}.")
        return
    text = f"Padding in the rows that are trained on: {said}; {waste:.0%} of a step's FLOPs"
    packed = RunData(dataclasses.replace(config.data, pack=True), run.task)
    rows, sides, *_ = _timed(packed, packed.lengths(), 0.0)
    filled = _read(config, sides)
    left = wasted_share(config, inputs, filled["targets"] / rows, targets, filled.get("inputs", 0) / rows)
    if waste - left < PADDED:
        yield Line("ok", f"{text}, and {left:.0%} if rows are packed: two examples seldom fit in one.")
    else:
        yield Line("warning", f"{text}, of which packing leaves {left:.0%}.", ("DataConfig.pack", True), "padding")


def _totals(config: RunConfig, tokens: float, data: Data) -> Iterator[Line]:
    """Yields the tokens of a step and of the run, and its epochs over the corpus where that is known."""
    per_step = tokens * config.data.batch_size
    data["tokens_per_step"] = per_step
    text = f"{per_step:,.0f} real tokens a step"
    corpus, documents = (sum(data.get(f"corpus_{name}", {}).values()) for name in ("tokens", "documents"))
    # A labeled text is a row of its own; others fill rows.
    steps = documents / config.data.batch_size if config.data.head else corpus / (per_step * data["text_share"])
    ends, data["steps_per_epoch"] = config.data.num_epochs, steps
    if config.train_steps is None or (ends and steps and config.train_steps > ends * steps):
        data["epochs"] = ends
        yield Line("ok", f"{text}; the run ends after {ends} epochs.")
        return
    total = per_step * config.train_steps
    data["tokens_in_all"] = total
    text += f", {in_words(total)} in {config.train_steps:,} steps"
    if not corpus:
        yield Line("ok", f"{text}.")
        return
    epochs = data["epochs"] = config.train_steps / steps
    text += f": about {epochs:,.{2 if epochs < 100 else 0}f} epochs over the corpus"
    if epochs <= MOST_EPOCHS:
        yield Line("ok", f"{text}.")
        return
    text += f"; beyond {MOST_EPOCHS} a model learns its text by heart (T5's paper, section 3.4.2)"
    most = max(1, int(MOST_EPOCHS * steps))
    yield Line("warning", f"{text}.", shorter(config, most), "too-many-epochs")


def in_words(number: float) -> str:
    """Returns a number of tokens or bytes as a reader counts them, to three digits.

    >>> in_words(33_512), in_words(3_014_400), in_words(160_256_000_000), in_words(0)
    ('33,500', '3.01 million', '160 billion', '0')
    """
    size, word = next(((size, f" {word}") for size, word in WORDS if number >= size), (1, ""))
    rounded = float(f"{number / size:.3g}")
    return f"{rounded:,.4g}{word}" if word else f"{rounded:,.0f}"


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _shards(config: RunConfig, run: RunData, chips: Topology | None, data: Data) -> Iterator[Line]:
    """Yields how the units of the corpus meet data shards and hosts."""
    shards, hosts = config.data.num_data_shards or 1, chips.hosts if chips else 1
    data |= {"shards": shards, "hosts": hosts}
    for part in run.parts:
        if not isinstance(part.source, UnitSource):
            continue
        units = part.source.units(config.data.train_split)
        sizes = [file.size or 0 for file in part.source.listed(config.data.train_split)]
        there = f"{_number(len(units), 'unit')} in {_number(len(sizes), 'file')}"
        text = f"{part.name}: {there} for {_number(shards, 'data shard')} on {_number(hosts, 'host')}"
        if len(units) < shards and sum(sizes) > LARGE:
            text += ": each shard reads all units, and takes only its own documents"
            yield Line("warning", f"{text}.", rewritten(config, part, *PREPARE), "few-units")
        else:
            yield Line("ok", f"{text}.")


def _resume(run: RunData, data: Data) -> Iterator[Line]:
    others = [part.name for part in run.parts if not isinstance(part.source, UnitSource)]
    data["resume_is_exact"] = not others
    if not others:
        yield Line("ok", "A resumed run continues at the very row where it stopped.")
    else:
        text = f"{', '.join(others)}: a resumed run reads its data again from the beginning up to its place, which"
        text += " takes time; sources of limba.data.sources save their place."
        yield Line("warning", text, ("DataConfig.data_files", Open()), "slow-resume")
