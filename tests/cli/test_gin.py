"""The one reader of gin: values that are not used do not matter, names are the user's, config.json follows."""

import dataclasses
import enum
import operator
import os
import re
import subprocess
import sys
from pathlib import Path

import gin
import numpy as np
import pytest
from etils import epath

from limba.cli.flags import parse_args
from limba.cli.gin import read_gin, read_model, read_run, statements, text_elsewhere
from limba.cli.gin.statements import Macro, Reference, Source, read_text
from limba.config import ConfigError, InputError, errors
from limba.data import task_modules

ROOT = Path(__file__).parents[2]
DEMO = ["gin/demo.gin"]
DIRECTORY = "MODEL_DIR=gs://bucket/run"


@pytest.fixture(autouse=True)
def _no_task_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_modules, "import_all", lambda modules: None)


T5 = ["gin/models/t5_1_1/base.gin", "gin/runs/pretrain.gin"]
LM = ["gin/models/lm/tiny.gin", "gin/runs/pretrain_lm.gin"]
ENCODER = ["gin/models/encoder/tiny.gin", "gin/runs/pretrain_encoder.gin"]
FINETUNE = ["gin/models/t5_1_1/base.gin", "gin/runs/finetune.gin"]
INFER = ["gin/models/t5_1_1/base.gin", "gin/runs/infer.gin"]
CHOICES = [DIRECTORY, "MIXTURE_OR_TASK_NAME=any", "TRAIN_STEPS=100", "DROPOUT_RATE=0.0"]
ROWS = "TASK_FEATURE_LENGTHS={'inputs': 512}"
WITH_ROWS = {"T5": (T5, ROWS), "LM": (LM, "TASK_FEATURE_LENGTHS={'targets': 512}")}
WITH_ROWS["encoder"] = (ENCODER, "TASK_FEATURE_LENGTHS={'targets': 512}")
# Names that the documentation offers for any run: with a value that is not the default, and what else they need.
OFFERED = {
    "NUM_EPOCHS": (3, "data.num_epochs", []),
    "PREFIX": ("fill: ", "data.prefix", []),
    "NOISE_DENSITY": (0.2, "data.noise_density", []),
    "MEAN_NOISE_SPAN_LENGTH": (4.0, "data.mean_noise_span_length", []),
    "FROZEN": (("encoder",), "optimizer.frozen", []),
    "DECAY_STEPS": (0.2, "optimizer.schedule.decay_steps", ["config.ScheduleConfig.name=warmup_stable_decay"]),
    "BEST_METRIC": ("bits_per_byte", "checkpoint.best_metric", []),
    "BEST_MODE": ("min", "checkpoint.best_mode", []),
    "PATIENCE": (3, "evaluation.patience", ["BEST_METRIC=loss"]),
    "NUM_EXAMPLES": (10, "evaluation.num_examples", []),
    "PROMPTS": (("A text",), "evaluation.prompts", []),
    "MAX_TOKENS": (9, "generation.max_tokens", []),
    "NUM_BEAMS": (2, "generation.num_beams", ["SAMPLE=False", "TEMPERATURE=1.0", "TOP_K=None"]),
    "TEMPERATURE": (0.5, "generation.temperature", ["SAMPLE=True"]),
    "TOP_K": (3, "generation.top_k", ["SAMPLE=True"]),
    "TOP_P": (0.9, "generation.top_p", ["SAMPLE=True"]),
}


def write(folder: Path, text: str) -> str:
    (folder / "mine.gin").write_text(f"include 'gin/demo.gin'\nMODEL_DIR = 'gs://bucket/run'\n{text}")
    return str(folder / "mine.gin")


def test_an_overridden_macro_may_use_what_nothing_sets(tmp_path: Path) -> None:
    file = write(tmp_path, "FOO = %BAR\nBATCH_SIZE = %FOO\n")
    assert read_run([file], ["BATCH_SIZE=8"]).config.data.batch_size == 8
    with pytest.raises(InputError, match=r"mine.gin line 3 uses %BAR, which nothing sets; .*--gin.BAR=VALUE"):
        read_run([file])
    assert read_run([file], ["BAR=16"]).config.data.batch_size == 16


def test_macros_are_replaced_inside_values_and_make_scopes(tmp_path: Path) -> None:
    text = "LENGTH = 64\nTASK_FEATURE_LENGTHS = {'inputs': %LENGTH}\nDATA = @config.DataConfig()\n"
    text += "config.RunConfig.data = %DATA\nDATA/config.DataConfig.shuffle_buffer = 7\n"
    run = read_run([write(tmp_path, text)])
    assert run.config.data.task_feature_lengths == {"inputs": 64} and run.config.data.shuffle_buffer == 7
    assert "TASK_FEATURE_LENGTHS = {'inputs': %LENGTH}" in run.text and "# Parameters for DATA/config.Data" in run.text
    (tmp_path / "config.gin").write_text(run.text)
    again = read_run([str(tmp_path / "config.gin")], ["LENGTH=32"])
    assert again.config.data.task_feature_lengths == {"inputs": 32}


def test_errors_have_the_names_that_the_user_typed(tmp_path: Path) -> None:
    run = read_run(DEMO, [DIRECTORY])
    assert run.names["DataConfig.batch_size"] == "BATCH_SIZE" and "DataConfig.pack" in run.names
    assert "MeshConfig.fsdp" not in run.names
    for overrides, message in (
        (["BATCH_SIZE=0"], "BATCH_SIZE is 0; give a whole number above 0."),
        (["config.MeshConfig.fsdp=0"], "MeshConfig.fsdp is 0; give a whole number above 0."),
        (["config.DataConfig.column=body"], "COLUMN is 'body' and there are no data_files"),
    ):
        with pytest.raises(InputError) as caught:
            read_run(DEMO, [DIRECTORY, *overrides])
        assert str(caught.value).startswith(message) or "column" in overrides[0]
    with pytest.raises(InputError, match=r"^TRAIN_STEP sets TRAIN_STEP, .*did you mean TRAIN_STEPS\?$"):
        read_gin(DEMO[0], MODEL_DIR="gs://bucket/run", TRAIN_STEP=5)
    with pytest.raises(InputError, match=r"^MODEL_DIR is not set: directory, .*; give MODEL_DIR=VALUE, or"):
        read_gin(DEMO[0])
    with (
        pytest.raises(InputError, match="^BATCH_SIZE 8 is not a multiple of BATCH_SIZE$") as caught,
        errors.named({"DataConfig.batch_size": "BATCH_SIZE"}),
    ):
        raise ConfigError("DataConfig.batch_size", "8 is not a multiple of DataConfig.batch_size")
    both = "set DataConfig.train_split or DataConfig.validation_split."
    flags = {"DataConfig.train_split": "--split", "DataConfig.validation_split": "--split"}
    assert errors.worded(both, flags) == "set --split."


def test_read_gin_takes_python_values() -> None:
    values = {"CORPUS": {"train": "a#b.txt"}, "config.ModelConfig.emb_dim": 64, "VOCABULARY": "7"}
    run = read_gin(Path(DEMO[0]), MODEL_DIR="gs://bucket/run", **values)
    assert run.data.data_files == {"train": "a#b.txt"} and run.model.emb_dim == 64 and run.data.vocabulary == "7"
    assert run.data.task_modules == ("tasks.demo",)


def test_read_model() -> None:
    assert read_model("gin/demo.gin", ["MODEL_DIR=x"]).emb_dim == 128  # a run's file has a network too
    assert read_model("gin/models/t5_1_1/tiny.gin").dropout_rate == 0.0
    with pytest.raises(InputError, match=r"sets nothing of config.ModelConfig; give a gin file"):
        read_model("gin/runs/pretrain.gin")


def test_statements_of_any_gin_file() -> None:
    source = Source()
    read_text(source, "from t5x import models\nA = %B\nmodels.T5.v = (@models.V(), {1: [2]})  # why\n", "t5x.gin")
    first, second = source.bindings
    assert (first.name, first.value) == ("A", Macro("B"))
    assert (second.name, second.value, second.comment, second.location) == (
        "models.T5.v",
        (Reference("", "models.V", True), {1: [2]}),
        "why",
        "t5x.gin line 3",
    )
    assert source.modules == [("t5x.models", "t5x.gin line 1")]


RUN = """
from __gin__ import dynamic_registration
from limba import config
include 'gin/models/t5_1_1/tiny.gin'
include 'gin/runs/pretrain.gin'
MIXTURE_OR_TASK_NAME = 'any'
TASK_FEATURE_LENGTHS = {'inputs': 64}
MODEL_DIR = 'out'
DROPOUT_RATE = 0.0
TRAIN_STEPS = 10
"""
OVER_IT = "changes nothing: {path} line 10 sets config.ScheduleConfig.base_learning_rate to 0.5"
WITHOUT_EFFECT = {  # lines of the file, an override, and what the error says
    "field bound in the file": (
        "config.ScheduleConfig.base_learning_rate = 0.5",
        "LEARNING_RATE=0.1",
        [OVER_IT, "give --gin.config.ScheduleConfig.base_learning_rate=0.1"],
    ),
    "factors of another schedule": (
        "config.ScheduleConfig.name = 'linear'",
        "LEARNING_RATE_FACTORS=constant",
        ["--gin.LEARNING_RATE_FACTORS", "the schedule 'linear' does not read"],
    ),
    "field of another schedule": (
        "",
        "config.ScheduleConfig.decay_steps=5",
        ["the schedule 'factors' does not read", "name=linear"],
    ),
    "warm-up of a constant rate": (
        "LEARNING_RATE_FACTORS = 'constant'",
        "WARMUP_STEPS=100",
        ["the factors 'constant' of the learning rate do not read", "factors with one that does: linear_warmup"],
    ),
    "rate without its factor": ("LEARNING_RATE_FACTORS = 'rsqrt_decay'", "LEARNING_RATE=0.1", ["do not read"]),
    "size of other positions": (
        "",
        "config.ModelConfig.rotary_base=500.0",
        ["rotary_base, which a network with relative positions does not"],
    ),
    "length of a T5": ("", "config.ModelConfig.max_length=64", ["max_length, which a T5 does not read"]),
    "shape without a branch": (
        "",
        "config.ScheduleConfig.branch_shape=linear",
        ["branch_shape, which only a branch reads", "branch_step and branch_steps too"],
    ),
    "macro of a replaced one": ("X = 5\nTRAIN_STEPS = %X\nTRAIN_STEPS = 7", "X=6", ["sets X", "does not use"]),
    "outer scope": (
        "config.RunConfig.mesh = @a/config.MeshConfig()\na/config.MeshConfig.model = 1",
        "config.MeshConfig.model=2",
        ["changes nothing", "sets a/config.MeshConfig.model to 1", "give --gin.a/config.MeshConfig.model=2"],
    ),
}


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_an_override_that_changes_nothing_is_an_error(name: str, tmp_path: Path) -> None:
    lines, override, words = WITHOUT_EFFECT[name]
    path = tmp_path / "run.gin"
    path.write_text(RUN.lstrip() + lines + "\n")
    with pytest.raises(InputError) as error:
        read_run([str(path)], [override])
    for word in words:
        assert word.format(path=path) in str(error.value), str(error.value)
    read_run([str(path)])  # without the override it is a run


def test_no_warm_up_may_be_asked_for_where_there_is_none(tmp_path: Path) -> None:
    path = tmp_path / "run.gin"
    path.write_text(f"{RUN.lstrip()}LEARNING_RATE_FACTORS = 'constant'\n")
    assert read_run([str(path)], ["WARMUP_STEPS=0"]).config.optimizer.schedule.warmup_steps == 0


def test_finetuning_goes_on_from_the_step_of_the_checkpoint_where_it_is_asked_to() -> None:
    files = ["gin/models/t5_1_1/tiny.gin", "gin/runs/finetune.gin"]
    names = ["MIXTURE_OR_TASK_NAME=any", "TASK_FEATURE_LENGTHS={'inputs': 64, 'targets': 64}", "MODEL_DIR=out"]
    names.append("INITIAL_CHECKPOINT_PATH=somewhere")
    assert read_run(files, names).config.reset_step is True
    assert read_run(files, [*names, "RESET_STEP=False"]).config.reset_step is False


def test_help_shows_the_value_that_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.gin"
    path.write_text(RUN.lstrip() + "config.ScheduleConfig.base_learning_rate = 0.5\n")
    with pytest.raises(SystemExit):
        parse_args([str(path), "--help"])
    said = capsys.readouterr().out
    assert f"LEARNING_RATE ({OVER_IT.format(path=path)})" in said
    assert "LEARNING_RATE_FACTORS ('constant * rsqrt_decay')" in said


class Chip(enum.Enum):
    GPU = 1


class Name(enum.StrEnum):
    BYTE = "byte"


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (Path("/a/b.model"), "/a/b.model"),
        (epath.Path("gs://bucket/b.model"), "gs://bucket/b.model"),
        (np.str_("byte"), "byte"),
        (Name.BYTE, "byte"),
    ],
)
def test_read_gin_takes_paths_and_texts_of_any_class(value: object, read: str) -> None:
    run = read_gin(DEMO[0], MODEL_DIR="gs://bucket/run", VOCABULARY=value, CORPUS={"train": value})
    assert run.data.vocabulary == read and run.data.data_files == {"train": read}
    assert read_gin(DEMO[0], MODEL_DIR=Path("/tmp/run")).model_dir == "/tmp/run"


def test_read_gin_takes_numbers_of_numpy() -> None:
    values = {"LEARNING_RATE": np.float64(0.25), "BATCH_SIZE": np.int32(16), "PACK": np.bool_(True)}
    run = read_gin(DEMO[0], MODEL_DIR="gs://bucket/run", TASK_FEATURE_LENGTHS={"inputs": np.int64(64)}, **values)
    assert run.optimizer.schedule.base_learning_rate == 0.25 and run.data.task_feature_lengths == {"inputs": 64}
    assert run.data.batch_size == 16 and run.data.pack is True and type(run.data.batch_size) is int


@pytest.mark.parametrize(
    "value", [Chip.GPU, object(), {1, 2}, float("nan"), np.arange(3), range(3), [Path("a"), Chip.GPU]]
)
def test_read_gin_refuses_what_gin_cannot_hold(value: object) -> None:
    """Its repr would be a text, such as the name of a directory."""
    with pytest.raises(InputError, match=r"^CORPUS is .*; give a number, a text, a path, True, False or None, or a"):
        read_gin(DEMO[0], MODEL_DIR="gs://bucket/run", CORPUS=value)


def test_gin_files_count_in_the_order_typed(tmp_path: Path) -> None:
    names = []
    for number in (7, 9):
        names.append(str(tmp_path / f"{number}.gin"))
        Path(names[-1]).write_text(f"LOG_PERIOD = {number}\n")
    first = write(tmp_path, "")
    for arguments, period in (
        ([first, names[0], names[1]], 9),
        ([first, f"--gin_file={names[1]}"], 9),
        ([f"--gin_file={first}", names[1], f"--gin_file={names[0]}"], 7),
        ([first, "--gin_file", names[0], "--gin_search_paths", str(tmp_path), names[1]], 9),
        ([f"--gin_file={names[0]}", first, names[1], "--gin_file", names[0]], 7),
    ):
        assert parse_args(arguments).config.log_every_steps == period


def test_the_current_directory_comes_before_the_search_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in gin-config, which appends the paths."""
    for folder, period in (("", 11), ("mine", 22)):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "some.gin").write_text(f"LOG_PERIOD = {period}\n")
        (tmp_path / folder / "run.gin").write_text(
            "include 'gin/demo.gin'\nMODEL_DIR = 'gs://bucket/run'\ninclude 'some.gin'\n"
        )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine" / "only.gin").write_text("include 'run.gin'\n")
    for name in ("run.gin", "only.gin", "mine/run.gin"):  # which include some.gin by its name
        assert parse_args([name, "--gin_search_paths=mine"]).config.log_every_steps == 11
    with monkeypatch.context() as context:
        context.setattr(gin.config, "_LOCATION_PREFIXES", [""])
        gin.add_config_file_search_path("mine")
        gin.clear_config()
        gin.parse_config_file("some.gin")
        assert gin.query_parameter("LOG_PERIOD/macro.value") == 11
        gin.clear_config()


FOREIGN = "config.OptimizerConfig.beta2 = 0.98\n"
BY_MACRO = "config.OptimizerConfig.name = %OPT\n"


@pytest.mark.parametrize(
    ("lines", "is_refused"),
    [
        (FOREIGN, True),
        (f"OPT = 'adafactor'\n{BY_MACRO}{FOREIGN}", True),
        (f"{BY_MACRO}{FOREIGN}OPT = 'adafactor'\n", True),
        (f"OPT = %RULE\nRULE = 'adafactor'\n{BY_MACRO}{FOREIGN}", True),
        (f"OPT = 'adamw'\n{BY_MACRO}{FOREIGN}OPT = 'adafactor'\n", False),
        (f"{BY_MACRO}{FOREIGN}OPT = 'adamw'\nOPT = 'adafactor'\n", False),
        (f"OPT = 'adafactor'\nOPT = 'adamw'\n{BY_MACRO}{FOREIGN}OPT = 'adafactor'\n", False),
        (f"config.OptimizerConfig.name = 'adamw'\n{FOREIGN}config.OptimizerConfig.name = 'adafactor'\n", False),
    ],
)
def test_a_field_of_another_rule_is_dropped_only_where_its_rule_was_replaced(
    lines: str, is_refused: bool, tmp_path: Path
) -> None:
    file = write(tmp_path, lines)
    if not is_refused:
        assert read_run([file]).config.optimizer.name == "adafactor"
        return
    with pytest.raises(InputError, match=r"^OptimizerConfig.beta2 is a field of adamw, muon, and .* is 'adafactor'"):
        read_run([file])
    with pytest.raises(InputError, match=r"^OptimizerConfig.beta2 is a field of adamw, muon, and .* is 'adafactor'"):
        read_run([file], ["config.OptimizerConfig.beta2=0.9"])


def test_a_run_that_was_moved_does_not_train_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = read_run(["gin/demo.gin"], ["MODEL_DIR='runs/a'"]).text
    for folder in ("runs/a", "runs/a/best", "runs/b"):
        Path(folder, "checkpoints").mkdir(parents=True)
        Path(folder, "config.gin").write_text(text)
        Path(folder, "config.json").write_text("{}")
    for file in ("runs/a/config.gin", "runs/a/best/config.gin", f"{tmp_path}/runs/a/config.gin"):
        assert read_run([file]).config.model_dir == f"{tmp_path}/runs/a"
    with pytest.raises(InputError, match=f"makes the run runs/a, and lies in .* give MODEL_DIR={tmp_path}/runs/b, or"):
        read_run(["runs/b/config.gin"])
    assert read_run(["runs/b/config.gin"], ["MODEL_DIR='runs/b'"]).config.model_dir == f"{tmp_path}/runs/b"
    Path("own.gin").write_text("include 'runs/b/config.gin'\nMODEL_DIR = 'runs/c'\n")  # as a template
    assert read_run(["own.gin"]).config.model_dir == f"{tmp_path}/runs/c"
    monkeypatch.chdir(tmp_path / "runs")  # where runs/a is another directory
    with pytest.raises(InputError, match=f"give MODEL_DIR={tmp_path}/runs/a, or"):
        read_run([f"{tmp_path}/runs/a/config.gin"])
    Path("b", "checkpoints").rmdir()
    assert read_run(["b/config.gin"]).config.model_dir == f"{tmp_path}/runs/runs/a"
    in_bucket = text.replace("'runs/a'", "'gs://bucket/a'")
    Path("a", "config.gin").write_text(in_bucket)
    with pytest.raises(InputError, match="makes the run gs://bucket/a"):
        read_run(["a/config.gin"])


def test_only_a_runs_own_config_gin_may_have_fields_of_another_rule(tmp_path: Path) -> None:
    file = Path(write(tmp_path, FOREIGN)).rename(tmp_path / "config.gin")
    with pytest.raises(InputError, match=r"^OptimizerConfig.beta2 is a field of adamw, muon, and"):
        read_run([str(file)])
    (tmp_path / "config.json").write_text("{}")
    assert read_run([str(file)]).config.optimizer.name == "adafactor"


def test_a_list_as_a_key_is_refused_in_one_sentence(tmp_path: Path) -> None:
    file = write(tmp_path, "TASK_FEATURE_LENGTHS = {[1]: 2}\n")
    reason = r" is not gin: a list or a dictionary is the key of a dictionary\.$"
    with pytest.raises(InputError, match=r"mine\.gin" + reason):
        read_run([file])
    with pytest.raises(InputError, match=r"^--gin\.TASK_FEATURE_LENGTHS" + reason):
        read_run(DEMO, [DIRECTORY, "TASK_FEATURE_LENGTHS={{}: 2}"])


def test_names_of_macros_are_read_under_any_locale() -> None:
    program = [sys.executable, "-c", "from limba.cli.gin.macros import macro_names; print(*macro_names())"]
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(program, env={**os.environ, **plain}, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "BATCH_SIZE" in done.stdout.split()


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        ("MODEL_DIR = '/old'\n", "MODEL_DIR"),
        ("OUT = '/old'\nMODEL_DIR = %OUT\n", "MODEL_DIR"),
        ("OUT = '/old'\nconfig.RunConfig.model_dir = %OUT\n", "OUT"),
        ("OUT = '/old'\nMODEL_DIR = %OUT\nconfig.RunConfig.export_to = %OUT\n", "MODEL_DIR"),
        ("config.RunConfig.model_dir = '/old'\n", "config.RunConfig.model_dir"),
        (f"config.RunConfig.model_dir = '/{'long/' * 30}'\n", "config.RunConfig.model_dir"),
        ("RUN = @config.DataConfig()\nconfig.RunConfig.data = %RUN\nRUN/config.DataConfig.seed = 3\n", "MODEL_DIR"),
    ],
)
@pytest.mark.parametrize("place", ["/new", "/it's \\n new", "gs://bucket/new"])
def test_the_same_run_elsewhere(lines: str, name: str, place: str, tmp_path: Path) -> None:
    """What `limba merge` writes into its directory: the run with another directory, however that was set."""
    run = read_run([write(tmp_path, lines)])
    merged = tmp_path / "config.gin"
    merged.write_text(text_elsewhere(run.text, "config.gin", place))
    again = read_run([str(merged)])
    assert again.config == dataclasses.replace(run.config, model_dir=place)
    assert read_run([str(merged)], [f"{name}='/other'"]).config.model_dir == "/other"


@pytest.mark.parametrize(
    ("line", "reason"), [("UNUSED = 3\n", "sets UNUSED, which nothing uses"), ("include 'gin/demo.gin'\n", "include")]
)
def test_a_config_gin_that_was_edited_by_hand_is_refused(line: str, reason: str, tmp_path: Path) -> None:
    """As the help of `limba merge` says."""
    text = read_run([write(tmp_path, "")]).text
    with pytest.raises(InputError, match=f"config.gin line .*{reason}"):
        text_elsewhere(text + line, "config.gin", "/new")


@pytest.mark.parametrize("kind", WITH_ROWS)
@pytest.mark.parametrize("name", OFFERED)
def test_the_names_of_the_documentation_are_taken_with_every_kind_of_run(name: str, kind: str, tmp_path: Path) -> None:
    files, rows = WITH_ROWS[kind]
    value, field, others = OFFERED[name]
    given = read_run(files, [*CHOICES, rows, *others, f"{name}={value!r}"]).config
    (tmp_path / "mine.gin").write_text("".join(f"include '{file}'\n" for file in files) + f"{name} = {value!r}\n")
    written = read_run([str(tmp_path / "mine.gin")], [*CHOICES, rows, *others]).config
    assert operator.attrgetter(field)(given) == value
    assert given == written


@pytest.mark.parametrize("files", [T5, LM, ENCODER, FINETUNE, INFER], ids=operator.itemgetter(1))
def test_the_tables_of_the_settings_name_what_every_run_has(files: list[str]) -> None:
    """All but the names of a kind of model, for which the page says so."""
    tables = [line for line in (ROOT / "docs/settings.md").read_text().splitlines() if line.startswith("| `")]
    names: set[str] = set()
    for line in tables:
        names.update(re.findall(r"`([A-Z_]{4,})`", line.split(" | ")[0]))
    known = {binding.name for binding in statements.read(files).bindings}
    assert {"NUM_EPOCHS", "PATIENCE", "TOP_P", "BATCH_SIZE", "DTYPE"} <= names
    assert not names - known


def test_samples_of_a_language_model_have_one_length_under_two_names() -> None:
    files, rows = WITH_ROWS["LM"]
    for name in ("SAMPLE_TOKENS", "MAX_TOKENS"):
        run = read_run(files, [*CHOICES, rows, f"{name}=9"]).config
        assert run.generation.max_tokens == run.evaluation.sampling.max_tokens == 9


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("WEIGHT_DECAY", "config.OptimizerConfig.weight_decay"),
        ("MASK_SHARE", "config.DataConfig.mask_share"),
        ("REPLAY", "config.DataConfig.replay_files"),
        ("NEW_VOCABULARY_SIZE", "config.DataConfig.new_vocabulary_size"),
    ],
)
def test_a_name_of_other_runs_is_refused_with_its_field(name: str, field: str) -> None:
    with pytest.raises(InputError, match=f"sets {name}, which nothing uses; set its field, {field}, in its") as error:
        read_run(T5, [*CHOICES, ROWS, f"{name}=1"])
    assert error.value.fix == f"{field} = 1"


def test_a_network_without_a_file_of_its_own_has_the_field_of_its_rows() -> None:
    """gin/demo_gaps.gin gives VOCAB_SIZE to a second field too."""
    with pytest.raises(InputError, match=r"set its field, config\.ModelConfig\.vocab_size, in its place\.$"):
        read_run(["gin/runs/pretrain.gin"], [*CHOICES[:-1], ROWS, "VOCAB_SIZE=384"])
