"""Names with `*`, `?` and `[`, on a disk and in an emulated bucket: none of them is taken for a pattern."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from etils import epath

from limba.storage import literal_names
from tests.bucket_server import BucketServer, emulated

NAMES = ["run1", "run[1]", "run?", "run*", "*"]  # each but the first would match the first as well


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    with emulated(monkeypatch) as found:
        yield found


@pytest.fixture(params=["disk", "bucket"])
def place(request: pytest.FixtureRequest, server: BucketServer, tmp_path: Path) -> epath.Path:
    """A folder with a run of each name."""
    made = epath.Path(tmp_path if request.param == "disk" else "gs://bucket/runs")
    for name in NAMES:
        for file in ("steps/10/a", "steps/10/b", "steps/20/a", "steps/20/inside/b"):
            path = made / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{name} {file}")
    return made


def files_in(folder: epath.Path) -> dict[str, str]:
    """Returns the contents of all files by their paths below a folder."""
    found = {}
    for child in folder.iterdir():
        if child.is_dir():
            found |= {f"{child.name}/{name}": text for name, text in files_in(child).items()}
        else:
            found[child.name] = child.read_text()
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_what_is_done_in_a_folder_is_done_in_no_other(place: epath.Path, name: str) -> None:
    run = place / name
    wanted = files_in(place)
    assert [child.name for child in literal_names.matching(run / "steps", "[1-9]0")] == ["10", "20"]
    assert literal_names.matching(run / "steps", "1?") == [run / "steps" / "10"]
    assert literal_names.matching(run / "other", "*") == []
    literal_names.rename_folder(run / "steps" / "10", run / "steps" / "10.broken")
    literal_names.remove_file(run / "steps" / "20" / "a")
    for file in ("a", "b"):
        wanted[f"{name}/steps/10.broken/{file}"] = wanted.pop(f"{name}/steps/10/{file}")
    del wanted[f"{name}/steps/20/a"]
    assert files_in(place) == wanted
    literal_names.remove_file(run / "steps" / "20" / "a")  # it is away already
    literal_names.remove_folder(run / "steps" / "20")
    del wanted[f"{name}/steps/20/inside/b"]
    assert files_in(place) == wanted
    for change in (literal_names.remove_folder, lambda path: literal_names.rename_folder(path, run / "new")):
        with pytest.raises(FileNotFoundError):
            change(run / "steps" / "20")
    assert files_in(place) == wanted


def test_what_was_written_since_it_was_seen_is_not_removed(server: BucketServer) -> None:
    folder = epath.Path("gs://bucket/run/checkpoints/20")
    for name in ("again", "gone", "old"):
        server.put("bucket", f"run/checkpoints/20/{name}", b"old")
    objects = literal_names.objects_in(folder)
    (folder / "again").write_text("new")
    (folder / "gone").unlink()
    (folder / "new").write_text("new")
    with pytest.raises(FileExistsError):
        literal_names.remove_objects(folder, objects)
    # Nothing is asked about "old": it is removed unless the error came first, perhaps only now.
    assert (folder / "again").read_text() == "new"
    assert (folder / "new").read_text() == "new"
    assert not (folder / "gone").exists()
