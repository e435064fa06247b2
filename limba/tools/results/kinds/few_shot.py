"""Few-shot: a language model reads some examples of the training part before each input, and goes on writing."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from limba.config import InputError
from limba.tools.results.kinds.learned import Parts, evenly
from limba.tools.results.kinds.writing import Free
from limba.tools.results.outcome import Outcome
from limba.tools.results.protocol import PROTOCOL, Protocol

if TYPE_CHECKING:
    from limba.api import TrainedModel

TARGET, NEXT = PROTOCOL.before_target, PROTOCOL.after_target


def measure(trained: TrainedModel, task: Free, parts: Parts, protocol: Protocol = PROTOCOL) -> Outcome:
    """Returns the figures of what a language model writes, greedily, after the task's `shots`."""
    tuning = trained.tuning(protocol.dropout, protocol.batch_size)
    pairs = [tuning.pair(each, "", (sys.maxsize, 1)) for each in prompts(task, parts)]
    sizes = [len(tuning.pair("", each.targets, (1, protocol.most_tokens[1]))[1]) for each in (*parts.train, *parts.dev)]
    config, longest = trained.network.config, max(len(read) for read, _ in pairs) + max(sizes)
    if config.positions == "learned" and longest > config.max_length:
        raise InputError(
            f"{task.name} needs {longest:,} tokens after {task.shots} shots, and {trained.path} reads"
            f" {config.max_length:,}; give fewer shots, or leave the task out by --tasks."
        )
    found = tuning.write(trained.params, pairs, max(sizes))
    return task.on_test(parts.test, list(map(answer_of, found)), parts, protocol)


def prompts(task: Free, parts: Parts) -> list[str]:
    """Returns the prompt of each test example, after the same examples, evenly taken from the training part."""
    shown = evenly(parts.train, task.shots)
    before = "".join(f"{each.inputs}{TARGET}{each.targets}{NEXT}" for each in shown)
    return [f"{before}{each.inputs}{TARGET.rstrip()}" for each in parts.test]


def answer_of(text: str) -> str:
    """Returns what a model has written before the next example, or the next line.

    >>> answer_of(" una mie ### two => doi")
    'una mie'
    """
    return text.partition(NEXT.strip())[0].strip().partition("\n")[0]
