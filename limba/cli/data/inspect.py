"""Shows what a task makes of its text: `python -m launch.inspect --help`."""

from __future__ import annotations

from collections.abc import Sequence

from limba.cli.data import task_flags
from limba.config import InputError, environment

ABOUT = """Shows a task's text, pieces, inputs and targets, and how well its vocabulary and lengths fit.

    python -m launch.inspect --task=rlm_span_corruption_files --files='data/*.jsonl' --vocabulary=my.model
    python -m launch.inspect --files='data/*.txt' --vocabulary=byte --plot=lengths.png"""


@task_flags.says_flags
def run(argv: Sequence[str]) -> None:
    """Prints the inspection that the flags ask for; raises ConfigError."""
    parser = task_flags.Parser("inspect", ABOUT)
    task_flags.add_to(parser)
    group = parser.add_argument_group("what is shown")
    group.add_argument("--num", type=int, default=5, help="documents and examples")
    group.add_argument("--inputs", type=int, default=512, help="length of the inputs, which the targets follow from")
    group.add_argument("--sequence", type=int, metavar="256", help="instead, rows of a decoder-only model, so long")
    group.add_argument("--objective", metavar="NAME", help="instead of the task's own, such as ul2 or prefix_lm")
    group.add_argument("--sample_bytes", type=int, default=4_000_000, help="of text that the figures are of")
    group.add_argument("--seed", type=int, default=0, help="of the sample and the masks")
    group.add_argument("--plot", metavar="FILE.png", help="write the histogram of lengths there too")
    arguments = parser.parse_args(argv)
    if arguments.num < 0 or arguments.sample_bytes < 1:
        raise InputError(f"--num is {arguments.num} and --sample_bytes {arguments.sample_bytes}; give numbers above 0.")
    recipe = task_flags.recipe(arguments, arguments.inputs)
    if not arguments.task and not arguments.vocabulary:
        raise InputError("--files alone have no vocabulary to be looked at with; give --vocabulary=PATH or byte.")
    task = recipe()
    with environment.quiet_imports():
        import rich.console

        from limba.data.preparation import inspect as inspection
    if arguments.plot:
        inspection.check_picture(arguments.plot)
    length, is_sequence = arguments.sequence or arguments.inputs, arguments.sequence is not None
    found = inspection.inspect_task(task, arguments.split, length, arguments.sample_bytes, arguments.seed, is_sequence)
    console = rich.console.Console(highlight=False, soft_wrap=True)
    inspection.show(found, console, arguments.num)
    if arguments.plot:
        inspection.plot_lengths(found, arguments.plot)
        console.print(f"picture: {arguments.plot}")
