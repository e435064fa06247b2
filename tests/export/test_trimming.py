"""Models with the rows that a text needs: the same pieces, hidden states and text as before, or one sentence.

Tokenizers are trained on Limba's own pages in English, Japanese and Romanian, and trimmed for the English ones.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import limba
from limba.cli.main import main
from limba.config import InputError
from limba.data.vocabulary.load import load_vocabulary
from limba.data.vocabulary.pieces import Pieces
from limba.data.vocabulary.train import train_vocabulary
from limba.data.vocabulary.trimmed_files import MODELS, Kept, tokenizer_state, write_tokenizer_files
from limba.export import trimming
from limba.export.huggingface import import_folder
from limba.export.trimming import COPIED, DEFAULT_IDS, RECORD, trim
from limba.export.trimming_report import Trimmed
from limba.formats.hub_models import wanted_files
from limba.inference.source import VocabularyName
from tests import published as folders
from tests.bucket_server import emulated
from tests.hub_server import hub

ROOT = Path(__file__).parents[2]
DOCUMENTS = 1_000
SIZE = 2_000
ROWS = 2_304
STYLES = (  # a tokenizer's style, whether padding is added as its last id, and a class of model that has it
    ("unigram", False, "t5"),
    ("endoftext", True, "gpt2"),
    ("bert", False, "modernbert"),
    ("roberta", False, "eurobert"),
    ("gemma", False, "llama"),
)
RARER_PIECES_GO = ("roberta", "llama")
AT_NIGHT = (
    *(("unigram", False, "umt5"), ("unigram", False, "mt5"), ("unigram", False, "t5_encoder")),
    *(("llama", False, "llama"), ("roberta", False, "gpt2"), ("gemma", False, "eurobert")),
    *(("endoftext", True, "llama"), ("endoftext", True, "modernbert")),
)


def lines(*pages: Path) -> list[str]:
    all_lines = [line.strip() for page in pages for line in page.read_text().splitlines()]
    return [line for line in all_lines if len(line) >= 30 or (not line.isascii() and len(line) >= 15)]


@pytest.fixture(scope="module")
def english() -> list[str]:
    pages = [page for page in sorted((ROOT / "docs").rglob("*.md")) if "ja" not in page.stem and ".ro" not in page.stem]
    return lines(*pages)[:DOCUMENTS]


@pytest.fixture(scope="module")
def others() -> list[str]:
    return lines(*(ROOT / "docs" / name for name in ("start.ja.md", "gcp.ja.md", "start.ro.md")))


@pytest.fixture
def styles(monkeypatch: pytest.MonkeyPatch, english: list[str], others: list[str]) -> None:
    """The styles of tests/published.py, trained on the pages."""
    monkeypatch.setattr(folders, "CORPUS", [*english, *others])
    monkeypatch.setattr(folders, "SIZE", SIZE)
    monkeypatch.setattr(folders, "ROWS", ROWS)


@pytest.fixture(scope="module")
def spiece(english: list[str], others: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SentencePiece model of pieces and bytes in T5's layout."""
    path = tmp_path_factory.mktemp("vocabulary") / "spiece.model"
    train_vocabulary([*english, *others], SIZE, str(path))
    return path


@pytest.fixture(scope="module")
def t5(spiece: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A T5 1.1 of transformers whose tokenizer is that SentencePiece model alone."""
    folder = tmp_path_factory.mktemp("model") / "t5"
    config = transformers.T5Config(
        **{"vocab_size": 2_176, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4},
        **{"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "decoder_start_token_id": 0},
    )
    torch.manual_seed(0)
    transformers.T5ForConditionalGeneration(config).save_pretrained(folder)
    shutil.copyfile(spiece, folder / "spiece.model")
    settings = {"tokenizer_class": "T5Tokenizer", "extra_ids": 100, "model_max_length": 512}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def encoded(texts: list[str]) -> list[bytes]:
    return [text.encode() for text in texts]


def old_ids_of(folder: Path) -> list[int]:
    return json.loads((folder / RECORD).read_text())["old_ids"]


def check_ids(before: Path, after: Path, texts: list[str]) -> int:
    """Compares AutoTokenizer's ids of texts, mapped one to one; returns for how many all pieces are kept."""
    kept = old_ids_of(after)
    new = {old: number for number, old in enumerate(kept)}
    same = 0
    pairs = zip(folders.ids_of(before, tuple(texts)), folders.ids_of(after, tuple(texts)), texts, strict=True)
    for old, now, text in pairs:
        if new.keys() >= set(old):
            assert [new[number] for number in old] == now, text
            same += 1
    return same


def aligned(model):
    """Returns a model whose arrays torch has allocated: where a file's array begins decides how CPUs add up."""
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    return model


def outputs(model, kind: str, ids: list[int]):
    inputs = {"input_ids": torch.tensor([ids])}
    if kind in ("t5", "umt5", "mt5"):
        inputs["decoder_input_ids"] = torch.tensor([ids[:8]])
    with torch.no_grad():
        return model(**inputs, output_hidden_states=True)


def hidden_states(output) -> list[torch.Tensor]:
    names = ("hidden_states", "encoder_hidden_states", "decoder_hidden_states")
    return [state for name in names for state in getattr(output, name, None) or ()]


def check_model(before, after: Path, kind: str, texts: list[str], source: Path) -> None:
    """Hidden states are the same bits, kept logits equal, and text is generated as by the model before."""
    kept = old_ids_of(after)
    new = {old: number for number, old in enumerate(kept)}
    now = aligned(type(before).from_pretrained(after).eval())
    before = aligned(before)
    assert now.get_input_embeddings().weight.shape[0] == len(kept) < before.get_input_embeddings().weight.shape[0]
    rows = [ids[:40] for ids in folders.ids_of(source, tuple(texts)) if new.keys() >= set(ids)][:2]
    assert len(rows) == 2
    for ids in rows:
        old = outputs(before, kind, ids)
        trimmed = outputs(now, kind, [new[number] for number in ids])
        states = hidden_states(old)
        assert len(states) >= 3
        assert all(torch.equal(*pair) for pair in zip(states, hidden_states(trimmed), strict=True))
        if kind == "t5_encoder":
            continue
        assert (old.logits[..., kept] - trimmed.logits).abs().max() <= 1e-6 * old.logits.abs().max()
        if not before.can_generate():
            continue
        gone = sorted(set(range(old.logits.shape[-1])) - set(kept))
        choices = {"max_new_tokens": 12, "do_sample": False}
        wanted = before.generate(torch.tensor([ids]), suppress_tokens=gone, **choices)[0].tolist()
        ids_now = now.generate(torch.tensor([[new[number] for number in ids]]), **choices)[0].tolist()
        assert ids_now == [new[number] for number in wanted]


def trimmed(folder: Path, out: Path, english: list[str], others: list[str], coverage: float = 1.0) -> Trimmed:
    return trim(str(folder), encoded(english), encoded(others), str(out), coverage=coverage)


def check_style(style: tuple[str, bool, str], tmp_path: Path, english: list[str], others: list[str]) -> None:
    name, pads_last, kind = style
    tokenizer = folders.real(name)
    if pads_last:
        tokenizer.add_special_tokens({"pad_token": "<last>"})
    before = folders.saved(tmp_path / "before", kind, tokenizer)
    result = trimmed(tmp_path / "before", tmp_path / "after", english, others)
    assert result.rows % 128 == 0 and result.rows <= 0.9 * ROWS
    texts = [*english, *others, *folders.TEXTS]
    same = check_ids(tmp_path / "before", tmp_path / "after", texts)
    assert DOCUMENTS <= same < len(texts)  # all of the text that was kept, and not all of the other
    check_model(before, tmp_path / "after", kind, english, tmp_path / "before")
    if name not in RARER_PIECES_GO:
        return
    # A rarer piece that goes is cut into others; whatever has only kept pieces is cut as before.
    shutil.rmtree(tmp_path / "after")
    fewer = trimmed(tmp_path / "before", tmp_path / "after", english, others, coverage=0.9)
    assert fewer.needed < result.needed
    assert check_ids(tmp_path / "before", tmp_path / "after", texts) > 50


@pytest.mark.usefixtures("styles")
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.slow
def test_a_folder_gives_the_same_ids_states_and_text(style, tmp_path, english, others) -> None:
    check_style(style, tmp_path, english, others)


@pytest.mark.night
@pytest.mark.usefixtures("styles")
@pytest.mark.parametrize("style", AT_NIGHT)
def test_other_folders_do_so_too(style, tmp_path, english, others) -> None:
    check_style(style, tmp_path, english, others)


@pytest.mark.slow
def test_a_sentencepiece_model_is_cut_with_its_sentinels(t5, spiece, tmp_path, english, others) -> None:
    result = trimmed(t5, tmp_path / "after", english, others)
    assert check_ids(t5, tmp_path / "after", [*english, *others]) >= DOCUMENTS
    pieces, old = (load_vocabulary(str(path / "spiece.model"), 100) for path in (tmp_path / "after", t5))
    assert pieces.vocab_size < old.vocab_size and pieces.encode("<0xE3>") and result.rows >= pieces.vocab_size
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "after")
    assert tokenizer.convert_tokens_to_ids("<extra_id_0>") == pieces.vocab_size - 1
    before = transformers.T5ForConditionalGeneration.from_pretrained(t5).eval()
    check_model(before, tmp_path / "after", "t5", english, t5)
    assert result.coverage.kept < result.coverage.tokens and result.coverage.examples


def test_an_output_layer_of_its_own_is_cut_too(t5, tmp_path, english) -> None:
    folder = Path(shutil.copytree(t5, tmp_path / "before"))
    before = load_file(folder / "model.safetensors")
    before["lm_head.weight"] = np.random.default_rng(0).normal(size=(2_176, 32)).astype(np.float16)
    before["encoder.embed_tokens.weight"] = before["shared.weight"].copy()  # as published T5s have it
    save_file(before, folder / "model.safetensors", {"format": "pt"})
    for name in ("1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors", "9_other/notes.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"the content of {name}")
    (folder / "conversion.json").write_text('{"only_fills_gaps": true, "findings": ["of the old rows"]}')
    result = trimmed(folder, tmp_path / "after", english, [])
    modules = sorted(path.relative_to(tmp_path / "after").as_posix() for path in (tmp_path / "after").glob("*_*/*"))
    assert modules == ["1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"]
    assert all((tmp_path / "after" / name).read_bytes() == (folder / name).read_bytes() for name in modules)
    assert json.loads((tmp_path / "after" / "conversion.json").read_text()) == {"only_fills_gaps": True}
    after = load_file(tmp_path / "after" / "model.safetensors")
    kept = old_ids_of(tmp_path / "after")
    assert after.keys() == before.keys() and result.coverage.tokens == 0
    for name, array in before.items():
        is_table = name in ("lm_head.weight", "shared.weight", "encoder.embed_tokens.weight")
        wanted = array[kept] if is_table else array
        assert after[name].dtype == array.dtype
        np.testing.assert_array_equal(after[name], wanted)
    copy = "encoder.embed_tokens.weight"  # of one matrix
    assert result.parameters_before == sum(array.size for name, array in before.items() if name != copy)
    assert result.parameters == sum(array.size for name, array in after.items() if name != copy)


def piece(model: limba.TrainedModel, number: int) -> str:
    return model.vocabulary.tokenizer.IdToPiece(int(number))


@pytest.mark.slow
def test_a_run_and_a_t5x_checkpoint_become_a_start(t5, spiece, tmp_path, english, others) -> None:
    import_folder(t5, tmp_path / "run")
    result = trimmed(tmp_path / "run", tmp_path / "smaller", english, others)
    assert "the optimizer begins anew" in result.text
    before = limba.load(tmp_path / "run")
    now = limba.load(tmp_path / "smaller")
    old = before.tokenize(english[0])
    new = now.tokenize(english[0])
    assert [piece(before, number) for number in old] == [piece(now, number) for number in new]
    pair = (english[0], english[1])
    wanted = before.logits([pair])[0]
    logits = now.logits([pair])[0]
    ids = range(now.vocabulary.vocab_size)
    kept = [before.vocabulary.tokenizer.PieceToId(piece(now, number)) for number in ids]
    np.testing.assert_allclose(logits[:, ids], wanted[:, kept], rtol=0, atol=1e-6 * np.abs(wanted).max())
    checkpoint = before.save(tmp_path / "t5x", format="t5x")
    with pytest.raises(InputError, match="has no vocabulary beside it"):
        trim(str(checkpoint), encoded(english), [], str(tmp_path / "of_t5x"))
    name = VocabularyName(str(spiece), 100)
    trim(str(checkpoint), encoded(english), [], str(tmp_path / "of_t5x"), coverage=1.0, vocabulary=name)
    again = limba.load(tmp_path / "of_t5x").logits([pair])[0]
    np.testing.assert_array_equal(again, logits)


@pytest.mark.night
def test_runs_and_t5x_checkpoints_of_a_bucket_are_those_of_a_disk(t5, spiece, tmp_path, english, monkeypatch) -> None:
    import_folder(t5, tmp_path / "run")
    checkpoint = Path(limba.load(tmp_path / "run").save(tmp_path / "t5x", format="t5x"))
    of_spiece = VocabularyName(str(spiece), 100)
    for name, vocabulary in (("run", None), (f"t5x/{checkpoint.name}", of_spiece)):
        here = tmp_path / "here" / name
        trim(str(tmp_path / name), encoded(english), [], str(here), vocabulary=vocabulary)
        with emulated(monkeypatch):
            fsspec.filesystem("gs").put(str(tmp_path / name), f"gs://bucket/{name}", recursive=True)
            there = tmp_path / "there" / name
            trim(f"gs://bucket/{name}", encoded(english), [], str(there), vocabulary=vocabulary)
        one = limba.load(here)
        other = limba.load(there)
        assert one.vocabulary.vocab_size == other.vocabulary.vocab_size < 2_176
        arrays = other.arrays()
        for array_name, array in one.arrays().items():
            np.testing.assert_array_equal(array, arrays[array_name])


@pytest.mark.slow
def test_a_loaded_model_is_trimmed_to_another(t5, tmp_path, english) -> None:
    folder = Path(shutil.copytree(t5, tmp_path / "before"))
    (folder / "conversion.json").write_text('{"step": 5, "only_fills_gaps": true}')
    model = limba.load(folder)
    smaller = model.trim([*english, "half a letter: \ud800"], tmp_path / "smaller", coverage=1.0)
    assert model.only_fills_gaps and smaller.only_fills_gaps, "both are scored in the same way"
    assert smaller.source.model.vocab_size < model.source.model.vocab_size
    assert smaller.generate([english[0]], max_tokens=4)
    with pytest.raises(InputError, match="A single text is given instead of a list"):
        model.trim(english[0], tmp_path / "other")
    with pytest.raises(InputError, match="another vocabulary than its own"):
        limba.load(t5, vocabulary="byte").trim(english, tmp_path / "other")


def test_the_command_says_what_is_left(t5, tmp_path, english, others, capsys) -> None:
    (tmp_path / "en.txt").write_text("\n".join(english))
    (tmp_path / "others.txt").write_text("\n".join(others))
    out = tmp_path / "after"
    argv = ["vocabulary", "trim", str(t5), f"--keep={tmp_path}/en.txt", f"--output={out}"]
    assert main([*argv, f"--held_out={tmp_path}/others.txt"]) == 0
    said = capsys.readouterr()
    assert "rows" in said.out and "are kept pieces" in said.out and "WARNING: only" in said.err
    assert "Trimmed vocabulary" in (out / "README.md").read_text()
    assert json.loads((out / "config.json").read_text())["vocab_size"] == len(old_ids_of(out))
    assert main(argv) == InputError.exit_status
    assert "is not empty" in capsys.readouterr().err
    assert main(["vocabulary", "compare", str(t5), str(out), "byte", f"--corpus={tmp_path}/en.txt", "--json"]) == 0
    old, new, of_bytes = json.loads(capsys.readouterr().out)["vocabularies"]
    assert old["rows"] == 2_176 and new["rows"] == len(old_ids_of(out)) and of_bytes["rows"] == 384
    assert old["parameters"] == 32 * 2_176  # transformers 5 ties each T5
    assert old["step_flops"] == 6 * 65_536 * 32 * 2_176
    assert new["unused_rows"] < old["unused_rows"] and new["bytes_per_token"] == pytest.approx(
        old["bytes_per_token"], rel=1e-2
    )
    assert of_bytes["coverage"] + of_bytes["single_bytes"] == pytest.approx(1)
    assert main(["vocabulary", "compare", str(t5), f"--corpus={tmp_path}/en.txt"]) == 0
    assert "rows never" in capsys.readouterr().out


@pytest.mark.slow
def test_text_and_models_of_a_bucket_are_those_of_a_disk(t5, tmp_path, english, monkeypatch, capsys) -> None:
    (tmp_path / "en.txt").write_text("\n".join(english))
    here = tmp_path / "here"
    there = tmp_path / "there"
    assert main(["vocabulary", "trim", str(t5), f"--keep={tmp_path}/en.txt", f"--output={here}"]) == 0
    with emulated(monkeypatch):
        bucket = fsspec.filesystem("gs")
        bucket.put(str(t5), "gs://bucket/t5", recursive=True)
        bucket.put(str(tmp_path / "en.txt"), "gs://bucket/text/en.txt")
        keep = "--keep=gs://bucket/text/*.txt"
        assert main(["vocabulary", "trim", "gs://bucket/t5", keep, f"--output={there}"]) == 0
        capsys.readouterr()
        corpus = "--corpus=gs://bucket/text/en.txt"
        assert main(["vocabulary", "compare", "gs://bucket/t5", str(here), corpus, "--json"]) == 0
        old, new = json.loads(capsys.readouterr().out)["vocabularies"]
    assert old["rows"] == 2_176 and new["rows"] == len(old_ids_of(here))
    names = sorted(path.name for path in here.iterdir())
    assert sorted(path.name for path in there.iterdir()) == names
    for name in set(names) - {"README.md", RECORD}:  # which name the model
        assert (there / name).read_bytes() == (here / name).read_bytes()


KILLED = """
import os, signal, sys
from limba.export import trimming

def killed(*_):
    os.kill(os.getpid(), signal.SIGKILL)

trimming._write_card = killed  # after the weights, before the folder has its name
trimming.trim(sys.argv[1], [b"a few words of text"], [], sys.argv[2])
"""


@pytest.mark.slow
def test_a_killed_trim_leaves_no_folder_and_can_be_repeated(t5, tmp_path, english, others) -> None:
    out = tmp_path / "after"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(t5), str(out)], cwd=ROOT, capture_output=True, env=dict(os.environ)
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]
    assert not out.exists() and (tmp_path / "after.trimming" / "model.safetensors").exists()
    trimmed(t5, out, english, others)
    assert check_ids(t5, out, english) == DOCUMENTS
    assert sorted(path.name for path in tmp_path.iterdir()) == ["after"]


def test_what_cannot_be_trimmed_is_refused(t5, spiece, tmp_path, english) -> None:
    def refused(folder: Path, sentence: str) -> None:
        with pytest.raises(InputError, match=sentence):
            trim(str(folder), encoded(english), [], str(tmp_path / "after"))
        assert not list(tmp_path.glob("after*"))

    def copy(name: str) -> Path:
        return Path(shutil.copytree(t5, tmp_path / name))

    two = copy("two")
    torch.save({}, two / "pytorch_model.bin")
    refused(two, r"2 sets of weights, model.safetensors and pytorch_model.bin")
    rows = copy("rows")
    train_vocabulary(english, 400, str(tmp_path / "other.model"))
    settings = json.loads((rows / "config.json").read_text())
    (rows / "config.json").write_text(json.dumps({**settings, "vocab_size": 2_304}))
    refused(rows, r"2,176 rows in \S+ and 2,304 in vocab_size")
    byte = copy("byte")
    (byte / "spiece.model").unlink()
    (byte / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "ByT5Tokenizer"}))
    refused(byte, "nothing to trim")
    none = copy("none")
    (none / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "T5Tokenizer", "extra_ids": 0}))
    refused(none, r"no sentinel")
    with pytest.raises(InputError, match="is a folder for transformers with a tokenizer of its own"):
        trim(str(t5), encoded(english), [], str(tmp_path / "x"), vocabulary=VocabularyName(str(spiece), 100))
    for texts, coverage, sentence in (([], 1.0, "no text"), (encoded(english), 1.5, "coverage is 1.5")):
        with pytest.raises(InputError, match=sentence):
            trim(str(t5), texts, [], str(tmp_path / "x"), coverage=coverage)
    with pytest.raises(InputError, match=r"There is no checkpoint at step 5 in .*; choose from \[0\]"):
        trim(str(t5), encoded(english), [], str(tmp_path / "x"), step=5)


def test_a_part_of_an_old_folder_of_sentence_transformers_is_refused(t5, tmp_path, english) -> None:
    """Its pooling and what follows it stand beside the network's folder."""
    shutil.copytree(t5, tmp_path / "0_Transformer")
    modules = [{"idx": 0, "name": "0", "path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(InputError, match="has its network in the folder 0_Transformer, as early versions"):
        trimming.opened(str(tmp_path))
    assert trimming.opened(str(tmp_path / "0_Transformer")).directory


def test_folders_that_trimming_does_not_know_are_one_sentence(t5, tmp_path, english) -> None:
    def refused(folder: Path, sentence: str) -> None:
        with pytest.raises(InputError, match=sentence):
            trim(str(folder), encoded(english), [], str(tmp_path / "after"))
        assert not list(tmp_path.glob("after*"))

    flax = Path(shutil.copytree(t5, tmp_path / "flax"))
    (flax / "model.safetensors").unlink()
    (flax / "flax_model.msgpack").write_bytes(b"")
    refused(flax, "holds its weights as flax_model.msgpack alone")
    folders.saved(tmp_path / "bpe", "gpt2", folders.real("endoftext"))
    (tmp_path / "bpe/tokenizer.json").rename(tmp_path / "kept.json")
    made = json.loads((tmp_path / "kept.json").read_text())["model"]
    (tmp_path / "bpe/vocab.json").write_text(json.dumps(made["vocab"]))
    refused(tmp_path / "bpe", r"has its vocabulary as vocab.json, from which transformers makes a tokenizer.json")
    ends = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    ends.pre_tokenizer = pre_tokenizers.Whitespace()
    ends.train_from_iterator(
        english, trainers.BpeTrainer(vocab_size=300, end_of_word_suffix="</w>", special_tokens=["<unk>", "</s>"])
    )
    folders.saved(
        tmp_path / "ends",
        "llama",
        transformers.PreTrainedTokenizerFast(tokenizer_object=ends, unk_token="<unk>", eos_token="</s>"),
    )
    refused(tmp_path / "ends", "marks the inside or the end of words in its merges")


def test_the_encoder_of_a_hybrid_is_cut_by_its_own_names_and_checked(tmp_path, english) -> None:
    """A hybrid's folder is a Llama with a EuroBert beside it, whose arrays and ids have other names."""
    tokenizer = folders.real("roberta")
    folders.saved(tmp_path / "before", "llama", tokenizer)
    folders.saved(tmp_path / "before/encoder", "eurobert", tokenizer)
    texts = encoded(["Line 7 of a small text"])
    result = trim(str(tmp_path / "before"), texts, [], str(tmp_path / "after"))
    kept = old_ids_of(tmp_path / "after")
    assert len(kept) == result.rows < folders.ROWS
    for part in (".", "encoder"):
        before = load_file(tmp_path / "before" / part / "model.safetensors")
        after = load_file(tmp_path / "after" / part / "model.safetensors")
        assert before.keys() == after.keys()
        for name, array in before.items():
            wanted = array[kept] if "embed_tokens" in name or "lm_head" in name else array
            np.testing.assert_array_equal(after[name], wanted)
        config = json.loads((tmp_path / "after" / part / "config.json").read_text())
        assert config["vocab_size"] == result.rows
    settings = json.loads((tmp_path / "before/encoder/config.json").read_text())
    (tmp_path / "before/encoder/config.json").write_text(json.dumps({**settings, "vocab_size": 640}))
    with pytest.raises(InputError, match=r"512 rows in \S+ and 640 in vocab_size in encoder/config.json"):
        trim(str(tmp_path / "before"), texts, [], str(tmp_path / "other"))


def test_each_file_of_a_tokenizer_is_compared_by_its_own_library(spiece, tmp_path, english, others) -> None:
    """AutoTokenizer reads one file of a folder, and SentencePiece another one."""
    vocabulary = load_vocabulary(str(spiece), 100)
    pieces = Pieces(vocabulary)
    counts = pieces.counted(encoded(english))
    kept = Kept(pieces.kept(counts, 1.0), pieces.names)
    assert len(kept.ids) < len(pieces.names)
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
    shutil.copyfile(spiece, tmp_path / "before/tokenizer.model")
    write_tokenizer_files(tmp_path / "before", tmp_path / "after", kept)
    texts = encoded([*english[:50], *others])
    trimming._check_files(tmp_path / "before", tmp_path / "after", kept, texts)
    train_vocabulary([*english, *others], 700, str(tmp_path / "after/tokenizer.model"))
    with pytest.raises(InputError, match=r"tokenizer.model cannot be trimmed: .* would be split into other pieces"):
        trimming._check_files(tmp_path / "before", tmp_path / "after", kept, texts)


@pytest.mark.slow
def test_a_model_of_the_hub_is_compared_without_its_weights(t5, tmp_path, english) -> None:
    (tmp_path / "en.txt").write_text("\n".join(english))
    shutil.copytree(t5, tmp_path / "served/me/t5/main")
    command = [sys.executable, "-m", "limba", "vocabulary", "compare", "me/t5", f"--corpus={tmp_path}/en.txt", "--json"]
    with hub(tmp_path / "served") as (_, environment):
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["vocabularies"]
    assert row["rows"] == 2_176 and row["parameters"] == 32 * 2_176
    downloaded = {path.name for path in (tmp_path / "hf_home").rglob("snapshots/*/*")}
    assert downloaded == {"config.json", "generation_config.json", "spiece.model", "tokenizer_config.json"}


def test_sentinels_without_their_vocabulary_are_refused(tmp_path, capsys) -> None:
    argv = ["vocabulary", "trim", "model", "--keep=a.txt", f"--output={tmp_path}/x"]
    assert main([*argv, "--extra_ids=10"]) == InputError.exit_status
    assert "--extra_ids=10 come above the pieces of --vocabulary" in capsys.readouterr().err
    assert main([*argv, "--vocabulary=a.model", "--extra_ids=-1"]) == InputError.exit_status
    assert "--extra_ids is -1; give a number of sentinels" in capsys.readouterr().err


def test_pieces_beyond_the_rows_are_of_another_model(tmp_path, english) -> None:
    folder = tmp_path / "model"
    tokenizer = folders.real("llama")
    folders.saved(folder, "llama", tokenizer)
    state = json.loads((folder / "tokenizer.json").read_text())
    state["model"]["vocab"] |= {f"piece{number}": 600 + number for number in range(5)}
    (folder / "tokenizer.json").write_text(json.dumps(state))
    with pytest.raises(InputError, match=r"605 ids and the model 512 rows, so 5 pieces have none"):
        trim(str(folder), encoded(english), [], str(tmp_path / "after"))


def test_bpe_needs_the_pieces_on_the_way(tmp_path) -> None:
    """Merges ab, abc and bc: 'abc' is made by way of 'ab', so 'bc' is not needed."""
    vocab = {name: number for number, name in enumerate(["</s>", "a", "b", "c", "ab", "bc", "abc"])}
    merges = [("a", "b"), ("b", "c"), ("ab", "c"), ("a", "bc")]
    made = Tokenizer(models.BPE(vocab, merges))
    made.save(str(tmp_path / "tokenizer.json"))
    pieces = Pieces(load_vocabulary(str(tmp_path / "tokenizer.json")))
    assert pieces.with_parts(vocab["abc"]) == {vocab[name] for name in ("a", "b", "c", "ab", "abc")}
    assert pieces.kept({vocab["abc"]: 9, vocab["bc"]: 1}, coverage=0.9) == [0, 1, 2, 3, 4, 6]  # and its end


def test_a_word_that_wordpiece_did_not_know_may_be_cut_now(tmp_path) -> None:
    """Of xyz the longest piece is xy, after which nothing fits; without that piece it is x and ##yz."""
    names = ["[PAD]", "[UNK]", "[SEP]", "x", "xy", "##yz", "b"]
    vocab = {name: number for number, name in enumerate(names)}
    made = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "before.json"))
    kept = Kept([0, 1, 2, 3, 5, 6], dict(enumerate(names)))
    state = tokenizer_state(json.loads((tmp_path / "before.json").read_text()), kept)
    (tmp_path / "after.json").write_text(json.dumps(state))
    before, after = (load_vocabulary(str(tmp_path / f"{name}.json")) for name in ("before", "after"))
    assert before.encode("xyz b") == [1, 6] and after.encode("xyz b") == [3, 4, 5]
    assert trimming._check_same(before, after, kept, [b"xyz b", b"b x"]) == 1
    state["model"]["vocab"] |= {"x": 5, "b": 3}
    (tmp_path / "wrong.json").write_text(json.dumps(state))
    with pytest.raises(InputError, match="'b x' would be split into other pieces"):
        trimming._check_same(before, load_vocabulary(str(tmp_path / "wrong.json")), kept, [b"b x"])


def test_each_line_of_a_vocab_txt_keeps_its_number(tmp_path) -> None:
    """A piece may be a character that Python takes for the end of a line."""
    (tmp_path / "vocab.txt").write_text("[PAD]\na\n\u2028\nb\nc\n")
    (tmp_path / "out").mkdir()
    write_tokenizer_files(tmp_path, tmp_path / "out", Kept([0, 2, 4], {}))
    assert (tmp_path / "out" / "vocab.txt").read_text() == "[PAD]\n\u2028\nc\n"


def test_a_token_that_no_class_adds_may_be_gone() -> None:
    added = [{"id": 1, "content": "a"}, {"id": 2, "content": "b"}]
    state = {"model": {"type": "WordPiece", "vocab": {"[UNK]": 0, "a": 1, "b": 2}}, "added_tokens": added}
    made = tokenizer_state(state, Kept([0, 2], {0: "[UNK]", 1: "a", 2: "b"}))
    assert made["model"]["vocab"] == {"[UNK]": 0, "b": 1} and made["added_tokens"] == [{"id": 1, "content": "b"}]


@pytest.mark.parametrize("kind", DEFAULT_IDS)
def test_the_ids_that_a_class_has_by_itself_are_transformers(kind: str) -> None:
    config = transformers.AutoConfig.for_model(kind)
    ids = {name: getattr(config, name, None) for name in dir(config) if name.endswith("_token_id")}
    assert {name: number for name, number in ids.items() if number is not None} == DEFAULT_IDS[kind]


def test_what_a_trimmed_folder_copies_is_downloaded() -> None:
    """Of a model of the hub the card says under which licence it may be changed."""
    copied = ["README.md", "2_Dense/config.json", *COPIED]
    tokenizer = [*MODELS, "tokenizer.json", "vocab.json", "merges.txt", "vocab.txt", "added_tokens.json"]
    names = wanted_files([*copied, *tokenizer, "model.safetensors", "onnx/model.onnx"])
    assert sorted(names) == sorted([*copied, *tokenizer, "model.safetensors"])
