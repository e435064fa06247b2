"""The files that `limba new` writes: a task, a gin file and a script."""

from __future__ import annotations

import json
import math
import shlex
import textwrap

from limba.tools.corpus.preparation.survey import Survey
from limba.tools.corpus.sizes import Hardware, Plan, short

CHECKPOINTS = 20  # of a run, at least; never further apart than the default

TASK = '''"""Span corruption (T5's objective) of {name_of_corpus}.

Written by `limba new`. The gin file names the task, and may replace its corpus and its vocabulary.
"""

from limba.data.objectives import span_corruption, tokenize_documents
from limba.data.registry import Feature, TaskRegistry
from limba.data.tasks import source_of_files
from limba.data.vocabulary import SentencePieceVocabulary

CORPUS = {corpus}  # a path, a pattern, several with commas, or user/name of the hub
COLUMN = {column}  # the column or key with the text; text files have none
VALIDATION_PERCENT = {percent}  # of the documents, chosen by a hash of their text, if the corpus has no such split

# Not read: the run trains a vocabulary of its own, see the gin file.
VOCABULARY = SentencePieceVocabulary("{name}/vocabulary.model", extra_ids=100)

TaskRegistry.add(
    "{name}_span_corruption",
    source=source_of_files(CORPUS, COLUMN, VALIDATION_PERCENT),
    preprocessors=[tokenize_documents, span_corruption],
    output_features=dict.fromkeys(("inputs", "targets"), Feature(VOCABULARY)),
)
'''

GIN = """# T5 1.1 {size} for {corpus}: {parameters} parameters. Written by `limba new`; every value may be changed.
#
# Command   bash launch/{name}.sh
# Hardware  {hardware}: {reason}
# Hours     {hours:.1f} estimated at that speed; not measured
# Expected  a first loss of about ln {rows} + 0.5 = {first_loss:.1f}
#
# Why this size and these steps:
{reasons}
from __gin__ import dynamic_registration

from limba import config
from tasks import {name}

include 'gin/models/t5_1_1/{size}.gin'
include 'gin/runs/pretrain.gin'

MIXTURE_OR_TASK_NAME = '{name}_span_corruption'
TASK_FEATURE_LENGTHS = {{'inputs': {inputs}}}  # tokens; the targets' follow from the objective
TRAIN_STEPS = {steps}  # {tokens} tokens, {epochs:.1f} epochs
BATCH_SIZE = {batch}
NUM_MICROBATCHES = {microbatches}  # parts of a batch, one after the other; more of them need less memory
DROPOUT_RATE = {dropout}  # 0.1 where the text is read several times
DTYPE = '{dtype}'
REMAT = '{remat}'  # 'none' is faster, 'full' needs less memory

VOCAB_SIZE = {rows}  # a multiple of 128, not below the number of ids
WARMUP_STEPS = {warmup}
CHECKPOINT_PERIOD = {checkpoints}
EVAL_PERIOD = {evaluations}
LOG_PERIOD = {log}

# The run trains this vocabulary on its text first, MODEL_DIR/vocabulary.model. For one that exists:
# VOCABULARY = 'PATH.model', and take these lines out.
config.DataConfig.new_vocabulary_size = {vocabulary}  # ids, the 100 sentinels included
config.DataConfig.num_data_shards = {shards}  # fixed for the run; at least the number of hosts
config.DataConfig.validation_percent = {percent}
{mesh}"""

SCRIPT = """#!/usr/bin/env bash
# Trains gin/{name}_{size}.gin on {hardware}: first its vocabulary, then the model. Started again, it resumes.
#
#   bash launch/{name}.sh [NAME=VALUE ...]
#   MODEL_DIR=gs://BUCKET/{name}_{size} bash launch/{name}.sh     # on each worker of a pod
#
# MODEL_DIR is runs/{name}_{size} if it is not given. NAME=VALUE sets a name of the gin file: TRAIN_STEPS=1000.
set -euo pipefail
cd "$(dirname "${{BASH_SOURCE[0]}}")/.."
export MODEL_DIR=${{MODEL_DIR:-runs/{name}_{size}}}
{train}
"""
# With the repository's scripts it sets up the packages too; else with the command that is installed.
WITH_SCRIPTS = 'LIMBA_SCRIPT="launch/{name}.sh" exec bash launch/pretrain.sh gin/{name}_{size}.gin "$@"'
INSTALLED = """flags=()
for argument in "$@"; do
  case $argument in -*) flags+=("$argument") ;; *) flags+=("--gin.$argument") ;; esac
done
exec limba train gin/{name}_{size}.gin "--gin.MODEL_DIR=$MODEL_DIR" ${{flags[@]+"${{flags[@]}}"}}"""


def task(name: str, corpus: str, found: Survey) -> str:
    """Returns tasks/NAME.py."""
    values = {"corpus": _python(corpus), "column": _python(found.column), "percent": _percent(found)}
    return TASK.format(name=name, name_of_corpus=corpus.replace("\\", "/").replace('"', ""), **values)


def gin(name: str, corpus: str, found: Survey, plan: Plan, machine: Hardware) -> str:
    """Returns gin/NAME_SIZE.gin."""
    large = plan.size in ("large", "xl", "xxl") and machine.devices > 1
    period = max(1, plan.steps // CHECKPOINTS)
    values = plan._asdict() | {
        "name": name,
        "corpus": corpus,
        "parameters": f"{plan.parameters:,}",
        "hardware": machine.name,
        "reason": machine.reason,
        "reasons": "\n".join(
            textwrap.fill(
                line,
                118,
                initial_indent="# * ",
                subsequent_indent="#   ",
                break_long_words=False,
                break_on_hyphens=False,
            )
            for line in plan.reasons
        ),
        "first_loss": math.log(plan.rows) + 0.5,
        "tokens": short(plan.tokens),
        "dropout": 0.1 if plan.epochs > 2 else 0.0,
        "dtype": "float32" if machine.setup == "cpu" else "bfloat16",
        "remat": "none" if plan.size in ("tiny", "small") else "minimal",
        "warmup": min(10_000, max(1_000, plan.steps // 10)),
        "checkpoints": min(10_000, period),
        "evaluations": min(1_000, period),
        "log": min(100, max(1, period // 5)),
        "percent": _percent(found),
        "mesh": "config.MeshConfig.auto = True  # parameters are sharded as far as the memory needs it\n" * large,
    }
    return GIN.format(**values)


def script(name: str, plan: Plan, machine: Hardware, has_scripts: bool) -> str:
    """Returns launch/NAME.sh; `has_scripts` where launch/pretrain.sh is beside it."""
    train = (WITH_SCRIPTS if has_scripts else INSTALLED).format(name=name, size=plan.size)
    return SCRIPT.format(name=name, size=plan.size, hardware=machine.name, train=train)


def _percent(found: Survey) -> float:
    return 1.0 if found.documents >= 10_000 else 5.0


def _python(text: str) -> str:
    """Returns a text as Python spells it in double quotes."""
    return json.dumps(text, ensure_ascii=False)


def quoted(text: str) -> str:
    """Returns a text as a word of a shell."""
    return shlex.quote(text)
