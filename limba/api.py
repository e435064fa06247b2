"""What the tools above the engine use of it, each name imported when it is first used.

A tool imports `limba.config`, these names and itself, nothing else. Each name is in NAMES, which says what it is,
and where it is defined, and in an import for type checkers. `tests/test_floors.py` compares the two.
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
    from limba.data.sources.lines import text_lines as text_lines
    from limba.data.sources.records import records as records
    from limba.data.sources.units import UnitSource as UnitSource
    from limba.data.task_modules import all_names as task_modules  # noqa: F401
    from limba.data.task_modules import import_tasks as import_tasks
    from limba.data.tasks import source_of_files as source_of_files
    from limba.data.vocabulary.character_map import rules_of as rules_of
    from limba.data.vocabulary.piece_table import PieceTable as PieceTable
    from limba.data.vocabulary.pieces import spells_bytes as spells_bytes
    from limba.data.vocabulary.text_sample import Texts as Texts
    from limba.data.vocabulary.train import NewVocabulary as NewVocabulary
    from limba.data.vocabulary.vocabularies import Vocabulary as Vocabulary
    from limba.evaluation.downsampling import evenly as evenly
    from limba.evaluation.downsampling import keep_extremes as keep_extremes
    from limba.evaluation.run_directory import RunDirectory as RunDirectory
    from limba.evaluation.run_state import Standing as Standing
    from limba.evaluation.text_curve import text_curve as text_curve
    from limba.export.end_of_run import unexportable as unexportable
    from limba.export.trimming import check_output as check_trim_output  # noqa: F401
    from limba.export.trimming import num_tables as num_tables
    from limba.export.trimming import opened as opened_source  # noqa: F401
    from limba.export.trimming import trim as trim
    from limba.export.trimming import vocabulary_of as vocabulary_of
    from limba.formats.open import look_at as look_at
    from limba.inference.generate import Deadline as Deadline
    from limba.inference.generate import TimeIsOverError as TimeIsOverError
    from limba.inference.load import TrainedModel as TrainedModel
    from limba.inference.load import load as load
    from limba.inference.progress import Progress as Progress
    from limba.inference.source import Source as Source
    from limba.inference.source import VocabularyName as VocabularyName
    from limba.inference.source import described as described
    from limba.inference.step_documents import documents_of_step as documents_of_step
    from limba.planned_run import PlannedRun as PlannedRun
    from limba.sharding.ports import listener as listener
    from limba.storage.files import write_whole as write_whole
    from limba.storage.lease import held as held
    from limba.storage.literal_names import matching as matching
    from limba.storage.servers import token as hub_token  # noqa: F401
    from limba.tool_registry import find as find_tool  # noqa: F401
    from limba.training.checkpoints.step_directory import size_text as size_text
    from limba.training.metrics.flops import flops_per_sequence as flops_per_sequence
    from limba.training.metrics.records import duration as duration

NAMES = {  # name: where it is defined
    # --- Commands ---
    # the flags of a command; its errors are one sentence
    "Parser": "limba.cli.arguments.Parser",
    # arguments whose names have two dashes, where one was typed
    "with_two_dashes": "limba.cli.arguments.with_two_dashes",
    # the flags that name a run by its gin files
    "GinFlags": "limba.cli.model.GinFlags",
    # the flag that allows modules of somebody else's run
    "add_import_flag": "limba.cli.model.add_import_flag",
    # says how much of some work is done, on a terminal as a bar
    "Progress": "limba.inference.progress.Progress",
    # the network that a gin file describes
    "read_model": "limba.cli.gin.read.read_model",
    # the run that gin files describe
    "read_run": "limba.cli.gin.read.read_run",
    # imports one module of tasks/, or all
    "import_tasks": "limba.data.task_modules.import_tasks",
    # the names of the modules of tasks/
    "task_modules": "limba.data.task_modules.all_names",
    # another tool, by the engine's table of tools; None without it
    "find_tool": "limba.tool_registry.find",
    # --- Data ---
    # a run's task with what it reads: its parts, lengths, rows, checks
    "RunData": "limba.data.run_data.RunData",
    # a source of documents in files: its units, and their texts in order
    "UnitSource": "limba.data.sources.units.UnitSource",
    # the rows of a file of JSON, csv, tsv or parquet, as training reads them
    "records": "limba.data.sources.records.records",
    # the lines of an open file of text, as training reads them
    "text_lines": "limba.data.sources.lines.text_lines",
    # the source of files, or of a data set of the hub
    "source_of_files": "limba.data.tasks.source_of_files",
    # the texts of a source: a sample, and whether there is any
    "Texts": "limba.data.vocabulary.text_sample.Texts",
    # a vocabulary that is to be trained
    "NewVocabulary": "limba.data.vocabulary.train.NewVocabulary",
    # the documents of a step of a run
    "documents_of_step": "limba.inference.step_documents.documents_of_step",
    # a task of the registry
    "Task": "limba.data.registry.Task",
    # several tasks with their rates
    "Mixture": "limba.data.registry.Mixture",
    # from texts to ids and back
    "Vocabulary": "limba.data.vocabulary.vocabularies.Vocabulary",
    # what the ids of a vocabulary stand for
    "PieceTable": "limba.data.vocabulary.piece_table.PieceTable",
    # a SentencePiece model's rules for characters
    "rules_of": "limba.data.vocabulary.character_map.rules_of",
    # why a vocabulary cannot be written for transformers
    "unexportable": "limba.export.end_of_run.unexportable",
    # which ids of a vocabulary are single bytes of letters
    "spells_bytes": "limba.data.vocabulary.pieces.spells_bytes",
    # --- Files ---
    # a run's directory: its configuration, records, checkpoints, and who trains in it
    "RunDirectory": "limba.evaluation.run_directory.RunDirectory",
    # whether a run failed, was stopped, stands still or is done, in a sentence
    "Standing": "limba.evaluation.run_state.Standing",
    # the lease of an output that one process writes
    "held": "limba.storage.lease.held",
    # writes a file whole or not at all, here or in a bucket
    "write_whole": "limba.storage.files.write_whole",
    # what is in a folder under a name of a pattern, here or in a bucket
    "matching": "limba.storage.literal_names.matching",
    # the token for the hub, None without one
    "hub_token": "limba.storage.servers.token",
    # --- Runs and models ---
    # what can be known of a run before it starts: sizes, checks, its step on any devices
    "PlannedRun": "limba.planned_run.PlannedRun",
    # the FLOPs of training on one sequence
    "flops_per_sequence": "limba.training.metrics.flops.flops_per_sequence",
    # a number of bytes in words
    "size_text": "limba.training.checkpoints.step_directory.size_text",
    # a length of time in words
    "duration": "limba.training.metrics.records.duration",
    # points as a drawing of characters
    "text_curve": "limba.evaluation.text_curve.text_curve",
    # indices of some points of a long line, its extremes among them
    "keep_extremes": "limba.evaluation.downsampling.keep_extremes",
    # indices of some of many things, the first and the last among them
    "evenly": "limba.evaluation.downsampling.evenly",
    # opens a trained model, as `limba.load`
    "load": "limba.inference.load.load",
    # what `load` returns
    "TrainedModel": "limba.inference.load.TrainedModel",
    # what kind of run or checkpoint is at a path; None for neither
    "look_at": "limba.formats.open.look_at",
    # the network and the vocabulary of a model that is not opened
    "described": "limba.inference.source.described",
    # writes a model with the rows of its vocabulary that texts need
    "trim": "limba.export.trimming.trim",
    # refuses a place where a trimmed model cannot be written
    "check_trim_output": "limba.export.trimming.check_output",
    # a model whose weights are not read
    "Source": "limba.inference.source.Source",
    # the same at a path
    "opened_source": "limba.export.trimming.opened",
    # the vocabulary of such a model
    "vocabulary_of": "limba.export.trimming.vocabulary_of",
    # how many matrices it has with a row for each id
    "num_tables": "limba.export.trimming.num_tables",
    # where a vocabulary is, and its sentinels
    "VocabularyName": "limba.inference.source.VocabularyName",
    # the end of the time for an answer
    "Deadline": "limba.inference.generate.Deadline",
    # raised after it
    "TimeIsOverError": "limba.inference.generate.TimeIsOverError",
    # which program listens at a port
    "listener": "limba.sharding.ports.listener",
}
__all__ = list(NAMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    if name not in NAMES:
        raise AttributeError(f"module 'limba.api' has no attribute {name!r}; it has {', '.join(NAMES)}")
    module, _, defined_as = NAMES[name].rpartition(".")
    return getattr(importlib.import_module(module), defined_as)
