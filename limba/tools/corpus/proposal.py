"""What to train on some hardware in some days: one verdict, and two choices of size and steps with their reasons.

The rules. The safe choice is the largest size that fits, sees 20 tokens a parameter, which use a budget of compute best
(Hoffmann et al. 2022, arXiv:2203.15556; measured on decoder-only models, and used here for T5s too, for which no such
law is published), and reads no text more than 4 times, which are worth nearly as much as new text. The other one goes
further: up to 16 passes, which are worth about two thirds of as much new text, and down to 10 tokens a parameter. More
passes than that add next to nothing (Muennighoff et al. 2023, arXiv:2305.16264). Memory, speed and hours come from
the functions of `limba preflight`; the slow end of the hours fits into the days.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from types import ModuleType

from limba.api import PlannedRun, find_tool, read_run
from limba.config import DataConfig, InputError, ModelConfig, RunConfig
from limba.config.speed import hours_of_run
from limba.tools.corpus import reasons, sizes
from limba.tools.corpus.counting import Counted
from limba.tools.corpus.plans import Asked, Memory, Plan, Proposal
from limba.tools.corpus.sizes import Candidate, model_of, of_limit


class Proposer:
    """Makes the proposal; `counts` gives the tokens of a byte for a vocabulary of some ids.

    Where a size or a published model is given, only its steps are chosen.
    """

    def __init__(self, asked: Asked, counts: Callable[[int], Counted]):
        self.asked = asked
        self.machine = asked.machine
        self.counts = counts
        self._candidates: dict[str, Candidate] = {}
        self._memories: dict[str, Memory | None] = {}

    def proposal(self) -> Proposal:
        """Returns the verdict and the choices; InputError where no size, or not the given one, fits."""
        safe, passes = self._safe()
        plans = [self._plan("safe", safe, passes)]
        more = self._more(safe, plans[0])
        if more is not None:
            plans.append(self._plan("more", *more))
        no_more = "" if more is not None else reasons.why_no_more(self.asked, plans[0])
        verdict = reasons.verdict(self.asked, plans[0])
        of_text = tuple(reasons.of_text(self.asked, plans[0]))
        return Proposal(verdict, of_text, tuple(plans), no_more)

    @property
    def _sizes(self) -> tuple[str, ...]:
        """The sizes in question, from the largest."""
        if self.asked.chosen is None:
            return tuple(reversed(sizes.SIZES[self.asked.kind]))
        if isinstance(self.asked.chosen, str):
            return (self.asked.chosen,)
        return ("from",)  # a published model

    def _safe(self) -> tuple[Candidate, float]:
        """Returns the size of the safe choice, and how often it may read the text.

        The largest size with enough tokens in a few passes, else in many, else the smallest size.
        """
        for passes in (sizes.FREE_EPOCHS, sizes.MOST_EPOCHS):
            for size in self._sizes:
                candidate = self._candidate(size)
                if candidate.ratio(passes) >= self._least(sizes.BEST_RATIO) and self._memory(candidate) is not None:
                    return candidate, passes
        smallest = self._candidate(self._sizes[-1])
        if self._memory(smallest) is None:
            raise InputError(self._too_large(smallest))
        return smallest, sizes.MOST_EPOCHS

    def _least(self, ratio: float) -> float:
        """Returns the tokens a parameter that a choice needs; a published model has seen its own, and needs none."""
        return 0.0 if self.asked.start else ratio

    def _too_large(self, candidate: Candidate) -> str:
        name = self.asked.start.name if self.asked.start else candidate.size
        return (
            f"{name} has {candidate.parameters:,} parameters, whose training does not fit into the memory of"
            f" {self.machine.name}; give a smaller size or more devices."
        )

    def _more(self, safe: Candidate, plan: Plan) -> tuple[Candidate, float] | None:
        """Returns a larger choice than the safe one, and how often it may read the text; None if none fits."""
        for least in (sizes.BOLD_RATIO, sizes.LEAST_RATIO):
            for size in self._sizes:
                candidate = self._candidate(size)
                if candidate.parameters < safe.parameters or candidate.ratio(sizes.MOST_EPOCHS) < self._least(least):
                    continue
                # The same size again is another choice only if it sees clearly more text.
                is_more = candidate.size != safe.size or candidate.tokens(sizes.MOST_EPOCHS) > 1.2 * plan.tokens
                if is_more and self._memory(candidate) is not None:
                    return candidate, sizes.MOST_EPOCHS
        return None

    def _candidate(self, size: str) -> Candidate:
        if size not in self._candidates:
            self._candidates[size] = self._made_candidate(size)
        return self._candidates[size]

    def _made_candidate(self, size: str) -> Candidate:
        """Returns a size with its vocabulary, row lengths and batch, and the tokens that the days allow."""
        corpus = self.asked.corpus
        machine = self.machine
        config, counted = self._network(size)
        config = dataclasses.replace(config, dtype=machine.dtype)
        if not machine.has_kernels:
            config = dataclasses.replace(config, attention="einsum")
        unique = max(1.0, corpus.bytes * counted.tokens_per_byte * (1 - corpus.validation_percent / 100))
        long_rows, short_rows = sizes.LENGTHS[self.asked.kind]
        lengths = short_rows if machine.is_cpu or unique < sizes.LITTLE_TEXT else long_rows
        tokens_per_row = lengths[2]
        most = of_limit(sizes.ROWS_OF_WIDTH, config.emb_dim, sizes.MOST_ROWS)
        least = min(sizes.LEAST_ROWS, most) if machine.is_cpu else max(sizes.LEAST_ROWS, 8 * machine.devices)
        batch = -(-max(most, least) // machine.devices) * machine.devices
        while True:
            seconds = self._step_seconds(size, config, lengths, batch)
            steps_of_days = self.asked.days * 24 / hours_of_run(1, seconds)[1]
            tokens_of_days = steps_of_days * batch * tokens_per_row
            steps = min(tokens_of_days, sizes.FREE_EPOCHS * unique) / (batch * tokens_per_row)
            half = batch // 2
            can_halve = half >= least and half % machine.devices == 0
            if steps >= sizes.FEW_STEPS or not can_halve:
                return Candidate(size, config, counted, lengths, unique, batch, seconds, tokens_of_days)
            batch = half

    def _network(self, size: str) -> tuple[ModelConfig, Counted]:
        """Returns the network of a size, or the published model's, and what its vocabulary makes of the text."""
        if self.asked.start is not None:
            return self.asked.start.config, self.counts(0)
        width = model_of(self.asked.kind, size, 128).emb_dim
        ids = min(
            of_limit(sizes.IDS_OF_TEXT, self.asked.corpus.bytes, sizes.MOST_IDS),
            of_limit(sizes.IDS_OF_WIDTH, width, sizes.MOST_IDS),
        )
        counted = self.counts(ids)
        rows = -(-counted.ids // 128) * 128  # a multiple of 128, as T5's 32,128
        return model_of(self.asked.kind, size, rows), counted

    def _step_seconds(
        self, size: str, config: ModelConfig, lengths: tuple[int, int, int], batch: int
    ) -> tuple[float, float]:
        """Returns the least and the most seconds of a step, which are one number where it was timed."""
        if size in self.asked.measured:
            seconds_of_row = self.asked.measured[size]
            return seconds_of_row * batch, seconds_of_row * batch
        predicted = None
        if self.asked.kind == "encoder":
            data = DataConfig("new", {"targets": lengths[1]}, batch, objective="masked_lm", noise_density=sizes.HIDDEN)
            predicted = data.num_predicted
        seconds = _arithmetic().seconds_of(config, batch, lengths[:2], predicted, self.machine.chips_of_preflight)
        assert seconds is not None  # a machine without a peak has no name
        return seconds

    def run_of(self, candidate: Candidate, steps: int = sizes.FEW_STEPS) -> RunConfig:
        """Returns the run of a size as its gin file will describe it, except for its task, periods and memory."""
        # A published model's network replaces this one below; only the kind of its gin files matters.
        size = sizes.SIZES[self.asked.kind][0] if self.asked.start else candidate.size
        files = [sizes.FILES[self.asked.kind].format(size), *sizes.RUN_FILES[self.asked.kind]]
        if self.asked.start:
            files = files[:2]  # the recipe is for runs from scratch
        inputs, targets, _ = candidate.lengths
        lengths = {"inputs": inputs} if self.asked.kind == "t5" else {"targets": targets}
        bindings = {
            "MIXTURE_OR_TASK_NAME": f"new_{sizes.FUNCTIONS[self.asked.kind]}",
            "TASK_FEATURE_LENGTHS": lengths,
            "TRAIN_STEPS": steps,
            "MODEL_DIR": "runs/new",
            "BATCH_SIZE": candidate.batch,
            "VOCAB_SIZE": candidate.config.vocab_size,
            "DROPOUT_RATE": 0.0,
        }
        config = read_run(files, [f"{name}={value!r}" for name, value in bindings.items()]).config
        return dataclasses.replace(config, model=candidate.config)

    def config_of(self, plan: Plan) -> RunConfig:
        """Returns the run of a plan, with its memory's choices and its dropout."""
        memory = plan.memory
        config = self.run_of(self._candidate(plan.size), plan.steps)
        model = dataclasses.replace(config.model, remat=memory.remat, dropout_rate=plan.dropout)
        mesh = dataclasses.replace(config.mesh, fsdp=memory.fsdp)
        return dataclasses.replace(config, model=model, mesh=mesh, num_microbatches=memory.parts)

    def _memory(self, candidate: Candidate) -> Memory | None:
        if candidate.size not in self._memories:
            self._memories[candidate.size] = self._found_memory(candidate)
        return self._memories[candidate.size]

    def _found_memory(self, candidate: Candidate) -> Memory | None:
        """Returns how a step of a size fits, with as little remat, sharing and micro-batches as can be, or None."""
        arithmetic = _arithmetic()
        chips = self.machine.chips_of_preflight
        limit = self.machine.limit
        config = self.run_of(candidate)
        run = PlannedRun(config)
        checkpoint = run.num_bytes
        for remat, parts, fsdp in _ways(candidate, self.machine.devices):
            model = dataclasses.replace(config.model, remat=remat)
            mesh = dataclasses.replace(config.mesh, fsdp=fsdp)
            changed = dataclasses.replace(config, model=model, mesh=mesh, num_microbatches=parts)
            used = arithmetic.memory(run, chips, changed).total
            if used <= sizes.USED_MEMORY * limit:
                return Memory(remat, parts, fsdp, used, limit, checkpoint)
        return None

    def _plan(self, choice: str, candidate: Candidate, passes: float) -> Plan:
        """Returns the run of a choice: its steps, periods, data shards and costs, with its risk and reasons."""
        machine = self.machine
        memory = self._memory(candidate)
        assert memory is not None  # a choice fits
        tokens_per_row = candidate.lengths[2]
        batch = candidate.batch
        steps = max(1, int(candidate.tokens(passes) / (batch * tokens_per_row)))
        unit = 10 ** max(0, len(str(steps)) - 2)
        steps = steps // unit * unit  # two digits, and not above what the text and the days give
        tokens = float(steps * batch * tokens_per_row)
        epochs = tokens / candidate.unique
        # A power of two, so that any number of hosts up to it can read the run's data.
        most_shards = max(16, machine.devices // 4)  # a host has at least 4 devices, and reads at least one shard
        shards = 1 << int(math.log2(max(1.0, min(most_shards, self.asked.corpus.documents / 8))))
        hours = hours_of_run(steps, candidate.step_seconds)
        run_seconds = hours[1] * 3600
        evaluations = _steps_between_evaluations(steps)
        eval_steps = int(evaluations * sizes.EVALUATED_SHARE * sizes.UPDATE_PER_EVALUATION)
        patience = None
        if epochs > sizes.FREE_EPOCHS:  # it may learn the text by heart
            patience = max(sizes.LEAST_PATIENCE, steps // evaluations // 5)
        price = self.asked.price
        dollars = None
        if price is not None:
            dollars = (hours[0] * machine.chips * price, hours[1] * machine.chips * price)
        start = self.asked.start
        plan = Plan(
            choice=choice,
            kind=self.asked.kind,
            size=candidate.size,
            description=start.name if start else f"{sizes.ABOUT[self.asked.kind]} {candidate.size}",
            config=candidate.config,
            parameters=candidate.parameters,
            vocabulary=candidate.counted.ids,
            rows=candidate.config.vocab_size,
            inputs=candidate.lengths[0],
            targets=candidate.lengths[1],
            batch=batch,
            memory=memory,
            shards=math.gcd(shards, batch),
            steps=steps,
            tokens=tokens,
            epochs=epochs,
            hours=hours,
            dollars=dollars,
            share=run_seconds / (self.asked.days * 86_400),
            checkpoints=_steps_between_saves(steps, run_seconds),
            evaluations=evaluations,
            eval_steps=max(1, min(sizes.EVAL_STEPS, eval_steps)),
            patience=patience,
            log=min(100, max(1, steps // 50)),
            start=start,
            is_timed=candidate.size in self.asked.measured,
            risk="",
            reasons=(),
        )
        plan = plan._replace(risk=reasons.risk(self.asked, plan))
        return plan._replace(reasons=tuple(reasons.reasons(self.asked, plan, candidate)))


def _steps_between_saves(steps: int, run_seconds: float) -> int:
    """Returns the steps that a run may lose: those of a share of its time, within limits that suit any run."""
    seconds = max(sizes.SAVED_SHARE * run_seconds, sizes.RARELY_SECONDS)
    seconds = min(seconds, sizes.SAVED_SECONDS)
    seconds_of_step = run_seconds / steps
    return max(1, min(steps, int(seconds / seconds_of_step)))


def _steps_between_evaluations(steps: int) -> int:
    """Returns a spacing that gives a short run 5 evaluations, others one every 200 steps, a long run at most 100.

    >>> [_steps_between_evaluations(steps) for steps in (50, 1_000, 5_000, 100_000)]
    [10, 200, 200, 1000]
    """
    return min(steps, max(min(200, steps // 5), steps // 100, 1))


def _arithmetic() -> ModuleType:
    """Returns preflight's module that computes memory and seconds by arithmetic."""
    module = find_tool("arithmetic")
    assert module is not None  # it is shipped with this one
    return module


def _ways(candidate: Candidate, devices: int) -> Iterator[tuple[str, int, int]]:
    """Yields (remat, micro-batches, devices that share the parameters), from the fastest to the one of least memory.

    Stronger remat comes before more micro-batches as long as a device has FEW_ROWS rows at once, and sharing the
    parameters comes last.
    """
    first = sizes.POLICIES[0] if candidate.config.emb_dim <= 512 else sizes.POLICIES[1]
    policies = sizes.POLICIES[sizes.POLICIES.index(first) :]
    rows = candidate.batch // devices
    numbers = [parts for parts in range(1, rows + 1) if rows % parts == 0]
    for fsdp in dict.fromkeys((1, devices)):
        for remat in policies:
            for parts in numbers:
                if rows // parts >= min(sizes.FEW_ROWS, rows):
                    yield remat, parts, fsdp
        for parts in numbers:
            yield policies[-1], parts, fsdp
