"""`limba branch` decays the learning rate from a checkpoint in a directory of its own; `limba merge` averages some."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from etils import epath

from limba.cli import model, train
from limba.cli.arguments import Parser
from limba.cli.gin import GinRun, read_own, text_elsewhere
from limba.cli.gin.statements import OWN_FILE
from limba.config import InputError, environment, named
from limba.sharding import preemption
from limba.storage.files import read_text, resolved

if TYPE_CHECKING:
    from limba.config import ScheduleConfig
    from limba.inference.source import Source
    from limba.training.checkpoints.branches import Branch

ABOUT = """Trains on from a checkpoint of a run with a learning rate that falls to 0, in a directory of its own
(docs/development/decay_and_merge.md). The branch has the parameters, the optimizer state and the data position of that
step, and ends STEPS steps later. The run is not changed, and may go on training.

    limba branch MODEL_DIR --decay=8000
    limba branch MODEL_DIR --decay=8000 --step=80000 --shape=linear --output=DIR --gin.EVAL_PERIOD=500

The same command resumes a branch that was interrupted: without --step the one that has begun, and where all have ended
a new one from the newest checkpoint. On several hosts all start the same command.

NAME in --gin.NAME=VALUE is a name of MODEL_DIR/config.gin or a field of limba/config/. A branch is exported and
uploaded nowhere unless these flags say so (--gin.EXPORT_TO, --gin.HUB_MODEL_ID)."""
MERGE = """Averages the parameters of the last checkpoints of a run, and writes the result as a new run directory that
limba evaluate, convert and generate read, and INITIAL_CHECKPOINT_PATH too. Averaging checkpoints of a stable learning
rate does about what a decay of the rate would have done (docs/development/decay_and_merge.md). A run keeps its 5 newest
checkpoints unless CHECKPOINTS_KEPT says otherwise.

    limba merge MODEL_DIR --last=5
    limba merge MODEL_DIR --steps=60000,80000,100000 --weights=wsm --output=DIR
    limba merge MODEL_DIR MODEL_DIR2 --output=DIR

Given several runs of the same network, it averages their newest checkpoints. OUT/merge.json says which steps are in the
average, and with which weights. Optimizer state and data position are taken from the newest step. config.gin goes with
them; one that was edited by hand, with an include or a macro that nothing uses, is refused."""
NO_RUN = "{} is an imported model and not a run; start a run from it with limba train."
# What errors name -> what the user of a command has typed, or can type.
NAMES_OF_MERGING = {f"`{name}`": f"--{name}" for name in ("last", "steps", "weights", "shape", "ema_decay")}
NAMES = {"CheckpointConfig.keep": "CHECKPOINTS_KEPT"}
# Names of gin files that a branch decides itself -> the flag that says so.
DECIDED_BY = {
    "MODEL_DIR": "--output",
    "config.RunConfig.model_dir": "--output",
    "TRAIN_STEPS": "--decay",
    "config.RunConfig.train_steps": "--decay",
}
# A branch is not published in place of the run that it comes from.
NOWHERE = {"RunConfig.export_to": None, "RunConfig.hub_model_id": None}


def run(argv: Sequence[str]) -> None:
    """Begins or resumes the branch that the flags describe, and trains it to its end."""
    parser = Parser("branch", ABOUT)
    parser.add_object("model", "MODEL_DIR", "a run directory, a path or gs://…")
    parser.add_argument("--decay", type=model.whole_number, metavar="STEPS", help="number of steps of the decay")
    parser.add_argument("--step", type=model.whole_number, help="the checkpoint to begin at; default: the newest")
    parser.add_argument(
        "--shape", choices=("linear", "1-sqrt", "cosine", "constant"), default="1-sqrt",
        help="how the rate falls (default 1-sqrt); constant: not at all, to compare with",
    )  # fmt: skip
    parser.add_argument("--output", metavar="DIR", help="its directory; default: MODEL_DIR-decay-STEP-STEPS-SHAPE")
    parser.add_argument("--gin.NAME", metavar="VALUE", help="set NAME; replaces the value of the run")
    model.add_import_flag(parser)
    args = parser.parse(argv)
    if args.model is None:
        raise InputError("No run is given; write limba branch MODEL_DIR --decay=STEPS.")
    if not args.decay:
        raise InputError(f"No --decay is given, the number of steps; write limba branch {args.model} --decay=STEPS.")
    for override in args.gin:
        name = override.partition("=")[0]
        if name in DECIDED_BY:
            raise InputError(f"--gin.{name} is what {DECIDED_BY[name]} of a branch says; leave it out.")
        if name.startswith("config.ScheduleConfig."):
            raise InputError(f"--gin.{name} is what --decay, --step and --shape of a branch say; leave it out.")
    with preemption.listening():
        with environment.quiet_imports():
            import limba.run  # noqa: F401  imports JAX
        from limba.sharding import joining, others

        with others.ending_together(), named(NAMES):
            joining.join_hosts()
            described = _begun(args)
        train.to_end(described)


def _begun(args: argparse.Namespace) -> GinRun:
    """Returns the run of the branch, whose directory then has a checkpoint; all processes call it."""
    from limba.formats.limba_checkpoint import checkpoints_of
    from limba.sharding.agreement import entered_by_first, is_first, of_first, together
    from limba.training.checkpoints import branches

    # The first process looks, and tells the others: the run may save a checkpoint while they look.
    text = ""
    with together():
        if is_first():
            branch = _chosen(args)
            out = str(resolved(args.output or branch.name()))
            has_begun = branches.found_at(out) is not None and bool(checkpoints_of(resolved(out)))
            text = json.dumps([dataclasses.asdict(branch), out, has_begun])
    fields, out, has_begun = json.loads(of_first(text))
    branch = branches.Branch(**fields)
    if has_begun:
        begun = model.find(out, imports=args.imports)
        described = _read(begun, args, {}, {"RunConfig.model_dir": out})
        if args.gin and begun.run is not None:
            _check_schedule(described.config.optimizer.schedule, begun.run.optimizer.schedule)
        return described
    source = model.find(branch.run, imports=args.imports)
    if source.run is None:
        raise InputError(NO_RUN.format(branch.run))
    schedule = branches.schedule_of(source.run, branch)
    fixed = {"RunConfig.model_dir": out, "RunConfig.train_steps": branch.end}
    for name in ("branch_step", "branch_steps", "branch_shape", "planned_steps"):
        fixed[f"ScheduleConfig.{name}"] = getattr(schedule, name)
    described = _read(source, args, NOWHERE, fixed)
    if args.gin:
        _check_schedule(described.config.optimizer.schedule, schedule)
    with named(described.names):
        branches.check_data(described.config, branch)
        texts = {"config.gin": described.text} if described.text else {}
        with entered_by_first(branches.begun(branch, described.config, texts)):
            pass
    return described


def _check_schedule(chosen: ScheduleConfig, of_branch: ScheduleConfig) -> None:
    """Raises InputError where an override, such as the macro LEARNING_RATE, changes what a branch takes from its run.

    The rate of the steps before the branch would be another one too, and the rate would jump.
    """
    for field in dataclasses.fields(of_branch):
        value = getattr(chosen, field.name)
        expected = getattr(of_branch, field.name)
        if value != expected:
            raise InputError(
                f"ScheduleConfig.{field.name} is {value!r} by a --gin flag, and {expected!r} in the run, whose rate the"
                " branch has up to its step; leave that flag out."
            )


def _chosen(args: argparse.Namespace) -> Branch:
    """Returns the branch that the flags mean; InputError for a path without a run, unless its branch has begun."""
    from limba.formats.limba_checkpoint import checkpoints_of
    from limba.formats.open import LIMBA, look_at, open_path
    from limba.training.checkpoints import branches

    step = args.step
    opened = look_at(args.model)
    if opened is None:
        try:  # a branch that has begun is resumed, though its run may be gone
            return branches.chosen(str(resolved(args.model)), [], args.decay, args.shape, step, args.output)
        except ValueError:  # an InputError, or an error of hf://'s own file system
            open_path(args.model, with_weights=False)  # raises the sentence that says what is there instead
            raise InputError(NO_RUN.format(args.model)) from None
    if opened.kind != LIMBA:
        raise InputError(NO_RUN.format(args.model))
    if opened.is_checkpoint and step is None:  # MODEL_DIR/checkpoints/<step>
        step = int(opened.newest.name)
    saved_steps = list(checkpoints_of(opened.directory))
    return branches.chosen(str(opened.directory), saved_steps, args.decay, args.shape, step, args.output)


def _read(
    source: Source, args: argparse.Namespace, before: Mapping[str, object], fixed: Mapping[str, object]
) -> GinRun:
    """Returns the run of a directory with the overrides of the flags, between the fields `before` and the `fixed`."""
    from limba.inference.source import import_tasks
    from limba.training.checkpoints.branches import changed

    run = source.run
    file = source.directory / OWN_FILE
    assert run is not None
    if file.exists():
        return read_own(read_text(file), str(file), args.gin, args.imports, before, fixed)
    if args.gin:
        raise InputError(
            f"--gin.{args.gin[0].partition('=')[0]} changes a run's config.gin, and {source.path} has none; leave it"
            " out."
        )
    import_tasks(run.data.task_modules, source.path, args.imports, str(source.directory))
    return GinRun(changed(run, {**before, **fixed}), "", {})


def merge(argv: Sequence[str]) -> None:
    """Merges the checkpoints that the flags name, and prints where the result is; raises InputError."""
    parser = Parser("merge", MERGE)
    help_text = "a run directory, a path or gs://…; several: one checkpoint of each"
    parser.add_object("model", "MODEL_DIR", help_text, takes_several=True, is_run=True)
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
    args = parser.parse(argv)
    if args.steps is not None and not re.fullmatch(r"\d+(,\d+)*", args.steps):
        raise InputError(f"--steps is {args.steps}; give numbers with commas, such as 1000,2000.")
    steps = [] if args.steps is None else [int(step) for step in args.steps.split(",")]
    with environment.quiet_imports(), named(NAMES_OF_MERGING):
        from limba.export import merging

        weighting = merging.Weighting(args.weights, args.ema_decay, args.shape)
        sources = [model.find(path, imports=args.imports) for path in args.model]
        parts = merging.parts_of(sources, args.last, steps)
        if args.output is None and len(sources) > 1:
            raise InputError("Several runs are named, so the result has no name; give --output=DIR.")
        directory = str(sources[-1].directory).rstrip("/")
        out = args.output or f"{directory}-merge-{parts[-1].step}-{args.weights}-{len(parts)}"
        print(merging.merge(parts, weighting, out, _text_in(parts[-1].source.directory, out)))


def _text_in(directory: epath.Path, out: str) -> dict[str, str]:
    """Returns {"config.gin": the text of a run's file, with `out` as its directory}; {} if the run has none."""
    file = directory / OWN_FILE
    if not file.exists():
        return {}
    return {OWN_FILE: text_elsewhere(read_text(file), str(file), str(resolved(out)))}
