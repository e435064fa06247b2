"""What `limba new` proposes for texts of some sizes on some hardware in seven days, as the table of docs/start.md.

    python -m benchmarks.proposals

Nothing is read: the text has the tokens a byte that were counted on a French handbook of 1.1 MB (0.22 with 16,000 ids;
larger vocabularies are taken to need as many), and 2,000 bytes a document. The CPU has two cores.
"""

from __future__ import annotations

from limba.config.speed import in_time
from limba.tools.corpus.counting import Counted
from limba.tools.corpus.hardware import hardware
from limba.tools.corpus.sizes import Plan, plan, short
from limba.tools.corpus.survey import Survey

DAYS = 7.0
TEXTS = (1e6, 50e6, 1e9, 3e9, 10e9, 100e9)  # bytes
MACHINES = ("h100", "v4-8", "cpu")
TOKENS_PER_BYTE = {1_000: 0.42, 2_000: 0.32, 4_000: 0.26, 8_000: 0.23}  # French; 0.22 above


def proposed(size: float, machine: str) -> Plan:
    """Returns the proposal for a text of so many bytes."""
    found = Survey("text", ("text",), 8, max(1, round(size / 2_000)), round(size), round(0.97 * size), False)
    return plan(found, hardware(machine, cores=2), DAYS, lambda ids: Counted(ids, TOKENS_PER_BYTE.get(ids, 0.22), 0))


def cell(each: Plan) -> str:
    """Returns a proposal in words: size, parameters, vocabulary, batch, steps, passes, time and its share."""
    time = in_time(each.hours)
    return (
        f"{each.size}, {short(each.parameters)}, {each.vocabulary // 1000}k ids; {short(each.steps)} steps of"
        f" {each.batch}; {each.epochs:.1f} passes, {each.tokens / each.parameters:.0f} tokens a parameter;"
        f" {time}, at most {each.share:.0%}"
    )


def table() -> str:
    """Returns the table in Markdown."""
    lines = ["| text | " + " | ".join(MACHINES) + " |", "| --- |" + " --- |" * len(MACHINES)]
    for size in TEXTS:
        cells = (cell(proposed(size, machine)) for machine in MACHINES)
        text = f"{size / 1e9:.0f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
        lines.append(f"| {text} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
