"""What `prepare` finds out before it starts or joins a cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from simcse.errors import UsageError
from simcse_platform import runtime
from simcse_platform.ingest.cleaning import RowOptions
from simcse_platform.ingest.prepare import Plan, make, plan
from support.command_line import CommandLine


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*arguments: object) -> None:
        pytest.fail("a cluster was asked for")

    monkeypatch.setattr(runtime, "connect", connect)


@pytest.fixture
def planned(tiny_encoder: Path) -> Callable[..., Plan]:
    def of(*sources: Path, **settings: object) -> Plan:
        given = {"tokenizer_model": str(tiny_encoder), "max_length": 8} | settings
        return plan(sources, **given)  # type: ignore[arg-type]

    return of


def test_wrong_paths_and_columns_are_refused_without_a_cluster(
    simcse: CommandLine, tiny_encoder: Path, tmp_path: Path
) -> None:
    rows, taken = tmp_path / "a.csv", tmp_path / "taken"
    rows.write_text("a,b\nx,y\n")
    taken.touch()
    command = ["prepare", rows, "--model", tiny_encoder, "--output"]
    missing = simcse("prepare", tmp_path / "no.txt", *command[2:], tmp_path / "out")
    assert missing.error.startswith(f"{tmp_path}/no.txt names no file")
    twice = simcse(*command, tmp_path / "out", "--columns", "a,a")
    assert twice.error == "the columns are a, a: name each column once"
    used = simcse(*command, taken)
    assert used.error == f"{taken} exists and is no prepared dataset: name another folder"
    order = simcse(*command, tmp_path / "out", "--keep-order")
    assert order.error == "--keep-order needs one text column, not a, b: name it by --columns"
    pair = simcse(*command, tmp_path / "out", "--sample", "5", "--sample-each", "5")
    assert pair.error == "--sample and --sample-each are two ways to draw rows: leave out one"
    again = simcse("prepare", rows, *command[1:], tmp_path / "out", "--sample-each", "1")
    assert again.error.startswith(f"every file of {rows} belongs to a source before it, so that")
    assert {refused.code for refused in (missing, twice, used, order, pair, again)} == {2}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "taken"]


def test_the_key_follows_content_and_settings_and_not_names(
    planned: Callable[..., Plan], tmp_path: Path
) -> None:
    for name, text in {"a.txt": "x\n", "b.txt": "x\n", "c.txt": "y\n", "a.csv": "x\n"}.items():
        (tmp_path / name).write_text(text)
    a, b, c = (tmp_path / name for name in ("a.txt", "b.txt", "c.txt"))
    assert planned(a).key == planned(b).key
    options = [
        RowOptions(),
        RowOptions(keep_order=True),
        RowOptions(split_language="en"),
        RowOptions(min_words=2),
        RowOptions(dedupe_corpus=True),
        RowOptions(sample=1),
        RowOptions(sample_each=1),
        RowOptions(sample=1, seed=1),
    ]
    keys = {planned(a, options=option).key for option in options}
    keys |= {planned(a, max_length=9).key, planned(c).key, planned(tmp_path / "a.csv").key}
    assert len(keys) == len(options) + 3
    # Two sources draw twice as many rows as one of the same files.
    each = RowOptions(sample_each=1)
    assert planned(a, c, options=each).key != planned(tmp_path / "[ac].txt", options=each).key


def test_the_output_is_checked_before_the_work(
    planned: Callable[..., Plan], tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("x\n")
    with pytest.raises(UsageError, match=r"nothing can be written into .*a\.txt/below"):
        make(planned(tmp_path / "a.txt"), tmp_path / "a.txt" / "below" / "out")
