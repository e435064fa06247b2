"""The worst that gcloud, ssh and workers do to launch/pod.sh: each trial ends with a sentence, and nothing hangs.

Where a limit must strike, the stand-in is silent for ever and the limit is seconds; all other limits are minutes.
"""

import os
import pty
import signal
import subprocess
from pathlib import Path

import pytest

from limba.tools.preflight.checks.storage import is_near
from tests.launch.laptop import (
    RUN,
    STAYS,
    TYPE,
    ZONE,
    calls,
    end_runs,
    make_pod,
    pod,
    set_world,
    start,
    started,
    watching,
    worker,
    world_of,
)
from tests.waiting import wait_until

LOGIN = """There was a problem refreshing your current auth tokens: Reauthentication failed. cannot prompt during \
non-interactive execution.
Please run:

  $ gcloud auth login

to obtain new credentials.

If you have already logged in with a different account, run:

  $ gcloud config set account ACCOUNT

to select an already authenticated account to use."""
DENIED = "HTTPError 403: me@example.org does not have storage.buckets.get access to the Google Cloud Storage bucket."


def runs(pid: str) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def nothing_hangs(laptop: Path) -> bool:
    """Waits until the calls that were silent for ever have ended, with what they had started."""
    pids = (laptop / "world" / "hung").read_text().split()
    wait_until(lambda: not any(map(runs, pids)))
    return len(pids) >= 2


def of_workers(laptop: Path, program: str = "ssh", number: int = 1) -> int:
    """Returns the number of calls of ssh or scp to a worker."""
    return sum(program in call[:4] and f"--worker={number}" in call for call in calls(laptop))


@pytest.mark.parametrize(
    ("action", "limit", "ended"),
    [
        (("setup", "my-pod"), "SETUP_SECONDS", "the files were not copied to all workers of my-pod: not all workers"),
        (RUN, "RUN_SECONDS", "nothing was started on my-pod: not all workers answer; the same command again."),
        (("status", "my-pod"), "STATUS_SECONDS", "not all of my-pod is known: not all workers answer; the same"),
        (("logs", "my-pod"), "STATUS_SECONDS", "not all logs of my-pod were shown: not all workers answer; the same"),
        (("stop", "my-pod"), "STOP_SECONDS", "not all of my-pod is known to have stopped: not all workers answer"),
    ],
)
def test_a_silent_worker_is_named_and_ended(action: tuple[str, ...], limit: str, ended: str, laptop: Path) -> None:
    make_pod(laptop, is_set_up=False)
    set_world(laptop, deeds=[[["--worker=1"], "hang", 100]])
    code, printed, errors = pod(laptop, *action, **{limit: "2"}, NOTICE_SECONDS="1")
    assert code == 75 and errors.splitlines()[-1].startswith(f"launch/pod.sh: {ended}"), errors
    assert "my-pod: no answer for 1 s from worker " in printed
    if "logs" not in action:
        assert "worker 1 FAILED: ERROR: gcloud or ssh gave no answer within 2 s" in errors
    assert nothing_hangs(laptop)


@pytest.mark.night
def test_a_silent_worker_at_the_start_stops_the_others(laptop: Path) -> None:
    make_pod(laptop)
    set_world(laptop, deeds=[[["--worker=1", "~pod_worker.sh start"], "hang", 100]])
    for _ in range(20):  # on a loaded machine worker 0, too, may take longer than the limit
        code, printed, errors = pod(laptop, *RUN, RUN_SECONDS="8")
        if "worker 0: started" in printed:
            break
        pod(laptop, "stop", "my-pod")
    assert code == 75 and "not all workers of my-pod started, so the others were stopped" in errors
    stops = [call for call in calls(laptop) if any("pod_worker.sh stop" in word for word in call)]
    assert "--worker=0" in stops[-1] and nothing_hangs(laptop)
    assert "worker 0: ended 75" in pod(laptop, "status", "my-pod")[1]


@pytest.mark.parametrize(
    ("action", "words", "limit", "what"),
    [
        (("create", "my-pod", TYPE, ZONE), ["queued-resources", "describe"], "CLOUD", "my-pod was not created"),
        (("create", "my-pod", TYPE, ZONE), ["queued-resources", "create"], "CHANGE", "my-pod was not created"),
        (RUN, ["buckets"], "CLOUD", "the bucket gs://bucket cannot be read"),
        (("stop", "my-pod"), ["tpu-vm", "describe"], "CLOUD", "my-pod does not answer"),
        (("delete", "my-pod", "--yes"), ["queued-resources", "delete"], "CHANGE", "my-pod was not deleted"),
    ],
)  # the first call of each action that has this limit
def test_a_silent_gcloud_ends_with_a_sentence(
    action: tuple[str, ...], words: list[str], limit: str, what: str, laptop: Path
) -> None:
    if action[0] != "create":
        make_pod(laptop, is_set_up=False)
    set_world(laptop, deeds=[[words, "hang", 1]])
    code, printed, errors = pod(laptop, *action, **{f"{limit}_SECONDS": "2"}, NOTICE_SECONDS="1")
    assert code == 75 and errors == (
        f"launch/pod.sh: {what}, as far as is known: ERROR: gcloud gave no answer within 2 s; "
        "bash launch/pod.sh status my-pod --zone=us-central2-b\n"
    )
    assert "my-pod: no answer for 1 s from gcloud" in printed and nothing_hangs(laptop)


def on_a_terminal(laptop: Path, *arguments: str) -> tuple[int, str]:
    """Returns status and errors of launch/pod.sh on a terminal where nobody answers."""
    leader, terminal = pty.openpty()
    process = start(laptop, *arguments, stdin=terminal)
    try:
        _, errors = process.communicate(timeout=300)
    finally:
        os.close(leader), os.close(terminal)
    return process.returncode, errors


@pytest.mark.parametrize(
    ("action", "words", "deed"),
    [
        ("create", ["buckets"], "ask"),
        ("create", ["buckets"], "ask anyway"),
        ("create", ["accelerator-types"], "ask"),
        ("create", ["queued-resources", "describe"], "ask"),
        ("setup", ["scp"], "ask"),
        ("setup", ["scp"], "ask anyway"),
        ("setup", ["ssh"], "ask"),
        ("setup", ["ssh"], "ask anyway"),
        ("status", ["tpu-vm", "describe"], "ask"),
        ("delete", ["queued-resources", "delete"], "ask"),
    ],
)
def test_a_question_on_the_terminal_hangs_nothing(action: str, words: list[str], deed: str, laptop: Path) -> None:
    arguments = {"create": (TYPE, ZONE, "--bucket=gs://bucket"), "delete": ("--yes",)}.get(action, ())
    if action != "create":
        make_pod(laptop, is_set_up=False)
    set_world(laptop, deeds=[[words, deed, 100]])
    code, errors = on_a_terminal(laptop, action, "my-pod", *arguments)
    reason = "Cloud TPU API has not been used" if deed == "ask" else "Reauthentication failed. cannot prompt"
    if (deed, words) == ("ask anyway", ["ssh"]):  # its input is one line, the token; that is the answer
        assert code == 0, errors
    else:
        assert code in (2, 75) and reason in errors, errors
    assert all("--quiet" in call for call in calls(laptop))


def test_a_connection_refused_once_is_tried_again(laptop: Path) -> None:
    make_pod(laptop, is_set_up=False)
    refused = [[["--worker=1", program], "refuse", 1] for program in ("scp", "ssh")]
    set_world(laptop, deeds=refused)
    code, printed, errors = pod(laptop, "setup", "my-pod", HF_TOKEN="hf_secret")
    assert (code, errors) == (0, "") and "worker 1: ready" in printed
    assert of_workers(laptop, "scp") == of_workers(laptop, "ssh") == 2
    assert (worker(laptop, 1) / ".cache/huggingface/token").read_text() == "hf_secret\n"  # its input came again


@pytest.mark.slow
def test_a_connection_refused_twice_is_said_with_ssh_s_reason(laptop: Path) -> None:
    make_pod(laptop)
    set_world(laptop, deeds=[[["--worker=1", "ssh"], "refuse", 2]])
    code, printed, errors = pod(laptop, "status", "my-pod")
    assert code == 75 and "worker 0: idle" in printed
    assert errors == (
        "my-pod: worker 1 FAILED: ssh: connect to host 10.130.0.2 port 22: Connection refused ERROR: "
        "(gcloud.compute.tpus.tpu-vm.ssh) [/usr/bin/ssh] exited with return code [255].\n"
        "launch/pod.sh: not all of my-pod is known: not all workers answer; the same command again.\n"
    )
    assert pod(laptop, "status", "my-pod")[0] == 0


@pytest.mark.slow
def test_a_start_whose_answer_was_lost_is_not_made_twice(laptop: Path) -> None:
    """The connection breaks after the command came through: the second try finds the run of the first."""
    make_pod(laptop)
    set_world(laptop, deeds=[[["--worker=1", "~pod_worker.sh start"], "lose", 1]])
    code, printed, errors = pod(laptop, *RUN)
    assert (code, errors) == (0, "") and printed.count("started\n") == 2
    started(laptop, 1, 1)
    assert pod(laptop, "stop", "my-pod")[1].count("ended 75 | saved step 7") == 2
    assert len(started(laptop, 1, 1)) == 1


@pytest.mark.slow
def test_an_expired_login_is_said_whole(laptop: Path) -> None:
    set_world(laptop, errors=[[["--zone=us-central2-b"], LOGIN, 1]])
    code, _, errors = pod(laptop, "create", "my-pod", TYPE, ZONE)
    assert code == 2 and len(errors.splitlines()) == 1
    assert "log in again: gcloud auth login, then the same command again" in errors
    assert "Reauthentication failed. cannot prompt during non-interactive execution." in errors
    make_pod(laptop)
    set_world(laptop, errors=[[["ssh", "--worker=1"], LOGIN, 1]])
    code, _, errors = pod(laptop, "status", "my-pod")
    assert code == 75 and "worker 1 FAILED: ERROR: (gcloud.compute.tpus.tpu-vm.ssh) There was a problem" in errors
    assert "see above, then the same command again." in errors


@pytest.mark.parametrize(("deed", "said"), [("banner", "idle | nothing was started"), ("empty", "(printed nothing)")])
def test_a_banner_and_an_empty_answer_leave_no_empty_line(deed: str, said: str, laptop: Path) -> None:
    make_pod(laptop)
    set_world(laptop, deeds=[[["ssh", "--worker=0"], deed, 1]])
    code, printed, errors = pod(laptop, "status", "my-pod")
    assert (code, errors) == (0, "") and f"my-pod: worker 0: {said}\n" in printed


def test_banners_are_not_taken_for_a_commit(laptop: Path) -> None:
    make_pod(laptop)
    set_world(laptop, deeds=[[["ssh"], "banner", 100]])
    code, printed, errors = pod(laptop, *RUN)
    assert (code, errors) == (0, "") and printed.count("started\n") == 2
    end_runs(laptop)
    watch = watching(laptop)
    printed, errors = watch.communicate(timeout=300)
    assert watch.returncode == 0 and printed.endswith(f" ended 0\n{STAYS}"), errors


@pytest.mark.parametrize(
    ("node", "states", "arguments", "code", "said"),
    [
        ("PREEMPTED", ["ACTIVE"], ("status", "my-pod"), 75, "my-pod is PREEMPTED; wait, or bash launch/pod.sh watch"),
        ("PREEMPTED", ["ACTIVE"], RUN, 75, "my-pod is PREEMPTED; wait, or bash launch/pod.sh watch my-pod."),
        ("READY", ["ACTIVE"], ("status", "my-pod", "--zone=us-east1-c"), 2, "there is no pod my-pod in us-east1-c"),
        ("READY", ["ACTIVE"], ("setup", "my-pod", "--zone=us-east1-c"), 2, "my-pod has no workers"),
    ],
)
def test_a_pod_taken_away_and_a_wrong_zone(
    node: str, states: list[str], arguments: tuple[str, ...], code: int, said: str, laptop: Path
) -> None:
    make_pod(laptop, is_set_up=False)
    world = world_of(laptop)
    world["pods"]["my-pod"] |= {"states": states, "node": node}
    set_world(laptop, pods=world["pods"])
    ended, _, errors = pod(laptop, *arguments)
    assert ended == code and said in errors and len(errors.splitlines()) == 1, errors


def test_a_bucket_that_may_not_be_read(laptop: Path) -> None:
    make_pod(laptop)
    set_world(laptop, errors=[[["buckets"], DENIED, 1]])
    code, _, errors = pod(laptop, *RUN)
    assert code == 2 and "the bucket gs://bucket cannot be read: your account may not do this" in errors
    assert DENIED in errors and len(errors.splitlines()) == 1


@pytest.mark.parametrize("zone", ["us-central2-b", "europe-west4-a", "asia-northeast1-b"])
def test_the_warning_about_a_bucket_s_region_is_that_of_preflight(zone: str, laptop: Path) -> None:
    places = ["us", "eu", "asia", zone[:-2]]
    set_world(
        laptop, buckets={f"in-{region}": region for region in places}, errors=[[["describe", "~types"], "no", 100]]
    )
    for region in places:
        _, printed, errors = pod(laptop, "create", "my-pod", TYPE, f"--zone={zone}", f"--bucket=gs://in-{region}")
        assert f"gs://in-{region} (region {region})" in printed
        assert ("WARNING" not in errors) == is_near(region.upper(), zone), region


def lines_of(process: subprocess.Popen, text: str) -> str:
    """Returns what launch/pod.sh has printed, as soon as a line has the text."""
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if text in line:
            return seen
    raise AssertionError(f"{text!r} never came: {seen} {process.stderr and process.stderr.read()}")


@pytest.mark.night
def test_watch_outlives_a_silent_worker_and_an_expired_login(laptop: Path) -> None:
    """Worker 1 is silent, then the login expires, then the pod is taken away: watch says each, and resumes the run."""
    make_pod(laptop)
    assert pod(laptop, *RUN)[0] == 0
    set_world(laptop, deeds=[[["ssh", "--worker=1"], "hang", 100]])
    watch = watching(laptop, STATUS_SECONDS="5")
    lines_of(watch, "running: no answer from worker 1")
    set_world(laptop, errors=[[["queued-resources", "describe"], LOGIN, 100]])
    lines_of(watch, "waiting: ERROR: (gcloud.compute.tpus.queued-resources.describe) There was a problem refreshing")
    world = world_of(laptop)
    world["pods"]["my-pod"] |= {"states": ["SUSPENDED"], "node": "PREEMPTED"}
    set_world(laptop, pods=world["pods"], deeds=[], errors=[])
    lines_of(watch, "try 1 of 20")
    end_runs(laptop)
    printed, errors = watch.communicate(timeout=300)
    assert watch.returncode == 0 and printed.endswith(f" ended 0\n{STAYS}"), printed + errors
    assert nothing_hangs(laptop)


@pytest.mark.slow
def test_watch_stops_the_others_when_one_worker_failed(laptop: Path) -> None:
    make_pod(laptop)
    (laptop / "deeds" / "0").write_text("1")
    assert pod(laptop, *RUN)[0] == 0
    code, printed, errors = pod(laptop, "watch", "my-pod")
    assert code == 1 and "a worker ended with 1, so the run is stopped on the others" in printed, errors
    assert "worker 1: ended 75 | saved step 7" in printed and printed.endswith(STAYS)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("action", "words"), [(("logs", "my-pod", "--follow"), ["ssh"]), (("status", "my-pod"), ["queued-resources"])]
)
def test_what_is_interrupted_leaves_no_process(
    action: tuple[str, ...], words: list[str], number: signal.Signals, laptop: Path
) -> None:
    """As Ctrl-C does it on a terminal, for all processes of the script; and as `kill` does it."""
    make_pod(laptop, is_set_up=False)
    set_world(laptop, deeds=[[words, "hang", 100]])
    process = start(laptop, *action)
    path = laptop / "world" / "hung"
    count = 4 if "ssh" in words else 2
    wait_until(lambda: path.exists() and len(path.read_text().split()) >= count)
    assert process.poll() is None
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    process.communicate(timeout=120)
    assert process.returncode == -number and nothing_hangs(laptop)


@pytest.mark.parametrize("value", ["0", "soon", "-1", "1.5"])
def test_a_limit_is_a_number_of_seconds(value: str, laptop: Path) -> None:
    code, _, errors = pod(laptop, "status", "my-pod", ZONE, STATUS_SECONDS=value)
    assert (code, errors) == (
        2, f"launch/pod.sh: STATUS_SECONDS is '{value}'; give a whole number of seconds, above 0.\n"
    )  # fmt: skip


def test_the_help_names_every_limit(laptop: Path) -> None:
    printed = pod(laptop, "--help")[1]
    for word in ("CLOUD", "CHANGE", "STATUS", "RUN", "STOP", "SETUP", "NOTICE"):
        assert f"{word}_SECONDS=" in printed
