"""No password, token or signature of an address reaches a message or a file; other addresses stay as they are."""

import dataclasses
import logging
import pickle

import pytest

from limba.cli import program
from limba.config import ConfigError, DataConfig, InputError, RestartError, StorageError, kinds, saved_config
from limba.config.errors import reason_of, without_credentials
from limba.sharding import consistency
from limba.storage.failures import short_reason
from tests.config.test_saved_config import CONFIGS

SECRET = [
    "https://ana:SECRET@example.org/web/a.txt",
    "https://ana:SE/CR:ET@example.org:8080/web/a.txt",
    "https://SECRET@example.org/a.txt",
    "s3://AKIA123:SECRET/with+slash@bucket/a.txt",
    "ftp://ana:SECRET@host/a.txt, gs://bucket/b.txt and ftp://ana:SECRET@host/c.txt",
    "https://example.org/a.jsonl?lang=ro&token=SECRET",
    "https://example.org/a.jsonl?access_token=SECRET&lang=ro",
    "https://account.blob.core.windows.net/c/a.txt?sv=2022&sig=SECRET%3D",
    "https://bucket.s3.amazonaws.com/a?X-Amz-Credential=SECRET&X-Amz-Signature=SECRET",
    "CORPUS = 'https://example.org/a.jsonl?api_key=SECRET'  # a line of gin",
    "simplecache::https://ana:SECRET@example.org/a.txt",
]
PLAIN = [
    "/data/a:b@c/file?token=x.txt",
    "gs://bucket/name@2/part-*.jsonl",
    "hf://datasets/user/name@0123abc/data/train-0.parquet",
    "abfs://container@account.dfs.core.windows.net/a.txt",
    "http://localhost:8080/ana@home/a.txt?page=2&design=new",
    "zip://a.jsonl::https://example.org/x@y.zip",
    "DataConfig.batch_size is 0; give a whole number above 0.",
]


@pytest.mark.parametrize("text", SECRET)
def test_credentials_are_cut(text: str) -> None:
    cut = without_credentials(text)
    assert "SECRET" not in cut and "***" in cut
    assert without_credentials(cut) == cut
    for address in ("example.org", "bucket", "host", "account.blob"):
        assert (address in text) == (address in cut)
    assert cut.startswith(text[:5])


@pytest.mark.parametrize("text", PLAIN)
def test_what_is_no_credential_stays(text: str) -> None:
    assert without_credentials(text) == text


def test_errors_and_logs_and_config_json_have_none(caplog) -> None:
    address = SECRET[0]
    for error in (InputError(f"{address} is gone."), StorageError(address), RestartError(address)):
        assert "SECRET" not in str(error) and "https://***@example.org/web/a.txt" in str(error)
    field = ConfigError("DataConfig.data_files", f"is {address}; give another.")
    again = pickle.loads(pickle.dumps(field))
    assert again.field == "DataConfig.data_files" and str(again) == str(field) and "SECRET" not in repr(again)
    assert again.sentence == "is https://***@example.org/web/a.txt; give another."
    run = CONFIGS["T5"]
    files = {"train": address, "validation": "b.txt"}
    data = dataclasses.replace(run.data, data_files=files)
    text = saved_config.to_text(dataclasses.replace(run, data=data))
    assert "SECRET" not in text and '"https://***@example.org/web/a.txt"' in text
    assert isinstance(saved_config.from_text(text, "config.json").data, DataConfig)


@pytest.mark.parametrize("length", [100, 150, 190, 250])
def test_what_is_cut_to_a_length_has_none(length: int, capsys: pytest.CaptureFixture[str]) -> None:
    """A password whose end lies behind the cut has no @ any more, by which it would be known."""
    address = f"https://{'ana':a>{length - 20}}:{'SECRET' * 20}@example.org/a.txt"
    said = [
        reason_of(ValueError(address)),
        short_reason(ValueError(address)),
        consistency.sentence([{}, {"DataConfig.data_files": (address, f"{address}.gz")}]),
        str(kinds._wrong(CONFIGS["T5"].data, "data_files", address, "give another")),
    ]

    def fail(_: object) -> None:
        raise FileNotFoundError(2, "No such file or directory", address)

    assert program.exit_code(fail, []) == 2
    for text in (*said, capsys.readouterr().err):
        assert "SECRET" not in text and "***" in text


def test_what_is_logged_has_none(monkeypatch, capsys) -> None:
    from limba.config import environment

    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    environment.set_logging()
    logging.getLogger("limba.somewhere").warning("cannot read %s", SECRET[0])
    assert capsys.readouterr().err == "cannot read https://***@example.org/web/a.txt\n"
