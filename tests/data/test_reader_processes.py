"""Several processes give the batches and positions of one; what goes wrong in them is said, and they end with us."""

import contextlib
import dataclasses
import signal

import numpy as np
import pytest

from limba.config import InputError
from limba.data import streams
from limba.data.reader_processes import ReaderProcesses, Recipe, open_stream
from tests.data.test_streams import config, flat, opened, taken  # noqa: F401  a fixture


@pytest.fixture
def once(config):  # noqa: F811
    """Two processes over an epoch, whose shards end at different batches."""
    return dataclasses.replace(config, num_epochs=1, num_reader_processes=2, task_modules=("tasks.demo",))


def test_processes_give_what_one_does(once):
    task, lengths, alone = opened(once)
    apart, again = open_stream(task, lengths, once, range(4)), streams.TrainStream(task, lengths, once, range(4))
    with contextlib.closing(alone), contextlib.closing(apart), contextlib.closing(again):
        taken(alone, 5)
        apart.restore(alone.positions())
        np.testing.assert_array_equal(taken(apart, 4), taken(alone, 4))
        assert apart.epochs() == alone.epochs() and apart.skipped() == []
        again.restore(apart.positions())
        rest = [flat(rows) for rows in alone]
        np.testing.assert_array_equal([flat(rows) for rows in again], rest)
        np.testing.assert_array_equal([flat(rows) for rows in apart], rest)  # padding where a shard has ended
        assert not flat(apart.empty()).any()

        apart._processes[1].send_signal(signal.SIGKILL)
        with pytest.raises(InputError, match=r"data shards \[1, 3\] has ended \(-9\).* lower DataConfig.num_reader"):
            next(apart)
        apart._connections[0].close()  # as when this process dies
        assert apart._processes[0].wait(20) == 0


def test_a_process_reports_why_it_cannot_open_its_stream(once):
    unknown = dataclasses.replace(once, task_modules=())
    with (
        contextlib.closing(ReaderProcesses(Recipe(unknown, {"inputs": 64}, {}, (0, 1), 1))) as stream,
        pytest.raises(InputError, match="is 'demo_span_corruption', and no task or mixture has that name"),
    ):
        next(stream)
