"""The section about a run's data: each line on a small corpus that calls for it, with the line that fixes it."""

from __future__ import annotations

import dataclasses
import gzip
import json
import re
import subprocess
import types
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import seqio
import tensorflow as tf

import tasks.demo
import tasks.ro_diacritics  # noqa: F401  registers the tasks
from limba.api import NewVocabulary
from limba.cli.gin.statements import read
from limba.config import CheckpointConfig, ConfigError, DataConfig, RunConfig
from limba.config.errors import Open
from limba.data import task_modules
from limba.data.objectives import derive_lengths, span_corruption, tokenize_documents
from limba.data.objectives.spans import raw_and_targets
from limba.data.sources import FileSource, splits
from limba.data.tasks import resolve_task
from limba.data.vocabulary.load import load_vocabulary
from limba.tools.preflight import configuration
from limba.tools.preflight.checks import data, rows, sections
from limba.tools.preflight.checks.findings import after_changes
from limba.tools.preflight.checks.verdict import Line, Section
from limba.training.start import task_of_run
from tests import tiny

ROOT = Path(__file__).parents[2]
CHIPS = types.SimpleNamespace(name="v4-8", devices=4, hosts=1, peak_flops=275e12)
GREEK = "Η γλώσσα είναι ένα σύστημα επικοινωνίας"  # in a vocabulary of English with pieces for bytes


def sentences(split: str, shuffle_files: bool, seed: int | None = None) -> tf.data.Dataset:
    """Sentences that come from no file, so that no position can be saved."""
    return tf.data.Dataset.range(64).map(lambda n: {"text": tf.strings.format("The sentence of number {}.", n)})


def pairs(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Makes one row of each document, however short: its first letters, and all of it."""
    return dataset.map(lambda row: {"inputs": tf.strings.substr(row["text"], 0, 10), "targets": row["text"]})


FEATURES = dict.fromkeys(("inputs", "targets"), seqio.Feature(seqio.ByteVocabulary(), dtype=tf.int32))
for name, source, preprocessors in (
    (
        "preflight_function",
        seqio.FunctionDataSource(sentences, ["train", "test"]),
        [tokenize_documents, span_corruption],
    ),
    ("preflight_pairs", FileSource("short.jsonl"), [pairs, seqio.preprocessors.tokenize]),
):
    if name not in seqio.TaskRegistry.names():
        seqio.TaskRegistry.add(
            name, source=source, preprocessors=preprocessors, output_features=FEATURES, shuffle_buffer_size=None
        )


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Path:
    """Corpora of a few documents, and a vocabulary of English that spells other letters in bytes."""
    folder = tmp_path_factory.mktemp("corpora")
    texts = list(dict.fromkeys(json.loads(line)["text"] for line in corpus.read_text().splitlines()))[:100]

    def write(name: str, documents: list[str]) -> None:
        lines = "".join(json.dumps({"text": text}) + "\n" for text in documents)
        (folder / name).write_bytes(gzip.compress(lines.encode()) if name.endswith(".gz") else lines.encode())

    write("train.jsonl", texts[:80])
    write("validation.jsonl", texts[80:])
    write("train.jsonl.gz", texts[:80])
    write("three.jsonl", texts[:3])
    write("nothing.jsonl", [])
    write("short.jsonl", [f"{text[:20]} {number}" for number, text in enumerate(texts)])
    write("ligatures.jsonl", [f"The ﬁrst ﬂoor. {text[:200]}" for text in texts])
    write("greek.jsonl", [f"{text} {GREEK} {number}" for number, text in enumerate(texts)])
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_prefix=str(folder / "english"), vocab_size=500, hard_vocab_limit=False,
        byte_fallback=True, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2,
    )  # fmt: skip
    return folder


@pytest.fixture
def run(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    monkeypatch.chdir(shelf)
    monkeypatch.setattr(data, "SECONDS", 0.0)
    files = {"train": "train.jsonl", "validation": "validation.jsonl"}
    data_config = DataConfig("demo_span_corruption", {"inputs": 64}, 8, vocabulary="byte", data_files=files)
    return RunConfig(tiny.model(vocab_size=1_024), data_config, str(shelf / "run"), train_steps=1_000)


def section_of(run: RunConfig, chips: Any = None) -> Section:
    task = resolve_task(run.data)
    return data.data_of_run(run, task, derive_lengths(task, run.data.task_feature_lengths), chips)


def the_line(section: Section, says: str) -> Line:
    lines = [line for line in section.lines if re.search(says, line.text)]
    assert len(lines) == 1, (says, [line.text for line in section.lines])
    return lines[0]


def with_data(run: RunConfig, **changes: Any) -> RunConfig:
    return dataclasses.replace(run, data=dataclasses.replace(run.data, **changes))


def test_the_figures_of_a_sound_corpus_are_those_of_its_files(run: RunConfig, shelf: Path) -> None:
    texts = [json.loads(line)["text"].encode() for line in (shelf / "train.jsonl").read_text().splitlines()]
    sizes = sorted(map(len, texts))  # a byte is a token
    total = sum(map(len, texts))
    section = section_of(run, CHIPS)
    assert {line.level for line in section.lines} == {"ok"}, section.lines
    figures = section.data
    assert figures["columns"] == ["text"] and "Column text; a sample of 80 documents" in section.lines[1].text
    middle = (sizes[39] + sizes[40]) / 2
    mean = total / 80
    spread = f"Bytes per document: median {middle:,.0f}, mean {mean:,.0f}, longest {sizes[-1]:,}; tokens "
    assert the_line(section, "^Bytes per document").text.startswith(spread)
    assert figures["bytes_per_document"] == figures["tokens_per_document"] == pytest.approx(mean)
    assert figures["corpus_tokens"] == {"demo_span_corruption": pytest.approx(total)}
    size = f"The corpus has about {rows.in_words(total)} tokens (80 documents)."
    assert the_line(section, "^The corpus has").text == size
    assert the_line(section, "^Validation split").text == "Validation split 'validation': 20 documents."
    padding = r"^Padding in the rows that are trained on: 0.0% of the inputs, \d.\d% of the targets\.$"
    the_line(section, padding)
    in_all = figures["tokens_per_row"] * 8 * 1_000
    assert figures["tokens_in_all"] == pytest.approx(in_all) and 64 < figures["tokens_per_row"] <= 64 + 20
    of_text = figures["text_share"] * in_all  # without sentinels
    assert of_text == pytest.approx((raw_and_targets(64)[0] + 2) * 8 * 1_000)  # two ends of sequence
    epochs = f"{rows.in_words(in_all)} in 1,000 steps: about {of_text / total:,.2f} epochs over the corpus."
    said = the_line(section, "real tokens a step").text
    assert said.startswith(f"{in_all / 1_000:,.0f} real tokens a step, ") and said.endswith(epochs)
    per_host = rows.MFU * 275e12 * 4
    assert (
        0 < figures["tokens_wanted_per_host"] <= min(per_host, 8 / rows.LEAST_STEP_SECONDS * figures["tokens_per_row"])
    )
    the_line(section, r"^Reading: .*; 1 host of v4-8 wants \d.\d\d million each at 40% of the peak \(an assumption\)")
    the_line(section, "^A resumed run continues at the very row where it stopped.$")


TRAIN = "DataConfig.validation_split = 'train'"
EMPTY = "The validation split 'validation' is empty: nothing is evaluated."
CASES: dict[str, tuple[Mapping[str, Any], Any, Mapping[str, Any], tuple[str, str, str]]] = {
    # name: (fields of the data, chips, constants of the module, (level, what the line says, what fixes it))
    "no_position": ({"mixture_or_task_name": "preflight_function", "data_files": None}, None, {},
        ("warning", "^preflight_function: a resumed run reads its data again from the beginning",
         "DataConfig.data_files = …")),
    "no_such_split": ({"mixture_or_task_name": "preflight_function", "data_files": None}, None, {},
        ("warning", r"^The validation split 'validation' is not there \(train, test\)\.$", TRAIN)),
    "empty_validation_file": ({"data_files": {"train": "train.jsonl", "validation": "nothing.jsonl"}}, None, {},
        ("warning", EMPTY, "add files to the split")),
    "nothing_carved_out": ({"data_files": "three.jsonl", "num_data_shards": 1}, None, {},
        ("warning", EMPTY, "DataConfig.validation_percent = 5.0")),
    "size_by_its_sample": ({}, None, {"COUNTED_BYTES": 0},
        ("ok", r"^The corpus has about \d+,\d00 tokens \(\d+,\d00 bytes, by its sample\)\.$", "")),
    "size_not_known": ({"data_files": {"train": "train.jsonl.gz", "validation": "validation.jsonl"}}, None,
        {"COUNTED_BYTES": 0}, ("ok", "^The size of the corpus is not known: its files are compressed", "")),
    "padding": ({"mixture_or_task_name": "preflight_pairs", "data_files": "short.jsonl", "validation_percent": 20.0,
         "task_feature_lengths": {"inputs": 64, "targets": 64}}, None, {},
        ("warning", r"^Padding in the rows.*: 8\d.\d% of the inputs, \d\d.\d% of the targets; \d\d% of a step's FLOPs",
         "DataConfig.pack = True")),
    "padding_that_packing_leaves": ({"mixture_or_task_name": "preflight_pairs", "data_files": "short.jsonl",
         "validation_percent": 20.0, "task_feature_lengths": {"inputs": 12, "targets": 36}}, None, {},
        ("ok", r"\d\d% of a step's FLOPs, and \d\d% if rows are packed: two examples seldom fit in one\.$", "")),
    "more_than_a_host_can_read": ({}, {"peak_flops": 1e24}, {"LEAST_STEP_SECONDS": 1e-9},
        ("warning", "v4-8 wants .* million each at 40% of the peak",
         "DataConfig.num_reader_processes = 16")),
    "more_than_a_process_can_read": ({}, {"peak_flops": 1e24}, {"LEAST_STEP_SECONDS": 1e-9, "CORES_OF_HOST": 1e12},
        ("ok", "More than one process reads faster: DataConfig.num_reader_processes = 16.$", "")),
    "chips_without_a_peak": ({}, {"peak_flops": 0.0}, {}, ("ok", r"^Reading: .* from one data shard\.$", "")),
    "bytes_for_letters": ({"vocabulary": "english.model", "data_files": "greek.jsonl", "validation_percent": 20.0},
        None, {}, ("warning", r"^\d+.\d% of the tokens are single bytes of letters without a piece \(.* U\+03",
         "DataConfig.vocabulary = 'vocabulary1.model'\nDataConfig.new_vocabulary_size = ")),
    "units_of_two_hosts": ({}, {"hosts": 2}, {},
        ("ok", r"^demo_span_corruption: \d units? in 1 file for 8 data shards on 2 hosts\.$", "")),
    "few_units_of_a_large_corpus": ({}, {"hosts": 2}, {"LARGE": 0},
        ("warning", "on 2 hosts: each shard reads all units, and takes only its own documents.$",
         "split the text into more files")),
    "as_many_units_as_shards": ({"num_data_shards": 1}, None, {"LARGE": 0},
        ("ok", r"^demo_span_corruption: \d units? in 1 file for 1 data shard on 1 host\.$", "")),
    "documents_that_come_back_otherwise": (
        {"vocabulary": "english.model", "data_files": "ligatures.jsonl", "validation_percent": 20.0}, None, {},
        ("ok", r"^(\d+) of \1 documents come back from the vocabulary with other letters: 'The ﬁrst.*' as 'The first",
         "")),
    "many_epochs": ({}, None, {"MOST_EPOCHS": 1},
        ("warning", r"about \d\.\d\d epochs over the corpus; beyond 1 a model learns its text by heart",
         "RunConfig.train_steps = ")),
    "padding_by_the_lengths": ({"task_feature_lengths": {"inputs": 64, "targets": 64}}, None, {},
        ("ok", r"^Padding in the rows.* of the targets; \d\d% of a step's FLOPs, by the lengths: see Objective", "")),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.slow
def test_a_line_is_there_where_the_data_calls_for_it(
    name: str, run: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, chips, constants, (level, says, fix) = CASES[name]
    for constant, value in constants.items():
        (module,) = [owner for owner in (splits, data, rows) if hasattr(owner, constant)]
        monkeypatch.setattr(module, constant, value)
    wanted = None if chips is None else types.SimpleNamespace(**{**vars(CHIPS), **chips})
    if "batch_size" in changes:
        changes = {**changes, "num_data_shards": 8}
    line = the_line(section_of(with_data(run, **changes), wanted), says)
    fix_text = line.fixes({}).replace("config.", "")
    assert line.level == level and fix_text.startswith(fix) and bool(fix_text) == bool(fix)


@pytest.mark.slow
def test_what_fixes_shards_and_padding_does(run: RunConfig) -> None:
    three = types.SimpleNamespace(**{**vars(CHIPS), "hosts": 3})
    for fixed in ({"batch_size": 24, "num_data_shards": 12}, {"batch_size": 9, "num_data_shards": 9}):
        assert "error" not in {line.level for line in section_of(with_data(run, **fixed), three).lines}
    lengths = {"inputs": 64, "targets": 64}
    padded = with_data(
        run, mixture_or_task_name="preflight_pairs", data_files="short.jsonl", task_feature_lengths=lengths
    )
    shares = [section_of(with_data(padded, pack=pack)).data["padding_flops_share_of_rows"] for pack in (False, True)]
    assert shares[0] > 0.5 > shares[1]
    line = the_line(section_of(with_data(padded, pack=True, task_feature_lengths=lengths)), "^Padding in the rows")
    assert line.fix in (None, ("DataConfig.task_feature_lengths", Open("shorter ones")))


def test_one_prefix_of_a_whole_mixture_is_an_error_unless_the_run_has_begun_so(run: RunConfig, tmp_path: Path) -> None:
    task_modules.import_all(["tasks.en_ms"])
    lengths = {"inputs": 64, "targets": 64}
    both = with_data(
        dataclasses.replace(run, model_dir=str(tmp_path)),
        mixture_or_task_name="en_ms_both",
        data_files="*.tsv",
        vocabulary="byte",
        task_feature_lengths=lengths,
        prefix="translate: ",
    )
    line = the_line(section_of(both), "is one text for all inputs, and the tasks of mixture en_ms_both")
    assert line.level == "error" and line.fix == ("DataConfig.prefix", None)
    (tmp_path / "config.json").write_text("{}")
    assert not [line for line in section_of(both).lines if "is one text for all inputs" in line.text]


def test_a_corpus_of_ids_is_no_error_as_a_start_trains_it(run: RunConfig) -> None:
    rows = [json.dumps({"tokens": list(range(3 + number, 300))}) for number in range(40)]
    Path("ids.jsonl").write_text("\n".join(rows))
    section = section_of(with_data(run, data_files="ids.jsonl", column="tokens", vocabulary="byte"))
    assert not [line for line in section.lines if line.level == "error"]
    the_line(section, "The corpus holds ids, tokenized beforehand")


def test_a_task_that_divides_long_texts_cuts_none(run: RunConfig) -> None:
    lengths = {"inputs": 40, "targets": 40}
    divided = with_data(run, mixture_or_task_name="fr_capitals_bytes", vocabulary="byte", task_feature_lengths=lengths)
    section = section_of(divided)
    assert not [line for line in section.lines if line.code == "cut-examples"]


def test_a_vocabulary_that_the_first_start_trains_is_known_by_a_sample(run: RunConfig) -> None:
    later = with_data(run, vocabulary="later.model", new_vocabulary_size=900)
    state = sections.resolved(later)
    assert state.is_learned and state.of_vocabulary is not None and state.of_vocabulary.level == "ok"
    expected = sections._data(later, state, None).data
    NewVocabulary("later.model").of_run(later.data, 900)
    for name, value in section_of(later).data.items():
        if name in ("epochs", "corpus_tokens", "tokens_per_step", "text_share", "tokens_per_byte"):
            assert expected[name] == pytest.approx(value, rel=0.01), name


def test_a_vocabulary_of_more_ids_than_rows_is_refused_before_it_is_trained(run: RunConfig) -> None:
    later = with_data(run, vocabulary="larger.model", new_vocabulary_size=run.model.vocab_size + 1)
    line = sections.resolved(later).of_vocabulary
    assert line is not None and line.level == "error" and "which are the rows for these ids" in line.text
    with pytest.raises(ConfigError, match="which are the rows for these ids"):
        task_of_run(later)
    assert not Path("larger.model").exists()


def test_a_shorter_run_fixes_many_epochs(run: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MOST_EPOCHS", 1)
    line = the_line(section_of(run), "epochs over the corpus")
    (field, steps), *periods = line.fix  # periods that the shorter run would not reach
    assert field == "RunConfig.train_steps"
    assert dict(periods) == {
        f"{config_name}.every_steps": steps // 10 for config_name in ("CheckpointConfig", "EvaluationConfig")
    }
    assert 1 < steps < run.train_steps
    for train_steps, level in ((steps, "ok"), (steps + 2, "warning")):
        shorter = dataclasses.replace(run, train_steps=train_steps)
        assert the_line(section_of(shorter), "epochs over the corpus").level == level


def test_an_empty_validation_split_is_an_error_where_the_best_step_is_kept(run: RunConfig) -> None:
    empty = with_data(run, data_files={"train": "train.jsonl", "validation": "nothing.jsonl"})
    best = dataclasses.replace(empty, checkpoint=CheckpointConfig(best_metric="loss"))
    assert the_line(section_of(best), EMPTY).level == "error"


def test_a_run_that_ends_with_its_epochs_says_so(run: RunConfig) -> None:
    ends = dataclasses.replace(with_data(run, num_epochs=3), train_steps=None)
    assert the_line(section_of(ends), "real tokens a step").text.endswith("; the run ends after 3 epochs.")


def test_normalization_is_said_of_each_kind_of_vocabulary(run: RunConfig, shelf: Path) -> None:
    import tokenizers

    hub = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<pad>": 0, "</s>": 1, "<unk>": 2, "a": 3}, "<unk>"))
    hub.normalizer = tokenizers.normalizers.NFKC()
    hub.add_special_tokens(["<pad>", "</s>", "<unk>", *(f"<extra_id_{number}>" for number in reversed(range(20)))])
    hub.save(str(shelf / "tokenizer.json"))
    rules = "rules nmt_nfkc, spaces in a row become one, other letters are spelled in bytes."
    for name, says in (
        ("english.model", rules),
        ("tokenizer.json", "NFKC."),
        ("byte", "none; every text can be spelled."),
    ):
        assert load_vocabulary(name).vocab_size > 0
        named = with_data(run, vocabulary=name)
        section = sections._vocabulary(named, sections.resolved(named))
        line = the_line(section, "^Normalization")
        assert (line.level, line.text) == ("ok", f"Normalization: {says}"), section.lines


def test_values_in_place_of_an_included_file_s_are_named(run: RunConfig, shelf: Path) -> None:
    (shelf / "below.gin").write_text("TRAIN_STEPS = 600\nBATCH_SIZE = 32\nSEED = 3\n")
    (shelf / "own.gin").write_text("include 'below.gin'\nTRAIN_STEPS = 20\nSEED = 3\n")
    section = configuration.resolved(run, {}, read(["own.gin"], ["BATCH_SIZE=8"]))
    line = the_line(section, "^Set in place of the included files' values:\n")
    steps, rows = line.text.splitlines()[1:]
    assert line.level == "ok"
    assert re.fullmatch(r"TRAIN_STEPS = 20, in place of 600 \(.*below.gin line 1\)", steps), steps
    assert re.fullmatch(r"BATCH_SIZE = 8, in place of 32 \(.*below.gin line 2\)", rows), rows
    alone = configuration.resolved(run, {}, read(["below.gin"]))
    assert not any("in place of" in line.text for line in alone.lines)


def test_a_file_whose_name_could_be_a_pattern_is_found(run: RunConfig, tmp_path: Path) -> None:
    """The run read it, and preflight said that it matches no file and that it is the nearest one."""
    path = tmp_path / "part [1].jsonl"
    path.write_bytes(Path("train.jsonl").read_bytes())
    files = {"train": str(path), "validation": "validation.jsonl"}
    section = section_of(with_data(run, data_files=files))
    assert {line.level for line in section.lines} == {"ok"}, section.lines


@pytest.mark.parametrize("count", [1, 2])
def test_validation_files_that_are_trained_on_are_said(
    run: RunConfig, count: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By a pattern of the training files that matches the validation files too; at the start of a run as well."""
    for name in ("train.jsonl", *(f"val-{number}.jsonl" for number in range(count))):
        source = Path("train.jsonl" if name == "train.jsonl" else "validation.jsonl")
        (tmp_path / name).write_bytes(source.read_bytes())
    files = {"train": f"{tmp_path}/*.jsonl", "validation": f"{tmp_path}/val-*.jsonl"}
    first = f"{tmp_path}/val-0.jsonl"
    named = f"{first} is" if count == 1 else f"2 files, such as {first}, are"
    said = f"{named} in the validation split and in the training split: the run is validated on text that it trains on"
    wrong = with_data(run, data_files=files)
    line = the_line(section_of(wrong), "in the training split")
    assert (line.level, line.code, line.text) == ("warning", "trained-validation", f"{said}.")
    task_of_run(wrong)
    warnings = [record.getMessage() for record in caplog.records if "in the training split" in record.getMessage()]
    assert warnings == [f"{said}; move the validation files to where no pattern of the training files matches them."]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"data_files": "train.jsonl"},  # carved out of the training text, document by document
        {"data_files": {"train": "train.jsonl"}, "validation_split": "train"},
        {"data_files": {"train": "train.jsonl", "validation": "validation.jsonl"}, "validation_split": "train"},
    ],
)
def test_other_validation_text_is_not_said_to_be_trained_on(run: RunConfig, changes: dict[str, Any]) -> None:
    section = section_of(with_data(run, **changes))
    assert "trained-validation" not in {line.code for line in section.lines}


@pytest.mark.parametrize("count", [2, 12])
def test_many_equal_files_are_one_warning_whose_fix_leaves_one(run: RunConfig, tmp_path: Path, count: int) -> None:
    for number in range(count):
        (tmp_path / f"part {number:02}.jsonl").write_bytes(Path("train.jsonl").read_bytes())
    files = {"train": str(tmp_path / "part*.jsonl"), "validation": "validation.jsonl"}
    line = the_line(section_of(with_data(run, data_files=files)), "^Two files are equal|files are copies of others")
    assert line.code == "equal-files" and (f"{count - 1} files are copies" in line.text) == (count > 2)
    subprocess.run(["bash", "-c", line.fixes({})], check=True)
    assert [path.name for path in sorted(tmp_path.glob("*.jsonl"))] == ["part 00.jsonl"]


@pytest.mark.parametrize("count", [2, 12])
def test_a_copy_is_moved_to_where_the_pattern_reads_nothing(run: RunConfig, tmp_path: Path, count: int) -> None:
    """A pattern of all files of a folder matched the copy under its new name too."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number in range(count):
        (folder / f"part {number:02}.jsonl").write_bytes(Path("train.jsonl").read_bytes())
    files = {"train": str(folder / "*"), "validation": "validation.jsonl"}
    line = the_line(section_of(with_data(run, data_files=files)), "^Two files are equal|files are copies of others")
    subprocess.run(["bash", "-c", line.fixes({})], check=True)
    assert [path.name for path in sorted(folder.iterdir())] == ["part 00.jsonl"]
    assert len(list((tmp_path / "corpus.copies").iterdir())) == count - 1


def test_a_copy_that_is_named_is_left_out_by_name(run: RunConfig, tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("one.jsonl", "two.jsonl")]
    for path in paths:
        Path(path).write_bytes(Path("train.jsonl").read_bytes())
    line = the_line(section_of(with_data(run, data_files=tuple(paths))), "^Two files are equal")
    assert "mv " not in line.fixes({}) and f"the files without {paths[1]}" in line.fixes({})


def test_numbers_of_a_text_that_another_fix_changes_are_counted_again() -> None:
    epochs = Line("warning", "100 epochs.", [("RunConfig.train_steps", 205)], "too-many-epochs")
    rows = Line("warning", "Rows without a piece.", ("ModelConfig.vocab_size", 384), "unused-rows")
    cleaned = Line("warning", "Files.", ["move them", ("DataConfig.data_files", "clean/*")], "files")
    alone = after_changes(Section("Data", [epochs, rows]), [])
    assert [line.fix for line in alone.lines] == [epochs.fix, rows.fix]
    (changed, _, kept) = after_changes(Section("Data", [epochs, cleaned, rows]), []).lines
    assert isinstance(changed.fix, tuple) and isinstance(changed.fix[1], Open) and kept.fix == rows.fix
    other = Section("Data", [Line("warning", "x", ("DataConfig.vocabulary", "y.model"), "vocabulary-folds")])
    (again,) = after_changes(Section("Vocabulary", [rows]), [other]).lines
    assert isinstance(again.fix, tuple) and isinstance(again.fix[1], Open)


def test_letters_that_are_lost_are_not_called_folded(run: RunConfig, shelf: Path, tmp_path: Path) -> None:
    """A vocabulary without accents loses their letters as unknown ones; one that folds them keeps these."""
    texts = [f"Ștefan își găsește mașina în oraș și țipă, apoi râde {number}." for number in range(60)]
    (tmp_path / "ro.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    plain = [unicodedata.normalize("NFD", text).encode("ascii", "ignore").decode() for text in texts]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(plain), model_prefix=str(tmp_path / "plain"), vocab_size=120, hard_vocab_limit=False,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2,
    )  # fmt: skip
    changed = with_data(
        run, data_files=str(tmp_path / "ro.jsonl"), vocabulary=str(tmp_path / "plain.model"), extra_ids=100
    )
    codes = [line.code for line in section_of(changed).lines if line.level != "ok"]
    assert "vocabulary-folds" not in codes and codes
