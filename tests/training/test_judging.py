"""What the guard makes of numbers: limits, spikes, where a run returns to, and what it writes down of each batch."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba.config import DataConfig, GuardConfig, LossConfig, NonFiniteError, RunConfig
from limba.data.stream.names import NO_DOCUMENTS, BatchDocuments
from limba.model import Network
from limba.training import guard as judging
from limba.training.guard import Guard
from limba.training.losses import cross_entropy
from limba.training.metrics.logging import Metrics
from limba.training.metrics.recent_steps import RecentSteps
from limba.training.row_losses import jit_row_losses, rows_standing_out
from limba.training.skipped_batches import SkippedBatches, entries_of
from limba.training.spikes import Spike, Window
from limba.training.state import TrainState
from tests import tiny
from tests.training.batch_documents import batch_documents

pytestmark = pytest.mark.core
SMALL = tiny.model(
    vocab_size=64, emb_dim=16, num_heads=2, head_dim=8, mlp_dim=24, num_encoder_layers=1, num_decoder_layers=1,
    scan_layers=False,
)  # fmt: skip


def limit(values: Sequence[float], threshold: float, least: float) -> float:
    median = np.median(values)
    return median + threshold * max(1.4826 * np.median(np.abs(np.array(values) - median)), least)


@pytest.mark.parametrize("size", [10, 60])
def test_limits_are_the_formula_of_the_window_before(size: int) -> None:
    """Of the last good steps up to a multiple of 8 that is at least 8 steps back; 20 of them, or a smaller window."""
    random = np.random.default_rng(0)
    steps = [
        (step, 3 + 0.5 * random.standard_normal(), 0.2 * math.exp(random.standard_normal())) for step in range(150)
    ]
    made = Window(GuardConfig(window=size, threshold=5.0))
    for number, loss, norm in steps:
        if number % 5 == 0:  # a spike does not count as a good step
            continue
        limits = made.limits(number).tolist()
        known = [entry for entry in steps[: max(0, (number // 8 - 1) * 8 + 1)] if entry[0] % 5][-size:]
        if len(known) < min(20, size):
            assert limits == [math.inf, math.inf]
        else:
            losses = [entry[1] for entry in known]
            norms = [math.log(entry[2]) for entry in known]
            wanted = limit(losses, 5.0, 0.02 * np.median(losses)), math.exp(limit(norms, 5.0, 0.2))
            assert limits == pytest.approx(wanted, rel=1e-6)
        typical = np.median([entry[1] for entry in known]) if known else math.inf
        assert made.typical_loss(number) == pytest.approx(typical)
        made.add(number, loss, norm)
    assert len(made.notes()) == min(120, size + 16) and made.notes()[-1] == [149, *made.notes()[-1][1:]]
    restored = Window(GuardConfig(window=size, threshold=5.0))
    restored.restore(json.loads(json.dumps(made.notes())))
    for number in range(149, 160):
        assert restored.limits(number).tolist() == made.limits(number).tolist()


def test_the_twentieth_good_step_gives_limits() -> None:
    for number, finite in ((19, False), (20, True)):
        made = Window(GuardConfig())
        for step in range(1, number + 1):
            made.add(step, 2.0, 1.0)
        assert np.isfinite(made.limits(32)).all() == finite


def test_a_restored_window_has_nothing_of_before_and_its_limits_are_finite_numbers() -> None:
    made = Window(GuardConfig())
    for step in range(40):
        made.add(step, -5.0, 1e40)
    assert made.limits(48)[1] == np.float32(math.exp(80.0)) and made.limits(48)[0] == pytest.approx(-5 + 8 * 0.1)
    made.restore([[step, 2.0, 0.0] for step in range(40)])
    assert made.limits(48).tolist() == pytest.approx([2.32, math.exp(1.6)])
    made.restore(())
    assert made.limits(48).tolist() == [math.inf] * 2 and made.notes() == []
    made.add(1, 1.0, 0.0)  # a gradient of zeros
    assert made.notes() == [[1, 1.0, pytest.approx(math.log(1e-30))]]


def test_a_spike_is_above_a_limit_or_not_finite() -> None:
    def found(loss: float, norm: float, update: float = 1.0) -> Spike | None:
        values = {"loss": loss, "gradient_norm": norm, "update_norm": update}
        return Spike.of(7, "rows", values, np.array([3.0, 2.0], np.float32))

    assert found(3.0, 2.0, 100.0) is None  # just at them; an update has no limit
    spike = found(3.5, 2.5)
    assert spike is not None and (spike.step, spike.rows, spike.number) == (7, "rows", 1)
    assert spike.reason == "its loss 3.5 is above 3, the limit that the good steps before it give"
    for values, reason in (
        ((3.0, 2.5), "its gradient norm 2.5 is above 2"),
        ((math.nan, 9.0), "its loss is nan"),
        ((1.0, math.inf), "its gradient norm is inf"),
        ((9.0, 1.0, math.nan), "its update norm is nan"),
    ):
        spike = found(*values)
        assert spike is not None and spike.reason.startswith(reason)


class Said(Metrics):
    """Metrics that keep what the guard says and records."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.events: list[tuple[int, dict[str, Any]]] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def record(self, kind: str, step: int, values: Any) -> None:
        assert kind == "event"
        self.events.append((step, values))


class Number:
    """A metric that says whether it was asked for before it was needed."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.asked = 0

    def copy_to_host_async(self) -> None:
        self.asked += 1

    def __float__(self) -> float:
        return self.value


@pytest.fixture
def guard_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes guards whose rows' losses are given, and which start at a step."""
    monkeypatch.setattr(judging, "gather_parameters", lambda model, params: params)
    monkeypatch.setattr(judging, "jit_row_losses", lambda model, loss: lambda params, batch: batch)

    def make(action: str, start: int = 0, notes: Any = None, **choices: Any) -> Guard:
        data = DataConfig("task", {"inputs": 24, "targets": 10}, batch_size=8, num_data_shards=2)
        config = RunConfig(SMALL, data, str(tmp_path), 1_000, guard=GuardConfig(action, **choices))
        recent = RecentSteps(config, {"inputs": 24, "targets": 10}, 1, Said())
        guard = Guard(config, Network(SMALL), SkippedBatches(config), recent, lambda rows: ROWS)
        guard.begin(start, notes)
        return guard

    return make


def add(
    guard: Guard,
    step: int,
    loss: float,
    norm: float = 1.0,
    limits: tuple[np.ndarray, ...] = (),
    documents: BatchDocuments = NO_DOCUMENTS,
) -> list[Number]:
    values = {"loss": Number(loss), "gradient_norm": Number(norm), "update_norm": Number(1.0)}
    guard.after(step, {0: np.zeros(1)}, values, limits, documents)
    return list(values.values())


def state_at(step: int) -> TrainState:
    return TrainState(np.int32(step), {}, ())


ROWS = np.array([3.0, 3.1, 9.0, 2.9, 3.0, np.nan, -np.inf, 3.0], np.float32)
STOOD_OUT = [{"shard": 0, "row": 2, "loss": 9.0}, {"shard": 1, "row": 1, "loss": None}]


def test_steps_are_judged_up_to_one_and_numbered_in_a_row(guard_of: Any) -> None:
    guard = guard_of("warn")
    assert guard.before(50, state_at(49)) == ()
    for step in range(1, 40):
        assert not any(judged.asked for judged in add(guard, step, 3.0))
    for step in range(40, 47):
        add(guard, step, {40: 9.0, 41: 8.0, 43: 9.0, 45: math.nan}.get(step, 3.0))
    assert [(spike.step, spike.number) for spike in guard.spikes(41)] == [(40, 1), (41, 2)]
    spikes = guard.spikes(100)
    assert [(spike.step, spike.number) for spike in spikes] == [(43, 1), (45, 1)]
    assert spikes[0].typical_loss == 3.0 and guard.spikes(100) == []
    guard.warn(spikes[:1])
    assert guard._metrics.events == [
        (43, {"action": "warn", "reason": spikes[0].reason, "loss": 9.0, "gradient_norm": 1.0})
    ]
    assert guard._metrics.said == [f"Step 43 spikes: {spikes[0].reason}. Its batch is trained on like any other."]
    guard.warn(spikes[1:])  # the spike at 45 ends the run
    assert len(guard._metrics.said) == 1
    quiet = guard_of("off")
    add(quiet, 1, math.nan)
    assert quiet.spikes(9) == []


OF_ROWS = {0: [[0], [1], [2, 81, 2, 3, 4], [5]], 1: [[6], [7, 8], [9], [10]]}


def test_a_warning_names_the_first_documents(guard_of: Any, tmp_path: Path) -> None:
    guard = guard_of("warn")
    for step in range(1, 40):
        add(guard, step, 3.0)
    add(guard, 40, 9.0, documents=batch_documents(tmp_path, OF_ROWS))
    assert guard.judge(40, state_at(40)) is None
    (said,) = guard._metrics.said
    assert said.endswith(
        ". Its batch (part-07.txt.gz, document 0; part-07.txt.gz, document 1; part-07.txt.gz, document 2; and 9 more)"
        " is trained on like any other."
    )


def test_a_warning_ends_no_run(guard_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    guard = guard_of("warn")
    for step in range(1, 40):
        add(guard, step, 3.0)
    add(guard, 40, 9.0, documents=batch_documents(tmp_path, OF_ROWS))
    monkeypatch.setattr("limba.data.stream.names.named", full)
    assert guard.judge(40, state_at(40)) is None
    (said,) = guard._metrics.said
    assert said.endswith(". Its batch is trained on like any other.")


def test_a_step_that_may_be_dropped_goes_by_its_own_limits(guard_of: Any) -> None:
    guard = guard_of("skip")
    (limits,) = guard.before(1, state_at(0))
    assert limits.tolist() == [math.inf] * 2
    asked = add(guard, 1, 3.0, 1.0, (np.array([2.0, np.inf], np.float32),))
    assert [judged.asked for judged in asked] == [1, 1, 1]
    add(guard, 2, 3.0, 1.0, (np.array([4.0, np.inf], np.float32),))
    assert [spike.step for spike in guard.spikes(2)] == [1]
    for step in range(3, 44):
        add(guard, step, 3.0 if step < 24 else 9.0, 1.0, (np.array([4.0, np.inf], np.float32),))
    spikes = guard.spikes(43)
    assert [spike.number for spike in spikes] == list(range(1, 21))
    assert len(guard._window.notes()) == 22  # a new level is learned by 'warn' alone
    guard.begin(50, {"guard": {"window": [[1, 2.0, 0.0]]}})
    add(guard, 51, math.inf)
    guard.begin(50, None)
    assert guard.spikes(99) == [] and guard._window.notes() == []


def test_a_dropped_batch_is_written_down_with_its_rows(guard_of: Any) -> None:
    guard = guard_of("skip", start=3)  # whose data begin there
    add(guard, 5, math.inf, 7.0, (np.full(2, np.inf),))
    (spike,) = guard.spikes(5)
    assert spike.number == 1
    guard.drop(spike, state_at(6))
    (entry,) = entries_of(guard.skipped_batches.path.read_text(), "ledger")
    assert entry == {
        "batch": 5, "data_batch": 2, "action": "skip", "reason": "its loss is inf", "loss": None, "gradient_norm": 7.0,
        "rows": STOOD_OUT,
    }  # fmt: skip
    assert guard._metrics.events == [
        (5, {"action": "skip", "reason": "its loss is inf", "loss": None, "gradient_norm": 7.0})
    ]
    (sentence,) = guard._metrics.said
    assert sentence.startswith(
        "Step 5 is dropped: its loss is inf. What stands out: row 2 of shard 0; row 1 of shard 1."
    )
    guard.drop(spike._replace(number=19), state_at(6))
    with pytest.raises(NonFiniteError, match="of 20 steps in a row up to step 5 were dropped"):
        guard.drop(spike._replace(number=20), state_at(6))


@pytest.mark.parametrize("around", [0, 2])
def test_a_run_that_returns_writes_down_the_batches_around(guard_of: Any, around: int) -> None:
    kept = {"guard": {"data_start": 4, "window": [[1, 3.0, 0.0]]}}
    guard = guard_of("rewind", start=20, notes=kept, batches_around=around)
    add(guard, 24, 9.0, math.nan)
    (spike,) = guard.spikes(24)
    assert guard.target(spike, [20, 22, 24]) == (22 if around == 0 else 20)
    guard.skipped_batches.append([{"batch": 25, "rows": []}])
    guard._write_rewound(spike, state_at(22))
    entries = entries_of(guard.skipped_batches.path.read_text(), "ledger")
    assert [entry["batch"] for entry in entries] == ([25, 24] if around == 0 else [25, 23, 24, 26])
    by_batch = {entry["batch"]: entry for entry in entries}
    assert by_batch[24] == {
        "batch": 24, "data_batch": 20, "action": "rewind", "reason": "its gradient norm is nan", "loss": 9.0,
        "gradient_norm": None, "rows": STOOD_OUT,
    }  # fmt: skip
    if around:
        reason = "it is beside batch 24, which spikes"
        assert by_batch[26] == {
            "batch": 26, "data_batch": 22, "action": "rewind", "reason": reason, "loss": None, "gradient_norm": None,
            "rows": [],
        }  # fmt: skip
    ((step, event),) = guard._metrics.events
    assert (step, event["action"], event["returned_to"]) == (24, "rewind", 22)
    assert ("passes over batches 23 to 26" if around else "passes over batch 24,") in guard._metrics.said[0]


def test_a_run_returns_to_the_newest_checkpoint_before_the_batches_around(guard_of: Any) -> None:
    guard = guard_of("rewind", batches_around=2)
    spike = Spike(30, {}, {}, "it spikes")
    for steps, wanted in (([10, 20, 27, 28, 40], 27), ([28, 29], 28), ([30], None), ([], None), ([27, 26], 27)):
        assert guard.target(spike, steps) == wanted
    with pytest.raises(NonFiniteError, match="has returned to step 27 3 times"):
        for _ in range(2):
            guard.target(spike, [27])
    guard.target(spike, [])
    with pytest.raises(NonFiniteError, match="has returned to the start 3 times"):
        guard.target(spike, [])


def test_a_checkpoint_keeps_the_window_and_where_the_data_begin(guard_of: Any, tmp_path: Path) -> None:
    guard = guard_of("warn", start=5)
    for step in range(6, 10):
        add(guard, step, 3.0)
    guard.spikes(9)
    # As on a disk that was full.
    guard.skipped_batches._lines = '{"batch": 3}\n'
    guard.skipped_batches._is_written = False
    notes = json.loads(json.dumps(guard.notes()))
    assert guard.skipped_batches.path.read_text() == '{"batch": 3}\n'
    assert notes == {"guard": {"data_start": 5, "window": [[step, 3.0, 0.0] for step in range(6, 10)]}}
    for kept, start in ((notes, 5), ({}, 0), (None, 77)):
        again = guard_of("warn", start=77, notes=kept)
        assert again._data_start == start and len(again._window.notes()) == (4 if start == 5 else 0)


def test_a_lasting_level_is_learned_after_twenty_steps(guard_of: Any) -> None:
    guard = guard_of("warn")
    for step in range(1, 101):
        add(guard, step, 3.0 if step <= 60 else 9.0)
    assert [spike.step for spike in guard.spikes(100)] == list(range(61, 81))


@pytest.mark.parametrize(
    ("losses", "typical", "wanted"),
    [
        ([3.0, 3.1, 9.0, math.inf, 2.9], 3.2, [2, 3]),
        ([9.0, 9.1, 8.8, 3.0], 3.2, [0, 1, 2]),
        ([3.0, 4.19, 4.21, -math.inf, math.nan], 3.0, [2, 4]),  # at least 8 x 5 % of the center
        ([2.0, 2.5, 3.0, 7.0, 7.5, 8.0, 8.9, 9.0], 3.0, [7]),  # 8 x 1.4826 x 0.5 above 3: less than 8.93
        ([2.0, 3.0, 4.19, 4.21], 3.0, [3]),  # two below say nothing of deviations
        ([math.nan, -math.inf], 3.0, [0]),
    ],
)
def test_rows_stand_out_by_the_ordinary_ones(losses: list[float], typical: float, wanted: list[int]) -> None:
    assert rows_standing_out(np.array(losses), 8.0, typical) == wanted


def test_rows_have_the_mean_loss_of_their_tokens() -> None:
    network = Network(SMALL)
    params = tiny.parameters(SMALL)
    batch: Any = {name: np.minimum(array, 63) for name, array in tiny.batch(6).items()}
    weights = batch["decoder_loss_weights"]
    weights[0] = 0
    weights[1, 1:] = 0
    weights[2, 3:] = 0
    row_losses = jit_row_losses(network, LossConfig(z_loss=0.1))(params, batch)
    trained, _, _ = cross_entropy(
        jax.jit(network.apply)(params, jax.tree.map(jnp.asarray, batch)), jnp.asarray(batch["decoder_target_tokens"]),
        LossConfig(z_loss=0.1),
    )  # fmt: skip
    assert row_losses[0] == -np.inf
    np.testing.assert_allclose(row_losses[1:], (trained * weights).sum(1)[1:] / weights.sum(1)[1:], rtol=1e-5)


def test_a_sentence_names_three_shards() -> None:
    rows = [{"shard": shard, "row": 1} for shard in range(3)]
    assert judging._in_words(rows) == "What stands out: row 1 of shard 0; row 1 of shard 1; row 1 of shard 2."
    rows += [{"shard": 3, "row": 1}, {"shard": 0, "row": 4}, {"shard": 5, "row": 0}]
    assert judging._in_words(rows).endswith(
        "rows 1, 4 of shard 0; row 1 of shard 1; row 1 of shard 2; rows of 2 more shards."
    )
