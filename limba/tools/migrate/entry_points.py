"""What the engine asks of `migrate`, by its name in `limba/tool_registry.py`; each part is imported when needed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from limba.tools.migrate.old_datasets import importing as importing
from limba.tools.migrate.written_tasks import for_files as for_files
from limba.tools.migrate.written_tasks import from_cache as from_cache
from limba.tools.migrate.written_tasks import is_objective as is_objective
from limba.tools.migrate.written_tasks import resumable_form as resumable_form
from limba.tools.migrate.written_tasks import warn_of_function as warn_of_function
from limba.tools.migrate.written_tasks import with_inputs as with_inputs

if TYPE_CHECKING:
    from etils import epath

    from limba.cli.gin import GinRun
    from limba.config import ModelConfig
    from limba.inference.source import VocabularyName
    from limba.tools.migrate.huggingface.values import Arguments

# What `limba train --help` says about them.
ABOUT = """

It also takes a configuration of Hugging Face's T5 scripts, as JSON or as their own command line
(docs/coming_from_huggingface.md), and T5X's gin files (docs/coming_from_t5x.md).

    limba train config.json
    limba train --model_name_or_path google/t5-v1_1-small --train_file corpus.txt --do_train --output_dir out"""


def reader_of(files: Sequence[str], folders: Sequence[Path]) -> Callable[..., GinRun] | None:
    """Returns the function that makes a run of these gin files if they are T5X's; its arguments are `read_run`'s."""
    from limba.tools.migrate.t5x.read import is_t5x

    if not is_t5x(files, folders):
        return None
    from limba.tools.migrate.t5x.translate import read_t5x

    return functools.partial(read_t5x, files)


def script_of(argv: Sequence[str]) -> Arguments | None:
    """Returns the flags of a Hugging Face script, and the rest of the command line; None if it has none."""
    from limba.tools.migrate.huggingface.values import parse

    return parse(argv)


def read_script(script: Arguments, overrides: Sequence[str], folders: Sequence[Path]) -> GinRun:
    """Returns the run that a JSON file or a script's flags describe, read from the gin file that is written for it."""
    from limba.tools.migrate.huggingface.translation import read_script

    return read_script(script.json, script.flags, overrides, folders)


def print_gin(argv: Sequence[str]) -> None:
    """Prints the T5X gin files that the arguments name as one gin file of Limba."""
    from limba.tools.migrate.t5x import translate

    translate.run(argv)


def advice(name: str, classes: Mapping[str, type], field: str = "") -> str:
    """Returns the end of a sentence about a name that Limba does not have, and T5X may have."""
    from limba.tools.migrate.t5x import names

    return names.advice(name, classes, field)


def our_macro(name: str) -> str:
    """Returns our name of a macro of T5X's gin files that has another one here; "" for others."""
    from limba.tools.migrate.t5x import names

    return names.OURS.get(name, "")


def described(folders: Sequence[epath.Path], network: ModelConfig) -> tuple[ModelConfig, VocabularyName | None]:
    """Returns the network and the vocabulary of a T5X checkpoint, with the fields that its config.gin sets.

    `folders` may hold that file: the checkpoint and its run; the first one that has it counts.
    """
    from limba.tools.migrate import from_t5x

    return from_t5x.read(folders, network)


def as_safetensors(folder: Path) -> Path:
    """Returns a folder with the weights of a folder's pytorch_model.bin as model.safetensors."""
    from limba.tools.migrate import pytorch_bin

    return pytorch_bin.as_safetensors(folder)
