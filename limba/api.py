"""What the tools above the engine use of it, each name imported when it is first used.

A tool imports `limba.config`, these names and itself, nothing else; `tests/test_floors.py` holds that.

Commands
`Parser`            the flags of a command; its errors are one sentence
`with_two_dashes`   arguments whose names have two dashes, where one was typed
`GinFlags`          the flags that name a run by its gin files
`add_import_flag`   the flag that allows modules of somebody else's run
`Progress`          says how much of some work is done, on a terminal as a bar
`read_model`        the network that a gin file describes
`read_run`          the run that gin files describe
`import_tasks`      imports one module of tasks/, or all
`task_modules`      the names of the modules of tasks/
`find_tool`         another tool, by the engine's table of tools; None without it

Data
`RunData`           a run's task with what it reads: its parts, lengths, rows, checks
`UnitSource`        a source of documents in files: its units, and their texts in order
`records`           the rows of a file of JSON, csv, tsv or parquet, as training reads them
`text_lines`        the lines of an open file of text, as training reads them
`source_of_files`   the source of files, or of a data set of the hub
`Texts`             the texts of a source: a sample, and whether there is any
`NewVocabulary`     a vocabulary that is to be trained
`Task`              a task of the registry
`Mixture`           several tasks with their rates
`Vocabulary`        from texts to ids and back
`PieceTable`        what the ids of a vocabulary stand for
`rules_of`          a SentencePiece model's rules for characters
`unexportable`      why a vocabulary cannot be written for transformers
`spells_bytes`      which ids of a vocabulary are single bytes of letters

Files
`RunDirectory`      a run's directory: its configuration, records, checkpoints, and who trains in it
`Standing`          whether a run failed, was stopped, stands still or is done, in a sentence
`held`              the lease of an output that one process writes
`write_whole`       writes a file whole or not at all, here or in a bucket
`hub_token`         the token for the hub, None without one

Runs and models
`PlannedRun`        what can be known of a run before it starts: sizes, checks, its step on any devices
`flops_per_sequence`  the FLOPs of training on one sequence
`size_text`         a number of bytes in words
`duration`          a length of time in words
`text_curve`        points as a drawing of characters
`kept`              places of a long line such that nothing that stands out is lost
`evenly`            places of some of many things, the first and the last among them
`load`              opens a trained model, as `limba.load`
`TrainedModel`      what `load` returns
`look_at`           what kind of run or checkpoint is at a path; None for neither
`described`         the network and the vocabulary of a model that is not opened
`trim`              writes a model with the rows of its vocabulary that texts need
`check_trim_output`  refuses a place where a trimmed model cannot be written
`Source`            a model whose weights are not read
`opened_source`     the same at a path
`vocabulary_of`     the vocabulary of such a model
`num_tables`        how many matrices it has with a row for each id
`VocabularyName`    where a vocabulary is, and its sentinels
`Deadline`          the end of the time for an answer
`TimeIsOverError`   raised after it
`listener`          which program listens at a port
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from limba.cli.arguments import Parser as Parser
    from limba.cli.arguments import with_two_dashes as with_two_dashes
    from limba.cli.gin.read import read_model as read_model
    from limba.cli.gin.read import read_run as read_run
    from limba.cli.model import GinFlags as GinFlags
    from limba.cli.model import add_import_flag as add_import_flag
    from limba.data.registry import Mixture as Mixture
    from limba.data.registry import Task as Task
    from limba.data.run_data import RunData as RunData
    from limba.data.sources.readers import records as records
    from limba.data.sources.readers import text_lines as text_lines
    from limba.data.sources.units import UnitSource as UnitSource
    from limba.data.task_modules import all_names as task_modules  # noqa: F401
    from limba.data.task_modules import import_tasks as import_tasks
    from limba.data.tasks import source_of_files as source_of_files
    from limba.data.vocabulary.character_map import rules_of as rules_of
    from limba.data.vocabulary.load import PieceTable as PieceTable
    from limba.data.vocabulary.needed import spells_bytes as spells_bytes
    from limba.data.vocabulary.text_sample import Texts as Texts
    from limba.data.vocabulary.train import NewVocabulary as NewVocabulary
    from limba.data.vocabulary.vocabularies import Vocabulary as Vocabulary
    from limba.evaluation.history import evenly as evenly
    from limba.evaluation.history import kept as kept
    from limba.evaluation.standing import Standing as Standing
    from limba.evaluation.status import RunDirectory as RunDirectory
    from limba.evaluation.status import curve as text_curve  # noqa: F401
    from limba.export.at_end import unexportable as unexportable
    from limba.export.trimming import check_output as check_trim_output  # noqa: F401
    from limba.export.trimming import num_tables as num_tables
    from limba.export.trimming import opened as opened_source  # noqa: F401
    from limba.export.trimming import trim as trim
    from limba.export.trimming import vocabulary_of as vocabulary_of
    from limba.formats.open import look_at as look_at
    from limba.inference.generate import Deadline as Deadline
    from limba.inference.generate import TimeIsOverError as TimeIsOverError
    from limba.inference.line_files import Progress as Progress
    from limba.inference.load import TrainedModel as TrainedModel
    from limba.inference.load import load as load
    from limba.inference.source import Source as Source
    from limba.inference.source import VocabularyName as VocabularyName
    from limba.inference.source import described as described
    from limba.planned import PlannedRun as PlannedRun
    from limba.sharding.joining import listener as listener
    from limba.storage.files import write_whole as write_whole
    from limba.storage.lease import held as held
    from limba.storage.servers import token as hub_token  # noqa: F401
    from limba.toolbox import find as find_tool  # noqa: F401
    from limba.training.checkpoints.save import size_text as size_text
    from limba.training.metrics.flops import flops_per_sequence as flops_per_sequence
    from limba.training.metrics.records import duration as duration

_NAMES = {  # module: its names; another name here is written before a "="
    "limba.cli.arguments": "Parser with_two_dashes",
    "limba.cli.gin.read": "read_model read_run",
    "limba.cli.model": "GinFlags add_import_flag",
    "limba.data.run_data": "RunData",
    "limba.data.sources.readers": "records text_lines",
    "limba.data.sources.units": "UnitSource",
    "limba.data.task_modules": "task_modules=all_names import_tasks",
    "limba.data.tasks": "source_of_files",
    "limba.data.registry": "Mixture Task",
    "limba.data.vocabulary.character_map": "rules_of",
    "limba.data.vocabulary.load": "PieceTable",
    "limba.data.vocabulary.needed": "spells_bytes",
    "limba.data.vocabulary.text_sample": "Texts",
    "limba.data.vocabulary.train": "NewVocabulary",
    "limba.evaluation.history": "evenly kept",
    "limba.data.vocabulary.vocabularies": "Vocabulary",
    "limba.evaluation.standing": "Standing",
    "limba.evaluation.status": "RunDirectory text_curve=curve",
    "limba.export.at_end": "unexportable",
    "limba.export.trimming": "check_trim_output=check_output num_tables opened_source=opened trim vocabulary_of",
    "limba.formats.open": "look_at",
    "limba.inference.generate": "Deadline TimeIsOverError",
    "limba.inference.line_files": "Progress",
    "limba.inference.load": "TrainedModel load",
    "limba.inference.source": "Source VocabularyName described",
    "limba.planned": "PlannedRun",
    "limba.sharding.joining": "listener",
    "limba.storage.files": "write_whole",
    "limba.storage.lease": "held",
    "limba.storage.servers": "hub_token=token",
    "limba.toolbox": "find_tool=find",
    "limba.training.checkpoints.save": "size_text",
    "limba.training.metrics.flops": "flops_per_sequence",
    "limba.training.metrics.records": "duration",
}
_PLACES = {
    name.partition("=")[0]: (module, name.rpartition("=")[2])
    for module, names in _NAMES.items()
    for name in names.split()
}
__all__ = list(_PLACES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'limba.api' has no attribute {name!r}; it has {', '.join(_PLACES)}")
    module, own = _PLACES[name]
    return getattr(importlib.import_module(module), own)
