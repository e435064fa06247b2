"""`limba inspect`: shows the documents and examples of a task."""

from __future__ import annotations

from collections.abc import Sequence

from limba.api import Parser, add_import_flag, look_at
from limba.config import InputError, environment, named
from limba.config.waiting import waiting
from limba.tools.corpus import task_flags

ABOUT = """Shows the text, pieces, inputs and targets of a task, and how well its vocabulary and lengths fit.

    limba inspect 'data/*.txt' --vocabulary=byte
    limba inspect 'data/*.jsonl' --task=rlm_span_corruption_files --vocabulary=my.model

Or the documents of the batch of a step that a run has read, or will read:

    limba inspect MODEL_DIR --step=81204"""


@named(task_flags.NAMES)
def run(argv: Sequence[str]) -> None:
    """Prints the requested inspection; raises InputError."""
    parser = Parser("inspect", ABOUT)
    task_flags.add_to(parser)
    group = parser.add_argument_group("output")
    group.add_argument("--num", type=int, default=5, help="number of documents and examples to show")
    group.add_argument("--inputs", type=int, default=512, help="length of the inputs; the targets' length is derived")
    group.add_argument("--sequence", type=int, metavar="256", help="show rows of this length for a decoder-only model")
    group.add_argument("--objective", metavar="NAME", help="objective that replaces the task's: ul2, prefix_lm, …")
    group.add_argument("--sample_bytes", type=int, default=4_000_000, help="bytes of text to sample for the figures")
    group.add_argument("--seed", type=int, default=0, help="seed of the sample and the masks")
    of_run = parser.add_argument_group("a step of a run, instead of a task: FILES is then the directory of the run")
    of_run.add_argument("--step", type=int, metavar="N", help="show the documents of the batch of this step")
    of_run.add_argument(
        "--rows", choices=("all", "stood_out"), default="all", help="of all its rows, or of those that the guard names"
    )
    add_import_flag(parser)
    arguments = parser.parse(argv)
    if arguments.step is not None:
        if not arguments.files:
            raise InputError(f"--step={arguments.step} is a step of a run; name the directory of the run too.")
        with environment.quiet_imports():
            from limba.tools.corpus import step
        stood_out = arguments.rows == "stood_out"
        for line in step.lines(arguments.files, arguments.step, stood_out, arguments.imports):
            print(line)
        return
    if arguments.num < 0 or arguments.sample_bytes < 1:
        raise InputError(f"--num is {arguments.num} and --sample_bytes {arguments.sample_bytes}; give numbers above 0.")
    recipe = task_flags.recipe(arguments, arguments.inputs)
    if not arguments.task and not arguments.vocabulary:
        if _is_run(arguments.files):
            raise InputError(
                f"{arguments.files} is a run; give --step=N for the documents of one of its steps, or the files of its"
                " text with their --vocabulary."
            )
        raise InputError("Files without a task have no vocabulary; give --vocabulary=PATH or byte.")
    task = recipe()
    with environment.quiet_imports():
        import rich.console

        from limba.tools.corpus import inspection
    is_sequence = arguments.sequence is not None
    length = arguments.sequence or arguments.inputs
    with waiting("reading"):
        inspected = inspection.inspect_task(
            task, arguments.split, length, arguments.sample_bytes, arguments.seed, is_sequence
        )
    console = rich.console.Console(highlight=False, soft_wrap=True)
    inspection.show(inspected, console, arguments.num)


def _is_run(files: str) -> bool:
    """Returns whether what is given as files is the directory of a run on this machine."""
    if "://" in files:  # an address, a pattern or a member of an archive, which only the sources understand
        return False
    try:
        opened = look_at(files)
    except (InputError, OSError):
        return False
    return opened is not None and opened.is_own_run
