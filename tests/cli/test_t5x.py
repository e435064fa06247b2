"""T5X's gin files: what they become, that the printed file is the same run, and what is refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from limba.cli import flags
from limba.cli.gin import GinRun
from limba.config import InputError
from limba.tools.migrate.t5x import tables
from limba.tools.migrate.t5x import translate as convert
from limba.tools.migrate.t5x.read import is_t5x
from limba.tools.migrate.t5x.translate import Translated, translate

FOLDER = Path(__file__).parent / "t5x"
TRAINING = ("ro_base", "ro_mt5", "c4_small", "wmt_finetune", "umt5", "byt5", "decoder")
SIZES = {"emb_dim": 32, "num_heads": 2, "head_dim": 16, "mlp_dim": 64, "num_encoder_layers": 1, "num_decoder_layers": 1}


def bindings(name: str, *overrides: str) -> dict:
    translated = translate([str(FOLDER / f"{name}.gin")], overrides, [FOLDER])
    return {ours: value for ours, (value, _) in translated.translation.bindings.items()}


def read(*arguments: str) -> GinRun:
    return flags.parse_args([*arguments, f"--gin_search_paths={FOLDER}"])


def given_later(name: str, folder: Path) -> list[str]:
    if name in ("wmt_eval", "wmt_infer"):
        output = "EVAL_OUTPUT_DIR" if name == "wmt_eval" else "INFER_OUTPUT_DIR"
        return [f"--gin.{output}={folder}", f"--gin.CHECKPOINT_PATH={folder}/model"]
    return [f"--gin.MODEL_DIR={folder}"]


def test_romanian_run_has_the_values_of_its_files():
    values_read = bindings("ro_base", "MODEL_DIR=/tmp/ro")
    expected = {
        "MODEL_DIR": "/tmp/ro", "TRAIN_STEPS": 2_000_000, "BATCH_SIZE": 128, "PACK": True, "EXTRA_IDS": 0,
        "TASK_FEATURE_LENGTHS": {"inputs": 512, "targets": 256}, "VOCABULARY": "gs://my-bucket/ro.model",
        "CHECKPOINT_PERIOD": 10_000, "CHECKPOINTS_KEPT": 5, "EVAL_STEPS": 20, "Z_LOSS": 1e-4, "LEARNING_RATE": 1.0,
        "LEARNING_RATE_FACTORS": "constant * rsqrt_decay", "WARMUP_STEPS": 10_000, "config.MeshConfig.model": 2,
        "config.ModelConfig.vocab_size": 64_000, "config.ModelConfig.num_decoder_layers": 12,
        "config.ModelConfig.scan_layers": False, "config.LossConfig.normalize_by": None, "DROPOUT_RATE": 0.0,
    }  # fmt: skip
    assert {name: values_read[name] for name in expected} == expected
    assert "INITIAL_CHECKPOINT_PATH" not in values_read


@pytest.mark.parametrize("name", [*TRAINING, "wmt_eval", "wmt_infer"])
def test_the_printed_gin_is_the_same_run(name, tmp_path, capsys):
    flag = given_later(name, tmp_path)
    theirs = read(str(FOLDER / f"{name}.gin"), *flag)
    convert.run([str(FOLDER / f"{name}.gin"), f"--gin_search_paths={FOLDER}", *flag])
    printed = tmp_path / "ours.gin"
    printed.write_text(capsys.readouterr().out)
    assert not is_t5x([str(printed)])
    ours = flags.parse_args([str(printed)])
    assert ours.config == theirs.config
    assert ours.text == theirs.text


def test_each_line_has_its_origin_and_the_table_what_differs():
    translated = translate([str(FOLDER / "ro_mt5.gin")], ["MODEL_DIR=/tmp/ro"], [FOLDER])
    text = translated.whole_text()
    assert "TRAIN_STEPS = 1100000  # " in text and "ro_mt5.gin line 12: TRAIN_STEPS" in text
    assert "LEARNING_RATE = 0.4  # " in text
    assert "t5x/configs/runs/pretrain.gin: train/utils.DatasetConfig.pack" in text
    assert "INITIAL_CHECKPOINT_PATH = 'gs://t5-data/pretrained_models/t5x/mt5_base/checkpoint_1000000'" in text
    assert "RANDOM_SEED = None -> RANDOM_SEED = 0: T5X takes the time" in text
    for line in text.splitlines():
        assert line.startswith(("#", "from ", "import ", "include ")) or not line or "  # " in line


def test_families():
    umt5 = bindings("umt5", "MODEL_DIR=/tmp/x")
    assert umt5["config.ModelConfig.relative_bias_per_layer"] is True
    assert umt5["config.ModelConfig.remat"] == "minimal" and umt5["config.ModelConfig.vocab_size"] == 256_384
    assert umt5["config.LossConfig.normalize_by"] == "tokens" and umt5["BATCH_SIZE"] == 1024
    assert umt5["config.DataConfig.seed"] == 42 and umt5["RANDOM_SEED"] == 0
    byt5 = bindings("byt5", "MODEL_DIR=/tmp/x")
    assert byt5["config.ModelConfig.num_encoder_layers"] == 12 and byt5["config.ModelConfig.vocab_size"] == 384
    assert byt5["config.LossConfig.normalize_by"] == "sequences"
    decoder = bindings("decoder", "MODEL_DIR=/tmp/x")
    assert decoder["config.ModelConfig.num_encoder_layers"] == 0
    assert decoder["config.ModelConfig.num_decoder_layers"] == 12
    assert decoder["TASK_FEATURE_LENGTHS"] == {"targets": 512, "prefix": 256}
    assert decoder["config.ModelConfig.positions"] == "relative"
    assert decoder["config.ModelConfig.prefix_attention"] == "full"
    assert decoder["config.GenerationConfig.top_k"] == 40 and decoder["config.GenerationConfig.num_samples"] == 8
    finetune = bindings("wmt_finetune", "MODEL_DIR=/tmp/x")
    assert finetune["config.LossConfig.normalize_by"] == 233_472
    assert finetune["config.GenerationConfig.num_beams"] == 4 and finetune["EVAL_PERIOD"] == 100
    assert finetune["CHECKPOINT_PERIOD"] == 5_000 and finetune["CHECKPOINTS_KEPT"] is None
    evaluation = bindings("wmt_eval", "CHECKPOINT_PATH=/tmp/c", "EVAL_OUTPUT_DIR=/tmp/o")
    assert evaluation["config.DataConfig.validation_split"] == "test"
    assert evaluation["INITIAL_CHECKPOINT_PATH"] == "/tmp/c" and evaluation["MODEL_DIR"] == "/tmp/o"


@pytest.mark.parametrize("path", tables.PATHS)
def test_every_file_of_the_tables_can_be_included(path, tmp_path):
    if "/runs/" in path:
        parts = ["t5x/examples/t5/t5_1_1/small.gin", path]
    elif "pretrain_" in path:
        parts = [path]
    elif "umt5/" in path:
        parts = ["t5x/examples/scalable_t5/mt5/small.gin", path, "t5x/configs/runs/pretrain.gin"]
    else:
        parts = [path, "t5x/configs/runs/pretrain.gin"]
    file = tmp_path / "mine.gin"
    file.write_text("".join(f"include '{part}'\n" for part in parts) + "DROPOUT_RATE = 0.0\n")
    names = {"MODEL_DIR": "/tmp/x", "TRAIN_STEPS": 5, "MIXTURE_OR_TASK_NAME": "'a'", "INITIAL_CHECKPOINT_PATH": "/c"}
    names |= {"TASK_FEATURE_LENGTHS": {"inputs": 32, "targets": 32}, "VOCAB_SIZE": 256, "CHECKPOINT_PATH": "/c"}
    names |= {"EVAL_OUTPUT_DIR": "/o", "INFER_OUTPUT_DIR": "/o", "TRAIN_EVAL_MIXTURE_OR_TASK_NAME": "'a'"}
    values = translate([str(file)], [f"{name}={value}" for name, value in names.items()], []).translation.bindings
    assert values["config.ModelConfig.head_dim"][0] > 0


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "network.T5Config.emb_dims = 5",
            "line 9 sets network.T5Config.emb_dims (did you mean T5Config.emb_dim?), which Limba does not know;"
            " docs/coming_from_t5x.md has the list.",
        ),
        ("utils.SaveCheckpointConfig.checkpoint_steps = [5]", "Limba saves every SaveCheckpointConfig.period steps"),
        ("utils.RestoreCheckpointConfig.mode = 'all'\nutils.RestoreCheckpointConfig.path='/c'", "give 'specific'"),
        ("utils.RestoreCheckpointConfig.assignment_map = [('a', 'b')]", "Limba renames no parameters"),
        (
            "adafactor.Adafactor.logical_factor_rules = @my_rules()",
            "line 9 sets adafactor.Adafactor.logical_factor_rules",
        ),
        ("adafactor.Adafactor.factor_map = 3", "line 9 sets adafactor.Adafactor.factor_map to 3: Limba's Adafactor"),
        ("OPTIMIZER = @optax.lion()", "use one of them (docs/coming_from_t5x.md)"),
        ("TASK_FEATURE_LENGTHS = None", "give lengths such as"),
        ("TRAIN_STEPS_RELATIVE = 100", "set TRAIN_STEPS to the step of the checkpoint plus these steps"),
        (
            "models.EncoderDecoderModel.feature_converter_cls = @seqio.PassThroughFeatureConverter",
            "the task gives T5X's model features",
        ),
        ("LOSS_NORMALIZING_FACTOR = 'TOKENS'", "T5X has NUM_REAL_TARGET_TOKENS"),
        ("network.T5Config.dtype = 'float16'", "Limba computes in 'float32' or 'bfloat16'"),
        ("include 't5x/configs/runs/pretrian.gin'", "did you mean t5x/configs/runs/pretrain.gin"),
        ("BATCH_SIZE = %ROWS", "uses %ROWS, which nothing sets"),
        (
            "include 't5x/examples/decoder_only/models/base.gin'\nDROPOUT_RATE = 0.0\n"
            "TASK_FEATURE_LENGTHS = {'inputs': 8}",
            "a decoder-only row has inputs and targets; give the length of both",
        ),
    ],
)
def test_bad_lines_get_a_sentence(line, sentence, tmp_path):
    file = tmp_path / "mine.gin"
    file.write_text(
        "import __main__ as train_script\ninclude 't5x/examples/t5/t5_1_1/small.gin'\n"
        "include 't5x/configs/runs/pretrain.gin'\nMIXTURE_OR_TASK_NAME = 'a'\nMODEL_DIR = '/tmp/x'\n"
        "TASK_FEATURE_LENGTHS = {'inputs': 8, 'targets': 8}\nTRAIN_STEPS = 5\nDROPOUT_RATE = 0.0\n" + line + "\n"
    )
    with pytest.raises(InputError) as error:
        translate([str(file)], [], [])
    assert sentence in str(error.value) and "\n" not in str(error.value)


PIECES = (
    "VOCABULARY = @seqio.SentencePieceVocabulary()\nseqio.SentencePieceVocabulary.sentencepiece_model_file = '/v'\n"
)
OWN = "the task's own vocabulary counts, as in T5X"


@pytest.mark.parametrize(
    ("lines", "wanted", "row"),
    [  # what of our bindings follows, None for one that must not be there; and why, in the table
        ("utils.RestoreCheckpointConfig.dtype = 'bfloat16'", {"RESET_STEP": None}, "parameters are float32 in Limba"),
        ("utils.RestoreCheckpointConfig.assignment_map = [('state.*', None)]", {"RESET_STEP": True}, ""),
        ("utils.RestoreCheckpointConfig.assignment_map = [('target/a', 'target/a')]", {"RESET_STEP": None}, ""),
        (
            "VOCABULARY = @seqio.PassThroughVocabulary()\nseqio.PassThroughVocabulary.size = 1000",
            {"VOCABULARY": None, "EXTRA_IDS": None},
            OWN,
        ),
        (f"{PIECES}seqio.SentencePieceVocabulary.extra_ids = 200", {"VOCABULARY": "/v", "EXTRA_IDS": 200}, ""),
        (PIECES, {"VOCABULARY": "/v", "EXTRA_IDS": 0}, ""),
        ("seqio.SentencePieceVocabulary.extra_ids = 200", {"VOCABULARY": None, "EXTRA_IDS": None}, OWN),
        (
            PIECES.replace("seqio.S", "mine/seqio.S") + "mine/seqio.SentencePieceVocabulary.extra_ids = 7",
            {"VOCABULARY": "/v", "EXTRA_IDS": 7},
            "",
        ),
        ("PjitPartitioner.logical_axis_rules = @my_rules()", {"config.MeshConfig.model": 1}, "Limba's own rules"),
        (
            "partitioning.PjitPartitioner.logical_axis_rules = [('batch', 'data'), ('mlp', None)]",
            {"config.MeshConfig.model": 1},
            "another layout on the devices, the same numbers",
        ),
    ],
)
def test_bindings_reach_the_configuration_or_the_table(lines, wanted, row, tmp_path):
    file = tmp_path / "mine.gin"
    file.write_text(
        "include 't5x/examples/t5/t5_1_1/small.gin'\ninclude 't5x/configs/runs/finetune.gin'\n"
        "MIXTURE_OR_TASK_NAME = 'a'\nMODEL_DIR = '/tmp/x'\nTASK_FEATURE_LENGTHS = {'inputs': 8, 'targets': 8}\n"
        "TRAIN_STEPS = 5\nINITIAL_CHECKPOINT_PATH = '/c'\n" + lines + "\n"
    )
    translation = translate([str(file)], [], []).translation
    assert {name: translation.bindings.get(name, (None,))[0] for name in wanted} == wanted
    assert translation.bindings["INITIAL_CHECKPOINT_PATH"][0] == "/c"
    name = lines.splitlines()[-1].partition(" = ")[0]
    rows = [line for line in translation.rows if line.theirs.startswith(f"{name} = ")]
    assert not row or (rows and all(line.kind in ("differs", "dropped") and row in line.why for line in rows))


@pytest.mark.parametrize(
    "pairs",
    ["[('.*', None)]", "[('state.*', None), ('target/decoder.*', None)]", "[('state/([a-z', None)]", "[3]", "3",
     "[('state/step', 'state/step'), ('state.*', None)]", "[('target/(.*)', r'target/\\1')]"],
)  # fmt: skip
def test_an_assignment_map_that_limba_cannot_honour_is_refused(pairs):
    override = f"utils.RestoreCheckpointConfig.assignment_map={pairs}"
    with pytest.raises(InputError, match="RestoreCheckpointConfig.assignment_map to .*: Limba renames no parameters"):
        bindings("wmt_finetune", "MODEL_DIR=/tmp/x", override)


def of_lines(folder: Path, *lines: str, model: str = "t5/t5_1_1/small", run: str = "pretrain") -> Translated:
    """The translation of a gin file with these lines after T5X's own files; every required name has a value."""
    file = folder / "mine.gin"
    file.write_text(
        f"include 't5x/examples/{model}.gin'\ninclude 't5x/configs/runs/{run}.gin'\nMIXTURE_OR_TASK_NAME = 'a'\n"
        "TASK_FEATURE_LENGTHS = {'inputs': 8, 'targets': 8}\nTRAIN_STEPS = 5\nDROPOUT_RATE = 0.0\n" + "\n".join(lines)
    )
    output = {"eval": "EVAL_OUTPUT_DIR", "infer": "INFER_OUTPUT_DIR"}.get(run, "MODEL_DIR")
    translated = translate(
        [str(file)], [f"{output}=/tmp/x", "CHECKPOINT_PATH=/c"][: 2 if run in ("eval", "infer") else 1], []
    )
    translated.check()
    return translated


def test_a_macro_that_nothing_uses_is_dropped_with_a_line(tmp_path):
    """Legal gin, which T5X runs; a name near a known one may be a mistake, so the line has both."""
    translated = of_lines(tmp_path, "NUM_EMBEDDINGS = 32128", "TOPOLOGY = 'v2-32'", "BATCH_SIZ = 4", "MESH = %TOPOLOGY")
    table = translated.translation.table()
    for line in ("NUM_EMBEDDINGS = 32128", "BATCH_SIZ = 4"):
        assert f"#     {line} -> nothing: nothing in this run uses it" in table
    assert translated.translation.bindings["BATCH_SIZE"][0] == 128
    assert "BATCH_SIZ (did you mean BATCH_SIZE?)" in translated.translation.summary()
    with pytest.raises(
        InputError, match=r"--gin.BATCH_SIZ sets BATCH_SIZ \(did you mean BATCH_SIZE\?\), which Limba does"
    ):
        translate([str(tmp_path / "mine.gin")], ["MODEL_DIR=/tmp/x", "BATCH_SIZ=4"], [])


def test_fields_of_what_a_run_does_not_refer_to_are_dropped(tmp_path):
    translated = of_lines(tmp_path, "optax.adamw.b1 = 0.5", "decoding.temperature_sample.topk = 3")
    assert "optax.adamw.b1 = 0.5 -> nothing: nothing in this run uses it" in translated.translation.table()


def test_all_unknown_names_are_told_at_once(tmp_path):
    with pytest.raises(InputError) as error:
        of_lines(tmp_path, "network.T5Config.emb_dims = 5", "NUM_EMBEDDINGS = 3", "mine.Own.field = 4")
    assert str(error.value) == (
        f"{tmp_path}/mine.gin line 7 sets network.T5Config.emb_dims (did you mean T5Config.emb_dim?),"
        f" {tmp_path}/mine.gin line 9 sets mine.Own.field, which Limba does not know;"
        " docs/coming_from_t5x.md has the list."
    )


def test_names_of_2021(tmp_path):
    """T5X's of its first months: the loss's fields were its method's, and the partitioner had another name."""
    old = of_lines(
        tmp_path,
        "models.EncoderDecoderModel.loss_fn.z_loss = 0.5",
        "models.EncoderDecoderModel.loss_fn.loss_normalizing_factor = 7",
        "train_script.train.partitioner = @partitioning.ModelBasedPjitPartitioner()",
        "partitioning.ModelBasedPjitPartitioner.model_parallel_submesh = (2, 2, 1, 1)",
    ).translation.bindings
    assert old["Z_LOSS"][0] == 0.5 and old["config.LossConfig.normalize_by"][0] == 7
    assert old["config.MeshConfig.model"][0] == 4


@pytest.mark.parametrize(("run", "limit"), [("pretrain", "config.GenerationConfig.max_tokens"), ("eval", "MAX_TOKENS")])
@pytest.mark.parametrize(("steps", "tokens"), [(5, 5), (200, 16)])
def test_max_decode_steps_is_the_limit_of_a_text(run, limit, steps, tokens, tmp_path):
    line = f"decoding.temperature_sample.max_decode_steps = {steps}"
    translated = of_lines(tmp_path, line, model="decoder_only/models/base", run=run)
    assert translated.translation.bindings[limit][0] == tokens  # a row of 8 + 8 tokens at most


def test_unequal_lengths_of_a_decoder_only_row(tmp_path):
    lengths = "TASK_FEATURE_LENGTHS = {'inputs': 512, 'targets': 114}"
    translated = of_lines(tmp_path, lengths, model="decoder_only/models/base")
    assert translated.translation.bindings["TASK_FEATURE_LENGTHS"][0] == {"targets": 626, "prefix": 512}
    assert translated.translation.bindings["config.GenerationConfig.max_tokens"][0] == 114


def test_an_evaluation_of_another_task_is_named(tmp_path):
    lines = ("train_eval/utils.DatasetConfig.mixture_or_task_name = 'b'",
             "train_eval/utils.DatasetConfig.split = 'valid'")  # fmt: skip
    translation = of_lines(tmp_path, *lines).translation
    assert (
        "mixture_or_task_name = 'b' -> MIXTURE_OR_TASK_NAME: Limba evaluates on a split of the task"
        in translation.table()
    )
    assert translation.bindings["config.DataConfig.validation_split"][0] == "valid"


def test_a_comment_does_not_choose_the_network(tmp_path):
    """Each of T5X's folders has a `network` of its own, with other parameters."""
    lines = (
        "from t5x.examples.t5 import network", "# from t5x.examples.scalable_t5 import network",
        "models.EncoderDecoderModel.module = @network.Transformer()",
    )  # fmt: skip
    of_comment = of_lines(tmp_path, *lines).translation.bindings
    assert "config.ModelConfig.relative_bias_per_layer" not in of_comment
    assert of_comment["config.ModelConfig.scan_layers"][0] is False
    of_import = of_lines(tmp_path, lines[0], lines[1].removeprefix("# "), lines[2]).translation.bindings
    assert of_import["config.ModelConfig.relative_bias_per_layer"][0] is True


def test_convert_gin_prints_nothing_that_train_refuses(tmp_path, capsys):
    file = tmp_path / "mine.gin"
    of_lines(tmp_path)
    file.write_text(file.read_text() + "INITIAL_CHECKPOINT_PATH = ''\nutils.RestoreCheckpointConfig.path = ['']\n")
    with pytest.raises(InputError, match="is ''; give a text that is not empty or None"):
        convert.run([str(file)])
    assert not capsys.readouterr().out
    convert.run([str(file), "--gin.INITIAL_CHECKPOINT_PATH=/c", "--gin.utils.RestoreCheckpointConfig.path='/c'"])
    assert "MODEL_DIR = %gin.REQUIRED" in capsys.readouterr().out


def test_a_macro_without_a_value_is_named():
    with pytest.raises(InputError, match=r"^MODEL_DIR is not set, and t5x/configs/runs/pretrain.gin needs it; add"):
        bindings("c4_small")


def test_optimizers_of_optax(tmp_path):
    file = tmp_path / "mine.gin"
    file.write_text(
        "include 't5x/examples/t5/t5_1_1/small.gin'\ninclude 't5x/configs/runs/pretrain.gin'\n"
        "from t5x import optimizers\nimport optax\nOPTIMIZER = @optimizers.chain()\n"
        "optimizers.chain.transformations = [@optax.clip_by_global_norm(), @optax.adamw()]\n"
        "optax.clip_by_global_norm.max_norm = 1.0\noptax.adamw.learning_rate = @optax.warmup_cosine_decay_schedule()\n"
        "optax.warmup_cosine_decay_schedule:\n  init_value = 0.0\n  peak_value = 1e-4\n  warmup_steps = 1000\n"
        "  decay_steps = %TRAIN_STEPS\n  end_value = 0.0\n"
    )
    overrides = ["MODEL_DIR=/tmp/x", "TRAIN_STEPS=5000", "DROPOUT_RATE=0.0", "MIXTURE_OR_TASK_NAME='a'"]
    values = translate([str(file)], [*overrides, "TASK_FEATURE_LENGTHS={'inputs': 8, 'targets': 8}"], [])
    values_read = {name: value for name, (value, _) in values.translation.bindings.items()}
    assert (
        values_read["config.OptimizerConfig.name"] == "adamw"
        and values_read["config.OptimizerConfig.clip_global_norm"] == 1.0
    )
    assert (
        values_read["config.ScheduleConfig.name"] == "cosine"
        and values_read["config.ScheduleConfig.decay_steps"] == 5000
    )
    assert values_read["LEARNING_RATE"] == 1e-4 and values_read["config.OptimizerConfig.weight_decay"] == 1e-4


def test_a_users_copy_of_t5xs_file_has_priority(tmp_path):
    copy = tmp_path / "t5x" / "configs" / "runs" / "pretrain.gin"
    copy.parent.mkdir(parents=True)
    _, table = tables.include_file("t5x/configs/runs/pretrain.gin") or ((), {})
    lines = [f"{name} = {value}\n" for name, value in table.items()]
    copy.write_text("".join(lines) + "utils.SaveCheckpointConfig.period = 77\n")
    file = FOLDER / "c4_small.gin"
    values = translate([str(file)], ["MODEL_DIR=/tmp/x"], [tmp_path]).translation.bindings
    assert values["CHECKPOINT_PERIOD"] == (77, f"t5x/configs/runs/pretrain.gin line {len(lines) + 1}: "
                                           "utils.SaveCheckpointConfig.period")  # fmt: skip


def test_inference_of_a_decoder_only_model_with_inputs_is_refused(tmp_path):
    """Its prompts would be read otherwise than the inputs it was trained on."""
    file = tmp_path / "mine.gin"
    file.write_text(
        "include 't5x/examples/decoder_only/models/base.gin'\ninclude 't5x/configs/runs/infer.gin'\n"
        "DROPOUT_RATE = 0.0\nMIXTURE_OR_TASK_NAME = 'a'\nTASK_FEATURE_LENGTHS = {'inputs': 8, 'targets': 8}\n"
    )
    overrides = ["CHECKPOINT_PATH=/c", "INFER_OUTPUT_DIR=/o"]
    with pytest.raises(InputError, match="line 5 sets TASK_FEATURE_LENGTHS .*: limba generate reads a prompt as text"):
        translate([str(file)], overrides, [])
    read_bindings = translate([str(file)], [*overrides, "TASK_FEATURE_LENGTHS={'targets': 8}"], []).translation.bindings
    assert read_bindings["config.ModelConfig.prefix_attention"][0] == "causal" and read_bindings["MAX_TOKENS"][0] == 8


def test_convert_gin_names_what_is_wrong(tmp_path):
    ours = tmp_path / "ours.gin"
    ours.write_text("from limba import config\n")
    with pytest.raises(InputError, match="includes none of T5X's files"):
        convert.run([str(ours)])
    with pytest.raises(InputError, match="No gin file is given"):
        convert.run([])


def test_a_run_of_t5x_keeps_its_directory_and_is_started_from(tmp_path):
    """Its newest checkpoint is the initial one, with its step and averages; nothing is written beside it."""
    golden = Path(__file__).parent.parent / "golden" / "t5x_legacy"
    with pytest.raises(InputError, match="holds a run of T5X; give another directory"):
        read(str(FOLDER / "c4_small.gin"), f"--gin.MODEL_DIR={golden}")
    flag = f"--gin.INITIAL_CHECKPOINT_PATH={golden}"
    result = read(str(FOLDER / "c4_small.gin"), f"--gin.MODEL_DIR={tmp_path}", flag)
    assert result.config.initial_checkpoint_path == str(golden) and not result.config.reset_step


def corpora(folder: Path) -> dict[str, str]:
    words = ["casa", "masa", "pisica", "om", "drum", "apa", "munte", "soare", "carte", "pom"]
    texts = [" ".join(words[i * k % 7 + i // k % 4] for k in range(1, 40)) for i in range(1, 600)]
    (folder / "corpus.txt").write_text("\n".join(texts) + "\n")
    pairs = [json.dumps({"en": text[:40], "de": text[5:50]}) for text in texts]
    for split in ("train", "validation", "test"):
        (folder / f"{split}.jsonl").write_text("\n".join(pairs) + "\n")
    splits = {split: str(folder / f"{split}.jsonl") for split in ("train", "validation", "test")}
    return {"text": str(folder / "corpus.txt"), "pairs": str(splits)}


def small(name: str, folder: Path) -> list[str]:
    """The overrides of a run: MODEL_DIR, vocabulary, data and size."""
    data = corpora(folder)
    network = "TransformerConfig" if name == "decoder" else "T5Config"
    sizes = dict(SIZES)
    if name == "decoder":
        sizes = {**{key: sizes[key] for key in ("emb_dim", "num_heads", "head_dim", "mlp_dim")}, "num_layers": 1}
    is_pairs = name in ("wmt_finetune", "wmt_eval", "wmt_infer", "decoder")
    values = {
        "VOCABULARY": "byte",
        "CORPUS": data["pairs"] if is_pairs else data["text"],
        "VOCAB_SIZE" if name == "umt5" else f"network.{network}.vocab_size": 384,
        **{f"network.{network}.{key}": value for key, value in sizes.items()},
        "TASK_FEATURE_LENGTHS": "{'inputs': 64, 'targets': 64}",
    }
    if is_pairs:  # the published task on WMT translates these features
        values["COLUMN"] = "{'en': 'en', 'de': 'de'}"
    if name in TRAINING:
        values |= {"MODEL_DIR": folder / "run", "TRAIN_STEPS": 20, "BATCH_SIZE": 8, "LOG_PERIOD": 5}
    return [f"--gin.{key}={value}" for key, value in values.items()]


def losses_of(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] == 20
    return [line["loss"] for line in lines if line["kind"] == "train"]


@pytest.mark.parametrize("name", ["c4_small", "wmt_finetune"])
def test_published_tasks_of_t5_read_files_of_their_columns(name, tmp_path):
    """C4's task has a place for a cache, which seqio refuses on a source without one; WMT's reads two columns."""
    from limba.data.tasks import resolve_task

    result = read(str(FOLDER / f"{name}.gin"), *small(name, tmp_path), "--gin.INITIAL_CHECKPOINT_PATH=None")
    task = resolve_task(result.config.data)
    first = next(iter(task.source.get_dataset("train", shuffle=False).as_numpy_iterator()))
    assert set(first) == ({"text"} if name == "c4_small" else {"en", "de"})


@pytest.mark.night
@pytest.mark.parametrize("name", [name for name in TRAINING if name != "wmt_finetune"])
def test_twenty_steps_of_each_file_lower_the_loss(name, tmp_path, monkeypatch):
    from limba.run import train

    monkeypatch.syspath_prepend(str(FOLDER))
    more = ["--gin.INITIAL_CHECKPOINT_PATH=None"] if name == "ro_mt5" else []
    if name == "decoder":  # an evaluation of few texts, each of a few tokens after its inputs
        more += ["--gin.seqio.Evaluator.num_examples=2", "--gin.config.GenerationConfig.max_tokens=8"]
    result = read(str(FOLDER / f"{name}.gin"), *small(name, tmp_path), *more)
    assert train(result.config, result.text)["step"] == 20
    losses = losses_of(tmp_path / "run")
    assert losses[-1] < losses[0]
    if name == "decoder":
        (texts,) = (tmp_path / "run" / "evaluations").glob("*.jsonl")
        figures, *examples = map(json.loads, texts.read_text().splitlines())
        assert "bleu" in figures["figures"] and len(examples) == 2
        assert all(not example["prediction"].startswith(example["input"]) for example in examples)


def write_checkpoint(folder: Path) -> Path:
    """Writes a checkpoint as T5X does, of step 7, with the network of SIZES and no averages."""
    from limba.formats import t5x
    from limba.formats.names import flatten, unstack_layers
    from tests import tiny

    leaves = flatten(tiny.parameters(tiny.model(vocab_size=384, **SIZES)))
    tree = {f"target/{name}": np.asarray(leaf) for name, leaf in unstack_layers(leaves).items()}
    return Path(t5x.write_legacy(folder, 7, {**tree, "state/step": np.int32(7)}))


@pytest.mark.night
def test_the_command_trains_and_evaluates(tmp_path):
    """As a user types it: wmt_finetune.gin's run of 20 steps, then wmt_eval.gin and wmt_infer.gin on its checkpoint."""
    run = tmp_path / "run"
    out = tmp_path / "out"
    texts = tmp_path / "in.txt"
    texts.write_text("casa\nmasa\n")
    searched = f"--gin_search_paths={FOLDER}"
    short = "--gin.MAX_TOKENS=8"
    commands = [
        # From the parameters of a checkpoint of T5X, at a rate for 20 steps; an evaluation of few texts.
        ["train", str(FOLDER / "wmt_finetune.gin"), searched, *small("wmt_finetune", tmp_path),
         f"--gin.INITIAL_CHECKPOINT_PATH={write_checkpoint(tmp_path / 't5x')}", "--gin.EVALUATOR_NUM_EXAMPLES=2",
         "--gin.utils.RestoreCheckpointConfig.assignment_map=[('state.*', None)]",
         "--gin.utils.create_learning_rate_scheduler.base_learning_rate=0.01",
         "--gin.config.GenerationConfig.max_tokens=8"],
        ["evaluate", f"--gin_file={FOLDER / 'wmt_eval.gin'}", searched, *small("wmt_eval", tmp_path), short,
         f"--gin.CHECKPOINT_PATH={run}", f"--gin.EVAL_OUTPUT_DIR={out}", "--num_examples=2", "--import=t5"],
        ["generate", f"--gin_file={FOLDER / 'wmt_infer.gin'}", searched, *small("wmt_infer", tmp_path), short,
         f"--gin.CHECKPOINT_PATH={run}", f"--gin.INFER_OUTPUT_DIR={out}", f"--input={texts}",
         f"--output={tmp_path / 'out.jsonl'}", "--import=t5"],
    ]  # fmt: skip
    program = [sys.executable, "-m", "tests.cli.script_commands", json.dumps(commands), str(tmp_path / "folders")]
    (tmp_path / "folders").mkdir()
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    with (tmp_path / "said.txt").open("w+") as said:
        subprocess.run(program, env=environment, cwd=root, stdout=said, stderr=said, timeout=600, check=False)
        said.seek(0)
        printed = said.read()
    assert printed.count("=== ended 0") == len(commands), printed[-4000:]
    losses = losses_of(run)
    assert losses[-1] < losses[0]
    assert "bleu" in printed.partition("=== 1")[2].partition("=== 2")[0]
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 2
