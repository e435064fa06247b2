"""Stages of the data: a stream resumed anywhere, by any hosts, gives the batches of one that never stopped."""

import contextlib
import dataclasses
import importlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import seqio
import tensorflow as tf

from limba.config import ConfigError, DataConfig, InputError
from limba.data.deal import deal_of
from limba.data.objectives import derive_lengths, span_corruption, tokenize_documents
from limba.data.packing import model_features
from limba.data.sources import FileSource
from limba.data.stream.positions import Position, opened
from limba.data.stream.stages import Stage, StagedStream, check_rows_of_stage, open_stages, task_of_stage
from limba.data.stream.streams import TrainStream
from limba.data.tasks import Provider, resolve_task
from tests.data.test_positions import write
from tests.data.test_reader_processes import readers

CONFIG = DataConfig(
    "stages_mix",
    {"inputs": 32},
    batch_size=4,
    vocabulary="byte",
    num_data_shards=2,
    seed=3,
    stages=((5, "stages_a"), (8, "stages_other_mix")),
)
LAST = 11
Batches = list[dict[int, dict[str, np.ndarray]]]


@pytest.fixture
def corpora(tmp_path: Path) -> Iterator[None]:
    """Two corpora, two mixtures of them with other rates, and a task with another vocabulary."""
    features = {side: seqio.Feature(seqio.ByteVocabulary(100), dtype=tf.int32) for side in ("inputs", "targets")}
    others = {side: seqio.Feature(seqio.ByteVocabulary(50), dtype=tf.int32) for side in ("inputs", "targets")}
    for name in ("a", "b", "words"):
        texts = [f"{number} " + name * (number % 17 + 5) for number in range(300)]
        seqio.TaskRegistry.add(
            f"stages_{name}",
            source=FileSource(str(write(tmp_path / f"{name}.txt", texts)), validation_percent=0.0),
            preprocessors=[tokenize_documents, span_corruption],
            output_features=others if name == "words" else features,
            shuffle_buffer_size=None,
        )
    seqio.MixtureRegistry.add("stages_mix", [("stages_a", 1.0), ("stages_b", 1.0)])
    seqio.MixtureRegistry.add("stages_other_mix", [("stages_a", 1.0), ("stages_b", 9.0)])
    yield
    for name in ("mix", "other_mix"):
        seqio.MixtureRegistry.remove(f"stages_{name}")
    for name in ("a", "b", "words"):
        seqio.TaskRegistry.remove(f"stages_{name}")


def stages_of(config: DataConfig) -> tuple[list[Stage], dict[str, int]]:
    first = resolve_task(config.of_stages[0])
    lengths = derive_lengths(first, config.task_feature_lengths)
    stages = []
    for begins, of_stage in config.of_stages.items():
        task: Provider = task_of_stage(begins, first, lengths, config) if begins else first
        stages.append(Stage(begins, task, of_stage, deal_of(task, lengths, of_stage, False)))
    return stages, lengths


@contextlib.contextmanager
def stream_of(config: DataConfig, shards: Sequence[int] = (0, 1)) -> Iterator[StagedStream]:
    stream = open_stages(*stages_of(config), shards)
    assert isinstance(stream, StagedStream)
    with contextlib.closing(stream):
        yield stream


def assert_same(one: Batches, other: Batches) -> None:
    assert len(one) == len(other)
    for first, second in zip(one, other, strict=True):
        assert list(first) == list(second)
        for shard, rows in first.items():
            assert rows.keys() == second[shard].keys()
            for name, values in rows.items():
                np.testing.assert_array_equal(values, second[shard][name], err_msg=name)


def tokens_of(batches: Batches) -> int:
    return sum(int(np.count_nonzero(part[side])) for rows in batches for part in rows.values() for side in part)


@pytest.mark.night
@pytest.mark.usefixtures("corpora")
def test_a_run_resumed_before_at_and_after_a_boundary_reads_the_same_by_one_host_or_two() -> None:
    whole: Batches = []
    positions: dict[int, Mapping[int, Position]] = {}
    figures = {}
    with stream_of(CONFIG) as stream:
        stream.begin(0)
        for step in range(1, LAST + 1):
            whole.append(next(stream))
            positions[step] = stream.positions()
            figures[step] = (stream.tokens(), stream.epochs())

    # Each stage is what a stream of its task alone gives, from its beginning, with a seed of its own.
    stages, lengths = stages_of(CONFIG)
    for stage, end in zip(stages, (5, 8, LAST), strict=True):
        with contextlib.closing(TrainStream(stage.task, lengths, stage.config, [0, 1], deal=stage.deal)) as alone:
            assert_same(whole[stage.begins : end], [next(alone) for _ in range(stage.begins, end)])

    # The ledger: every token is one of a stage and of a task, and the stages of a task add up.
    tokens = figures[LAST][0]
    by_stage = Counter[int]()
    for name, number in tokens.items():
        if name.startswith("stage_"):
            by_stage[int(name.partition("/")[0].removeprefix("stage_"))] += round(number)
    assert by_stage == {0: tokens_of(whole[:5]), 5: tokens_of(whole[5:8]), 8: tokens_of(whole[8:])}
    assert tokens["stages_a"] == sum(tokens[f"stage_{begins}/stages_a"] for begins in (0, 5, 8))
    assert tokens["stages_b"] == sum(tokens[f"stage_{begins}/stages_b"] for begins in (0, 8))
    assert set(tokens) == {"stages_a", "stages_b", "stage_5/stages_a"} | {
        f"stage_{begins}/stages_{name}" for begins in (0, 8) for name in "ab"
    }

    for step in (4, 5, 6, 8):
        with stream_of(CONFIG) as again:
            again.check(positions[step])
            again.begin(step, positions[step])
            assert_same([next(again) for _ in range(step, LAST)], whole[step:])
            assert again.tokens() == tokens
            assert again.epochs() == pytest.approx(figures[LAST][1], abs=0.11)
    # Two hosts go on from one at a boundary, and one from two.
    step = 5
    parts = list[Batches]()
    saved: dict[int, Position] = {}
    for shard in (0, 1):
        with stream_of(CONFIG, [shard]) as half:
            half.check(positions[step])
            half.begin(step, positions[step])
            parts.append([next(half) for _ in range(step, 9)])
            saved |= half.positions()
    both = [{0: one[0], 1: other[1]} for one, other in zip(*parts, strict=True)]
    assert_same(both, whole[step:9])
    with stream_of(CONFIG) as joined:
        joined.begin(9, saved)
        assert_same([next(joined) for _ in range(9, LAST)], whole[9:])
        assert joined.tokens() == tokens

    # A stage added to a run that had none: what its one task gave is not known, and not guessed.
    with contextlib.closing(TrainStream(stages[1].task, lengths, stages[1].config, [0, 1])) as plain:
        next(plain)
        before = plain.positions()
    config = dataclasses.replace(stages[1].config, stages=((1, "stages_b"),))
    with stream_of(config) as added:
        added.begin(1, before)
        rows = [next(added)]
        assert added.tokens() == {"stages_b": tokens_of(rows), "stage_1/stages_b": tokens_of(rows)}


@pytest.mark.usefixtures("corpora")
@pytest.mark.parametrize(
    "function", ["limba.data.stream.stages.open_stream", "limba.data.stream.streams.TrainStream.__next__"]
)
def test_a_stage_that_cannot_be_read_leaves_the_position_where_the_one_before_ended(
    function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise InputError("The disk is gone.")

    config = dataclasses.replace(CONFIG, mixture_or_task_name="stages_a", stages=((3, "stages_b"),))
    with stream_of(config) as stream:
        stream.begin(0)
        batches = [next(stream) for _ in range(3)]
        with monkeypatch.context() as patch, pytest.raises(InputError, match="The disk is gone"):
            patch.setattr(function, fails)
            next(stream)
        positions = stream.positions()
        assert stream.tokens()["stages_a"] == tokens_of(batches)
        assert {opened(position, shard).stage["begins"] for shard, position in positions.items()} == {0}
    with stream_of(config) as again:
        again.begin(3, positions)
        batches += [next(again) for _ in range(2)]
    with stream_of(config) as whole:
        whole.begin(0)
        assert_same(batches, [next(whole) for _ in range(5)])


@pytest.mark.usefixtures("corpora")
def test_stages_that_cannot_be_are_refused() -> None:
    for stages, sentence in (
        (((5, "stages_a"), (5, "stages_b")), "and two stages overlap: both begin at step 5; leave out one"),
        (((5, "stages_a"), (4, "stages_b")), "and step 4 comes after 5: .* order them by their steps"),
        (
            ((0, "stages_a"),),
            "and one begins at step 0: what is read from step 0 on is DataConfig.mixture_or_task_name",
        ),
        (((5, "stages_mix"),), "and 'stages_mix' follows itself"),
        ((5, "stages_a"), r"give a list, each \(a whole number, a string\)"),
        (((5, "stages_a", 3),), r"give a list, each \(a whole number, a string\)"),
        (((5, "stages_a", "masked_lm", 1.5),), r"and 1.5 is not a share of hidden tokens; give a share from"),
    ):
        with pytest.raises(ConfigError, match=rf"^DataConfig.stages is .*{sentence}"):
            dataclasses.replace(CONFIG, stages=stages)
    with pytest.raises(ConfigError, match="DataConfig.stages is .* and DataConfig.num_epochs 2"):
        dataclasses.replace(CONFIG, num_epochs=2)

    first = resolve_task(CONFIG.of_stages[0])
    lengths = derive_lengths(first, CONFIG.task_feature_lengths)
    unknown = dataclasses.replace(CONFIG, stages=((5, "stages_aa"),))
    with pytest.raises(
        ConfigError, match=r"^DataConfig.stages names, from step 5 on, what is 'stages_aa', and no task"
    ):
        task_of_stage(5, first, lengths, unknown)
    config = dataclasses.replace(CONFIG, vocabulary=None, stages=((5, "stages_words"),))
    with pytest.raises(ConfigError, match="whose inputs have another vocabulary than the inputs of stages_mix"):
        task_of_stage(5, resolve_task(config.of_stages[0]), lengths, config)
    task = task_of_stage(5, first, lengths, CONFIG)
    with pytest.raises(ConfigError, match="whose rows of .* tokens differ from those in stages_mix"):
        check_rows_of_stage(5, task, {**lengths, "targets": 7}, first, lengths, CONFIG)


@pytest.mark.usefixtures("corpora")
def test_stages_have_objectives_of_their_own_and_an_encoder_s_rows_fit_one_program(tmp_path: Path) -> None:
    encoder = dataclasses.replace(
        CONFIG,
        mixture_or_task_name="stages_a",
        task_feature_lengths={"targets": 32},
        data_files=str(tmp_path / "b.txt"),
        objective="causal_lm",
        noise_density=0.3,
        stages=((4, "stages_a", "whole_word_masked_lm"), (6, "stages_a", "causal_lm")),
    )
    assert encoder.is_masked and encoder.num_predicted == 32
    assert encoder.stages_before(5) == ((0, "stages_a (causal_lm)"), (4, "stages_a (whole_word_masked_lm)"))
    of_stages = encoder.of_stages
    assert [(stage.objective, stage.causal_share) for stage in of_stages.values()] == [
        ("whole_word_masked_lm", share) for share in (1.0, 0.0, 1.0)
    ]
    # The corpus of the run is in all of them.
    assert all(stage.data_files == encoder.data_files for stage in of_stages.values())
    other = dataclasses.replace(encoder, stages=((4, "stages_b", "masked_lm"),)).of_stages[4]
    assert (other.data_files, other.objective, other.num_predicted) == (None, "masked_lm", 32)
    # One that never stopped, and one that stops at, before and after the border.
    masked = dataclasses.replace(encoder, stages=((4, "stages_a", "masked_lm"),))
    with stream_of(masked) as stream:
        stream.begin(0)
        whole = []
        positions = {}
        for step in range(1, 8):
            whole.append(next(stream))
            positions[step] = stream.positions()
    for step in (3, 4, 5):
        with stream_of(masked) as again:
            again.check(positions[step])
            again.begin(step, positions[step])
            assert_same([next(again) for _ in range(step, 7)], whole[step:])
    causal = [
        model_features(rows, masked.sequence_length, masked.num_predicted)["decoder_causal_attention"].mean()
        for batch in whole
        for rows in batch.values()
    ]
    assert causal == [0.0] * 8 + [1.0] * 6
    for changes, sentence in (
        ({"stages": ((4, "stages_a", "masked"),)}, "'masked' is not an objective; choose one of"),
        ({"objective": None}, "an encoder's stages learn causal_lm or masked tokens, not None; name one for each"),
        ({"stages": ((4, "stages_a", "causal_lm"),)}, "'stages_a' follows itself"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            dataclasses.replace(masked, **changes)


def as_a_new_process_finds(path: Path, name: str, texts: list[str]) -> None:
    """Replaces a corpus, and registers its task as a process that starts now would."""
    before = seqio.TaskRegistry.get(name)
    seqio.TaskRegistry.remove(name)
    seqio.TaskRegistry.add(
        name,
        source=FileSource(str(write(path, texts)), validation_percent=0.0),
        preprocessors=before.preprocessors,
        output_features=before.output_features,
        shuffle_buffer_size=None,
    )


@pytest.mark.night
@pytest.mark.usefixtures("corpora")
def test_a_corpus_that_changes_in_its_stage_or_at_its_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = dataclasses.replace(CONFIG, mixture_or_task_name="stages_a", stages=((3, "stages_b"), (7, "stages_a")))
    new = dataclasses.replace(config, on_changed_corpus="new_epoch")
    saved: dict[int, Mapping[int, Position]] = {}
    with stream_of(config) as stream:
        stream.begin(0)
        batches = [next(stream) for _ in range(3)]
        saved[3] = stream.positions()
        batches += [next(stream) for _ in range(2)]
        saved[5] = stream.positions()
    as_a_new_process_finds(tmp_path / "b.txt", "stages_b", [f"{number} new text" for number in range(300)])
    with stream_of(config) as stream, pytest.raises(InputError, match="b.txt has changed since step 5: "):
        stream.check(saved[5])
    with stream_of(new) as stream:
        stream.check(saved[5])
        stream.begin(5, saved[5])
        assert stream.epochs()["stages_b"] == 1.0
        batches += [next(stream)]
        saved[6] = stream.positions()
        batches += (after := [next(stream) for _ in range(3)])
        tokens = stream.tokens()
    (sentence,) = [record.message for record in caplog.records if "new pass" in record.message]
    assert "b.txt has changed since step 5: " in sentence and sentence.endswith("begins, with epoch 1.")
    assert tokens["stages_b"] == tokens["stage_3/stages_b"] == tokens_of(batches[3:7])
    assert tokens["stages_a"] == tokens_of(batches) - tokens["stages_b"]
    with stream_of(config) as stream:  # nothing has changed since then
        stream.check(saved[6])
        stream.begin(6, saved[6])
        assert_same([next(stream) for _ in range(3)], after)
        assert stream.tokens() == tokens

    # At the boundary it is the stage that ended whose corpus is compared; the next one begins all the same.
    as_a_new_process_finds(tmp_path / "a.txt", "stages_a", [f"{number} another text" for number in range(300)])
    with stream_of(config) as stream, pytest.raises(InputError, match="a.txt has changed since step 3: "):
        stream.check(saved[3])
    with stream_of(new) as stream:
        stream.check(saved[3])
        stream.begin(3, saved[3])
        first = next(stream)
        assert not stream.epochs()["stages_b"] >= 1.0  # it is not known yet
    (_, fresh, _), lengths = stages_of(config)
    with contextlib.closing(TrainStream(fresh.task, lengths, fresh.config, [0, 1], deal=fresh.deal)) as alone:
        assert_same([first], [next(alone)])


@pytest.mark.usefixtures("corpora")
def test_stages_that_were_read_stay_as_they_were() -> None:
    config = dataclasses.replace(CONFIG, mixture_or_task_name="stages_a", stages=((1, "stages_b"), (2, "stages_a")))
    with stream_of(config) as stream:
        stream.begin(0)
        for _ in range(3):
            next(stream)
        positions = stream.positions()
    for changes in ({"stages": ((2, "stages_a"),)}, {"mixture_or_task_name": "stages_mix"}):
        changed = dataclasses.replace(config, **{"mixture_or_task_name": "stages_b", **changes})
        read = r"the run has read \[\(0, 'stages_a'\), \(1, 'stages_b'\)\]"
        with stream_of(changed) as stream, pytest.raises(ConfigError, match=read):
            stream.check(positions)
    later = dataclasses.replace(config, stages=(*config.stages, (3, "stages_mix")))
    with stream_of(later) as stream:
        stream.check(positions)
        stream.begin(3, positions)
        next(stream)
        assert stream.tokens()["stage_2/stages_a"] > 0


MODULE = """
import seqio
from limba.data.sources import FileSource
import tasks.demo
for name in "ab":
    task = seqio.TaskRegistry.get("demo_span_corruption")
    source = FileSource(f"{folder}/{{name}}.txt", validation_percent=0.0)
    seqio.TaskRegistry.add_provider(f"apart_{{name}}", task.replace(name=f"apart_{{name}}", source=source))
"""


@pytest.mark.night
def test_processes_that_read_change_the_stage_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        write(tmp_path / f"{name}.txt", [f"{number} {name}" for number in range(300)])
    (tmp_path / "two_stages.py").write_text(MODULE.replace("{folder}", str(tmp_path)).replace("{{name}}", "{name}"))
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("two_stages")
    config = dataclasses.replace(
        CONFIG, mixture_or_task_name="apart_a", stages=((2, "apart_b"),), task_modules=("two_stages",)
    )
    try:
        with stream_of(config) as here, stream_of(dataclasses.replace(config, num_reader_processes=2)) as apart:
            here.begin(0)
            apart.begin(0)
            batches = [next(here) for _ in range(5)]
            assert_same([next(apart) for _ in range(3)], batches[:3])
            positions = apart.positions()
            assert len(readers()) == 2
        with stream_of(dataclasses.replace(config, num_reader_processes=2)) as again:
            again.check(positions)
            again.begin(3, positions)
            assert_same([next(again) for _ in range(2)], batches[3:])
            assert again.tokens()["apart_a"] == tokens_of(batches[:2])
    finally:
        for name in "ab":
            seqio.TaskRegistry.remove(f"apart_{name}")
