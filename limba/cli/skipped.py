"""`limba skipped`: finds the documents in the batches that a run has dropped or passed over."""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from limba.cli.arguments import Parser
from limba.cli.model import NAMES, add_import_flag
from limba.config import InputError, RunConfig, environment, named, reason_of

if TYPE_CHECKING:
    from etils import epath

    from limba.data.stream.stages import Stage
    from limba.inference.source import Source

ABOUT = """Finds the documents in the batches that a run has dropped or passed over: the documents of the rows that
stood out, which MODEL_DIR/skipped_batches.jsonl lists. Reads the run's text again from its beginning up to these
batches. Writes MODEL_DIR/skipped_documents.jsonl with their whole text, and prints a table: source, unit, row, and how
the text begins.

    limba skipped MODEL_DIR"""
Record = Mapping[str, Any]  # of a line of the two files
SHOWN = 80  # characters of a document in the table


def run(argv: Iterable[str]) -> None:
    """Writes and prints the documents of the run that the flags name; raises InputError."""
    parser = Parser("skipped", ABOUT)
    parser.add_object("model", "MODEL_DIR", "a run directory", is_run=True)
    parser.add_argument(
        "--all_rows", action="store_true", help="the documents of all rows, not only of the rows that stood out"
    )
    add_import_flag(parser)
    args = parser.parse(list(argv))
    with environment.quiet_imports():
        from limba.formats.open import read_config
        from limba.inference import source
        from limba.storage.files import read_text, resolved, write_whole
        from limba.training import skipped_batches
        from limba.training.metrics.records import DOCUMENTS
    directory = resolved(args.model)
    path = directory / skipped_batches.FILE
    if not path.exists():
        raise InputError(f"{path} does not exist: the run has dropped no batch, or {args.model} is not a run.")
    with named(NAMES):
        config = read_config(directory)
    if not isinstance(config, RunConfig):
        raise InputError(f"{args.model} is an imported model, not a run; name the MODEL_DIR of a run.")
    run_of = source.Source(
        args.model, directory, {}, source.LIMBA, model=config.model, run=config, imports=tuple(args.imports)
    )
    entries = skipped_batches.entries_of(read_text(path), str(path))
    documents = list(_documents(run_of, entries, args.all_rows))
    lines = [json.dumps(document, ensure_ascii=False) + "\n" for document in documents]
    write_whole(str(directory / DOCUMENTS), "".join(lines).encode())
    print("\n".join([*_table(documents), *_without_rows(entries, args.all_rows)]))
    print(f"{len(documents)} document(s), with their whole text: {directory / DOCUMENTS}")


def _documents(run_of: Source, entries: Iterable[Record], all_rows: bool) -> Iterator[Record]:
    """Yields the lines of the file; the rows of a shard in a batch are found together, since each search reads it."""
    from limba.data.provenance import documents_of

    assert run_of.run is not None
    data = run_of.run.data
    last, positions = _last_positions(run_of.directory)
    lengths, stage_of = _stages(run_of)
    for entry in entries:
        begins = data.stage_of(entry["batch"] - 1)
        stage = stage_of(begins)
        # A later stage's position says nothing about an earlier stage's corpus.
        is_followed = entry["batch"] <= last and data.stage_of(last - 1) == begins
        by_shard: dict[int, set[int]] = {}
        if all_rows:
            by_shard = {shard: set(range(data.rows_per_shard)) for shard in range(data.num_data_shards or 1)}
        else:
            for row in entry["rows"]:
                by_shard.setdefault(row["shard"], set()).add(row["row"])
        # Its number in its stage: "data_batch" counts from where the data began, which may be later than the stage.
        batch = min(entry.get("data_batch", entry["batch"]), entry["batch"] - begins)
        for shard, rows in sorted(by_shard.items()):
            position = positions.get(shard) if is_followed else None
            if not is_followed and shard in positions:
                _check_ended(positions[shard], shard, stage)
            documents = documents_of(
                stage.task, lengths, stage.config, shard, batch, sorted(rows), position, stage.deal
            )
            for document in documents:
                yield {
                    "batch": entry["batch"],
                    "shard": shard,
                    "rows": sorted(rows),
                    "source": document.source,
                    "unit": document.unit,
                    "document": document.row,
                    "text": document.text,
                }


def _stages(run_of: Source) -> tuple[dict[str, int], Callable[[int], Stage]]:
    """Returns the lengths of a run's rows, and a function from a stage's first batch to the stage."""
    from limba.data.objectives import derive_lengths
    from limba.data.stream.stages import Stage, task_of_stage
    from limba.inference.source import task_of
    from limba.training.data_revisions import pinned_for_run
    from limba.training.start import deal_of_run

    assert run_of.run is not None
    run = run_of.run
    data = run_of.run.data
    first = pinned_for_run(task_of(run_of), run.model_dir)
    lengths = derive_lengths(first, data.task_feature_lengths)

    @functools.cache
    def stage_of(begins: int) -> Stage:
        task = first
        if begins:
            task = pinned_for_run(task_of_stage(begins, first, lengths, data), run.model_dir)
        return Stage(begins, task, data.of_stages[begins], deal_of_run(run, task, lengths, begins))

    return lengths, stage_of


def _check_ended(position: bytes, shard: int, stage: Stage) -> None:
    """Raises InputError if the corpus of a stage that has ended changed while it was read, or since then."""
    from limba.data.stream.positions import digest_of_files, opened

    for ended in opened(position, shard).stages.get("ended", ()):
        if ended["begins"] != stage.begins:
            continue
        now = digest_of_files(stage.task, stage.config.train_split, ended["end_bytes"])
        if ended["read_again"]:
            when = "while it was read"
        elif ended["files"] not in (None, now):
            when = "since it was read"
        else:
            continue
        raise InputError(
            f"The corpus of the stage of {ended['task']}, from step {stage.begins} on, changed {when}: the documents of"
            " its batches can no longer be found."
        )


def _last_positions(directory: epath.Path) -> tuple[int, dict[int, bytes]]:
    """Returns the newest checkpoint's step and its data positions by shard, which tell whether the corpus changed."""
    from limba.formats import limba_checkpoint

    steps = limba_checkpoint.checkpoints_of(directory)
    if not steps:
        return 0, {}
    step = max(steps)
    try:
        saved = limba_checkpoint.read_data(steps[step])["positions"]
        return step, {int(shard): base64.b64decode(text) for shard, text in saved.items()}
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            f"The data position in {steps[step]} cannot be read ({reason_of(error)}); the run itself puts such a"
            " checkpoint aside when it resumes."
        ) from error


def _table(documents: Iterable[Record]) -> Iterator[str]:
    """Yields a Markdown table; a document of several rows has one line."""
    yield "| batch | source | unit | row | text |"
    yield "| --- | --- | --- | --- | --- |"
    seen = set()
    for document in documents:
        cells = (document["batch"], document["source"], document["unit"], document["document"])
        if cells in seen:
            continue
        seen.add(cells)
        beginning = " ".join(document["text"].split())[:SHOWN].replace("|", "\\|")
        yield f"| {' | '.join(map(str, cells))} | {beginning} |"


def _without_rows(entries: Iterable[Record], all_rows: bool) -> Iterator[str]:
    batches = [str(entry["batch"]) for entry in entries if not entry["rows"]]
    if batches and not all_rows:
        yield f"No row stood out in the batches {', '.join(batches)}; --all_rows finds the documents of all their rows."
