"""What a run does with its checkpoints, under names that some libraries take for patterns."""

from etils import epath

from limba.config import CheckpointConfig
from limba.export import merging
from limba.export.merging import Weighting, parts_of
from limba.formats.limba_checkpoint import checkpoints_of
from limba.inference.source import LIMBA, Source
from limba.storage import manifest
from limba.training.checkpoints.directory import Checkpoints
from tests import tiny
from tests.training.checkpoints import states

CONFIG = CheckpointConfig(save_timeout_seconds=60.0, keep=2)
NAMES = ("run[1]", "run?", "run*")
NEIGHBOUR = "run1"  # what each of them would match as a pattern


def check_names(place: epath.Path) -> None:
    """Checks that runs of NAMES in a folder keep all promises, and that none of them touches its neighbour."""
    states.save(place / NEIGHBOUR, 10, 20, 30)
    unfinished = place / NEIGHBOUR / "checkpoints" / "40" / "data" / "metadata"
    unfinished.parent.mkdir(parents=True)
    unfinished.write_text("half")
    before = _files_in(place / NEIGHBOUR)
    for name in NAMES:
        _live(place / name)
    assert _files_in(place / NEIGHBOUR) == before


def _live(run: epath.Path) -> None:
    """Saves, removes an old step, sets a damaged one aside, saves it again, merges, and goes back."""
    folder = run / "checkpoints"
    states.save(run, 10, 20, 30, config=CONFIG)
    (folder / "30" / "data" / "metadata").write_text("{")
    # Half a step: in a bucket by its lack of a manifest, on a disk by its name, below.
    (folder / "40" / "data").mkdir(parents=True)
    (folder / "40" / "data" / "metadata").write_text("half")
    if "://" not in str(folder):
        (folder / "40").rename(folder / "40.0123456789abcdef.unfinished")
    with Checkpoints(str(run), CONFIG, states.DATA) as checkpoints:
        assert checkpoints.steps() == [20, 30]
        assert _names_in(folder) == {"20", "30"}
        states.assert_is(checkpoints.restore_latest(states.abstract()), 20)
        assert _names_in(folder) == {"20", "30.broken"}
        checkpoints.save(30, states.state(30), {0: {"about": {}, "batch": 30}}, {"step": 30})
        checkpoints.wait()
    source = Source(str(run), run, checkpoints_of(run), LIMBA, model=tiny.MODEL)
    merged = run.with_name(f"{run.name}-merged")
    merging.merge(parts_of([source], steps=(20, 30)), Weighting(), str(merged))
    assert manifest.check(merged / "checkpoints" / "30") == []
    with Checkpoints(str(run), CONFIG, states.DATA) as checkpoints:
        states.assert_is(checkpoints.restore_latest(states.abstract()), 30)
        states.assert_is(checkpoints.restore_step(20, states.abstract()), 20)
        assert _names_in(folder) == {"20", "30.broken", "30.rewound"}


def _names_in(folder: epath.Path) -> set[str]:
    return {child.name for child in folder.iterdir()}


def _files_in(folder: epath.Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in manifest.names(folder)}
