"""Evaluates a trained model on its task."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from limba.cli import model
from limba.cli.arguments import Parser
from limba.config import InputError, RunConfig, named
from limba.config.waiting import waiting

if TYPE_CHECKING:
    from etils import epath

    from limba.evaluation.hidden_words import Hits
    from limba.inference.load import TrainedModel

logger = logging.getLogger(__name__)

ABOUT = """Computes loss, token accuracy, perplexity and bits per byte, also by character set, on validation text (all
of it with --gin.EVAL_STEPS=None). For tasks with metrics it also generates text for validation examples and computes
their metrics, beside what copying the inputs would give. A model that fills gaps is asked for hidden words of the text,
beside its five commonest words. A language model continues the run's prompts. A short form is printed; all figures go
to MODEL_DIR/evaluations (JSON, Markdown; each under a new name, with the split) and TensorBoard.

    limba evaluate MODEL_DIR --num_examples=500
    limba evaluate --gin_file=gin/models/t5_1_1/base.gin --gin_file=gin/runs/evaluate.gin --checkpoint=FOLDER"""

NUM_GAPS = 200  # hidden words: a share of them is right to about three percentage points
NUM_EXAMPLES = 1_000  # for which text is generated, where neither the user nor the run says how many


def _parser() -> Parser:
    parser = Parser("evaluate", ABOUT)
    model.add_flags(parser)
    parser.add_argument(
        "--num_examples", type=model.whole_number, help="to generate text for; default: the run's, or 1,000"
    )
    parser.add_argument(
        "--num_gaps", type=int, default=NUM_GAPS, metavar="N",
        help=f"hidden words that a model with gaps is asked for; 0: none; default: {NUM_GAPS}",
    )  # fmt: skip
    parser.add_argument("--split", help="split to evaluate, such as test; default: validation")
    return parser


def run(argv: Sequence[str]) -> None:
    """Evaluates the model that the flags name, prints its figures beside their floors; raises InputError."""
    args = _parser().parse(argv)
    if args.num_gaps < 0:
        raise InputError(f"--num_gaps is {args.num_gaps}; give a number of gaps, or 0.")
    trained = model.opened(args)
    config = trained.source.run
    if config is None:
        raise InputError(
            f"{trained.path} names no task; add --gin_file=gin/models/FAMILY/SIZE.gin"
            " --gin_file=gin/runs/evaluate.gin, and name it with --checkpoint."
        )
    import jax

    from limba.training.metrics.logging import Metrics

    results = _evaluated(args, trained, config)
    if jax.process_index() != 0:  # all processes compute, and the first one writes
        return
    directory = _written(trained, results, config.model_dir)
    _print(trained, results, directory)
    kind = f"evaluation/{args.split}" if args.split else "evaluation"
    with Metrics(config.model_dir, trained.step, config.train_steps, True, only_adds=True) as metrics:
        metrics.write(kind, trained.step, results.figures)


class Results(NamedTuple):
    """What an evaluation has computed."""

    split: str
    figures: Mapping[str, float]
    copied: Mapping[str, float]  # the metrics of the inputs themselves
    texts: Mapping[str, Sequence[str]]  # by prompt
    hits: Hits | None
    change: str  # of the text since the checkpoint was saved; "" where none is known


def _evaluated(args: argparse.Namespace, trained: TrainedModel, config: RunConfig) -> Results:
    import jax

    from limba.evaluation import hidden_words
    from limba.evaluation import text as evaluation
    from limba.evaluation.own_text import change_of_text

    split = args.split or config.data.validation_split
    names = {}
    if args.split:  # else the split is the run's own, and keeps its name
        names = {"DataConfig.train_split": "--split", "DataConfig.validation_split": "--split"}
    num_examples = args.num_examples or config.evaluation.num_examples or NUM_EXAMPLES
    hits = None
    with named(names):
        change = change_of_text(trained, split)
    if change and jax.process_index() == 0:
        logger.warning(
            "%s. The figures below are of this other text, not of the run's own: evaluate in the directory in which the"
            " run was started, or restore the files.",
            change,
        )
    with named(names), waiting(f"evaluating {split}", shows=jax.process_index() == 0):
        figures, copied = evaluation.evaluate(trained, num_examples=num_examples, split=split)
        if args.num_gaps:
            hits = hidden_words.of_split(trained, split, args.num_gaps)
    input_end = trained.special_ids.input_end
    sample = evaluation.sampler(
        trained.network, trained.mesh, trained.vocabulary, config.evaluation, trained.reads_prefix, input_end
    )
    texts = sample(trained.params) if sample else {}
    return Results(split, figures, copied, texts, hits, change)


def _written(trained: TrainedModel, results: Results, model_dir: str) -> epath.Path:
    """Writes all figures as JSON and as a Markdown table; returns their directory."""
    from etils import epath

    from limba.evaluation import text as evaluation
    from limba.storage.files import write_whole

    directory = epath.Path(model_dir) / "evaluations"
    directory.mkdir(parents=True, exist_ok=True)
    document = {
        "checkpoint": trained.path,
        "step": trained.step,
        "split": results.split,
        "text_changed": results.change or None,
        "figures": results.figures,
        "copied": results.copied,
        "texts": results.texts,
        "gaps": results.hits._asdict() if results.hits else None,
    }
    path = evaluation.unused(directory, f"evaluation-{trained.step}-{results.split}", ".json", ".md")
    write_whole(path, json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    columns = {"copied input": results.copied} if results.copied else {}
    columns[f"step {trained.step:,}"] = results.figures
    write_whole(path.with_suffix(".md"), evaluation.markdown_table(columns) + "\n")
    return directory


def _print(trained: TrainedModel, results: Results, directory: epath.Path) -> None:
    from limba.storage.files import as_typed_here

    name = f"{as_typed_here(trained.path)} step {trained.step:,}, {results.split}"
    print(f"{name} (all figures: {as_typed_here(str(directory))}):")
    for row in _rows(results.figures, results.copied, results.hits):
        print(f"  {row}")
    network = trained.network.config
    fills_gaps = network.is_encoder or not network.is_decoder_only
    for prompt, several in results.texts.items():
        print("\n".join([f"\n{prompt!r} is {'filled' if fills_gaps else 'continued'}:", *several]), flush=True)


def _rows(figures: Mapping[str, float], copied: Mapping[str, float], hits: Hits | None) -> Iterator[str]:
    """Yields the figures that a reader looks for first, each beside the figure to beat."""
    forms = {
        "loss": "loss {:.4f}",
        "accuracy": "token accuracy {:.1%}",
        "perplexity": "perplexity {:.2f}",
        "bits_per_byte": "{:.3f} bits per byte",
    }
    shown = [form.format(figures[name]) for name, form in forms.items() if name in figures and name not in copied]
    if shown:
        yield " | ".join(shown)
    for name, value in figures.items():
        if name in copied and "letter/" not in name:
            yield f"{name} {value:.2f} (the input, copied: {copied[name]:.2f})"
    if hits:
        words = ", ".join(hits.commonest)
        yield f"the hidden word is among its five likeliest in {hits.of_model / hits.gaps:.1%} of {hits.gaps} gaps"
        yield f"  and among the five commonest words ({words}) in {hits.of_commonest / hits.gaps:.1%}"
