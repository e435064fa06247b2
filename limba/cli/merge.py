"""`limba merge`: averages the checkpoints of a run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from limba.cli import model
from limba.cli.arguments import Parser
from limba.config import InputError, environment, named

if TYPE_CHECKING:
    from etils import epath

ABOUT = """Averages the parameters of the last checkpoints of a run, and writes the result as a new run directory that
limba evaluate, convert and generate read, and INITIAL_CHECKPOINT_PATH too. Averaging checkpoints of a stable learning
rate does about what a decay of the rate would have done (docs/decay_and_merge.md). A run keeps its 5 newest
checkpoints unless CHECKPOINTS_KEPT says otherwise.

    limba merge MODEL_DIR --last=5
    limba merge MODEL_DIR --steps=60000,80000,100000 --weights=wsm --output=DIR
    limba merge MODEL_DIR MODEL_DIR2 --output=DIR

Of several runs of the same network the newest checkpoints are averaged. OUT/merge.json says which steps are in the
average, and with which weights. Optimizer state and data position are those of the newest step."""
NAMES = {f"`{name}`": f"--{name}" for name in ("last", "steps", "weights", "shape", "ema_decay")}


MACRO = re.compile(r"^MODEL_DIR = .*(?:\n {4}.*)*$", re.MULTILINE)
FIELD = re.compile(r"^config\.RunConfig\.model_dir = (?!%).*(?:\n {4}.*)*$", re.MULTILINE)


def run(argv: Sequence[str]) -> None:
    """Merges the checkpoints that the flags name, and prints where the result is; raises InputError."""
    parser = Parser("merge", ABOUT)
    about = "a run directory, a path or gs://…; several: one checkpoint of each"
    parser.add_object("model", "MODEL_DIR", about, takes_several=True, is_run=True)
    parser.add_argument("--last", type=int, metavar="K", help="how many of the newest checkpoints; default: all kept")
    parser.add_argument("--steps", help="the steps to average, such as 1000,2000, instead of --last")
    parser.add_argument("--weights", choices=("uniform", "ema", "wsm"), default="uniform", help="default: uniform")
    parser.add_argument(
        "--shape", choices=("linear", "1-sqrt", "cosine"), default="1-sqrt",
        help="with --weights=wsm: the decay that the average stands for (default 1-sqrt)",
    )  # fmt: skip
    parser.add_argument(
        "--ema_decay", type=float, default=0.8,
        help="with --weights=ema: what is kept of the average at each newer checkpoint (default 0.8)",
    )  # fmt: skip
    parser.add_argument("--output", metavar="DIR", help="a new run directory; default: MODEL_DIR-merge-STEP-WEIGHTS-K")
    model.add_import_flag(parser)
    given = parser.parse(argv)
    if given.steps is not None and not re.fullmatch(r"\d+(,\d+)*", given.steps):
        raise InputError(f"--steps is {given.steps}; give numbers with commas, such as 1000,2000.")
    with environment.quiet_imports(), named(NAMES):
        from limba.export import merging

        weighting = merging.Weighting(given.weights, given.ema_decay, given.shape)
        sources = [model.find(path, imports=given.imports) for path in given.model]
        parts = merging.parts_of(sources, given.last, [int(each) for each in (given.steps or "").split(",") if each])
        if given.output is None and len(sources) > 1:
            raise InputError("Several runs are named, so the result has no name; give --output=DIR.")
        directory = str(sources[-1].directory).rstrip("/")
        out = given.output or f"{directory}-merge-{parts[-1].step}-{given.weights}-{len(parts)}"
        print(merging.merge(parts, weighting, out, _text_in(parts[-1].source.directory, out)))


def _text_in(directory: epath.Path, out: str) -> dict[str, str]:
    """Returns {"config.gin": the text of a run's, with `out` as its MODEL_DIR}; {} if the run has none."""
    from limba.cli.gin.statements import OWN_FILE
    from limba.storage.files import read_text, resolved

    file = directory / OWN_FILE
    if not file.exists():
        return {}
    place = repr(str(resolved(out)))
    text = MACRO.sub(lambda _: f"MODEL_DIR = {place}", read_text(file))
    return {OWN_FILE: FIELD.sub(lambda _: f"config.RunConfig.model_dir = {place}", text)}
