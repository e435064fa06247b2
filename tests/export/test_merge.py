"""Averages of checkpoints: right to the last bit, in blocks, from sharded and bfloat16 arrays; nothing overwritten."""

import dataclasses
import json
import shutil
import types
from pathlib import Path

import jax
import numpy as np
import pytest
from etils import epath

from limba.cli import main
from limba.cli.gin import read_run
from limba.config import DataConfig, EvaluationConfig, InputError, RunConfig, StorageError, saved_config
from limba.export import merging
from limba.export.merging import Part, Weighting, parts_of
from limba.formats.limba_checkpoint import LimbaCheckpoint, checkpoints_of
from limba.inference.source import LIMBA, Source
from limba.storage import manifest
from limba.training.checkpoints import arrays
from limba.training.checkpoints.directory import Checkpoints
from limba.training.state import TrainState
from tests import tiny
from tests.training.checkpoints import states


def source(run: Path, **changes: object) -> Source:
    directory = epath.Path(run)
    return Source(
        str(run), directory, checkpoints_of(directory), LIMBA, model=dataclasses.replace(tiny.MODEL, **changes)
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory with four checkpoints; each has arrays in pieces, of two devices."""
    run = tmp_path_factory.mktemp("saved") / "run"
    states.save(run, 10, 20, 30, 40)
    config = RunConfig(tiny.MODEL, DataConfig("t", {"inputs": 8}, batch_size=1), str(run), train_steps=40)
    (run / saved_config.FILE).write_text(saved_config.to_text(config))
    described = read_run(["gin/demo.gin"], ["CORPUS=a.txt", f"OUT={str(run)!r}", "config.RunConfig.model_dir=%OUT"])
    (run / "config.gin").write_text(described.text)
    return run


def parameters(step: int) -> list[np.ndarray]:
    return [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(states.state(step).params)]


def merged(run: Path, out: Path, steps: tuple[int, ...], *weighting: object) -> Checkpoints:
    merging.merge(parts_of([source(run)], steps=steps), Weighting(*weighting), str(out))  # type: ignore[arg-type]
    path = out / "checkpoints" / str(max(steps))
    assert manifest.check(str(path)) == [] and json.loads((path / manifest.FILE).read_text())["step"] == max(steps)
    return Checkpoints(str(out), states.CONFIG, states.DATA)


@pytest.mark.parametrize("block_bytes", [1 << 26, 1500], ids=["whole", "in-blocks"])
@pytest.mark.parametrize(
    ("weighting", "weights"),
    [
        (("uniform",), [1 / 3, 1 / 3, 1 / 3]),
        (("ema", 0.75), [0.5625, 0.1875, 0.25]),
        (("wsm", 0.8, "1-sqrt"), [3**-0.5, (2 / 3) ** 0.5 - 3**-0.5, 1 - (2 / 3) ** 0.5]),
    ],
    ids=["uniform", "ema", "wsm"],
)
def test_the_average_is_that_of_float64(
    saved: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    weighting: tuple,
    weights: list[float],
    block_bytes: int,
) -> None:
    monkeypatch.setattr(merging, "BLOCK_BYTES", block_bytes)
    with merged(saved, tmp_path / "out", (20, 30, 40), *weighting) as checkpoints:
        restored = checkpoints.restore_latest(states.abstract())
    assert restored is not None and restored.notes == {"step": 40}
    assert restored.positions == {0: {"about": {}, "batch": 40}}
    jax.tree.map(np.testing.assert_array_equal, restored.state.opt_state, states.state(40).opt_state)
    parts = [parameters(step) for step in (20, 30, 40)]
    for averaged, *several in zip(jax.tree.leaves(restored.state.params), *parts, strict=True):
        wanted = sum(weight * array for weight, array in zip(weights, several, strict=True))
        assert averaged.dtype == np.float32
        assert (np.abs(np.asarray(averaged, np.float64) - wanted) <= np.spacing(np.abs(np.asarray(averaged)))).all()
    record = json.loads((tmp_path / "out" / merging.FILE).read_text())
    assert [part["step"] for part in record["parts"]] == [20, 30, 40]
    assert [part["weight"] for part in record["parts"]] == pytest.approx(weights)


def test_blocks_are_small_and_cover_an_array(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "BLOCK_BYTES", 1500)
    stores = arrays.opened(epath.Path(saved) / "checkpoints" / "40" / "state")
    blocks = list(merging.blocks_of(stores["params/encoder/layers/kernel"]))  # [4, 16, 48], a chunk of two layers
    assert blocks == [(slice(0, 2),), (slice(2, 4),)]
    assert sum(block[0].stop - block[0].start for block in merging.blocks_of(stores["params/embedding"])) == 64
    assert list(merging.blocks_of(stores["step"])) == [()]


def test_bfloat16_parameters_are_averaged_in_float32(tmp_path: Path) -> None:
    def narrow(step: int) -> object:
        state = states.state(step)
        return state.replace(params=jax.tree.map(lambda leaf: leaf.astype("bfloat16"), state.params))

    with Checkpoints(str(tmp_path / "run"), states.CONFIG, states.DATA) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, narrow(step), {0: {"about": {}}})
            checkpoints.wait()
    with merged(tmp_path / "run", tmp_path / "out", (1, 2)) as checkpoints:
        restored = checkpoints.restore_latest(states.abstract())
    assert restored is not None
    one, two = (jax.tree.leaves(narrow(step).params) for step in (1, 2))  # type: ignore[attr-defined]
    for averaged, *several in zip(jax.tree.leaves(restored.state.params), one, two, strict=True):
        wanted = np.mean([np.asarray(array, np.float64) for array in several], axis=0)
        np.testing.assert_array_equal(averaged, wanted.astype(np.float32))
    assert not all(  # which bfloat16 could not hold
        np.array_equal(np.asarray(leaf), np.asarray(leaf.astype("bfloat16"), np.float32))
        for leaf in jax.tree.leaves(restored.state.params)
    )


def test_an_online_average_is_averaged_too(tmp_path: Path) -> None:
    def averaging(step: int) -> TrainState:
        """A state that also holds an average of the weights: here, twice the weights."""
        state = states.state(step)
        return state.replace(opt_state=({"average": jax.tree.map(lambda leaf: 2 * leaf, state.params)},))

    with Checkpoints(str(tmp_path / "run"), states.CONFIG, states.DATA) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, averaging(step), {0: {"about": {}}})
            checkpoints.wait()
    merging.merge(parts_of([source(tmp_path / "run")]), Weighting(), str(tmp_path / "out"))
    stored = LimbaCheckpoint(tmp_path / "out" / "checkpoints" / "2").tree
    names = [name for name in stored if name.startswith("params/")]
    assert len(names) == 3
    for name in names:
        online = stored[name.replace("params/", "opt_state/0/average/")]
        np.testing.assert_array_equal(online, 2 * stored[name])


ONLINE = EvaluationConfig(average=0.9)
NO_ONLINE = EvaluationConfig()


@pytest.mark.parametrize(
    ("older", "newer", "evaluations", "of_one_run"),
    [
        (None, 1, [ONLINE, ONLINE], True),
        (1, None, [NO_ONLINE, NO_ONLINE], True),
        (1, 1, [NO_ONLINE, NO_ONLINE], True),
        (2, 1, [ONLINE, ONLINE], False),
        (None, 1, [NO_ONLINE, ONLINE], False),
        (1, None, [ONLINE, NO_ONLINE], False),
    ],
    ids=["turned on", "turned off", "off after both", "other optimizers", "only the newer run's", "only the older's"],
)
def test_the_model_is_the_average_of_the_models_that_are_evaluated(
    older: int | None, newer: int | None, evaluations: list[EvaluationConfig], of_one_run: bool, tmp_path: Path
) -> None:
    """`older` and `newer` are where the optimizer's state has an average of the weights: here, twice the weights.

    Where a part had no array of exactly the newest's name, the result was the newest's average alone.
    """
    runs = [tmp_path / ("older" if of_one_run else name) for name in ("older", "newer")]
    for run, step, place in zip(runs, (1, 2), (older, newer), strict=True):
        state = states.state(step)
        opt_state: list[dict] = [{}, {}, {"count": state.step}]
        if place is not None:
            opt_state[place] = {"average": jax.tree.map(lambda leaf: 2 * leaf, state.params)}
        with Checkpoints(str(run), states.CONFIG, states.DATA) as checkpoints:
            checkpoints.save(step, state.replace(opt_state=tuple(opt_state)), {0: {"about": {}}})
            checkpoints.wait()

    def in_run(run: Path, evaluation: EvaluationConfig) -> Source:
        data = DataConfig("t", {"inputs": 8}, batch_size=1)
        config = RunConfig(tiny.MODEL, data, str(run), train_steps=40, evaluation=evaluation)
        return dataclasses.replace(source(run), run=config)

    sources = [in_run(run, evaluation) for run, evaluation in zip(runs, evaluations, strict=True)]
    parts = [Part(sources[0], 1), Part(sources[1], 2)]
    said = merging.merge(parts, Weighting(), str(tmp_path / "out"))

    def evaluated(part: Part) -> LimbaCheckpoint:
        return LimbaCheckpoint(part.path, average=part.source.averages)

    config = saved_config.from_text((tmp_path / "out" / saved_config.FILE).read_text(), "")
    assert isinstance(config, RunConfig)
    model = evaluated(Part(in_run(tmp_path / "out", config.evaluation), 2))
    models = [evaluated(part) for part in parts]
    assert len(model) == 6
    for name in model:
        wanted = np.mean([np.asarray(one[name], np.float64) for one in models], axis=0)
        np.testing.assert_array_equal(model[name], wanted.astype(np.float32))
    for name in (name for name in model.tree if name.startswith("params/") and evaluations[1] is ONLINE):
        wanted = np.mean([np.asarray(one.tree[name], np.float64) for one in models], axis=0)
        np.testing.assert_array_equal(model.tree[name], wanted.astype(np.float32))
    has_online = [one.has_average and part.source.averages for one, part in zip(models, parts, strict=True)]
    about = [part.path for part, online in zip(parts, has_online, strict=True) if not online]
    assert (f"Of {', '.join(map(str, about))} the weights as trained were averaged, of the others" in said) == (
        len(set(has_online)) == 2
    )


@pytest.mark.core
def test_a_linear_decay_is_the_uniform_average_and_others_are_as_in_the_paper() -> None:
    steps = [100, 200, 300, 400, 500]
    for shape in merging.SHAPES:
        weights = Weighting("wsm", shape=shape).weights(steps)
        assert sum(weights) == pytest.approx(1, abs=1e-12) and min(weights) >= 0
        # A gradient between parts i - 1 and i is in the parts from i on: its multiplier is the decayed rate.
        rates = [sum(weights[i:]) for i in range(1, 5)]
        assert rates == pytest.approx([merging.decayed(shape, i / 5) for i in range(1, 5)])
    assert Weighting("wsm", shape="linear").weights(steps) == pytest.approx(Weighting().weights(steps))
    uneven = Weighting("wsm", shape="linear").weights([0, 300, 400])
    assert uneven == pytest.approx([0.5, 1 / 6, 1 / 3])  # 0.5 and 1/3 of the rate, at 300 and 400 of 600


@pytest.mark.core
def test_a_moving_average_forgets_from_part_to_part() -> None:
    for number, decay in ((2, 0.8), (5, 0.3)):
        mean = np.eye(number)[0]  # of the parts' own weights
        for part in np.eye(number)[1:]:
            mean = decay * mean + (1 - decay) * part
        assert Weighting("ema", ema_decay=decay).weights(list(range(number))) == pytest.approx(mean.tolist())
    assert Weighting("ema").weights([1, 2]) == pytest.approx([0.8, 0.2])
    assert Weighting().weights([5, 9, 11, 30]) == [0.25] * 4
    for part in (0.0, 0.3, 1.0):
        wanted = [1 - part, 1 - np.sqrt(part), (1 + np.cos(np.pi * part)) / 2]
        assert [merging.decayed(shape, part) for shape in merging.SHAPES] == pytest.approx(wanted)
    for wrong in ({"name": "mean"}, {"shape": "sqrt"}, {"ema_decay": 0.0}, {"ema_decay": 1.0}, {"ema_decay": 1.5}):
        with pytest.raises(InputError, match=f"`{next(iter(wrong)).replace('name', 'weights')}` is"):
            Weighting(**wrong)


@pytest.mark.core
@pytest.mark.parametrize("weights", [None, [0.5, 0.2, 0.3]])
def test_blocks_are_added_up_in_float64(weights: list[float] | None) -> None:
    """In float32 a thousand small parts beside a large one would be lost."""
    random = np.random.default_rng(0)
    blocks = [random.standard_normal((4, 3)).astype(np.float32) * size for size in (1.0, 1e8, -1e8)]
    blocks[2] = blocks[1] * np.float32(-1 if weights is None else -2 / 3)
    mean = merging.average(blocks, weights)
    shares = np.full(3, 1 / 3) if weights is None else np.array(weights)
    wanted = sum(np.float64(block) * share for block, share in zip(blocks, shares, strict=True))
    assert mean.dtype == np.float32
    np.testing.assert_allclose(mean, wanted, rtol=1e-6)


class Store:
    """What `blocks_of` asks of an array."""

    def __init__(self, shape: tuple[int, ...], chunk: tuple[int, ...]) -> None:
        self.shape = shape
        self.chunk_layout = types.SimpleNamespace(read_chunk=types.SimpleNamespace(shape=chunk))


@pytest.mark.core
def test_blocks_are_whole_chunks_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "BLOCK_BYTES", 4 * 10 * 6)  # six rows of ten in float32
    for rows, chunk, wanted in (
        (5, 5, [5]),
        (13, 2, [6, 6, 1]),
        (13, 4, [4, 4, 4, 1]),
        (13, 9, [9, 4]),
        (12, 6, [6, 6]),
    ):
        blocks = list(merging.blocks_of(Store((rows, 10), (chunk, 10))))
        assert [block[0].stop - block[0].start for block in blocks] == wanted
        assert [block[0].start for block in blocks] == np.cumsum([0, *wanted[:-1]]).tolist()
    assert [len(list(merging.blocks_of(Store(shape, shape)))) for shape in ((), (0, 3), (3, 1000))] == [1, 1, 1]
    assert list(merging.blocks_of(Store((2, 1000), (1, 1000)))) == [(slice(0, 1),), (slice(1, 2),)]


def run_command(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    status = main.main(["merge", *map(str, words)])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_the_command_writes_a_run_directory_of_its_own(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(saved, tmp_path / "run"))
    (run / "data_revisions.json").write_text('{"mine": "1234567"}')
    before = sorted(path for path in run.rglob("*") if path.is_file())
    status, printed, errors = run_command(capsys, run, "--last=3", "--weights=wsm")
    out = tmp_path / "run-merge-40-wsm-3"
    assert status == 0, errors
    assert f"{out}/checkpoints/40: the average of steps 20 (0.577), 30 (0.239), 40 (0.184)" in printed
    assert sorted(path for path in run.rglob("*") if path.is_file()) == before
    config = saved_config.from_text((out / saved_config.FILE).read_text(), "")
    assert isinstance(config, RunConfig) and config.model_dir == str(out)
    assert read_run([str(out / "config.gin")]).config.model_dir == str(out)
    assert (out / "data_revisions.json").read_text() == '{"mine": "1234567"}'
    assert len(LimbaCheckpoint(out / "checkpoints" / "40")) == 6  # four layers and two arrays
    status, printed, _ = run_command(capsys, run, "--last=3", "--weights=wsm")
    assert status == 0 and "has this average already" in printed
    status, _, errors = run_command(capsys, run, "--last=2", "--weights=wsm", f"--output={out}")
    assert status == 2 and f"{out} is not empty, and nothing is overwritten" in errors
    assert not (out / "lease").exists()


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--last=1"], "--last is 1; give 2 or more."),
        (["--last=0"], "--last is 0; give 2 or more."),
        (["--last=-1"], "--last is -1; give 2 or more."),
        (["--last=5"], "--last no more than there are; {run} has 10, 20, 30, 40 (it keeps 5: CheckpointConfig.keep)"),
        (["--steps=10,15"], "There is no checkpoint at step 15; {run} has 10, 20, 30, 40 (it keeps 5: "),
        (["--steps=10"], "An average needs two checkpoints or more, and --last"),
        (["--steps=10;20"], "--steps is 10;20; give numbers with commas"),
        (["--steps=10,20", "--last=2"], "--last is 2, and --steps is given too; leave one of them out."),
        (["--weights=ema", "--ema_decay=1"], "--ema_decay is 1.0; give a number between 0 and 1."),
        (["--weights=median"], "--weights: invalid choice"),
        (["{run}", "--last=2"], "Several runs are named, of which the newest steps are merged; leave out --last"),
        (["{run}"], "Several runs are named, so the result has no name; give --output=DIR."),
    ],
)
def test_bad_input_is_one_sentence_before_any_work(
    flags: list[str], sentence: str, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = sorted(saved.parent.iterdir())
    status, printed, errors = run_command(capsys, saved, *(flag.format(run=saved) for flag in flags))
    assert status == 2 and printed == "" and sentence.format(run=saved) in errors and len(errors.splitlines()) == 1
    assert sorted(saved.parent.iterdir()) == there


def test_damaged_and_other_checkpoints_are_refused_before_anything_is_written(saved: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(saved, tmp_path / "run"))
    file = next((run / "checkpoints" / "30" / "state").glob("ocdbt.process_0.*/d/*"))
    *rest, last = file.read_bytes()
    file.write_bytes(bytes([*rest, last ^ 1]))
    out = tmp_path / "out"
    with pytest.raises(
        InputError, match=r"checkpoints/30 is damaged: state/ocdbt\.process_0\.\w+/d/\w+ has other bytes"
    ):
        merging.merge(parts_of([source(run)]), Weighting(), str(out))
    wide = tmp_path / "wide"
    with Checkpoints(str(wide), states.CONFIG, states.DATA) as checkpoints:
        state = states.state(40)
        embedding = jax.numpy.ones((64, 48))
        checkpoints.save(40, state.replace(params={**state.params, "embedding": embedding}), {0: {"about": {}}})
    with pytest.raises(InputError, match=r"embedding is \(64, 32\) in .*run/checkpoints/40 and \(64, 48\) in .*wide"):
        merging.merge(parts_of([source(run), source(wide)]), Weighting(), str(out))
    with pytest.raises(InputError, match=r"ModelConfig.mlp_activations is \('gelu', 'linear'\) in"):
        other = source(saved, mlp_activations=("silu", "linear"))
        merging.merge(parts_of([source(run), other]), Weighting(), str(out))
    with pytest.raises(InputError, match="is 'ema', which needs the steps of one run"):
        merging.merge(parts_of([source(run), source(saved)]), Weighting("ema"), str(out))
    assert not out.exists()


def test_an_interrupted_merge_is_repeated(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    parts = parts_of([source(saved)], last=2)
    with monkeypatch.context() as patched:
        patched.setattr(merging.step_directory, "commit_step", lambda *_: (_ for _ in ()).throw(OSError(5, "gone")))
        with pytest.raises(StorageError, match="No average can be made now"):
            merging.merge(parts, Weighting(), str(out))
    assert checkpoints_of(epath.Path(out)) == {}
    with pytest.raises(InputError, match="is not empty"):  # of other steps
        merging.merge(parts_of([source(saved)], last=3), Weighting(), str(out))
    merging.merge(parts, Weighting(), str(out))
    assert list(checkpoints_of(epath.Path(out))) == [40]


def test_several_runs_give_the_newest_step_of_each(saved: Path, tmp_path: Path) -> None:
    states.save(tmp_path / "other", 30)
    parts = parts_of([source(saved), source(tmp_path / "other")])
    assert parts == [Part(parts[0].source, 40), Part(parts[1].source, 30)]
    merging.merge(parts, Weighting(), str(tmp_path / "out"))
    with Checkpoints(str(tmp_path / "out"), states.CONFIG, states.DATA) as checkpoints:
        restored = checkpoints.restore_latest(states.abstract())
    assert restored is not None
    for averaged, *several in zip(jax.tree.leaves(restored.state.params), parameters(40), parameters(30), strict=True):
        np.testing.assert_array_equal(averaged, np.mean(several, axis=0).astype(np.float32))
