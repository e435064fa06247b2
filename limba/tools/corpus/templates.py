"""The files that `limba new` writes: a task, a gin file and a script."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Sequence

from limba.config.speed import BESIDE, in_time
from limba.tools.corpus.counting import SENTINELS
from limba.tools.corpus.hardware import Hardware
from limba.tools.corpus.plans import Plan
from limba.tools.corpus.reasons import short, times
from limba.tools.corpus.sizes import FILES, FREE_EPOCHS
from limba.tools.corpus.survey import Survey

TASK = '''"""{objective} of {name_of_corpus}.

Written by `limba new`. The gin file names the task, and may replace its corpus and its vocabulary.
"""

from limba.data.objectives import {function}, tokenize_documents
from limba.data.registry import Feature, TaskRegistry
from limba.data.tasks import source_of_files
from limba.data.vocabulary import SentencePieceVocabulary

CORPUS = {corpus}  # a path, a pattern, several with commas, or user/name of the hub
COLUMN = {column}  # the column or key with the text; text files have none
VALIDATION_PERCENT = {percent}  # of the documents, chosen by a hash of their text, if the corpus has no such split

# Not read: the gin file says which vocabulary the run has.
VOCABULARY = SentencePieceVocabulary("{name}/vocabulary.model", extra_ids={extra_ids})

TaskRegistry.add(
    "{name}_{function}",
    source=source_of_files(CORPUS, COLUMN, VALIDATION_PERCENT),
    preprocessors=[tokenize_documents, {function}],
    output_features=dict.fromkeys(("inputs", "targets"), Feature(VOCABULARY)),
)
'''
OBJECTIVES = {
    "t5": ("Span corruption (T5's objective)", "span_corruption"),
    "lm": ("Language modeling", "causal_lm"),
    "encoder": ("Masked language modeling", "masked_lm"),
}
RUNS = {"t5": "pretrain", "lm": "pretrain_lm", "encoder": "pretrain_encoder"}  # of gin/runs/

GIN = """# {description} for {corpus}: {parameters} parameters. Written by `limba new`; every value may be changed.
#
# Command   bash launch/{name}.sh
# Hardware  {hardware}: {reason}
# Time      {time}, {how},
#           {beside}
# Expected  {expected}
#
# Why this size and these steps:
{reasons}
from __gin__ import dynamic_registration

from limba import config
from tasks import {name}

{model}

MIXTURE_OR_TASK_NAME = '{name}_{function}'
TASK_FEATURE_LENGTHS = {lengths}  # tokens
TRAIN_STEPS = {steps}  # {tokens} tokens; the text is read {times}
BATCH_SIZE = {batch}
NUM_MICROBATCHES = {microbatches}  # parts of a batch, one after the other; more of them need less memory
DROPOUT_RATE = {dropout}  # {why_dropout}
DTYPE = '{dtype}'{attention}
REMAT = '{remat}'  # 'none' is faster, 'full' needs less memory
LANGUAGE = {language}  # of the card of the exported model, by its code: 'ro', or 'en,ms'

{rate}

CHECKPOINT_PERIOD = {checkpoints}
EVAL_PERIOD = {evaluations}
EVAL_STEPS = {eval_steps}  # batches of an evaluation, at most
LOG_PERIOD = {log}
{repeated}
{vocabulary}config.DataConfig.num_data_shards = {shards}  # fixed for the run; at least the number of hosts
config.DataConfig.validation_percent = {percent}
{prompts}{mesh}"""
FROM_SCRATCH = """include '{file}'
include 'gin/runs/{run}.gin'{recipe}"""
RECIPE = "\ninclude 'gin/recipes/fast.gin'"
FROM_PUBLISHED = """include 'gin/continue.gin'

INITIAL_CHECKPOINT_PATH = {start}  # its network and its vocabulary are kept
CORPUS = None  # the task's own"""
RATE = """# 'auto' is 2.2 / sqrt(TRAIN_STEPS), found for 300 to 4,800 steps of small T5s; longer runs follow it
# unproven. Warm-up and decay are shares of the run.
LEARNING_RATE = 'auto'"""
# The recipe's rate was found with T5s; encoders have the rate of gin/runs/pretrain_encoder.gin.
RATE_OF_ENCODER = """# AdamW's rate for encoders; 0.0002 to 0.001 are usual. It rises for 2 % of the run, and falls
# to 0 over the last 70 %.
LEARNING_RATE = 0.0005
WARMUP_STEPS = 0.02
config.ScheduleConfig.name = 'warmup_stable_decay'
DECAY_STEPS = 0.7"""
RATE_ON = """# {whose} rate for what goes on from a published model; {low} to {high} are usual. It rises for 2 % of the
# run, and falls to 0 over the last 70 %.
LEARNING_RATE = {value}
WARMUP_STEPS = 0.02
config.ScheduleConfig.name = 'warmup_stable_decay'
DECAY_STEPS = 0.7"""
RATES_ON = {
    "t5": ("T5's", "0.0003", "0.003", "0.001"),
    "lm": ("AdamW's", "0.00003", "0.0003", "0.0001"),
    "encoder": ("AdamW's", "0.00003", "0.0003", "0.0001"),
}  # whose, range, value
NEW_VOCABULARY = """VOCAB_SIZE = {rows}  # not below the number of ids
# The run trains this vocabulary on its text first, MODEL_DIR/vocabulary.model. For one that exists:
# VOCABULARY = 'PATH.model', and {name} = None.
{name} = {vocabulary}  # ids, sentinels included"""
NEW_SIZES = {
    "t5": "config.DataConfig.new_vocabulary_size",
    "lm": "NEW_VOCABULARY_SIZE",
    "encoder": "NEW_VOCABULARY_SIZE",
}
# SentencePiece trains on words, each counted once, and so on whole sentences where no space cuts them.
UNSPACED = """
# Without spaces between words SentencePiece trains on whole sentences, which takes about 8 s of a core for each MB.
{name} = 30_000_000  # bytes of text that it is trained on"""
# Each evaluation shows what the model writes there. They are from the validation text.
PROMPTS = {
    "t5": """# Sentences of the validation text, whose gaps each evaluation fills.
PROMPTS = (
{prompts})
config.EvaluationConfig.sampling = @config.GenerationConfig()
MAX_TOKENS = 24
""",
    "lm": """# Beginnings of sentences of the validation text, which each evaluation continues.
PROMPTS = (
{prompts})
""",
    "encoder": """# Sentences of the validation text, whose masks each evaluation fills.
PROMPTS = (
{prompts})
""",
}

# Muennighoff et al. 2023 (arXiv:2305.16264) on passes, Xue et al. 2023 (arXiv:2305.13230) on dropout.
REPEATED = """# More than {free} passes are worth less than new text: the best step is kept, and the run ends when the
# validation loss has not fallen for so many evaluations.
BEST_METRIC = 'loss'
BEST_MODE = 'min'
PATIENCE = {patience}
"""
EINSUM = """  # with a scaled loss, since {chip} has no bfloat16
config.ModelConfig.attention = 'einsum'  # which {chip} needs: no attention kernel runs there"""

SCRIPT = """#!/usr/bin/env bash
# Trains gin/{name}_{size}.gin on {hardware}: first its vocabulary, then the model. Started again, it resumes.
#
#   bash launch/{name}.sh [NAME=VALUE ...]
#   MODEL_DIR=gs://BUCKET/{name}_{size} bash launch/{name}.sh     # on each worker of a pod: bash launch/pod.sh run
#
# MODEL_DIR is runs/{name}_{size} if it is not given. NAME=VALUE sets a name of the gin file: TRAIN_STEPS=1000.
# In a clone of Limba launch/pretrain.sh sets up the packages, and its --help lists what else can be given. Elsewhere
# the command limba must be installed. RETRIES=10: new starts after a crash, or where the run asks for one.
set -euo pipefail
cd "$(dirname "${{BASH_SOURCE[0]}}")/.."
export MODEL_DIR=${{MODEL_DIR:-runs/{name}_{size}}}
if [ -f launch/pretrain.sh ]; then
  LIMBA_SCRIPT="launch/{name}.sh" exec bash launch/pretrain.sh gin/{name}_{size}.gin "$@"
fi

flags=()
for argument in "$@"; do
  case $argument in
    -h | --help) sed -n '/^#!/d;/^#/!q;s/^# \\{{0,1\\}}//p' "launch/{name}.sh"; exit 0 ;;
    RETRIES=*) RETRIES=${{argument#*=}} ;;
    -*) flags+=("$argument") ;;
    *) flags+=("--gin.$argument") ;;
  esac
done
if command -v limba >/dev/null; then run=(limba)
elif python3 -c 'import limba' 2>/dev/null; then run=(python3 -m limba)
else
  echo "launch/{name}.sh: limba is not installed here; copy tasks/, gin/ and launch/ of this folder into a clone of" \
    "Limba and start it there, or pip install limba." >&2
  exit 2
fi
left=${{RETRIES:-10}} asked='' child=''
case $left in *[!0-9]*) echo "launch/{name}.sh: RETRIES is $left; give a whole number, 0 or more." >&2; exit 2 ;; esac
trap 'asked=yes; kill -TERM "$child" 2>/dev/null || true' INT TERM HUP # the run saves, and ends
while true; do
  "${{run[@]}}" train gin/{name}_{size}.gin "--gin.MODEL_DIR=$MODEL_DIR" ${{flags[@]+"${{flags[@]}}"}} &
  child=$! status=0
  wait "$child" || status=$?
  while kill -0 "$child" 2>/dev/null; do status=0; wait "$child" || status=$?; done # a signal ends the first wait
  if [ -n "$asked" ] || [ "$left" -eq 0 ]; then exit "$status"; fi
  if [ "$status" != 75 ] && [ "$status" -le 128 ]; then exit "$status"; fi # 75: it asks for a new start
  left=$((left - 1))
  echo "launch/{name}.sh: the run ended with status $status; it starts again in 10 s." >&2
  sleep 10
done
"""


def task(name: str, corpus: str, surveyed: Survey, kind: str) -> str:
    """Returns tasks/NAME.py."""
    objective, function = OBJECTIVES[kind]
    return TASK.format(
        name=name,
        name_of_corpus=corpus.replace("\\", "/").replace('"', ""),
        corpus=_python(corpus),
        column=_python(surveyed.column),
        percent=surveyed.validation_percent,
        objective=objective,
        function=function,
        extra_ids=SENTINELS[kind],
    )


def gin(
    name: str,
    corpus: str,
    surveyed: Survey,
    plan: Plan,
    machine: Hardware,
    prompts: Sequence[str],
    language: str | None,
) -> str:
    """Returns gin/NAME_SIZE.gin; `prompts` are masked sentences, or their beginnings."""
    memory = plan.memory
    how = "by a step that was timed there" if plan.is_timed else "estimated at that speed and not measured"
    if plan.start:
        expected = "a first loss of a few nats, which then falls"
    else:  # before it learns anything, a model finds each id about equally likely
        expected = f"a first loss of about ln {plan.rows} + 0.5 = {math.log(plan.rows) + 0.5:.1f}"
    if plan.dropout:
        why_dropout = "of a text that is read so often; 0.0 learns faster, and sooner by heart"
    else:
        why_dropout = "0.1 if the validation loss rises while the training loss falls"
    values = plan._asdict() | {
        "name": name,
        "corpus": corpus,
        "function": OBJECTIVES[plan.kind][1],
        "parameters": f"{plan.parameters:,}",
        "hardware": machine.name,
        "reason": machine.reason,
        "time": in_time(plan.hours),
        "how": how,
        "beside": BESIDE,
        "reasons": "\n".join(wrapped(line, "# * ", "#   ") for line in plan.reasons),
        "expected": expected,
        "model": _model(plan),
        "lengths": f"{{'inputs': {plan.inputs}}}" if plan.kind == "t5" else f"{{'targets': {plan.targets}}}",
        "tokens": short(plan.tokens),
        "times": times(plan.epochs),
        "microbatches": memory.parts,
        "dropout": plan.dropout,
        "why_dropout": why_dropout,
        "repeated": REPEATED.format(free=FREE_EPOCHS, patience=plan.patience) if plan.patience else "",
        "dtype": machine.dtype,
        "attention": _attention(machine),
        "remat": memory.remat,
        "language": repr(language),
        "rate": _rate(plan),
        "vocabulary": _vocabulary(plan, surveyed.has_spaces),
        "percent": surveyed.validation_percent,
        "prompts": PROMPTS[plan.kind].format(prompts="".join(map(_pieces, prompts))) if prompts else "",
        "mesh": _mesh(plan),
    }
    return GIN.format(**values)


def _mesh(plan: Plan) -> str:
    """Returns the line by which the devices share the parameters, where the memory of one does not hold them."""
    if plan.memory.fsdp == 1:
        return ""
    comment = "the devices share the parameters; limba preflight prints which meshes fit"
    return f"config.MeshConfig.fsdp = {plan.memory.fsdp}  # {comment}\n"


def _attention(machine: Hardware) -> str:
    """Returns the end of the dtype's line, and the attention, of a card without bfloat16 or a kernel."""
    chip = machine.chips_of_preflight.chip
    if chip is None or machine.has_kernels:
        return ""
    if chip.has_bfloat16:
        return f"\nconfig.ModelConfig.attention = 'einsum'  # no attention kernel runs on {chip.name}"
    return EINSUM.format(chip=chip.name)


def _model(plan: Plan) -> str:
    if plan.start is None:
        recipe = "" if plan.kind == "encoder" else RECIPE
        return FROM_SCRATCH.format(file=FILES[plan.kind].format(plan.size), run=RUNS[plan.kind], recipe=recipe)
    return FROM_PUBLISHED.format(start=_python(plan.start.name))


def _rate(plan: Plan) -> str:
    if plan.start is None and plan.kind == "encoder":
        return RATE_OF_ENCODER
    if plan.start is None:
        return RATE if plan.kind == "t5" else f"{RATE}\nWEIGHT_DECAY = 0.0  # the recipe has none"
    whose, low, high, value = RATES_ON[plan.kind]
    return RATE_ON.format(whose=whose, low=low, high=high, value=value)


def _vocabulary(plan: Plan, has_spaces: bool) -> str:
    """Returns the lines about a new vocabulary; none for a published model, which has its own."""
    if plan.start is not None:
        return ""
    lines = NEW_VOCABULARY.format(name=NEW_SIZES[plan.kind], vocabulary=plan.vocabulary, rows=plan.rows)
    if not has_spaces:
        name = "NEW_VOCABULARY_BYTES" if plan.kind == "lm" else "config.DataConfig.new_vocabulary_bytes"
        lines += UNSPACED.format(name=name)
    return f"{lines}\n"


def script(name: str, plan: Plan, machine: Hardware) -> str:
    """Returns launch/NAME.sh, which goes through launch/pretrain.sh if that lies beside it."""
    return SCRIPT.format(name=name, size=plan.size, hardware=machine.name)


def _pieces(prompt: str) -> str:
    """Returns a text as strings that follow one another, in lines of a tuple."""
    *first, last = [prompt[start : start + 100] for start in range(0, len(prompt), 100)]
    return "".join(f"    {_python(piece)}\n" for piece in first) + f"    {_python(last)},\n"


def wrapped(text: str, first: str, following: str) -> str:
    """Returns a text in lines of 118 columns, without breaking words; `first` and `following` begin the lines."""
    wrapper = textwrap.TextWrapper(118, break_long_words=False, break_on_hyphens=False)
    wrapper.initial_indent = first
    wrapper.subsequent_indent = following
    return wrapper.fill(text)


def _python(text: str) -> str:
    """Returns a text as Python spells it in double quotes."""
    return json.dumps(text, ensure_ascii=False)
