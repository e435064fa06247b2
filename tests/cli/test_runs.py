"""Every complete run builds, says what it costs, and its operative config makes the same run again."""

import dataclasses
from pathlib import Path

import pytest

from benchmarks.board.recipes import RECIPES, optimizer_of
from benchmarks.board.sizes import size_of
from limba import config
from limba.cli import flags
from limba.config import hardware
from limba.data import task_modules
from limba.formats import architectures
from limba.training.metrics.flops import flops_per_row
from limba.training.schedule import make_schedule

ROOT = Path(__file__).resolve().parents[2]
OF_A_MODEL = "continue.gin"  # has no size and no vocabulary of its own: tests/run/test_continue.py runs it
RUNS = sorted(path.name for path in ROOT.glob("gin/*.gin") if path.name != OF_A_MODEL)
ROMANIAN = {
    # vocabulary rows, steps, learning rate, checkpoint every, kept
    "ro_t5x_base.gin": (64_000, 2_000_000, 1.0, 10_000, 5),
    "ro_t5x_large.gin": (64_000, 4_000_000, 1.0, 10_000, 5),
    "ro_mt5x_base.gin": (250_112, 2_000_000, 0.4, 25_000, 3),
    "ro_mt5x_large.gin": (250_112, 1_500_000, 0.5, 10_000, 3),
}


LANGUAGE_MODELS = {
    # task, length, batch, width, evaluations every
    "ja_lm_0.1b.gin": ("wiki40b_ja_causal_lm", 256, 256, 768, 5_000),
    "ja_lm_1.0b.gin": ("wiki40b_ja_causal_lm", 1024, 128, 2048, 5_000),
    "ja_lm_default.gin": ("cc100_ja_causal_lm", 128, 256, 512, 1_000),
    "lm1b_default.gin": ("lm1b_causal_lm", 128, 256, 512, 1_000),
}
ENCODERS = ("nb_encoder_base.gin", "ja_encoder_base.gin")


@pytest.fixture(autouse=True)
def _no_task_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Task modules import TensorFlow; here they need not even exist."""
    monkeypatch.setattr(task_modules, "import_all", lambda modules: None)
    monkeypatch.setattr(task_modules, "check", lambda module, asked_by: None)


def build(name: str, *overrides: str) -> tuple[config.RunConfig, str]:
    run = flags.parse_args([f"gin/{name}", "--gin.MODEL_DIR=out", *overrides])
    return run.config, run.text


def classes_in(value: object) -> set[type]:
    if not dataclasses.is_dataclass(value):
        return set()
    parts = [classes_in(getattr(value, entry.name)) for entry in dataclasses.fields(value)]
    return {type(value)}.union(*parts)


@pytest.mark.parametrize("name", RUNS)
def test_run_builds_and_its_operative_config_builds_the_same(name: str, tmp_path: Path) -> None:
    run, text = build(name)
    saved = tmp_path / "config.gin"
    saved.write_text(text, encoding="utf-8")
    again, text_again, *_ = flags.parse_args([f"--gin_file={saved}"])
    assert again == run
    assert text_again == text
    assert "from tasks import " in text


@pytest.mark.parametrize("name", RUNS)
def test_header_says_what_a_run_takes(name: str) -> None:
    header = (ROOT / "gin" / name).read_text(encoding="utf-8").partition("from __gin__")[0]
    for word in ("Command", "Hardware", "Expected"):
        assert f"# {word}" in header
    assert "# Hours" in header or "# Time" in header


@pytest.mark.parametrize("name", [*ROMANIAN, "ro_fast_base.gin", *LANGUAGE_MODELS, *ENCODERS])
def test_hours_on_eight_h100_follow_from_the_flops(name: str) -> None:
    run, _ = build(name)
    steps = run.train_steps - (1_000_000 if run.initial_checkpoint_path else 0)
    step = flops_per_row(run, run.data.task_feature_lengths) * run.data.batch_size
    hours = step * steps / (0.4 * 8 * 1e12 * hardware.chip("h100").tflops) / 3600
    header = (ROOT / "gin" / name).read_text(encoding="utf-8").partition("from __gin__")[0]
    assert (
        f"# 8 x H100  {hours:.2g} hours estimated, at 40 % of the cards' peak ({step / 1e12:.3g} TFLOP a step);"
        f" {run.data.batch_size // 8} rows a card, "
    ) in header
    assert f"REMAT = '{run.model.remat}'" in header or "0.05b" in (ROOT / "gin" / name).read_text()


@pytest.mark.parametrize("name", ROMANIAN)
def test_romanian_runs_are_as_published_but_for_the_padding(name: str) -> None:
    rows, steps, rate, every, kept = ROMANIAN[name]
    run, _ = build(name)
    assert run.model.vocab_size == rows
    assert run.model.dropout_rate == 0.0
    assert run.data.task_feature_lengths == {"inputs": 512, "targets": 114}
    assert (run.data.batch_size, run.train_steps) == (128, steps)
    assert run.data.mixture_or_task_name == "rlm_span_corruption_stream"
    assert run.optimizer.name == "adafactor"
    schedule = run.optimizer.schedule
    assert (schedule.base_learning_rate, schedule.warmup_steps) == (rate, 10_000)
    assert schedule.factor_names == ("constant", "rsqrt_decay")
    assert (run.checkpoint.every_steps, run.checkpoint.keep) == (every, kept)
    assert run.loss.z_loss == 1e-4
    assert run.mesh == config.MeshConfig()
    assert (run.initial_checkpoint_path is not None) == ("mt5" in name)
    assert (ROOT / "launch" / name.replace("t5x", "t5").replace("_t5_", "_").replace(".gin", ".sh")).exists()


def test_the_fast_recipe_is_that_of_the_board() -> None:
    (run, _) = build("demo_fast.gin")
    (plain, _) = build("demo.gin")
    assert dataclasses.replace(run, optimizer=plain.optimizer) == plain
    # The board's recipe has the rate that is best for 300 to 600 steps, the file the one for the run's steps.
    auto = run.optimizer.schedule.in_steps(600).base_learning_rate
    assert auto == pytest.approx(2.2 / 600**0.5)
    ours = run.optimizer
    theirs = optimizer_of(RECIPES["fast"], {"learning_rate": auto}, size_of(2), 600)
    assert run.train_steps == 600
    assert dataclasses.replace(ours, schedule=theirs.schedule) == theirs
    rates = [make_schedule(recipe.schedule, 600) for recipe in (ours, theirs)]
    for step in (0, 6, 12, 180, 181, 390, 600):
        assert float(rates[0](step)) == pytest.approx(float(rates[1](step)), abs=1e-9)
    assert [float(rates[0](step)) for step in (12, 180, 390, 600)] == pytest.approx([auto, auto, auto / 2, 0.0])


def test_the_fast_romanian_run_is_the_published_one_by_another_rule_in_half_of_the_steps() -> None:
    (published, _) = build("ro_t5x_base.gin")
    (fast, _) = build("ro_fast_base.gin")
    assert (fast.optimizer.name, fast.train_steps) == ("muon", published.train_steps // 2)
    assert fast.optimizer.schedule.base_learning_rate == "auto"
    assert dataclasses.replace(fast, optimizer=published.optimizer, train_steps=published.train_steps) == published


def test_the_diacritics_recipe_has_the_numbers_of_its_authors() -> None:
    run, _ = build("ro_diacritics_published.gin")
    data = run.data
    rule = run.optimizer
    assert (data.data_files, run.initial_checkpoint_path) == (
        "dumitrescustefan/diacritic",
        "dumitrescustefan/mt5-base-romanian",
    )
    assert data.mixture_or_task_name == "ro_diacritics_published"
    assert (data.task_feature_lengths, data.batch_size) == ({"inputs": 256, "targets": 256}, 8 * 8)
    assert (data.num_epochs, run.train_steps, run.checkpoint.every_steps) == (10, None, 50_000)
    assert (run.model.emb_dim, run.model.vocab_size, run.model.dropout_rate) == (768, 250_112, 0.1)
    assert (rule.name, rule.clipping_threshold) == ("adafactor", 1.0)
    assert (rule.decay_rate, rule.momentum, rule.weight_decay, rule.multiply_by_parameter_scale) == (
        0.8,
        None,
        0,
        False,
    )
    rate = make_schedule(rule.schedule, None)
    assert [float(rate(step)) for step in (0, 1, 500_000)] == pytest.approx([1e-4] * 3)


def test_the_translation_recipe_has_the_numbers_of_its_authors() -> None:
    run, _ = build("en_ms_published.gin")
    data = run.data
    rule = run.optimizer
    assert (data.data_files, run.initial_checkpoint_path) == (
        "mesolitica/translation-en-ms",
        "mesolitica/nanot5-base-malaysian-cased",
    )
    assert (data.mixture_or_task_name, data.prefix) == ("en_ms_published", "translate en to ms: ")
    assert (data.task_feature_lengths, data.batch_size) == ({"inputs": 128, "targets": 128}, 16 * 8)
    assert (data.num_epochs, run.train_steps, run.random_seed, data.seed) == (3, None, 42, 42)
    assert (run.log_every_steps, run.checkpoint.every_steps, run.checkpoint.keep) == (50, 1_000, 2)
    # The defaults of transformers' Trainer.
    assert (rule.name, rule.beta1, rule.beta2, rule.epsilon) == ("adamw", 0.9, 0.999, 1e-8)
    assert (rule.weight_decay, rule.clip_global_norm) == (0.01, 1.0)
    rate = make_schedule(rule.schedule, 900)
    assert [float(rate(step)) for step in (0, 450, 900)] == pytest.approx([5e-5, 2.5e-5, 0])


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_language_models_are_as_published(name: str) -> None:
    task, length, batch, width, every = LANGUAGE_MODELS[name]
    run, _ = build(name)
    assert run.data.mixture_or_task_name == task and run.data.sequence_length == length
    assert (run.data.batch_size, run.train_steps, run.model.emb_dim) == (batch, 500_000, width)
    assert run.data.pack and run.data.extra_ids == 0 and run.data.new_vocabulary_size == 30_000
    assert run.data.vocabulary == f"{run.model_dir}/vocabulary.model"
    rule = run.optimizer
    schedule = run.optimizer.schedule
    assert (rule.name, rule.beta1, rule.beta2, rule.epsilon, rule.weight_decay) == ("adamw", 0.9, 0.98, 1e-9, 0.1)
    rate = make_schedule(schedule, run.train_steps)
    assert [round(float(rate(step)), 9) for step in (500, 1_000, 4_000)] == [0.0008, 0.0016, 0.0008]
    assert run.loss.z_loss == 0.0 and run.model.dropout_rate == 0.1
    assert (run.checkpoint.every_steps, run.evaluation.every_steps) == (10_000, every)
    assert run.evaluation.num_batches is None and len(run.evaluation.prompts) == 1
    assert (run.evaluation.sampling.temperature, run.evaluation.sampling.top_k) == (0.6, 20)
    assert architectures.kind(run.model) == "gpt2"  # it can be published


def test_every_class_of_the_configuration_can_be_bound() -> None:
    run, _ = build("demo.gin")
    every = {value for value in vars(config).values() if dataclasses.is_dataclass(value)}
    assert classes_in(run) == every - {config.OptimizerConfig} | {type(run.optimizer)}  # the class of its rule


def test_command_line_counts_more_than_files() -> None:
    run, _ = build(
        "demo.gin",
        "--gin.TRAIN_STEPS=100",
        "--gin.config.ModelConfig.emb_dim=64",
        "--gin.config.MeshConfig.fsdp = 2",
        "--gin.CORPUS=my corpus/*.txt",
        '--gin.VOCABULARY="gs://bucket/ro.model"',
        "--gin.TASK_FEATURE_LENGTHS={'inputs': 256, 'targets': 58}",
        "--gin.config.ScheduleConfig.base_learning_rate=2",
        "--gin.TRAIN_STEPS=200",
    )
    assert (run.train_steps, run.model.emb_dim, run.mesh.fsdp) == (200, 64, 2)
    assert (run.data.data_files, run.data.vocabulary) == ("my corpus/*.txt", "gs://bucket/ro.model")
    assert run.data.task_feature_lengths == {"inputs": 256, "targets": 58}
    assert run.optimizer.schedule.base_learning_rate == 2


def test_scopes_reach_what_is_made_in_them(tmp_path: Path) -> None:
    mine = tmp_path / "mine.gin"
    mine.write_text(
        "include 'gin/demo.gin'\n"
        "config.RunConfig.data = @long/config.DataConfig()\n"
        "long/config.DataConfig.batch_size = 48\n",
        encoding="utf-8",
    )
    run = flags.parse_args([f"--gin_file={mine}", "--gin.MODEL_DIR=out"]).config
    assert run.data.batch_size == 48
    run = flags.parse_args(
        [f"--gin_file={mine}", "--gin.MODEL_DIR=out", "--gin.long/config.DataConfig.batch_size=16"]
    ).config
    assert run.data.batch_size == 16


def test_profile_is_of_one_start_and_not_of_the_run() -> None:
    arguments = ["--gin_file=gin/demo.gin", "--gin.MODEL_DIR=out"]
    for flag, steps in (("--profile", flags.PROFILE_STEPS), ("--profile=5", 5)):
        run, text, *_ = flags.parse_args([*arguments, flag])
        assert run.profile_steps == steps
        assert text == flags.parse_args(arguments)[1]


def test_search_paths_come_first(tmp_path: Path) -> None:
    (tmp_path / "demo.gin").write_text("include 'gin/demo.gin'\nTRAIN_STEPS = 7\n", encoding="utf-8")
    (tmp_path / "empty").mkdir()
    arguments = ["--gin_file=demo.gin", "--gin.MODEL_DIR=out"]
    assert flags.parse_args([f"--gin_search_paths={tmp_path / 'empty'},{tmp_path}", *arguments])[0].train_steps == 7
    assert flags.parse_args(arguments)[0].train_steps != 7
