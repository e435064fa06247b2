"""Several processes give the batches and positions of one; what goes wrong in them is said, and they end with us."""

import contextlib
import dataclasses
import json
import signal
import time

import numpy as np
import pytest

import tasks.text_to_text  # noqa: F401  registers its tasks
from limba.config import DataConfig, InputError
from limba.data import streams
from limba.data.reader_processes import ReaderProcesses, Recipe, open_stream
from limba.data.tasks import resolve_task
from tests.data.test_streams import config, flat, opened, taken  # noqa: F401  a fixture


@pytest.fixture
def once(config):  # noqa: F811
    """Two processes over an epoch, whose shards end at different batches."""
    return dataclasses.replace(config, num_epochs=1, num_reader_processes=2, task_modules=("tasks.demo",))


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_failed_read_is_told_while_there_are_rows(tmp_path):
    """So a run of several processes can settle where all save; after the repair the rows are those that were due."""
    path = tmp_path / "pairs.jsonl"
    pairs = [{"inputs": f"{n} " + chr(97 + n % 26) * 2000, "targets": f"{n}"} for n in range(1500)]
    good = "".join(json.dumps(pair) + "\n" for pair in pairs).encode()
    bad = good.index(b"{", int(0.6 * len(good)))
    path.write_bytes(good[:bad] + b"?" + good[bad + 1 :])
    files = {"train": str(path), "validation": str(path)}
    apart = DataConfig(
        "text_to_text", {"inputs": 16, "targets": 8}, 8, "byte", data_files=files, shuffle=False, num_data_shards=4,
        num_reader_processes=2, task_modules=("tasks.text_to_text",),
    )  # fmt: skip
    task = resolve_task(apart)
    with contextlib.closing(open_stream(task, dict(apart.task_feature_lengths), apart, range(4))) as stream:
        number = 0
        while (failure := stream.failure()) is None:
            next(stream)
            number += 1
            time.sleep(0.01)  # a step
        assert isinstance(failure, InputError) and "is not JSON" in str(failure)
        taken(stream, 3)  # what came before it is there
        positions = stream.positions()
    path.write_bytes(good)
    whole, again = (streams.TrainStream(task, dict(apart.task_feature_lengths), apart, range(4)) for _ in range(2))
    with contextlib.closing(whole), contextlib.closing(again):
        taken(whole, number + 3)
        again.restore(positions)
        np.testing.assert_array_equal(taken(again, 20), taken(whole, 20))
