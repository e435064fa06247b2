"""A mistake costs a second: exit code 2 and one sentence that says what, where, and what to do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from limba.cli import flags, main
from limba.cli.gin.statements import read
from limba.cli.gin.tree import CLASSES
from limba.config import InputError
from limba.config.optimizer import fields_of
from limba.tools.migrate.t5x.names import OURS

ROOT = Path(__file__).resolve().parents[2]
PRETRAIN = [
    "--gin_file=gin/models/t5_1_1/tiny.gin",
    "--gin_file=gin/runs/pretrain.gin",
    "--gin.MIXTURE_OR_TASK_NAME=any",
    "--gin.TASK_FEATURE_LENGTHS={'inputs': 64}",
    "--gin.MODEL_DIR=out",
    "--gin.DROPOUT_RATE=0.0",
    "--gin.TRAIN_STEPS=10",
]
T5X = "? docs/coming_from_t5x.md has the list."
ARGUMENTS = {
    "misspelt macro": ([*PRETRAIN, "--gin.TRAIN_STEP=5"], ["--gin.TRAIN_STEP", "did you mean TRAIN_STEPS?"]),
    "lower case macro": ([*PRETRAIN, "--gin.batch_size=5"], ["batch_size", "did you mean BATCH_SIZE?"]),
    "unknown macro": ([*PRETRAIN, "--gin.ZZZ=5"], ["--gin.ZZZ", "nothing uses."]),
    "misspelt field": ([*PRETRAIN, "--gin.config.ModelConfig.embdim=5"], ["embdim", "did you mean emb_dim?"]),
    "misspelt class": ([*PRETRAIN, "--gin.config.ModelConfg.emb_dim=5"], ["did you mean config.ModelConfig"]),
    "class without config": ([*PRETRAIN, "--gin.ModelConfig.emb_dim=5"], ["did you mean config.ModelConfig"]),
    "unused scope": ([*PRETRAIN, "--gin.big/config.ModelConfig.emb_dim=5"], ["big/config.ModelConfig", "does not use"]),
    "missing macro": (PRETRAIN[:-1], ["TRAIN_STEPS is not set", "optimizer step", "--gin.TRAIN_STEPS=VALUE"]),
    "missing macros": (PRETRAIN[:2] + PRETRAIN[3:-1], ["MIXTURE_OR_TASK_NAME", "TRAIN_STEPS"]),
    "no model": (PRETRAIN[1:5] + PRETRAIN[6:], ["Nothing sets config.ModelConfig.vocab_size", "gin/models/"]),
    "no run": (["--gin_file=gin/models/byt5/small.gin"], ["RunConfig", "gin/runs/pretrain.gin"]),
    "unknown flag": ([*PRETRAIN, "--gin_fil=x"], ["--gin_fil=x", "did you mean --gin_file", "--help"]),
    "flag of another program": ([*PRETRAIN, "--alsologtostderr"], ["--alsologtostderr", "--help"]),
    "name without --gin": ([*PRETRAIN, "TRAIN_STEPS=5"], ["--gin.TRAIN_STEPS=5"]),
    "no file": ([], ["--gin_file=", "--help"]),
    "no value of a flag": (["--gin_file"], ["--gin_file=GIN_FILE"]),
    "no value of a name": ([*PRETRAIN, "--gin.BATCH_SIZE"], ["--gin.BATCH_SIZE=VALUE"]),
    "profile of no steps": ([*PRETRAIN, "--profile=few"], ["--profile=few", "--profile=5"]),
    "no such file": (["--gin_file=gin/nothing.gin"], ["gin/nothing.gin", "does not exist", "looked for it in"]),
    "misspelt file": (["gin/demos.gin"], ["gin/demos.gin", "does not exist", "did you mean gin/demo.gin?"]),
    "file and JSON": (["gin/demo.gin", "a.json"], ["Both a.json and the gin file gin/demo.gin"]),
    "wrong kind": ([*PRETRAIN, "--gin.BATCH_SIZE=many"], ["--gin.BATCH_SIZE", "'many'", "a whole number"]),
    "float steps": ([*PRETRAIN, "--gin.TRAIN_STEPS=1e6"], ["1000000.0", "a whole number"]),
    "lower case false": ([*PRETRAIN, "--gin.SCAN_LAYERS=false"], ["--gin.SCAN_LAYERS", "True or False"]),
    "open dictionary": ([*PRETRAIN, "--gin.TASK_FEATURE_LENGTHS={'inputs': 5"], ["a mapping such as"]),
    "open quotation": ([*PRETRAIN, '--gin.MODEL_DIR="/tmp'], ["--gin.MODEL_DIR", "quotation mark"]),
    "wrong choice": ([*PRETRAIN, "--gin.DTYPE=float8"], ["DTYPE is 'float8'", "float32, bfloat16"]),
    "batch that does not divide": (
        [*PRETRAIN, "--gin.NUM_MICROBATCHES=3"],
        ["BATCH_SIZE is 128", "does not divide", "3"],
    ),
    "unknown attention": (
        [*PRETRAIN, "--gin.config.ModelConfig.attention=flash"],
        ["ModelConfig.attention", "memory_efficient, pallas"],
    ),
    "unknown random bits": (
        [*PRETRAIN, "--gin.config.RunConfig.random_bits=mersenne"],
        ["RunConfig.random_bits", "unsafe_rbg"],
    ),
    "unknown form of logits": ([*PRETRAIN, "--gin.config.LossConfig.logits=half"], ["LossConfig.logits", "chunked"]),
    "reference not called": ([*PRETRAIN, "--gin.config.RunConfig.data=@config.DataConfig"], ["@config.DataConfig()"]),
    "reference to nothing": ([*PRETRAIN, "--gin.config.RunConfig.data=@config.Data()"], ["config.Data", "not a class"]),
    "field of T5X's network": ([*PRETRAIN, "--gin.network.T5Config.emb_dims=2"], ["config.ModelConfig.emb_dim?", T5X]),
    "field of T5X with another name": (
        [*PRETRAIN, "--gin.PjitPartitioner.num_partitions=2"],
        ["names PjitPartitioner", "did you mean config.MeshConfig.model?", T5X],
    ),
    "field of T5X's checkpoints": (
        [*PRETRAIN, "--gin.utils.SaveCheckpointConfig.period=5"],
        ["did you mean config.CheckpointConfig.every_steps?", T5X],
    ),
    "misspelt class of T5X": ([*PRETRAIN, "--gin.utils.DatasetConfg.seed=5"], ["config.DataConfig.seed?", T5X]),
    "class of T5X that has no like": ([*PRETRAIN, "--gin.optax.lion.b1=0.9"], ["names optax.lion", "from_t5x.md has"]),
    "reference of T5X": ([*PRETRAIN, "--gin.BATCH_SIZE=@adafactor.Adafactor()"], ["config.OptimizerConfig?", T5X]),
    "macro of T5X": ([*PRETRAIN, "--gin.USE_CACHED_TASKS=False"], ["did you mean config.DataConfig.cache_dir?", T5X]),
    "macro of nothing": ([*PRETRAIN, "--gin.BATCH_SIZE=%BATCH"], ["%BATCH", "nothing sets"]),
    "macro of itself": ([*PRETRAIN, "--gin.BATCH_SIZE=%BATCH_SIZE"], ["defines BATCH_SIZE by itself"]),
    "field made required": ([*PRETRAIN, "--gin.config.MeshConfig.data=%gin.REQUIRED"], ["config.MeshConfig.data"]),
    "not a name": ([*PRETRAIN, "--gin.A B=5"], ["--gin.A B", "not gin"]),
}
FILES = {
    "unused macro": ("TRAIN_STEP = 5\n", ["mine.gin line 1", "TRAIN_STEP,", "TRAIN_STEPS?"]),
    "not gin": ("BATCH_SIZE = (1,\n", ["mine.gin", "not gin"]),
    "missing include": ("include 'gin/models/t5_1_1/huge.gin'\n", ["mine.gin line 1", "huge.gin", "does not exist"]),
    "include of itself": ("include 'mine.gin'\n", ["mine.gin line 1", "includes itself"]),
    "missing task module": ("from tasks import nothing_like_it\n", ["mine.gin line 1", "tasks.nothing_like_it"]),
    "misspelt field in a block": ("config.LossConfig:\n  z_los = 0.0\n", ["mine.gin line 2", "z_loss?"]),
    "T5X's class in a block": (
        "seqio.SentencePieceVocabulary:\n  extra_ids = 0\n",
        ["mine.gin line 2 names seqio.SentencePieceVocabulary", "did you mean config.DataConfig.extra_ids?", T5X],
    ),
    "not text": (b"BATCH_SIZE = '\xff\xfe'\n", ["mine.gin", "cannot be read"]),
}


def sentence_of(argv: list[str]) -> str:
    with pytest.raises(InputError) as caught:
        flags.parse_args(argv)
    return str(caught.value)


def check_sentence(sentence: str, parts: list[str]) -> None:
    assert "\n" not in sentence
    assert sentence.endswith((".", "?"))
    for part in parts:
        assert part in sentence


@pytest.mark.parametrize("case", ARGUMENTS)
def test_bad_arguments(case: str) -> None:
    argv, parts = ARGUMENTS[case]
    check_sentence(sentence_of(argv), parts)


@pytest.mark.parametrize("case", FILES)
def test_bad_files(case: str, tmp_path: Path) -> None:
    content, parts = FILES[case]
    (tmp_path / "mine.gin").write_bytes(content if isinstance(content, bytes) else content.encode())
    argv = [*PRETRAIN, f"--gin_search_paths={tmp_path}", "--gin_file=mine.gin"]
    check_sentence(sentence_of(argv), parts)


@pytest.mark.parametrize("case", ["misspelt macro", "misspelt file", "unknown flag", "wrong choice"])
def test_process_exits_with_2_and_one_line_within_seconds(case: str) -> None:
    argv, parts = ARGUMENTS[case]
    done = subprocess.run(
        [sys.executable, "-m", "limba", "train", *argv],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    check_sentence(done.stderr.strip(), parts)


def test_mistakes_are_found_before_anything_heavy_is_imported() -> None:
    code = (
        "import sys\nfrom limba.cli import flags\n"
        "try: flags.parse_args(['--gin_file=gin/demo.gin', '--gin.MODEL_DIR=out', '--gin.BATCH_SIZ=1'])\n"
        "except ValueError: pass\n"
        "assert not {'jax', 'flax', 'tensorflow', 'seqio'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


def test_help_lists_the_names(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        flags.parse_args(["--help"])
    assert caught.value.code == 0
    printed = capsys.readouterr().out
    for name in ("TRAIN_STEPS (required)", "BATCH_SIZE (128)", "DROPOUT_RATE (required)", "gin/ro_t5x_base.gin"):
        assert name in printed


@pytest.mark.parametrize("script", ["ro_base.sh", "ro_large.sh", "ro_mt5_base.sh", "ro_mt5_large.sh", "pretrain.sh"])
def test_scripts_refuse_what_they_do_not_know(script: str) -> None:
    argv = ["gin/demo.gin"] if script == "pretrain.sh" else []
    environment = {**os.environ, "MODEL_DIR": "out"}
    command = ["bash", f"launch/{script}", *argv, "steps"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "launch/pretrain.sh: the argument steps is not known; write NAME=VALUE or --gin.NAME=VALUE, or see --help."
    ]


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["trian"], ["limba has no command trian", "did you mean train?"]),
        (["xyzzy"], ["limba has no command xyzzy", "limba --help"]),
        (["train", "gin/demo.gi"], ["gin/demo.gi does not exist", "did you mean gin/demo.gin?"]),
        (["inspect", "--vocabulry=byte"], ["--vocabulry=byte", "did you mean --vocabulary"]),
        (["inspect", "a.txt", "--files=b.txt"], ["a.txt and b.txt are both given", "leave one out"]),
        (["inspect", "a.txt", "--gin.BATCH_SIZE=8"], ["--gin.BATCH_SIZE=8 is a flag of limba train"]),
    ],
)
def test_bad_commands(argv: list[str], parts: list[str], capsys) -> None:
    assert main.main(argv) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    check_sentence(printed.err.strip(), parts)


def test_each_name_of_t5x_leads_to_a_name_of_ours() -> None:
    """No message advises a class, field or macro that Limba lacks."""
    macros = {binding.name for binding in read(["gin/runs/finetune.gin"]).bindings if not binding.field}
    fields = {f"{name}.{field}" for name, cls in CLASSES.items() for field in fields_of(cls)}
    assert set(OURS.values()) <= {*CLASSES, *fields, *macros}
