"""Evaluates a trained model on its task."""

import json
from collections.abc import Sequence

from limba.cli import model
from limba.cli.arguments import Parser
from limba.config import InputError, named
from limba.config.waiting import waiting

ABOUT = """Computes loss, token accuracy, perplexity and bits per byte, also by character set, on validation text (all
of it with --gin.EVAL_STEPS=None). For tasks with metrics it also generates text for validation examples and computes
their metrics, beside those of copied inputs. A language model continues the run's prompts. The results are printed as
a table and written to MODEL_DIR/evaluations (JSON, Markdown; each under a new name, with the split) and TensorBoard.

    limba evaluate MODEL_DIR --num_examples=500
    limba evaluate --gin_file=gin/models/t5_1_1/base.gin --gin_file=gin/runs/evaluate.gin --checkpoint=FOLDER"""


def run(argv: Sequence[str]) -> None:
    """Evaluates the model that the flags name and prints the table; raises InputError."""
    parser = Parser("evaluate", ABOUT)
    model.add_flags(parser)
    parser.add_argument(
        "--num_examples", type=model.whole_number, help="to generate text for; default: the run's, or 1,000"
    )
    parser.add_argument("--split", help="split to evaluate, such as test; default: validation")
    given = parser.parse(argv)
    trained = model.opened(given)
    config = trained.source.run
    if config is None:
        raise InputError(
            f"{trained.path} names no task; add --gin_file=gin/models/FAMILY/SIZE.gin"
            " --gin_file=gin/runs/evaluate.gin, and name it with --checkpoint."
        )
    import jax
    from etils import epath

    from limba.evaluation import text as evaluation
    from limba.storage.files import write_whole
    from limba.training.metrics.logging import Metrics

    split = given.split or config.data.validation_split
    with named({f"DataConfig.{kind}_split": "--split" for kind in ("train", "validation") if given.split}):
        number = given.num_examples or config.evaluation.num_examples or 1_000
        with waiting(f"evaluating {split}", shows=jax.process_index() == 0):
            figures, copied = evaluation.evaluate(trained, num_examples=number, split=split)
    sample = evaluation.sampler(
        trained.network, trained.mesh, trained.vocabulary, config.evaluation, trained.reads_prefix
    )
    texts = sample(trained.params) if sample else {}
    columns = {**({"copied input": copied} if copied else {}), f"step {trained.step:,}": figures}
    table = evaluation.markdown_table(columns)
    print(f"{trained.path} step {trained.step:,}\n\n{table}")
    for prompt, several in texts.items():
        fills = trained.network.config.is_encoder or not trained.network.config.is_decoder_only
        print("\n".join([f"\n{prompt!r} is {'filled' if fills else 'continued'}:", *several]), flush=True)
    if jax.process_index() == 0:
        directory = epath.Path(config.model_dir) / "evaluations"
        directory.mkdir(parents=True, exist_ok=True)
        about = {"checkpoint": trained.path, "step": trained.step, "split": split, "figures": figures}
        text = json.dumps({**about, "copied": copied, "texts": texts}, indent=1, ensure_ascii=False) + "\n"
        path = evaluation.unused(directory, f"evaluation-{trained.step}-{split}", ".json", ".md")
        write_whole(path, text)
        write_whole(path.with_suffix(".md"), table + "\n")
        with Metrics(config.model_dir, trained.step, config.train_steps, True) as metrics:
            metrics.write("evaluation" + (f"/{given.split}" if given.split else ""), trained.step, figures)
