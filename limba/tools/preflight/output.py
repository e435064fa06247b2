"""What the command prints of a run: the verdict with four figures and what is wrong, or all of it as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from limba.config.speed import in_range, in_time, number
from limba.tools.preflight.checks.compiler import TITLE as COMPILED
from limba.tools.preflight.checks.cost import TITLE as COSTS
from limba.tools.preflight.checks.data import TITLE as DATA
from limba.tools.preflight.checks.estimate import TITLE as ESTIMATE
from limba.tools.preflight.checks.verdict import FAILS, Section, as_json, distinct, judged, lines_of, verdict
from limba.tools.preflight.compiled.memory import device_bytes


def glance(sections: Sequence[Section]) -> dict[str, str]:
    """Returns the four figures that a reader looks for first, each as a sentence: fits, days, passes and cost."""
    data = {section.title: section.data for section in sections}
    estimated = data.get(ESTIMATE, {})
    compiled = data.get(COMPILED, {})
    costs = data.get(COSTS, {})
    if judged(sections) == FAILS:
        unknown = "not known: the errors come first"
    elif estimated:
        unknown = "not known: --all says why"
    else:
        unknown = "not known: name the chips, as in --topology=v4-8"
    figures = {
        "fits": _fits(estimated, compiled),
        "days": _days(costs, estimated),
        "passes": _passes(data.get(DATA, {}), costs),
        "cost": _cost(costs, estimated),
    }
    return {name: text or unknown for name, text in figures.items()}


def _fits(estimated: Mapping[str, Any], compiled: Mapping[str, Any]) -> str:
    """Returns whether a step fits, by the compiler where it was asked; "" where nothing is known."""
    if compiled.get("live_bytes"):
        needed = device_bytes(compiled)
        limit = compiled["limit_bytes"]
        how = "as compiled"
    elif estimated:
        needed = estimated["live_bytes"]
        limit = estimated["limit_bytes"]
        how = "by arithmetic"
    else:
        return ""
    answer = "yes" if needed <= limit else "no"
    text = f"{answer}, {needed / 2**30:.2f} of {limit / 2**30:.2f} GiB a device, {how}"
    if estimated.get("largest_batch"):
        text += f"; at most {estimated['largest_batch']:,} rows"
    return text


def _days(costs: Mapping[str, Any], estimated: Mapping[str, Any]) -> str:
    if not costs.get("hours"):
        return ""
    chips = "this machine's CPU" if _is_cpu(estimated) else estimated["topology"]
    text = f"{in_time(costs['hours'])} on {chips}"
    if "share_of_days" in costs:
        text += f", at most {costs['share_of_days'][1]:.0%} of the days given"
    return text


def _passes(corpus: Mapping[str, Any], costs: Mapping[str, Any]) -> str:
    epochs = corpus.get("epochs")
    text = "the size of the text is not known" if epochs is None else f"{number(epochs)} over the text"
    ratio = costs.get("tokens_per_parameter")
    if ratio:
        text += f"; {number(ratio)} tokens a parameter"
    return text


def _is_cpu(estimated: Mapping[str, Any]) -> bool:
    return str(estimated.get("topology", "")).startswith("cpu-")


def _cost(costs: Mapping[str, Any], estimated: Mapping[str, Any]) -> str:
    if not costs.get("hours"):
        return ""
    if _is_cpu(estimated) and "dollars" not in costs:
        return "no rent for this machine's CPU; --topology=v4-8 or rtx4090 names other chips"
    text = f"{in_range(costs['chip_hours'])} chip-hours"
    if "dollars" in costs:
        text = f"{in_range(costs['dollars'], '$')}, {text} at ${costs['price']:g}"
    return text


def first_screen(sections: Sequence[Section], is_all_shown: bool) -> str:
    """Returns the verdict, four figures, and what is wrong with its fixes, unless all lines have been shown."""
    figures = [f"  {name:<8} {text}" for name, text in glance(sections).items()]
    if is_all_shown:
        return "\n".join(["", *figures, "", verdict(sections)])
    findings = distinct(sections)
    errors = [line for line in findings if line.level == "error"]
    warnings = [line for line in findings if line.level == "warning"]
    lines = []
    for line in [*errors, *warnings]:
        lines += ["", *lines_of(line)]
    hidden = len(findings) - len(errors) - len(warnings)
    return "\n".join([verdict(sections), *figures, *lines, "", f"{hidden} other lines are fine; --all prints them."])


def json_of(sections: Sequence[Section], header: Mapping[str, object]) -> str:
    """Returns the whole as JSON: what was looked at, the verdict, the four figures, and the sections."""
    return as_json(sections, {**header, "figures": glance(sections)})
