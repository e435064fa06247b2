"""`limba vocabulary trim`: writes a model with the rows of its vocabulary that a text needs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence

from limba.api import Parser, Source
from limba.config import InputError, environment, named
from limba.tools.corpus import task_flags

logger = logging.getLogger(__name__)

ABOUT = """Writes a model with the rows of its vocabulary that your text needs: embedding, output layer, ids, tokenizer.

    limba vocabulary trim google/mt5-base --keep='data/*.jsonl' --output=mt5-base-ro
    limba vocabulary trim runs/mine --keep='data/*.txt' --coverage=0.999 --output=runs/smaller

A folder for transformers stays one. A run, and a checkpoint of T5X, becomes a checkpoint to start from; the averages of
a run's optimizer are trimmed too where that can be done exactly. Text whose pieces are all kept is cut as before, and
has the same hidden states."""
SAMPLE_BYTES = 100_000_000
HELD_OUT_BYTES = 2_000_000
HELD_OUT_EVERY = 50  # of texts given from Python every fiftieth is not counted
NAMES = {
    "DataConfig.data_files": "--keep",
    "DataConfig.column": "--column",
    "DataConfig.vocabulary": "--vocabulary",
    "DataConfig.extra_ids": "--extra_ids",
}


@named(NAMES)
def run(argv: Sequence[str]) -> None:
    """Trims, and prints what became of the model; raises InputError."""
    parser = Parser("vocabulary trim", ABOUT)
    parser.add_object("model", "MODEL", "a folder for transformers, a hub id, a run, or a checkpoint")
    parser.add_argument("--keep", metavar="FILES", help="text whose pieces are kept: a path or a pattern, or hf://…")
    parser.add_argument("--output", metavar="DIR", help="a new folder for the model")
    parser.add_argument("--coverage", type=float, default=0.9999, help="share of the text's tokens that stay pieces")
    parser.add_argument("--column", default="text", help="column or key of FILES with the text")
    parser.add_argument("--held_out", metavar="FILES", help="text to report on; default: a part of --keep, not counted")
    parser.add_argument(
        "--sample_bytes", type=int, default=SAMPLE_BYTES, help="bytes of text that are tokenized and counted"
    )
    parser.add_argument("--step", type=int, help="checkpoint of a run; default: its best or newest one")
    parser.add_argument("--vocabulary", metavar="PATH", help="vocabulary of a T5X checkpoint that names none")
    parser.add_argument("--extra_ids", type=int, metavar="100", help="number of sentinels above --vocabulary's pieces")
    args = parser.parse(argv)
    for name, value in (("MODEL", args.model), ("--keep", args.keep), ("--output", args.output)):
        if not value:
            example = "limba vocabulary trim MODEL --keep='data/*.jsonl' --output=DIR"
            raise InputError(f"{name} is missing; write {example}.")
    if not 0 < args.coverage <= 1:
        raise InputError(f"--coverage is {args.coverage}; give a share above 0, 1 at most.")
    if args.sample_bytes < 1:
        raise InputError(f"--sample_bytes is {args.sample_bytes}; give a number of bytes above 0.")
    if args.extra_ids is not None and not args.vocabulary:
        raise InputError(f"--extra_ids={args.extra_ids} come above the pieces of --vocabulary; give --vocabulary too.")
    if args.extra_ids is not None and args.extra_ids < 0:
        raise InputError(f"--extra_ids is {args.extra_ids}; give a number of sentinels, 0 or more.")
    with environment.quiet_imports():
        from limba.api import VocabularyName, check_trim_output, opened_source, trim, vocabulary_of

    check_trim_output(args.output)
    vocabulary = VocabularyName(args.vocabulary, args.extra_ids) if args.vocabulary else None
    source = opened_source(args.model, vocabulary)
    vocabulary_of(source)  # a model without one is refused before the text is read
    with task_flags.reading() as progress:
        keep, held_out = _texts(args.keep, args.column, args.sample_bytes, HELD_OUT_BYTES, progress)
        if args.held_out:
            keep += held_out  # nothing of it needs to be held out then
            held_out, _ = _texts(args.held_out, args.column, HELD_OUT_BYTES, 0, progress)
    done = 0
    with task_flags.reading("cutting into pieces") as progress:

        def cut(num_bytes: int) -> None:
            nonlocal done
            done += num_bytes
            progress(done)

        result = trim(source, keep, held_out, args.output, coverage=args.coverage, step=args.step, progress=cut)
    print(result.text)
    if result.warning:
        print(f"WARNING: {result.warning}", file=sys.stderr)


def of_loaded(source: Source, step: int | None, texts: Sequence[str], folder: str, coverage: float) -> str:
    """Trims an opened model, and returns the folder with the result; the report is logged."""
    from limba.api import trim

    encoded = [text.encode() for text in texts]
    counted = [text for number, text in enumerate(encoded, 1) if number % HELD_OUT_EVERY]
    held_out = encoded[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
    result = trim(source, counted, held_out, folder, coverage=coverage, step=step)
    logger.info("%s", result.text)
    if result.warning:
        logger.warning("%s: %s", folder, result.warning)
    return result.output


def _texts(
    files: str, column: str, sample_bytes: int, others_bytes: int, progress: Callable[..., None]
) -> tuple[list[bytes], list[bytes]]:
    """Returns a uniform sample of the files' documents, and others to hold out; InputError if there are none."""
    from limba.api import Texts, source_of_files

    texts = Texts(source_of_files(files, column))
    sample, others = texts.sample("train", sample_bytes, validation_bytes=others_bytes, progress=progress)
    if not sample:
        raise InputError(f"{files} holds no text; give files with documents.")
    return texts.in_columns(sample), texts.in_columns(others)
