"""The sentences of a proposal: its verdict, what little text means, the risks, and the reasons for each choice."""

from __future__ import annotations

from collections.abc import Iterator

from limba.config.prices import DATE
from limba.config.speed import BESIDE, MEASURED, in_range, in_time
from limba.tools.corpus.counting import SMALL
from limba.tools.corpus.plans import Asked, Plan
from limba.tools.corpus.sizes import (
    BEST_RATIO,
    FREE_EPOCHS,
    LEAST_RATIO,
    LITTLE_BYTES,
    MOST_EPOCHS,
    PUBLISHED,
    REPEATED_DROPOUT,
    SIZES,
    Candidate,
    worth,
)


def verdict(asked: Asked, plan: Plan) -> str:
    """Returns in a sentence or two what the text, the machine and the days are good for."""
    size = f"{short_bytes(asked.corpus.bytes)} of text"
    compute = f"{asked.machine.name} for {days_in_words(asked.days)}"
    is_short_of_text = plan.epochs > 0.9 * FREE_EPOCHS and plan.share < 0.8
    if plan.start:
        return f"{plan.description} goes on with {size} on {compute}."
    useful = plan.ratio * worth(plan.epochs) / plan.epochs  # tokens a parameter, repeated ones by their worth
    if useful < LEAST_RATIO and is_short_of_text:
        return (
            f"{size} is too little for a useful model from scratch; go on from a published one, by"
            f" {PUBLISHED[plan.kind]}. What follows is a trial."
        )
    if plan.ratio < LEAST_RATIO:
        return f"{compute} is too little for {plan.description}; give more days or devices. What follows is a trial."
    if asked.corpus.bytes < LITTLE_BYTES:
        return (
            f"{size} is enough for a small model from scratch, {plan.description}. What limits it is the text. A"
            f" published model that goes on with it is better: {PUBLISHED[plan.kind]}."
        )
    limit = "the text" if is_short_of_text else compute
    return f"{size} is enough for {plan.description}. What limits it is {limit}."


def of_text(asked: Asked, plan: Plan) -> Iterator[str]:
    """Yields what less than 1 GB of text means for a model from scratch, and what the run does about it."""
    if asked.corpus.bytes >= LITTLE_BYTES:
        return
    yield (
        f"Passes: {FREE_EPOCHS} over one text are worth {worth(FREE_EPOCHS):.1f} of new text, {MOST_EPOCHS} are worth"
        f" {worth(MOST_EPOCHS):.1f}, and more add next to nothing (Muennighoff et al. 2023, arXiv:2305.16264, on"
        f" decoder-only models). So no choice reads it more than {MOST_EPOCHS} times."
    )
    if not plan.start:
        best = FREE_EPOCHS * plan.tokens / plan.epochs / BEST_RATIO
        yield (
            f"Size: {FREE_EPOCHS} passes have {BEST_RATIO} tokens for each of {short(best)} parameters; a much larger"
            " model learns such a text by heart."
        )
    yield (
        f"Recipe: beyond {FREE_EPOCHS} passes the gin file has DROPOUT_RATE = {REPEATED_DROPOUT}, which slows learning"
        " by heart (Xue et al. 2023, arXiv:2305.13230, on T5s), keeps the step with the best validation loss in"
        " MODEL_DIR/best, and ends the run when that gets no better. The learning rate falls to 0 over the last 70 %."
    )


def tokens_a_parameter(ratio: float) -> str:
    """Returns the tokens that a parameter sees, in words.

    >>> tokens_a_parameter(1.2), tokens_a_parameter(20)
    ('1 token a parameter', '20 tokens a parameter')
    """
    unit = "token" if round(ratio) == 1 else "tokens"
    return f"{ratio:.0f} {unit} a parameter"


def risk(asked: Asked, plan: Plan) -> str:
    """Returns what may go wrong, in a sentence."""
    parts = []
    if plan.epochs > FREE_EPOCHS:
        parts.append(
            f"it may learn the text by heart: {plan.epochs:.0f} passes are worth {worth(plan.epochs):.1f} of new text"
        )
    if not plan.start and plan.ratio < BEST_RATIO:
        are = "is" if round(plan.ratio) == 1 else "are"
        few = f"{tokens_a_parameter(plan.ratio)} {are} fewer than the {BEST_RATIO} that make the best use of compute"
        is_smallest = plan.size == SIZES[asked.kind][0]
        parts.append(few if is_smallest else f"{few}: a smaller size may be as good")
    if plan.share > 0.8:
        parts.append(f"at the slow end it takes {percent(plan.share)} of {days_in_words(asked.days)}")
    if not parts:
        parts.append(f"little: {tokens_a_parameter(plan.ratio)}, and each text is read {times(plan.epochs)}")
    return "; ".join(parts) + "."


def reasons(asked: Asked, plan: Plan, candidate: Candidate) -> Iterator[str]:
    """Yields what decided a choice: text, vocabulary, time, size, memory and cost."""
    machine = asked.machine
    counted = candidate.counted
    speeds = [plan.tokens / plan.steps / seconds for seconds in reversed(candidate.step_seconds)]
    chip_hours = [hours * machine.chips for hours in plan.hours]
    yield (
        f"Text: {short(candidate.unique)} tokens to train on, counted on {short_bytes(counted.sample)} of it with a"
        f" vocabulary of {counted.made or plan.vocabulary:,} ids; it is read {times(plan.epochs)}."
    )
    if counted.made and counted.made < plan.vocabulary:
        is_whole = asked.corpus.bytes < SMALL  # the run trains its vocabulary on the same text
        of_more = "" if is_whole else "; the run trains on more text, and says how many it found"
        yield (
            f"Vocabulary: {plan.vocabulary:,} ids at most. The {'text' if is_whole else 'sample'} has too few"
            f" different words for more than {counted.made:,}{of_more}."
        )
    tokens_a_second = " to ".join(dict.fromkeys(map(short, speeds)))
    if plan.is_timed:
        yield f"Time: {tokens_a_second} tokens/s, timed here with this network and random tokens."
    else:
        where = "" if machine.is_cpu else f"; {MEASURED}"
        yield f"Time: {machine.reason}, not measured here, give {tokens_a_second} tokens/s{where}."
    if not plan.start:
        yield (
            f"Size: {tokens_a_parameter(plan.ratio)}; about {BEST_RATIO} make the best use of compute"
            " (Hoffmann et al. 2022, arXiv:2203.15556, for decoder-only models)."
        )
    yield f"Memory: {plan.memory.words()}, by arithmetic."
    share = percent(plan.share)
    at_most = share if plan.share < 0.01 else f"at most {share}"
    yield (
        f"Cost: {in_time(plan.hours)}, {BESIDE}: {at_most} of {days_in_words(asked.days)};"
        f" {in_range(chip_hours)} chip-hours{_price_words(asked, plan)}."
    )


def _price_words(asked: Asked, plan: Plan) -> str:
    if plan.dollars is None:
        return "; --price= adds what they cost"
    source = f" (list, {DATE})" if asked.dollars is None else ""
    return f", {dollars(plan)} at ${asked.price:,.2f} each{source}"


def dollars(plan: Plan) -> str:
    """Returns what a run costs; "" where no price is known."""
    if plan.dollars is None:
        return ""
    return in_range(plan.dollars, "$") if plan.dollars[1] >= 0.01 else "under $0.01"


def why_no_more(asked: Asked, plan: Plan) -> str:
    """Returns why there is one choice alone."""
    if plan.epochs > FREE_EPOCHS and plan.share < 0.8:
        return f"There is no larger choice: {MOST_EPOCHS} passes are all that the text gives."
    if asked.chosen is not None:
        return f"There is no larger choice: the steps fill {days_in_words(asked.days)}."
    if plan.size == SIZES[asked.kind][-1]:
        return f"There is no larger choice: {plan.size} is the largest size."
    return "There is no larger choice: the next size does not fit into the memory, or sees too few tokens in the days."


def times(passes: float) -> str:
    """Returns how often a text is read.

    >>> times(0.0004), times(0.5), times(1.0), times(3.96)
    ('in a part of less than 1 %', 'in a part, 50 %', 'once', '4 times')
    """
    if passes < 0.01:
        return "in a part of less than 1 %"
    if passes < 0.95:
        return f"in a part, {100 * passes:.0f} %"
    rounded = f"{passes:.1f}".removesuffix(".0")
    return "once" if rounded == "1" else f"{rounded} times"


def days_in_words(days: float) -> str:
    """Returns a number of days in words.

    >>> days_in_words(1), days_in_words(0.5), days_in_words(30)
    ('1 day', '0.5 days', '30 days')
    """
    return f"{days:g} day{'' if days == 1 else 's'}"


def percent(share: float) -> str:
    """Returns a share in whole percent.

    >>> percent(0.994), percent(0.002)
    ('99 %', 'under 1 %')
    """
    return f"{100 * share:.0f} %" if share >= 0.01 else "under 1 %"


def short_bytes(number: float) -> str:
    """Returns a number of bytes in the units that files have.

    >>> short_bytes(3.97e10), short_bytes(860_000), short_bytes(12)
    ('39.7 GB', '860 kB', '12 bytes')
    """
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.{1 if number < 100 * size else 0}f} {unit}"
    return f"{number:.0f} bytes"


def short(number: float) -> str:
    """Returns a number with two or three digits and k, M, B or T.

    >>> short(1234567), short(1.5e9), short(99)
    ('1.2 M', '1.5 B', '99')
    """
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.{1 if number < 100 * size else 0}f} {unit}"
    return f"{number:.0f}"
