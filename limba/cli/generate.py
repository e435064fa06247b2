"""`limba generate`: a model writes texts, or with a flag fills the gaps of texts or says how likely texts are."""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from limba.cli import fill, line_flags, model, score
from limba.cli.arguments import Parser
from limba.cli.fill import NUM_FILLS
from limba.cli.line_flags import Record
from limba.config import GenerationConfig, InputError, environment, named
from limba.config.errors import worded
from limba.config.generation import LONG_INPUTS, GenerationFields

if TYPE_CHECKING:
    from limba.inference.generate import Written
    from limba.inference.load import TrainedModel
    from limba.inference.source import Source

ABOUT = """Writes a text for each line of the input, or for each prompt. After a stop the same command resumes.

    limba generate MODEL_DIR --input=in.txt --output=out.jsonl --num_beams=4
    limba generate MODEL_DIR --prompt='Once upon a time' --temperature=0.6 --top_k=20 --num=3
    limba generate user/name --prompt='The <extra_id_0> barks.' --keep_sentinels

--fill prints the likeliest words for each gap of a text with their probabilities. A gap is ___, or <extra_id_0>,
<extra_id_1>, … in order; an encoder's mask is one too. An encoder, or a T5 trained by span corruption alone, fills the
gaps of a prompt without the flag too.

    limba generate MODEL_DIR --fill --prompt='The module ___ a file.' --top=3
    limba generate MODEL_DIR --fill --input=in.txt --output=fills.jsonl

--score writes the natural log likelihood of each target given its input, including the end of sequence. A language
model's input is a prompt; it may be empty, or left out of --fields.

    limba generate MODEL_DIR --score --input=pairs.jsonl --output=scored.jsonl
    limba generate LANGUAGE_MODEL_DIR --score --input=texts.txt --output=scored.jsonl --fields=targets

The flags for writing replace the run's GenerationConfig. Without them and without gin files a T5 decodes greedily, and
so does a language model that learned pairs; any other one samples with --temperature=0.6 --top_k=20."""
# Field of GenerationConfig -> the type of its flag, and its help.
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
# Field, as errors name it -> its flag.
NAMES = {f"GenerationConfig.{field}": f"--{field}" for field in FLAGS}
NAMES["GenerationConfig.num_samples"] = "--num"
# A language model repeats itself when it always takes the likeliest token.
SAMPLED = GenerationConfig(sample=True, temperature=0.6, top_k=20, top_p=1.0)


@named({**NAMES, **model.METHODS})
def run(argv: Sequence[str]) -> None:
    """Writes, fills or scores the texts that the flags name; raises InputError."""
    args = _parser().parse(argv)
    _check_modes(args)
    if args.score:
        score.run(args)
    elif args.fill:
        fill.run(args)
    else:
        _generate(args)


def _parser() -> Parser:
    parser = Parser("generate", ABOUT)
    parser.add_argument("--fill", action="store_true", help="fill the gaps of texts, and write no other text")
    parser.add_argument("--score", action="store_true", help="compute log likelihoods of texts, and write no text")
    model.add_flags(parser)
    line_flags.add_flags(parser)
    filling = parser.add_argument_group("with --fill")
    filling.add_argument("--top", type=model.whole_number, metavar="N", help=f"fills of each gap; default: {NUM_FILLS}")
    writing = parser.add_argument_group("writing, without --fill and --score")
    for name, (kind, help_text) in FLAGS.items():
        choices = LONG_INPUTS if name == "long_inputs" else None
        writing.add_argument(NAMES[f"GenerationConfig.{name}"], type=kind, dest=name, choices=choices, help=help_text)
    writing.add_argument("--keep_sentinels", action="store_true", help="allow <extra_id_0>, … in the text")
    return parser


def _check_modes(args: argparse.Namespace) -> None:
    """Raises InputError for flags that do not belong to the same one of writing, filling and scoring."""
    if args.fill and args.score:
        raise InputError("Both --fill and --score are given; give one.")
    if args.top is not None and not args.fill:
        raise InputError("--top is the number of fills of a gap; add --fill, or leave it out.")
    if args.prompt and args.score:
        raise InputError("--score reads pairs of an input and a target, not --prompt; give --input=FILE.")
    if not (args.fill or args.score):
        return
    mode = "--fill" if args.fill else "--score"
    of_writing = _flags_of_writing(args)
    if of_writing:
        raise InputError(f"{of_writing[0]} is about texts that are written, and {mode} writes none; leave one out.")


def _flags_of_writing(args: argparse.Namespace) -> list[str]:
    """Returns the flags that are given and say how a text is written."""
    flags = [NAMES[f"GenerationConfig.{name}"] for name in FLAGS if getattr(args, name) is not None]
    if args.keep_sentinels:
        flags.append("--keep_sentinels")
    return flags


def _check_values(args: argparse.Namespace) -> None:
    """Raises InputError for a value that no model takes, before one is read, which may take minutes."""
    for name in FLAGS:
        value = getattr(args, name)
        if value is None or (name == "top_k" and value == 0):  # 0 means all tokens, a field's None
            continue
        # The configuration checks itself. Sampling is on, which most fields need, but not with beams.
        GenerationConfig(**{"sample": name != "num_beams", name: value})
    _check_together(args)


def _check_together(args: argparse.Namespace) -> None:
    """Raises InputError for flags that exclude each other."""
    sampling = [name for name in ("temperature", "top_k", "top_p") if getattr(args, name)]
    if args.top_p == 1.0:  # asks for nothing
        sampling.remove("top_p")
    is_greedy = args.temperature == 0
    has_beams = args.num_beams is not None and args.num_beams > 1
    if sampling and has_beams and not is_greedy:
        raise InputError(f"Both --{sampling[0]} and --num_beams are given, and beams are not sampled; give one.")


def _generation(args: argparse.Namespace, trained: TrainedModel) -> GenerationConfig:
    """Returns how texts are written: as the model's run says, or as a language model samples, with the flags on top.

    One that learned pairs answers, as a T5 does.
    """
    continues = trained.network.config.is_decoder_only and not trained.answers
    base = SAMPLED if continues and not args.gin_file else trained.generation
    values = {name: getattr(args, name) for name in FLAGS if getattr(args, name) is not None}
    if values.get("top_k") == 0:
        values["top_k"] = None
    if args.keep_sentinels:
        values["ban_sentinels"] = False
    return base.replaced(**GenerationFields(**values))


def _generate(args: argparse.Namespace) -> None:
    model.check_names_one_model(args)
    reads_lines = line_flags.reads_lines(args)
    field = line_flags.field_of(args)
    _check_values(args)
    line_flags.check_files(args)
    if reads_lines:
        trained = model.opened(args, in_float32=lambda source: source.model.is_decoder_only)
        model.check_vocabulary(trained)
        _write_lines(args, trained, _generation(args, trained), field)
    else:
        _answer(args, line_flags.prompts(args))


def _answer(args: argparse.Namespace, prompts: Sequence[str]) -> None:
    """Prints the texts of each prompt; a model that only fills gaps fills the gaps of the prompts."""
    with environment.quiet_imports():
        from limba.inference.gap_filling import GAP
        from limba.inference.source import only_fills_gaps
    have_gaps = all(GAP.search(prompt) for prompt in prompts)
    may_fill = have_gaps and not _flags_of_writing(args)

    def in_float32(source: Source) -> bool:  # as with --fill, and as a language model writes
        return source.model.is_decoder_only or (may_fill and only_fills_gaps(source))

    trained = model.opened(args, in_float32)
    model.check_vocabulary(trained)
    only_fills = only_fills_gaps(trained.source)
    if may_fill and only_fills:
        _warning(
            f"{trained.path} has learned to fill gaps, not to write texts; the prompt's gaps are filled, as with"
            " --fill."
        )
        fill.show(iter(prompts), trained, NUM_FILLS)
        return
    config = _generation(args, trained)  # flags that cannot be are one sentence, without a hint before it
    _say_what_it_can(args, trained, prompts, only_fills)
    for prompt, texts in zip(prompts, _written(prompts, trained, config), strict=True):
        print(f"== {prompt}")
        for number, written in enumerate(texts, 1):
            numbered = f"{number}. {written.text}" if len(texts) > 1 else written.text
            print(numbered, flush=True)


def _say_what_it_can(args: argparse.Namespace, trained: TrainedModel, prompts: Sequence[str], only_fills: bool) -> None:
    """Warns on stderr where a model's text will mean little, with what the model can do instead."""
    from limba.inference.gap_filling import GAP

    if args.keep_sentinels or trained.network.config.is_encoder:
        return  # who asks for sentinels knows; an encoder is refused, or continues the text as a hybrid
    if trained.network.config.is_decoder_only:
        if any("<extra_id_" in prompt for prompt in prompts):
            _warning(
                f"{trained.path} is a decoder-only model: it continues a prompt, and does not take <extra_id_0> as a"
                " gap."
            )
    elif any(GAP.search(prompt) for prompt in prompts):
        _warning("A prompt has a gap: with --fill the model says which words are likeliest there.")
    elif only_fills:
        _warning(
            f"{trained.path} has learned to fill gaps, not to write texts: write ___ in place of a word, or"
            " fine-tune it on pairs first (docs/finetuning.md)."
        )


def _written(prompts: Sequence[str], trained: TrainedModel, config: GenerationConfig) -> list[Sequence[Written]]:
    """Returns the texts of each prompt, and warns on stderr about prompts that were longer than the model reads."""
    # A batch has the same number of rows on each group of devices: no more than the prompts need, nor than it may have.
    groups = trained.mesh.shape["data"] * trained.mesh.shape["fsdp"]
    needed = math.ceil(len(prompts) / groups)
    most = max(1, trained.batch_size // groups)
    num_rows = min(needed, most) * groups
    texts: list[Sequence[Written]] = [() for _ in prompts]
    writer = trained.segment_writer(config, num_rows, say=_warning)
    for number, result in writer.results(prompts, name="Prompt"):
        texts[number] = result.samples
    for sentence in writer.totals.sentences():
        _warning(sentence)
    return texts


def _write_lines(args: argparse.Namespace, trained: TrainedModel, config: GenerationConfig, field: str) -> None:
    """Writes each record of the input with its text, the score and how much of the input was read."""
    import jax

    from limba.inference import line_files
    from limba.inference.long_inputs import check_all

    is_first = jax.process_index() == 0
    num_rows = args.batch_size or trained.batch_size
    source = args.input or "stdin"
    say = _warning if is_first else lambda sentence: None  # one process warns for all
    writer = trained.segment_writer(config, num_rows, say=say)
    name = f"{source} line"
    # A file is looked through before hours are spent on it; standard input can be read only once.
    if writer.choice == "refuse" and source not in line_flags.STANDARD:
        check_all(writer, (record[field] for record in line_files.records(source, [field])), name)

    def judge(records: list[Record], first: int) -> Iterator[tuple[int, Record, str]]:
        texts = [record[field] for record in records]
        for number, result in writer.results(texts, first, name, skips_blank=True):
            samples = result.samples
            best = samples[0]
            record = {**records[number], "prediction": best.text, "score": best.score}
            if not trained.network.config.is_decoder_only:
                record |= result.fields
            if len(samples) > 1 and texts[number].strip():
                record["samples"] = [{"text": sample.text, "score": sample.score} for sample in samples]
            yield number, record, best.text

    settings = {"generation": {**dataclasses.asdict(config), "long_inputs": writer.choice}}
    line_flags.process(args, trained, [field], settings, num_rows, judge)
    if is_first:
        for sentence in writer.totals.sentences():
            _warning(sentence)


def _warning(sentence: str) -> None:
    """Prints a sentence to stderr, with flags in place of the fields that it names."""
    print(worded(sentence, NAMES), file=sys.stderr, flush=True)
