"""`limba demo`: corpus, vocabulary, pretraining, evaluation, a task and conversion of a tiny T5, in minutes."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import os
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from limba.cli.flags import parse_args
from limba.config import DataConfig, InputError, RestartError, RunConfig, environment, named
from limba.data.task_modules import ROOT
from limba.storage.files import replacing

if TYPE_CHECKING:
    from limba.data.vocabulary.text_sample import Hidden

DOCUMENT_LETTERS = 1_000  # paragraphs are joined up to about this: many documents, some for validation


def pydoc_corpus(path: str | os.PathLike[str]) -> int:
    """Writes the topics of `pydoc_data.topics` as JSON lines {"topic", "text"}; returns the number of documents.

    About 460,000 letters under the PSF licence, with markup. Each document is some paragraphs of one
    topic, in order. The file is written atomically.
    """
    import pydoc_data.topics

    count = 0
    with replacing(path) as file:
        for topic, text in sorted(pydoc_data.topics.topics.items()):
            for document in _documents(text):
                file.write((json.dumps({"topic": topic, "text": document}, ensure_ascii=False) + "\n").encode())
                count += 1
    return count


def _documents(text: str) -> Iterator[str]:
    gathered, letters = [], 0
    for paragraph in re.split(r"\n\s*\n", text.strip("\n")):
        gathered.append(paragraph)
        letters += len(paragraph)
        if letters >= DOCUMENT_LETTERS:
            yield "\n\n".join(gathered)
            gathered, letters = [], 0
    if "".join(gathered).strip():
        yield "\n\n".join(gathered)


ABOUT = """Trains a tiny T5 on a small corpus, shows samples, and converts it for Hugging Face's transformers.

    limba demo --gin.TRAIN_STEPS=100
    CORPUS='path/*.txt' STEPS=2000 MODEL_DIR=DIR limba demo

CORPUS may be .txt, .jsonl, .csv (column text) or .parquet, also .gz. Without it the corpus is Python's own language
reference (PSF licence). Started again, the demo resumes from its newest checkpoint."""
NUM_PIECES = 3_996  # with 100 sentinels 4,096 rows: gin/demo.gin's VOCAB_SIZE
PROMPTS = "config.EvaluationConfig.prompts"
RANKED = 50  # fills among which a hidden word's rank is looked for
NUM_SCORED = 200  # gaps that say how often the model is right
OF_DOCUMENT = 10  # sentences at most, so that few documents are enough
VOCABULARY_LETTERS = 20_000_000  # of the corpus, to train the vocabulary on
TASK = "A task for it: capitals restored in small letters, by a head on its encoder"
WRITTEN = {"small": str.lower, "Capital": str.capitalize, "CAPITALS": str.upper}
ROW_WORDS, ROW_TOKENS = 12, 32  # of text whose capitals are restored; rows of more tokens are left out
READ_ROWS, TRIED_ROWS = 2_500, 200  # to learn them on, and to count how many words are right
LEAST_ROWS, LEAST_SHARE = 200, 0.01  # of words with capitals, and without: no task in a script that has none
MOST_TEXTS, MOST_LETTERS = 20_000, 10_000  # of the corpus and of each text that rows are looked for in


def _vocabulary(data: DataConfig) -> None:
    """Trains the vocabulary on the training split of the corpus, unless it exists."""
    from limba.data.tasks import source_of_files
    from limba.data.vocabulary.train import NewVocabulary, train_vocabulary

    corpus = data.data_files
    if corpus is None or data.vocabulary in (None, "byte") or Path(data.vocabulary).exists():
        return
    path = Path(data.vocabulary)

    def texts() -> Iterator[str]:
        letters = 0
        for text in source_of_files(corpus, data.column, data.validation_percent).texts("train"):
            letters += len(text)
            yield text
            if letters > VOCABULARY_LETTERS:
                return

    with NewVocabulary(str(path)).held():
        count = train_vocabulary(texts(), NUM_PIECES, str(path))
    print(f"Trained a SentencePiece vocabulary of {count:,} pieces and 100 sentinels: {path}", flush=True)


def _validation(config: RunConfig) -> Callable[..., Sequence[Hidden]]:
    """Returns `Texts.sentences` of the validation split; no sentences for a model that fills no gaps."""
    from limba.data.tasks import parts_of, resolve_task
    from limba.data.vocabulary.load import num_sentinels
    from limba.data.vocabulary.text_sample import Texts

    task, model = resolve_task(config.data), config.model
    has_gaps = not model.is_decoder_only and num_sentinels(task.output_features["targets"].vocabulary)
    if not (model.is_encoder or has_gaps):
        return lambda **_: []
    return functools.partial(Texts.of_task(parts_of(task)[0]).sentences, config.data.validation_split)


def _show_fills(config: RunConfig) -> None:
    """Prints sentences that the model has not seen: the hidden words, its guesses, and how often it is right."""
    from limba.inference.load import load
    from limba.inference.source import find

    sentences = _validation(config)
    shown = sentences()
    if not shown:
        return
    source = find(config.model_dir, config)
    trained = load(source, step=max(source.steps), config=config)
    filled = trained.fill([hidden.masked for hidden in shown], top=RANKED)
    print("Words that the model would write in the gaps of text that it has not seen (its probability of each):\n")
    for number, (hidden, gaps) in enumerate(zip(shown, filled, strict=True), 1):
        print(f"{number}. {hidden.masked}".replace("<extra_id_0>", "[1]").replace("<extra_id_1>", "[2]"))
        rows = [("the hidden word", "its rank", "the model's guesses")]
        for place, (word, fills) in enumerate(zip(hidden.words, gaps, strict=True), 1):
            rank = next((str(rank) for rank, fill in enumerate(fills, 1) if fill.text == word), f"over {len(fills)}")
            guesses = ", ".join(f"{fill.text} ({fill.probability:.2%})" for fill in fills[:3])
            rows.append((f"[{place}] {word}", rank, guesses))
        widths = [max(_columns(row[column]) for row in rows) + 2 for column in range(2)]
        for row in rows:
            padded = (text + " " * (width - _columns(text)) for text, width in zip(row, widths, strict=False))
            print(f"   {''.join(padded)}{row[2]}")
        print()
    scored = sentences(num=NUM_SCORED // 2, of_document=OF_DOCUMENT)  # of two gaps each
    words = [word for hidden in scored for word in hidden.words]
    gaps = [gap for several in trained.fill([hidden.masked for hidden in scored]) for gap in several]
    right = sum(word in [fill.text for fill in gap] for word, gap in zip(words, gaps, strict=True))
    print(f"A rank is the hidden word's place among the {RANKED} likeliest fills that a search finds.")
    print(f"The right word among the first five: {right} of {len(words)} gaps of text that it has not seen.\n")


def show_result(config: RunConfig) -> None:
    """Prints the summary of a run that has ended, the place of its picture, and the fills of a T5's sentences."""
    from limba.evaluation import history

    print("\n" + history.summary(config))
    print(f"picture             {history.plot_loss(config)}\n")
    _show_fills(config)


def as_written(word: str) -> str:
    """Returns how a word is written: small, Capital, CAPITALS, or miXed, which no rule writes."""
    return next((name for name, write in WRITTEN.items() if write(word) == word), "miXed")


def restore_capitals(config: RunConfig, step: int) -> None:
    """Trains a head on the T5's encoder that restores capitals, and prints how often it is right.

    Raises RestartError if it was asked to stop.
    """
    from limba.cli.gin import read_gin
    from limba.data.tasks import resolve_task, source_of_files
    from limba.inference.load import load
    from limba.run import train

    data, model = config.data, config.model
    if "://" in config.model_dir or data.data_files is None or model.is_decoder_only or data.vocabulary == "byte":
        return
    encode = resolve_task(data).output_features["targets"].vocabulary.encode
    texts = source_of_files(data.data_files, data.column, data.validation_percent).texts

    def rows(split: str, count: int) -> list[list[str]]:
        words = (text[:MOST_LETTERS].split() for text in itertools.islice(texts(split), MOST_TEXTS))
        parts = (row[at : at + ROW_WORDS] for row in words for at in range(0, len(row), ROW_WORDS))
        short = (row for row in parts if sum(max(1, len(encode(word.lower()))) for word in row) < ROW_TOKENS - 2)
        return list(itertools.islice(short, count))

    read, new = rows("train", READ_ROWS), rows("validation", TRIED_ROWS)
    tags = [[as_written(word) for word in row] for row in read]
    small = sum(row.count("small") for row in tags) / max(1, sum(map(len, tags)))
    if len(read) < LEAST_ROWS or not new or not LEAST_SHARE < small < 1 - LEAST_SHARE:
        return
    lines = (json.dumps({"text": " ".join(w).lower(), "label": " ".join(t)}) for w, t in zip(read, tags, strict=True))
    content = "\n".join(lines).encode()
    directory = f"{config.model_dir}/capitals_{step}_{hashlib.blake2b(content, digest_size=4).hexdigest()}"
    with replacing(f"{directory}.jsonl") as file:
        file.write(content)
    same = {f"config.ModelConfig.{field.name}": getattr(model, field.name) for field in dataclasses.fields(model)}
    for name in ("dropout_rate", "dtype", "head", "labels", "num_decoder_layers"):
        del same[f"config.ModelConfig.{name}"]
    own = {"MODEL_DIR": directory, "CORPUS": f"{directory}.jsonl", "INITIAL_CHECKPOINT_PATH": config.model_dir}
    own |= {"VOCABULARY": data.vocabulary, "EXTRA_IDS": data.extra_ids, "TASK_FEATURE_LENGTHS": {"targets": ROW_TOKENS}}
    print(f"\n{TASK}\n", flush=True)
    if train(read_gin("gin/demo_capitals.gin", **(same | own)))["interrupted"]:
        raise RestartError("The run was asked to stop while it learned capitals; the same command resumes it.")
    tagger = load(directory)
    print("\nWords with the right capitals, in brackets if all stay small:")
    for of_text, about in ((read[:: max(1, len(read) // TRIED_ROWS)], "has read"), (new, "has not seen")):
        lower = [[word.lower() for word in row] for row in of_text]
        written = [
            [WRITTEN.get(tag, str.lower)(word) for word, tag in zip(row, tags, strict=True)]
            for row, tags in zip(lower, tagger.tag(lower), strict=True)
        ]
        words = [word for row in of_text for word in row]
        right, left = (
            sum(word == other for word, other in zip(words, itertools.chain(*done), strict=True)) / len(words)
            for done in (written, lower)
        )
        print(f"  {right:.1%} ({left:.1%}) of {len(words):,} words of text that it {about}, as in")
        row = max(written, key=lambda row: sum(word != word.lower() for word in row))
        print(f"    {' '.join(row).lower()}\n    {' '.join(row)}")


def next_lines(commands: Sequence[tuple[str, str]]) -> str:
    """Returns commands, each with what it is for, as what to type next."""
    width = max(len(command) for command, _ in commands)
    return "\n".join(["What to type next:", *(f"  {command:<{width}}  # {about}" for command, about in commands)])


def _columns(text: str) -> int:
    """Returns how many columns a terminal needs for a text: two for each letter of Chinese, Japanese or Korean."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def _next(directory: str, step: int, given: str | None) -> str:
    """Returns what to type next, as the lines of a shell; `given` is the corpus of the user's own."""
    is_installed = ROOT.name == "shipped"
    own = f"CORPUS='{given or 'path/*.txt'}' STEPS={5 * step if given else 2000}"
    lines = [
        (f"limba report {directory}", "figures and pictures of this run"),
        (f"limba play {directory}", "a page on which you fill gaps of your own text"),
        (f"{own} {'limba demo' if is_installed else 'bash launch/demo.sh'}", "longer" if given else "your own text"),
        (
            f"limba new my --corpus='{given or 'path/*.txt'}'",
            "files for a real run on your text, sized for your machine",
        ),
    ]
    if not is_installed:
        lines.insert(0, (". .venv/bin/activate", "makes the command limba available"))
        lines.append(("bash launch/setup.sh cuda", "on a machine with a GPU: then the same commands use it"))
    return next_lines(lines)


def run(argv: Sequence[str]) -> None:
    """Runs the demo; raises the errors of `limba.cli.program.CODES`."""
    given = os.environ.get("CORPUS") or None
    name = "demo" if given is None else "demo-" + hashlib.blake2b(given.encode(), digest_size=4).hexdigest()
    directory = os.environ.get("MODEL_DIR") or str((Path.cwd() if ROOT.name == "shipped" else ROOT) / "runs" / name)
    if "://" in directory:
        raise InputError(f"MODEL_DIR is {directory}; the demo writes to a local directory, so give one.")
    corpus = given or f"{directory}/corpus.jsonl"
    arguments = [
        "--gin_file=gin/demo_fast.gin",
        f"--gin.MODEL_DIR={directory}",
        f"--gin.VOCABULARY={directory}/vocabulary.model",
        f"--gin.CORPUS={corpus}",
    ]
    if os.environ.get("STEPS"):
        arguments.append(f"--gin.TRAIN_STEPS={os.environ['STEPS']}")
    with environment.quiet_imports():
        config, text, names, _ = parse_args([*arguments, *argv], "demo", ABOUT)
        from limba.cli import convert
        from limba.run import train
        from limba.sharding import clusters
    if (place := clusters.find()) is not None and place.count > 1:
        raise InputError(
            f"The demo runs in one process, and {place.found_by} has started {place.count}; train gin/demo.gin with"
            " them, or set LIMBA_ALONE=1."
        )
    if given is None and config.data.data_files == corpus:
        print(f"Corpus: {pydoc_corpus(corpus):,} documents of Python's language reference (PSF licence): {corpus}")
    _vocabulary(config.data)
    if not config.evaluation.prompts and (hidden := _validation(config)()):  # for the report: their fills by step
        prompts = tuple(each.masked for each in hidden)
        config, text, names, _ = parse_args([*arguments, f"--gin.{PROMPTS}={prompts!r}", *argv], "demo", ABOUT)

    with named(names):
        result = train(config, text)
    if result["interrupted"]:
        raise RestartError(f"The run was asked to stop after step {result['step']:,}; the same command resumes it.")
    show_result(config)
    print("The model as a folder for Hugging Face's transformers:")
    convert.run([config.model_dir])
    restore_capitals(config, result["step"])
    print("\n" + _next(config.model_dir, result["step"], given))
