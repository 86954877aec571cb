"""Settings and data that are wrong, through the command line: one line, nothing left over.

Exit codes: 2 for a wrong usage, setting or path, known before any work; 1 for the content of a
file, or work that failed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from support.bad_input import (
    SENTENCES,
    Train,
    command_line,
    damaged,
    environment,
    nothing_is_left,
    sts_folder,
    write_parquet,
)
from support.command_line import CommandLine, Outcome

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


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
        "dev.tasks names it: give its folder by --data, or name other sets, such as DemoPairs, "
        "which is always there"
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


@pytest.mark.machines
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
