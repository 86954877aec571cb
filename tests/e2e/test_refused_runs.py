"""Runs, models and servers that are not as a command needs them: one line, nothing lost."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from simcse_platform.tracking.mlflow_session import session
from support.bad_input import (
    SENTENCES,
    Train,
    command_line,
    environment,
    nothing_is_left,
    sts_folder,
    write_parquet,
)
from support.command_line import CommandLine, Outcome

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


def test_rows_that_are_not_utf8_are_set_aside_up_to_the_allowed_share(
    prepare: Train, tmp_path: Path
) -> None:
    file = tmp_path / "corpus.txt"
    lines = [sentence.encode() for sentence in SENTENCES]
    file.write_bytes(b"\n".join([*lines[:40], b"a d\xf6g runs", *lines[40:98], b"b\xff"]) + b"\n")
    failed = prepare(file)
    assert failed.code == 1
    assert failed.error == (
        f"2 of 100 rows (2.0%) cannot be used, the first is {file}:41 (not UTF-8): mend them or "
        "raise data.max_bad_share or --max-bad-share (now 0.01)"
    )
    assert nothing_is_left(tmp_path)
    done = prepare(file, "--max-bad-share", "0.02")
    assert (done.code, done.err) == (0, "")
    assert "98 rows in 1 shards" in done.out
    assert "unusable: 2 not UTF-8" in done.out
    quarantine = (tmp_path / "prepared" / "quarantine.jsonl").read_text().splitlines()
    assert [json.loads(line)["row"] for line in quarantine] == [41, 100]


def test_a_dataset_prepared_for_another_model_is_refused_by_name(
    prepare: Train, train: Train, corpus: Path, tiny_encoder: Path, tmp_path: Path
) -> None:
    assert prepare(corpus, "--max-length", "12").code == 0
    prepared = tmp_path / "prepared"
    refused = train("--corpus", prepared, "--set", "encoder.max_length=16")
    assert refused.code == 2
    assert refused.error == (
        f"{prepared} was prepared with max_length 12, encoder.max_length is 16: prepare it again "
        "or set encoder.max_length=12"
    )
    other = tmp_path / "other"
    shutil.copytree(tiny_encoder, other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    tokenizer["normalizer"]["lowercase"] = False
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    refused = train("--corpus", prepared, "--set", f"encoder.model={other}")
    assert refused.code == 2
    assert refused.error == (
        f"{prepared} was prepared with the tokenizer of {tiny_encoder}, which is not that of "
        "encoder.model: prepare it again with this model"
    )
    refused = prepare(corpus, "--max-length", "16")
    assert refused.code == 2
    assert refused.error == (
        f"{prepared} holds a dataset prepared from other input or settings: name another folder or "
        "remove it"
    )
    assert not (tmp_path / "runs" / "mine").exists()


def test_an_output_folder_that_cannot_be_written_is_named(
    train: Train, prepare: Train, simcse: CommandLine, corpus: Path, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    refused = train("--corpus", corpus, "--output", file)
    assert refused.code == 2
    assert refused.error == (
        f"nothing can be written into {file} (File exists): name another folder"
    )
    refused = prepare(corpus, "--output", file / "below" / "prepared")
    assert refused.code == 2
    assert refused.error == (
        f"nothing can be written into {file / 'below'} (Not a directory): name another folder"
    )
    refused = prepare(corpus, "--output", file)
    assert refused.code == 2
    assert refused.error == f"{file} exists and is no prepared dataset: name another folder"
    result = ["--output", file, "--json", tmp_path / "out.json"]
    failed = simcse("evaluate", "models:/name@champion", "--tasks", "DemoPairs", *result)
    assert failed.code == 1
    assert failed.error.startswith(f"tracking database {file / 'mlflow.db'} cannot be opened (")
    refused = simcse("register", "mine", "name", *result)
    assert refused.code == 2
    assert refused.error.startswith(f"'mine' is no model folder, no finished run in {file} and no")
    assert nothing_is_left(tmp_path)


def test_a_tracking_server_that_does_not_answer_is_named_and_the_name_stays_free(
    train: Train,
    simcse: CommandLine,
    corpus: Path,
    tiny_encoder: Path,
    tmp_path: Path,
    no_server: str,
) -> None:
    arguments = ["--tracking", no_server, "--json", tmp_path / "out.json"]
    arguments += ["--output", tmp_path / "runs"]
    sets = ["--tasks", "DemoPairs"]
    for failed in (
        train("--corpus", corpus, "--tracking", no_server),
        simcse("register", tiny_encoder, "name", *arguments),
        simcse("register", "0" * 32, "name", *arguments),
        simcse("promote", "name", *sets, *arguments),
        simcse("rollback", "name", *arguments),
        simcse("evaluate", "models:/name@champion", *sets, *arguments),
    ):
        assert failed.code == 1
        assert failed.error == (
            f"tracking server {no_server} does not answer: start it, or correct tracking.uri"
        )
    refused = train("--corpus", corpus, "--tracking", "ftp://server")
    assert refused.code == 2
    assert refused.error == (
        "tracking.uri is 'ftp://server': give the URI of an MLflow server (http://host:port) or "
        "sqlite:///file.db"
    )
    assert list((tmp_path / "runs").iterdir()) == []
    assert nothing_is_left(tmp_path)


def test_models_and_aliases_that_are_not_there_are_named(
    simcse: CommandLine, tmp_path: Path, database: str
) -> None:
    data = sts_folder(tmp_path / "data", gold="4")
    with session(database) as client:
        client.create_registered_model("known")
    arguments = ["--tracking", database, "--output", tmp_path / "runs"]
    arguments += ["--json", tmp_path / "out.json"]
    sets = ["--tasks", "DemoPairs"]
    unknown = f"there is no model 'unknown' in the registry {database}: register one"
    for command, code, line in (
        (("evaluate", "models:/unknown@champion", *sets), 1, unknown),
        (("promote", "unknown", *sets), 1, unknown),
        (("rollback", "unknown"), 1, unknown),
        (
            ("evaluate", "models:/known@champion", *sets),
            1,
            "known has no version with the alias champion: register or promote one, or "
            "name a version by its number",
        ),
        (
            ("promote", "known", *sets),
            1,
            "known has no version with the alias challenger: register or promote one, or "
            "name a version by its number",
        ),
        (
            ("evaluate", "models:/known/7", *sets),
            1,
            "there is no version 7 of known: check the number",
        ),
        (
            ("rollback", "known"),
            1,
            "known has no previous champion to go back to: promote the version you want",
        ),
        (
            ("evaluate", "models:/known", *sets),
            2,
            "'models:/known' is no model URI: write models:/NAME@alias or models:/NAME/3",
        ),
        (("register", "0" * 32, "known"), 1, f"there is no run {'0' * 32}: check the id"),
        (
            ("register", "mine", "known"),
            2,
            f"'mine' is no model folder, no finished run in {tmp_path / 'runs'} and no MLflow run "
            "id: check the path",
        ),
        (
            ("promote", "known", "--tasks", "STS14", "--data", data),
            2,
            f"STS14 is missing (there is no folder of STS14 in {data}), but a promotion "
            "compares on every set of --tasks: give its folder by --data, or name other sets, "
            "such as DemoPairs, which is always there",
        ),
    ):
        failed = simcse(*command, *arguments)
        assert (failed.code, failed.error) == (code, line)
    with session(database) as client:
        assert client.search_model_versions("name = 'known'") == []
        assert "promotion_lock" not in client.get_registered_model("known").tags
    assert nothing_is_left(tmp_path)


def test_a_refused_run_leaves_its_name_free_and_a_finished_one_holds_it(
    train: Train, corpus: Path, tmp_path: Path, no_server: str, database: str
) -> None:
    run = tmp_path / "runs" / "mine"
    for fault in (
        ["--set", "data.columns=[texts]"],
        ["--set", f"encoder.model={tmp_path}"],
        ["--tracking", no_server],
        ["--corpus", tmp_path / "nowhere"],
    ):
        assert train("--fresh", "--corpus", corpus, *fault).code in (1, 2)
        assert not run.exists()
    done = train("--fresh", "--corpus", corpus)
    assert (done.code, done.err) == (0, "")
    summary = json.loads((tmp_path / "train.json").read_text())
    assert (summary["steps"], summary["rows"]) == (2, 16)

    kept = (run / "run.yaml").read_text()
    refused = train("--fresh", "--corpus", corpus)
    assert refused.code == 2
    assert refused.error == (
        f"run mine exists in {run.parent}: choose another --name, or leave out --fresh to go on "
        "with it"
    )
    refused = train("--corpus", corpus, "--set", "optim.learning_rate=1e-4")
    assert refused.code == 2
    assert refused.error == (
        "run mine was started with optim.learning_rate=3e-05, not optim.learning_rate=0.0001: "
        f"choose another --name, or go on with --config {run / 'run.yaml'}"
    )
    (run.parent / "other").mkdir()
    (run.parent / "other" / "file").touch()
    refused = train("--corpus", corpus, "--name", "other")
    assert refused.code == 2
    assert refused.error == (
        f"{run.parent / 'other'} exists and holds no run: choose another --name"
    )
    assert (run / "run.yaml").read_text() == kept

    (tmp_path / "train.json").unlink()
    again = train("--corpus", corpus, "--set", "tracking.log_every=1")
    assert (again.code, again.err) == (0, "")
    assert again.out.startswith("connecting to Ray\nrun mine is finished: nothing to do\n")
    assert json.loads((tmp_path / "train.json").read_text()) == summary
    went_on = train("--config", run / "run.yaml")
    assert (went_on.code, went_on.err) == (0, "")


def test_a_run_is_trained_by_one_command_and_goes_on_with_its_corpus_only(
    train: Train, corpus: Path, config: Path, tmp_path: Path
) -> None:
    config.write_text(config.read_text().replace('"max_steps": 2', '"epochs": 10000'))
    process = subprocess.Popen(
        [*command_line(config, corpus, tmp_path), "--set", "checkpoint.every=5"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stdout is not None
    started = any(line.startswith("train mine ") for line in process.stdout)
    second = train("--corpus", corpus)
    assert second.code == 2
    assert second.error.startswith(f"run mine is being trained already (process {process.pid} on ")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert started, err
    stopped = Outcome(process.returncode, out, err)
    assert stopped.code == 3
    assert stopped.error == "stopped; an unfinished run goes on by the same command"
    folder = tmp_path / "runs" / "mine"
    assert list(folder.glob("checkpoint-*/checkpoint.json"))
    assert not (folder / "summary.json").exists()

    write_parquet(corpus, SENTENCES[1:])
    # Without a checkpoint too: what MLflow has of its steps is of the corpus that it began with.
    for _ in range(2):
        refused = train("--corpus", corpus)
        assert refused.code == 2
        assert refused.error == (
            "the corpus of run mine has changed since it began: choose another --name, or bring "
            "back the files it began with"
        )
        for path in folder.glob("checkpoint-*"):
            shutil.rmtree(path)
