"""`limba preflight gin/ro_t5x_base.gin --topology=v4-8`: one verdict on a run before it starts."""

from __future__ import annotations

import logging
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from limba.api import Parser, find_tool, with_two_dashes
from limba.cli import flags
from limba.cli.gin.statements import Source, read
from limba.config import InputError, environment, without_credentials
from limba.tools.preflight import configuration
from limba.tools.preflight.checks.verdict import Section, as_json, counted, exit_status, text_of

if TYPE_CHECKING:
    from limba.tools.preflight.checks.cost import Terms
    from limba.tools.preflight.compiled.topologies import Topology

# The flags that go with --environment, which looks at this machine alone.
OF_MACHINE = ("environment", "json")
# Libraries that log each attempt to reach a server, with its traceback; a finding says what came of it.
CLIENTS = ("gcsfs", "fsspec", "huggingface_hub")
ABOUT = """Looks at a run before it starts: configuration, data, vocabulary, objective, schedule, storage, this
machine, and with --topology the memory and speed of its compiled step. Nothing is trained, and MODEL_DIR is left as it
is.

    limba preflight gin/demo.gin --gin.CORPUS='data/*.jsonl' --gin.VOCABULARY=byte --gin.VOCAB_SIZE=384 \\
      --gin.MODEL_DIR=runs/first

Ends with 0 (go, or works but wasteful, as the first line says) or 1 (will fail; also for wrong flags). Each line that
is wrong names the gin line that fixes it.
--environment looks at this machine alone, without a run: packages, devices, memory, disk, tokens (only whether they
are there) and the clock, which it compares with the hub's.

    limba preflight --environment

--json prints one JSON document instead. NAME in --gin.NAME=VALUE is any name of the gin file, as in
limba train."""


def add_flags(parser: Parser) -> None:
    """Adds the flags of this command."""
    group = parser.add_argument_group("preflight")
    group.add_argument("--topology", metavar="v4-8|rtx4090", help="chips, which need not be here")
    group.add_argument("--list_topologies", action="store_true", help="list the names of chips and end")
    group.add_argument("--no_compile", action="store_true", help="compile nothing")
    group.add_argument("--environment", action="store_true", help="look at this machine alone, without a run")
    group.add_argument("--json", action="store_true", help="print one JSON document instead")
    group.add_argument("--all", action="store_true", help="also print what is right, section by section")
    group.add_argument("--price", metavar="DOLLARS", help="of a chip-hour, in place of the list price")
    group.add_argument("--days", metavar="DAYS", help="of a grant, of which the run takes a share")


def run(argv: Sequence[str]) -> int:
    """Prints the verdict; returns 0, or 1 for a run that will fail."""
    try:
        return _run(argv)
    except InputError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 1


def _run(argv: Sequence[str]) -> int:
    parser = Parser("preflight", ABOUT, add_help=False)
    add_flags(parser)
    parser.parse([])  # the completion of a shell asks for the parser here
    args, others = parser.parse_known_args(with_two_dashes(argv))
    if {"-h", "--help", "--helpfull"} & set(others):  # before the imports, which take seconds
        flags.parse_args(others, "preflight", ABOUT, add_flags)
    if args.environment:
        return _of_machine(args, others)
    price = None if args.price is None else _positive(args.price, "--price", "dollars of a chip-hour")
    days = None if args.days is None else _positive(args.days, "--days", "days")
    for client in CLIENTS:
        logging.getLogger(client).setLevel(logging.CRITICAL)
    has_jax = "jax" in sys.modules
    with environment.quiet_imports():
        import jax

        from limba.tools.preflight import output
        from limba.tools.preflight.checks import cost
        from limba.tools.preflight.compiled import topologies
    if not has_jax:  # a TPU serves one process at a time, and this one needs none
        jax.config.update("jax_platforms", "cpu")
    if args.list_topologies:
        for chips in topologies.topologies():
            print(chips.name)
        return 0
    chips = None if args.topology is None else topologies.topology(args.topology)

    made: list[Section] = []
    here = None  # this machine's CPU, where no chips are named and there is nothing else to train on
    if chips is None and not (environment.num_gpus() or environment.is_tpu_vm()):
        here = topologies.topology("cpu")
    for section in _sections(others, args, chips, cost.Terms(price, days), here):
        made.append(section)
        if args.all and not args.json:
            print(text_of(section), flush=True)
        elif sys.stderr.isatty():
            print(f"\r{section.title:<30}", end="\r", file=sys.stderr, flush=True)  # a compile takes a minute or more
    if args.json:
        # Other arguments may hold tokens, and are left out of the document.
        shown = [word for word in others if word.startswith("--gin.") or word.endswith((".gin", ".json"))]
        asked = {"run": without_credentials(" ".join(shown)), "topology": args.topology or ""}
        print(output.json_of(made, asked))
    else:
        print(output.first_screen(made, args.all))
    return exit_status(made)


def _of_machine(args: Namespace, others: Sequence[str]) -> int:
    """Prints what is found on this machine, section by section; returns the exit status."""
    from limba.tools.preflight.checks import machine

    flags_of_run = [f"--{name}" for name, value in vars(args).items() if value and name not in OF_MACHINE]
    ignored = [*flags_of_run, *others]
    if ignored:
        raise InputError(f"--environment looks at this machine alone, without a run; leave {ignored[0]} out.")
    made: list[Section] = []
    for section in machine.sections():
        made.append(section)
        if not args.json:
            print(text_of(section), flush=True)
    if args.json:
        print(as_json(made, {}))
    else:
        counts = counted(made) or "nothing is wrong"
        print(f"\nThis machine: {counts}.")
    return exit_status(made)


def _positive(text: str, flag: str, unit: str) -> float:
    """Returns a flag's number; InputError for one that is not above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise InputError(f"{flag}={text} is not a number of {unit} above 0; write {flag}=2.5.")
    return number


def _sections(
    argv: Sequence[str], args: Namespace, chips: Topology | None, terms: Terms, here: Topology | None
) -> Iterator[Section]:
    """Yields the sections in the words of the gin files."""
    from limba.tools.preflight.checks import sections
    from limba.tools.preflight.checks.environment import environment as machine

    try:
        with environment.quiet_imports():
            described = flags.parse_args(argv, "preflight", ABOUT, add_flags)
    except InputError as error:
        yield configuration.of_error(error)
        yield machine(None).worded({})
        return
    first = configuration.resolved(described.config, described.names, _source(argv))
    for section in sections.sections(described.config, first, chips, not args.no_compile, terms, here):
        yield section.worded(described.names)


def _source(argv: Sequence[str]) -> Source | None:
    """Returns the statements of the gin files; None for a run that other files describe."""
    if flags.script_of(argv) is not None:
        return None
    args = flags.parser_of("preflight", ABOUT, add_flags).parse(argv)
    if args is None:
        return None
    folders = flags.search_folders(args.gin_search_paths)
    migrate = find_tool("migrate")
    if migrate and migrate.reader_of(args.gin_file, folders):
        return None
    return read(args.gin_file, args.gin, folders)
