"""Many runs of one recipe in one program: its rates and seeds, side by side on one device.

A small model leaves a card idle, and each run of its own compiles its own programs. Here the runs of a sweep are
replicas, [S, R]: S seeds, whose batches and initial values differ, times R settings of the recipe's rate. A step of all
is one call of the training step that a run takes, vmapped. A rate is a number that the program is given, since every
recipe multiplies its updates by it last; so one program serves all rates, schedules and lengths of runs. Nothing is
saved: an interrupted sweep begins again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.board.recipes import OWN, recipe_of
from benchmarks.board.runs import EVALUATIONS, Trial, config_of, record, results, said_of
from benchmarks.board.text import Text
from limba.config import InputError

if TYPE_CHECKING:
    import jax

    from limba.config import RunConfig
    from limba.data.stream.streams import Stream

Arrays = dict[str, np.ndarray]


def sweep(trials: Sequence[Trial], text: Text, board: Path) -> Iterator[dict[str, Any]]:
    """Yields the result of each trial: the known ones, then the others, whose trials are run together.

    Trials are of one recipe, depth and length, and differ in their seed and in settings of OWN; each seed has each of
    these. Raises InputError for other ones. `seconds_per_step` is a replica's share of the step of all.
    """
    known = results(board)
    yield from (known[trial.key] for trial in trials if trial.key in known)
    left = [trial for trial in trials if trial.key not in known]
    if not left:
        return
    import jax

    seeds = sorted({trial.seed for trial in left})
    settings = list({json.dumps(trial.settings, sort_keys=True): trial.settings for trial in left}.values())
    table = {(trial.seed, json.dumps(trial.settings, sort_keys=True)): trial for trial in left}
    grid = [[table.get((seed, json.dumps(point, sort_keys=True))) for point in settings] for seed in seeds]
    fixed = [{name: value for name, value in point.items() if name not in OWN} for point in settings]
    lacks_a_trial = any(None in row for row in grid)
    differs_elsewhere = any(point != fixed[0] for point in fixed)
    if lacks_a_trial or differs_elsewhere:
        raise InputError("A sweep runs each seed with each rate, and nothing else may differ: run these one by one.")
    after = {"momentum", "weight_decay"} & fixed[0].keys()  # of Adafactor, whose rate is not the last factor then
    if after and recipe_of(left[0].recipe).optimizer["name"] == "adafactor":
        raise InputError(f"Adafactor's {min(after)} comes after the rate: run these one by one.")
    replicas = _Replicas([[config_of(trial, text, board) for trial in row if trial] for row in grid])
    seed_results = replicas.run()
    del replicas
    jax.clear_caches()  # else a sweep keeps the programs of the ones before
    for row, of_seed in zip(grid, seed_results, strict=True):
        for trial, measured in zip(row, of_seed, strict=True):
            assert trial is not None
            status = "finished" if np.isfinite(measured["curve"]["loss"]).all() else "diverged"
            yield record({"key": trial.key, "status": status, **said_of(trial), **measured}, board)


class _Replicas:
    """The runs of a sweep, by configurations [S][R], and the program that steps all of them."""

    def __init__(self, configs: Sequence[Sequence[RunConfig]]):
        import jax
        import jax.numpy as jnp
        import optax

        from limba.config import ScheduleConfig
        from limba.data.run_data import validation_batches
        from limba.evaluation.validation import spelling
        from limba.model import Network
        from limba.training.optimizer import make_optimizer
        from limba.training.schedule import make_schedule
        from limba.training.start import task_of_run
        from limba.training.state import TrainState
        from limba.training.step import Gradient, loss_sums, train_step

        self.configs = configs
        first = configs[0][0]
        self.steps = first.train_steps or 0
        # Attention kernels are not made for replicas.
        self.model = model = Network(dataclasses.replace(first.model, attention="einsum"))
        self.schedules = [make_schedule(config.optimizer.schedule, self.steps) for config in configs[0]]
        constant = dataclasses.replace(first.optimizer, schedule=ScheduleConfig("factors", 1.0, "constant"))
        unit = make_optimizer(constant, self.steps)
        gradient = Gradient(model, first.loss)

        def of_rate(rate: jax.Array) -> optax.GradientTransformation:
            return optax.chain(unit, optax.scale(rate))

        def step(state: TrainState, rate: jax.Array, batch: Mapping[str, jax.Array]) -> tuple[TrainState, dict]:
            return train_step(
                state, batch, jax.random.key(0), gradient=gradient, optimizer=of_rate(rate), schedule=lambda _: rate
            )

        def start(seed: jax.Array) -> TrainState:
            params = model.init(jax.random.key(seed))
            return TrainState(jnp.zeros((), jnp.int32), params, of_rate(jnp.float32(1)).init(params))

        def evaluate(params: Any, batches: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
            sums = jax.lax.map(lambda batch: loss_sums(model, first.loss, params, batch, None), batches)
            return jax.tree.map(jnp.sum, sums)

        self.step = jax.jit(jax.vmap(jax.vmap(step, (0, 0, None)), (0, None, 0)), donate_argnums=0)
        self.evaluate = jax.jit(jax.vmap(jax.vmap(evaluate, (0, None)), (0, None)))
        seeds = np.array([row[0].random_seed for row in configs])
        copies = jax.vmap(lambda seed: jax.tree.map(lambda x: jnp.stack([x] * len(configs[0])), start(seed)))
        self.state = jax.jit(copies)(seeds)
        self.task, self.lengths = task_of_run(first)
        data = first.data
        evaluation = first.evaluation
        of_split = validation_batches(self.task, self.lengths, data, evaluation.num_batches, evaluation.batch_size)
        self.validation = {name: jnp.asarray(np.stack([batch[name] for batch in of_split])) for name in of_split[0]}
        self.bytes = int(spelling(first, self.task, of_split)[2].sum())

    def run(self) -> list[list[dict[str, Any]]]:
        """Returns the measured figures of each replica, [S][R]."""
        import jax

        evaluated = []
        norms = []
        every = max(1, self.steps // EVALUATIONS)
        rates = np.stack([np.asarray(of(np.arange(self.steps)), np.float32) for of in self.schedules], axis=1)
        first = time.monotonic()
        evaluating = 0.0
        with ThreadPoolExecutor() as pool, contextlib.ExitStack() as stack:
            streams = [stack.enter_context(contextlib.closing(self._stream(row[0]))) for row in self.configs]
            rows_of_seeds = list(pool.map(_rows, streams, (row[0] for row in self.configs)))
            for number in range(self.steps):
                batch = {name: np.stack([rows[name] for rows in rows_of_seeds]) for name in rows_of_seeds[0]}
                self.state, metrics = self.step(self.state, rates[number], batch)
                # While the device computes.
                rows_of_seeds = list(pool.map(_rows, streams, (row[0] for row in self.configs)))
                if number == 0:
                    norms.append(jax.device_get(metrics["parameter_norm"]))
                    first = time.monotonic()
                if (number + 1) % every == 0 or number + 1 == self.steps:
                    jax.block_until_ready(self.state)
                    stopped = time.monotonic()
                    sums = jax.device_get(self.evaluate(self.state.params, self.validation))
                    evaluated.append((number + 1, sums, max(0.0, stopped - first - evaluating)))
                    evaluating += time.monotonic() - stopped
            norms.append(jax.device_get(metrics["parameter_norm"]))
        seconds = evaluated[-1][2] / max(1, self.steps - 1)  # without evaluations, and without the first step
        figures = []
        for s, row in enumerate(self.configs):
            figures.append([self._measured((s, r), evaluated, norms, seconds) for r in range(len(row))])
        return figures

    def _stream(self, config: RunConfig) -> Stream:
        from limba.data.stream.stages import open_stages
        from limba.training.start import plan_of_run

        plan = plan_of_run(config, self.task, self.lengths)
        return open_stages(plan.stages, self.lengths, range(config.data.num_data_shards or 1))

    def _measured(
        self, replica: tuple[int, int], evaluated: Sequence, norms: Sequence, seconds: float
    ) -> dict[str, Any]:
        """Returns the figures of the replica [S, R], as `measured` of `runs.py` gives a run's."""
        import jax

        from limba.training.metrics.flops import flops_per_row
        from limba.training.state import count_parameters

        config = self.configs[replica[0]][replica[1]]
        replicas = len(self.configs) * len(self.configs[0])
        curve = []
        for _, sums, _ in evaluated:
            curve.append({name: float(sums[name][replica]) for name in ("loss", "nats", "tokens")})
        device = jax.devices()[0].device_kind
        return {
            "parameters": count_parameters(self.state.params) // replicas,
            "flops_per_step": flops_per_row(config, self.lengths) * config.data.batch_size,
            "rows": config.data.batch_size,
            "seconds_per_step": round(seconds / replicas, 6),
            "passes": None,
            "parameter_norm": [round(float(norm[replica]), 2) for norm in norms],
            "devices": f"1 x {device}, {replicas} runs side by side",
            "curve": {
                "steps": [step for step, _, _ in evaluated],
                "loss": [round(sums["loss"] / sums["tokens"], 5) for sums in curve],
                "bits_per_byte": [round(sums["nats"] / math.log(2) / self.bytes, 5) for sums in curve],
                "seconds": [round(passed / replicas, 2) for _, _, passed in evaluated],
            },
        }


def _rows(stream: Stream, config: RunConfig) -> Arrays:
    """Returns the next batch of model features, [B, L], its rows in the order of a run's."""
    from limba.data.packing import model_features

    by_shard = next(stream)
    choices = config.data.sequence_length, config.data.num_predicted
    features = [model_features(by_shard[shard], *choices) for shard in sorted(by_shard)]
    return {name: np.concatenate([rows[name] for rows in features]) for name in features[0]}
