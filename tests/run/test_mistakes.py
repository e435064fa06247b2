"""A mistake is found before anything is compiled, and what was trained is saved before an error ends a run."""

import dataclasses
import errno
import itertools
from pathlib import Path

import jax
import pytest

import limba.run
import tasks.demo  # noqa: F401  registers the task
from limba.config import (
    CheckpointConfig,
    ConfigError,
    EvaluationConfig,
    InputError,
    MeshConfig,
    NonFiniteError,
    RunConfig,
)
from limba.data.stream.shard import Rows
from limba.data.stream.streams import TrainStream
from limba.evaluation import evaluations
from limba.evaluation.validation import LossEvaluation
from limba.run import train
from limba.training import checks, start, update
from limba.training.checkpoints import initial
from limba.training.metrics.logging import read_metrics
from tests import tiny
from tests.run.logged import losses_of

SMALL = tiny.model(vocab_size=1024, emb_dim=32, num_heads=2, head_dim=8, mlp_dim=32, num_encoder_layers=1)


@pytest.fixture
def config(tmp_path: Path, corpus: Path, vocabulary: Path) -> RunConfig:
    data = tiny.demo_data(corpus, vocabulary, 32, 8)
    return RunConfig(
        dataclasses.replace(SMALL, num_decoder_layers=1),
        data,
        str(tmp_path / "run"),
        train_steps=6,
        checkpoint=CheckpointConfig(every_steps=100),
        evaluation=EvaluationConfig(every_steps=2, num_batches=1),
    )


def changed(config: RunConfig, **changes: object) -> RunConfig:
    return dataclasses.replace(config, **changes)


@pytest.fixture
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails the test at the first array of the state, which comes before the first compiled step."""
    for module, name in ((start, "create_state"), (start, "load_initial"), (update, "jit_train_step")):
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("it came to the state"))


@pytest.mark.usefixtures("nothing_compiled")
def test_names_and_documents_are_checked_before_the_compile(config: RunConfig, corpus: Path, tmp_path: Path) -> None:
    def fails(match: str, checkpoint: CheckpointConfig | None = None, **data: object) -> None:
        data_config = dataclasses.replace(config.data, **data)
        with pytest.raises(InputError, match=match):
            train(changed(config, data=data_config, checkpoint=checkpoint or config.checkpoint))

    fails("is 'demo_span', and no task or mixture", mixture_or_task_name="demo_span")
    fails("nothing.txt", data_files=str(tmp_path / "nothing.txt"))
    fails("nothing.model", vocabulary=str(tmp_path / "nothing.model"))
    fails("column", column="texte")
    fails("targets", task_feature_lengths={"inputs": 32, "targets": 3})
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    fails("empty.jsonl", data_files=str(empty))
    misspelt = CheckpointConfig(best_metric="chrfff")
    fails("best_metric is 'chrfff', and the evaluation gives accuracy, bits_per_byte, .*num_examples", misspelt)
    fails("is 'loss', and there is no validation text", CheckpointConfig(best_metric="loss"), validation_percent=0.0)
    few = tmp_path / "few.jsonl"
    few.write_text("".join(corpus.read_text().splitlines(keepends=True)[:3]))
    fails(r"few\.jsonl holds 3 document\(s\) .* none for data shard 3 of 4", data_files=str(few))
    fails("no document in split 'train'; .* or lower DataConfig.validation_percent", validation_percent=99.9)
    fails(r"num_data_shards is 1,024, .*give at most 512", batch_size=1024, num_data_shards=1024)
    fails(r"batch_size is 2,147,483,632, .*GiB of memory", batch_size=2**31 - 16)
    fails("noise_density is 0.999, .*at most 0.75", noise_density=0.999)
    fails("mean_noise_span_length is 1000, .*at most", mean_noise_span_length=1000)
    # An ended corpus may leave shards without text.
    with pytest.raises(pytest.fail.Exception, match="it came to the state"):
        train(changed(config, data=dataclasses.replace(config.data, data_files=str(few), num_epochs=1)))


@pytest.mark.usefixtures("nothing_compiled")
def test_what_does_not_fit_together_ends_before_the_compile(config: RunConfig, tmp_path: Path) -> None:
    """The model and its vocabulary, the batch and the devices; and a directory that cannot be."""
    six = dataclasses.replace(config.data, batch_size=6, num_data_shards=2)
    mesh = MeshConfig(2, 2, 2)
    file = tmp_path / "file"
    file.write_text("{}")
    for match, changes in (
        ("ids.* 512 rows", {"model": dataclasses.replace(config.model, vocab_size=512)}),
        ("does not divide", {"data": six, "mesh": MeshConfig(8)}),
        ("RunConfig.num_microbatches 8 parts over 4 groups", {"num_microbatches": 8, "mesh": mesh}),
        ("does not fit 8 devices", {"mesh": MeshConfig(3, 1, 1)}),
        (
            "gradient_reduce_dtype is 'bfloat16'.* MeshConfig.fsdp is 2",
            {"gradient_reduce_dtype": "bfloat16", "mesh": mesh},
        ),
        ("cannot be written", {"model_dir": str(file / "run")}),
    ):
        with pytest.raises(InputError, match=match):
            train(changed(config, **changes))


@pytest.mark.night
def test_fewer_steps_than_the_checkpoint_has_are_refused_before_it_is_read(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(changed(config, train_steps=2))
    monkeypatch.setattr(limba.run.Checkpoints, "restore_latest", lambda *_: pytest.fail("it was read"))
    sentence = r"train_steps is 1, and the checkpoint is at step 2; give a larger number\."
    with pytest.raises(ConfigError, match=sentence):
        train(changed(config, train_steps=1))
    monkeypatch.undo()
    monkeypatch.setattr(initial, "load_limba_checkpoint", lambda *_: pytest.fail("it was read"))
    other = str(tmp_path / "other")
    with pytest.raises(ConfigError, match=sentence):
        train(changed(config, train_steps=1, model_dir=other, initial_checkpoint_path=config.model_dir))


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception | None, at: int) -> list[LossEvaluation]:
    """Lets the evaluation raise an error, from its call number `at` on; returns the evaluations that are made."""
    make = evaluations.loss_evaluation
    made = []

    def loss_evaluation(*arguments: object) -> LossEvaluation:
        real = make(*arguments)
        calls = []

        def figures(params: object) -> dict[str, float]:
            calls.append(real(params))
            if error is not None and len(calls) >= at:
                raise error
            return calls[-1]

        made.append(LossEvaluation(real.names, figures))
        return made[-1]

    monkeypatch.setattr(evaluations, "loss_evaluation", loss_evaluation)
    return made


def steps(config: RunConfig) -> list[str]:
    return sorted(path.name for path in (Path(config.model_dir) / "checkpoints").iterdir())


@pytest.mark.night
def test_what_was_trained_is_saved_before_an_evaluation_ends_the_run(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = changed(config, model_dir=str(tmp_path / "whole"), log_every_steps=1)
    with monkeypatch.context() as patch:
        (evaluation,) = [failing(patch, None, 1), train(whole)][0]
        figures = [record for record in read_metrics(whole.model_dir) if record["kind"] == "validation"][-1]
        assert set(evaluation.names) == set(figures) - {"kind", "step", "time"}  # what is known beforehand is computed
    config = changed(config, log_every_steps=1)
    with monkeypatch.context() as patch:
        failing(patch, ZeroDivisionError("division by zero"), 2)
        with pytest.raises(InputError) as caught:
            train(config)
    said = str(caught.value)
    assert said.startswith(f"The evaluation raises ZeroDivisionError (division by zero) in {__file__}, line ")
    assert said.endswith("What was trained, up to step 4, is saved.") and "\n" not in said
    assert steps(config) == ["4"]
    with monkeypatch.context() as patch:  # the memory of an evaluation
        failing(patch, jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes."), 1)
        with pytest.raises(InputError, match=r"does not fit the memory .*num_microbatches, now 1.* step 6, is saved"):
            train(config)
    assert steps(config) == ["4", "6"]
    for wrong in (NonFiniteError("no number"), OSError(errno.ENOSPC, "No space left on device")):
        again = changed(config, model_dir=str(tmp_path / type(wrong).__name__))
        with monkeypatch.context() as patch:
            failing(patch, wrong, 1)
            with pytest.raises(type(wrong)):
                train(again)
        assert steps(again) == ([] if isinstance(wrong, NonFiniteError) else ["2"])
    # The saved step is the step itself: the mended command goes on bit for bit.
    assert losses_of(config) == losses_of(whole) and len(losses_of(whole)) == 6


def test_memory_that_does_not_suffice_says_what_to_lower(config: RunConfig) -> None:
    for error in (
        MemoryError("Unable to allocate 9 TiB"),
        jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm.\nMore lines"),
    ):
        with pytest.raises(InputError) as caught, checks.memory_advice(config):
            raise error
        said = str(caught.value)
        assert "\n" not in said and said.endswith(".")
        for name in ("RunConfig.num_microbatches, now 1", "ModelConfig.remat", "DataConfig.batch_size, now 8"):
            assert name in said
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"), checks.memory_advice(config):
        raise jax.errors.JaxRuntimeError("INTERNAL: a device failed")
    remat = changed(config, model=dataclasses.replace(config.model, remat="full"))
    assert "remat" not in checks.memory_sentence(remat, MemoryError())


@pytest.mark.night
def test_what_was_trained_is_saved_where_there_is_no_memory_for_the_next_rows(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = TrainStream.__next__
    numbers = itertools.count(1)

    def taken_while_there_is_memory(stream: TrainStream) -> dict[int, Rows]:
        if next(numbers) > 3:
            raise MemoryError("Unable to allocate 9 TiB")
        return taken(stream)

    monkeypatch.setattr(TrainStream, "__next__", taken_while_there_is_memory)
    with pytest.raises(InputError) as caught:
        train(config)
    assert str(caught.value) == (
        "This host has no memory left for the rows of the next step (Unable to allocate 9 TiB); free some, and start"
        " the same command again. What was trained, up to step 3, is saved."
    )
    assert steps(config) == ["3"]
