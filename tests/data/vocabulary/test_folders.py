"""Vocabularies that are folders for transformers, or hub ids: where they are read from and kept, and their rows."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from etils import epath

from limba.config import DataConfig, InputError, ModelConfig
from limba.data.dataset import Elements, Spec
from limba.data.objectives.token_blocks import tokenizer_of
from limba.data.packing import model_features
from limba.data.registry import Feature
from limba.data.run_data import RunData, truncation
from limba.data.tasks import keep_vocabularies, resolve_task
from limba.data.vocabulary.files import copies_in, is_folder, place_of
from limba.data.vocabulary.load import check_vocabulary, load_vocabulary
from limba.data.vocabulary.piece_table import PieceTable
from limba.data.vocabulary.published import PublishedVocabulary
from limba.data.vocabulary.sentinels import sentinel_table
from limba.data.vocabulary.shifted import RowIds, StreamVocabulary, offset_of, published_of, row_ids_of
from limba.data.vocabulary.special_ids import as_stream, of_run
from limba.data.vocabulary.spelling import piece_texts
from tasks import t5_mlm, text_to_text  # noqa: F401  register the tasks
from tests import published as folders
from tests.bucket_server import emulated
from tests.http_server import ModelHubHandler, as_hub, serving

TEXT = "Line 7 of a small text: ærlig, again."
LLAMA = ModelConfig(512, 32, 4, 8, 64, 0, 2, positions="rotary")


def written(folder: Path, style: str, model_type: str, **config: object) -> Path:
    """Writes a tokenizer with a config.json whose ids are its own; there are no weights."""
    tokenizer = folders.generic(style)
    tokenizer.save_pretrained(folder)
    ids = {f"{role}_token_id": getattr(tokenizer, f"{role}_token_id") for role in ("pad", "bos", "eos")}
    content = {"model_type": model_type, "vocab_size": folders.ROWS, **ids, **config}
    (folder / "config.json").write_text(json.dumps(content))
    return folder


def test_a_hub_id_is_read_kept_by_the_run_and_read_from_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(tmp_path / "hub" / "me" / "lm" / "main", "llama", "llama")
    (folder / "generation_config.json").write_text('{"eos_token_id": 2, "bos_token_id": 1}')
    (folder / "model.safetensors").write_bytes(b"weights, which no vocabulary needs")
    data = DataConfig("t5_mlm", {"targets": 32}, 8, vocabulary="me/lm", objective="causal_lm")
    run = tmp_path / "run"
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with serving(tmp_path / "hub", handler=ModelHubHandler) as server:
        as_hub(server, tmp_path / "cache", monkeypatch)
        task = resolve_task(data)
        keep_vocabularies([task], str(run))
        requests = len(list((tmp_path / "cache").rglob("*.safetensors")))
    assert not requests, "weights are not downloaded"
    kept = Path(place_of("me/lm", str(run)))
    assert kept.parent == run and is_folder(str(kept))
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (kept / name).read_bytes() == (folder / name).read_bytes()
        assert f"{kept.name}/{name}" in copies_in(epath.Path(run))
    content = (kept / "config.json").read_bytes()
    (kept / "config.json").unlink()
    assert place_of("me/lm", str(run)) == "me/lm", "config.json is written last: without it the copy is not whole"
    (kept / "config.json").write_bytes(content)
    again = resolve_task(data, str(run))  # the server is gone
    one, other = (resolved.output_features["targets"].vocabulary for resolved in (task, again))
    assert isinstance(other, StreamVocabulary) and one.encode(TEXT) == other.encode(TEXT)
    special = of_run(other, LLAMA)
    assert (special.padding, special.start, special.ends, special.before) == (None, 1, (2,), (1,))


def test_the_stream_has_padding_of_its_own_and_users_see_published_ids(tmp_path: Path) -> None:
    published = load_vocabulary(str(written(tmp_path / "lm", "endoftext", "gpt2")))
    assert isinstance(published, PublishedVocabulary) and published.eos_id == 0
    stream = as_stream(published)
    assert isinstance(stream, StreamVocabulary)
    ids = list(published.encode(TEXT))
    assert [number - 1 for number in stream.encode(TEXT)] == ids and stream.decode(stream.encode(TEXT)) == TEXT
    assert (stream.eos_id, stream.begins, stream.start, offset_of(stream)) == (1, (), 0, 1)
    assert stream.decode([*stream.encode(TEXT), 1, *stream.encode("more"), 0, 0]) == TEXT
    assert published.encode("a <|endoftext|> b")[1:] != stream.encode("a <|endoftext|> b")[1:]
    assert 0 in published.encode("a <|endoftext|> b") and 1 not in stream.encode("a <|endoftext|> b")
    assert PieceTable(stream).vocabulary is published_of(stream) is published
    assert PieceTable(stream).encode(TEXT.encode()).tolist() == ids
    shown = piece_texts(stream, published.vocab_size + 1)
    assert b"".join(shown[number] for number in stream.encode(TEXT)) == TEXT.encode()
    assert not shown[0] and not shown[stream.eos_id]
    features = model_features(
        {"targets": np.array([[*stream.encode("a text"), 1, 0, 0]], np.int32)}, row_ids=row_ids_of(stream)
    )
    size = len(stream.encode("a text")) + 1
    assert features["decoder_is_read"].sum() == features["decoder_loss_weights"].sum() == size
    assert features["decoder_target_tokens"][0, :size].tolist() == [*published.encode("a text"), 0]
    assert features["decoder_input_tokens"][0, :size].tolist() == [0, *published.encode("a text")]


def test_the_layout_of_t5_is_read_as_it_is(tmp_path: Path) -> None:
    folder = written(tmp_path / "mt5", "unigram", "mt5", decoder_start_token_id=0)
    published = load_vocabulary(str(folder))
    stream = as_stream(published)
    assert isinstance(stream, StreamVocabulary) and row_ids_of(stream) is None and offset_of(stream) == 0
    assert stream.encode(TEXT) == published.encode(TEXT) and stream.eos_id == 1
    assert sentinel_table(stream) == sentinel_table(published) and len(sentinel_table(stream)) == 10
    check_vocabulary(stream, folders.ROWS)
    assert 1 in published.encode("a </s> b") and not {0, 1} & set(stream.encode("a </s> <pad> b")), "pieces by name"
    sentinels = set(sentinel_table(stream))
    assert sentinels & set(published.encode("a <extra_id_0> b")), "this is a piece too"
    assert not sentinels & set(stream.encode("a <extra_id_0> b"))
    other = as_stream(load_vocabulary(str(written(tmp_path / "t5", "unigram", "t5", decoder_start_token_id=2))))
    assert row_ids_of(other) == RowIds(start=2, filling=0)
    assert sentinel_table(other) == [number + 1 for number in sentinel_table(published)]


def test_an_unknown_letter_stays_one_where_its_piece_is_padding_too(tmp_path: Path) -> None:
    folder = tmp_path / "lm"
    folders.generic("unigram", pad_token="<unk>").save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "t5", "vocab_size": folders.ROWS, "pad_token_id": 2}))
    published = load_vocabulary(str(folder))
    stream = as_stream(published)
    assert isinstance(published, PublishedVocabulary) and published.pad_id == published.unk_id == 2
    ids = list(published.encode("a 日 b"))
    assert 2 in ids and [number - offset_of(stream) for number in stream.encode("a 日 b")] == ids


@pytest.mark.parametrize(("style", "kind", "begins", "ends"), [
    ("roberta", "eurobert", [0], [2]),  # <s> text </s>
    ("bert", "modernbert", [2], [3]),  # [CLS] text [SEP], in T5's layout
    ("llama", "llama", [1], [2]),  # <s> text, and the end that it writes
    ("gemma", "llama", [2], [1]),
    ("roberta", "gpt2", [0], [2]),
])  # fmt: skip
def test_documents_are_framed_by_the_model_s_own_template(
    style: str, kind: str, begins: list[int], ends: list[int], tmp_path: Path
) -> None:
    stream = as_stream(load_vocabulary(str(written(tmp_path, style, kind))))
    features = {"targets": Feature(stream)}
    ids = list(published_of(stream).encode(TEXT))
    for name, document in (("text", TEXT.encode()), ("tokens", np.array(ids, "<i4").tobytes())):
        documents = Elements([{name: document}], {name: Spec("string", ())})
        kept_name, tokenize = tokenizer_of(documents, features, append_eos=True, begins=True)
        assert kept_name == name
        framed = [*begins, *ids, *ends]
        assert [(token_ids - offset_of(stream)).tolist() for token_ids in tokenize([document, document])] == [
            framed,
            framed,
        ]
        if kind in ("llama", "gpt2"):  # reads its start before each document
            _, tokenize = tokenizer_of(documents, features, append_eos=True, begins=True, follows_start=True)
            assert (tokenize([document])[0] - offset_of(stream)).tolist() == [*ids, *ends]


def test_examples_of_a_run_are_shown_with_published_ids(tmp_path: Path) -> None:
    folder = written(tmp_path / "bert", "roberta", "modernbert", mask_token_id=4)
    data = DataConfig(
        "t5_mlm", {"targets": 24}, 1, vocabulary=str(folder), objective="masked_lm", task_modules=("tasks.t5_mlm",)
    )
    run = RunData(data)
    (row,) = run.examples([TEXT.encode()], run.lengths(), "train", 0)
    published = list(load_vocabulary(str(folder)).encode(TEXT))
    assert row["targets"].tolist() == [0, *published, 2][:24]
    differing = {int(number) for number in row["inputs"][row["inputs"] != row["targets"]]}
    assert 4 in differing


def test_what_stands_before_a_text_counts_where_pairs_are_cut(tmp_path: Path) -> None:
    folder = written(tmp_path / "t5", "roberta", "t5", decoder_start_token_id=1)
    corpus = tmp_path / "pairs.jsonl"
    corpus.write_text((json.dumps({"inputs": TEXT, "targets": "a"}) + "\n") * 20)
    columns = {"inputs": "inputs", "targets": "targets"}
    data = DataConfig(
        "text_to_text", {"inputs": 64, "targets": 8}, 1, vocabulary=str(folder), data_files=str(corpus), column=columns
    )
    size = len(load_vocabulary(str(folder)).encode(TEXT)) + 2  # <s> and </s>
    for length, is_cut in ((size, False), (size - 1, True)):
        ((report, is_any_cut),) = truncation(resolve_task(data), {"inputs": length, "targets": 8}, data).items()
        assert is_any_cut == is_cut and f"cut to {length} tokens (longest {size})" in report


def test_a_folder_without_what_a_run_needs_is_refused(tmp_path: Path) -> None:
    folder = written(tmp_path / "bytes", "roberta", "t5")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "ByT5Tokenizer"}))
    with pytest.raises(InputError, match="is UTF-8's bytes; set DataConfig.vocabulary to 'byte'"):
        load_vocabulary(str(folder))
    with pytest.raises(InputError, match=r"describes a 'bert' of 512 ids, .*give the path of its tokenizer\.json"):
        as_stream(load_vocabulary(str(written(tmp_path / "bert", "bert", "bert"))))


def test_a_folder_in_a_bucket_is_read_kept_by_the_run_and_read_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written(tmp_path / "lm", "llama", "llama")
    local = as_stream(load_vocabulary(str(folder)))
    data = DataConfig("t5_mlm", {"targets": 32}, 8, vocabulary="gs://bucket/lm", objective="causal_lm")
    with emulated(monkeypatch) as server:
        for file in folder.iterdir():
            server.put("bucket", f"lm/{file.name}", file.read_bytes())
        vocabulary = resolve_task(data).output_features["targets"].vocabulary
        for run in (str(tmp_path / "run"), "gs://bucket/run"):
            keep_vocabularies([resolve_task(data)], run)
        with pytest.raises(InputError, match="^The vocabulary gs://bucket/none does not exist"):
            resolve_task(dataclasses.replace(data, vocabulary="gs://bucket/none"))
        server.put("bucket", "bare/tokenizer.json", (folder / "tokenizer.json").read_bytes())
        with pytest.raises(InputError, match=r"^The vocabulary gs://bucket/bare is a folder without config\.json"):
            resolve_task(dataclasses.replace(data, vocabulary="gs://bucket/bare"))
        for name in server.names("lm/"):
            del server.objects["bucket", name]
        kept = [resolve_task(data, run) for run in (str(tmp_path / "run"), "gs://bucket/run")]
        again = [task.output_features["targets"].vocabulary for task in kept]
    for loaded in (vocabulary, *again):
        assert isinstance(loaded, StreamVocabulary)
        assert loaded.encode(TEXT) == local.encode(TEXT)
