"""The command `limba`: one table of commands, each a function of the arguments."""

import importlib
import os
import sys
from collections.abc import Callable, Sequence

import limba
from limba.cli import program
from limba.config import InputError, did_you_mean, environment

# Name of a command -> its module, or module:function where the function is not `run`, and what it does.
COMMANDS = {
    "new": ("limba.tools.corpus.new", "look at your text, and write the files of a run for your hardware"),
    "train": ("limba.cli.train", "train the run that a gin file describes"),
    "branch": ("limba.cli.branch", "decay the learning rate from a checkpoint, in a directory of its own"),
    "preflight": (
        "limba.tools.preflight.preflight",
        "look at a run before it starts, or at this machine: --environment",
    ),
    "generate": ("limba.cli.generate", "generate texts, --fill the gaps of texts, or --score texts"),
    "evaluate": ("limba.cli.evaluate", "evaluate a trained model"),
    "results": ("limba.tools.results.results", "measure models on a suite of tasks, beside baselines"),
    "play": ("limba.tools.pages.play.play", "serve a page on which one tries a model"),
    "status": ("limba.cli.status", "show a run's progress and live hosts, or --verify its checkpoints"),
    "report": ("limba.tools.pages.report", "summarize runs, and show them on a page"),
    "merge": ("limba.cli.branch:merge", "average the checkpoints of a run"),
    "inspect": ("limba.tools.corpus.inspect", "show the documents and examples of a task"),
    "vocabulary": (
        "limba.tools.corpus.vocabulary",
        "train a SentencePiece vocabulary, trim a model's, or compare",
    ),
    "convert": ("limba.cli.convert", "convert models between Limba, T5X and Hugging Face, or T5X's --gin files"),
}
# Commands that compute on devices: they look for an accelerator that is not used.
ON_DEVICES = ("train", "branch", "generate", "evaluate", "results", "play")
# Commands that pass large arrays through the host's memory, one after another.
PASSING_ARRAYS = ("convert", "merge")
# What other programs call a command -> its name here.
OTHER_NAMES = {
    "infer": "generate",
    "predict": "generate",
    "eval": "evaluate",
    "pretrain": "train",
    "finetune": "train, with a gin file that includes gin/runs/finetune.gin",
    "fine-tune": "train, with a gin file that includes gin/runs/finetune.gin",
}
# Commands that write one result: of several processes only the first one runs them.
BY_ONE = ("report", "merge", "results")
# Commands that refuse to run on the CPU where there is an accelerator; the others only say so.
TRAIN = ("train", "branch")
EXAMPLE = """
A first look at your text:
    limba inspect 'data/*.txt' --vocabulary=byte

limba COMMAND --help prints the flags and an example; limba --version prints the version."""


def main(argv: Sequence[str]) -> int:
    """Runs the command that the first argument names; returns the exit status."""
    if "_ARGCOMPLETE" in os.environ:  # a shell asks how a line goes on
        from limba.cli import completion

        completion.answer({name: description for name, (_, description) in COMMANDS.items()}, program_of)
    # All of this comes before a command is imported: its libraries read the environment only then.
    environment.open_streams()
    environment.set_variables()
    environment.set_logging()
    if argv and argv[0] == "--version":
        return program.exit_code(lambda _: print("limba", limba.__version__), argv)
    if argv and argv[0] == "help" and len(argv) > 1:
        argv = [*argv[1:], "--help"]
    if not argv or argv[0] in ("-h", "--help", "help"):
        return program.exit_code(lambda _: print(help_text()), argv)
    if argv[0] in ON_DEVICES:
        environment.use_large_pages()
    elif argv[0] in PASSING_ARRAYS:
        environment.use_large_pages(environment.REUSED_PAGES)
    return program.exit_code(_run, argv)


def script() -> None:
    """The console script `limba`."""
    sys.exit(main(sys.argv[1:]))


def help_text() -> str:
    """Returns what `limba --help` prints."""
    lines = [f"  {name:<11} {description}" for name, (_, description) in COMMANDS.items()]
    return "\n".join(["usage: limba COMMAND ...", "", "Commands:", *lines, EXAMPLE])


def _run(argv: Sequence[str]) -> object:
    command, *rest = argv
    if command not in COMMANDS:
        raise InputError(f"limba has no command {command}{_advice(command)}")
    asks_for_help = "-h" in rest or "--help" in rest
    if command in ON_DEVICES and not asks_for_help:
        check_accelerator(command)
    if command in BY_ONE:
        number = environment.process_number()
        if number != "0":
            print(f"Process {number} does nothing: limba {command} is done by process 0 alone.")
            return 0
    return program_of(command)(rest)


def _advice(command: str) -> str:
    """Returns how the sentence about a command that does not exist ends."""
    if command in OTHER_NAMES:
        return f"; did you mean {OTHER_NAMES[command]}?"
    near = did_you_mean(command, COMMANDS)
    return "; limba --help lists them." if near == "." else near


def program_of(command: str) -> Callable[[Sequence[str]], object]:
    """Returns the function of a command."""
    module, _, function = COMMANDS[command][0].partition(":")
    return getattr(importlib.import_module(module), function or "run")


def check_accelerator(command: str) -> None:
    """Raises InputError if training would leave an accelerator unused; other commands only say so, on stderr."""
    missing = environment.accelerator_without_packages()
    if missing is None:
        return
    what, part = missing
    sentence = (
        f"This machine has {what}, and jax's packages for it are not installed; run bash launch/setup.sh {part}, or set"
        " JAX_PLATFORMS=cpu to use the CPU."
    )
    if command in TRAIN:
        raise InputError(sentence)
    print(sentence, file=sys.stderr, flush=True)
