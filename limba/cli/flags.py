"""Command-line flags and gin files become one frozen RunConfig.

    --gin_file=FILE            a gin file; may be given several times, the later ones count more
    --json=FILE                a configuration of Hugging Face's run_t5_mlm scripts instead of a gin file
    --gin_search_paths=A,B     folders to look for gin files in, before the repository and its gin/
    --gin.NAME=VALUE           replaces what the files set: a macro (TRAIN_STEPS) or a field
                               (config.ModelConfig.emb_dim); VALUE is a Python literal, anything else a string
    --profile[=STEPS]          traces 3 steps, or so many, of this start only into MODEL_DIR/profile

Names and kinds of values are checked first, then gin builds the configuration, which checks itself, and
only then are the modules of tasks/ imported: a mistake costs a second, and not the import of TensorFlow.
"""

# pyright: reportAttributeAccessIssue=false
# (pyright takes the folder gin/ for the package of that name, which Python does not)

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Sequence
from pathlib import Path

import gin

from limba import config
from limba.cli import from_json, gin_checks, gin_files
from limba.config import InputError, RunConfig

ROOT = gin_checks.ROOT
FLAGS = ("--gin_file", "--json", "--gin_search_paths", "--gin.NAME", "--profile", "--help")
PROFILE_STEPS = 3
USAGE = """usage: python -m launch.train --gin_file=FILE|--json=FILE [--gin_search_paths=A,B] [--gin.NAME=VALUE ...]
                              [--profile[=STEPS]]

Trains the run that the gin files describe. NAME is one of the names below, or any field of limba/config/
(--gin.config.ModelConfig.emb_dim=64). VALUE is a number, True, False, None, a string with or without
quotation marks, or a Python tuple or dictionary: --gin.TASK_FEATURE_LENGTHS="{'inputs': 512}". --profile traces
3 steps, or so many, of this start into MODEL_DIR/profile.
"""


class _Arguments:
    """The flags as given, in their order."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.files: list[str] = []
        self.json: str | None = None
        self.overrides: list[str] = []
        self.search_paths: list[Path] = []
        self.profile_steps: int | None = None
        self.help = False
        rest = list(argv)
        while rest:
            self._take(rest.pop(0), rest)

    def _take(self, argument: str, rest: list[str]) -> None:
        name, equals, value = argument.partition("=")
        name = re.sub("^--?", "", name) if name.startswith("-") else ""
        if name in ("help", "h", "helpfull"):
            self.help = True
        elif name == "profile":
            if equals and not (value.isdecimal() and int(value) > 0):
                raise InputError(f"--profile={value} is no number of steps; write --profile, or such as --profile=5.")
            self.profile_steps = int(value) if equals else PROFILE_STEPS
        elif name.startswith("gin."):
            self.overrides.append(argument.lstrip("-").removeprefix("gin."))
        elif name in ("gin_file", "gin_search_paths", "json"):
            if not equals:
                value = rest.pop(0) if rest and not rest[0].startswith("-") else ""
            if not value:
                raise InputError(f"--{name} has no value; write --{name}=PATH.")
            if name == "gin_file":
                self.files.append(value)
            elif name == "json":
                self.json = value
            else:
                self.search_paths += [Path(folder).expanduser() for folder in value.split(",") if folder]
        else:
            near = gin_checks.did_you_mean(f"--{name}", FLAGS).rstrip(".?")
            hint = f"; write --gin.{argument}" if equals and not argument.startswith("-") else near
            raise InputError(f"The argument {argument} is not known{hint}; --help lists what there is.")

    def all_search_paths(self) -> list[Path]:
        return [*self.search_paths, Path.cwd(), ROOT, ROOT / "gin"]


def _help(arguments: _Arguments) -> str:
    files = arguments.files or ["gin/models/t5_1_1/base.gin", "gin/runs/pretrain.gin"]
    source = gin_files.read(files, arguments.overrides, arguments.all_search_paths())
    lines = [USAGE, f"Names in {', '.join(files)}:"]
    last: dict[str, gin_files.Binding] = {}
    about: dict[str, str] = {}
    for binding in source.bindings:
        if not binding.field:
            last[binding.name] = binding
            about.setdefault(binding.name, binding.comment)
    for name, binding in last.items():
        value = "required" if binding.value == gin_files.REQUIRED else repr(binding.value)
        lines.append(f"  {name} ({value})  {about[name]}".rstrip())
    runs = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "gin").glob("*.gin"))
    lines += ["", f"Complete runs: {', '.join(runs)}", "Models: gin/models/FAMILY/SIZE.gin"]
    return "\n".join(lines)


def build(text: str) -> RunConfig:
    """Has gin bind and build; a ConfigError loses what gin adds to its message."""
    gin.clear_config()
    gin.parse_config(text)
    gin.finalize()
    try:
        return gin.get_configurable(config.RunConfig)()
    except InputError as error:
        raise InputError(str(error).partition("\n  In call to configurable")[0]) from None


def model_config(gin_file: str, overrides: Sequence[str]) -> config.ModelConfig:
    """Returns the network of a file of gin/models, with `NAME=VALUE` overrides; for programs without a run."""
    source = gin_files.read([gin_file], overrides, [Path.cwd(), ROOT, ROOT / "gin"])
    gin.clear_config()
    gin.parse_config(source.text)
    return gin.get_configurable(config.ModelConfig)()


def _num_devices() -> int:
    """Returns the devices of all hosts, which a JSON's batch sizes are told for."""
    import jax

    from limba.sharding import multihost

    multihost.join_hosts()

    return jax.device_count()


def _operative_config(modules: Sequence[str]) -> str:
    """Returns a gin file that makes the same run again: every value used, defaults included."""
    names = [module.rpartition(".") for module in modules]
    imports = [f"from {package} import {name}" if package else f"import {name}" for package, _, name in names]
    head, _, body = gin.operative_config_str().partition("\n\n")
    return "\n".join([head, *dict.fromkeys(imports)]) + "\n\n" + body


def _import_tasks(modules: Sequence[str]) -> None:
    """Has each module of tasks/ register its tasks; takes seconds, because seqio imports TensorFlow."""
    for module in modules:
        importlib.import_module(module)


def parse_args(argv: Sequence[str]) -> tuple[RunConfig, str]:
    """Returns the run and its operative config, a gin file's text to be kept beside its results.

    Raises ConfigError, one sentence, for anything that cannot be meant. Prints and exits for --help.
    """
    arguments = _Arguments(argv)
    if arguments.help:
        print(_help(arguments))
        raise SystemExit(0)
    if arguments.json is not None:
        if arguments.files:
            raise InputError("Both --json and --gin_file are given; give one, and --gin.NAME=VALUE for the rest.")
        arguments.files.append(from_json.gin_file(arguments.json, _num_devices))
    if not arguments.files:
        raise InputError("No gin file is given; add one, such as --gin_file=gin/ro_t5x_base.gin, or see --help.")
    source = gin_files.read(arguments.files, arguments.overrides, arguments.all_search_paths())
    gin_checks.check(source)
    run = build(source.text)
    modules = [module for module, _ in source.modules]
    text = _operative_config(modules)
    run = dataclasses.replace(run, data=dataclasses.replace(run.data, task_modules=tuple(modules)))
    if arguments.profile_steps is not None:  # after the text: it is of this start, not of the run
        run = dataclasses.replace(run, profile_steps=arguments.profile_steps)
    _import_tasks(modules)
    return run, text
