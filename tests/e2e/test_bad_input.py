"""What a user can get wrong, through the command line: one line, an exit code, nothing left over.

2: wrong usage, setting or path, known before any work. 1: content of a file, or work that failed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simcse_platform.tracking.mlflow_session import session
from support.command_line import CommandLine, Outcome

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

SENTENCES = [
    f"the {animal} runs to house {number}"
    for number in range(25)
    for animal in ("dog", "cat", "bird", "horse")
]
Train = Callable[..., Outcome]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One tracking database for all runs here: making one takes seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('tracking') / 'mlflow.db'}"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """100 sentences in a parquet file."""
    return write_parquet(tmp_path / "corpus.parquet", SENTENCES)


@pytest.fixture
def config(tmp_path: Path, tiny_encoder: Path) -> Path:
    """Settings of a run of two steps, without dev sets."""
    file = tmp_path / "config.yaml"
    settings = {
        "encoder": {"model": str(tiny_encoder), "max_length": 12, "length_buckets": 2},
        "dev": {"tasks": []},
        "scale": {"cpus_per_worker": 1, "threads_per_worker": 1},
        "global_batch_size": 8,
        "max_steps": 2,
    }
    file.write_text(json.dumps(settings))
    return file


@pytest.fixture
def train(simcse: CommandLine, config: Path, tmp_path: Path, database: str) -> Train:
    """`simcse train` under the name "mine" in `runs`, with whatever else is given."""

    def run(*arguments: object) -> Outcome:
        return simcse(
            *("train", "--config", config, "--name", "mine", "--output", tmp_path / "runs"),
            *("--tracking", database, "--json", tmp_path / "train.json", *arguments),
        )

    return run


@pytest.fixture
def prepare(simcse: CommandLine, tmp_path: Path, tiny_encoder: Path) -> Train:
    """`simcse prepare` into `prepared`."""

    def run(*arguments: object) -> Outcome:
        return simcse(
            *("prepare", "--model", tiny_encoder, "--output", tmp_path / "prepared"),
            *("--json", tmp_path / "prepare.json", *arguments),
        )

    return run


@pytest.fixture
def no_server() -> str:
    """Address at which nothing listens."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{closed.getsockname()[1]}"


def write_parquet(file: Path, sentences: list[str], column: str = "text") -> Path:
    pq.write_table(pa.table({column: sentences}), file, compression="zstd", use_dictionary=False)
    return file


def damaged(file: Path) -> bytes:
    """Spoil the pages of a parquet file and leave its footer; the former content."""
    content = file.read_bytes()
    file.write_bytes(content[:4] + bytes(60) + content[64:])
    return content


def sts_folder(data: Path, gold: str) -> Path:
    """A folder with the dev split of STS-B, of one pair."""
    folder = data / "STSBenchmark"
    folder.mkdir(parents=True)
    (folder / "dev.tsv").write_text(f"score\tsentence1\tsentence2\n{gold}\ta dog\ta cat\n")
    return data


def command_line(config: Path, corpus: Path, tmp_path: Path) -> list[str]:
    """`simcse train` as the fixture `train` has it, for a process of its own."""
    run = ["train", "--config", config, "--name", "mine", "--output", tmp_path / "runs"]
    return [sys.executable, "-m", "pipelines", *map(str, run), "--corpus", str(corpus)]


def environment() -> dict[str, str]:
    """That of a process which shall have a Ray of its own."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "SIMCSE_"))}


def nothing_is_left(tmp_path: Path) -> bool:
    """No run, dataset or result, and no trace of one that was begun."""
    runs, result = tmp_path / "runs", [*tmp_path.glob("*.json"), *tmp_path.glob("prepared*")]
    begun = [*tmp_path.glob(".*"), *runs.glob("mine*"), *runs.glob(".prepared/*")]
    begun += runs.glob(".prepared/.*")
    return not result and not begun


def test_settings_that_are_wrong_are_refused_before_anything_is_made(
    train: Train, corpus: Path, config: Path, tmp_path: Path
) -> None:
    refused = train("--corpus", corpus, "--set", "optim.learning_rat=1")
    assert refused.code == 2
    assert refused.error == (
        "there is no setting optim.learning_rat: did you mean optim.learning_rate?"
    )
    refused = train("--corpus", corpus, "--set", "scale.num_workers=9")
    assert refused.code == 2
    assert refused.error == (
        "global_batch_size is 8 but scale.num_workers is 9: every worker needs a row, so raise the "
        "batch or use fewer workers"
    )
    refused = train()
    assert refused.code == 2
    assert refused.error == ("there is nothing to train on: give --corpus PATH or set data.corpus")
    refused = train("--corpus", corpus, "--name", "a/b")
    assert refused.code == 2
    assert refused.error == "--name is 'a/b': use letters, digits, dots, dashes, underscores"
    config.write_text(config.read_text().replace("max_steps", "max_step"))
    refused = train("--corpus", corpus)
    assert refused.code == 2
    assert refused.error == (f"{config}: there is no setting max_step: did you mean max_steps?")
    assert not (tmp_path / "runs").exists()
    assert nothing_is_left(tmp_path)


def test_dev_sets_that_cannot_be_used_are_named(
    train: Train, simcse: CommandLine, corpus: Path, tiny_encoder: Path, tmp_path: Path
) -> None:
    data = sts_folder(tmp_path / "data", gold="four")
    arguments = ["--corpus", corpus, "--data", data]
    refused = train(*arguments, "--set", "dev.tasks=[SICKRelatedness]")
    assert refused.code == 2
    assert refused.error == (
        f"SICKRelatedness is missing (there is no folder of SICKRelatedness in {data}), but "
        "dev.tasks names it: give its folder by --data, or name other sets"
    )
    refused = train(*arguments, "--set", "dev.tasks=[STS-B]")
    assert refused.code == 2
    assert refused.error.startswith(
        "there is no evaluation set 'STS-B' (did you mean STSBenchmark?): the sets are STS12, "
    )
    gold = (
        f"{data / 'STSBenchmark' / 'dev.tsv'} line 2: the gold score 'four' is no number; write "
        "one, or nothing for a pair without a score"
    )
    refused = train(*arguments, "--set", "dev.tasks=[STSBenchmark]")
    assert (refused.code, refused.error) == (1, gold)
    refused = simcse(
        *("evaluate", tiny_encoder, "--mode", "dev", "--tasks", "STSBenchmark", "--data", data),
        *("--json", tmp_path / "scores.json"),
    )
    assert (refused.code, refused.error) == (1, gold)
    assert not (tmp_path / "runs").exists()
    assert nothing_is_left(tmp_path)


def test_a_model_folder_without_weights_is_named(
    train: Train,
    prepare: Train,
    simcse: CommandLine,
    corpus: Path,
    tiny_encoder: Path,
    tmp_path: Path,
    database: str,
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_encoder, model)
    (model / "model.safetensors").unlink()
    line = (
        f"model folder {model} has no weights (model.safetensors): copy it there, or name a "
        "complete Hugging Face model folder"
    )
    result = ["--json", tmp_path / "out.json"]
    for refused in (
        train("--corpus", corpus, "--set", f"encoder.model={model}"),
        prepare(corpus, "--model", model),
        simcse("evaluate", model, "--tasks", "DemoPairs", *result),
        simcse("register", model, "name", "--tracking", database, *result),
    ):
        assert (refused.code, refused.error) == (2, line)
    refused = simcse("evaluate", tmp_path / "nowhere", "--tasks", "DemoPairs")
    assert refused.code == 2
    assert refused.error == f"there is no model folder {tmp_path / 'nowhere'}: check the path"
    assert not list((tmp_path / "runs").glob("*"))
    assert nothing_is_left(tmp_path)


@pytest.mark.parametrize("command", ["prepare", "train"])
@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_a_column_that_is_not_there_is_named_with_those_that_are(
    train: Train, prepare: Train, tmp_path: Path, command: str, ending: str
) -> None:
    file = tmp_path / f"corpus.{ending}"
    if ending == "parquet":
        write_parquet(file, SENTENCES, column="sentence")
    else:
        file.write_text("sentence\n" + "\n".join(SENTENCES))
    refused = (
        train("--corpus", file, "--set", "data.columns=[text]")
        if command == "train"
        else prepare(file, "--columns", "text")
    )
    assert refused.code == 2
    assert refused.error == f"{file} has no text column 'text': it has 'sentence'"
    assert nothing_is_left(tmp_path)


@pytest.mark.parametrize("ending", ["txt", "csv", "parquet"])
def test_an_empty_file_is_named(train: Train, prepare: Train, tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"corpus.{ending}"
    file.touch()
    for refused in (train("--corpus", file), prepare(file)):
        assert refused.code == 1
        assert refused.error == f"{file} is empty: remove it from the corpus"
    for refused in (train("--corpus", tmp_path / "no*.txt"), prepare(tmp_path / "no*.txt")):
        assert refused.code == 2
        assert refused.error.startswith(f"{tmp_path / 'no*.txt'} names no file: give a file, a ")
    assert nothing_is_left(tmp_path)


def test_a_parquet_file_that_cannot_be_opened_is_named(
    train: Train, prepare: Train, corpus: Path, tmp_path: Path
) -> None:
    corpus.write_bytes(corpus.read_bytes()[:-20])
    for refused in (train("--corpus", corpus), prepare(corpus)):
        assert refused.code == 1
        assert refused.error.startswith(f"{corpus} is no readable parquet file (")
        assert refused.error.endswith("): restore or remove it")
    assert nothing_is_left(tmp_path)


def test_a_shard_that_is_corrupt_within_leaves_no_dataset(
    prepare: Train, corpus: Path, tmp_path: Path
) -> None:
    whole = damaged(corpus)
    failed = prepare(corpus)
    assert failed.code == 1
    assert failed.error.startswith(f"{corpus} is no readable parquet file (")
    assert failed.error.endswith("): restore or remove it")
    assert nothing_is_left(tmp_path)
    corpus.write_bytes(whole)
    done = prepare(corpus)
    assert (done.code, done.err) == (0, "")
    assert json.loads((tmp_path / "prepare.json").read_text())["rows"] == 100


def test_a_shard_that_shows_its_damage_in_training_is_named_and_the_run_goes_on_without_it(
    train: Train, config: Path, tmp_path: Path
) -> None:
    shards = tmp_path / "shards"
    shards.mkdir()
    write_parquet(shards / "a.parquet", SENTENCES)
    bad = write_parquet(shards / "b.parquet", SENTENCES)
    damaged(bad)
    # A process of its own: warnings and the logs of libraries count as lines too.
    failed = subprocess.run(
        command_line(config, shards, tmp_path),
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    shown = Outcome(failed.returncode, failed.stdout, failed.stderr)
    assert shown.code == 1
    assert shown.error.startswith(f"{bad} is no readable parquet file (")
    assert shown.error.endswith("): restore or remove it")
    folder = tmp_path / "runs" / "mine"
    assert not {"summary.json", "result.json", "best"} & {path.name for path in folder.iterdir()}
    assert not list(folder.glob("checkpoint-*"))

    bad.unlink()
    done = train("--corpus", shards, "--tracking", f"sqlite:///{tmp_path / 'runs' / 'mlflow.db'}")
    assert (done.code, done.err) == (0, "")
    summary = json.loads((tmp_path / "train.json").read_text())
    assert summary["steps"] == 2
    assert (Path(summary["best"]["model"]) / "model.safetensors").is_file()


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
        "raise data.max_bad_share (now 0.01)"
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
            "known has no version with the alias champion: register or promote one",
        ),
        (
            ("promote", "known", *sets),
            1,
            "known has no version with the alias challenger: register or promote one",
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
            "compares on every set of --tasks: give its folder by --data, or name other sets",
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
    assert again.out.startswith("run mine is finished: nothing to do\n")
    assert json.loads((tmp_path / "train.json").read_text()) == summary
    went_on = train("--config", run / "run.yaml")
    assert (went_on.code, went_on.err) == (0, "")


def test_an_interrupted_run_says_that_it_goes_on_and_does_so_with_its_corpus_only(
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
    refused = train("--corpus", corpus)
    assert refused.code == 2
    assert refused.error == (
        "the corpus of run mine has changed since it began: choose another --name, or bring back "
        "the files it began with"
    )
