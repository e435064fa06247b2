"""A bucket whose server cannot be reached, or does not let us in, is one sentence in seconds, whatever the command."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import pytest

from limba.cli import main, program
from limba.config import InputError, StorageError
from limba.data.vocabulary import load_vocabulary
from limba.storage import files, servers
from tests.bucket_server import serving_buckets

COMMANDS = [
    ["status", "gs://nobody/x", "--verify"],
    ["inspect", "gs://nobody/x", "--step=1"],
    ["generate", "gs://nobody/x", "--prompt=a"],
    ["convert", "gs://nobody/x"],
    ["report", "gs://nobody/x"],
    ["status", "gs://nobody/x"],
    ["train", "gin/demo.gin", "--gin.CORPUS={'train': 'gs://nobody/x/*.txt'}"],
]


@pytest.fixture(autouse=True)
def _nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in servers.PROXIES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(servers, "PAUSE_SECONDS", 0.01)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")


@pytest.mark.parametrize("argv", COMMANDS, ids=lambda argv: argv[0])
def test_each_command_says_it_in_one_sentence(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert program.exit_code(main._run, argv) == StorageError.exit_status
    error = capsys.readouterr().err
    assert "cannot be reached: 127.0.0.1 does not answer (Connection refused); check the network." in error
    assert error.count("\n") == 1 and "gs://nobody/x" in error


def test_nothing_heavy_is_imported_for_it() -> None:
    program = (
        "import sys; from limba.cli.main import main; status = main(['report', 'gs://nobody/x']);"
        " print(status, sorted({'tensorflow', 'jax', 'seqio', 'torch', 'gcsfs'} & set(sys.modules)))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=120
    )
    assert ended.stdout == "74 []\n" and ended.stderr.count("\n") == 1, ended.stderr


@pytest.mark.parametrize(
    "argv",
    [
        ["train", "gin/demo.gin", "--gin.CORPUS='https://me:secret@nobody.invalid/x.jsonl'"],
        ["inspect", "https://me:secret@nobody.invalid/*.jsonl"],
    ],
    ids=lambda argv: argv[0],
)
def test_a_host_that_nobody_knows_is_looked_up_twice(
    argv: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def unknown(host: str, *arguments: object) -> None:
        asked.append(host)
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert program.exit_code(main._run, argv) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert "nobody.invalid is not found (Name or service not known)" in sentence and "secret" not in sentence
    assert asked == ["nobody.invalid"] * 2


def test_a_prompt_that_is_an_address_is_a_prompt(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert program.exit_code(main._run, ["generate", str(tmp_path), "--prompt=https://nobody.invalid/"]) == 2
    assert "nobody.invalid" not in capsys.readouterr().err


def test_the_hub_is_connected_to_twice_and_its_library_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system without a name server would hold each of the library's requests for half a minute."""
    import huggingface_hub
    from huggingface_hub import constants

    from limba.data.sources import HubSource
    from limba.data.sources.listing import list_files
    from limba.formats import hub_models

    tried: list[tuple[str, int]] = []

    def unknown(address: tuple[str, int], *arguments: object) -> None:
        tried.append(address)
        raise socket.gaierror(-2, "Name or service not known")

    asked = lambda *arguments, **options: pytest.fail("the hub's library was asked")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "https://hub.invalid")
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", asked)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", asked)
    monkeypatch.setattr(socket, "create_connection", unknown)
    with pytest.raises(InputError, match="the hub cannot be reached: Name or service not known") as error:
        HubSource("nobody/nothing").units("train")
    assert error.value.exit_status == StorageError.exit_status  # the same command works later
    with pytest.raises(InputError, match="cannot be listed .*Name or service not known.*; try again later") as error:
        list_files(["hf://datasets/nobody/nothing/a.jsonl"])
    assert error.value.exit_status == StorageError.exit_status
    assert tried == [("hub.invalid", 443)] * 4
    with pytest.raises(InputError, match="the hub cannot be reached: Name or service not known") as error:
        hub_models.download("nobody/nothing")
    assert error.value.exit_status == StorageError.exit_status
    assert tried == [("hub.invalid", 443)] * 6
    with pytest.raises(InputError, match="nothing has no owner, and the hub cannot be reached: ") as error:
        servers.full_name("nothing", "model")
    assert error.value.exit_status == StorageError.exit_status
    for address in ("hf://nobody/nothing/spiece.model", "hf://nobody/nothing/tokenizer.json"):
        with pytest.raises(InputError, match=f"The vocabulary {address} cannot be read .*; try again later") as error:
            load_vocabulary(address)
        assert error.value.exit_status == StorageError.exit_status
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")  # which would be asked instead
    servers.check_hub()


def test_a_server_that_answers_is_asked_once_and_proxies_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"127.0.0.1:{server.getsockname()[1]}")
        servers.check("--gin.MODEL_DIR=gs://bucket/run")
    servers.check("gs://bucket/run")  # it is known
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:9")
    with pytest.raises(StorageError, match=r"^gs://bucket/run cannot be reached"):
        files.resolved("gs://bucket/run")
    servers.check("/data/run")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    servers.check("gs://bucket/run")


def test_a_network_that_swallows_everything_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "SECONDS", 0.3)
    monkeypatch.setattr(socket, "create_connection", lambda *arguments: time.sleep(600))
    with pytest.raises(StorageError, match="has not ended after"):
        servers.check("gs://silent/run")


def test_an_error_of_a_client_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    def refused(argv: object) -> None:
        raise aiohttp.ClientPayloadError("Response payload is not completed")

    assert program.exit_code(refused, ["status", "run"]) == StorageError.exit_status
    assert capsys.readouterr().err == (
        "A bucket or server cannot be used (Response payload is not completed); check the address, the network, and"
        " your rights there (GOOGLE_APPLICATION_CREDENTIALS).\n"
    )


@pytest.mark.parametrize(
    "name", ["VOCABULARY = 'gs://nobody/v.model'", "CORPUS = 'gs://nobody/*.txt'", "MODEL_DIR = 'gs://nobody/x'"]
)
def test_what_a_gin_file_names_is_asked_for_too(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Where the command line names no bucket."""
    (tmp_path / "text.txt").write_text("".join(f"Line {number} of a text.\n" for number in range(1000)))
    values = {"VOCABULARY": "'byte'", "CORPUS": f"'{tmp_path}/text.txt'", "MODEL_DIR": f"'{tmp_path}/run'"}
    values.pop(name.partition(" ")[0])
    lines = [f"{key} = {value}" for key, value in values.items()]
    (tmp_path / "own.gin").write_text("\n".join(["include 'gin/demo.gin'", "VOCAB_SIZE = 384", *lines, name, ""]))
    assert main.main(["train", str(tmp_path / "own.gin")]) == StorageError.exit_status
    (sentence,) = capfd.readouterr().err.splitlines()
    assert sentence.startswith("gs://nobody/") and "cannot be reached: 127.0.0.1 does not answer" in sentence


def test_an_output_that_cannot_be_written_now_is_of_the_storage() -> None:
    import httpx

    from limba.data.sources.failures import of_request
    from limba.data.sources.remote import ReadError
    from limba.storage.failures import kind_of

    for error in (OSError(28, "full"), OSError(122, "quota"), TimeoutError(), httpx.ConnectError("no route")):
        assert kind_of(error) is StorageError
    for error in (PermissionError(13, "no"), NotADirectoryError(20, "file"), ValueError("odd")):
        assert kind_of(error) is InputError
    for error, wanted in (
        (ReadError("HTTP 503", is_temporary=True), StorageError),
        (ReadError("HTTP 403", is_temporary=False), InputError),
    ):
        assert kind_of(of_request("a.jsonl cannot be read", error, "check the file")) is wanted


def test_a_program_that_has_used_buckets_before_reads_them_at_once() -> None:
    """fsspec keeps the class of its first use, gcsfs's own, which would ask an emulator by gRPC for a minute."""
    program = (
        "import fsspec; fsspec.get_filesystem_class('gs');"
        " from etils import epath; from limba.storage.files import read_text, resolved;"
        " print(read_text(resolved('gs://bucket/a.txt')))"
    )
    with serving_buckets() as server:
        server.put("bucket", "a.txt", b"a text")
        ended = subprocess.run(
            [sys.executable, "-c", program], cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=50,
            env={**os.environ, **server.environment()},
        )  # fmt: skip
    assert ended.stdout == "a text\n" and "gRPC" not in ended.stderr and "bucket type" not in ended.stderr, ended.stderr
