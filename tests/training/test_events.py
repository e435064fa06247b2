"""What is due at a step, and why a run ends: every row of the table of `Events`."""

import dataclasses
from fractions import Fraction

import pytest

from limba.config import DataConfig, RunConfig
from limba.training.loop import Due, Events
from limba.training.start import Plan
from tests import tiny

DATA = DataConfig("task", {"inputs": 24, "targets": 10}, batch_size=8, num_data_shards=2, num_epochs=3)
RUN = RunConfig(tiny.model(), DATA, "run", 30, log_every_steps=4)
CORPUS = "The corpus has been read 3 time(s): the run ends at step {}."
STOPPED = "Asked to stop: step {} is saved. The same command resumes from it."


def events(start: int = 0, saving: int | Fraction = 10, evaluation: int | Fraction = 5) -> Events:
    return Events(RUN, Plan([], RUN, 30, saving, evaluation, ()), start)


def dues(made: Events, steps: range) -> dict[str, list[int]]:
    by_step = {step: made.after(step, has_ended=False, stops=False) for step in steps}
    return {name: [step for step, due in by_step.items() if getattr(due, name)] for name in ("log", "evaluate", "save")}


@pytest.mark.core
def test_each_event_is_due_at_its_period_and_a_line_with_each() -> None:
    assert dues(events(), range(1, 30)) == {
        "log": [1, 4, 5, 8, 10, 12, 15, 16, 20, 24, 25, 28],
        "evaluate": [5, 10, 15, 20, 25],
        "save": [10, 20],
    }
    assert dues(events(17), range(18, 24))["log"] == [18, 20]  # the first step of a start has a line
    epochs = dues(events(saving=Fraction(15, 2), evaluation=Fraction(15, 4)), range(1, 30))
    assert epochs["save"] == [8, 15, 23] and epochs["evaluate"] == [4, 8, 12, 15, 19, 23, 27]


@pytest.mark.core
@pytest.mark.parametrize(
    ("step", "has_ended", "stops", "done", "expected"),  # `done`: the step that was saved and evaluated last
    [
        (29, False, False, 20, Due()),
        (30, False, False, 20, Due(log=True, evaluate=True, save=True, ends=True)),  # the last step
        (30, False, False, 30, Due(ends=True)),
        (7, True, False, 0, Due(log=True, evaluate=True, save=True, ends=True, reason=CORPUS.format(7))),
        (7, True, False, 7, Due(ends=True, reason=CORPUS.format(7))),
        (10, True, False, 10, Due(ends=True, reason=CORPUS.format(10))),
        (
            7,
            False,
            True,
            0,
            Due(log=True, save=True, stops=True, ends=True, reason=STOPPED.format(7)),
        ),  # and not evaluated
        (10, False, True, 0, Due(log=True, save=True, stops=True, ends=True, reason=STOPPED.format(10))),
        (7, True, True, 7, Due(stops=True, ends=True, reason=STOPPED.format(7))),  # its rows cannot be read
        (30, False, True, 0, Due(log=True, save=True, stops=True, ends=True, reason=STOPPED.format(30))),
    ],
)
def test_the_end_of_a_run_has_its_own_events(step: int, has_ended: bool, stops: bool, done: int, expected: Due) -> None:
    made = events()
    made.saved = done
    made.evaluated = done
    assert made.after(step, has_ended, stops) == expected


def test_the_last_step_is_evaluated_also_where_it_was_saved_before() -> None:
    """The end of a corpus is known after its last batch, which may be a step of one period and not of the other."""
    made = events()
    made.saved = 10
    made.evaluated = 5
    expected = Due(log=True, evaluate=True, ends=True, reason=CORPUS.format(10))
    assert made.after(10, has_ended=True, stops=False) == expected
    restored = events(start=10)
    assert restored.after(10, has_ended=True, stops=False) == Due(ends=True, reason=CORPUS.format(10))


def test_after_a_rewind_the_run_goes_on_unless_it_is_to_stop() -> None:
    made = events()
    last = made.after(30, has_ended=False, stops=False)
    assert made.rewound(20, last, [10, 20]) == Due()
    assert made.saved == made.evaluated == 20
    stopped = made.after(25, has_ended=False, stops=True)
    assert made.rewound(10, stopped, [10]) == Due(stops=True, ends=True, reason=STOPPED.format(10))
    assert made.rewound(0, stopped, []) == Due(save=True, stops=True, ends=True, reason=STOPPED.format(0))


def test_a_run_without_a_known_end_goes_on() -> None:
    run = dataclasses.replace(RUN, train_steps=None)
    made = Events(run, Plan([], run, 2**31 - 1, 10, 5, ()), 0)
    assert made.after(2_000_000_001, has_ended=False, stops=False) == Due()
