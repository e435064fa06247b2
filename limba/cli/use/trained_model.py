"""The trained model that a run's gin file and flags name, for the programs that use it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from limba.config import InputError, RunConfig, environment

ABOUT = """
    --gin_file=FILE            the run's: MODEL_DIR/config.gin, or one of gin/; with gin/runs/infer.gin any folder
    --checkpoint=PATH          of ours, T5X's or Hugging Face's; default: MODEL_DIR/best, else MODEL_DIR's newest,
                               else INITIAL_CHECKPOINT_PATH
    --gin.NAME=VALUE           any name of the gin file, such as --gin.config.GenerationConfig.num_beams=4"""


def split_flags(argv: Sequence[str], own: Mapping[str, str], about: str) -> tuple[dict[str, str], list[str]]:
    """Returns (the program's own flags, `own` holding their defaults; the rest, for gin); prints `about` for --help."""
    if any(argument in ("-h", "--help") for argument in argv):
        print(about + ABOUT)
        raise SystemExit(0)
    found, rest = dict(own), []
    for argument in argv:
        match = re.fullmatch(r"--?(\w+)=(.*)", argument, re.DOTALL)
        if match and match[1] in own:
            found[match[1]] = match[2]
        elif argument.lstrip("-") in own:
            raise InputError(f"{argument} has no value; write {argument}=VALUE.")
        else:
            rest.append(argument)
    return found, rest


@dataclass(frozen=True)
class TrainedModel:
    """Everything that writing and scoring text needs; `prefix` goes before each input."""

    config: RunConfig
    task: Any
    lengths: Mapping[str, int]
    vocabulary: Any
    model: Any
    mesh: Any
    params: Any
    step: int
    path: str
    prefix: str


def load(argv: Sequence[str], checkpoint: str) -> TrainedModel:
    """Returns the model of the gin flags; ConfigError for anything that cannot be meant."""
    with environment.quiet_imports():
        from limba.cli.flags import parse_args

        config, _ = parse_args(argv)
        from limba.data import streams
        from limba.data.objectives.supervised import prefix_of
        from limba.data.vocabulary.load import check_vocabulary
        from limba.model import Network
        from limba.sharding import multihost
        from limba.training.auto_mesh import mesh_of_run
        from limba.training.initial_checkpoint import load_parameters
    multihost.join_hosts()
    task = streams.resolve_task(config.data)
    lengths = streams.derive_lengths(task, config.data.task_feature_lengths)
    vocabulary = task.output_features["targets"].vocabulary
    fills_gaps = streams.needs_sentinels(task) and not config.model.is_decoder_only
    check_vocabulary(vocabulary, config.model.vocab_size, needs_sentinels=fills_gaps)
    path = checkpoint or _default_checkpoint(config)
    mesh = mesh_of_run(config)
    model = Network(config.model, mesh)
    params, step = load_parameters(path, model, mesh)
    return TrainedModel(config, task, lengths, vocabulary, model, mesh, params, step, path, prefix_of(task))


def _default_checkpoint(config: RunConfig) -> str:
    from etils import epath

    for path in (f"{config.model_dir}/best", config.model_dir):
        if any(child.name.isdigit() for child in _children(epath.Path(path) / "checkpoints")):
            return path
    if config.initial_checkpoint_path:
        return config.initial_checkpoint_path
    raise InputError(f"MODEL_DIR {config.model_dir} holds no checkpoint; give --checkpoint=PATH, or its MODEL_DIR.")


def _children(directory: Any) -> list[Any]:
    return list(directory.iterdir()) if directory.is_dir() else []
