"""`limba new`: looks at a corpus, proposes a model for some hardware, and writes the files of its run."""

from __future__ import annotations

import argparse
import functools
import keyword
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from limba.api import Parser, task_modules
from limba.config import InputError, environment, named
from limba.config.errors import is_out_of_memory
from limba.tools.corpus import task_flags

if TYPE_CHECKING:
    from limba.tools.corpus.counting import Counted
    from limba.tools.corpus.hardware import Hardware
    from limba.tools.corpus.plans import Asked, Plan, Proposal
    from limba.tools.corpus.sizes import Start
    from limba.tools.corpus.survey import Survey

ABOUT = """Looks at your text, proposes a model for your hardware and time, says what it costs, and writes the files
that train it: tasks/NAME.py, gin/NAME_SIZE.gin and launch/NAME.sh, with comments. Nothing is overwritten.

    limba new nb --corpus='data/*.jsonl' --hardware=v4-8 --days=7
    limba new nb --corpus='data/*.jsonl' --hardware=rtx4090 --days=1 --from=google/umt5-base
    bash launch/nb.sh

It prints a verdict and up to two choices: safe, and more, which is larger or reads the text more often and may be no
better. The files are the safe choice's; --choice=more writes the other's. --hardware=gpu and tpu list what there is.

The corpus may be .txt, .jsonl, .json, .csv, .tsv or .parquet, also .gz or .zst, local, at a URL, or user/name on the
hub."""
NAMES = {"DataConfig.column": "--column", "DataConfig.data_files": "--corpus"}  # what messages call a field
DAYS = 7.0
TIMED_SECONDS = 15.0  # of steps, for each size that is timed
MOST_TIMED = 3  # sizes
LEAST_LETTERS = 10_000  # of a corpus; a row of 128 inputs alone has some 500


def _parser() -> Parser:
    parser = Parser("new", ABOUT)
    parser.add_object("name", "NAME", "the run's name, such as the code of your language: nb")
    parser.add_argument("--corpus", metavar="FILES", help="a path, a pattern 'data/*.jsonl', or user/name on the hub")
    parser.add_argument("--column", metavar="text", help="column or key with the text; found if there is only one")
    parser.add_argument(
        "--hardware",
        metavar="v4-8|rtx4090|cpu",
        help="what it will run on: cpu, rtx4090, 8xa100, v5e-8, …; this: this machine, timed; gpu, tpu: list all",
    )
    parser.add_argument("--days", default=DAYS, metavar="7", help="how long it may train; default 7")
    parser.add_argument("--choice", default="safe", choices=("safe", "more"), help="which one is written; default safe")
    parser.add_argument("--size", metavar="small", help="size instead of the proposed one")
    parser.add_argument(
        "--kind",
        choices=("t5", "lm", "encoder"),
        help="a T5 1.1 (default), a decoder-only language model, or a EuroBERT",
    )
    parser.add_argument(
        "--from",
        dest="start",
        metavar="google/umt5-base",
        help="a published model to continue from: a hub id or a folder",
    )
    parser.add_argument("--language", metavar="nb", help="the ISO 639 code of the text's language, for the model card")
    parser.add_argument("--price", metavar="3.22", help="dollars a chip-hour, in place of the list price")
    return parser


@named(NAMES)
def run(argv: Sequence[str]) -> None:
    """Writes the files, or raises InputError before any is written."""
    args = _parser().parse(argv)
    name = _checked_name(args.name)
    corpus = args.corpus
    if not corpus:
        raise InputError("No corpus is named; give --corpus='data/*.jsonl', or user/name of the hub.")
    days = _checked_days(args.days)
    price = _checked_price(args.price)
    with environment.quiet_imports():
        from limba.tools.corpus import counting, templates
        from limba.tools.corpus.plans import Asked
        from limba.tools.corpus.proposal import Proposer
    kind = args.kind or "t5"
    _check_model(args, kind)
    is_here = args.hardware == "this"
    machine = _machine(args.hardware)
    _check_new(name, "from" if args.start else args.size)
    start = _start(args.start) if args.start else None
    if start is not None:
        kind = _kind_of(start)
    # From here on the text is read.
    surveyed, documents = _read(corpus, args.column)
    language = _language(args.language, name, documents)
    prompts = _prompts(corpus, surveyed, kind)
    if start is None:
        counts = counting.counter(documents, kind)
    else:
        counts = functools.cache(lambda _: counting.with_vocabulary(start.vocabulary, documents))
    asked = Asked(surveyed, machine, days, kind, start or args.size, price)
    proposal = _timed(asked, counts) if is_here else Proposer(asked, counts).proposal()
    plan = _chosen(proposal, args.choice)
    # All is known now: what is proposed, the files, and the commands that come next.
    print(_described(corpus, surveyed))
    if is_here:
        print(machine.words)
    for line in _in_words(proposal, plan, machine):
        print(line)
    files = {
        f"tasks/{name}.py": templates.task(name, corpus, surveyed, kind),
        f"gin/{name}_{plan.size}.gin": templates.gin(name, corpus, surveyed, plan, machine, prompts, language),
        f"launch/{name}.sh": templates.script(name, plan, machine),
    }
    _write(files)
    if language and not args.language:
        print(f"LANGUAGE is {language!r}, after the run's name; --language=CODE names another one.")
    choice = "" if len(proposal.plans) == 1 else f" ({plan.choice}; --choice= names the other one)"
    print(f"\nWritten{choice}:")
    for path in files:
        print(f"  {path}")
    for line in _next(name, corpus, plan, machine):
        print(line)


def _check_model(args: argparse.Namespace, kind: str) -> None:
    """Raises InputError for a size or a language that is not known, and for --from beside --size or --kind."""
    from limba.tools.corpus import languages, sizes

    if args.start and (args.size or args.kind):
        raise InputError("--from is a model with a size and a kind of its own; give it without --size and --kind.")
    if args.size is not None and args.size not in sizes.SIZES[kind]:
        raise InputError(f"--size={args.size} is not known; give one of {', '.join(sizes.SIZES[kind])}.")
    if args.language:
        languages.check_codes(args.language)


def _machine(name: str | None) -> Hardware:
    """Returns the hardware of this name, or this machine; InputError where this one's accelerator would lie idle."""
    from limba.tools.corpus.hardware import hardware, of_this_machine

    if name == "this":
        return of_this_machine()
    machine = hardware(name)
    if name is None and (environment.num_gpus() or environment.is_tpu_vm()):
        raise InputError(
            "This machine has an accelerator; give --hardware=this to time a step on it, a name such as 8xh100 or v4-8,"
            " or cpu."
        )
    return machine


def _read(corpus: str, column: str | None) -> tuple[Survey, list[bytes]]:
    """Returns what the whole text is, and a sample of its documents; InputError for too little text."""
    with environment.quiet_imports():
        from limba.tools.corpus import counting
        from limba.tools.corpus.survey import survey
    with task_flags.reading() as progress:
        surveyed = survey(corpus, column, progress)
    if surveyed.letters < LEAST_LETTERS:
        raise InputError(
            f"{corpus} holds {surveyed.letters:,} letters, too few to train on; give {LEAST_LETTERS:,} or more."
        )
    documents = counting.sampled(corpus, surveyed.column)
    return surveyed._replace(has_spaces=counting.has_spaces(documents)), documents


def _language(code: str | None, name: str, documents: list[bytes]) -> str | None:
    """Returns the language of the model's card: the code that is given, else the run's name if the text is in it."""
    from limba.tools.corpus import counting

    if code:
        counting.check_language(code, documents)
        return code
    return name if counting.is_language_of(name, documents) else None


def _chosen(proposal: Proposal, choice: str) -> Plan:
    """Returns the plan of this choice; InputError for `more` where the safe choice is the only one."""
    if choice == "safe":
        return proposal.plans[0]
    if len(proposal.plans) == 1:
        raise InputError(f"{proposal.no_more} Leave --choice=more out.")
    return proposal.plans[1]


def _next(name: str, corpus: str, plan: Plan, machine: Hardware) -> Iterator[str]:
    """Yields the commands that come next."""
    run = f"gin/{name}_{plan.size}.gin --gin.MODEL_DIR=runs/{name}_{plan.size}"
    first = "trains the vocabulary, then the model" if plan.start is None else "trains the model"
    yield "Next:"
    yield f"  limba inspect {shlex.quote(corpus)} --vocabulary=byte    # look at the text"
    yield f"  limba preflight {run} --topology={machine.name}    # check all of it"
    yield f"  bash launch/{name}.sh    # {first}; resumes, and shows what it has learned"


def _timed(asked: Asked, counts: Callable[[int], Counted]) -> Proposal:
    """Returns the proposal by steps that are timed here, each size once; a size that turns out faster may grow."""
    from limba.api import PlannedRun
    from limba.tools.corpus.proposal import Proposer

    measured: dict[str, float] = {}
    while True:
        proposer = Proposer(asked._replace(measured=measured), counts)
        proposal = proposer.proposal()
        untimed = [plan for plan in proposal.plans if plan.size not in measured]
        if not untimed or len(measured) >= MOST_TIMED:
            return proposal
        plan = untimed[0]
        print(f"Timing the step of {plan.description} here; it is compiled first.", file=sys.stderr, flush=True)
        try:
            seconds = PlannedRun(proposer.config_of(plan)).seconds_of_step(TIMED_SECONDS)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            smaller = "a smaller model by --from" if asked.start else "a smaller one by --size"
            raise InputError(
                f"The step of {plan.description} was tried here and does not fit into the memory; give {smaller}."
            ) from error
        measured = {**measured, plan.size: seconds / plan.batch}


def _in_words(proposal: Proposal, plan: Plan, machine: Hardware) -> Iterator[str]:
    """Yields the lines of a proposal: the verdict, the choices, what the text means, and why the written one is so."""
    from limba.config.speed import in_time
    from limba.tools.corpus import reasons
    from limba.tools.corpus.templates import wrapped

    yield ""
    yield wrapped(f"Verdict: {proposal.verdict}", "", "  ")
    yield f"\nProposed for {machine.name}:"
    for proposed in proposal.plans:
        costs = reasons.dollars(proposed) or ("no rent" if machine.is_cpu else "no list price (--price=)")
        passes = f"read {reasons.times(proposed.epochs)}, {reasons.tokens_a_parameter(proposed.ratio)}"
        size = f"{proposed.description}, {proposed.parameters:,} parameters"
        yield f"  {proposed.choice}: {size}, {proposed.steps:,} steps of {proposed.batch} rows"
        indent = " " * 8
        yield wrapped(f"{in_time(proposed.hours)}; {costs}; {proposed.memory.words()}; {passes}", indent, indent)
        yield wrapped(f"Risk: {proposed.risk}", indent, indent)
    if proposal.no_more:
        yield wrapped(proposal.no_more, "  ", "  ")
    for note in machine.notes:
        yield wrapped(note, "  ", "  ")
    if proposal.of_text:
        yield "\nWhat this much text means:"
        for sentence in proposal.of_text:
            yield wrapped(sentence, "* ", "  ")
    yield f"\nWhy ({plan.choice}):"
    for reason in plan.reasons:
        yield wrapped(reason, "* ", "  ")


def _checked_days(text: str | float) -> float:
    days = _number(text)
    if not 0 < days <= 3650:
        raise InputError(f"--days={text} is not a time; give days above 0 and up to 3,650, such as --days=7.")
    return days


def _checked_price(text: str | None) -> float | None:
    if text is None:
        return None
    price = _number(text)
    if not 0 <= price < math.inf:
        raise InputError(f"--price={text} is not a price; give dollars a chip-hour, such as --price=3.22.")
    return price


def _number(text: str | float) -> float:
    """Returns the number that a text spells; NaN, which no limit lets pass, for other texts."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _start(path: str) -> Start:
    """Returns a published model; InputError if it cannot be found, or names no vocabulary."""
    from limba.api import described
    from limba.tools.corpus.sizes import Start

    config, vocabulary = described(path)
    if vocabulary is None:
        raise InputError(f"--from={path} names no vocabulary; give a model with spiece.model or tokenizer.json.")
    is_hub = not Path(path).expanduser().exists() and "://" not in path
    name = vocabulary.path
    if is_hub and name != "byte":
        name = f"hf://{path}/{name.rpartition('/')[2]}"
    return Start(path, config, name, vocabulary.extra_ids)


def _kind_of(start: Start) -> str:
    """Returns what a published model is: t5, lm or encoder."""
    if start.config.is_encoder:
        return "encoder"
    return "lm" if start.config.is_decoder_only else "t5"


def _prompts(corpus: str, surveyed: Survey, kind: str) -> list[str]:
    """Returns sentences of the validation text with gaps, or their beginnings; InputError if there is no such text."""
    from limba.api import Texts, source_of_files

    texts = Texts(source_of_files(corpus, surveyed.column, surveyed.validation_percent))
    texts.check_not_empty("validation")
    masked = [hidden.masked for hidden in texts.sentences("validation")]
    if kind == "encoder":
        return [re.sub(r"<extra_id_\d+>", "<mask>", text) for text in masked]
    if kind == "lm":
        return [text.partition("<extra_id_0>")[0].rstrip() for text in masked]
    return masked


def _checked_name(name: str | None) -> str:
    if not name:
        raise InputError("No name is given; write limba new nb --corpus='data/*.jsonl'.")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name) or len(name) > 40:
        raise InputError(f"{name} cannot be the name of a Python module; give small letters, digits and _, such as nb.")
    return name


def _check_new(name: str, size: str | None) -> None:
    """Raises InputError if one of the files exists, or if Limba has a task module of that name."""
    files = [f"tasks/{name}.py", f"launch/{name}.sh"]
    if size:
        files.append(f"gin/{name}_{size}.gin")
    existing = [path for path in files if os.path.lexists(path)]
    if existing:
        verb = "exists" if len(existing) == 1 else "exist"
        raise InputError(f"{' and '.join(existing)} {verb} already; choose another name.")
    if f"tasks.{name}" in task_modules():
        raise InputError(f"Limba has a task module tasks/{name}.py of its own; choose another name.")


def _described(corpus: str, surveyed: Survey) -> str:
    from limba.tools.corpus.reasons import short, short_bytes

    roughly = "" if surveyed.is_whole else "about "
    columns = f"; columns {', '.join(surveyed.columns)}" if surveyed.columns else ""
    read = f", of which {surveyed.column!r} is read" if surveyed.columns else ""
    files = f"{surveyed.files:,} file{'s' if surveyed.files > 1 else ''}"
    text = f"{roughly}{short_bytes(surveyed.bytes)} of text, {roughly}{short(surveyed.letters)} letters"
    return f"{corpus}: {files}{columns}{read}; {roughly}{surveyed.documents:,} documents, {text}."


def _write(files: dict[str, str]) -> None:
    """Writes new files; if one exists by now, none is left."""
    made: list[Path] = []
    try:
        for name, text in files.items():
            path = Path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                made.append(path)
                file.write(text)
        made[-1].chmod(0o755)  # the script is the last one
    except FileExistsError as error:
        for path in made:
            path.unlink()
        raise InputError(f"{error.filename} exists already; choose another name. Nothing was written.") from None
