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
    given = _parser().parse(argv)
    _check_modes(given)
    if given.score:
        score.run(given)
    elif given.fill:
        fill.run(given)
    else:
        _generate(given)


def _parser() -> Parser:
    parser = Parser("generate", ABOUT)
    parser.add_argument("--fill", action="store_true", help="fill the gaps of texts, and write no other text")
    parser.add_argument("--score", action="store_true", help="compute log likelihoods of texts, and write no text")
    model.add_flags(parser)
    line_flags.add_flags(parser)
    filling = parser.add_argument_group("with --fill")
    filling.add_argument("--top", type=model.whole_number, metavar="N", help=f"fills of each gap; default: {NUM_FILLS}")
    writing = parser.add_argument_group("writing, without --fill and --score")
    for name, (kind, about) in FLAGS.items():
        choices = LONG_INPUTS if name == "long_inputs" else None
        writing.add_argument(NAMES[f"GenerationConfig.{name}"], type=kind, dest=name, choices=choices, help=about)
    writing.add_argument("--keep_sentinels", action="store_true", help="allow <extra_id_0>, … in the text")
    return parser


def _check_modes(given: argparse.Namespace) -> None:
    """Raises InputError for flags that do not belong to the same one of writing, filling and scoring."""
    if given.fill and given.score:
        raise InputError("Both --fill and --score are given; give one.")
    if given.top is not None and not given.fill:
        raise InputError("--top is the number of fills of a gap; add --fill, or leave it out.")
    if given.prompt and given.score:
        raise InputError("--score reads pairs of an input and a target, not --prompt; give --input=FILE.")
    if not (given.fill or given.score):
        return
    mode = "--fill" if given.fill else "--score"
    of_writing = _flags_of_writing(given)
    if of_writing:
        raise InputError(f"{of_writing[0]} is about texts that are written, and {mode} writes none; leave one out.")


def _flags_of_writing(given: argparse.Namespace) -> list[str]:
    """Returns the flags that are given and say how a text is written."""
    flags = [NAMES[f"GenerationConfig.{name}"] for name in FLAGS if getattr(given, name) is not None]
    if given.keep_sentinels:
        flags.append("--keep_sentinels")
    return flags


def _check_values(given: argparse.Namespace) -> None:
    """Raises InputError for a value that no model takes, before one is read, which may take minutes."""
    for name in FLAGS:
        value = getattr(given, name)
        if value is None or (name == "top_k" and value == 0):  # 0 means all tokens, a field's None
            continue
        # The configuration checks itself. Sampling is on, which most fields need, but for beams, which exclude it.
        GenerationConfig(**{"sample": name != "num_beams", name: value})
    _check_together(given)


def _check_together(given: argparse.Namespace) -> None:
    """Raises InputError for flags that exclude each other."""
    sampling = [name for name in ("temperature", "top_k", "top_p") if getattr(given, name)]
    if given.top_p == 1.0:  # asks for nothing
        sampling.remove("top_p")
    is_greedy = given.temperature == 0
    has_beams = given.num_beams is not None and given.num_beams > 1
    if sampling and has_beams and not is_greedy:
        raise InputError(f"Both --{sampling[0]} and --num_beams are given, and beams are not sampled; give one.")


def _generation(given: argparse.Namespace, trained: TrainedModel) -> GenerationConfig:
    """Returns how texts are written: as the model's run says, or as a language model samples, with the flags on top.

    One that learned pairs answers, as a T5 does.
    """
    continues = trained.network.config.is_decoder_only and not trained.answers
    base = SAMPLED if continues and not given.gin_file else trained.generation
    values = {name: getattr(given, name) for name in FLAGS if getattr(given, name) is not None}
    if values.get("top_k") == 0:
        values["top_k"] = None
    if given.keep_sentinels:
        values["ban_sentinels"] = False
    return base.replaced(**GenerationFields(**values))


def _generate(given: argparse.Namespace) -> None:
    model.check_given(given)
    reads_lines = line_flags.reads_lines(given)
    field = line_flags.field_of(given)
    _check_values(given)
    line_flags.check_input(given)
    if reads_lines:
        trained = model.opened(given, in_float32=lambda source: source.model.is_decoder_only)
        model.check_vocabulary(trained)
        _write_lines(given, trained, _generation(given, trained), field)
    else:
        _answer(given, line_flags.prompts(given))


def _answer(given: argparse.Namespace, prompts: Sequence[str]) -> None:
    """Prints the texts of each prompt; a model that only fills gaps fills the gaps of the prompts."""
    with environment.quiet_imports():
        from limba.inference.gap_filling import GAP
        from limba.inference.source import only_fills_gaps
    have_gaps = all(GAP.search(prompt) for prompt in prompts)
    may_fill = have_gaps and not _flags_of_writing(given)

    def in_float32(source: Source) -> bool:  # as with --fill, and as a language model writes
        return source.model.is_decoder_only or (may_fill and only_fills_gaps(source))

    trained = model.opened(given, in_float32)
    model.check_vocabulary(trained)
    only_fills = only_fills_gaps(trained.source)
    if may_fill and only_fills:
        _warning(
            f"{trained.path} has learned to fill gaps, not to write texts; the prompt's gaps are filled, as with"
            " --fill."
        )
        fill.show(iter(prompts), trained, NUM_FILLS)
        return
    _say_what_it_can(given, trained, prompts, only_fills)
    config = _generation(given, trained)
    for prompt, texts in zip(prompts, _written(prompts, trained, config), strict=True):
        print(f"== {prompt}")
        for number, written in enumerate(texts, 1):
            numbered = f"{number}. {written.text}" if len(texts) > 1 else written.text
            print(numbered, flush=True)


def _say_what_it_can(
    given: argparse.Namespace, trained: TrainedModel, prompts: Sequence[str], only_fills: bool
) -> None:
    """Warns on stderr where a model's text will mean little, with what the model can do instead."""
    from limba.inference.gap_filling import GAP

    if given.keep_sentinels or trained.network.config.is_encoder:
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
            f"{trained.path} has learned to fill gaps, not to write texts: write ___ in the place of a word, or"
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


def _write_lines(given: argparse.Namespace, trained: TrainedModel, config: GenerationConfig, field: str) -> None:
    """Writes each record of the input with its text, the score and how much of the input was read."""
    import jax

    from limba.inference import line_files
    from limba.inference.long_inputs import check_all

    is_first = jax.process_index() == 0
    num_rows = given.batch_size or trained.batch_size
    source = given.input or "stdin"
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

    about = {"generation": {**dataclasses.asdict(config), "long_inputs": writer.choice}}
    line_flags.process(given, trained, [field], about, num_rows, judge)
    if is_first:
        for sentence in writer.totals.sentences():
            _warning(sentence)


def _warning(sentence: str) -> None:
    """Prints a sentence to stderr, with flags in place of the fields that it names."""
    print(worded(sentence, NAMES), file=sys.stderr, flush=True)
