"""Evaluates a trained model: `python -m launch.evaluate --gin_file=MODEL_DIR/config.gin`; --help says more."""

from __future__ import annotations

import json
from collections.abc import Sequence

from limba.cli.use import trained_model
from limba.config import InputError

ABOUT = """usage: python -m launch.evaluate --gin_file=FILE [--gin.NAME=VALUE ...]

Gives loss, token accuracy, perplexity and bits per byte, also by character set, on the held-out text (all of it with
EVAL_STEPS = None). Tasks with metrics: writes text for their held-out examples and judges it, beside the figures of
copying the inputs. Language models: goes on with the run's prompts. Results: a table here, JSON and Markdown in
MODEL_DIR/evaluations, TensorBoard.

    --num_examples=N           that text is written for; default the run's, or 1,000 where that is 0
    --split=validation         another split of the corpus, such as test"""
FLAGS = {"checkpoint": "", "num_examples": "", "split": ""}


def run(argv: Sequence[str]) -> None:
    """Evaluates the model that the flags name and prints the table; raises ConfigError."""
    flags, rest = trained_model.split_flags(argv, FLAGS, ABOUT)
    if not flags["num_examples"].isdigit() and flags["num_examples"]:
        raise InputError(f"--num_examples is {flags['num_examples']}; give a whole number.")
    trained = trained_model.load(rest, flags["checkpoint"])
    import jax
    from etils import epath

    from limba.evaluation import text as evaluate
    from limba.inference.continuations import sampler
    from limba.training.logging import Metrics

    figures, copied = evaluate.evaluate(
        trained.config,
        trained.task,
        trained.lengths,
        trained.model,
        trained.mesh,
        trained.params,
        trained.step,
        num_examples=int(flags["num_examples"] or trained.config.evaluation.num_examples or 1_000),
        split=flags["split"] or trained.config.data.validation_split,
    )
    sample = sampler(trained.model, trained.vocabulary, trained.config.evaluation)
    texts = sample(trained.params) if sample else {}
    columns = {**({"copied input": copied} if copied else {}), f"step {trained.step:,}": figures}
    table = evaluate.markdown_table(columns)
    if jax.process_index() == 0:
        directory = epath.Path(trained.config.model_dir) / "evaluations"
        directory.mkdir(parents=True, exist_ok=True)
        about = {"checkpoint": trained.path, "step": trained.step, "figures": figures, "copied": copied, "texts": texts}
        text = json.dumps(about, indent=1, ensure_ascii=False) + "\n"
        name = f"evaluation-{trained.step}" + (f"-{flags['split']}" if flags["split"] else "")
        (directory / f"{name}.json").write_text(text)
        (directory / f"{name}.md").write_text(table + "\n")
        with Metrics(trained.config.model_dir, trained.step, trained.config.train_steps, True) as metrics:
            metrics.write("evaluation" + (f"/{flags['split']}" if flags["split"] else ""), trained.step, figures)
    print(f"{trained.path} step {trained.step:,}\n\n{table}")
    for prompt, several in texts.items():
        print("\n".join([f"\n{prompt!r} goes on:", *several]))
