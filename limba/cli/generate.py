"""`limba generate`, `score` and `fill`: a model writes texts, says how likely they are, or fills their gaps."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from limba.cli import model
from limba.cli.arguments import Parser
from limba.config import GenerationConfig, InputError, environment, named
from limba.config.errors import worded
from limba.config.generation import LONG_INPUTS, GenerationFields

if TYPE_CHECKING:
    from limba.inference.generate import Written
    from limba.inference.load import TrainedModel

ABOUT = """Generates a text for each line of the input, or for each prompt. After a stop the same command resumes.

    limba generate MODEL_DIR --input=in.txt --output=out.jsonl --num_beams=4
    limba generate MODEL_DIR --prompt='Once upon a time' --temperature=0.6 --top_k=20 --num=3
    limba generate user/name --prompt='The <extra_id_0> barks.' --keep_sentinels

The flags below replace the run's GenerationConfig. Without them and without gin files a T5 decodes greedily, and a
language model samples with --temperature=0.6 --top_k=20."""
SCORE = """Computes the natural log likelihood of each target given its input, including the end of sequence.

    limba score MODEL_DIR --input=pairs.jsonl --output=scored.jsonl
    limba score LANGUAGE_MODEL_DIR --input=texts.txt --fields=targets

A language model's input is a prompt; it may be empty, or left out of --fields."""
FILL = """Fills the gaps of texts: prints the likeliest words of each gap with their probabilities. A gap is ___, or
<extra_id_0>, <extra_id_1>, … in order.

    limba fill MODEL_DIR 'The module ___ a file.'
    limba fill MODEL_DIR --file=in.txt --top=3 --json

Without TEXT and --file it reads the lines of standard input."""
STANDARD = ("-", "stdin")
BATCHES_PER_WINDOW = 32  # lines of a window are sorted by length together, and lost if the command is stopped
AT_ONCE = 256  # lines that are answered together
Record = dict[str, Any]  # of a line of input or output
Judge = Callable[[list[Record], int], Iterator[tuple[int, Record, str]]]
# field of GenerationConfig -> the type of its flag, and its help
FLAGS = {
    "num_samples": (int, "number of texts for each input"),
    "max_tokens": (int, "maximum number of tokens in each text; default: 128"),
    "num_beams": (int, "number of beams; above 1: beam search, which draws nothing"),
    "length_penalty": (float, "exponent p of a beam's score: log probability / length^p"),
    "temperature": (float, "sampling temperature; 0: greedy"),
    "top_k": (int, "sample from the k most likely tokens; 0: from all"),
    "top_p": (float, "sample from the most likely tokens up to this probability"),
    "no_repeat_ngram_size": (int, "generate no n-gram of this size twice; 0: no limit"),
    "seed": (int, "sampling seed: the same seed gives the same texts"),
    "long_inputs": (
        str,
        "inputs that are longer than a T5 reads: generate them in segments, cut at line and sentence ends, and join"
        " these; cut them, with a warning; or refuse them. Default: what the task says, mostly cut",
    ),
}
NAMES = {f"GenerationConfig.{field}": f"--{field}" for field in FLAGS} | {"GenerationConfig.num_samples": "--num"}
SAMPLED = GenerationConfig(sample=True, temperature=0.6, top_k=20, top_p=1.0)  # a language model's text


def _parser() -> Parser:
    parser = Parser("generate", ABOUT)
    model.add_flags(parser)
    parser.add_argument("--prompt", action="append", metavar="TEXT", help="a text, instead of --input; may be repeated")
    add_line_flags(parser, "`prediction`, `score`, and of a T5 `input_tokens`, `cut_tokens`, `segments`")
    parser.add_argument("--field", default="inputs", help="field of a .jsonl input that holds the text")
    for name, (kind, about) in FLAGS.items():
        choices = LONG_INPUTS if name == "long_inputs" else None
        parser.add_argument(NAMES[f"GenerationConfig.{name}"], type=kind, dest=name, choices=choices, help=about)
    parser.add_argument("--keep_sentinels", action="store_true", help="allow <extra_id_0>, … in the text")
    return parser


def _check_values(given: argparse.Namespace) -> None:
    """Raises InputError for a value that no model takes, before one is read, which may take minutes."""
    for name in FLAGS:
        value = getattr(given, name)
        if value is not None and (name, value) != ("top_k", 0):
            GenerationConfig(**{"sample": name != "num_beams", name: value})
    _check_together(given)


def _generation(given: argparse.Namespace, trained: TrainedModel) -> GenerationConfig:
    is_language_model = trained.network.config.is_decoder_only
    base = SAMPLED if is_language_model and not given.gin_file else trained.generation
    values = {name: getattr(given, name) for name in FLAGS if getattr(given, name) is not None}
    if values.get("top_k") == 0:
        values["top_k"] = None
    if given.keep_sentinels:
        values["ban_sentinels"] = False
    return base.replaced(**GenerationFields(**values))


def _check_together(given: argparse.Namespace) -> None:
    """Raises InputError for flags that exclude each other."""
    draws = [name for name in ("temperature", "top_k", "top_p") if getattr(given, name)]
    draws = [name for name in draws if (name, getattr(given, name)) != ("top_p", 1.0)]
    if draws and given.temperature != 0 and (given.num_beams or 1) > 1:
        raise InputError(f"Both --{draws[0]} and --num_beams are given, and beams are not sampled; give one.")


@named(NAMES)
def run(argv: Sequence[str]) -> None:
    """Generates the requested texts; raises InputError."""
    given = _parser().parse(argv)
    writes_file = given.output != "stdout"
    reads_lines = bool(given.input or given.gin_file or writes_file) and not given.prompt
    for flag, is_given in (("--input", given.input), ("--output", writes_file)):
        if given.prompt and is_given:
            raise InputError(f"Both --prompt and {flag} are given; give one.")
    if not reads_lines and not given.prompt and sys.stdin.isatty():
        raise InputError("There is no prompt; give --prompt=TEXT, --input=FILE, or lines on standard input.")
    _check_values(given)
    check_input(given)
    trained = model.opened(given, language_model_in_float32=True)
    model.check_vocabulary(trained)
    config = _generation(given, trained)
    if reads_lines:
        _write_lines(given, trained, config)
        return
    prompts = given.prompt or _lines_of_stdin()
    if not prompts:
        raise InputError("There is no prompt; give --prompt=TEXT, or lines on standard input.")
    for prompt, texts in zip(prompts, _written(prompts, trained, config), strict=True):
        print(f"== {prompt}")
        for number, each in enumerate(texts, 1):
            print(f"{number}. {each.text}" if len(texts) > 1 else each.text, flush=True)


def _lines_of_stdin() -> list[str]:
    from limba.inference import line_files

    lines = (record["inputs"] for record in line_files.records("stdin", ["inputs"]))
    return [line for line in lines if line.strip()]


def _written(prompts: Sequence[str], trained: TrainedModel, config: GenerationConfig) -> list[Sequence[Written]]:
    """Returns the texts of each prompt, and says on stderr which were longer than the model reads."""
    groups = trained.mesh.shape["data"] * trained.mesh.shape["fsdp"]
    num_rows = min(-(-len(prompts) // groups) * groups, max(groups, trained.batch_size // groups * groups))
    found: list[Sequence[Written]] = [() for _ in prompts]
    writer = trained.segment_writer(config, num_rows, say=_warning)
    for place, result in writer.results(prompts, name="Prompt"):
        found[place] = result.samples
    for sentence in writer.totals.sentences():
        _warning(sentence)
    return found


def _write_lines(given: argparse.Namespace, trained: TrainedModel, config: GenerationConfig) -> None:
    import jax

    from limba.inference import line_files
    from limba.inference.long_inputs import check_all

    is_first = jax.process_index() == 0
    num_rows, source = given.batch_size or trained.batch_size, given.input or "stdin"
    say = _warning if is_first else lambda sentence: None  # the first has said it
    writer = trained.segment_writer(config, num_rows, say=say)
    place = f"{source} line"
    if writer.choice == "refuse" and source not in STANDARD:
        check_all(writer, (record[given.field] for record in line_files.records(source, [given.field])), place)

    def judge(records: list[Record], first: int) -> Iterator[tuple[int, Record, str]]:
        texts = [record[given.field] for record in records]
        for number, result in writer.results(texts, first, place, skips_blank=True):
            samples = result.samples
            several = [{"text": sample.text, "score": sample.score} for sample in samples]
            more = {} if trained.network.config.is_decoder_only else result.fields
            more |= {"samples": several} if len(samples) > 1 and texts[number].strip() else {}
            best = {"prediction": samples[0].text, "score": samples[0].score}
            yield number, {**records[number], **best, **more}, samples[0].text

    about = {"generation": {**dataclasses.asdict(config), "long_inputs": writer.choice}}
    process(given, trained, [given.field], about, num_rows, judge)
    for sentence in writer.totals.sentences() if is_first else ():
        _warning(sentence)


def _warning(sentence: str) -> None:
    """Says a sentence on stderr, with flags in the place of fields."""
    print(worded(sentence, NAMES), file=sys.stderr, flush=True)


def score(argv: Sequence[str]) -> None:
    """Scores what the flags name; raises InputError."""
    parser = Parser("score", SCORE)
    model.add_flags(parser)
    add_line_flags(parser, "`log_likelihood`, `tokens`, `bits_per_byte` and `cut_tokens`")
    parser.add_argument("--fields", default="inputs,targets", help="fields of input and target in a .jsonl file")
    given = parser.parse(argv)
    fields = [field.strip() for field in given.fields.split(",")]
    if len(fields) > 2 or not all(fields):
        raise InputError(f"--fields is {given.fields}; give two names, such as inputs,targets.")
    check_input(given)
    trained = model.opened(given)
    model.check_vocabulary(trained)
    if len(fields) < 2 and not trained.network.config.is_decoder_only:
        raise InputError(
            f"--fields is {given.fields}, and the model reads inputs too; give two names, such as inputs,targets."
        )

    def judge(records: list[Record], first: int) -> Iterator[tuple[int, Record, str]]:
        del first
        pairs = [(record[fields[0]] if len(fields) > 1 else "", record[fields[-1]]) for record in records]
        for place, found in enumerate(trained.score(pairs, num_rows)):
            num_cut = trained.num_cut(*pairs[place])
            cut.append(num_cut)
            more = {} if trained.network.config.is_decoder_only else {"cut_tokens": num_cut}
            yield place, {**records[place], **found._asdict(), **more}, repr(found.log_likelihood)

    cut: list[int] = []
    num_rows = given.batch_size or trained.batch_size
    process(given, trained, fields, {}, num_rows, judge)
    if any(cut):
        longer = sum(map(bool, cut))
        print(
            f"{longer:,} of the pairs were longer than the model's lengths; {sum(cut):,} of their tokens were not read,"
            " and their likelihoods are those of the rest.",
            file=sys.stderr,
        )


def add_line_flags(parser: argparse.ArgumentParser, adds: str) -> None:
    """Adds the flags of input and output; `adds` names the fields that a JSON line of the output adds to the record."""
    parser.add_argument(
        "--input", metavar="FILE", help="a text per line, or .jsonl, .csv, … (also .gz, gs://); default: stdin"
    )
    parser.add_argument(
        "--output", metavar="FILE", default="stdout",
        help=f"a .jsonl file gets each record with {adds}, other files one line each (also gs://); default: stdout",
    )  # fmt: skip
    parser.add_argument("--batch_size", type=model.whole_number, metavar="N", help="lines per batch, over all devices")


def check_input(given: argparse.Namespace) -> None:
    """Raises InputError for a local input that does not exist, before a model is read."""
    path = given.input
    if path and path not in STANDARD and "://" not in path and not os.path.exists(path):
        raise InputError(f"The input {path} does not exist; give a .txt or .jsonl file (also .gz), or stdin.")


def process(
    given: argparse.Namespace,
    trained: TrainedModel,
    fields: Sequence[str],
    more_about: Mapping[str, object],
    num_rows: int,
    judge: Judge,
) -> None:
    """Writes the results of `judge` for all input lines, in order; a stopped command resumes after its last line.

    Raises InputError if another command writes to the output now.
    """
    import jax

    from limba.inference import line_files
    from limba.sharding import agreement

    writes, source = jax.process_index() == 0, given.input or "stdin"
    about = {"input": source, "checkpoint": f"{trained.path} step {trained.step}", "prefix": trained.prefix}
    # Lines that somebody waits for come batch by batch.
    is_live = given.output in (*STANDARD, "stdout") or source in STANDARD
    window = num_rows if is_live else BATCHES_PER_WINDOW * num_rows
    shows = writes and not (is_live and sys.stdout.isatty())
    with (
        agreement.entered_by_first(line_files.alone(given.output)) as check,
        line_files.Output(given.output, {**about, **more_about}, writes) as output,
    ):
        total = line_files.num_lines(source) if shows else None
        read = line_files.records(source, fields)
        count = line_files.process(read, output, window, judge, shows, total, check or (lambda: None))
    if writes:
        print(f"{count:,} lines in {given.output}, by {about['checkpoint']}", file=sys.stderr)


@named({**model.NAMES, "top": "--top"})
def fill(argv: Sequence[str]) -> None:
    """Prints the fills of each text; raises InputError."""
    parser = Parser("fill", FILL)
    parser.add_argument("objects", nargs="*", metavar="MODEL TEXT", help=f"{model.MODEL}; then texts with gaps")
    parser.add_argument("--top", type=model.whole_number, default=5, metavar="N", help="fills of each gap; default: 5")
    parser.add_argument("--file", metavar="FILE", help="a text per line, or .jsonl with `inputs` (also .gz, gs://)")
    parser.add_argument("--json", action="store_true", help="print an object per text: `text` and fills of its `gaps`")
    parser.add_argument("--step", type=int, help="step of a run; default: its best, else its newest")
    parser.add_argument("--vocabulary", metavar="PATH|byte", help="vocabulary that replaces the model's")
    model.add_import_flag(parser)
    given = parser.parse(argv)
    if not given.objects:
        raise InputError("There is no model; write limba fill MODEL 'A text with a ___.'")
    path, *texts = given.objects
    if texts and given.file:
        raise InputError("Both a text and --file are given; give one.")
    if not texts and not given.file and sys.stdin.isatty():
        raise InputError(f"There is no text; write limba fill {path} 'A text with a ___.', or --file=FILE.")
    with environment.quiet_imports():
        from limba.inference import line_files
        from limba.inference.gaps import with_sentinels
        from limba.inference.load import load
    for text in texts:
        with_sentinels(text)  # raises before minutes are spent on a model
    check_input(argparse.Namespace(input=given.file))
    trained = load(path, step=given.step, vocabulary=given.vocabulary, imports=given.imports)
    read = texts or (record["inputs"] for record in line_files.records(given.file or "stdin", ["inputs"]))
    lines = (line for line in read if line.strip())
    while several := list(itertools.islice(lines, AT_ONCE)):
        for text, gaps in zip(several, trained.fill(several, given.top), strict=True):
            if given.json:
                fills = [[{"text": fill.text, "probability": fill.probability} for fill in gap] for gap in gaps]
                print(json.dumps({"text": text, "gaps": fills}, ensure_ascii=False), flush=True)
                continue
            print(f"== {text}")
            for number, gap in enumerate(gaps, 1):
                print(f"{number}. " + ", ".join(f"{fill.text} ({fill.probability:.2%})" for fill in gap), flush=True)
