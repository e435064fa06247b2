"""launch/pod.sh from a grant to a deleted pod: real bash and git, a stand-in for gcloud, a folder for each worker."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.laptop import (
    ROOT,
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


@pytest.mark.slow
def test_from_nothing_to_a_run_and_back_to_nothing(laptop: Path) -> None:
    code, printed, errors = pod(
        laptop, "create", "my-pod", TYPE, ZONE, "--spot", "--bucket=gs://bucket", "--service-account=me@p.iam",
        "--", "--internal-ips",
    )  # fmt: skip
    assert (code, errors) == (0, "")
    assert "zone us-central2-b (region us-central2) | gs://bucket (region us-central2)" in printed
    assert not (laptop / "pods" / "my-pod").stat().st_mode & 0o077  # it may hold keys
    assert "WAITING_FOR_RESOURCES\n" in printed and printed.endswith("next: bash launch/pod.sh setup my-pod\n")
    (create,) = [call for call in calls(laptop) if "create" in call]
    assert {"--spot", "--accelerator-type=v4-16", "--runtime-version=tpu-ubuntu2204-base"} < set(create)
    assert {"--node-id=my-pod", "--service-account=me@p.iam", "--internal-ips", ZONE, "--quiet"} < set(create)

    code, printed, errors = pod(laptop, "setup", "my-pod", HF_TOKEN="hf_secret")
    assert (code, errors) == (0, "")
    head = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=laptop / "checkout", text=True).strip()
    assert [f"my-pod: worker {n}: ready, commit {head[:12]}" in printed for n in (0, 1)] == [True, True]
    assert not any("hf_secret" in word for call in calls(laptop) for word in call)  # commands are seen by all users
    token = worker(laptop, 1) / ".cache" / "huggingface" / "token"
    assert token.read_text() == "hf_secret\n" and token.stat().st_mode & 0o077 == 0

    code, printed, errors = pod(laptop, *RUN, "TRAIN_STEPS=5", "--env=TFDS_DATA_DIR=gs://bucket/a b")
    assert (code, errors) == (0, "")
    assert printed.count("started\n") == 2
    for n in (0, 1):
        (line,) = started(laptop, n, 1)
        assert line.startswith(
            "hf_secret gs://bucket/a b tpu,cpu -m limba train gin/demo.gin --gin.MODEL_DIR=gs://bucket"
        )
        assert line.endswith("--gin.TRAIN_STEPS=5")
    code, _, errors = pod(laptop, *RUN)
    assert code == 2 and "worker 0 FAILED: a run is going on here" in errors
    assert errors.endswith("nothing was started on my-pod; a run is going on: bash launch/pod.sh stop my-pod\n")

    code, printed, _ = pod(laptop, "status", "my-pod")
    assert code == 0 and "my-pod: ACTIVE, v4-16, spot, us-central2-b" in printed
    assert "worker 0: running | step 7" in printed and "worker 1: running | step 7" in printed
    code, printed, _ = pod(laptop, "logs", "my-pod", "--lines=1")
    assert sorted(printed.splitlines()) == ["worker 0 | step 7", "worker 1 | step 7"]  # as they answer
    code, printed, _ = pod(laptop, "stop", "my-pod")
    assert code == 0 and printed.count("ended 75 | saved step 7") == 2

    assert pod(laptop, "delete", "my-pod")[0] == 2 and "my-pod" in world_of(laptop)["pods"]  # nobody could answer
    assert pod(laptop, "delete", "my-pod", "--yes")[0] == 0
    assert world_of(laptop)["pods"] == {} and not list((laptop / "pods").iterdir())


@pytest.mark.slow
def test_several_slices_are_one_pod(laptop: Path) -> None:
    """Two slices of two workers: one request, four workers set up, started, stopped and deleted together."""
    code, _, errors = pod(laptop, "create", "my-pod", TYPE, ZONE, "--slices=2")
    assert (code, errors) == (0, "")
    (create,) = [call for call in calls(laptop) if "create" in call]
    assert {"--node-count=2", "--node-prefix=my-pod"} < set(create)
    code, printed, errors = pod(laptop, "setup", "my-pod")
    assert (code, errors) == (0, "") and printed.count(": ready, commit ") == 4
    code, printed, errors = pod(laptop, *RUN)
    assert (code, errors) == (0, "") and printed.count("started\n") == 4
    for name in ("my-pod-0", "my-pod-1"):
        for number in (0, 1):
            assert len(started(laptop, number, 1, name)) == 1
    code, printed, _ = pod(laptop, "status", "my-pod")
    assert "my-pod: ACTIVE, 2 slices of v4-16, us-central2-b" in printed and "worker 3: running | step 7" in printed
    code, printed, _ = pod(laptop, "stop", "my-pod")
    assert code == 0 and printed.count("ended 75 | saved step 7") == 4
    assert pod(laptop, "delete", "my-pod", "--yes")[0] == 0 and world_of(laptop)["pods"] == {}
    assert pod(laptop, "create", "my-pod", TYPE, ZONE, "--slices=two")[0] == 2


def test_dry_run_prints_the_commands_and_runs_none(laptop: Path) -> None:
    code, printed, _ = pod(laptop, "create", "my-pod", "--type=v5litepod-16", ZONE, "--dry-run")
    assert code == 0 and "gcloud compute tpus queued-resources create my-pod" in printed
    assert "--runtime-version=v2-alpha-tpuv5-lite" in printed
    ends = "my-pod: nothing was asked of Google: whether us-central2-b has v5litepod-16 is seen without --dry-run\n"
    assert printed.endswith(ends) and "ACTIVE" not in printed
    for action in ("setup", "status", "stop", "logs", "delete"):
        code, printed, _ = pod(laptop, action, "my-pod", "--type=v5litepod-16", ZONE, "--dry-run")
        assert code == 0 and printed.count("gcloud ") >= (1 if action == "delete" else 4), printed  # 4 workers
    assert calls(laptop) == [] and not (laptop / "pods").exists()


@pytest.mark.parametrize(
    ("kind", "image"),
    [
        ("v2-8", "tpu-ubuntu2204-base"),
        ("v3-8", "tpu-ubuntu2204-base"),
        ("v4-32", "tpu-ubuntu2204-base"),
        ("v5litepod-16", "v2-alpha-tpuv5-lite"),
        ("v5p-8", "v2-alpha-tpuv5"),
        ("v6e-8", "v2-alpha-tpuv6e"),
    ],
)
def test_each_generation_has_its_image(kind: str, image: str, laptop: Path) -> None:
    code, printed, _ = pod(laptop, "create", "a", f"--type={kind}", ZONE, "--dry-run")
    assert code == 0 and f"--runtime-version={image} " in printed
    code, _, errors = pod(laptop, "create", "a", f"--type={kind}", ZONE, "--image=v2-alpha-tpuv5p-wrong")
    assert code == 2 and f"leave --image out, for {image}." in errors


@pytest.mark.parametrize("kind", ["v4-33", "v4-4", "v5litepod-12", "v6e-512", "v5p-x", "v7-8", "a100"])
def test_a_type_of_no_size_is_refused(kind: str, laptop: Path) -> None:
    code, printed, errors = pod(laptop, "create", "a", f"--type={kind}", ZONE, "--dry-run")
    assert (
        code == 2
        and printed == ""
        and errors.endswith(f"or another size of v2, v3, v4, v5litepod, v5p, v6e; not '{kind}'.\n")
    )


QUOTA = "Quota limit 'TPUV4sPodPerProjectPerZoneForTPUAPI' has been exceeded. Limit: 0 in zone us-central2-b."
DENIED = "PERMISSION_DENIED: Permission 'tpu.nodes.create' denied on 'projects/my-project/locations/us-central2-b'"


@pytest.mark.parametrize(
    ("words", "message", "said"),
    [
        (["create"], QUOTA, "the quota of v4-16 in us-central2-b is too small"),
        (["create"], DENIED, "ask the project's owner for roles/tpu.admin"),
        (["create"], "SERVICE_DISABLED: Cloud TPU API has not been used in project 5", "gcloud services enable tpu"),
        (["create"], "caller does not have permission to act as service account x", "roles/iam.serviceAccountUser"),
        (["create"], 'There is no more capacity in the zone "us-central2-b"', "no v4-16 is free in us-central2-b"),
        (
            ["accelerator-types"],
            "NOT_FOUND: v4-16 was not found",
            "us-central2-b has no v4-16; see gcloud compute tpus",
        ),
        (["versions"], "NOT_FOUND: no such version was found", "us-central2-b has no tpu-ubuntu2204-base; see gcloud"),
        (
            ["buckets"],
            "HTTPError 403: you do not have storage.buckets.get access",
            "the bucket gs://bucket cannot be read",
        ),
        (
            ["queued-resources", "describe"],
            "UNKNOWN: strange",
            "gcloud's message follows (ERROR: (gcloud.compute.tpus.queued-resources.describe) UNKNOWN: strange",
        ),
    ],
)
def test_an_error_of_creation_is_one_sentence_and_leaves_nothing(
    words: list[str], message: str, said: str, laptop: Path
) -> None:
    set_world(laptop, errors=[[words, message, 1]])
    code, _, errors = pod(laptop, "create", "my-pod", TYPE, ZONE, "--bucket=gs://bucket")
    assert code == 2 and said in errors and len(errors.splitlines()) == 1, errors
    assert not world_of(laptop).get("pods") and not list(laptop.glob("pods/*"))


@pytest.mark.slow
def test_a_missing_bucket_and_one_in_another_region(laptop: Path) -> None:
    code, _, errors = pod(laptop, "create", "my-pod", TYPE, ZONE, "--bucket=gs://none")
    assert code == 2 and "gcloud storage buckets create gs://none --location=us-central2" in errors
    assert not world_of(laptop).get("pods")
    set_world(laptop, buckets={"bucket": "us-central2", "far": "europe-west4"})
    make_pod(laptop)
    code, printed, errors = pod(laptop, "run", "my-pod", "gin/demo.gin", "MODEL_DIR=gs://far/run")
    assert "zone us-central2-b (region us-central2) | gs://far (region europe-west4)" in printed
    assert code == 0 and "WARNING: gs://far is in another region" in errors
    end_runs(laptop)


def test_a_request_that_fails_later_is_deleted(laptop: Path) -> None:
    set_world(laptop, plans={"my-pod": [["WAITING_FOR_RESOURCES", "FAILED"]]}, message=QUOTA)
    code, printed, errors = pod(laptop, "create", "my-pod", TYPE, ZONE)
    assert code == 2 and "my-pod: FAILED" in printed
    assert "its request was deleted: the quota of v4-16" in errors and "TPUV4sPod" in errors
    assert world_of(laptop)["pods"] == {} and not list(laptop.glob("pods/*"))


def test_two_pods_of_one_name(laptop: Path) -> None:
    make_pod(laptop, is_set_up=False)
    code, _, errors = pod(laptop, "create", "my-pod", TYPE, ZONE)
    assert code == 2 and "my-pod is there already; take another name" in errors
    (laptop / "pods" / "my-pod").unlink()  # made by somebody else
    code, _, errors = pod(laptop, "create", "my-pod", TYPE, ZONE)
    assert code == 2 and "my-pod is there already" in errors
    assert pod(laptop, "status", "my-pod", ZONE)[1].startswith("my-pod: ACTIVE")


def test_an_interrupted_wait_says_what_stays(laptop: Path) -> None:
    set_world(laptop, plans={"my-pod": [["WAITING_FOR_RESOURCES"]]})
    process = start(laptop, "create", "my-pod", TYPE, ZONE, POLL_SECONDS="1")
    assert process.stdout is not None
    assert any("WAITING" in line for line in process.stdout), process.communicate(timeout=200)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=200)
    assert (
        process.returncode == 75 and "stays in the queue; bash launch/pod.sh status, watch or delete my-pod" in errors
    )
    assert pod(laptop, "delete", "my-pod", "--yes")[0] == 0


@pytest.mark.slow
def test_one_worker_that_fails_its_set_up_is_named_and_nothing_starts(laptop: Path) -> None:
    make_pod(laptop, is_set_up=False)
    worker(laptop, 1).mkdir(parents=True)
    (worker(laptop, 1) / "full").write_text("")
    code, printed, errors = pod(laptop, "setup", "my-pod", "--env=UV_PYTHON_INSTALL_MIRROR=https://wrong")
    assert code == 75 and "worker 0: ready" in printed
    assert "worker 1 FAILED: No space left on device" in errors and "the same command again" in errors
    code, _, errors = pod(laptop, *RUN)
    assert code == 2 and "worker 1 FAILED: its set-up has not ended" in errors and "nothing was started" in errors
    assert not (worker(laptop, 0) / "started").exists()
    (worker(laptop, 1) / "full").unlink()
    assert pod(laptop, "setup", "my-pod")[0] == 0
    assert "wrong" not in (worker(laptop, 1) / "set_up").read_text()  # a set-up that failed leaves nothing to the next


@pytest.mark.slow
def test_workers_of_different_commits_do_not_start(laptop: Path) -> None:
    make_pod(laptop)
    git(worker(laptop, 1) / "limba", "commit", "-q", "--allow-empty", "-m", "x")
    code, _, errors = pod(laptop, *RUN)
    assert code == 2 and "the workers of my-pod have different commits" in errors
    assert not (worker(laptop, 0) / "started").exists()


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.slow
def test_a_run_is_of_the_commit_that_is_here(laptop: Path) -> None:
    make_pod(laptop)
    checkout = laptop / "checkout"
    before = git(checkout, "rev-parse", "HEAD")
    (checkout / "gin" / "demo.gin").write_text("TRAIN_STEPS = 5\n")
    for action in (RUN, ("setup", "my-pod")):
        code, _, errors = pod(laptop, *action)
        assert code == 2 and errors.startswith("launch/pod.sh: gin/demo.gin is not committed, and the"), errors
        assert len(errors.splitlines()) == 1
    git(checkout, "commit", "-qam", "five steps")
    now = git(checkout, "rev-parse", "HEAD")
    code, _, errors = pod(laptop, *RUN)
    assert (
        code == 2 and f"have commit {before[:12]}, and the one here is {now[:12]}; bash launch/pod.sh setup" in errors
    )
    assert not (worker(laptop, 0) / "started").exists()
    assert pod(laptop, "setup", "my-pod")[0] == 0
    assert pod(laptop, *RUN)[0] == 0
    started(laptop, 0, 1)
    git(checkout, "commit", "-q", "--allow-empty", "-m", "another")
    code, _, errors = pod(laptop, "setup", "my-pod")  # below a running program
    assert code == 2 and errors.endswith("a run is going on: bash launch/pod.sh stop my-pod\n")
    assert [git(worker(laptop, n) / "limba", "rev-parse", "HEAD") for n in (0, 1)] == [now, now]
    end_runs(laptop)


def test_new_files_that_the_workers_would_not_get_are_named(laptop: Path) -> None:
    """As `limba new` writes them."""
    make_pod(laptop)
    checkout = laptop / "checkout"
    (checkout / "gin" / "fo_tiny.gin").write_text("# fo\n")
    for action in (("setup", "my-pod"), ("run", "my-pod", "gin/fo_tiny.gin", "MODEL_DIR=gs://bucket/run")):
        code, _, errors = pod(laptop, *action)
        assert code == 2 and errors.startswith("launch/pod.sh: gin/fo_tiny.gin is not committed, and the"), errors
    (checkout / ".git" / "info" / "exclude").write_text("fo_tiny.gin\n")
    for words in (["gin/fo_tiny.gin"], ["gin/demo.gin", "--gin_file=gin/fo_tiny.gin"]):
        code, _, errors = pod(laptop, "run", "my-pod", *words, "MODEL_DIR=gs://bucket/run")
        assert code == 2 and "gin/fo_tiny.gin is not in git, so the workers do not get it" in errors
    assert not (worker(laptop, 0) / "started").exists()


def test_new_files_that_no_run_needs_stay_here(laptop: Path) -> None:
    make_pod(laptop, is_set_up=False)
    checkout = laptop / "checkout"
    for name in ("data/a.jsonl", "my.model", ".vscode/settings.json", ".DS_Store"):
        (checkout / name).parent.mkdir(exist_ok=True)
        (checkout / name).write_text("{}")
    assert pod(laptop, "setup", "my-pod")[0] == 0
    code, _, errors = pod(laptop, "run", "my-pod", "gin//demo.gin", "MODEL_DIR=gs://bucket/run")  # one file
    assert code == 0, errors
    end_runs(laptop)
    assert not (worker(laptop, 0) / "limba" / "data").exists()


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("shallow", "this clone is shallow, and the workers need its history; run git fetch --unshallow."),
        ("archive", "/checkout has no git history (an unpacked archive?); the workers get a commit, so use a clone"),
        ("unreadable", "/checkout: fatal: bad config line 1 in file .git/config"),
    ],
)
def test_a_folder_without_the_history_is_no_place_to_set_up_from(kind: str, said: str, laptop: Path) -> None:
    make_pod(laptop, is_set_up=False)
    checkout = laptop / "checkout"
    if kind == "shallow":
        git(checkout, "commit", "-q", "--allow-empty", "-m", "second")
        checkout.rename(laptop / "origin")
        git(laptop, "clone", "-q", "--depth", "1", f"file://{laptop}/origin", str(checkout))
    elif kind == "archive":
        shutil.rmtree(checkout / ".git")
    else:  # git's own reason is shown, as where the clone is of another user
        (checkout / ".git" / "config").write_text("[core\n")
    for action in (("setup", "my-pod"), RUN):
        code, _, errors = pod(laptop, *action)
        assert code == 2 and said in errors and len(errors.splitlines()) == 1, errors


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("create", "My_Pod", TYPE, ZONE), "small letters, digits and -"),
        (("create", "a", TYPE), "give --zone=ZONE"),
        (("create", "a", TYPE, "--zone=us-central2"), "a zone is like us-central2-b"),
        (("create", "a", ZONE), "give --type=v4-8"),
        (("create", "a", ZONE, "--type=v7-8"), "not 'v7-8'"),
        (("create", "a", ZONE, TYPE, "--image=v2-alpha-tpuv6e"), "the image v2-alpha-tpuv6e is not for v4-16"),
        (("create", "a", ZONE, TYPE, "--spott"), "the argument --spott of create is not known"),
        (("fly", "a"), "fly is not known"),
        (("status", "a"), "no pod a was made from this machine"),
        (("status", "a", ZONE), "there is no pod a in us-central2-b"),
        (("setup", "a", ZONE), "a has no workers"),
        (("watch", "a", ZONE), "nothing was started on a from here"),
        (("run", "a", "gin/none.gin", ZONE), "there is no gin/none.gin here"),
        (("run", "a", ZONE), "give a gin file"),
        (("run", "a", "gin/demo.gin", ZONE), "MODEL_DIR is not given"),
        (("logs", "a", ZONE, "--lines=many"), "whole numbers"),
        (("watch", "a", ZONE, "--env=A=b"), "--env is for setup and run; leave it out of watch."),
        (("run", "a", "gin/demo.gin", ZONE, "--env=A"), "--env=A is not a variable; write --env=NAME=VALUE."),
        (("run", "a", ZONE, "--env=A=b"), "--env is given without a gin file; give the whole command again."),
        (("setup", "a", ZONE, "--env=HF_TOKEN=hf_x"), "write HF_TOKEN=… bash launch/pod.sh setup a."),
    ],
)
def test_bad_input_is_one_sentence(arguments: tuple[str, ...], said: str, laptop: Path) -> None:
    code, _, errors = pod(laptop, *arguments)
    assert code == 2 and said in errors and len(errors.splitlines()) == 1, errors


def preempt(laptop: Path, node: str = "PREEMPTED") -> None:
    """Takes the pod away, as Google does with a spot pod."""
    world = world_of(laptop)
    world["pods"]["my-pod"] |= {"states": ["SUSPENDED"], "node": node}
    set_world(laptop, pods=world["pods"])


@pytest.mark.slow
def test_watch_makes_a_preempted_pod_again_and_resumes(laptop: Path) -> None:
    make_pod(laptop)
    assert pod(laptop, *RUN)[0] == 0
    watch = watching(laptop)
    started(laptop, 0, 1), started(laptop, 1, 1)
    preempt(laptop)
    for n in (0, 1):  # the disks are new: this is the second start
        assert "--gin.MODEL_DIR=gs://bucket/run" in started(laptop, n, 1)[0]
    calls_of = (laptop / "world" / "calls.jsonl").read_text
    wait_until(lambda: "started" in calls_of() or calls_of().count("create") >= 2)
    started(laptop, 0, 1), started(laptop, 1, 1)
    end_runs(laptop)
    printed, errors = watch.communicate(timeout=120)
    assert watch.returncode == 0, errors
    assert " lost\n" in printed and "try 1 of 20" in printed and printed.endswith(f" ended 0\n{STAYS}")
    actions = [" ".join(call[2:4]) for call in calls(laptop) if call[3] in ("create", "delete")]
    assert actions == ["queued-resources create", "queued-resources delete", "queued-resources create"]


@pytest.mark.slow
def test_watch_resumes_the_commit_of_the_run(laptop: Path) -> None:
    """Whatever is checked out by then, and though no branch has that commit any more."""
    make_pod(laptop)
    checkout = laptop / "checkout"
    of_the_run = git(checkout, "rev-parse", "HEAD")
    assert pod(laptop, *RUN)[0] == 0
    (checkout / "gin" / "demo.gin").write_text("TRAIN_STEPS = 5\n")
    git(checkout, "commit", "-qa", "--amend", "-m", "another experiment")
    assert "a run is going on" in pod(laptop, "setup", "my-pod")[2]
    git(checkout, "reflog", "expire", "--expire=now", "--all")
    git(checkout, "gc", "-q", "--prune=now")
    (checkout / "gin" / "demo.gin").write_text("TRAIN_STEPS = 6\n")
    preempt(laptop)
    end_runs(laptop)
    code, printed, errors = pod(laptop, "watch", "my-pod", "--tries=1")
    assert code == 0 and f"setting up 2 workers with commit {of_the_run[:12]}" in printed, errors
    for n in (0, 1):
        assert "gin/demo.gin" in started(laptop, n, 1)[0]
        assert git(worker(laptop, n) / "limba", "rev-parse", "HEAD") == of_the_run
    assert pod(laptop, "delete", "my-pod", "--yes")[0] == 0
    assert "limba" not in git(checkout, "for-each-ref")


def test_watch_says_that_the_commit_of_the_run_is_gone(laptop: Path) -> None:
    make_pod(laptop)
    assert pod(laptop, *RUN)[0] == 0
    end_runs(laptop)
    record = laptop / "pods" / "my-pod"
    record.write_text(re.sub(r'(run_commit=")[0-9a-f]{40}', rf"\g<1>{'0' * 39}1", record.read_text()))
    preempt(laptop)
    code, _, errors = pod(laptop, "watch", "my-pod", "--tries=1")
    assert code == 2 and "the run of my-pod has commit 000000000000, which this clone does not have" in errors
    assert [call[3] for call in calls(laptop)].count("create") == 1  # no pod is made, which costs


@pytest.mark.slow
def test_a_failed_request_for_a_preempted_pod_does_not_end_watch(laptop: Path) -> None:
    """No pod is free at the first try: the second one asks again, by the record that the first has left."""
    make_pod(laptop)
    assert pod(laptop, *RUN)[0] == 0
    set_world(laptop, plans={"my-pod": [["WAITING_FOR_RESOURCES", "FAILED"], ["ACTIVE"]]}, message=QUOTA)
    preempt(laptop, "GONE")
    end_runs(laptop)
    code, printed, errors = pod(laptop, "watch", "my-pod", "--tries=2")
    assert code == 0 and "its request was deleted: the quota of v4-16" in errors, printed + errors
    assert "try 2 of 2" in printed and printed.endswith(f" ended 0\n{STAYS}")
    assert "--gin.MODEL_DIR=gs://bucket/run" in started(laptop, 0, 1)[0]


@pytest.mark.slow
def test_watch_says_that_no_pod_stays_and_the_same_command_goes_on(laptop: Path) -> None:
    make_pod(laptop)
    assert pod(laptop, *RUN)[0] == 0
    set_world(laptop, plans={"my-pod": [["FAILED"]]}, message=QUOTA)
    preempt(laptop)
    code, _, errors = pod(laptop, "watch", "my-pod", "--tries=0")
    assert code == 75 and errors.endswith(
        "the same command goes on; the request stays, until: bash launch/pod.sh delete my-pod.\n"
    )
    code, _, errors = pod(laptop, "watch", "my-pod", "--tries=1")
    assert code == 75 and errors.endswith(
        "no try of 1 is left; the same command goes on; the pod is not there, and costs nothing.\n"
    )
    set_world(laptop, plans={"my-pod": [["ACTIVE"]]})
    end_runs(laptop)
    code, printed, errors = pod(laptop, "watch", "my-pod", "--tries=1")
    assert code == 0 and printed.endswith(f" ended 0\n{STAYS}"), errors


def test_a_pod_that_is_being_deleted_is_not_made_again_by_watch(laptop: Path) -> None:
    make_pod(laptop)
    assert pod(laptop, *RUN)[0] == 0
    watch = watching(laptop)
    for n in (0, 1):
        started(laptop, n, 1)
        (laptop / "deeds" / str(n)).write_text("0")  # a pod that is made again is done at once
    assert watch.stdout is not None
    assert any(" running\n" in line for line in watch.stdout)
    set_world(laptop, deeds=[[["queued-resources", "delete"], "hang", 1]])
    delete = start(laptop, "delete", "my-pod", "--yes")
    wait_until(lambda: (laptop / "world" / "hung").exists(), delete.poll)
    preempt(laptop)
    _, errors = watch.communicate(timeout=120)
    delete.send_signal(signal.SIGTERM)
    delete.communicate(timeout=120)
    assert watch.returncode == 2 and errors == "launch/pod.sh: my-pod was deleted from here.\n"
    assert [call[3] for call in calls(laptop)].count("create") == 1
    assert [path.name for path in (laptop / "pods").iterdir()] == ["my-pod"]  # so the same command goes on


def test_a_deletion_that_fails_keeps_the_record(laptop: Path) -> None:
    make_pod(laptop, is_set_up=False)
    set_world(laptop, errors=[[["queued-resources", "delete"], DENIED, 1]])
    code, _, errors = pod(laptop, "delete", "my-pod", "--yes")
    assert code == 2 and "my-pod was not deleted: your account may not do this" in errors
    assert [path.name for path in (laptop / "pods").iterdir()] == ["my-pod"]
    code, _, errors = pod(laptop, "delete", "my-pod", "--yes")
    assert (code, errors) == (0, "") and not list((laptop / "pods").iterdir())


@pytest.mark.slow
def test_what_setup_was_given_is_there_when_watch_sets_the_pod_up_again(laptop: Path) -> None:
    """Variables are in the record; of the token it holds only that there was one."""
    make_pod(laptop, is_set_up=False)
    mirror = "--env=UV_PYTHON_INSTALL_MIRROR=https://mirror/a b"
    code, _, errors = pod(laptop, "setup", "my-pod", mirror, "--env=https_proxy=$p", HF_TOKEN="hf_secret")
    assert (code, errors) == (0, "")
    assert [(worker(laptop, n) / "set_up").read_text() for n in (0, 1)] == ["https://mirror/a b $p\n"] * 2
    assert pod(laptop, *RUN)[0] == 0
    record = laptop / "pods" / "my-pod"
    assert "hf_secret" not in record.read_text() and not record.stat().st_mode & 0o077
    code, _, errors = pod(laptop, "watch", "my-pod")
    assert code == 2 and "my-pod was set up with HF_TOKEN, and needs it when it is made again; write HF_TO" in errors
    preempt(laptop)
    end_runs(laptop)
    code, printed, errors = pod(laptop, "watch", "my-pod", "--tries=1", HF_TOKEN="hf_secret")
    assert code == 0 and "try 1 of 1" in printed, errors
    for n in (0, 1):  # the second line is of the run, which finds that nothing is to be done
        assert (worker(laptop, n) / "set_up").read_text().splitlines()[0] == "https://mirror/a b $p"
    assert (worker(laptop, 1) / ".cache" / "huggingface" / "token").read_text() == "hf_secret\n"


@pytest.mark.slow
def test_watch_resumes_what_ended_with_75_and_ends_with_the_run_s_status(laptop: Path) -> None:
    make_pod(laptop)
    for n in (0, 1):
        (laptop / "deeds" / str(n)).write_text("75")
    assert pod(laptop, *RUN)[0] == 0
    watch = watching(laptop)
    assert len(started(laptop, 0, 2)) >= 2
    for n in (0, 1):
        (laptop / "deeds" / str(n)).write_text("3")
    printed, _ = watch.communicate(timeout=120)
    assert watch.returncode == 3 and " again\n" in printed and printed.endswith(f" ended 3\n{STAYS}")


@pytest.mark.slow
def test_watch_gives_up_after_its_tries(laptop: Path) -> None:
    make_pod(laptop)
    (laptop / "deeds" / "0").write_text("75")
    (laptop / "deeds" / "1").write_text("75")
    assert pod(laptop, *RUN)[0] == 0
    code, printed, errors = pod(laptop, "watch", "my-pod", "--tries=1")
    assert code == 75 and "try 1 of 1" in printed
    assert "no try of 1 is left; the same command goes on; the pod stays, and costs, until:" in errors.splitlines()[-1]


PAGE = (ROOT / "docs" / "pods.md").read_text().replace("\\\n", " ").replace("\n  MODEL_DIR", " MODEL_DIR")
COMMANDS = re.findall(r"(?:bash launch/pod\.sh) [^`|\n]+", PAGE)
GCLOUD = re.findall(
    r"(?:^ *|`|&& )(gcloud [a-z][^`|&;\n]+)", PAGE + (ROOT / "docs" / "install.md").read_text(), re.MULTILINE
)


@pytest.mark.slow
def test_the_page_s_commands_are_taken(laptop: Path) -> None:
    shutil.copytree(ROOT / "gin", laptop / "checkout" / "gin", dirs_exist_ok=True)
    git(laptop / "checkout", "add", "-A")
    git(laptop / "checkout", "commit", "-qm", "gin")
    done = set()
    for line in COMMANDS:
        action, *arguments = shlex.split(line)[2:]
        done.add(action)
        if action == "watch":  # it has no end to print
            continue
        code, printed, errors = pod(laptop, action, *arguments, ZONE, TYPE, "--dry-run")
        assert code == 0 and "gcloud " in printed, f"{line}: {errors}"
    assert done >= {"create", "setup", "run", "watch", "delete"} and len(COMMANDS) >= 9


def test_the_page_s_gcloud_commands_have_flags_that_gcloud_has() -> None:
    """Against the commands and flags of gcloud 528, from its own table of completions."""
    table = json.loads((ROOT / "tests" / "launch" / "gcloud_flags.json").read_text())
    for line in GCLOUD:
        words = shlex.split(line)[1:]
        command = next((name for name in table if words[: len(name.split())] == name.split()), None)
        assert command is not None, line
        flags = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert flags <= {*table[command], *table["every command"]}, line
    assert len(GCLOUD) >= 7


@pytest.mark.night
def test_a_real_run_is_preempted_and_resumed(laptop: Path) -> None:
    """A worker with the packages of these tests, launch/pretrain.sh and a tiny T5; the pod is lost after a save."""
    checkout = laptop / "checkout"
    model_dir = laptop / "run"
    for name in ("limba", "gin", "tasks"):
        shutil.copytree(ROOT / name, checkout / name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    (checkout / "launch" / "setup.sh").write_text(f"ln -sfn {Path(sys.prefix)} .venv\n")
    git(checkout, "add", "-A")
    git(checkout, "commit", "-qm", "all")
    corpus = laptop / "corpus.txt"
    corpus.write_text("".join(f"Line {n} of a small text, which says {n * n} and then ends.\n" for n in range(3000)))
    set_world(laptop, workers=1)
    assert pod(laptop, "create", "my-pod", "--type=v4-8", ZONE)[0] == 0
    assert pod(laptop, "setup", "my-pod", ACCELERATOR="cpu")[0] == 0
    settings = [f"CORPUS={corpus}", "VOCABULARY=byte", "VOCAB_SIZE=384", "TRAIN_STEPS=60", "CHECKPOINT_PERIOD=10"]
    settings += ["EVAL_PERIOD=1000", "BATCH_SIZE=8", "LOG_PERIOD=5", f"MODEL_DIR={model_dir}"]
    code, _, errors = pod(laptop, "run", "my-pod", "gin/demo.gin", *settings, ACCELERATOR="cpu")
    assert code == 0 and "is on the workers" in errors
    watch = start(laptop, "watch", "my-pod", POLL_SECONDS="2", ACCELERATOR="cpu")
    log = worker(laptop, 0) / "pod" / "log"
    wait_until(lambda: watch.poll() is not None or list(model_dir.glob("checkpoints/*0")), log.read_text)
    assert watch.poll() is None, log.read_text()
    preempt(laptop)
    printed, errors = watch.communicate(timeout=500)
    assert watch.returncode == 0, printed + errors + log.read_text()
    assert "try 1 of 20" in printed and printed.endswith(f" ended 0\n{STAYS}")
    assert re.search(r"resumes at step \d+0, up to step 60", log.read_text())
    assert (model_dir / "checkpoints" / "60").is_dir()
