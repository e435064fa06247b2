"""`limba vocabulary`: trains a SentencePiece vocabulary in T5's layout on a task's text, trims and compares others."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from limba.api import Parser
from limba.config import InputError, environment, named
from limba.tools.corpus import task_flags

ABOUT = """Trains a vocabulary on a uniform sample of a task's text, writes its tokenizer.json, and prints a report.

    limba vocabulary 'data/*.txt' --size=1000 --output=vocabulary/my.model
    limba vocabulary 'data/*.txt' --size=32000 --masks --output=vocabulary/my.model
    limba vocabulary --task=rlm_span_corruption_stream --size=64000 --output=ro/ro.model --compare_files=fr=fr.jsonl

    limba vocabulary trim MODEL --help       # a model with the rows that your text needs
    limba vocabulary compare A B --help      # vocabularies side by side

On several hosts (PROCESS_ID set, or started by srun or mpirun) host 0 trains, and the others wait for its files."""
SENTINELS = 100  # of T5's layout; --size includes them


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser("vocabulary", ABOUT)
    task_flags.add_to(parser, vocabulary=False)
    group = parser.add_argument_group("the vocabulary")
    group.add_argument("--output", required=True, metavar="DIR/NAME.model", help="also writes tokenizer.json beside it")
    group.add_argument("--size", type=int, default=64_000, help="number of ids, including the 100 sentinels")
    group.add_argument("--sample_bytes", type=int, default=400_000_000, help="bytes of text to train on")
    group.add_argument("--coverage", type=float, default=0.9995, help="share of the letters that get their own piece")
    group.add_argument("--byte_fallback", default="yes", choices=("yes", "no"), help="spell other letters in bytes")
    group.add_argument("--normalization", default="nmt_nfkc", choices=("nmt_nfkc", "nfkc", "identity"))
    group.add_argument("--masks", action="store_true", help="for encoders: <mask>, <cls>, <sep>, and no sentinels")
    group.add_argument("--romanian_commas", action="store_true", help="replace the cedilla of s and t by the comma")
    report = parser.add_argument_group("the report")
    report.add_argument("--compare_files", metavar="ro=PATH,fr=PATH", help="named texts to compare vocabularies on")
    report.add_argument("--compare_vocabulary", metavar="mt5.model", help="other vocabularies to compare: A,B")
    hosts = parser.add_argument_group("several hosts")
    hosts.add_argument("--wait_seconds", type=float, default=6 * 3600, help="how long hosts wait for host 0")
    arguments = parser.parse(argv)
    if arguments.sample_bytes < 1:
        raise InputError(f"--sample_bytes is {arguments.sample_bytes}; give a number of bytes above 0.")
    if not 0 < arguments.coverage <= 1:
        raise InputError(f"--coverage is {arguments.coverage}; give a share above 0, 1 at most.")
    return arguments


def run(argv: Sequence[str]) -> None:
    """Trims or compares vocabularies, or trains one; raises InputError."""
    verb = argv[0] if argv else None
    if verb == "trim":
        from limba.tools.corpus import trim

        trim.run(argv[1:])
    elif verb == "compare":
        from limba.tools.corpus import compare

        compare.run(argv[1:])
    else:
        train(argv)


@named(task_flags.NAMES)
def train(argv: Sequence[str]) -> None:
    """Trains and reports, or waits for host 0; raises InputError."""
    arguments = _arguments(argv)
    host = environment.process_number()
    if not host.isdigit():
        raise InputError(f"PROCESS_ID is {host}; give this host's number, 0 and up.")
    if not arguments.wait_seconds >= 0:
        raise InputError(f"--wait_seconds is {arguments.wait_seconds:g}; give 0 or more.")
    recipe = task_flags.recipe(arguments)
    with environment.quiet_imports():
        from limba.api import NewVocabulary, PieceTable
        from limba.tools.corpus import fertility
        from limba.tools.corpus.normalization import ROMANIAN_COMMAS, normalization_tsv
    new = NewVocabulary(arguments.output)
    spells_bytes = arguments.byte_fallback == "yes"
    if int(host) > 0:
        new.wait(arguments.wait_seconds)
        print(f"Host 0 has written {arguments.output}.")
        return
    column = task_flags.parse_column(arguments.column)
    fertility.check_compared(arguments.compare_files, arguments.compare_vocabulary, column)
    new.check(arguments.size, spells_bytes, arguments.masks)
    sentinels = 0 if arguments.masks else SENTINELS
    rules = normalization_tsv(arguments.normalization, ROMANIAN_COMMAS) if arguments.romanian_commas else ""
    with new.held():
        with task_flags.reading() as progress:
            training, measured = new.sample(recipe(), arguments.split, arguments.sample_bytes, progress)
        print(f"Training on {len(training):,} documents, {sum(map(len, training)):,} bytes.", flush=True)
        count = new.train(
            training,
            arguments.size - sentinels,
            masks=arguments.masks,
            byte_fallback=spells_bytes,
            character_coverage=arguments.coverage,
            normalization=arguments.normalization,
            rules=rules,
        )
    print(
        f"Trained {count:,} pieces and {sentinels} sentinels: {arguments.output}, {new.json}; set VOCAB_SIZE to "
        f"{PieceTable.at(arguments.output, sentinels).fitting_rows}{' and EXTRA_IDS to 0' if arguments.masks else ''}."
    )
    if count + sentinels < arguments.size:
        print(
            f"WARNING: --size asks for {arguments.size:,} ids, and this text has pieces for"
            f" {count + sentinels:,} only; train on more text, or use it with the VOCAB_SIZE above.",
            file=sys.stderr,
        )
    import rich.console

    table, _ = fertility.compare(
        arguments.output, measured, arguments.compare_files, arguments.compare_vocabulary, column
    )
    console = rich.console.Console(highlight=False)
    if not console.is_terminal:
        console.width = 160  # rich's 80 columns of a file would break the names
    console.print(table)
