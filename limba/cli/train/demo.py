"""`limba demo`: corpus, vocabulary, pretraining, evaluation, summary and conversion of a tiny T5, in minutes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from limba.cli.flags import parse_args
from limba.cli.program import names_said
from limba.cli.task_modules import ROOT
from limba.config import DataConfig, InputError, RestartError, environment

ABOUT = """Trains a tiny T5 on a small corpus, shows samples, and converts it for Hugging Face's transformers.

    limba demo --gin.TRAIN_STEPS=100
    CORPUS='path/*.txt' STEPS=2000 MODEL_DIR=DIR limba demo

CORPUS may be .txt, .jsonl, .csv (column text) or .parquet, also .gz. Without it the corpus is Python's own language
reference (PSF licence). Started again, the demo resumes from its newest checkpoint."""
NUM_PIECES = 3_996  # with 100 sentinels 4,096 rows: gin/demo.gin's VOCAB_SIZE
NUM_FILLED = 64  # tokens that transformers writes for a text, gaps' names included
VOCABULARY_LETTERS = 20_000_000  # of the corpus, to train the vocabulary on


def _vocabulary(data: DataConfig) -> None:
    """Trains the vocabulary on the training split of the corpus, unless it exists."""
    from limba.data.tasks import source_of_files
    from limba.data.vocabulary.train import making, train_vocabulary

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

    with making(str(path)):
        count = train_vocabulary(texts(), NUM_PIECES, str(path))
    print(f"Trained a SentencePiece vocabulary of {count:,} pieces and 100 sentinels: {path}", flush=True)


def _convert(model_dir: str, step: int, masked: Sequence[str]) -> None:
    """Converts the newest checkpoint for transformers, proves it, and fills the gaps with transformers."""
    from limba.cli.use import huggingface
    from limba.export import proof as check

    print("The model as a folder for Hugging Face's transformers:")
    huggingface.run(["export", model_dir])
    if not check.has_transformers():
        print("To see transformers fill the gaps: bash launch/setup.sh tests installs it and torch; run this again.")
        return
    from limba.export import infill

    print()
    for number, text in enumerate(infill.fill(Path(model_dir) / "huggingface" / f"step_{step}", masked, NUM_FILLED), 1):
        print(f"{number}. as transformers fills them: {text}\n")


def run(argv: Sequence[str]) -> None:
    """Runs the demo; raises the errors of `limba.cli.program.CODES`."""
    given = os.environ.get("CORPUS") or None
    name = "demo" if given is None else "demo-" + hashlib.blake2b(given.encode(), digest_size=4).hexdigest()
    directory = os.environ.get("MODEL_DIR") or str((Path.cwd() if ROOT.name == "shipped" else ROOT) / "runs" / name)
    if "://" in directory:
        raise InputError(f"MODEL_DIR is {directory}; the demo writes to a local directory, so give one.")
    corpus = given or f"{directory}/corpus.jsonl"
    arguments = [
        "--gin_file=gin/demo.gin",
        f"--gin.MODEL_DIR={directory}",
        f"--gin.VOCABULARY={directory}/vocabulary.model",
        f"--gin.CORPUS={corpus}",
    ]
    if os.environ.get("STEPS"):
        arguments.append(f"--gin.TRAIN_STEPS={os.environ['STEPS']}")
    with environment.quiet_imports():
        config, text, names, _ = parse_args([*arguments, *argv], "demo", ABOUT)
        from limba.data.preparation.demo_corpus import pydoc_corpus
        from limba.evaluation import report
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

    with names_said(names):
        result = train(config, text)
    if result["interrupted"]:
        raise RestartError(f"The run was asked to stop after step {result['step']:,}; the same command resumes it.")
    print("\n" + report.summary(config))
    print(f"picture             {report.plot_loss(config)}\n")
    masked = []
    for number, (text, filled, with_gaps) in enumerate(report.infills(config), 1):
        print(f"{number}. validation, gaps in brackets: {text}\n   as the model fills them:      {filled}\n")
        masked.append(with_gaps)
    _convert(config.model_dir, result["step"], masked)
