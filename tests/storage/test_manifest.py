"""A manifest finds every changed byte of a directory, and names the file."""

import json
import random
from pathlib import Path

import google_crc32c
import pytest

from limba.storage import failures, manifest


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    numbers = random.Random(0)
    for name, size in (("state/d/big", 100_000), ("state/small", 10), ("state/empty", 0), ("data/metadata", 500)):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(numbers.randbytes(size))
    (tmp_path / manifest.FILE).write_text(manifest.text_of(tmp_path))
    return tmp_path


@pytest.mark.core
def test_a_whole_directory_has_nothing_to_say(directory: Path) -> None:
    assert manifest.exists(directory) and not manifest.exists(directory / "state")
    assert manifest.check(directory) == manifest.check(directory, "sizes") == []
    content = json.loads((directory / manifest.FILE).read_text())
    assert content["format"] == 1 and content["files"]["state/empty"] == [0, "00000000"]
    assert manifest.size_of(directory) == (4, 100_510)
    (directory / "later").write_text("a file that is not in the manifest")
    assert manifest.check(directory) == []


@pytest.mark.core
def test_checksums_are_crc32c(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"123456789")
    assert manifest.entries(tmp_path) == {"file": (9, "e3069283")}  # the check value of RFC 3720


@pytest.mark.core
def test_a_file_that_ends_with_its_own_crc32c_is_told_from_another_of_its_size(tmp_path: Path) -> None:
    """As the files of an OCDBT store do: crc32c is the same of all of them."""
    step = tmp_path / "10"
    step.mkdir()

    def content(text: bytes) -> bytes:
        return text + google_crc32c.value(text).to_bytes(4, "little")

    (step / "manifest.ocdbt").write_bytes(content(b"of step 10"))
    (step / manifest.FILE).write_text(manifest.text_of(step, step=10))
    (step / "manifest.ocdbt").write_bytes(content(b"of step 20"))
    assert manifest.entries(step)["manifest.ocdbt"] == (14, "48674bc7")  # whatever stands before the crc32c
    assert manifest.check(step) == ["manifest.ocdbt has other bytes than when it was saved"]


@pytest.mark.core
def test_a_flipped_bit_anywhere_is_found_and_its_file_named(directory: Path) -> None:
    numbers = random.Random(1)
    files = [path for path in sorted(directory.rglob("*")) if path.is_file() and path.stat().st_size]
    assert len(files) == 4
    for path in files:
        content = path.read_bytes()
        for _ in range(60):
            position = numbers.randrange(len(content))
            bit = numbers.randrange(8)
            flipped = bytearray(content)
            flipped[position] ^= 1 << bit
            path.write_bytes(flipped)
            (sentence,) = manifest.check(directory)
            assert sentence.startswith(str(path.relative_to(directory))), (path, position, bit)
            if path.name != manifest.FILE:
                assert manifest.check(directory, "sizes") == []  # what that choice misses
        path.write_bytes(content)
    assert manifest.check(directory) == []


@pytest.mark.core
def test_files_that_are_missing_cut_or_grown_are_named_by_sizes_alone(directory: Path) -> None:
    path = directory / "state" / "d" / "big"
    content = path.read_bytes()
    path.write_bytes(content[:99_999])
    assert manifest.check(directory, "sizes") == ["state/d/big has 99,999 bytes and had 100,000 when it was saved"]
    path.write_bytes(content + b"x")
    assert "100,001 bytes" in manifest.check(directory, "sizes")[0]
    path.unlink()
    (directory / "data" / "metadata").unlink()
    assert manifest.check(directory) == ["data/metadata is missing", "state/d/big is missing"]
    (directory / manifest.FILE).unlink()
    assert manifest.check(directory) == ["manifest.json is missing"]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"format": 1, "files": {"a": 3}}', '{"format": 1, "files": []}']
)
def test_a_manifest_that_is_junk_is_named(directory: Path, text: str) -> None:
    (directory / manifest.FILE).write_text(text)
    assert manifest.check(directory) == ["manifest.json is damaged"]


@pytest.mark.core
def test_a_manifest_cannot_name_files_elsewhere(directory: Path) -> None:
    for name in ("../secret", "/etc/passwd", "a/../../b"):
        (directory / manifest.FILE).write_text(manifest.text_of(directory, {name: (1, "00000000")}))
        assert manifest.check(directory) == ["manifest.json is damaged"]


def test_several_readers_share_the_checksums(directory: Path) -> None:
    for name in ("state/d/big", "state/small", "data/metadata"):
        path = directory / name
        path.write_bytes(b"x" * path.stat().st_size)
    parts = [manifest.check(directory, "checksums", (number, 3)) for number in range(3)]
    assert sorted(sum(parts, [])) == manifest.check(directory) and all(len(part) <= 2 for part in parts)


def test_a_file_that_may_not_be_read_now_is_not_damage(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(manifest, "_digest", refused)
    with pytest.raises(PermissionError):
        manifest.check(directory)

    def broken(*_: object) -> None:
        calls.append("")
        raise OSError(5, "Input/output error")

    calls: list[str] = []
    monkeypatch.setattr(failures, "AGAIN_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(manifest, "_digest", broken)
    problems = manifest.check(directory)
    assert "state/small cannot be read (Input/output error)" in problems and len(calls) == 3 * len(problems)


@pytest.mark.core
def test_a_step_is_known_by_its_manifest(directory: Path) -> None:
    """Its name may be a copy's. A manifest without a step fits every name."""
    directory /= "state"
    (directory / manifest.FILE).write_text(manifest.text_of(directory, step=50))
    for name, problems in (("50", []), ("70", ["manifest.json belongs to step 50"]), ("70.broken", [])):
        directory = directory.rename(directory.parent / name)
        assert manifest.check(directory) == manifest.check(directory, "sizes") == problems
    (directory / manifest.FILE).write_text(manifest.text_of(directory))
    assert manifest.check(directory.rename(directory.parent / "90")) == []


def test_a_call_that_stands_still_is_left() -> None:
    import threading

    assert failures.limited(lambda: 3, 5.0, "counting") == 3
    with pytest.raises(KeyError, match="own"):
        failures.limited(lambda: {}["own"], 5.0, "counting")
    with pytest.raises(TimeoutError, match="counting has not ended after 0 s"):
        failures.limited(lambda: threading.Event().wait(5), 0.1, "counting")
