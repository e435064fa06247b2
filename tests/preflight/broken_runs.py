"""Runs that cannot work, or waste what they cost, by their configuration alone: each with the code of its finding.

`BROKEN` is (name, lines of a gin file after `SOUND`, chips, code of the finding, answer to a fix that leaves a choice).
`OTHERS` are broken in what the first table does not look at: names, the machine, and how text fills a run.

The number in front of a name comes from a list of 61 runs that were broken on purpose; broken_texts.py has the others.
"""

from __future__ import annotations

from typing import NamedTuple

SOUND = """
from __gin__ import dynamic_registration
from limba import config
from tasks import demo
include 'gin/models/t5_1_1/small.gin'
include 'gin/runs/pretrain.gin'
MIXTURE_OR_TASK_NAME = 'demo_span_corruption'
CORPUS = 'corpus.jsonl'
VOCABULARY = 'byte'
VOCAB_SIZE = 384
TASK_FEATURE_LENGTHS = {'inputs': 256}
BATCH_SIZE = 64
TRAIN_STEPS = 50_000
DROPOUT_RATE = 0.0
MODEL_DIR = 'run'
"""
TUNED = (
    SOUND.replace("pretrain.gin", "finetune.gin")
    + """
INITIAL_CHECKPOINT_PATH = 'golden'
CHECKPOINT_PERIOD = 5_000
EVAL_PERIOD = 5_000
config.EvaluationConfig.num_examples = 0
"""
)


class Broken(NamedTuple):
    name: str
    lines: str
    chips: str
    code: str
    answer: str = ""
    sound: str = SOUND


BASE = "config.ModelConfig:\n  emb_dim = 768\n  num_heads = 12\n  mlp_dim = 2048\n  num_encoder_layers = 12\n"
NAMED = "config.OptimizerConfig.name = '{}'\nconfig.ScheduleConfig.name = '{}'\nLEARNING_RATE = {}\nWARMUP_STEPS = {}"
BROKEN = (
    Broken("08 adamw at Adafactor's rate", NAMED.format("adamw", "linear", 1.0, 1_000), "v4-8", "rate-too-high"),
    Broken("adamw by T5X's rule", "config.OptimizerConfig.name = 'adamw'", "v4-8", "rate-too-high"),
    Broken("adamw at a tenth of a millionth", NAMED.format("adamw", "cosine", 1e-7, 500), "v4-8", "rate-too-low"),
    Broken("09 rsqrt at an AdamW's rate", "LEARNING_RATE = 0.0005\nWARMUP_STEPS = 4_000", "v4-8", "rate-too-low"),
    Broken("muon at 0.5", NAMED.format("muon", "cosine", 0.5, 1_000), "h100-16", "rate-too-high"),
    Broken("the fast recipe at 0.1 for long", NAMED.format("muon", "warmup_stable_decay", 0.1, 400)
           + "\nconfig.OptimizerConfig.muon_by_parameter_scale = True", "h100-16", "rate-too-high"),
    Broken("muon without warm-up", NAMED.format("muon", "linear", 0.02, 0), "v4-8", "no-warm-up"),
    Broken("10 adamw without warm-up", NAMED.format("adamw", "cosine", 0.0005, 0), "h100-8", "no-warm-up"),
    Broken("12 adamw that never decays", "LEARNING_RATE_FACTORS = 'constant * linear_warmup'\n"
           "config.OptimizerConfig.name = 'adamw'\nLEARNING_RATE = 0.0004\nWARMUP_STEPS = 800", "v4-8", "no-decay"),
    Broken("Adafactor at a constant", "LEARNING_RATE_FACTORS = 'constant'\nLEARNING_RATE = 0.004", "v4-8", "no-decay"),
    Broken("13 fine-tuning at a half", "LEARNING_RATE = 0.5", "v4-8", "fine-tuning-rate", sound=TUNED),
    Broken("fine-tuning by AdamW at 0.01", NAMED.format("adamw", "linear", 0.01, 100), "v4-8", "fine-tuning-rate",
           sound=TUNED),
    Broken("15 300 steps of base", BASE + "  num_decoder_layers = 12\nTRAIN_STEPS = 300\nCHECKPOINT_PERIOD = 300\n"
           "EVAL_PERIOD = 100\nREMAT = 'full'", "v4-8", "too-few-tokens"),
    Broken("16 evaluates nearly always", "EVAL_PERIOD = 2\nEVAL_STEPS = 100", "v4-8", "evaluates-too-often"),
    Broken("17 saves every third step", "CHECKPOINT_PERIOD = 3", "v4-8", "saves-too-often"),
    Broken("saves every step, without chips", "CHECKPOINT_PERIOD = 1", "", "saves-too-often"),
    Broken("18 saves after its end", "CHECKPOINT_PERIOD = 80_000", "v4-8", "never-saves"),
    Broken("20 evaluates after its end", "EVAL_PERIOD = 60_000", "", "never-evaluates"),
    Broken("19 a preemption costs days", BASE + "  num_decoder_layers = 12\nTRAIN_STEPS = 2_000_000\nBATCH_SIZE = 256\n"
           "CHECKPOINT_PERIOD = 1_000_000\nREMAT = 'full'", "v4-8", "period-too-long"),
    Broken("03 40 rows on 16 chips", "BATCH_SIZE = 40", "h100-16", "does-not-divide"),
    Broken("micro-batches of half a row", "NUM_MICROBATCHES = 8", "h100-16", "does-not-divide"),
    Broken("2 shards for 4 hosts", "config.DataConfig.num_data_shards = 2", "h100-32", "does-not-divide"),
    Broken("a mesh of 12", "config.MeshConfig.fsdp = 3", "v4-8", "mesh-does-not-divide"),
    Broken("60 memory of one machine for two", "MODEL_DIR = '/dev/shm/limba-broken/run'", "h100-16",
           "directory-not-shared", "MODEL_DIR = 'run'"),
    Broken("rows of 4,096 on a T4",
           "TASK_FEATURE_LENGTHS = {'inputs': 4_096}\nEXTRA_IDS = 400\nVOCAB_SIZE = 768\nCHECKPOINT_PERIOD = 300",
           "t4-1", "does-not-fit"),
)  # fmt: skip

LOCAL = f"{SOUND}TRAIN_STEPS = 2_000\nBATCH_SIZE = 8\nCHECKPOINT_PERIOD = 200\nEVAL_PERIOD = 200\n"
LINEAR = NAMED.format("adamw", "linear", 0.0005, "{}") + "\nconfig.ScheduleConfig.decay_steps = {}"
VAST = "config.ModelConfig:\n  emb_dim = 131_072\n  mlp_dim = 1_048_576\n"  # no disk here holds its checkpoint
OTHERS = (
    Broken("01 misspelt field", "config.OptimizerConfig.weigth_decay = 0.1", "", "gin-file"),
    Broken("02 a batch that shards cannot share", "BATCH_SIZE = 90\nconfig.DataConfig.num_data_shards = 8", "",
           "batch-size"),
    Broken("04 micro-batches", "NUM_MICROBATCHES = 5", "", "batch-size"),
    Broken("06 dropout above 1", "DROPOUT_RATE = 1.2", "", "dropout-rate", "DROPOUT_RATE = 0.1"),
    Broken("07 4 shards for 8 hosts", "config.DataConfig.num_data_shards = 4\nBATCH_SIZE = 128", "v4-64",
           "does-not-divide"),
    Broken("11 only warm-up", LINEAR.format(9_000, None), "", "long-warm-up"),
    Broken("14 the decay ends early", LINEAR.format(20, 300), "", "decay-steps"),
    Broken("31 thousands of epochs", "TRAIN_STEPS = 400_000", "", "too-many-epochs"),
    Broken("33 short lines", "CORPUS = 'short.txt'\nTRAIN_STEPS = 9_000", "", "too-many-epochs"),
    Broken("48 rows without a piece", "VOCAB_SIZE = 200_064", "", "unused-rows"),
    Broken("52 targets of 256", "TASK_FEATURE_LENGTHS = {'inputs': 256, 'targets': 256}", "", "padding"),
    Broken("53 targets of 16", "TASK_FEATURE_LENGTHS = {'inputs': 256, 'targets': 16}", "", "task-feature-lengths"),
    Broken("57 a disk too small", VAST, "", "no-room",
           "config.ModelConfig.emb_dim = 256\nconfig.ModelConfig.mlp_dim = 512"),
    Broken("58 no token", "HUB_MODEL_ID = 'me/model'", "", "input-error", "export HF_TOKEN=hf_x"),
    Broken("59 no place for the export", "EXPORT_TO = 'run.gin/model'", "", "export-to", "EXPORT_TO = 'model'"),
    Broken("62 no key for wandb", "REPORT_TO = 'wandb'", "", "no-key", "export WANDB_API_KEY=0"),
)  # fmt: skip
