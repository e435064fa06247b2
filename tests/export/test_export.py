"""Every family to Hugging Face's folders and back: transformers' own logits, bit-identical round trips, bad input."""

import dataclasses
import errno
import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
import pytest
import tensorstore as ts
import tokenizers
import torch
import transformers
from etils import epath
from flax import serialization

from limba.cli import convert, flags, generate, program
from limba.config import CardConfig, DataConfig, InputError, ModelConfig, RunConfig
from limba.data.vocabulary.load import load_vocabulary
from limba.data.vocabulary.sentinels import sentinel_ids
from limba.data.vocabulary.spelling import piece_bytes
from limba.export import huggingface as exports
from limba.export import proof as check
from limba.export.huggingface import import_folder, network_gin
from limba.export.record import Choices
from limba.formats import huggingface_files as files
from limba.formats import limba_checkpoint, names, t5x
from limba.formats.huggingface import open_folder
from limba.formats.huggingface_tokenizer import write_tokenizer
from limba.formats.limba_checkpoint import LimbaCheckpoint
from limba.formats.names import unflatten
from limba.formats.t5x import StoredTree
from limba.inference.gap_filling import fills
from limba.inference.gap_pieces import pieces_of
from limba.inference.load import load
from limba.inference.source import LIMBA, Source, VocabularyName, find
from limba.run import train
from limba.storage import manifest
from tests import tiny
from tests.bucket_server import emulated
from tests.export.runs import arrays_of, write_run
from tests.inference.test_gaps import answered
from tests.model.test_huggingface import FAMILIES, our_config
from tests.tiny import stack_layers

GOLDEN = Path(__file__).parent.parent / "golden"
T5X_GIN = """
from __gin__ import dynamic_registration
import seqio
from t5x.examples.t5 import network
from t5x import utils

# Macros:
DIM = 128
VOCAB = 128

# Parameters for network.T5Config:
network.T5Config:
  dropout_rate = 0.0
  dtype = 'float32'
  emb_dim = %DIM
  head_dim = 8
network.T5Config.logits_via_embedding = False
network.T5Config.mlp_activations = ('gelu', 'linear')
network.T5Config.mlp_dim = 32
network.T5Config.num_decoder_layers = 2
network.T5Config.num_encoder_layers = 2
network.T5Config.num_heads = 2
network.T5Config.vocab_size = %VOCAB
utils.SaveCheckpointConfig.period = 3
"""


def config_of(family, **changes):
    return dataclasses.replace(our_config(family), num_encoder_layers=2, **changes)


def export(directory, *flags):
    convert.run(["export", str(directory), *map(str, flags)])


def equal(view, arrays):
    assert set(view) == set(arrays)
    for name, array in arrays.items():
        assert view[name].dtype == array.dtype and np.array_equal(view[name], array), name


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.slow
def test_transformers_gives_our_logits_and_the_way_back_is_exact(family, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(check.TOLERANCES, "float32", 2e-5)
    config = config_of(family, **({"vocab_size": 384} if family == "byt5" else {}))
    arrays = write_run(tmp_path / "run", config)[5]
    export(tmp_path / "run", *(["--vocabulary=byte"] if family == "byt5" else []))
    folder = tmp_path / "run" / "huggingface" / "step_5"
    findings = json.loads((folder / "conversion.json").read_text())["findings"]
    has_flax_class = family != "umt5"
    assert sum("passed" in line for line in findings) == 2 + has_flax_class
    assert any("transformers 5" in line for line in findings)
    assert findings[0] in capsys.readouterr().out and findings[0] in (folder / "README.md").read_text()
    is_deep = config.num_decoder_layers > config.num_encoder_layers
    assert ("use_cache=False" in (folder / "README.md").read_text()) == is_deep
    assert (folder / "flax_model.msgpack").exists() == has_flax_class
    for flax in (False, True) if has_flax_class else (False,):
        equal(open_folder(folder, config, flax=flax), arrays)
    if family == "byt5":
        tokens = transformers.AutoTokenizer.from_pretrained(folder)
        vocabulary = load_vocabulary("byte", 0)
        for text in check.TEXTS:
            assert tokens(text).input_ids == [*vocabulary.encode(text), 1]
        assert tokens("a<extra_id_0><extra_id_10>").input_ids == [100, 258, 248, 1]
    equal_after_import = tmp_path / "back"
    if family == "mt5":
        (folder / "model.safetensors").unlink()  # from Flax's file
    import_folder(folder, equal_after_import)
    equal(LimbaCheckpoint(equal_after_import / "checkpoints" / "0"), arrays)
    assert find(str(equal_after_import)).model == dataclasses.replace(config, dtype="float32")


@pytest.fixture
def legacy(tmp_path) -> Path:
    run = Path(shutil.copytree(GOLDEN / "t5x_legacy", tmp_path / "t5x"))
    (run / "config.gin").write_text(T5X_GIN)
    return run


def test_a_language_model_gets_no_sentinels(tmp_path):
    config = ModelConfig(384, 32, 2, 16, 64, 0, 2, positions="rotary")
    source = Source("run", epath.Path(tmp_path), {}, LIMBA, model=config, vocabulary=VocabularyName("byte", 0, "run"))
    name, vocabulary = exports.vocabulary_of(source, Choices(("pytorch",), "float32"))
    assert name.extra_ids == 0 and vocabulary.vocab_size == 259


@pytest.mark.slow
def test_t5x_checkpoints_of_both_forms(legacy, tmp_path, capsys):
    stored = t5x.open_checkpoint(legacy / "checkpoint_3")
    arrays = {name.removeprefix("target/"): stored[name] for name in stored if name.startswith("target/")}
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "new" / "checkpoint_3" / "state", unflatten({n: stored[n] for n in stored}))
    shutil.copy(legacy / "config.gin", tmp_path / "new")
    export(legacy, tmp_path / "out")
    export(tmp_path / "new" / "checkpoint_3", tmp_path / "out2", "--no_check")
    assert "NOT CHECKED" in capsys.readouterr().out
    for folder in (tmp_path / "out" / "step_3", tmp_path / "out2" / "step_3"):
        config = find(str(legacy)).model
        for flax in (False, True):
            equal(open_folder(folder, config, flax=flax), arrays)
    import_folder(tmp_path / "out" / "step_3", tmp_path / "ours")
    equal(LimbaCheckpoint(tmp_path / "ours" / "checkpoints" / "0"), arrays)


def test_the_vocabulary_that_a_t5x_config_names(legacy, vocabulary, tmp_path, capsys):
    def written(text, flag=None):
        (legacy / "config.gin").write_text(T5X_GIN.replace("VOCAB = 128", "VOCAB = 1024") + text)
        vocabulary = exports.vocabulary_of(find(str(legacy)), Choices(vocabulary=flag))
        return vocabulary and tuple(vocabulary[0][:2])

    model = "seqio.SentencePieceVocabulary.sentencepiece_model_file = "
    assert written(f"FILE = '{vocabulary}'\nVOCABULARY = @seqio.SentencePieceVocabulary()\n{model}%FILE\n") == (
        str(vocabulary), 100,
    )  # fmt: skip
    named = f"{model}'{vocabulary}'\nseqio.SentencePieceVocabulary.extra_ids = 50\n"
    assert written(named) == (str(vocabulary), 50)
    assert written("VOCABULARY = @seqio.ByteVocabulary()\n") == ("byte", 0)  # as T5X's own
    absent = f"{model}'{tmp_path}/absent.model'\n"
    with pytest.raises(InputError, match="config.gin names a vocabulary that cannot be read here .*absent.model "):
        written(absent)
    assert written(absent, "none") is None and written("") is None
    assert "No vocabulary is known" in capsys.readouterr().out


def test_all_steps_once_and_interrupted_ones_again(tmp_path, capsys):
    write_run(tmp_path / "run", config_of("t5_1_0"), steps=(10, 9))
    out = tmp_path / "out"
    (out / "step_10.writing").mkdir(parents=True)
    export(tmp_path / "run", out, "--steps=all", "--formats=pytorch", "--no_check")
    assert sorted(path.name for path in out.iterdir()) == ["step_10", "step_9"]
    made = (out / "step_9" / "model.safetensors").stat().st_mtime_ns
    capsys.readouterr()
    export(tmp_path / "run", out, "--steps=9,10", "--formats=pytorch", "--no_check")
    assert capsys.readouterr().out.count("done before") == 2
    assert (out / "step_9" / "model.safetensors").stat().st_mtime_ns == made
    export(tmp_path / "run", out, "--formats=flax", "--no_check")  # another choice is made again
    assert (out / "step_10" / "flax_model.msgpack").exists()
    export(tmp_path / "run", out, "--push=me/model", "--dry_run", "--formats=flax", "--no_check", "--steps=all")
    shown = capsys.readouterr().out
    assert "to me/model, revision main" in shown and "revision step_9" in shown and "flax_model.msgpack" in shown


def test_a_run_of_the_same_name_is_another_one(tmp_path, capsys):
    """Of two seeds below directories of their own, and of a run that was trained again under its name."""
    config = config_of("t5_1_0")
    flags = ("--formats=pytorch", "--no_check", "--vocabulary=none")
    out = tmp_path / "out"
    first, second = (write_run(tmp_path / f"seed{seed}" / "t5", config, seed=seed)[5] for seed in (0, 1))
    for _ in range(2):
        export(tmp_path / "seed0" / "t5", out, *flags)
    assert capsys.readouterr().out.count("done before") == 1
    with pytest.raises(InputError, match="out/step_5 was made from another checkpoint of that name, .*; remove it, or"):
        export(tmp_path / "seed1" / "t5", out, *flags)
    equal(open_folder(out / "step_5", config), first)

    run = tmp_path / "seed0" / "t5"
    export(run, *flags)
    shutil.rmtree(run / "checkpoints")
    shutil.copytree(tmp_path / "seed1" / "t5" / "checkpoints", run / "checkpoints")
    (tmp_path / "link").symlink_to(tmp_path / "seed0")
    capsys.readouterr()
    export(tmp_path / "link" / "t5", *flags)  # its own directory has what it is now
    assert "done before" not in capsys.readouterr().out
    equal(open_folder(run / "huggingface" / "step_5", config), second)

    file = out / "step_5" / "conversion.json"
    record = json.loads(file.read_text())
    record["checkpoint"] = None  # of a checkpoint without a manifest: the name alone is known
    file.write_text(json.dumps(record))
    export(tmp_path / "seed1" / "t5", out, *flags)
    assert "done before" in capsys.readouterr().out
    for part in ("checkpoint", "network", "dtype", "card", "extra_ids", "vocabulary", "dropout"):
        file.write_text(json.dumps({name: value for name, value in record.items() if name != part}))
        with pytest.raises(InputError, match=r"step_5 has a conversion\.json that no export has written"):
            export(tmp_path / "seed1" / "t5", out, *flags)


def test_a_folder_is_made_of_what_the_newest_command_asks_for(tmp_path, vocabulary, capsys):
    """The advice to give a vocabulary did nothing: the folder without a tokenizer was done before."""
    config = config_of("t5_1_1", vocab_size=1024)
    run = tmp_path / "run"
    write_run(run, config)
    folder = run / "huggingface" / "step_5"

    def made(*flags):
        capsys.readouterr()
        export(run, "--formats=pytorch", "--no_check", *flags)
        return "done before" not in capsys.readouterr().out

    def extra_ids():
        named = find(str(folder)).vocabulary
        return named and named.extra_ids

    assert made() and not made() and not (folder / "tokenizer.json").exists()
    chosen = f"--vocabulary={vocabulary}"
    assert made(chosen) and extra_ids() == 100
    copy = shutil.copy(vocabulary, tmp_path / "copy.model")
    assert not made(f"--vocabulary={copy}")  # its content counts
    assert made(chosen, "--extra_ids=50") and extra_ids() == 50
    assert made("--vocabulary=none") and not made("--vocabulary=none") and not (folder / "tokenizer.json").exists()
    assert made("--vocabulary=byte", "--dropout=0")
    assert json.loads((folder / "config.json").read_text())["dropout_rate"] == 0
    assert made("--vocabulary=byte") and not made("--vocabulary=byte")
    silu = dataclasses.replace(config, mlp_activations=("silu", "linear"), remat="full")
    (tmp_path / "silu.gin").write_text(network_gin(silu))
    assert made("--vocabulary=byte", f"--config={tmp_path}/silu.gin")
    assert json.loads((folder / "config.json").read_text())["feed_forward_proj"] == "gated-silu"
    (tmp_path / "silu.gin").write_text(network_gin(dataclasses.replace(silu, remat="none")))
    assert not made("--vocabulary=byte", f"--config={tmp_path}/silu.gin")  # the folder would be the same


def test_a_command_without_a_vocabulary_keeps_the_tokenizer(tmp_path, vocabulary, capsys):
    """An upload of a folder whose tokenizer was chosen made it again without one, and removed it on the hub."""
    run = tmp_path / "run"
    write_run(run, config_of("t5_1_1", vocab_size=1024))
    folder = run / "huggingface" / "step_5"
    flags = ("--formats=pytorch", "--no_check")
    export(run, *flags, f"--vocabulary={vocabulary}", "--extra_ids=50")
    capsys.readouterr()
    export(run, *flags, "--push=me/model", "--dry_run")
    shown = capsys.readouterr().out
    assert "done before" in shown and "would upload tokenizer.json" in shown
    with pytest.raises(InputError, match="step_5 would be made again without its tokenizer, .* give --vocabulary"):
        export(run, *flags, "--dropout=0")
    assert (folder / "tokenizer.json").exists()
    export(run, *flags, "--vocabulary=none")
    assert not (folder / "tokenizer.json").exists()


def test_the_vocabulary_that_a_gin_file_names_later_is_written(vocabulary, tmp_path, capsys):
    write_run(tmp_path / "run", config_of("t5_1_1", vocab_size=1024))
    theirs = tmp_path / "theirs"
    convert.run([str(tmp_path / "run"), str(theirs), "--to=t5x"])
    flags = ("--formats=pytorch", "--no_check")
    tokenizer = theirs / "huggingface" / "step_5" / "tokenizer.json"
    export(theirs, *flags)
    assert not tokenizer.exists()
    named = f"seqio.SentencePieceVocabulary.sentencepiece_model_file = '{vocabulary}'\n"
    (theirs / "config.gin").write_text("from __gin__ import dynamic_registration\nimport seqio\n\n" + named)
    export(theirs, *flags)
    assert tokenizer.exists()
    (theirs / "config.gin").unlink()
    capsys.readouterr()
    export(theirs, *flags)
    assert tokenizer.exists() and "done before" in capsys.readouterr().out


@pytest.mark.slow
def test_a_new_licence_is_a_new_card_and_nothing_else(tmp_path, capsys):
    write_run(tmp_path / "run", config_of("t5_1_1"))
    folder = tmp_path / "run" / "huggingface" / "step_5"

    def card(*flags):
        export(tmp_path / "run", "--formats=pytorch", "--vocabulary=none", *flags)
        return (folder / "README.md").read_text()

    first = card("--hardware=a core", "--trc")
    weights = (folder / "model.safetensors").stat().st_mtime_ns
    assert "No licence has been chosen yet" in first and "a core" in first
    second = card("--licence=apache-2.0")
    assert "step_5; its card is new" in capsys.readouterr().out
    assert "license: apache-2.0" in second and "No licence" not in second
    assert second.split("## Conversion")[1] == first.split("## Conversion")[1]  # what was proved, and how to use it
    assert (folder / "model.safetensors").stat().st_mtime_ns == weights
    assert card("--licence=apache-2.0") == second == card()
    assert "card is new" not in capsys.readouterr().out
    assert "license: mit" in card("--licence=mit")
    source = find(str(tmp_path / "run"))
    run = RunConfig(source.model, DataConfig("none", {"inputs": 8}, 8), "run", 10, card=CardConfig(language="ro"))
    choices = Choices(formats=("pytorch",), vocabulary="none")
    exports.export(dataclasses.replace(source, run=run), folder.parent, [5], choices)  # the run's own has it now
    assert "language:\n- ro\n" in (folder / "README.md").read_text()


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
def test_a_folder_in_a_bucket_is_what_the_newest_command_asks_for(tmp_path, monkeypatch, capsys):
    write_run(tmp_path / "run", config_of("t5_1_1"))
    flags = ("--formats=pytorch", "--no_check", "--vocabulary=none")
    with emulated(monkeypatch) as server:
        for _ in range(2):
            export(tmp_path / "run", "gs://bucket/out", *flags)
        assert capsys.readouterr().out.count("done before") == 1
        sent = server.received["out/step_5/model.safetensors"]
        export(tmp_path / "run", "gs://bucket/out", *flags, "--licence=mit")
        assert b"license: mit" in server.data("out/step_5/README.md")
        assert server.received["out/step_5/model.safetensors"] == sent
        export(tmp_path / "run", "gs://bucket/out", *flags, "--dropout=0")
        assert json.loads(server.data("out/step_5/config.json"))["dropout_rate"] == 0
        write_run(tmp_path / "again" / "run", config_of("t5_1_1"), seed=1)
        with pytest.raises(InputError, match="gs://bucket/out/step_5 was made from another checkpoint of that name"):
            export(tmp_path / "again" / "run", "gs://bucket/out", *flags)


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
@pytest.mark.slow
def test_a_new_card_in_a_bucket_keeps_the_formats_and_the_proof(tmp_path, monkeypatch):
    write_run(tmp_path / "run", config_of("t5_1_1", vocab_size=384))
    with emulated(monkeypatch) as server:
        export(tmp_path / "run", "gs://bucket/out", "--vocabulary=byte", "--hardware=a core")
        before = set(server.names())
        export(tmp_path / "run", "gs://bucket/out", "--formats=pytorch", "--no_check", "--licence=mit")
        card = server.data("out/step_5/README.md").decode()
        record = json.loads(server.data("out/step_5/conversion.json"))
        assert set(server.names()) == before and "out/step_5/flax_model.msgpack" in before
    assert "license: mit" in card and "a core" in card and "passed" in card
    assert record["formats"] == ["pytorch", "flax"] and record["checked"] and record["vocabulary"] == "byte"


@pytest.mark.parametrize("kind", ["T5X", "Hugging Face"])
def test_others_checkpoints_of_the_same_name_are_others_too(kind, legacy, tmp_path, capsys):
    """Their configurations and cards may be edited, or copied to where they were missing."""
    flags = ("--no_check", "--formats=pytorch", "--vocabulary=none")
    if kind == "T5X":
        source = legacy
        state = next((legacy / "checkpoint_3").glob("state.param_states.*"))  # no folder has it
        edited = [legacy / "checkpoint_3" / "config.gin", legacy / "config.gin", state / "notes"]
        changed = legacy / "checkpoint_3" / "target.decoder.layers_0.mlp.wo.kernel" / "0.0"
    else:
        export(legacy, tmp_path / "first", *flags)
        source = tmp_path / "first" / "step_3"
        edited = [source / "README.md"]
        changed = source / "model.safetensors"
    out = tmp_path / "out"
    export(source, out, *flags)
    for file in edited:
        file.write_text((file.read_text() if file.exists() else T5X_GIN) + "\n")
    capsys.readouterr()
    export(source, out, *flags)
    assert "done before" in capsys.readouterr().out
    content = bytearray(changed.read_bytes())
    content[-1] ^= 1
    changed.write_bytes(content)
    with pytest.raises(InputError, match="was made from another checkpoint of that name"):
        export(source, out, *flags)


@pytest.mark.slow
def test_bfloat16_and_files_in_parts(tmp_path):
    config = config_of("mt5")
    arrays = write_run(tmp_path / "run", config)[5]
    export(tmp_path / "run", tmp_path / "out", "--dtype=bfloat16")
    half = open_folder(tmp_path / "out" / "step_5", config)
    assert half["token_embedder/embedding"].dtype.name == "bfloat16"
    assert all((half[name] == arrays[name].astype(half[name].dtype)).all() for name in arrays)
    for folder in (tmp_path, tmp_path / "out"):  # config.json says how the arrays are read
        shutil.copy(tmp_path / "out" / "step_5" / "config.json", folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(names, "BLOCK_BYTES", 1_000)
        files.write_pytorch(tmp_path, arrays, config, file_bytes=100_000)
    assert len(list(tmp_path.glob("model-*-of-*.safetensors"))) > 2
    equal(open_folder(tmp_path, config), arrays)
    files.write_flax(tmp_path / "out", arrays, config)
    file = tmp_path / "out" / "flax_model.msgpack"
    read = serialization.msgpack_restore(file.read_bytes())
    assert file.read_bytes() == serialization.msgpack_serialize(read, in_place=True)  # to the byte
    np.testing.assert_array_equal(read["shared"]["embedding"], arrays["token_embedder/embedding"])
    np.testing.assert_array_equal(read["lm_head"]["kernel"], arrays["decoder/logits_dense/kernel"])
    equal(open_folder(tmp_path / "out", config, flax=True), arrays)
    with pytest.MonkeyPatch.context() as patch:  # as flax cuts arrays over a gibibyte
        patch.setattr(serialization, "MAX_CHUNK_SIZE", 6_000)
        files.write_flax(tmp_path / "out", arrays, config)
        read = serialization.msgpack_restore(file.read_bytes())
        assert file.read_bytes() == serialization.msgpack_serialize(read, in_place=True)
    assert b"__msgpack_chunked_array__" in file.read_bytes()
    equal(open_folder(tmp_path / "out", config, flax=True), arrays)


@pytest.mark.parametrize("kind", ["mt5", "gpt2", "modernbert"])
def test_no_form_of_weights_reads_a_part_of_a_checkpoint_twice(kind, tmp_path, monkeypatch):
    """The file of flax has arrays layer by layer: a stack was read once for each of its layers.

    And flax cuts large arrays: one was read once for each of its chunks. GPT-2 has queries, keys and values in one
    array: reading one stack pushed the other two out of memory.
    """
    gpt2 = tiny.language_model(positions="learned", norm="layer", mlp_activations=("gelu",), num_kv_heads=None)
    config = {"mt5": config_of("mt5"), "gpt2": gpt2, "modernbert": tiny.MODERN}[kind]
    write_run(tmp_path / "run", config)
    read_rows = StoredTree._read_rows
    read = []

    def counted(self, name, start, stop):
        read.extend((name, layer) for layer in range(start, stop))
        return read_rows(self, name, start, stop)

    read_whole = StoredTree._read
    whole = []

    def counted_whole(self, name):
        whole.append(name)
        return read_whole(self, name)

    monkeypatch.setattr(StoredTree, "_read_rows", counted)
    monkeypatch.setattr(StoredTree, "_read", counted_whole)
    monkeypatch.setattr(serialization, "MAX_CHUNK_SIZE", 6_000)
    monkeypatch.setattr(limba_checkpoint, "HELD_BYTES", 1)  # one chunk at a time
    checkpoint = LimbaCheckpoint(tmp_path / "run/checkpoints/5")
    stacks = sum("/layers/" in name for name in checkpoint.tree if name.startswith("params/"))
    for write in (files.write_pytorch, files.write_flax)[: 2 if kind == "mt5" else 1]:
        read.clear()
        whole.clear()
        write(tmp_path, checkpoint, config)
        assert len(whole) == len(set(whole))
        layers = [part for part in read if "/layers/" in part[0]]
        assert len(layers) == len(set(layers)) and len({name for name, _ in layers}) == stacks


def test_a_file_of_flax_that_could_not_be_finished_has_another_name(tmp_path, monkeypatch):
    """Its chunks may be written first, at the end of the file: what is missing before them would read as zeros."""
    config = config_of("mt5")
    write_run(tmp_path / "run", config)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(StoredTree, "_read_rows", full)
    checkpoint = LimbaCheckpoint(tmp_path / "run/checkpoints/5")
    with pytest.raises(OSError, match="No space left"):
        files.write_flax(tmp_path, checkpoint, config)
    assert not (tmp_path / "flax_model.msgpack").exists()


def test_the_tokenizer_is_sentencepieces(vocabulary, corpus, tmp_path):
    files.write_configs(tmp_path, config_of("t5_1_1"), "float32")
    write_tokenizer(tmp_path, str(vocabulary), 100)
    ours = load_vocabulary(str(vocabulary))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = [json.loads(line)["text"][:500] for line in corpus.read_text().splitlines()[:100]]
    for text in [*texts, *check.TEXTS, "naïve ☃ 語"]:
        assert theirs(text).input_ids == [*ours.encode(text), 1]
    assert any(ours.tokenizer.IsByte(number) for number in ours.encode("☃ 語"))
    assert theirs.decode(theirs("naïve ☃ 語").input_ids, skip_special_tokens=True) == "naïve ☃ 語"
    assert theirs("<extra_id_0>").input_ids[-2:] == [899, 1] and theirs.pad_token_id == 0
    assert (tmp_path / "spiece.model").read_bytes() == vocabulary.read_bytes()


CLASSES_GIN = """from __gin__ import dynamic_registration
from limba import config
from tasks import text_to_text
include 'gin/models/t5_1_1/tiny.gin'
include 'gin/runs/finetune.gin'
MIXTURE_OR_TASK_NAME = 'text_to_text'
TASK_FEATURE_LENGTHS = {'inputs': 32, 'targets': 8}
INITIAL_CHECKPOINT_PATH = None
BATCH_SIZE = 16
TRAIN_STEPS = 30
EVAL_PERIOD = 1_000
NUM_EXAMPLES = 0
MAX_TOKENS = 8
LEARNING_RATE = 0.01
DROPOUT_RATE = 0.0
DTYPE = 'float32'
VOCAB_SIZE = 512
config.OptimizerConfig.name = 'adamw'
config.ModelConfig:
  emb_dim = 32
  num_heads = 2
  head_dim = 8
  mlp_dim = 32
  num_encoder_layers = 1
  num_decoder_layers = 1
config.DataConfig.num_data_shards = 4
"""


@pytest.mark.night
def test_a_tokenizer_json_and_its_end_of_sequence_go_along(corpus, tmp_path):
    texts = [line for text in map(json.loads, corpus.read_text().splitlines()) for line in text["text"].splitlines()]
    texts = [text.strip() for text in texts if len(text.strip()) > 10][:400]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<pad>", "<unk>", "</s>"], initial_alphabet=letters, show_progress=False
    )
    tokenizer.train_from_iterator([*texts, "short long " * 50], trainer)
    tokenizer.add_special_tokens(["<extra_id_1>", "<extra_id_0>"])
    tokenizer.save(str(tmp_path / "bpe.json"))
    rows = [{"inputs": text, "targets": "long" if len(text) > 40 else "short"} for text in texts]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "run.gin").write_text(CLASSES_GIN)
    run = tmp_path / "run"
    folder = tmp_path / "run" / "huggingface" / "step_30"
    files_of_run = {"CORPUS": tmp_path / "rows.jsonl", "VOCABULARY": tmp_path / "bpe.json", "MODEL_DIR": run}
    bindings = [f"--gin.{name}={path}" for name, path in files_of_run.items()]
    train(*flags.parse_args([f"--gin_file={tmp_path / 'run.gin'}", *bindings])[:2])
    export(run, "--formats=pytorch")
    for name in ("config", "generation_config"):
        assert json.loads((folder / f"{name}.json").read_text())["eos_token_id"] == 2
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = load_vocabulary(str(tmp_path / "bpe.json"))
    assert theirs.eos_token_id == ours.eos_id == 2
    for text in texts:
        assert theirs(text).input_ids == [*ours.encode(text), 2]
        assert theirs.decode(theirs(text).input_ids, skip_special_tokens=True) == text
    (tmp_path / "in.txt").write_text("\n".join(texts[:20]))
    read_back = [f"--checkpoint={folder}", f"--gin.VOCABULARY={folder / 'tokenizer.json'}"]
    places = [f"--input={tmp_path / 'in.txt'}", f"--output={tmp_path / 'out.txt'}"]
    generate.run([f"--gin_file={run / 'config.gin'}", *read_back, *places])
    written = (tmp_path / "out.txt").read_text().splitlines()
    assert set(written) <= {"short", "long"}, "it has learnt what to write, and to end it"
    assert f"vocabulary in {tmp_path / 'back'}/tokenizer.json" in import_folder(str(folder), tmp_path / "back")
    assert load_vocabulary(str(tmp_path / "back" / "tokenizer.json")).encode(texts[0]) == ours.encode(texts[0])
    model, _ = check.load_in_transformers(folder)
    encoded = theirs(texts[:20], padding=True, truncation=True, max_length=32, return_tensors="pt")
    tokens = model.generate(**encoded, max_new_tokens=8, do_sample=False)
    assert theirs.batch_decode(tokens, skip_special_tokens=True) == written
    # Ids without a piece, and the sentinels that this task never learned, are not drawn either.
    suppressed = json.loads((folder / "generation_config.json").read_text())["suppress_tokens"]
    sentinels = sentinel_ids(ours, 2)
    assert suppressed == sorted([*sentinels, *range(ours.vocab_size, 512)]) and len(suppressed) > 2
    drawn = model.generate(**encoded, max_new_tokens=60, min_new_tokens=60, do_sample=True, temperature=9.0, top_k=0)
    assert not set(drawn.flatten().tolist()) & set(suppressed)
    assert json.loads((folder / "config.json").read_text())["dropout_rate"] == 0.1


@pytest.mark.parametrize("formats", ["pytorch", "flax"])
@pytest.mark.slow
def test_a_failed_proof_leaves_a_folder_that_says_so(formats, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(check, "has_transformers", lambda: False)  # ours must find it alone
    write_run(tmp_path / "run", config_of("t5_1_1"))
    write = getattr(files, f"write_{formats}")

    def damaged(directory, arrays, *rest):
        name = "decoder/layers_1/mlp/wo/kernel"
        write(directory, {**arrays, name: arrays[name] * 1.01}, *rest)

    monkeypatch.setattr(files, f"write_{formats}", damaged)
    arguments = ["export", str(tmp_path / "run"), str(tmp_path / "out"), f"--formats={formats}"]
    assert program.exit_code(convert.run, arguments) == 2
    told = capsys.readouterr()
    assert "does not give the source's numbers" in told.err and "FAILED" in told.out
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["step_5.failed"]
    assert "FAILED" in (tmp_path / "out" / "step_5.failed" / "README.md").read_text()
    monkeypatch.setattr(files, f"write_{formats}", write)
    export(tmp_path / "run", tmp_path / "out", f"--formats={formats}")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["step_5"]


def fills_by_transformers(folder, text, pieces):
    model, _ = check.load_in_transformers(folder)
    inputs = transformers.AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")

    def next_logits(beginnings):
        encoded = {name: inputs[name].expand(len(beginnings), -1) for name in ("input_ids", "attention_mask")}
        with torch.no_grad():
            return model(**encoded, decoder_input_ids=torch.tensor(beginnings)).logits[:, -1].float().numpy()

    return answered(fills(text, pieces), next_logits)


@pytest.mark.slow
def test_transformers_fills_gaps_as_our_network_does(vocabulary, tmp_path):
    config = config_of("t5_1_1", vocab_size=1024)
    arrays = arrays_of(config)
    files.write_configs(tmp_path, config, "float32")
    files.write_pytorch(tmp_path, arrays, config)
    write_tokenizer(tmp_path, str(vocabulary), 100)
    text = "The module <extra_id_0> a file and re<extra_id_1> it."
    trained = load(tmp_path)
    pieces = pieces_of(trained.vocabulary, 1024, trained.special_ids)
    ours = trained.fill(text, top=3)
    theirs = fills_by_transformers(tmp_path, text, pieces)
    assert [[fill.ids for fill in gap] for gap in ours] == [[fill.ids for fill in gap] for gap in theirs]
    for our_fills, their_fills in zip(ours, theirs, strict=True):
        assert len(our_fills) == 3 and [fill.text for fill in our_fills] == [fill.text for fill in their_fills]
        np.testing.assert_allclose([f.probability for f in our_fills], [f.probability for f in their_fills], rtol=2e-5)
        assert [f.probability for f in our_fills] == sorted((f.probability for f in our_fills), reverse=True)
        assert all(any(map(str.isalnum, fill.text)) for fill in our_fills)
    spelled = piece_bytes(trained.vocabulary, 1024)
    assert all(spelled[fill.ids[0]].startswith(b" ") for fill in ours[0])
    assert not any(spelled[fill.ids[0]].startswith(b" ") for fill in ours[1])


@pytest.mark.slow
def test_greedy_text_that_goes_astray_fails():
    config = config_of("t5_1_1")
    arrays = arrays_of(config)
    proof = check.Proof(arrays, config, None)
    tokens = np.array(proof._tokens)
    assert proof._figures("same", proof._logits, tokens, 1e-4).passed
    np.testing.assert_array_equal(proof._greedy(proof._followed), tokens)
    other = proof._followed.copy()
    other[1, 2] *= -1  # the text parts there, as it would if it were written on token by token
    parted = proof._greedy(other)
    assert (parted[:, :2] == tokens[:, :2]).all() and parted[1, 2] == other[1, 2].argmax() != tokens[1, 2]
    assert not proof._figures("parted", proof._logits, parted, 1e-4).passed
    tokens[0, 3] = (tokens[0, 3] + 7) % 200 + 2
    figures = proof._figures("other text", proof._logits, tokens, 1e-4)
    assert not figures.passed and figures.texts_equal == 1
    assert not proof._figures("no number", proof._logits * np.nan, proof._tokens, 1e-4).passed


def test_without_torch_the_own_reader_is_used_and_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(check, "has_transformers", lambda: False)
    write_run(tmp_path / "run", config_of("t5_1_1"))
    export(tmp_path / "run", "--formats=pytorch")
    assert "torch and transformers are not installed" in capsys.readouterr().out


def test_bad_choices_are_one_sentence(tmp_path, vocabulary, legacy, monkeypatch):
    config = config_of("t5_1_1")
    run = tmp_path / "run"
    out = tmp_path / "out"
    write_run(run, config)
    monkeypatch.delenv("HF_TOKEN", raising=False)

    def refused(message, *flags):
        with pytest.raises(InputError, match=message):
            export(*flags)

    refused("is not a model: looked there for a Limba run", tmp_path)
    refused("no checkpoint at step 7", run, out, "--steps=7")
    refused("give best, latest, all, or numbers", run, out, "--steps=x")
    refused("give pytorch, flax", run, out, "--formats=onnx")
    refused("give float32 or bfloat16", run, out, "--dtype=int8")
    refused("set HF_TOKEN", run, out, "--push=me/model")
    refused("give user/name", run, out, "--push=model")
    refused("has 900 ids.*model 256 rows", run, out, f"--vocabulary={vocabulary}")
    (tmp_path / "other.gin").write_text(network_gin(dataclasses.replace(config, num_decoder_layers=3)))
    refused("has no decoder/layers_2/", run, out, f"--config={tmp_path}/other.gin")
    (tmp_path / "other.gin").write_text(network_gin(dataclasses.replace(config, mlp_dim=32)))
    refused("as \\(64, 96\\), and its configuration makes it \\(64, 32\\)", run, out, f"--config={tmp_path}/other.gin")
    refused("as .*, and its configuration makes it", run, out, "--config=gin/models/t5_1_1/tiny.gin")
    write_run(tmp_path / "second", config)
    export(run, out, "--no_check")
    refused("made from another run, run", tmp_path / "second", out)
    (out / "thesis.tex").write_text("")
    refused("holds thesis.tex, which no conversion wrote", run, out)
    (legacy / "config.gin").write_text(T5X_GIN)
    shutil.rmtree(legacy / "checkpoint_3" / "target.decoder.layers_0.mlp.wo.kernel")
    refused("target/decoder/layers_0/mlp/wo/kernel", legacy)
    step = run / "checkpoints" / "5"
    state = step / "state"
    store = ts.KvStore.open({"driver": "ocdbt", "base": {"driver": "file", "path": f"{state}/"}}).result()
    name = "params.encoder.layers.mlp.wo.kernel/"
    store.delete_range(ts.KvStore.KeyRange(f"{name}0", f"{name}1")).result()
    refused("5 is damaged: state/manifest.ocdbt has", run, tmp_path / "new")
    (step / manifest.FILE).write_text(manifest.text_of(step, step=5))  # as if it had been saved so
    refused("params/encoder/layers/mlp/wo/kernel has 0 of its 1 pieces", run, tmp_path / "new")
    store.delete_range(ts.KvStore.KeyRange(name, f"{name}~")).result()
    (step / manifest.FILE).write_text(manifest.text_of(step, step=5))
    refused("has no encoder/layers_0/mlp/wo/kernel", run, tmp_path / "new")
    for file in state.rglob("d/*"):
        file.write_bytes(file.read_bytes()[:100])
    (step / manifest.FILE).write_text(manifest.text_of(step, step=5))
    refused("run/checkpoints/5/state cannot be read", run, tmp_path / "new")


def test_import_refuses_what_is_no_t5(tmp_path):
    with pytest.raises(InputError, match="is an empty folder: looked there for .* a Hugging Face folder"):
        import_folder(tmp_path, tmp_path / "out")
    files.write_configs(tmp_path, config_of("t5_1_1"), "float32")
    files.write_pytorch(tmp_path, arrays_of(config_of("t5_1_1")), config_of("t5_1_1"))
    with pytest.raises(InputError, match="is not empty"):
        import_folder(tmp_path, tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bart"}')
    with pytest.raises(InputError, match="only mt5, t5, umt5, llama, eurobert, modernbert, gpt2"):
        import_folder(tmp_path, tmp_path / "out")
    with pytest.raises(InputError, match="only a linear second one"):
        files.config_json(config_of("t5_1_1", mlp_activations=("gelu", "gelu")))


def test_a_scanned_t5x_checkpoint_becomes_a_umt5(tmp_path, monkeypatch):
    """As examples/scalable_t5 has it: layers on axis 1, heads apart, a bias in every layer.

    Every stack was read once for each of its layers.
    """
    config = config_of("umt5")
    arrays = arrays_of(config)
    tree = {"state/step": np.int32(4)}
    for name, array in stack_layers(arrays).items():
        if "/layers/" in name:
            side = name.split("/")[0]
            array = np.moveaxis(array, 0, 1)
            if name.endswith(("query/kernel", "key/kernel", "value/kernel")):
                array = array.reshape(*array.shape[:2], config.num_heads, config.head_dim)
            elif name.endswith("out/kernel"):
                array = array.reshape(config.num_heads, config.head_dim, *array.shape[1:]).swapaxes(1, 2)
            name = name.replace("/layers/", f"/{side}/")
        tree[f"target/{name}"] = array
    t5x.write_legacy(tmp_path / "run", 4, tree)
    values = {name: value for name, value in vars(config).items() if name != "relative_bias_per_layer"}
    lines = [f"network.T5Config.{name} = {value!r}" for name, value in values.items()]
    (tmp_path / "run" / "config.gin").write_text("\n".join(lines))
    read_whole = StoredTree._read
    read = []

    def counted(self, name):
        read.append(name)
        return read_whole(self, name)

    monkeypatch.setattr(StoredTree, "_read", counted)
    export(tmp_path / "run", tmp_path / "out", "--no_check")
    assert set(Counter(read).values()) == {1}  # once for PyTorch's weights; transformers has no Flax class of it
    equal(open_folder(tmp_path / "out" / "step_4", config), arrays)
    settings = json.loads((tmp_path / "out" / "step_4" / "config.json").read_text())
    assert settings["model_type"] == "umt5"
