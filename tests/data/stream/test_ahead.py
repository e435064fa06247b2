"""Batches that are made ahead, and what remains readable when making them fails."""

import contextlib
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

import tasks.text_to_text  # noqa: F401  registers text_to_text
from limba.config import DataConfig, InputError
from limba.data.stream.streams import TrainStream
from limba.data.tasks import resolve_task
from tests.waiting import wait_until


@pytest.fixture
def config(tmp_path: Path) -> DataConfig:
    """1,500 pairs; one line after the middle is not JSON."""
    pairs = [{"inputs": f"{n} " + chr(97 + n % 26) * 2000, "targets": f"{n}"} for n in range(1500)]
    good = "".join(json.dumps(pair) + "\n" for pair in pairs).encode()
    bad = good.index(b"{", int(0.6 * len(good)))
    (tmp_path / "good.jsonl").write_bytes(good)
    (tmp_path / "pairs.jsonl").write_bytes(good[:bad] + b"?" + good[bad + 1 :])
    files = {"train": str(tmp_path / "pairs.jsonl"), "validation": str(tmp_path / "good.jsonl")}
    return DataConfig(
        "text_to_text", {"inputs": 16, "targets": 8}, 8, "byte", data_files=files, shuffle=False, num_data_shards=2
    )


def opened(config: DataConfig) -> TrainStream:
    return TrainStream(resolve_task(config), dict(config.task_feature_lengths), config, range(2))


def test_what_was_made_before_a_failure_is_taken_and_the_position_goes_on_there(config: DataConfig) -> None:
    taken = []
    with contextlib.closing(opened(config)) as stream:
        taken += [next(stream) for _ in range(100)]

        def has_failed() -> bool:
            stream.wait()  # which asks for more
            return stream.failure() is not None

        wait_until(has_failed)
        with pytest.raises(InputError, match="is not JSON"):
            while True:  # training may go on to the failure itself
                taken.append(next(stream))
        with pytest.raises(InputError, match="is not JSON"):
            next(stream)
        positions = json.loads(json.dumps(stream.positions()))
    assert len(taken) > 100
    good = str(config.data_files["validation"])
    Path(config.data_files["train"]).write_bytes(Path(good).read_bytes())
    repaired = dataclasses.replace(config)
    with contextlib.closing(opened(repaired)) as whole, contextlib.closing(opened(repaired)) as again:
        for rows in taken:
            np.testing.assert_array_equal(next(whole)[0]["targets"], rows[0]["targets"])
        again.begin(0, {int(shard): position for shard, position in positions.items()})
        for _ in range(20):
            np.testing.assert_array_equal(next(again)[1]["targets"], next(whole)[1]["targets"])
