"""The report's page: what is read, thinned, said and left out, and how large the page is."""

import base64
import dataclasses
import html.parser
import itertools
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from limba.config import saved_config
from limba.evaluation.downsampling import keep_extremes
from limba.evaluation.history import History
from limba.evaluation.summary import outcome, summary
from limba.storage.files import resolved
from limba.tools.pages.page import charts, events, headline, samples, tables
from limba.tools.pages.page.page import MARK, MOST_BYTES, POINTS, content_of, page_of
from limba.tools.pages.page.runs import Run
from limba.tools.pages.serving import as_json
from limba.training.metrics.records import read_metrics
from tests.evaluation import report_runs
from tests.evaluation.report_runs import append, opened, recorded, rich, train_record, validation_record


class Loaded(html.parser.HTMLParser):
    """Collects what a browser would load with a page, and counts its scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses = list[str]()
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        addresses = [str(value) for name, value in attrs if name in ("src", "href", "srcset", "action")]
        self.addresses += [address for address in addresses if not address.startswith("#")]  # not inside this page


def numbers(packed: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(packed), "<f4")


def test_thinned_lines_keep_their_extremes() -> None:
    values = np.random.default_rng(0).normal(size=1_000_000)
    values[123_456] = 50.0
    values[765_432] = -50.0
    values[500_000] = np.nan
    places = keep_extremes(values, 600)
    assert len(places) <= 600 and places[0] == 0 and places[-1] == len(values) - 1
    assert {123_456, 765_432} <= set(places.tolist()) and (np.diff(places) > 0).all()
    # Every stretch between two kept points lies between the extremes that are kept beside it.
    edges = np.linspace(1, len(values) - 1, 300).astype(int)
    for begin, end in itertools.pairwise(edges):
        there = places[(places >= begin) & (places < end)]
        assert np.nanmax(values[begin:end]) == np.nanmax(values[there])
        assert np.nanmin(values[begin:end]) == np.nanmin(values[there])
    assert numbers(charts.packed(np.asarray([1.5, np.inf, 1e300]))).tolist()[0] == 1.5
    assert np.isnan(numbers(charts.packed(np.asarray([1.5, np.inf, 1e300])))[1:]).all()


def test_the_history_is_what_read_metrics_reads(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    (read,) = opened(run)
    for kind in ("train", "validation"):
        records = [record for record in read_metrics(str(run)) if record["kind"] == kind]
        table = read.history.tables[kind]
        assert table.steps.tolist() == [record["step"] for record in records] and len(records) > 10
        for name in set(records[0]) - {"kind", "step", "time"}:
            assert table[name].tolist() == [record[name] for record in records], name


def test_a_growing_file_is_read_on_and_a_resumed_run_replaces_what_it_repeats(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    (read,) = opened(run)
    before = len(read.train)
    assert not read.update()
    append(run, train_record(305))
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(json.dumps(train_record(310)).encode()[:100])  # it is being written
    assert read.update() and len(read.train) == before + 1 and not read.history.num_damaged
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(json.dumps(train_record(310)).encode()[100:] + b"\n")
    assert read.update() and read.train.steps[-1] == 310
    # Killed while it wrote a line; started again from step 200.
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'{"kind": "train", "st\n')
    append(run, {"kind": "start", "step": 200}, train_record(201), train_record(205))
    assert read.update() and read.train.steps.tolist()[-3:] == [200, 201, 205]
    assert read.history.tables["validation"].steps[-1] == 200
    assert read.history.num_damaged == 1 and "1 line of metrics.jsonl" in read.problems[0]
    assert [event.kind for event in events.events_of(read)].count(events.RESTART) == 1
    # The guard has returned to step 100; then another file is put in its place.
    append(run, {"kind": "event", "step": 206, "action": "rewind", "reason": "a spike", "returned_to": 100})
    assert read.update() and read.train.steps[-1] == 100
    os.truncate(run / "metrics.jsonl", 0)
    append(run, train_record(1))
    assert read.update() and read.train.steps.tolist() == [1]


@pytest.mark.parametrize(
    "line",
    [b"{broken", b"[1]", b"null", b"\xff\xfe", b'{"kind": "train"}', b'{"kind": "train", "step": "one"}',
     b'{"kind": "train", "step": -1}', b'{"kind": "train", "step": 1, "loss": 1' + b"0" * 400 + b"}", b"[" * 100_000],
)  # fmt: skip
def test_a_damaged_line_is_counted_and_passed_over(line: bytes, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(line + b"\n\n" + json.dumps(train_record(2)).encode() + b"\n")
    history = History(resolved(str(tmp_path)))
    assert history.update() and history.tables["train"].steps.tolist() == [2]
    assert (history.num_damaged, history.first_damaged) == (1, 1)


@pytest.mark.slow
def test_the_page_has_every_section_that_the_run_has_recorded(tmp_path: Path) -> None:
    text = page_of(opened(rich(tmp_path)))
    for title in ("Loss", "Token accuracy", "Events", "Learning rate", "Gradient norm", "Throughput", "Epochs of each",
                  "Bits per byte by character set", "Tokens read", "Padding", "Tokens in a row of inputs", "chrf",
                  "Samples by step", "Configuration", "Environment"):  # fmt: skip
        assert f">{title}" in text, title
    assert MARK in text and text.count("</script>") == 3 and report_runs.HOSTILE not in text
    loaded = Loaded()
    loaded.feed(text)
    assert loaded.addresses == [] and loaded.scripts == 3
    (old,) = opened(recorded(tmp_path))
    kept = [note for note in old.history.notes if "environment" not in note]
    old.history.notes[:] = kept  # the record of the start is damaged
    text = page_of([old])
    assert ">Samples by step" not in text and ">Padding" not in text and "EvaluationConfig.prompts" in text


def test_results_are_shown_with_their_numbers(tmp_path: Path) -> None:
    run = rich(tmp_path)
    (run / "results").mkdir()
    (run / "results" / "ro.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"/>')
    (run / "results" / "ro.txt").write_text("task  figure\nronec  <F1>\n")
    text = page_of(opened(run))
    assert "<h3>ro</h3>" in text and "<pre>task  figure\nronec  &lt;F1&gt;\n</pre>" in text
    assert 'src="data:image/svg+xml;base64,PHN2ZyB4' in text
    loaded = Loaded()
    loaded.feed(text)
    assert [address.partition(",")[0] for address in loaded.addresses] == ["data:image/svg+xml;base64"]


def test_axes_are_steps_tokens_hours_and_flops(tmp_path: Path) -> None:
    (run,) = opened(recorded(tmp_path))
    axes = run.axes()
    steps = run.train.steps
    speed = run.train["tokens_per_second"]
    seconds = run.train["seconds_per_step"]
    assert axes["tokens"][1] == pytest.approx(speed[0] * seconds[0] * steps[0] + speed[1] * seconds[1] * (steps[1] - 1))
    assert axes["hours"][-1] * 3600 == pytest.approx(float(np.diff(steps, prepend=0) @ seconds))
    assert axes["flop"][-1] == run.history.start["flops_per_step"] * 300
    # All places of the rows hold a token: 128 inputs and 29 targets, in 32 rows a step.
    assert axes["tokens"][-1] == pytest.approx(300 * 32 * 157, rel=1e-3)
    padding = run.padding()
    assert padding is not None and padding.max() < 1e-3
    validation = run.axes("validation")
    assert validation["tokens"][-1] == pytest.approx(axes["tokens"][-1])
    (chart,) = [drawn for drawn in charts.charts_of([run], 100) if drawn.name == "loss"]
    (training, _) = charts.data_of(chart, 1e12)
    (size, unit) = charts.flop_unit([run])
    assert numbers(training["columns"]["y"])[-1] == np.float32(run.train["loss"][-1]) and unit == "TFLOP"
    assert training["flop"] * 300 == pytest.approx(axes["flop"][-1] / size, rel=1e-6)
    last = run.train["loss"][-1]
    validated = run.history.tables["validation"]["loss"][-1]
    assert chart.sentence == f"training: {charts.short(last)}, validation: {charts.short(validated)} at step 300."
    parts = {drawn.name: drawn.sentence for drawn in charts.charts_of([run], 100)}
    assert parts["gradient_norm"].count(" at step ") == 1 and parts["tokens"].endswith("1.507 M at step 300.")


def headline_of(run: Path) -> str:
    return " ".join(headline.sentences(*opened(run)))


def test_the_headline_says_how_good_a_run_is_and_what_is_left(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    assert headline_of(run) == (
        "Best validation loss: 4.39 at step 300. The validation loss still falls: −3.0% from one quarter of the steps"
        " to the last. 6 min 34 s in steps on 1 x cpu."
    )
    assert "<p><strong>DONE</strong> all 300 steps are trained.</p>" in headline.headline(opened(run))
    start, *records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][:-2]
    start["environment"]["devices"] = "8 x TPU v4"
    records = [record for record in records if record["step"] <= 150]
    for record in records:
        record |= (
            {"seconds_per_step": 36.0} if record["kind"] == "train" else {"loss": 5.0, "bits_per_byte": float("nan")}
        )
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in (start, *records)))
    # 150 steps of 36 seconds are an hour and a half, on eight chips at 3.22 dollars an hour; as many are left.
    said = headline_of(run)
    assert "no longer falls: +0.0%" in said and "1 h 30 min left to step 300." in said
    assert f"1 h 30 min in steps on 8 x TPU v4: ${1.5 * 8 * 3.22:.2f} by the list price" in said
    for record in records:
        record |= {"loss": 4 + record["step"] / 100}
    records = [record for record in records if record["kind"] == "train"]  # no validation
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in (start, *records)))
    assert headline_of(run).startswith("Best training loss: 4.01 at step 1. The training loss rises: +")
    append(run, *(train_record(step, loss=float("nan")) for step in range(1, 301)))
    (read,) = opened(run)
    read.train.forget_from(0)
    append(run, train_record(1, loss=float("nan")))
    read.update()
    assert next(headline.sentences(read)) == "No finite training loss yet."
    hostile = opened(recorded(tmp_path, 1, "<b>"), recorded(tmp_path, 0, "other"))
    assert "<b>&lt;b&gt;</b>: <strong>Best" in headline.headline(hostile)


def started(step: int, devices: str) -> dict[str, Any]:
    return {"kind": "start", "step": step, "flops_per_step": 1e12, "environment": {"devices": devices}}


def test_a_branch_counts_the_steps_that_it_took_itself(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    (run / "metrics.jsonl").write_text("")
    lines = [train_record(step, tokens_per_second=1e6) for step in range(100_050, 101_001, 50)]
    append(run, started(100_000, "8 x TPU v4"), *lines)
    # Killed, and started again: its first step stays the branch's.
    append(run, started(100_500, "8 x TPU v4"), *lines[10:])
    (read,) = opened(run)
    axes = read.axes()
    assert axes["hours"][-1] * 3600 == pytest.approx(250) and axes["tokens"][-1] == pytest.approx(250e6)
    assert axes["flop"][-1] == 1e15 and read.at([100_000.0, 100_025.0])["hours"].tolist() == [0.0, 6.25 / 3600]
    assert f"4 min 10 s in steps on 8 x TPU v4: ${250 / 3600 * 8 * 3.22:.2f} by" in headline_of(run)
    assert outcome(read.config).endswith("in 1,000 steps, 4 min 10 s")
    assert "time in steps       4 min 10 s" in summary(read.config, read.history)
    (chart,) = [drawn for drawn in charts.charts_of([read], 100) if drawn.name == "loss"]
    (line,) = charts.data_of(chart, 1.0)
    assert (line["first"], line["flop"]) == (100_000, 1e12)
    # The record of the start is damaged: the steps before the first line are counted, as nothing says otherwise.
    read.history.notes[:] = read.history.notes[1:]
    assert read.history.first_step == 0


@pytest.mark.parametrize("steps", [(), (45, 50)])
def test_a_branch_has_the_events_before_its_first_step(steps: tuple[int, ...], tmp_path: Path) -> None:
    # A branch has its run's ledger; until its first line there are events of other steps alone.
    run = recorded(tmp_path)
    (run / "metrics.jsonl").write_text("")
    append(run, started(40, "8 x TPU v4"), *(train_record(step) for step in steps))
    (run / "skipped_batches.jsonl").write_text(json.dumps({"batch": 30, "reason": "x", "rows": []}) + "\n")
    (read,) = opened(run)
    data = content_of([read]).data
    json.dumps(data, allow_nan=False)  # no browser reads NaN
    (line,) = data["charts"]["events"]
    assert numbers(line["columns"]["step"]).tolist() == [30, 40]
    assert (line["first"], line["flop"] * charts.flop_unit([read])[0]) == (40, 1e12)
    assert read.at([30, 40, 41])["flop"].tolist() == [0.0, 0.0, 1e12]


def test_hours_are_priced_by_the_devices_of_their_start(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    (run / "metrics.jsonl").write_text("")
    append(run, started(0, "1 x TPU v4"), *(train_record(step, seconds_per_step=36) for step in range(100, 1_001, 100)))
    append(
        run, started(1_000, "2 x TPU v4"), train_record(1_100, seconds_per_step=900), {"kind": "saved", "step": 1_100}
    )
    append(run, started(1_000, "8 x TPU v4"), *(train_record(step, seconds_per_step=9) for step in (1_100, 1_200)))
    # 10 hours on one chip and half an hour on eight, at 3.22 dollars; what ran on two chips is undone.
    assert (
        f"10 h 0 min in steps on 1 x TPU v4 and 30 min 0 s in steps on 8 x TPU v4: ${(10 + 0.5 * 8) * 3.22:.2f} by"
    ) in headline_of(run)
    append(run, started(1_200, "4 x unknown"), train_record(1_300, seconds_per_step=36))
    assert headline_of(run).endswith("on 8 x TPU v4 and 1 h 0 min in steps on 4 x unknown.")


def test_each_run_has_samples_of_its_own(tmp_path: Path) -> None:
    runs = [recorded(tmp_path, 0), recorded(tmp_path, 1)]
    for name, run in zip("ab", runs, strict=True):
        texts = {f"{name} {number}": ["x"] for number in range(2 * samples.MOST_PROMPTS)}
        append(run, {"kind": "samples", "step": 300, "texts": texts})
    shown = samples.samples_of(opened(*runs))
    assert [[prompt["runs"][0]["run"] for prompt in shown].count(number) for number in (0, 1)] == [
        samples.MOST_PROMPTS
    ] * 2


def test_runs_stand_side_by_side(tmp_path: Path) -> None:
    runs = opened(recorded(tmp_path, 0), recorded(tmp_path, 1))
    by_name = {chart.name: chart for chart in charts.charts_of(runs, 100)}
    assert [line.label for line in by_name["loss"].lines] == [
        "seed0: training", "seed0: validation", "seed1: training", "seed1: validation"
    ]  # fmt: skip
    assert [line.style for line in by_name["loss"].lines] == [0, 0, 1, 1]
    assert [line.label for line in by_name["bits_per_byte-latin"].lines] == ["seed0", "seed1"]
    shown, _, folded = tables.configuration(runs).partition("<details>")
    assert "random_seed" in shown and "differs between runs" in shown and "random_bits" in folded
    (first,) = opened(tmp_path / "seed0")
    assert "random_seed" in tables.configuration([first]).partition("<details>")[2]
    changed = dataclasses.replace(first.config, random_seed=7)
    first.config = changed
    assert "random_seed" in tables.configuration([first]).partition("<details>")[0]


def test_charts_whose_labels_differ_in_signs_alone_show_their_own_numbers(tmp_path: Path) -> None:
    runs = [recorded(tmp_path, 0), recorded(tmp_path, 1)]
    names = ("ro-wiki", "ro_wiki", "ro-wiki-2", "日本語", "中文")
    for run in runs:
        append(run, train_record(310, **{f"epochs/{name}": float(i) for i, name in enumerate(names)}))
        append(run, {"kind": "text", "step": 310, **{f"{name}/bleu": float(i) for i, name in enumerate(names)}})
    for several in (opened(*runs), opened(runs[0])):
        content = content_of(several)
        assert len(content.data["charts"]) == len(content.charts)
        shown = {}
        for chart in content.charts:
            if chart.kind == "events":
                continue
            shown[chart.title] = numbers(content.data["charts"][chart.name][0]["columns"]["y"])[-1]
        assert [shown[f"{name}/bleu"] for name in names] == [0, 1, 2, 3, 4]
        if len(several) == 2:
            assert [shown[f"Epochs of each corpus: {name}"] for name in names] == [0, 1, 2, 3, 4]


def test_tasks_called_stage_are_no_stages(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    tokens = {"stage_one": 5.0, "stage_1": 7.0, "stage_40/ro": 2.0, "stage_40/stage_1": 1.0, "stage_40": 9.0}
    append(run, train_record(310, **{f"tokens/{name}": number for name, number in tokens.items()}))
    rows = tables.stages(opened(run)).partition("<tbody>")[2].split("</tr>")
    assert [re.sub("<[^>]*>", " ", row).split() for row in rows[:-1]] == [
        ["40", "ro", "2", "66.7%"], ["40", "stage_1", "1", "33.3%"],
    ]  # fmt: skip
    append(run, train_record(320, **{"tokens/stage_x/y": 1.0}))
    page_of(opened(run))


def test_events_are_in_order_and_say_what_happened(tmp_path: Path) -> None:
    (run,) = opened(rich(tmp_path))
    seen = events.events_of(run)
    assert [event.step for event in seen] == sorted(event.step for event in seen)
    assert {event.kind for event in seen} == {"start", "restart", "save", "spike", "fault", "skipped", "end"}
    assert "NonFiniteError" in tables.happened([run])
    many = [events.Event(step, "", events.SAVE, "") for step in range(10_000)] + seen
    thin = events.thinned(many, 100)
    assert len(thin) < 120 and sum(event.kind == events.FAULT for event in thin) == 1


def test_a_skipped_batch_names_its_first_document(tmp_path: Path) -> None:
    directory = rich(tmp_path)
    places = [("data/<a>.jsonl", 41_007), ("data/<a>.jsonl", 41_007), ("data/b.jsonl", 3)]
    documents = [{"source": "ro", "unit": unit, "document": row} for unit, row in places]
    ledger = directory / "skipped_batches.jsonl"
    entries = [json.loads(line) for line in ledger.read_text().splitlines()]
    for entry in entries:
        entry["rows"] = [{"shard": 0, "row": row, "loss": 9.0, "documents": documents[row:][:2]} for row in (0, 1)]
    lines = [json.dumps(entry) for entry in entries]
    ledger.write_text("\n".join([*lines, "{broken", "5", '{"batch": 7, "rows": [5]}']))
    (run,) = opened(directory)
    other, event = [happening for happening in events.events_of(run) if happening.kind == events.SKIPPED]
    assert "document" not in other.sentence
    assert event.sentence.endswith("stands out; document: ro, data/<a>.jsonl, row 41,007, and 1 more")
    assert "data/&lt;a&gt;.jsonl, row 41,007" in tables.happened([run])


def test_samples_are_cut_and_have_their_language(tmp_path: Path) -> None:
    (run,) = opened(rich(tmp_path))
    panels = {panel["given"]: panel for panel in samples.samples_of([run])}
    assert panels["The <extra_id_0> is"]["title"] == "Filled gaps"
    assert panels["The <extra_id_0> is"]["runs"][0]["at"] == [[s, [f"The [gap {s}] is"]] for s in (100, 200, 300)]
    assert panels[report_runs.HEBREW]["target"] == "hi" and panels[report_runs.JAPANESE]["lang"] == "ja"
    assert len(panels["x"]["runs"][0]["at"][0][1][0]) == samples.MOST_LETTERS
    assert [at[0] for at in samples.samples_of([run])[0]["runs"][0]["at"]] == [100, 200, 300]
    small = {panel["given"]: panel for panel in samples.samples_of([run], 2_000)}
    assert len(small["x"]["runs"][0]["at"][0][1][0]) == samples.LEAST_LETTERS


def evaluated(run: Path, name: str, prediction: str) -> Path:
    (run / "evaluations").mkdir(exist_ok=True)
    file = run / "evaluations" / f"{name}.jsonl"
    file.write_text(json.dumps({"input": "i", "target": "t", "prediction": prediction}) + "\n")
    return file


def shown_examples(run: Run) -> dict[str, list[tuple[int, str]]]:
    shown = {}
    for task, by_step in run.evaluations().items():
        shown[task] = []
        for step, examples in by_step.items():
            shown[task] += [(step, example["prediction"]) for example in examples]
    return shown


def test_examples_are_of_the_steps_that_the_run_has_recorded(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    for step in (100, 200, 300):
        evaluated(run, f"ro_en-{step}", f"at {step}")
        append(run, {"kind": "text", "step": step, "bleu": 1.0})
    for name in ("ro_en-300-test", "ro_en-300-test-2", "ro_en-200-test-300"):  # as `limba evaluate` writes them
        evaluated(run, name, "of a command")
    (read,) = opened(run)
    assert shown_examples(read) == {"ro_en": [(100, "at 100"), (200, "at 200"), (300, "at 300")]}
    # Resumed from step 100: the later files are of updates that are undone, until they are written again.
    append(run, {"kind": "start", "step": 100}, train_record(110))
    read.update()
    assert shown_examples(read) == {"ro_en": [(100, "at 100")]}
    again = evaluated(run, "ro_en-200", "at 2OO")  # of the same size
    os.utime(again, (again.stat().st_mtime + 60,) * 2)
    append(run, train_record(200), {"kind": "text", "step": 200, "bleu": 1.0})
    read.update()
    assert shown_examples(read) == {"ro_en": [(100, "at 100"), (200, "at 2OO")]}


@pytest.mark.parametrize("mixed", [(), ("wmt", "wmt-14-ende")])
def test_a_task_may_be_called_as_a_command_names_its_files(mixed: tuple[str, ...], tmp_path: Path) -> None:
    run = recorded(tmp_path)
    tasks = mixed or ("wmt-14-ende",)
    for task in tasks:
        evaluated(run, f"{task}-2", "of the run")
        evaluated(run, f"{task}-2-test-2", "of a command")
    append(run, {"kind": "text", "step": 2, **{f"{task}/bleu" if mixed else "bleu": 1.0 for task in tasks}})
    (read,) = opened(run)
    if not mixed:  # the configuration names it
        data = dataclasses.replace(read.config.data, mixture_or_task_name="wmt-14-ende")
        read.config = dataclasses.replace(read.config, data=data)
    assert shown_examples(read) == {task: [(2, "of the run")] for task in tasks}


def test_a_run_that_starts_again_has_its_new_configuration(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    (read,) = opened(run)
    config = dataclasses.replace(read.config, train_steps=600)
    (run / "config.json").write_text(saved_config.to_text(config))
    append(run, {"kind": "start", "step": 300}, train_record(310))
    assert read.update() and read.config.train_steps == 600
    assert "left to step 600" in " ".join(headline.sentences(read))


def test_half_a_surrogate_pair_is_a_question_mark(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    half = "a \ud83d"
    append(run, {"kind": "samples", "step": 300, "texts": {half: [half]}}, {"kind": "text", "step": 300, half: 1.0})
    append(run, {"kind": "end", "step": 300, "failed": True, "reason": half})
    evaluated(run, "ro_en-300", half)
    page = page_of(opened(run))
    assert page.encode().count(b"a ?") >= 4
    assert b"a ?" in as_json(content_of(opened(run)).data)[1]


def test_each_damaged_checkpoint_of_a_step_is_an_event(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    for name in ("100.broken", "100.broken-2", "200.broken-2", "200.rewound"):
        (run / "checkpoints" / name).mkdir(parents=True)
    seen = [event for event in events.events_of(*opened(run)) if event.kind == events.FAULT]
    assert [(event.step, event.sentence.rpartition(" ")[2]) for event in seen] == [
        (100, "100.broken"), (100, "100.broken-2"), (200, "200.broken-2"),
    ]  # fmt: skip


def write_long(directory: Path, steps: int, every: int) -> Path:
    run = recorded(directory, name=f"long{len(list(directory.iterdir()))}")
    (run / "metrics.jsonl").write_bytes(b"")
    append(run, *(train_record(step) for step in range(every, steps + 1, every)))
    append(run, *(validation_record(step) for step in range(1_000, steps + 1, 1_000)))
    append(run, *({"kind": "saved", "step": step} for step in range(10_000, steps + 1, 10_000)))
    texts = {f"{report_runs.JAPANESE} {number}": [report_runs.JAPANESE * 50] * 3 for number in range(8)}
    append(run, *({"kind": "samples", "step": step, "texts": texts} for step in range(10_000, steps + 1, 10_000)))
    return run


@pytest.mark.slow
def test_a_page_of_a_million_steps_is_small(tmp_path: Path) -> None:
    run = write_long(tmp_path, 1_000_000, 100)
    append(run, train_record(1_000_100, loss=99.0), train_record(1_000_200))
    began = time.process_time()
    (read,) = opened(run)
    text = page_of([read])
    assert time.process_time() - began < 10  # 2 s where nothing else runs
    assert len(read.train) == 10_002 and len(text.encode()) < MOST_BYTES
    (loss,) = [chart for chart in charts.charts_of([read], POINTS) if chart.name == "loss"]
    assert loss.lines[0].columns["y"].max() == 99.0 and len(loss.lines[0].columns["y"]) <= POINTS
    several = opened(*(write_long(tmp_path, 100_000, 100) for _ in range(8)))
    assert len(page_of(several).encode()) < MOST_BYTES


def test_the_structure_changes_only_with_what_is_drawn(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    (read,) = opened(run)
    before = content_of([read]).data
    append(run, train_record(305))
    read.update()
    wider = content_of([read]).data
    assert wider["structure"] != before["structure"], "memory of devices and MFU are new charts"
    append(run, train_record(310))
    read.update()
    assert content_of([read]).data["structure"] == wider["structure"]


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "row_lengths", "rows": {"inputs": "many"}}, {"kind": "row_lengths", "rows": [1]},
        {"kind": "samples", "texts": "one"}, {"kind": "samples", "texts": {"a": 5, "b": [None]}},
        {"kind": "start", "inputs_length": None, "flops_per_step": "9", "environment": [1], "parameters": {}},
        {"kind": "start", "flops_per_step": float("nan"), "environment": {}},
        {"kind": "end", "reason": {"a": 1}}, {"kind": "event"}, {"kind": "of a newer version", "x": {}},
        {"kind": "train", "loss": float("nan"), "accuracy": float("inf"), "epochs/<b>": -1.5, "epochs/ă|": 1},
        {"kind": "validation"}, {"kind": "text", "chrf": "high"}, {"kind": "saved", "time": 5},
    ],
)  # fmt: skip
def test_records_of_any_form_leave_a_page(record: dict[str, Any], tmp_path: Path) -> None:
    run = recorded(tmp_path)
    append(run, {"step": 301, **record})
    (run / "skipped_batches.jsonl").write_bytes(b'\xff\n5\n{"batch": 7}\n')
    (run / "skipped_units_process_0.json").write_bytes(b"\xff")
    (run / "evaluations").mkdir()
    (run / "evaluations" / "task-100.jsonl").write_bytes(b'\xff\n{"input": 1}\n[]\n')
    append(run, {"kind": "text", "step": 100, "bleu": 1.0})
    (read,) = opened(run)
    content = content_of([read])
    json.dumps(content.data, allow_nan=False)
    shown = "".join(content.data["fragments"].values())
    assert "<b>" not in shown and "an unknown number of part(s)" in shown
    for line in itertools.chain.from_iterable(content.data["charts"].values()):
        assert len({len(numbers(column)) for column in line["columns"].values()}) == 1


def test_a_run_that_has_begun_and_logged_nothing_has_a_page(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    (run / "metrics.jsonl").unlink()
    assert "compiles its step" in page_of(opened(run))


def test_the_summary_is_from_the_records(tmp_path: Path) -> None:
    (run,) = opened(rich(tmp_path))
    text = summary(run.config, run.history)
    first, *_, last = [record for record in read_metrics(str(run.directory)) if record["kind"] == "train"]
    assert f"training loss       {first['loss']:.3f} at step 1, {last['loss']:.3f} at the end" in text
    assert "samples, filling 'The <extra_id_0> is':" in text and "| chrf | 10.00 | 30.00 |" in text
    assert text == summary(run.config)
