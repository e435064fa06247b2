"""Writes checkpoints as folders for transformers, each with a proof of equal numbers and a model card."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from limba.config import CardConfig, InputError, ModelConfig
from limba.config.errors import reason_of
from limba.config.waiting import waiting
from limba.data.tasks import hub_datasets, needs_sentinels
from limba.data.vocabulary.load import num_sentinels, sentinel_ids
from limba.export import card, proof
from limba.formats.huggingface import head_scale
from limba.inference.load import write_folder
from limba.inference.source import T5X, Source, VocabularyName, open_vocabulary, task_of
from limba.storage import lease, manifest
from limba.storage.files import write_whole

FORMATS = ("pytorch", "flax")
RECORD = "conversion.json"  # in a finished folder: its source, and the results of the proof
NONE = "none"  # as a vocabulary name: write no tokenizer
_ENTRY = re.compile(rf"step_\d+(\.writing|\.failed)?|{re.escape(lease.FILE)}")


@dataclass(frozen=True)
class Choices:
    """The choices of an export."""

    formats: tuple[str, ...] = FORMATS
    dtype: str = "float32"
    vocabulary: str | None = None  # a SentencePiece model's path, 'byte', 'none', or None: the run's own
    extra_ids: int | None = None  # above the pieces of `vocabulary`; None: as `open_vocabulary` chooses
    checks: bool = True
    card: CardConfig = dataclasses.field(default_factory=CardConfig)  # what it leaves out is as in the run's own
    dropout: float = 0.1  # of config.json, for those who fine-tune; pretraining mostly has none
    average: bool = True  # of a run that evaluates an average of its weights: that average, and not the weights
    transformers: int = 5  # the version that reads the folder: it matters for an untied umT5 alone


def chosen_steps(text: str, there: Iterable[int]) -> list[int]:
    """Parses "latest", "all" or numbers with commas into steps, in order; InputError for one that does not exist.

    >>> chosen_steps("latest", [10, 20]), chosen_steps("20,10", [10, 20])
    ([20], [10, 20])
    """
    there = sorted(there)
    if text in ("latest", "all"):
        return there[-1:] if text == "latest" else there
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise InputError(f"The steps are {text!r}; give latest, all, or numbers such as 1000,2000.")
    chosen = sorted({int(part) for part in text.split(",")})
    absent = [step for step in chosen if step not in there]
    if absent:
        raise InputError(f"There is no checkpoint at step {absent[0]}; choose from {there}.")
    return chosen


def export(source: Source, out: Path, steps: Sequence[int], choices: Choices) -> dict[int, Path]:
    """Writes and proves a folder for each step, in order; returns the folders. InputError if a proof fails.

    Finished folders of an earlier call are kept.
    """
    check_out(out)
    choices, source = possible(source.model, choices), dataclasses.replace(source, average=choices.average)
    folders = {step: out / f"step_{step}" for step in steps}
    wanted = [step for step in steps if not _is_done(folders[step], source.directory.name, choices)]
    for step in steps:
        if step not in wanted:
            print(f"step {step:,}: done before, {folders[step]}", flush=True)
    if not wanted:
        return folders
    tokenizer = vocabulary_of(source, choices)
    out.mkdir(parents=True, exist_ok=True)
    with lease.held(str(out), "exports to") as mine:
        for step in wanted:
            mine.check()
            _convert(source, step, folders[step], choices, tokenizer)
    return folders


def check_out(out: Path) -> None:
    """Raises InputError for a directory that holds anything but folders of earlier exports."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; give a directory for the folders.")
    other = [entry.name for entry in sorted(out.iterdir()) if not _ENTRY.fullmatch(entry.name)] if out.exists() else []
    if other:
        raise InputError(f"{out} holds {other[0]}, which no conversion wrote; give an empty or new directory.")


def possible(model: ModelConfig, choices: Choices) -> Choices:
    """Returns the choices without what transformers lacks for this network; says so."""
    if not model.is_decoder_only or "flax" not in choices.formats:
        return choices
    print("transformers has Llama and GPT-2 for PyTorch only: no flax_model.msgpack is written.", flush=True)
    return dataclasses.replace(choices, formats=("pytorch",))


def _is_done(folder: Path, name: str, choices: Choices) -> bool:
    try:
        record = json.loads((folder / RECORD).read_text())
    except (OSError, ValueError, RecursionError):
        return False
    return is_made_of(record, name, choices, folder)


def is_made_of(record: Mapping[str, Any], name: str, choices: Choices, folder: object) -> bool:
    """Returns whether a finished folder's record has these choices; InputError if it was made from another run."""
    try:
        source, same = record["source"], record["dtype"] == choices.dtype
        same = same and set(record["formats"]) >= set(choices.formats)
        same = same and record.get("transformers", choices.transformers) == choices.transformers
        same = same and record.get("average", True) == choices.average
        same = same and (record["checked"] or not choices.checks)
    except (KeyError, TypeError, AttributeError):
        raise InputError(f"{folder} has a {RECORD} that is no export's; give another directory.") from None
    if source != name:
        raise InputError(f"{folder} was made from another run, {source}; give another directory.")
    return bool(same)


def vocabulary_of(source: Source, choices: Choices) -> tuple[VocabularyName, Any] | None:
    """Returns (name, seqio's vocabulary) of the choices or the source; None if it is not wanted or not known."""
    if choices.vocabulary == NONE:
        print("No tokenizer files are written, as requested.", flush=True)
        return None
    given = None if choices.vocabulary is None else VocabularyName(choices.vocabulary, choices.extra_ids)
    own = source.vocabulary
    if given is None and source.kind == T5X and own is not None and own.path != "byte" and not own.extra_ids:
        source = dataclasses.replace(source, vocabulary=own._replace(extra_ids=choices.extra_ids))
    found = open_vocabulary(source, given)
    if found is None:
        print("No vocabulary is known, so no tokenizer files are written; give a vocabulary to write them.", flush=True)
    return found


def _convert(
    source: Source, step: int, final: Path, choices: Choices, tokenizer: tuple[VocabularyName, Any] | None
) -> None:
    """Writes a folder under a temporary name, proves it, and renames it to its final name or to `….failed`."""
    writing, failed = (final.with_name(final.name + end) for end in (".writing", ".failed"))
    for old in (writing, failed):
        shutil.rmtree(old, ignore_errors=True)
    writing.mkdir(parents=True)  # a link of this name is an error
    arrays = source.arrays(step)
    name, vocabulary = tokenizer or (None, None)
    task = _task(source)
    model = dataclasses.replace(source.model, dropout_rate=choices.dropout)
    sentinels = _unused_sentinels(task, source, vocabulary)
    with waiting(f"step {step:,}: writing the folder"):
        write_folder(
            writing, arrays, model, choices.formats, choices.dtype, name, vocabulary, sentinels, choices.transformers
        )
    with waiting(f"step {step:,}: proving it"):
        passed, findings = prove(writing, arrays, source.model, choices, vocabulary)
    card.write_card(
        writing, source, step, choices.formats, choices.dtype, findings, _about(source, choices, task),
        choices.transformers,
    )  # fmt: skip
    for line in findings:
        print(f"step {step:,}: {line}", flush=True)
    if not passed:
        writing.rename(failed)
        raise InputError(
            f"The folder for step {step} does not give the source's numbers; do not use it (now {failed}):"
            " convert again, and check the disk if it fails again."
        )
    record = {"step": step, "source": source.directory.name, "kind": source.kind, "dtype": choices.dtype}
    record |= {"formats": choices.formats, "checked": choices.checks, "findings": findings}
    record |= {} if choices.average else {"average": False}
    record |= {"transformers": choices.transformers} if head_scale(source.model) != 1 else {}
    write_whole(writing / RECORD, json.dumps(record, indent=2) + "\n")
    if final.exists():
        shutil.rmtree(final)  # was made with other choices
    writing.rename(final)
    print(f"step {step:,}: {final}", flush=True)


def _about(source: Source, choices: Choices, task: Any) -> CardConfig:
    """Returns what the card says: the choices, and where they say nothing the run's own."""
    given, own = choices.card, CardConfig() if source.run is None else source.run.card
    return CardConfig(
        given.language or own.language,
        given.licence or own.licence,
        given.datasets or own.datasets or (None if task is None else tuple(hub_datasets(task))),
        given.hardware or own.hardware,
        given.thank_trc or own.thank_trc,
    )


def _task(source: Source) -> Any:
    """Returns the run's task; None if it is not known here, as for a T5X checkpoint."""
    try:
        return None if source.run is None else task_of(source)
    except InputError:
        return None


def _unused_sentinels(task: Any, source: Source, vocabulary: Any) -> list[int]:
    """Returns the sentinels of a model that was fine-tuned without them; pretraining needs them."""
    if task is None or vocabulary is None or source.model.is_decoder_only or needs_sentinels(task):
        return []
    return sentinel_ids(vocabulary, num_sentinels(vocabulary))


def prove(
    folder: Path, arrays: Mapping[str, np.ndarray], model: ModelConfig, choices: Choices, vocabulary: Any
) -> tuple[bool, list[str]]:
    """Returns whether a written folder gives the source's numbers, and the findings as sentences."""
    if not choices.checks:
        return True, ["NOT CHECKED: written without the proof, nothing shows that it gives the source's numbers"]
    proof.quiet_libraries()
    suppressed = json.loads((folder / "generation_config.json").read_text()).get("suppress_tokens", ())
    source = proof.Proof(arrays, model, vocabulary, suppressed)
    figures = [source.check_own(folder, choices.dtype, form == "flax") for form in choices.formats]
    findings = [] if vocabulary is not None else ["no vocabulary is known: compared on random ids"]
    if "pytorch" in choices.formats and head_scale(model) != 1 and proof.version() not in (0, choices.transformers):
        findings.append(
            f"not compared in transformers {proof.version()}: an untied umT5 is written for one version, here"
            f" {choices.transformers}"
        )
    elif "pytorch" in choices.formats and proof.has_transformers():
        figures.append(source.check_transformers(folder, choices.dtype))
    elif "pytorch" in choices.formats:
        findings.append("torch and transformers are not installed: compared by Limba's own reader of the files only")
    return all(each.passed for each in figures), [*map(str, figures), *findings]


def export_to_bucket(
    source: Source, address: str, steps: Sequence[int], choices: Choices, scratch: str | None = None
) -> dict[int, str]:
    """Writes `address`/step_<N> for each step, proved, as `export` does; returns the addresses.

    Needs the space of one folder in `scratch`, by default the machine's temporary directory. Folders that are there
    with the same choices are kept, and one made with other choices is replaced. Raises what `export` and
    `manifest.upload` raise.
    """
    address = address.rstrip("/")
    addresses = {step: f"{address}/step_{step}" for step in steps}
    choices = possible(source.model, choices)
    for step, target in addresses.items():
        record = manifest.read_file(target, RECORD) if manifest.is_whole(target) else None
        if record is not None and is_made_of(_parsed(record), source.directory.name, choices, target):
            print(f"step {step:,}: done before, {target}", flush=True)
            continue
        with _scratch(scratch) as folder:
            made = export(source, folder, [step], choices)[step]
            sent = manifest.upload(made, target, replace=record is not None)
        print(f"step {step:,}: {target}, {sent.files} files, {sent.bytes:,} bytes, complete", flush=True)
    return addresses


def _parsed(record: bytes) -> Any:
    try:
        return json.loads(record)
    except (ValueError, RecursionError):
        return None  # which is no export's


def upload_made(make: Callable[[Path], Path], address: str, scratch: str | None = None) -> str:
    """Makes one folder in a new local folder, and uploads it to `address`/<its name>; returns that address."""
    with _scratch(scratch) as folder:
        made = make(folder)
        target = f"{address.rstrip('/')}/{made.name}"
        manifest.upload(made, target)
    return target


@contextmanager
def _scratch(given: str | None) -> Iterator[Path]:
    try:
        if given is not None:
            os.makedirs(given, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="limba-export-", dir=given) as folder:
            yield Path(folder)
    except OSError as error:
        raise InputError(
            f"The folder for temporary files, {given or tempfile.gettempdir()}, cannot be written"
            f" ({reason_of(error)}); set TMPDIR to a folder with space."
        ) from error
