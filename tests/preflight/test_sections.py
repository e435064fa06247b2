"""Figures of the sections: published lengths, schedules, text that is spoiled, JSON, and the quiet start."""

import dataclasses
import json
import time
from pathlib import Path

import numpy as np
import pytest

import tasks.demo  # registers the task
import tasks.ro  # noqa: F401
from limba.cli.gin import read_gin
from limba.config import DataConfig, RunConfig, ScheduleConfig, optimizer_config, saved_config
from limba.config.schedule import LEAST_RATE
from limba.data.tasks import resolve_task
from limba.planned_run import PlannedRun
from limba.tools.preflight import output
from limba.tools.preflight.checks import differences, findings, objective, sample, start, storage, vocabulary
from limba.tools.preflight.checks.rates import rate_warnings
from limba.tools.preflight.checks.verdict import Line, Section, verdict
from tests import tiny

MODEL = tiny.model(vocab_size=384)


@pytest.fixture
def config(tmp_path: Path, corpus: Path) -> RunConfig:
    data = DataConfig("demo_span_corruption", {"inputs": 64}, 8, vocabulary="byte", data_files=str(corpus))
    return RunConfig(MODEL, data, str(tmp_path / "run"), train_steps=1_000)


def levels(section: Section) -> list[str]:
    return [line.level for line in section.lines]


@pytest.mark.parametrize(("name", "targets", "share"), [("ro_t5x_base", 256, 0.24), ("ro_t5x_large", 512, 0.43)])
def test_published_lengths_waste_what_is_said(name: str, targets: int, share: float) -> None:
    lengths = {"inputs": 512, "targets": targets}
    run = read_gin(f"gin/{name}.gin", MODEL_DIR="x", TASK_FEATURE_LENGTHS=lengths, VOCABULARY="byte")
    section = objective.objective_and_schedule(run, resolve_task(run.data))
    assert section.data["targets_needed"] == 114
    assert abs(section.data["padding_flops_share"] - share) < 0.01
    (line,) = [line for line in section.lines if line.level == "warning"]
    assert line.fix == ("DataConfig.task_feature_lengths", {"inputs": 512}) and f"{share:.0%} of a step's" in line.text
    exact = read_gin(f"gin/{name}.gin", MODEL_DIR="x", VOCABULARY="byte")
    assert "warning" not in levels(objective.objective_and_schedule(exact, resolve_task(exact.data)))


@pytest.mark.parametrize("is_hybrid", [False, True])
def test_masked_and_causal_tokens_of_each_stage_and_of_the_run_are_said(config: RunConfig, is_hybrid: bool) -> None:
    stage = (400, "demo_span_corruption", "masked_lm", 0.25)
    stage_fields = (
        {"causal_share": 0.5, "objective": "masked_lm"} if is_hybrid else {"objective": "causal_lm", "stages": (stage,)}
    )
    data = dataclasses.replace(config.data, task_feature_lengths={"targets": 64}, extra_ids=1, **stage_fields)
    model = tiny.language_model(vocab_size=384, attention_mask="bidirectional")
    run = dataclasses.replace(config, model=model, data=data)
    lines = objective.lengths_of(run, resolve_task(run.data.of_stages[0]), {})
    said = [line.text for line in lines][1:]
    if is_hybrid:
        assert said == [
            "About 38 tokens a step are masked and predicted (5 of a row), and all 256 of causal rows.",
            "In the run these are 38,400 masked and 256,000 causal tokens; the output layer computes 64 of a row.",
        ]
        return
    assert said == [
        "About 0 tokens a step are masked and predicted (0 of a row), and all 512 of causal rows.",
        "From step 400 on about 128 tokens a step are masked and predicted (16 of a row).",
        "In the run these are 76,800 masked and 204,800 causal tokens; the output layer computes 64 of a row.",
    ]


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        (ScheduleConfig("linear", warmup_steps=1_000), "never reaches its peak"),
        (ScheduleConfig("cosine", warmup_steps=700), "70% of the run is warm-up"),
        (ScheduleConfig("linear", warmup_steps=10, decay_steps=500), "500 steps are trained at a learning rate of 0"),
        (ScheduleConfig("cosine", warmup_steps=10, decay_steps=5_000), "after the run's 1,000 steps"),
        (ScheduleConfig("warmup_stable_decay", warmup_steps=400, decay_steps=800), "falls before it is at its peak"),
        (ScheduleConfig("warmup_stable_decay", warmup_steps=0.4, decay_steps=0.8), "falls before it is at its peak"),
        (ScheduleConfig(factors="constant * linear_decay", warmup_steps=10, decay_factor=0.01), "0 from step 110"),
    ],
)
def test_a_schedule_that_does_not_fit_the_run(config: RunConfig, schedule: ScheduleConfig, says: str) -> None:
    run = dataclasses.replace(config, optimizer=optimizer_config(schedule=schedule))
    (line,) = objective.schedule_warnings(run)
    assert says in line.text and line.level == "warning"
    field, value = line.fix
    better = dataclasses.replace(schedule, **{field.partition(".")[2]: value})
    assert not list(objective.schedule_warnings(dataclasses.replace(run, optimizer=optimizer_config(schedule=better))))


def test_a_warm_up_that_preflight_adds_leaves_the_decay_as_it_is(config: RunConfig) -> None:
    """Another schedule's name beside a decay of 500 steps made a rate of 0 from step 500 on."""
    schedule = ScheduleConfig("warmup_stable_decay", base_learning_rate=5e-4, warmup_steps=0, decay_steps=500)
    run = dataclasses.replace(config, train_steps=10_000, optimizer=optimizer_config("adamw", schedule=schedule))
    (line,) = rate_warnings(run)
    assert line.code == "no-warm-up"
    changes = {field.partition(".")[2]: value for field, value in line.fix}
    assert "name" not in changes
    warmed = dataclasses.replace(schedule, **changes)
    better = dataclasses.replace(run, optimizer=optimizer_config("adamw", schedule=warmed))
    rates = PlannedRun(better).learning_rates([1, 5_000, 9_499, 9_999])
    assert rates[0] < rates[1] == rates[2] > rates[3]
    assert not list(rate_warnings(better)) and not list(objective.schedule_warnings(better))


def test_the_factors_of_the_linear_rate_end_where_it_says(config: RunConfig) -> None:
    schedule = ScheduleConfig(factors="linear_decay", warmup_steps=10, decay_factor=0.01)
    run = dataclasses.replace(config, optimizer=optimizer_config(schedule=schedule))
    rates = PlannedRun(run).learning_rates([0, 10, 60, 109, 111])
    least = float(np.float32(LEAST_RATE))
    assert rates[0] == rates[4] == least and rates[1] == 1 and rates[3] > least


def test_a_run_of_the_demo_is_drawn_and_nothing_is_wrong(config: RunConfig) -> None:
    section = objective.objective_and_schedule(config, resolve_task(config.data))
    assert set(levels(section)) == {"ok"}
    drawing = next(line.text for line in section.lines if line.text.startswith("Learning rate"))
    assert "step 1 to" in drawing and "*" in drawing and drawing.count("\n") == objective.HEIGHT + 2


def test_an_example_is_joined_to_the_text_it_was_made_of(config: RunConfig) -> None:
    part = resolve_task(config.data)
    part_sample = sample.sampled(config, part)
    data: dict = {}
    (line,) = sample.of_example(config, part, part_sample, data)
    assert "<extra_id_0>" in data["example"]["inputs"] and "token by token" in line.text
    shuffled = dataclasses.replace(part_sample, documents=[text[::-1] for text in part_sample.documents])
    (line,) = sample.of_example(config, part, shuffled, {})
    assert "token by token" not in line.text


def test_rows_without_a_piece_are_wasteful(config: RunConfig) -> None:
    large = dataclasses.replace(config, model=dataclasses.replace(MODEL, vocab_size=50_048))
    section = vocabulary.vocabulary(large, resolve_task(config.data), {"inputs": 64, "targets": 16})
    (line,) = [line for line in section.lines if line.level == "warning"]
    assert line.fix == ("ModelConfig.vocab_size", 384)
    assert [line.fix for line in start.found_wrong(large)] == [("ModelConfig.vocab_size", 384)]


def test_too_few_sentinels_for_long_rows(config: RunConfig) -> None:
    section = vocabulary.vocabulary(config, resolve_task(config.data), {"inputs": 4_096, "targets": 1_000})
    (line,) = [line for line in section.lines if line.level == "error"]
    assert "needs 227 sentinels" in line.text and line.fix == ("DataConfig.extra_ids", 227)


def test_a_run_with_nothing_wrong_begins_quietly_and_quickly(config: RunConfig) -> None:
    began = time.process_time()  # of all threads, so other work on this machine does not count
    assert start.found_wrong(config) == []
    assert time.process_time() - began < 2.0


@pytest.mark.parametrize("name", ["ro_t5x_base", "ro_t5x_large", "ro_mt5x_large"])
def test_the_checks_of_every_start_take_no_time_for_real_runs(name: str, tmp_path: Path) -> None:
    run = read_gin(f"gin/{name}.gin", MODEL_DIR=str(tmp_path / "run"), VOCABULARY="byte")
    began = time.process_time()
    fixes = [line.fix for line in start.found_wrong(run)]
    assert time.process_time() - began < 2.0
    # Bytes in place of the run's own vocabulary; a run that begins from a checkpoint has that one's rows.
    assert fixes == ([] if run.initial_checkpoint_path else [("ModelConfig.vocab_size", 384)])


def test_what_a_resumed_run_changes_is_said_once(config: RunConfig) -> None:
    directory = Path(config.model_dir)
    (directory / "checkpoints" / "5" / "state").mkdir(parents=True)
    (directory / "checkpoints" / "5" / "state" / "manifest.ocdbt").write_text("")
    (directory / saved_config.FILE).write_text(saved_config.to_text(config))
    assert start.found_wrong(dataclasses.replace(config, train_steps=2_000)) == []
    changed = dataclasses.replace(config, model=dataclasses.replace(MODEL, dropout_rate=0.1))
    (line,) = start.found_wrong(changed)
    assert line.text == "This resumed run is changed: ModelConfig.dropout_rate is 0.1 (it was 0.0)."
    # One name of a gin file sets both seeds.
    reseeded = dataclasses.replace(config, random_seed=1, data=dataclasses.replace(config.data, seed=1))
    names = {"RunConfig.random_seed": "RANDOM_SEED", "DataConfig.seed": "RANDOM_SEED"}
    (text,) = start.at_start(reseeded, names)
    assert text.startswith("This resumed run is changed: RANDOM_SEED is 1 (it was 0). Fix: ")
    data: dict = {}
    said = list(differences.with_saved_run(changed, data))
    assert data["differs_from_saved_run"] == ["ModelConfig.dropout_rate"] and said[-1].level == "warning"


def test_stages_that_have_been_read_stay_as_they_were(config: RunConfig) -> None:
    def staged(*stages: tuple[int, str]) -> RunConfig:
        return dataclasses.replace(config, data=dataclasses.replace(config.data, stages=stages))

    directory = Path(config.model_dir)
    (directory / "checkpoints" / "5" / "state").mkdir(parents=True)
    (directory / "checkpoints" / "5" / "state" / "manifest.ocdbt").write_text("")
    (directory / saved_config.FILE).write_text(saved_config.to_text(staged((3, "clean"), (9, "books"))))
    for stages, level in ((((3, "clean"), (8, "a")), "warning"), (((4, "clean"),), "error"), ((), "error")):
        *_, line = differences.with_saved_run(staged(*stages), {})
        assert line.level == level and line.fix == ("DataConfig.stages", [[3, "clean"], [9, "books"]])


def test_room_is_counted_for_the_checkpoints_that_are_kept(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    data: dict = {}
    (line,) = storage._room(PlannedRun(config), data)
    assert line.level == "ok" and data["checkpoint_bytes"] > 4 * data["parameters"] > 0
    for free, level in ((data["checkpoint_bytes"] - 1, "error"), (2 * data["checkpoint_bytes"] - 1, "ok")):
        monkeypatch.setattr("limba.evaluation.run_directory.free_bytes", lambda _, free=free: free)
        (line,) = storage._room(PlannedRun(config), {})
        assert line.level == level  # the only checkpoint of a run of 1,000 steps is its last one
    often = dataclasses.replace(config, checkpoint=dataclasses.replace(config.checkpoint, every_steps=10))
    (line,) = storage._room(PlannedRun(often), {})
    assert line.level == "warning" and line.fix == ("CheckpointConfig.keep", 1)


def test_a_directory_is_left_as_it_was(config: RunConfig, tmp_path: Path) -> None:
    run = dataclasses.replace(config, model_dir=str(tmp_path / "a" / "b"))
    assert set(levels(storage.storage(run))) == {"ok"}
    assert not (tmp_path / "a").exists()


def test_a_checkpoint_to_begin_from_is_looked_for(config: RunConfig, tmp_path: Path) -> None:
    begun = dataclasses.replace(config, initial_checkpoint_path=str(tmp_path / "nothing"))
    (line,) = [line for line in storage.storage(begun).lines if line.level == "error"]
    assert str(tmp_path / "nothing") in line.text
    golden = str(Path(__file__).parents[1] / "golden" / "run" / "run")
    assert set(levels(storage.storage(dataclasses.replace(config, initial_checkpoint_path=golden)))) == {"ok"}
    of_hub = dataclasses.replace(config, initial_checkpoint_path="google/mt5-base")
    assert any("on the hub" in line.text for line in storage.storage(of_hub).lines)


def test_json_has_lines_figures_and_the_verdict() -> None:
    made = [Section("Data", [Line("ok", "Fine.\n a <b> | *"), Line("warning", "Wasteful.", "PACK = True")], {"a": 1.5})]
    document = json.loads(output.json_of(made, {"run": "x.gin"}))
    assert (document["exit_status"], document["verdict"]) == (0, "works, but wasteful")  # a warning is not an error
    assert document["sections"][0]["data"] == {"a": 1.5}
    assert json.loads(output.json_of([Section("a", [], {"x": np.float32(0.5)})], {}))["sections"][0]["data"] == {
        "x": 0.5
    }
    assert verdict(made) == "Verdict: works, but wasteful (1 warning)."


def test_one_error_does_not_keep_the_others_from_being_looked_for() -> None:
    from limba.config import ConfigError
    from limba.config.errors import Open

    def wrong(_: dict) -> list[Line]:
        raise ConfigError("DataConfig.seed", "is -1", give="a whole number, 0 or more")

    section = findings.gathered("a", wrong, lambda _: [Line("ok", "fine")], wrong)
    assert [line.level for line in section.lines] == ["error", "ok"]
    assert section.lines[0].fix == ("DataConfig.seed", Open("a whole number, 0 or more"))
