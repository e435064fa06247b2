"""The proposals of `limba new`: sizes, passes, memory, hours, and the sentences about them."""

import math

import jax
import pytest

from limba.api import PlannedRun, read_model
from limba.config import InputError, prices, speed
from limba.model import Network
from limba.tools.corpus import sizes
from limba.tools.corpus.counting import Counted
from limba.tools.corpus.hardware import hardware
from limba.tools.corpus.plans import Asked, Plan, Proposal
from limba.tools.corpus.proposal import Proposer
from limba.tools.corpus.survey import Survey
from limba.tools.preflight.compiled import arithmetic
from limba.tools.preflight.compiled.topologies import limit_bytes, topology
from limba.training.metrics.flops import flops_per_sequence


def text(size: float) -> Survey:
    return Survey("text", ("text",), 8, max(1, round(size / 2_000)), round(size), round(size * 0.85), False)


def quarter(ids: int) -> Counted:
    return Counted(ids, 0.25, 1 << 20)


def proposed(gigabytes: float, name: str, days: float, kind: str = "t5", chosen: str | None = None) -> Proposal:
    return Proposer(Asked(text(gigabytes * 1e9), hardware(name), days, kind, chosen), quarter).proposal()


@pytest.mark.parametrize(("kind", "size"), [(kind, size) for kind, all_ in sizes.SIZES.items() for size in all_])
def test_parameters_by_formula_are_the_networks(kind: str, size: str) -> None:
    for config in (sizes.model_of(kind, size, 32_128), read_model("gin/models/umt5/base.gin")):
        shapes = jax.eval_shape(Network(config).init, jax.random.key(0))
        assert sizes.num_parameters(config) == sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


def check(plan: Plan, name: str, days: float, gigabytes: float) -> None:
    """Asserts what holds of every choice: it fits, ends in the days, divides, and its figures are each other's."""
    chips = topology(name)
    run = Proposer(Asked(text(gigabytes * 1e9), hardware(name), days, plan.kind), quarter).config_of(plan)
    planned = PlannedRun(run)
    used = arithmetic.memory(planned, chips).total
    assert used == pytest.approx(plan.memory.used) and used <= sizes.USED_MEMORY * limit_bytes(chips)
    assert planned.num_parameters == plan.parameters and planned.num_bytes == plan.memory.checkpoint
    seconds = arithmetic.seconds_per_step(planned, chips)
    assert seconds is not None and plan.hours == pytest.approx(speed.hours_of_run(plan.steps, seconds))
    assert plan.hours[1] <= days * 24 and plan.share == pytest.approx(plan.hours[1] / 24 / days)
    assert plan.batch % (plan.memory.parts * chips.devices) == 0
    assert plan.batch % plan.shards == 0 and plan.shards >= min(16, chips.devices // 4, plan.batch & -plan.batch)
    assert plan.rows % 128 == 0 and plan.rows >= plan.vocabulary
    assert plan.epochs <= sizes.MOST_EPOCHS and (plan.patience is None) == (plan.epochs <= sizes.FREE_EPOCHS)
    assert run.model.dropout_rate == (0.0 if plan.patience is None else sizes.REPEATED_DROPOUT)
    price = prices.price(chips.name)
    if price is None:
        assert plan.dollars is None
    else:
        assert plan.dollars == pytest.approx([hours * chips.chips * price for hours in plan.hours])
    lost = plan.checkpoints / plan.steps * plan.hours[1] * 3600
    step = plan.hours[1] * 3600 / plan.steps
    assert lost <= min(1800, max(0.02 * plan.hours[1] * 3600, 120)) + step
    assert plan.eval_steps / 3 <= 0.06 * plan.evaluations or plan.eval_steps == 1
    said = " ".join(plan.reasons)
    assert "2203.15556" in said and f"{plan.ratio:.0f} tokens a parameter" in said


@pytest.mark.parametrize(
    ("name", "gigabytes", "days", "safe", "more"),
    [
        ("rtx4090", 0.5, 7, "mini", "small"),  # the text is the limit
        ("8xh100", 300, 14, "xl", None),
        ("cpu", 1, 1, "tiny", "mini"),
        pytest.param("v4-8", 20, 7, "large", "large", marks=pytest.mark.night),
        pytest.param("v4-24", 20, 7, "large", "xl", marks=pytest.mark.night),  # 12 chips: the batch divides among them
        pytest.param("v5p-512", 3_000, 30, "xxl", None, marks=pytest.mark.night),  # 64 hosts: each has a data shard
        pytest.param("t4", 5, 30, "small", "base", marks=pytest.mark.night),  # float16 and the einsum
        pytest.param("rtx4060", 40, 30, "base", None, marks=pytest.mark.night),  # 8 GB
    ],
)
def test_the_safe_choice_is_the_largest_that_20_tokens_a_parameter_and_4_passes_allow(
    name: str, gigabytes: float, days: float, safe: str, more: str | None
) -> None:
    proposal = proposed(gigabytes, name, days)
    assert [plan.size for plan in proposal.plans] == [safe] + [more] * (more is not None)
    assert bool(proposal.no_more) == (more is None)
    for plan in proposal.plans:
        check(plan, name, days, gigabytes)
    first = proposal.plans[0]
    assert first.ratio >= 0.9 * sizes.BEST_RATIO  # the steps are rounded
    assert first.epochs <= sizes.FREE_EPOCHS
    for plan in proposal.plans[1:]:
        assert plan.ratio >= 0.9 * sizes.LEAST_RATIO and plan.parameters >= first.parameters
        assert plan.tokens > first.tokens or plan.parameters > first.parameters
        assert plan.risk != first.risk
    assert (len(proposal.of_text) == 3) == (gigabytes < 1)


@pytest.mark.night
@pytest.mark.parametrize("kind", sizes.SIZES)
@pytest.mark.parametrize("name", ["cpu", "rtx3060", "v4-8", "8xa100", "v3-8"])
@pytest.mark.parametrize("megabytes", [1, 20, 500, 3_000, 1_000_000])
def test_every_choice_fits_and_says_what_it_is(megabytes: float, name: str, kind: str) -> None:
    proposal = proposed(megabytes / 1_000, name, 7, kind)
    for plan in proposal.plans:
        check(plan, name, 7, megabytes / 1_000)
        assert ("by heart" in plan.risk) == (plan.epochs > sizes.FREE_EPOCHS)
        assert ("fewer than the 20" in plan.risk) == (plan.ratio < sizes.BEST_RATIO)
    assert ("umt5" in proposal.verdict) == (megabytes < 1_000 and kind == "t5")  # only a T5 can continue from umT5


def test_little_text_is_told_what_passes_are_worth_and_has_a_recipe() -> None:
    proposal = proposed(0.003, "rtx3090", 1)
    (plan,) = proposal.plans
    assert "too little for a useful model from scratch" in proposal.verdict and "--from=" in proposal.verdict
    assert plan.size == "tiny" and plan.epochs == pytest.approx(16, rel=0.1) and plan.patience
    said = " ".join(proposal.of_text)
    assert "2305.16264" in said and "16 are worth 10.6" in said and "DROPOUT_RATE = 0.1" in said
    assert "16 passes are all that the text gives" in proposal.no_more


def test_a_card_without_bfloat16_computes_in_float16_with_the_einsum_and_pays_for_its_scores() -> None:
    old = proposed(20, "rtx2080ti", 7, chosen="small").plans[0]
    new = proposed(20, "a6000", 7, chosen="small").plans[0]
    assert (old.config.dtype, old.config.attention) == ("float16", "einsum")
    assert (new.config.dtype, new.config.attention) == ("bfloat16", "auto")
    chips = topology("rtx2080ti")
    with_einsum = arithmetic.seconds_of(old.config, 128, (512, 114), None, chips)
    assert with_einsum is not None and chips.speed is not None
    products = 128 * flops_per_sequence(old.config, 512, 114) / chips.speed.flops[1]
    # 6 heads of 8 + 8 layers: 512 x 512, and 114 x (114 + 512) scores, 24 bytes each, at 616 GB/s
    scores = 128 * 6 * 8 * (512**2 + 114 * 626) * 24 / 616e9
    assert with_einsum[0] == pytest.approx(products + scores)
    assert hardware("t4").notes and not hardware("a6000").notes
    assert "setup.sh cuda12" in hardware("v100").notes[0] and "setup.sh" not in hardware("t4").notes[0]


def test_a_size_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match=r"xxl has [\d,]+ parameters, whose training does not fit into the memory of"):
        proposed(100, "rtx3070", 30, chosen="xxl")


@pytest.mark.parametrize("kind", sizes.SIZES)
def test_a_published_model_of_each_kind_goes_on_for_4_passes_or_16(kind: str) -> None:
    start = sizes.Start("x/y", sizes.model_of(kind, "tiny", 8_064), "byte", None)
    asked = Asked(text(3e8), hardware("rtx4090"), 1, kind, start)
    plans = Proposer(asked, quarter).proposal().plans
    assert [plan.choice for plan in plans] == ["safe", "more"]
    for plan, passes in zip(plans, (4, 16), strict=True):
        assert plan.description == "x/y" and plan.epochs == pytest.approx(passes, rel=0.1) and plan.epochs <= passes
        assert plan.parameters == sizes.num_parameters(start.config)


def test_seconds_that_were_timed_are_the_hours() -> None:
    asked = Asked(text(1e9), hardware("cpu"), 7, "t5", "tiny", measured={"tiny": 0.25})
    plan = Proposer(asked, quarter).proposal().plans[0]
    assert plan.hours == pytest.approx(speed.hours_of_run(plan.steps, (0.25 * plan.batch, 0.25 * plan.batch)))
    assert any("timed here" in reason for reason in plan.reasons)


@pytest.mark.night
@pytest.mark.parametrize("kind", ["t5", "lm", "encoder"])
def test_the_step_of_a_proposal_runs_and_is_timed_on_this_machine(kind: str) -> None:
    proposer = Proposer(Asked(text(2e6), hardware("cpu"), 0.1, kind), quarter)
    config = proposer.config_of(proposer.proposal().plans[0])
    seconds = PlannedRun(config).seconds_of_step(0.1)
    assert 0 < seconds < math.inf
