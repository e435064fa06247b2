"""What arithmetic says of a run: its memory beside compilers' figures, its batch and mesh, its time and its costs."""

from __future__ import annotations

import ast
import dataclasses
import types
from pathlib import Path
from typing import Any

import pytest

from limba.api import PlannedRun
from limba.cli.gin import read_gin
from limba.cli.gin.read import read_model
from limba.config import (
    CheckpointConfig,
    DataConfig,
    EvaluationConfig,
    LossConfig,
    MeshConfig,
    ModelConfig,
    RunConfig,
    ScheduleConfig,
    optimizer_config,
    prices,
)  # fmt: skip
from limba.config.errors import Open
from limba.config.speed import CPU_GFLOPS
from limba.model.kernels import pallas_gpu, pallas_tpu
from limba.tools.preflight import output
from limba.tools.preflight.checks import cost, estimate, start
from limba.tools.preflight.checks.verdict import Line, Section
from limba.tools.preflight.compiled import arithmetic, nvidia
from limba.tools.preflight.compiled.topologies import topologies, topology
from tests.preflight import runs

ROOT = Path(__file__).parents[2]
GIB = 2**30
# GiB a device by compilers, of docs/development/preflight.md: 128 rows of 512/114, bfloat16, Adafactor, remat minimal.
PLACES = ("v3-8", "v4-8", "v4-32", "v5e-16", "v6e-16", "h100-8")
COMPILED = {
    "ro_t5x_base": (3.74, 6.71, 2.05, 2.07, 2.07, 3.84),
    "ro_t5x_large": (9.57, 16.96, 5.79, 5.76, 5.79, 10.06),
    "ro_mt5x_large": (11.09, 17.96, 6.53, 6.85, 6.54, 12.36),
}
BASE = ModelConfig(
    32128, 768, 12, 64, 2048, 12, 12, mlp_activations=("gelu", "linear"), logits_via_embedding=False,
    dropout_rate=0.0, dtype="bfloat16", remat="minimal",
)  # fmt: skip
LARGE = {"vocab_size": 48_000, "emb_dim": 1024, "num_heads": 16, "mlp_dim": 2816, "num_encoder_layers": 24,
         "num_decoder_layers": 24}  # fmt: skip


def run_of(model: ModelConfig = BASE, rows: int = 128, lengths: tuple[int, int] = (512, 114), **changes) -> RunConfig:
    return runs.run(model, rows, lengths, **({"optimizer": optimizer_config()} | changes))


@pytest.mark.parametrize("name", COMPILED)
def test_memory_by_arithmetic_is_that_of_compilers(name: str) -> None:
    run = PlannedRun(read_gin(f"gin/{name}.gin", MODEL_DIR="x", VOCABULARY="byte"))
    for chips, gib in zip(PLACES, COMPILED[name], strict=True):
        assert arithmetic.memory(run, topology(chips)).total / GIB == pytest.approx(gib, rel=0.15), chips


@pytest.mark.parametrize(
    ("gib", "chips", "fields", "changes"),
    [  # benchmarks/README.md, and python -m benchmarks.compiled with these choices
        (43.4, "h200-1", {"remat": "none"}, {}),
        (76.4, "h200-1", {"remat": "none", "attention": "einsum"}, {}),
        (42.7, "h200-1", {"dtype": "float32"}, {}),
        (2.95, "v4-8", {"remat": "full"}, {"rows": 256, "optimizer": optimizer_config("adamw")}),
        (14.47, "v4-8", LARGE, {"rows": 256, "num_microbatches": 4, "optimizer": optimizer_config("adamw")}),
        (6.24, "v4-8", {}, {"mesh": MeshConfig(fsdp=4), "optimizer": optimizer_config("adamw")}),
    ],
)
def test_memory_by_arithmetic_goes_by_the_choices(gib: float, chips: str, fields: dict, changes: dict) -> None:
    run = PlannedRun(run_of(dataclasses.replace(BASE, **fields), **changes))
    assert arithmetic.memory(run, topology(chips)).total / GIB == pytest.approx(gib, rel=0.15)


def language_model_of(objective: str | None, length: int, rows: int, **changes: object) -> PlannedRun:
    model = dataclasses.replace(
        read_model("gin/models/lm/0.1b.gin", ["DROPOUT_RATE=0.0", "REMAT='minimal'"]), **changes
    )
    data = DataConfig("unused", {"targets": length}, rows, objective=objective)
    return PlannedRun(RunConfig(model, data, "unused", train_steps=10, optimizer=optimizer_config("adamw")))


@pytest.mark.parametrize("objective", [None, "causal_lm"])
def test_a_language_model_has_no_scores_on_a_tpu_with_a_prefix_either(objective: str | None) -> None:
    estimated = arithmetic.memory(language_model_of(objective, 1024, 128), topology("v4-8"))
    assert estimated.total / GIB == pytest.approx(7.61, rel=0.12)  # by libtpu's compiler, of both


@pytest.mark.parametrize(("gib", "chips", "rows"), [(9.37, "v4-8", 4), (11.18, "h100-8", 32)])
def test_long_rows_with_windows_have_the_scores_of_one_layer_on_a_tpu_alone(gib: float, chips: str, rows: int) -> None:
    model = read_model("gin/models/modernbert/base.gin", ["REMAT='minimal'"])
    data = DataConfig("unused", {"targets": 8192}, rows, objective="masked_lm", pack=True)
    run = PlannedRun(RunConfig(model, data, "unused", train_steps=10, optimizer=optimizer_config("adamw")))
    assert arithmetic.memory(run, topology(chips)).total / GIB == pytest.approx(gib, rel=0.06)  # by their compilers


@pytest.mark.parametrize(
    ("objective", "length", "chips", "has_scores"),
    [
        ("causal_lm", 1024, "v4-8", False),
        ("causal_lm", 4096, "v4-8", True),  # more keys than the kernel for TPUs takes
        ("causal_lm", 4096, "h200-1", False),
        ("prefix_lm", 1024, "h200-1", False),
        ("prefix_lm", 1024, "cpu-1", False),
    ],
)
def test_scores_are_counted_where_no_kernel_computes_them(objective, length, chips, has_scores) -> None:
    whole, lean = (
        arithmetic.memory(language_model_of(objective, length, 32, attention=name), topology(chips)).total
        for name in ("auto", "memory_efficient")
    )
    assert (whole > lean) == has_scores and whole >= lean


def test_the_largest_batch_is_the_last_that_fits() -> None:
    run = PlannedRun(run_of())
    chips = topology("v4-8")
    most = arithmetic.largest_batch(run, chips, 8 * GIB)
    assert most % 4 == 0 and arithmetic.memory(run, chips, batch_size=most).total <= 8 * GIB
    assert arithmetic.memory(run, chips, batch_size=most + 4).total > 8 * GIB
    assert arithmetic.largest_batch(run, chips, 1) == 0


def test_every_card_of_the_field_can_be_asked_for() -> None:
    for name in (
        "l4-1",
        "t4-4",
        "v100-8",
        "a100-40-8",
        "h100-8",
        "h200-8",
        "gh200-1",
        "b200-8",
        "mi250x-8",
        "mi300x-8",
    ):
        chips = topology(name)
        assert chips.peak_flops > 1e13 and chips.gib > 10 and chips.can_compile == (chips.kind in nvidia.JUDGED)
        assert arithmetic.memory(PlannedRun(run_of(rows=8)), chips).total > 0
    assert topology("mi250x-8").chips == 4 and topology("v3-8").chips == 4
    listed = {entry.kind for entry in topologies() if prices.price(entry.name) is not None}
    assert listed == set(prices.PRICES)


def test_several_slices_have_the_devices_and_hosts_of_all() -> None:
    chips = topology("v5e-16x4")
    assert (chips.name, chips.devices, chips.hosts, chips.choices["num_slices"]) == ("v5e-16x4", 64, 16, 4)
    assert prices.price(chips.name) == prices.price("v5e")


@pytest.mark.parametrize(
    ("rows", "shards", "chips", "parts", "fixes"),
    [
        (24, 8, "v4-32", 1, {"DataConfig.batch_size": 32}),
        (120, 8, "v5e-16", 2, {"DataConfig.batch_size": 128}),
        (96, 4, "v5e-32", 1, {"DataConfig.num_data_shards": 8}),
        (20, 4, "v5e-32", 1, {"DataConfig.num_data_shards": 8, "DataConfig.batch_size": 32}),
        (64, 16, "v4-8", 1, {}),
    ],
)
def test_one_fix_for_what_does_not_divide(rows: int, shards: int, chips: str, parts: int, fixes: dict) -> None:
    def of(rows: int, shards: int) -> RunConfig:
        data = DataConfig("unused", {"inputs": 64, "targets": 16}, rows, num_data_shards=shards)
        return RunConfig(BASE, data, "gs://a/b", train_steps=10, num_microbatches=parts)

    lines = list(estimate.divides(of(rows, shards), topology(chips)))
    assert [dict(line.fix) for line in lines] == ([fixes] if fixes else [])
    fixed = of(fixes.get("DataConfig.batch_size", rows), fixes.get("DataConfig.num_data_shards", shards))
    assert list(estimate.divides(fixed, topology(chips))) == []


def test_a_mesh_that_the_devices_cannot_make_is_said_with_one_that_they_can() -> None:
    run = run_of(mesh=MeshConfig(fsdp=8, model=4))
    (line,) = estimate.divides(run, topology("v4-8"))
    assert line.code == "mesh-does-not-divide" and line.fix == [("MeshConfig.fsdp", 1)]
    fixed = dataclasses.replace(run, mesh=MeshConfig(fsdp=1, model=4))
    assert list(estimate.divides(fixed, topology("v4-8"))) == []


def test_what_does_not_fit_is_said_with_a_change_that_fits() -> None:
    run = run_of(dataclasses.replace(BASE, remat="none"), 512)
    section = estimate.estimate(run, topology("l4-1"), False)
    (line,) = [line for line in section.lines if line.level == "error"]
    assert line.code == "does-not-fit" and section.data["live_bytes"] > section.data["limit_bytes"]
    fixes = dict(line.fix)
    model = dataclasses.replace(run.model, remat=fixes.get("ModelConfig.remat", "none"))
    fixed = dataclasses.replace(run, model=model, num_microbatches=fixes.get("RunConfig.num_microbatches", 1))
    assert {line.level for line in estimate.estimate(fixed, topology("l4-1"), False).lines} == {"ok"}
    assert {line.level for line in estimate.estimate(run, topology("l4-1"), True).lines} == {"ok"}  # a compiler says it


@pytest.mark.parametrize(
    ("chips", "directory", "level"),
    [
        ("v4-32", "/tmp/run", "error"),
        ("v4-32", "/data/run", "warning"),
        ("h100-16", "/lustre/me/run", "ok"),
        ("h100-16", "/dev/shm/run", "error"),
        ("v4-32", "gs://bucket/run", None),
        ("v4-8", "/tmp/run", None),
    ],
)
def test_a_directory_of_one_machine_for_several_hosts(chips: str, directory: str, level: str | None) -> None:
    lines = list(estimate.shared_directory(run_of(model_dir=directory), topology(chips)))
    assert [line.level for line in lines] == ([level] if level else [])
    if level == "error":
        assert isinstance(lines[0].fix, tuple) and isinstance(lines[0].fix[1], Open)


def test_a_step_has_a_floor_and_one_definition_of_mfu() -> None:
    tiny = PlannedRun(run_of(runs.TINY, 8, (32, 8)))
    assert arithmetic.seconds_per_step(tiny, topology("h100-8")) == (arithmetic.LEAST_STEP_SECONDS,) * 2
    run = PlannedRun(run_of(rows=2048))
    chips = topology("v4-8")
    both = arithmetic.seconds_per_step(run, chips)
    assert both is not None and both[1] / both[0] == pytest.approx(arithmetic.MFU[1] / arithmetic.MFU[0])
    slow, fast = CPU_GFLOPS
    on_cpu = arithmetic.seconds_per_step(run, topology("cpu-1"))  # whose devices are this machine's cores
    assert on_cpu is not None and on_cpu[1] / on_cpu[0] == pytest.approx(fast / slow)


def costs_of(run: RunConfig, chips: str, seconds: float, text: dict | None = None, **terms: float) -> Section:
    made = [Section(estimate.TITLE, [], {"seconds_per_step": (seconds, 2 * seconds)}), Section("Data", [], text or {})]
    return cost.time_and_cost(run, topology(chips), made, cost.Terms(**terms))


def test_hours_money_and_the_share_of_a_grant() -> None:
    run = run_of(train_steps=36_000)
    data = costs_of(run, "v4-16", 1.0, days=5).data
    # The slow end has 15 % for start, compiling, evaluations, saves and preemptions.
    assert data["hours"] == pytest.approx([10, 23]) and data["chip_hours"] == pytest.approx([80, 184])
    assert data["dollars"] == pytest.approx([80 * 3.22, 184 * 3.22])
    assert data["share_of_days"][1] == pytest.approx(23 / 24 / 5)
    assert costs_of(run, "v4-16", 1.0, price=0.5).data["dollars"] == pytest.approx([40, 92])
    assert "dollars" not in costs_of(run, "mi300x-8", 1.0).data
    (line,) = [line for line in costs_of(run, "v4-16", 10.0, days=2).lines if line.code == "too-long"]
    assert line.fix == ("RunConfig.train_steps", 17_280)  # of 172,800 seconds, at 10 each
    shorter = dataclasses.replace(run, train_steps=17_280)
    assert not [line for line in costs_of(shorter, "v4-16", 10.0, days=2).lines if line.code == "too-long"]
    (line,) = [line for line in costs_of(shorter, "v4-16", 10.0, days=2).lines if line.code == "may-be-too-long"]
    assert line.fix == [("RunConfig.train_steps", 7_513), ("CheckpointConfig.every_steps", 751)]  # at 20 s and 15 %
    shortest = dataclasses.replace(run, train_steps=7_513)
    assert not [line for line in costs_of(shortest, "v4-16", 10.0, days=2).lines if "be-too-long" in line.code]


def test_an_end_and_periods_in_epochs_are_judged_in_steps(tmp_path: Path) -> None:
    """20 % of what a step reads are sentinels."""
    text = {"steps_per_epoch": 1_000.2, "tokens_per_step": 10_000.0, "text_share": 0.8}
    data = DataConfig("unused", {"inputs": 512, "targets": 114}, 128, num_epochs=3)
    run = run_of(data=data, train_steps=None, model_dir=str(tmp_path), checkpoint=CheckpointConfig(every_steps="epoch"))
    for steps, expected in ((None, 3_000), (2_000, 2_000), (262_144, 3_000)):
        figures = costs_of(dataclasses.replace(run, train_steps=steps), "v4-8", 36.0, text).data
        assert figures["hours"] == pytest.approx([expected / 100, 1.15 * expected / 50])
        assert figures["hours_lost_at_most"] == pytest.approx(1_000 * 54 / 3600)
        assert figures["tokens_per_parameter"] == pytest.approx(expected * 8_000 / PlannedRun(run).num_parameters)
    assert "hours" not in costs_of(run, "v4-8", 36.0).data  # how large the text is, is not known


def test_evaluating_is_judged_by_what_is_evaluated(tmp_path: Path) -> None:
    """A whole split of 38,400 rows is 300 batches, or 100 steps; 1,000 generated texts take 5 s."""
    run = run_of(train_steps=10_000, model_dir=str(tmp_path), checkpoint=CheckpointConfig(every_steps=1_000))
    text = {"validation_documents": {"a": 38_400}, "tokens_per_document": 313.0, "columns": ["a", "b"]}

    def said(seconds: float, **fields: Any) -> list[str]:
        evaluation = EvaluationConfig(every_steps=200, **fields)
        changed = dataclasses.replace(run, evaluation=evaluation)
        lines = costs_of(changed, "v4-8", seconds, text | {"tokens_per_row": 626.0}).lines
        return [str(line.fix) for line in lines if line.code == "evaluates-too-often"]

    assert said(1.0) == [] == said(1.0, num_batches=200)
    assert said(1.0, num_batches=None) == ["('EvaluationConfig.every_steps', 2001)"]
    assert said(1.0, num_examples=1_000) == [] and said(0.01, num_examples=1_000)


def test_what_a_preemption_costs_is_said(tmp_path: Path) -> None:
    run = run_of(train_steps=100_000, model_dir=str(tmp_path))
    data = costs_of(run, "v4-8", 1.0).data
    assert data["hours_lost_at_most"] == pytest.approx(10_000 * 1.5 / 3600)
    assert data["preemptions"] == pytest.approx(100_000 * 1.5 / 86_400)
    assert data["checkpoint_traffic_bytes"] == 11 * PlannedRun(run).num_bytes


def test_the_first_screen_has_the_verdict_four_figures_and_what_is_wrong() -> None:
    run = run_of(train_steps=36_000)
    made = [
        Section("Data", [Line("ok", "Fine."), Line("warning", "Twice.", "A = 1", "code")], {"epochs": 3.25}),
        Section("Storage", [Line("warning", "Twice.", "A = 1", "code"), Line("error", "Wrong.", "B = 2")]),
        estimate.estimate(run, topology("v4-8"), False),
        costs_of(run, "v4-8", 1.0),
    ]
    text = output.first_screen(made, False)
    lines = text.splitlines()
    assert lines[0].startswith("Verdict: will fail (1 error, ")
    assert [line.split()[0] for line in lines[1:5]] == ["fits", "days", "passes", "cost"]
    assert "GiB a device, by arithmetic" in lines[1] and "10 to 23 hours on v4-8" in lines[2]
    assert "3.2 over the text" in lines[3] and "$130 to $300, 40 to 92 chip-hours at $3.22" in lines[4]
    assert text.count("Twice.") == 1 and text.index("Wrong.") < text.index("Twice.") and "Fine." not in text
    assert len(lines) < 24 and lines[-1].endswith("--all prints them.")
    assert output.first_screen(made, True).splitlines()[-1] == lines[0]


def test_a_rule_has_its_rates() -> None:
    from limba.config.optimizer import RULES
    from limba.tools.preflight.checks import rates

    assert RULES.keys() <= rates.PRETRAINING.keys()
    for low, high, usual in [*rates.PRETRAINING.values(), *rates.FINE_TUNING.values(), rates.FINE_TUNING_OTHERS]:
        assert low <= usual <= high
    assert ScheduleConfig().base_learning_rate == 1.0


def test_each_error_and_warning_has_a_code() -> None:
    """Programs go by the codes of --json, sentences may change."""
    without = []
    for path in (ROOT / "limba" / "tools" / "preflight").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Line"):
                continue
            is_ok = isinstance(node.args[0], ast.Constant) and node.args[0].value == "ok"
            if not is_ok and len(node.args) < 4 and "code" not in [word.arg for word in node.keywords]:
                without.append(f"{path.name} line {node.lineno}")
    assert not without, without


def test_a_start_says_by_arithmetic_whether_its_devices_hold_a_step() -> None:
    """The devices describe themselves as a v4-8's do, by libtpu 0.0.42.1."""
    devices = [types.SimpleNamespace(device_kind="TPU v4", platform="tpu", process_index=0)] * 4
    says = lambda run, gib: start.of_memory(run, devices, gib * GIB)
    wanted = arithmetic.memory(PlannedRun(run_of()), topology("v4-8")).total / GIB
    (fits,) = says(run_of(), 30.75)
    assert fits.startswith(f"By arithmetic a device of TPU v4-4 needs {wanted:.2f} GiB of 30.75 GiB (state")
    run = PlannedRun(run_of())
    chips = topology("v4-8")
    seconds = arithmetic.seconds_per_step(run, chips)
    most = arithmetic.largest_batch(run, chips, 30.75 * GIB)
    assert seconds is not None
    assert fits.endswith(f"at most {most:,} rows fit, and a step takes {seconds[0]:.2g} s at least.")
    (fix,) = says(run_of(rows=4096), 30.75)
    assert "Fix: config.RunConfig.num_microbatches = " in fix or "Fix: config.ModelConfig.remat = 'full'" in fix


@pytest.mark.slow
def test_memory_by_arithmetic_counts_what_the_step_really_computes() -> None:
    """Whole logits where they are asked for, and scores where the kernel takes no such heads or rows."""
    card = topology("rtx4090-1")

    def gib(chips: Any = card, **changes: Any) -> float:
        return arithmetic.memory(PlannedRun(run_of(**changes)), chips).total / GIB

    many = dataclasses.replace(BASE, vocab_size=250_112)
    whole = gib(model=many, rows=256, loss=LossConfig(logits="whole"))
    assert whole - gib(model=many, rows=256) > 20
    assert arithmetic.GPU_HEADS == pallas_gpu.WIDTHS
    plain = dataclasses.replace(BASE, remat="none")
    wider = dataclasses.replace(plain, head_dim=96, num_heads=8)  # the same width together
    assert gib(model=wider, rows=64) > 1.3 * gib(model=plain, rows=64)
    without_scores = dataclasses.replace(wider, attention="memory_efficient")
    assert gib(model=without_scores, rows=64) < 1.1 * gib(model=plain, rows=64)
    assert pallas_tpu.fits(arithmetic.MOST_KEYS, None) and not pallas_tpu.fits(arithmetic.MOST_KEYS + 1, None)
    chips = topology("v4-8")
    shorter, longer = (gib(chips, model=plain, rows=8, lengths=(length, 114)) for length in (2_048, 2_304))
    assert longer > 2 * shorter
