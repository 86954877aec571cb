"""The spool, against a server that can be switched off."""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from simcse_platform.errors import TrackingError
from simcse_platform.tracking import spool
from simcse_platform.tracking.spool import MAX_METRICS, Pace, Record, Spool, SpooledTracker

AT_ONCE = Pace(records=1, seconds=0, retry_seconds=0)
ON_FLUSH = Pace(records=10**9, seconds=10**9)


class Server:
    """Keeps each request; refuses to answer while `down`, or after `healthy_requests`."""

    def __init__(self) -> None:
        self.requests: list[list[Record]] = []
        self.calls = 0
        self.down = False
        self.healthy_requests = math.inf

    def __call__(self, request: Sequence[Record]) -> None:
        self.calls += 1
        if self.down or len(self.requests) >= self.healthy_requests:
            raise TrackingError("tracking server http://there does not answer")
        self.requests.append(list(request))

    @property
    def steps(self) -> list[int]:
        return [
            record["step"]
            for request in self.requests
            for record in request
            if record["kind"] == "metrics"
        ]


def test_every_kind_of_record_arrives_in_order(tmp_path: Path) -> None:
    server = Server()
    tracker = SpooledTracker(tmp_path / "spool.jsonl", server, ON_FLUSH)
    tracker.log_params({"optim.learning_rate": "3e-5"})
    tracker.log_metrics({"loss": 1.5, "norm": math.nan}, 1)
    tracker.log_metrics({"loss": 1.25}, 2)
    tracker.log_text("lineage: 日本\n", "run.yaml")
    tracker.log_table([{"set": "STS12", "spearman": 70.5}], "sts.json")
    assert server.calls == 0
    tracker.finish("FINISHED")
    kinds = [[record["kind"] for record in request] for request in server.requests]
    assert kinds == [["params"], ["metrics", "metrics"], ["text"], ["table"], ["end"]]
    table = server.requests[3][0]
    assert table["kind"] == "table"
    assert json.loads(table["text"]) == {"columns": ["set", "spearman"], "data": [["STS12", 70.5]]}
    text = server.requests[2][0]
    assert text["kind"] == "text"
    assert text["text"] == "lineage: 日本\n"


def test_metrics_go_out_after_so_many_records(tmp_path: Path) -> None:
    server = Server()
    tracker = SpooledTracker(tmp_path / "spool.jsonl", server, Pace(records=3, seconds=10**9))
    for step in range(7):
        tracker.log_metrics({"loss": 0.0}, step)
    assert [len(request) for request in server.requests] == [3, 3]
    tracker.flush()
    assert server.steps == list(range(7))


def test_metrics_go_out_after_so_many_seconds(tmp_path: Path) -> None:
    server = Server()
    tracker = SpooledTracker(tmp_path / "spool.jsonl", server, Pace(records=10**9, seconds=0))
    tracker.log_metrics({"loss": 0.0}, 0)
    assert server.steps == [0]


def test_a_request_holds_no_more_values_than_mlflow_takes(tmp_path: Path) -> None:
    server = Server()
    tracker = SpooledTracker(tmp_path / "spool.jsonl", server, ON_FLUSH)
    for step in range(MAX_METRICS):
        tracker.log_metrics({"a": 1.0, "b": 2.0, "c": 3.0}, step)
    tracker.flush()
    sizes = [
        sum(len(record["values"]) for record in request if record["kind"] == "metrics")
        for request in server.requests
    ]
    assert max(sizes) <= MAX_METRICS
    assert sum(sizes) == 3 * MAX_METRICS
    assert len(sizes) == 4


def test_an_outage_raises_nothing_and_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server = Server()
    tracker = SpooledTracker(tmp_path / "spool.jsonl", server, AT_ONCE)
    tracker.log_metrics({"loss": 0.0}, 0)
    server.down = True
    for step in range(1, 5):
        tracker.log_metrics({"loss": 0.0}, step)
    assert server.steps == [0]
    server.down = False
    tracker.log_metrics({"loss": 0.0}, 5)
    assert server.steps == [0, 1, 2, 3, 4, 5]
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "tracking server http://there does not answer (no record is lost: they wait in "
        f"{tmp_path / 'spool.jsonl'})",
        "the tracking server answers again; nothing was lost",
    ]


def test_a_server_that_failed_is_left_alone_for_a_while_but_not_at_the_end(tmp_path: Path) -> None:
    server = Server()
    server.down = True
    pace = Pace(records=1, seconds=0, retry_seconds=10**9)
    tracker = SpooledTracker(tmp_path / "spool.jsonl", server, pace)
    for step in range(100):
        tracker.log_metrics({"loss": 0.0}, step)
    assert server.calls == 1
    server.down = False
    tracker.finish("FINISHED")
    assert server.steps == list(range(100))


def test_a_killed_process_loses_no_record_and_repeats_none(tmp_path: Path) -> None:
    path, server = tmp_path / "spool.jsonl", Server()
    killed = SpooledTracker(path, server, ON_FLUSH)
    for step in range(3):
        killed.log_metrics({"loss": 0.0}, step)
    killed.flush()
    killed.log_metrics({"loss": 0.0}, 3)
    with path.open("ab") as file:
        file.write(b'{"kind": "metrics", "st')  # killed within a line
    Spool(path).drain(server)
    assert server.steps == [0, 1, 2, 3]
    restarted = SpooledTracker(path, server, ON_FLUSH)
    for step in range(2, 6):
        restarted.log_metrics({"loss": 0.0}, step)
    restarted.flush()
    assert server.steps == [0, 1, 2, 3, 4, 5]


def test_lines_that_a_power_failure_tore_are_passed_over(tmp_path: Path) -> None:
    path, server = tmp_path / "spool.jsonl", Server()
    tracker = SpooledTracker(path, server, ON_FLUSH)
    tracker.log_metrics({"loss": 0.0}, 0)
    with path.open("ab") as file:
        file.write(bytes(100) + b"\n" + b'12\n"text"\n[1]\n{}\n' + "ü".encode("latin-1") + b"\n")
    restarted = SpooledTracker(path, server, ON_FLUSH)
    restarted.log_metrics({"loss": 0.0}, 1)
    restarted.flush()
    assert server.steps == [0, 1]
    assert Spool(path).last_steps() == {"loss": 1}
    restarted.log_metrics({"loss": 0.0}, 2)
    restarted.flush()
    assert server.steps == [0, 1, 2]


@pytest.mark.parametrize("mark", [b"", b"-1", b"\0\0", b"many", b"\xff", b"7", b"100000"])
def test_all_goes_out_again_where_it_is_not_known_what_did(tmp_path: Path, mark: bytes) -> None:
    path, server = tmp_path / "spool.jsonl", Server()
    tracker = SpooledTracker(path, server, AT_ONCE)
    tracker.log_metrics({"loss": 0.0}, 0)
    path.with_name("spool.jsonl.sent").write_bytes(mark)
    tracker.log_metrics({"loss": 0.0}, 1)
    assert server.steps == [0, 0, 1]


def test_what_went_out_before_a_failure_does_not_go_out_again(tmp_path: Path) -> None:
    path, server = tmp_path / "spool.jsonl", Server()
    tracker = SpooledTracker(path, server, ON_FLUSH)
    tracker.log_metrics({"loss": 0.0}, 0)
    tracker.log_params({"a": "b"})
    tracker.log_metrics({"loss": 0.0}, 1)
    server.healthy_requests = 2
    tracker.flush()
    assert server.steps == [0]
    server.healthy_requests = math.inf
    with pytest.raises(TrackingError, match="does not answer"):
        Spool(path).drain(_refuse)
    Spool(path).drain(server)
    assert server.steps == [0, 1]


def test_steps_repeated_after_a_restart_are_recorded_once(tmp_path: Path) -> None:
    path, server = tmp_path / "spool.jsonl", Server()
    first = SpooledTracker(path, server, AT_ONCE)
    for step in range(5):
        first.log_metrics({"loss": 0.0}, step)
    resumed = SpooledTracker(path, server, AT_ONCE)
    for step in range(2, 8):
        resumed.log_metrics({"loss": 0.0}, step)
    resumed.log_metrics({"dev_stsb_spearman": 80.0}, 0)  # another metric, never recorded
    assert server.steps == [0, 1, 2, 3, 4, 5, 6, 7, 0]


def test_a_record_that_moves_to_another_server_is_sent_whole(tmp_path: Path) -> None:
    path, old, new = tmp_path / "spool.jsonl", Server(), Server()
    tracker = SpooledTracker(path, old, AT_ONCE)
    for step in range(3):
        tracker.log_metrics({"loss": 0.0}, step)
    moved = Spool(path)
    moved.rewind()
    moved.drain(new)
    assert new.steps == [0, 1, 2]


def test_two_trackers_take_turns_on_one_spool(tmp_path: Path) -> None:
    path, server = tmp_path / "spool.jsonl", Server()
    driver = SpooledTracker(path, server, ON_FLUSH)
    worker = SpooledTracker(path, server, ON_FLUSH)
    driver.log_params({"seed": "1"})
    for step in range(3):
        worker.log_metrics({"loss": 0.0}, step)
    worker.flush()
    worker.log_metrics({"loss": 0.0}, 3)
    driver.finish("FINISHED")
    assert [len(request) for request in server.requests] == [1, 3, 1, 1]
    assert server.steps == [0, 1, 2, 3]


def _refuse(request: Sequence[Record]) -> None:
    raise TrackingError("tracking server http://there does not answer")


def test_the_end_reaches_the_server_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server = Server()
    tracker = SpooledTracker(tmp_path / "spool.jsonl", server, ON_FLUSH)
    tracker.log_metrics({"loss": 1.5}, 1)

    def full(spool: Spool, record: Record) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Spool, "append", full)
    with pytest.raises(OSError, match="No space left"):
        tracker.log_metrics({"loss": 1.25}, 2)
    tracker.finish("FAILED")
    assert [record["kind"] for request in server.requests for record in request] == ["end"]
    assert "spool.jsonl cannot be written: No space left on device" in caplog.text
    monkeypatch.undo()
    SpooledTracker(tmp_path / "spool.jsonl", server, ON_FLUSH).flush()
    assert server.steps == [1]


def test_a_mark_that_cannot_be_written_costs_a_second_sending_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server()
    tracker = SpooledTracker(tmp_path / "spool.jsonl", server, ON_FLUSH)
    tracker.log_metrics({"loss": 1.5}, 1)

    def full(path: Path, content: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(spool, "write_atomically", full)
        tracker.flush()
    tracker.flush()
    assert server.steps == [1, 1]
    tracker.flush()
    assert server.steps == [1, 1]


def test_samples_of_many_threads_are_numbered_and_leave_the_metrics_whole(tmp_path: Path) -> None:
    path, server = tmp_path / "spool.jsonl", Server()
    tracker = SpooledTracker(path, server, Pace(records=7, seconds=10**9))

    def sample() -> None:
        for _ in range(50):
            tracker.log_sample({"system/cpu": 1.0, "system/disk": 2.0})

    threads = [threading.Thread(target=sample) for _ in range(4)]
    for thread in threads:
        thread.start()
    for step in range(100):
        tracker.log_metrics({"loss": 0.0}, step)
    for thread in threads:
        thread.join()
    tracker.flush()
    sent = [record for request in server.requests for record in request]
    steps: dict[str, list[int]] = {"loss": [], "system/cpu": [], "system/disk": []}
    for record in sent:
        assert record["kind"] == "metrics"
        for name in record["values"]:
            steps[name].append(record["step"])
    assert steps["loss"] == list(range(100))
    assert steps["system/cpu"] == steps["system/disk"] == list(range(200))


def test_a_sample_waits_for_the_next_call_of_the_thread_that_sends(tmp_path: Path) -> None:
    path, server = tmp_path / "spool.jsonl", Server()
    SpooledTracker(path, server, AT_ONCE).log_sample({"system/cpu": 1.0})
    assert server.calls == 0
    tracker = SpooledTracker(path, server, AT_ONCE)
    tracker.log_sample({"system/cpu": 2.0, "system/gpu_0": 3.0})
    tracker.log_metrics({"loss": 0.5}, 10)
    assert [[record["step"] for record in request] for request in server.requests] == [[0, 1, 10]]
