"""Evaluates a trained model: `python -m launch.evaluate --gin_file=MODEL_DIR/config.gin`; --help says more."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from launch import environment, trained_model

ABOUT = """usage: python -m launch.evaluate --gin_file=FILE [--gin.NAME=VALUE ...]

Writes text for the held-out examples of the run's tasks, judges it by their metrics, and gives loss, token accuracy and
bits per byte, beside the figures of copying the inputs. Results: a table here, JSON and Markdown in
MODEL_DIR/evaluations, TensorBoard.

    --num_examples=N           that text is written for; default the run's, or 1,000 where that is 0
    --split=validation         another split of the corpus, such as test"""
FLAGS = {"checkpoint": "", "num_examples": "", "split": ""}


def run(argv: Sequence[str]) -> None:
    """Evaluates the model that the flags name and prints the table; raises ConfigError."""
    flags, rest = trained_model.split_flags(argv, FLAGS, ABOUT)
    trained = trained_model.load(rest, flags["checkpoint"])
    import jax
    from etils import epath

    from limba import evaluate
    from limba.metrics import Metrics

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
    columns = {**({"copied input": copied} if copied else {}), f"step {trained.step:,}": figures}
    table = evaluate.markdown_table(columns)
    if jax.process_index() == 0:
        directory = epath.Path(trained.config.model_dir) / "evaluations"
        directory.mkdir(parents=True, exist_ok=True)
        about = {"checkpoint": trained.path, "step": trained.step, "figures": figures, "copied": copied}
        text = json.dumps(about, indent=1, ensure_ascii=False) + "\n"
        (directory / f"evaluation-{trained.step}.json").write_text(text)
        (directory / f"evaluation-{trained.step}.md").write_text(table + "\n")
        with Metrics(trained.config.model_dir, trained.step, trained.config.train_steps, True) as metrics:
            metrics.write("evaluation", trained.step, figures)
    print(f"{trained.path} step {trained.step:,}\n\n{table}")


if __name__ == "__main__":
    environment.set_variables()
    environment.use_large_pages()
    sys.exit(environment.exit_code(run, sys.argv[1:]))
