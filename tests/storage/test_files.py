"""Files are written whole or not at all, under names that nobody can take first."""

import os
import stat
from pathlib import Path

import fsspec
import pytest

from limba.storage import files
from limba.storage.files import private_folder, replacing, write_whole


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_new_or_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "file.json"
    write_whole(path, "ș")
    assert path.read_bytes() == "ș".encode() and names(path.parent) == ["file.json"]
    with pytest.raises(OSError, match="No space"), replacing(path) as file:
        file.write(b"half")
        raise OSError(28, "No space left on device")
    assert path.read_bytes() == "ș".encode() and names(path.parent) == ["file.json"]
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        with pytest.raises(OSError, match="Input/output"):
            write_whole(path, b"new")
    assert path.read_bytes() == "ș".encode() and names(path.parent) == ["file.json"]


def test_content_is_on_the_disk_before_the_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = []
    sync = os.fsync
    replace = os.replace
    monkeypatch.setattr(os, "fsync", lambda file: done.append(stat.S_ISDIR(os.fstat(file).st_mode)) or sync(file))
    monkeypatch.setattr(os, "replace", lambda *paths: done.append("named") or replace(*paths))
    write_whole(tmp_path / "file", b"content")
    assert done == [False, "named", True]


def test_permissions_stay_and_new_ones_follow_the_user_s_choice(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    path = tmp_path / "file"
    secret.touch(0o600)
    before = os.umask(0o027)
    try:
        write_whole(secret, b"x")
        write_whole(path, b"x")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(file.stat().st_mode) for file in (secret, path)] == [0o600, 0o640]


def test_the_name_of_an_unfinished_file_cannot_be_taken_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if it were known: a link there is not followed."""
    treasure = tmp_path / "treasure"
    treasure.write_text("gold")
    with replacing(tmp_path / "a"), replacing(tmp_path / "a"):
        unfinished = [name for name in names(tmp_path) if name.endswith(".tmp")]
        assert len(set(unfinished)) == 2 and str(os.getpid()) not in "".join(unfinished).split(".")
    monkeypatch.setattr(files.secrets, "token_hex", lambda _: "known")
    (tmp_path / ".b.known.tmp").symlink_to(treasure)
    with pytest.raises(FileExistsError):
        write_whole(tmp_path / "b", b"lead")
    assert treasure.read_text() == "gold" and not (tmp_path / "b").exists()


def test_an_address_takes_a_whole_object() -> None:
    write_whole("memory://files/a/b.json", "text")
    assert fsspec.filesystem("memory").cat_file("/files/a/b.json") == b"text"


def test_a_private_folder_is_this_users_alone(tmp_path: Path) -> None:
    folder = private_folder(tmp_path / "new" / "mine")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700 and private_folder(folder) == folder
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "file").write_text("")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    for name in ("link", "file", "open"):
        with pytest.raises(PermissionError, match=f"{name} is not a folder of this user alone"):
            private_folder(tmp_path / name)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_another_users_folder_is_not_private(tmp_path: Path) -> None:
    folder = private_folder(tmp_path / "theirs")
    os.chown(folder, 12345, 12345)
    with pytest.raises(PermissionError, match="theirs is not a folder of this user alone"):
        private_folder(folder)
