"""Scopes in T5X's gin files: what a reference calls gets the values that gin-config itself gives it."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import gin
import pytest

from limba.cli.gin.read import run_of
from limba.cli.gin.statements import Source, read_with_includes
from limba.config import InputError, RunConfig
from limba.tools.migrate.t5x.read import read
from limba.tools.migrate.t5x.settings import Settings, Target, class_of, owner_of
from limba.tools.migrate.t5x.translate import Translated, translate
from tests.cli import t5x_public

ROOT = Path(__file__).parents[2]
DATASET = (
    "utils.DatasetConfig:\n  mixture_or_task_name = 'a'\n  task_feature_lengths = {'inputs': 16, 'targets': 4}\n"
    "  split = 'train'\n  batch_size = 64\n  shuffle = False\n  seed = 7\n  pack = False\n  use_cached = False\n"
)
# What follows T5X's own files of a pretraining run in the user's file.
SCOPED = {
    "schedule": "trainer.Trainer.learning_rate_fn = @fast/utils.create_learning_rate_scheduler()\n"
    "fast/utils.create_learning_rate_scheduler:\n  factors = 'constant'\n  base_learning_rate = 0.003\n"
    "  warmup_steps = 500\n",
    "some fields of the schedule": "trainer.Trainer.learning_rate_fn = @fast/utils.create_learning_rate_scheduler()\n"
    "fast/utils.create_learning_rate_scheduler.base_learning_rate = 0.003\n",
    "checkpoints": "utils.CheckpointConfig.save = @often/utils.SaveCheckpointConfig()\n"
    "often/utils.SaveCheckpointConfig.period = 50\n",
    "all of a scope": "train_script.train.checkpoint_cfg = @often/utils.CheckpointConfig()\n"
    "often/utils.SaveCheckpointConfig.period = 50\n",
    "trainer": "train_script.train.trainer_cls = @mine/trainer.Trainer\nmine/trainer.Trainer.num_microbatches = 4\n"
    "mine/utils.create_learning_rate_scheduler.warmup_steps = 7\n",
    "data": f"train_script.train.train_dataset_cfg = @mine/utils.DatasetConfig()\nmine/{DATASET}",
    "data without a scope": f"train_script.train.train_dataset_cfg = @utils.DatasetConfig()\n{DATASET}",
    "nested scopes": "train_script.train.train_dataset_cfg = @train/mine/utils.DatasetConfig()\n"
    "train/mine/utils.DatasetConfig.batch_size = 64\n",
    "evaluation": "train_script.train.train_eval_dataset_cfg = @dev/utils.DatasetConfig()\ndev/"
    + DATASET.replace("'train'", "'dev'"),
    "optimizer": "models.EncoderDecoderModel.optimizer_def = @slow/adafactor.Adafactor()\n"
    "slow/adafactor.Adafactor.decay_rate = 0.99\nslow/adafactor.Adafactor.step_offset = 50\n",
    "another optimizer": "models.EncoderDecoderModel.optimizer_def = %MINE\nMINE = @mine/optimizers.adamw()\n"
    "mine/optimizers.adamw.learning_rate = 0.0003\n",
    "steps of an optimizer": "OPTIMIZER = @optimizers.chain()\n"
    "optimizers.chain.transformations = [@optax.clip_by_global_norm(), @mine/optimizers.adamw()]\n"
    "OPTIMIZER/optax.clip_by_global_norm.max_norm = 2.0\nmine/optimizers.adamw.learning_rate = 0.0003\n",
    "network": "network.Transformer.config = @big/network.T5Config()\nbig/network.T5Config.emb_dim = 1024\n",
    "a macro's name": "MODEL/network.T5Config.emb_dim = 1024\nMODEL/models.EncoderDecoderModel.z_loss = 0.5\n"
    "OPTIMIZER/adafactor.Adafactor.decay_rate = 0.9\n",
    "another model": "train_script.train.model = @mine/models.EncoderDecoderModel()\n"
    "mine/models.EncoderDecoderModel.z_loss = 0.5\nmine/network.T5Config.num_heads = 4\n",
    "a macro in a scope": "mine/BATCH_SIZE = 8\n",
    "a macro of a scope": "mine/ROWS = 8\ntrain/utils.DatasetConfig.batch_size = %mine/ROWS\n",
    "partitioner": "train_script.train.partitioner = @mine/partitioning.PjitPartitioner()\n"
    "mine/partitioning.PjitPartitioner.num_partitions = 2\n",
    "nothing": "",
}


def written(folder: Path, lines: str) -> Path:
    """A pretraining run with these lines."""
    file = folder / "mine.gin"
    file.write_text(
        "include 't5x/examples/t5/t5_1_1/small.gin'\ninclude 't5x/configs/runs/pretrain.gin'\n"
        "MIXTURE_OR_TASK_NAME = 'a'\nTASK_FEATURE_LENGTHS = {'inputs': 8, 'targets': 8}\nTRAIN_STEPS = 5\n"
        f"DROPOUT_RATE = 0.0\nMODEL_DIR = '/tmp/x'\n{lines}"
    )
    return file


def translated(folder: Path, lines: str) -> Translated:
    run = translate([str(written(folder, lines))], [], [])
    run.check()
    return run


def config_of(run: Translated) -> RunConfig:
    source = Source()
    read_with_includes(source, run.whole_text(), "the printed file")
    return run_of(source).config


@pytest.fixture(scope="module")
def runs_of_gin(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What gin-config gives to T5X's `train` for each text of SCOPED."""
    t5x = tmp_path_factory.mktemp("t5x")
    t5x_public.write_tables(t5x)
    files = [str(written(tmp_path_factory.mktemp("mine"), lines)) for lines in SCOPED.values()]
    program = [sys.executable, "-m", "tests.cli.t5x_gin", str(t5x), *files]
    printed = subprocess.run(program, cwd=ROOT, check=True, capture_output=True, text=True, timeout=300).stdout
    return dict(zip(SCOPED, json.loads(printed), strict=True))


def facts_of_gin(run: dict[str, Any]) -> dict[str, Any]:
    """Returns the numbers of a run as gin has them, in Limba's words."""
    model = run["model"]
    network = model["module"]["config"]
    data = run["train_dataset_cfg"]
    save = run["checkpoint_cfg"]["save"]
    trainer = run["trainer_cls"]
    optimizer = model["optimizer_def"]
    facts: dict[str, Any] = {
        "sizes": [network["emb_dim"], network["num_heads"]],
        "z_loss": model["z_loss"],
        "batch": data["batch_size"],
        "lengths": data["task_feature_lengths"],
        "pack": data["pack"],
        "shuffle": data["shuffle"],
        "seed": data["seed"] or 0,
        "period": save["period"],
        "parts": trainer["num_microbatches"] or 1,
        "split": run["train_eval_dataset_cfg"]["split"],
        "mesh": run["partitioner"]["num_partitions"],
        "optimizer": optimizer[""].lower(),
    }
    if optimizer[""] == "Adafactor":
        schedule = trainer["learning_rate_fn"]
        facts["adafactor"] = [optimizer["decay_rate"], optimizer["step_offset"]]
        facts["schedule"] = [schedule["factors"], schedule["base_learning_rate"], schedule["warmup_steps"]]
        return facts
    if optimizer[""] == "chain":
        clip, optimizer = optimizer["transformations"]
        facts |= {"optimizer": optimizer[""], "clip": clip["max_norm"]}
    facts["schedule"] = ["constant", optimizer["learning_rate"], 0]
    return facts


def facts_of_limba(config: RunConfig) -> dict[str, Any]:
    data = config.data
    optimizer = config.optimizer
    schedule = optimizer.schedule
    facts: dict[str, Any] = {
        "sizes": [config.model.emb_dim, config.model.num_heads],
        "z_loss": config.loss.z_loss,
        "batch": data.batch_size,
        "lengths": dict(data.task_feature_lengths),
        "pack": data.pack,
        "shuffle": data.shuffle,
        "seed": data.seed,
        "period": config.checkpoint.every_steps,
        "parts": config.num_microbatches,
        "split": data.validation_split,
        "mesh": config.mesh.model,
        "optimizer": optimizer.name,
        "schedule": [schedule.factors, schedule.base_learning_rate, schedule.warmup_steps],
    }
    if optimizer.name == "adafactor":
        facts["adafactor"] = [getattr(optimizer, "decay_rate", None), optimizer.step_offset]
    elif optimizer.clip_global_norm is not None:
        facts["clip"] = optimizer.clip_global_norm
    return facts


@pytest.mark.parametrize("name", SCOPED)
def test_a_reference_calls_with_the_values_of_its_scope(name, tmp_path, runs_of_gin):
    assert facts_of_limba(config_of(translated(tmp_path, SCOPED[name]))) == facts_of_gin(runs_of_gin[name])


def test_each_scoped_text_changes_the_run(runs_of_gin):
    unchanged = [name for name, run in runs_of_gin.items() if facts_of_gin(run) == facts_of_gin(runs_of_gin["nothing"])]
    assert unchanged == ["a macro in a scope", "nothing"]


def test_what_nothing_refers_to_is_dropped_and_the_rest_is_used_or_refused(tmp_path):
    """A binding in a scope is idle where no reference has that scope, and only there."""
    idle = "fast/utils.create_learning_rate_scheduler.warmup_steps = 500\n"
    row = "fast/utils.create_learning_rate_scheduler.warmup_steps = 500 -> nothing: nothing in this run uses it"
    assert row in translated(tmp_path, idle).translation.table()
    used = f"trainer.Trainer.learning_rate_fn = @fast/utils.create_learning_rate_scheduler()\n{idle}"
    assert "nothing in this run uses it" not in translated(tmp_path, used).translation.table()
    other = "models.EncoderDecoderModel.output_vocabulary = @out/seqio.SentencePieceVocabulary()\n"
    with pytest.raises(InputError, match=r"line 9 sets out/seqio.SentencePieceVocabulary.sentencepiece_model_file"):
        translated(tmp_path, f"{other}out/seqio.SentencePieceVocabulary.sentencepiece_model_file = '/v'\n")


@pytest.mark.parametrize(
    ("lines", "theirs"),
    [
        ("train_script.train.trainer_cls = @mine.Own", "trainer.Trainer"),
        ("train_script.train.partitioner = @mine.Own()", "partitioning.PjitPartitioner"),
        ("train_script.train.checkpoint_cfg = @mine.Own()", "utils.CheckpointConfig"),
        ("utils.CheckpointConfig.save = @mine.Own()", "utils.SaveCheckpointConfig"),
        ("utils.CheckpointConfig.restore = @mine.Own()", "utils.RestoreCheckpointConfig"),
        ("train_script.train.train_dataset_cfg = @mine.Own()", "utils.DatasetConfig"),
        ("train_script.train.train_eval_dataset_cfg = @mine.Own()", "utils.DatasetConfig"),
        ("train_script.train.infer_eval_dataset_cfg = @mine.Own()", "utils.DatasetConfig"),
        ("train_script.train.inference_evaluator_cls = @mine.Own", "seqio.Evaluator"),
        ("train_script.train.get_dataset_fn = @mine.own", "utils.get_dataset"),
        ("network.Transformer.config = @mine.Own()", "network.T5Config"),
    ],
)
def test_a_class_of_the_users_is_not_read_as_t5xs(lines, theirs, tmp_path):
    name, _, value = lines.partition(" = ")
    with pytest.raises(InputError) as error:
        translated(tmp_path, lines)
    assert f"mine.gin line 8 sets {name} to {value}: Limba has T5X's {theirs}; use it" in str(error.value)


def test_a_class_of_the_users_is_refused_in_scopes_macros_and_other_scripts(tmp_path):
    with pytest.raises(
        InputError, match=r"line 8 sets DATA to @train/mine.Own\(\): Limba has T5X's utils.DatasetConfig"
    ):
        translated(tmp_path, "DATA = @train/mine.Own()\ntrain_script.train.train_dataset_cfg = %DATA\n")
    used = tmp_path / "use.gin"
    for field, value, theirs in (
        ("dataset_cfg", "@mine.Own()", "utils.DatasetConfig"),
        ("restore_checkpoint_cfg", "@mine.Own()", "utils.RestoreCheckpointConfig"),
        ("inference_evaluator_cls", "@mine.Own", "seqio.Evaluator"),
        ("partitioner", "@mine.Own()", "partitioning.PjitPartitioner"),
    ):
        used.write_text(
            "include 't5x/examples/t5/t5_1_1/small.gin'\ninclude 't5x/configs/runs/eval.gin'\n"
            "MIXTURE_OR_TASK_NAME = 'a'\nDROPOUT_RATE = 0.0\nCHECKPOINT_PATH = '/c'\nEVAL_OUTPUT_DIR = '/tmp/x'\n"
            f"eval_script.evaluate.{field} = {value}\n"
        )
        with pytest.raises(InputError, match=f"line 7 sets eval_script.evaluate.{field} to .*: Limba has .*{theirs};"):
            translate([str(used)], [], [])


@pytest.mark.parametrize(
    "lines",
    [
        "train_script.train.partitioner = @partitioning.ModelBasedPjitPartitioner()",
        "train_script.train.partitioner = @old/partitioning.ModelBasedPjitPartitioner()",
        "utils.SaveCheckpointConfig.checkpoint_manager_cls = @utils.LegacyCheckpointManager",
        "utils.RestoreCheckpointConfig.checkpointer_cls = @checkpoints.SaveBestCheckpointer",
        "train_script.train.inference_evaluator_cls = @seqio.Evaluator",
        "train_script.train.inference_evaluator_cls = @mine/seqio.evaluation.Evaluator",
        "train_script.train.get_dataset_fn = @utils.get_dataset",
        "train_script.train.train_dataset_cfg = @train/DatasetConfig()",
    ],
)
def test_what_t5x_itself_has_stays_readable(lines, tmp_path):
    assert config_of(translated(tmp_path, lines)) == config_of(translated(tmp_path, ""))


def test_a_schedule_that_optax_does_not_call_may_be_of_any_class(tmp_path):
    lines = "OPTIMIZER = @optax.adamw()\noptax.adamw.learning_rate = 0.001\ntrainer.Trainer.learning_rate_fn = "
    config = config_of(translated(tmp_path, f"{lines}@mine.rate()\n"))
    assert config.optimizer.schedule.base_learning_rate == 0.001


@pytest.mark.parametrize("scope", ["", "mine/"])
def test_what_writes_results_is_not_called_unused(scope, tmp_path):
    """Loggers and writers of T5X are replaced, whether a reference has their scope or not."""
    lines = (
        f"seqio.Evaluator.logger_cls = [@{scope}seqio.JSONLogger, @{scope}seqio.TensorBoardLogger]\n"
        f"{scope}seqio.JSONLogger.write_n_results = 5\n{scope}seqio.TensorBoardLogger.summary_dir = '/s'\n"
    )
    rows = translated(tmp_path, lines).translation.rows
    whys = {row.theirs.partition(" = ")[0]: row.why for row in rows}
    writes = "Limba writes its results in its own way"
    assert whys[f"{scope}seqio.TensorBoardLogger.summary_dir"] == writes
    unscoped = "MODEL_DIR/evaluations holds the texts"
    assert whys[f"{scope}seqio.JSONLogger.write_n_results"] == (writes if scope else unscoped)


def test_an_optimizer_without_a_rate_is_refused_in_one_sentence(tmp_path):
    with pytest.raises(InputError, match=r"^adamw.learning_rate is None, since nothing sets it: Limba takes a number"):
        translated(tmp_path, "models.EncoderDecoderModel.optimizer_def = @optimizers.adamw()\n")


MODULE = "scopes_of_t5x"  # of stubs that no other test's gin files name


def made_by_gin(text: str) -> Any:
    gin.clear_config()
    gin.parse_config(text)
    try:
        return gin.get_configurable(f"{MODULE}.Outer")()
    finally:
        gin.clear_config()


def made_by_limba(text: str, folder: Path) -> Any:
    file = folder / "random.gin"
    file.write_text(text)
    settings = Settings(read([str(file)], [], []))

    def made(owner: str) -> Any:
        kind = owner.rpartition("/")[2]
        fields = [settings.find(owner, name).value for name in ("first", "second")]
        return kind, *map(built, fields)

    def built(value: Any) -> Any:
        if isinstance(value, list):
            return [built(item) for item in value]
        return made(owner_of(value, class_of(value))) if isinstance(value, Target) else value

    return made("Outer")


def random_text(seed: int) -> str:
    """A text in which classes refer to inner ones, in scopes and by macros."""
    draw = random.Random(seed)
    scopes = ("", "", "a/", "b/", "a/b/", "b/a/", "M/", "a/N/")
    inner = {"Outer": ("Middle", "Inner"), "Middle": ("Inner",), "Inner": ()}

    def value_for(kind: str) -> str:
        choices = [str(draw.randrange(100)), "%M", "%N"] if kind != "Inner" else [str(draw.randrange(100))]
        for other in inner[kind]:
            choices += [f"@{draw.choice(scopes)}{MODULE}.{other}()" for _ in range(3)]
        return draw.choice(choices)

    lines = [f"{name} = {draw.choice(('', '[3, '))}@{draw.choice(scopes)}{MODULE}.Inner()" for name in ("M", "N")]
    lines = [line + "]" if "[" in line else line for line in lines]
    lines += [f"a/N = {draw.randrange(100)}"]
    for _ in range(12):
        kind = draw.choice(list(inner))
        field = draw.choice(("first", "second"))
        lines.append(f"{draw.choice(scopes)}{MODULE}.{kind}.{field} = {value_for(kind)}")
    return "\n".join(lines) + "\n"


@pytest.mark.slow
def test_random_scopes_and_macros_are_as_in_gin(tmp_path):
    for kind in ("Outer", "Middle", "Inner"):
        if f"{MODULE}.{kind}" in gin.config._REGISTRY:  # pyright: ignore
            continue

        def stub(first: Any = None, second: Any = None, _kind: str = kind) -> Any:
            return _kind, first, second

        gin.external_configurable(stub, name=kind, module=MODULE)
    made = [(made_by_limba(text, tmp_path), made_by_gin(text)) for text in map(random_text, range(300))]
    for ours, theirs in made:
        assert ours == theirs
    assert len({str(theirs) for _, theirs in made}) > 150
