"""T5X's gin files as one gin file of Limba: which script they are for, each part in turn, and what nobody has read."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from limba.api import Parser
from limba.cli.flags import search_folders
from limba.cli.gin import GinRun, read_translated
from limba.cli.gin.read import run_of
from limba.cli.gin.statements import REQUIRED, Macro, Source, leaves, literal, read_override, read_with_includes
from limba.cli.gin.statements import read as read_gin_files
from limba.config import InputError
from limba.tools.migrate.t5x import run as parts
from limba.tools.migrate.t5x import tables
from limba.tools.migrate.t5x.model import (
    Model,
    translate_decoding,
    translate_loss,
    translate_model,
    translate_optimizer,
)
from limba.tools.migrate.t5x.names import OURS
from limba.tools.migrate.t5x.read import Line, read
from limba.tools.migrate.t5x.read import is_t5x as is_t5x
from limba.tools.migrate.t5x.settings import Settings
from limba.tools.migrate.t5x.translation import SCRIPTS, Row, Translation

ABOUT = """Prints the gin files of a T5X run as one gin file of Limba's: first a table of what is the same, what differs
and why, and what is dropped, as comments; then the settings, each with the line that it comes from. limba train takes
T5X's files as they are, too.

    limba convert --gin THEIRS.gin --gin_search_paths=DIR > OURS.gin
    limba train OURS.gin --gin.MODEL_DIR=runs/mine"""
# What T5X's users give on the command line; it stays required in the printed file.
GIVEN_LATER = ("MODEL_DIR", "CHECKPOINT_PATH", "EVAL_OUTPUT_DIR", "INFER_OUTPUT_DIR", "INITIAL_CHECKPOINT_PATH")
_OURS = re.compile(r"config\.\w+\.\w+|(\w+/)+config\.\w+\.\w+")


class Translated(NamedTuple):
    """Our gin file, what became of theirs, and the overrides that are meant for ours."""

    title: str
    translation: Translation
    overrides: tuple[str, ...]

    @property
    def text(self) -> str:
        """Our gin file; `overrides` come after it."""
        return self.translation.text(self.title)

    def whole_text(self) -> str:
        """Returns our gin file with the table as comments and the overrides as lines."""
        lines = [f"{name} = {literal(value)}  # --gin.{name}" for name, _, value in map(_split, self.overrides)]
        return "\n".join([self.translation.table() + self.text.rstrip("\n"), *lines]) + "\n"

    @property
    def written_as(self) -> dict[str, str]:
        """What their files call our names, for messages."""
        return {our: their for our, their in self.translation.names.items() if our != their}

    def check(self) -> None:
        """Raises InputError if `limba train` refuses the printed run; what is given later may still be missing."""
        source = Source()
        read_with_includes(source, self.whole_text(), "the printed file")
        for name, (value, _) in self.translation.bindings.items():
            if value == REQUIRED:
                read_override(source, f"{name}='later'", "--gin.")
        run_of(source, "--gin.", self.written_as)


def _split(override: str) -> tuple[str, str, str]:
    return override.partition("=")


def translate(
    files: Sequence[str], overrides: Sequence[str], search_paths: Sequence[Path], may_lack: Sequence[str] = ()
) -> Translated:
    """Returns one gin file of Limba for gin files of T5X's dialect, with `NAME=VALUE` overrides.

    An override may have their names or ours. Macros of `may_lack` stay required in the result. Raises InputError, one
    sentence with the line, for what is missing, not known, or what Limba cannot honour.
    """
    theirs = []
    written_here = []
    lines = read(files, (), search_paths).lines
    names = {line.owner for line in lines if not line.field}
    names |= {leaf.name for line in lines for leaf in leaves(line.value) if isinstance(leaf, Macro)}
    ours = _macros_of_ours()
    for override in overrides:
        name, _, value = _split(override)
        is_path = name == "VOCABULARY" and not value.startswith("@")
        is_only_ours = name in ours and name not in names
        if is_path or is_only_ours or _OURS.fullmatch(name):
            written_here.append(override)
        else:
            theirs.append(override)
    settings = Settings(read(files, theirs, search_paths), may_lack)
    title = f"Translated from T5X's {' and '.join(files)}."
    translation = _translated(settings, title)
    if any(_split(override)[0] == "VOCABULARY" for override in written_here):
        translation.bindings.pop("EXTRA_IDS", None)  # of another file
    _check_unread(settings, translation, ours)
    modules = [*translation.modules, *(module for module, _ in settings.theirs.modules)]
    translation.modules = list(dict.fromkeys(modules))
    return Translated(title, translation, tuple(written_here))


def read_t5x(
    files: Sequence[str],
    overrides: Sequence[str] = (),
    search_paths: Sequence[Path] = (),
    allowed: Sequence[str] | None = None,
) -> GinRun:
    """Returns the run that gin files of T5X's dialect describe; as `limba.cli.gin.read_run` for ours.

    Prints one line: how many settings are the same, differ, and are dropped.
    """
    translated = translate(files, overrides, search_paths)
    names = " and ".join(files)
    print(
        f"{names}: {translated.translation.summary()}; limba convert --gin {' '.join(files)} lists them.",
        file=sys.stderr,
    )
    _search_modules(search_paths)
    run = read_translated(translated.text, names, translated.overrides, translated.written_as, allowed)
    if translated.translation.skeleton == SCRIPTS["train"]:
        _check_directory(run.config.model_dir)
    return run


def _check_directory(model_dir: str) -> None:
    """Raises InputError for the directory of a run of T5X, whose files would be mixed with Limba's."""
    from limba.api import look_at

    opened = look_at(model_dir)
    if opened is not None and opened.kind == "T5X":
        raise InputError(
            f"MODEL_DIR {model_dir} holds a run of T5X; give another directory, and go on from its newest checkpoint"
            f" with --gin.INITIAL_CHECKPOINT_PATH={model_dir}."
        )


def _search_modules(search_paths: Sequence[Path]) -> None:
    """Lets task modules be found beside the gin files, as with T5X's PYTHONPATH."""
    sys.path.extend(str(folder.resolve()) for folder in search_paths if str(folder.resolve()) not in sys.path)


def _macros_of_ours() -> set[str]:
    files = ("gin/runs/evaluate.gin", "gin/runs/finetune.gin")
    return {binding.name for file in files for binding in read_gin_files([file]).bindings if not binding.field}


def _translated(settings: Settings, title: str) -> Translation:
    script = next((name for name in SCRIPTS if settings.has(name)), None)
    if script is None:
        raise InputError(
            f"{title.removesuffix('.')}: no file says what to run; include t5x/configs/runs/pretrain.gin, finetune.gin,"
            f" eval.gin or infer.gin ({tables.PAGE})."
        )
    translation = Translation(settings, script)
    model = translate_model(translation)
    if script == "train":
        parts.translate_train_script(translation)
        parts.translate_data(translation, model.is_decoder)
        parts.translate_train_evaluation(translation, model.is_decoder)
        parts.translate_checkpoints(translation)
    else:
        parts.translate_data(translation, model.is_decoder)
        parts.translate_use(translation)
    parts.translate_vocabulary(translation, model)
    translate_loss(translation, model)
    translate_optimizer(translation, model)
    if script == "train":
        translate_decoding(translation, model)
    else:
        _decoding_by_macros(translation, model)
    parts.translate_devices(translation)
    return translation


def _decoding_by_macros(translation: Translation, model: Model) -> None:
    """As `translate_decoding`, under the macros of gin/runs/infer.gin, so that --gin.NUM_BEAMS=4 replaces them."""
    translate_decoding(translation, model)
    macros = {"num_beams": "NUM_BEAMS", "length_penalty": "LENGTH_PENALTY", "sample": "SAMPLE", "top_k": "TOP_K"}
    macros |= {"temperature": "TEMPERATURE", "top_p": "TOP_P", "num_samples": "NUM_SAMPLES"}
    for field, macro in macros.items():
        binding = translation.bindings.pop(f"config.GenerationConfig.{field}", None)
        if binding is not None:
            translation.bindings[macro] = binding


def _check_unread(settings: Settings, translation: Translation, ours: set[str]) -> None:
    """Notes what T5X ignores; raises InputError for all lines of the user's that nothing has read and no table knows.

    T5X ignores a macro in a file that nothing uses, and the fields of what this run does not refer to.
    """
    known = {name for path in tables.PATHS for name in _names_in(path)}
    used = settings.referred() | SCRIPTS.keys()
    unknown = []
    for line in settings.unread():
        name = _name_of(line)
        near = difflib.get_close_matches(name, sorted(settings.asked | known | ours), n=1, cutoff=0.5)
        hint = f" (did you mean {near[0]}?)" if near and near[0] != name else ""
        if line.owner in tables.OUTPUT:
            why = tables.WRITES
        elif _is_idle(line, settings, used, known):
            why = tables.IDLE
        else:
            unknown.append(f"{line.where} sets {line.written}{hint}")
            continue
        translation.rows.append(Row("dropped", f"{line.written} = {line.value!r}", "", why))
        if name not in known and not line.field:
            translation.unused.append(f"{line.written}{hint}")
    if unknown:
        raise InputError(f"{', '.join(unknown)}, which Limba does not know; {tables.PAGE} has the list.")


def _name_of(line: Line) -> str:
    return f"{line.owner}.{line.field}" if line.field else line.owner


def _is_idle(line: Line, settings: Settings, used: Collection[str], known: Collection[str]) -> bool:
    """Returns whether T5X would ignore a line too; `used`: the classes that values refer to, `known`: T5X's names."""
    name = _name_of(line)
    if not line.field:
        return name in known or not line.where.startswith("--gin.")
    if settings.reaches(line):
        return False
    if name in known or (line.owner in OURS and line.owner not in used):
        return True
    return line.owner in ("T5Config", "TransformerConfig") and name in settings.asked


def _names_in(path: str) -> set[str]:
    include_file = tables.include_file(path)
    names = set(include_file[1]) if include_file else set()
    return {".".join(name.rpartition("/")[2].split(".")[-2:]) if "." in name else name for name in names}


def run(argv: Sequence[str]) -> None:
    """`limba convert --gin THEIRS.gin > OURS.gin`: prints the translation; raises InputError."""
    parser = Parser("convert --gin", ABOUT)
    parser.add_argument("--gin", action="store_true", help=argparse.SUPPRESS)  # by which this is found
    parser.add_object("gin_file", "THEIRS.gin", "a gin file of T5X's; later files replace values", takes_several=True)
    parser.add_argument("--gin_search_paths", metavar="A,B", action="append", default=[], help="folders of gin files")
    parser.add_argument("--gin.NAME", metavar="VALUE", help="set NAME, theirs or ours")
    args = parser.parse(argv)
    if not args.gin_file:
        raise InputError("No gin file is given; write limba convert --gin THEIRS.gin --gin_search_paths=DIR.")
    folders = search_folders(args.gin_search_paths)
    if not is_t5x(args.gin_file, folders):
        translated = " and ".join(args.gin_file)
        raise InputError(
            f"{translated} includes none of T5X's files and names none of its modules; give T5X's gin files."
        )
    translated = translate(args.gin_file, args.gin, folders, GIVEN_LATER)
    translated.check()
    print(translated.whole_text(), end="")
