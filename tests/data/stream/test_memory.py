"""Numbers of rows that decide an allocation are bounded by the memory, and refused before any text is read."""

import re
from pathlib import Path

import pytest

import tasks.demo  # noqa: F401  registers demo_span_corruption
from limba.config import ConfigError, DataConfig
from limba.data.run_data import RunData, validation_batches
from limba.data.stream import memory
from limba.data.stream.stages import open_stream

FREE = 10**9


@pytest.fixture(autouse=True)
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: FREE)


def config_of(corpus: Path, vocabulary: Path, batch_size: int = 16, shuffle_buffer: int = 0) -> DataConfig:
    return DataConfig(
        "demo_span_corruption",
        {"inputs": 64},
        batch_size,
        num_data_shards=16,
        vocabulary=str(vocabulary),
        data_files=str(corpus),
        validation_percent=5.0,
        shuffle_buffer=shuffle_buffer,
    )


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        ({"batch_size": 16 * 10**8}, r"DataConfig.batch_size is [\d,]+: the rows .*; give at most ([\d,]+)\."),
        ({"shuffle_buffer": 2**31 - 1}, r"DataConfig.shuffle_buffer is [\d,]+ rows .*; give at most ([\d,]+)\."),
    ],
    ids=["batch", "buffer"],
)
def test_a_stream_that_cannot_fit_is_refused_with_the_number_and_the_memory(
    choices: dict[str, int], says: str, corpus: Path, vocabulary: Path
) -> None:
    config = config_of(corpus, vocabulary, **choices)
    run = RunData(config)
    lengths = run.lengths()
    with pytest.raises(ConfigError, match=says) as told:
        open_stream(run.task, lengths, config, range(16))
    assert "1.0 GB are free" in str(told.value)
    with pytest.raises(ConfigError, match=says):  # as preflight reads one shard
        next(run.rows(lengths))
    match = re.search(says, str(told.value))
    assert match is not None
    most = int(match[1].replace(",", ""))
    (name,) = choices
    memory.check_stream(config_of(corpus, vocabulary, **{name: most}), lengths, 16)
    with pytest.raises(ConfigError, match=says):
        memory.check_stream(config_of(corpus, vocabulary, **{name: most + 16}), lengths, 16)


def test_a_validation_batch_that_cannot_fit_is_refused_with_its_own_field(corpus: Path, vocabulary: Path) -> None:
    run = RunData(config_of(corpus, vocabulary))
    with pytest.raises(ConfigError, match=r"EvaluationConfig.batch_size is 1,000,000,000: so many rows .* 1.0 GB"):
        validation_batches(run.task, run.lengths(), run.config, 1, 10**9)
