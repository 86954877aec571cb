from __future__ import annotations

import json
from pathlib import Path

import datasets
import huggingface_hub
import pytest

from simcse.errors import DataError, UsageError
from simcse_platform.ingest.readers import read
from simcse_platform.ingest.sources import files_by_source, find_files


def texts_of(files: list[Path]) -> list[str | None]:
    return [row.texts[0] for file in files for row in read(file, ["text"]) if row.texts]


def test_folders_and_globs_stand_for_their_files_by_name(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "deep/c.csv.gz", "notes.md", "part.csv/d.txt", "cache-1.arrow"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text\n")
    names = [str(file.relative_to(tmp_path)) for file in find_files([tmp_path])]
    assert names == ["a.txt", "b.txt", "deep/c.csv.gz", "part.csv/d.txt"]
    both = find_files([tmp_path / "b.txt", tmp_path / "[ab].txt"])
    assert [file.name for file in both] == ["b.txt", "a.txt"]


def test_hidden_files_and_all_below_hidden_folders_are_left_out(tmp_path: Path) -> None:
    corpus = tmp_path / "_corpus"
    for name in ("a.txt", ".b.txt", "_c.txt", ".git/d.txt", "deep/_temporary/e.txt"):
        (corpus / name).parent.mkdir(parents=True, exist_ok=True)
        (corpus / name).write_text("text\n")
    assert find_files([corpus]) == [corpus / "a.txt"]


def test_a_source_that_names_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nothing\*\.txt names no file"):
        find_files([tmp_path / "nothing*.txt"])
    with pytest.raises(UsageError, match="no corpus is named"):
        find_files([])


def test_a_file_of_unknown_format_is_refused(tmp_path: Path) -> None:
    endings = r"\.txt, \.csv, \.tsv, \.jsonl \(also with \.gz or \.zst\), \.parquet, \.arrow"
    for name in ("a.doc", "a.parquet.gz", "a.gz"):
        (tmp_path / name).write_text("x")
        with pytest.raises(UsageError, match=rf"{name} has no known format: .* {endings}"):
            find_files([tmp_path / name])


def test_an_empty_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "e.txt").touch()
    with pytest.raises(DataError, match=r"e\.txt is empty"):
        find_files([tmp_path])


def test_a_file_belongs_to_the_first_source_that_names_it(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("text\n")
    a, b = tmp_path / "a.txt", tmp_path / "b.txt"
    assert files_by_source([b, tmp_path, a]) == [[b], [a], []]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset saved by `datasets` as `one`, with leftovers, and two splits of one as `two`."""
    folder = tmp_path_factory.mktemp("saved")
    rows = datasets.Dataset.from_dict({"text": ["a", "b", "c"], "n": [1, 2, 3]})
    rows.shuffle(seed=0).save_to_disk(folder / "one", num_shards=2)
    datasets.DatasetDict(train=rows, test=rows.select([2])).save_to_disk(folder / "two")
    datasets.DatasetDict(train=rows).save_to_disk(folder / "single")
    (folder / "one" / "cache-17.arrow").write_bytes(b"of a map that was made later")
    return folder


def test_a_saved_dataset_stands_for_its_rows_in_their_order(saved: Path) -> None:
    files = find_files([saved / "one"])
    assert [file.name for file in files] == [f"data-0000{i}-of-00002.arrow" for i in range(2)]
    assert texts_of(files) == datasets.load_from_disk(str(saved / "one"))["text"][:]


def test_of_several_saved_splits_one_is_to_be_named(saved: Path) -> None:
    assert texts_of(find_files([saved / "single"])) == ["a", "b", "c"]
    assert texts_of(find_files([saved / "two" / "test"])) == ["c"]
    with pytest.raises(UsageError, match=r"two has the splits train, test: name one, .*two/train$"):
        find_files([saved / "two"])


def test_a_broken_saved_dataset_is_named(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(DataError, match=r"is no readable saved dataset \(.+\): save it again"):
        find_files([tmp_path])


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, object]]:
    """A hub that has one dataset of two splits; what is asked of it."""
    folder = tmp_path / "snapshot"
    (folder / "data").mkdir(parents=True)
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: default\n  data_files:\n"
        "  - split: train\n    path: data/part-*.jsonl\n"
        "  - split: test\n    path: data/held-out.jsonl\n---\n"
    )
    for name in ("part-0", "part-1", "held-out"):
        (folder / "data" / f"{name}.jsonl").write_text(json.dumps({"text": name}) + "\n")
    asked: list[dict[str, object]] = []

    def download(name: str, **options: object) -> str:
        asked.append({"name": name, **options})
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return asked


def test_a_split_of_a_hub_dataset_is_the_files_that_its_card_names(
    hub: list[dict[str, object]],
) -> None:
    assert texts_of(find_files(["hf://owner/name:train"])) == ["part-0", "part-1"]
    assert texts_of(find_files(["hf://owner/name@v1.0:test"])) == ["held-out"]
    whole = {"name": "owner/name", "repo_type": "dataset", "allow_patterns": None}
    assert hub == [whole | {"revision": None}, whole | {"revision": "v1.0"}]
    with pytest.raises(
        UsageError, match=r"name:dev is no split of this dataset: it has train, test"
    ):
        find_files(["hf://owner/name:dev"])
    with pytest.raises(
        UsageError, match=r"hf://owner/name has the splits train, test: name one, s"
    ):
        find_files(["hf://owner/name"])


def test_files_of_a_hub_dataset_are_downloaded_alone(hub: list[dict[str, object]]) -> None:
    assert texts_of(find_files(["hf://owner/name@main/data/part-1.jsonl"])) == ["part-1"]
    assert texts_of(find_files(["hf://owner/name/data/part-*.jsonl"])) == ["part-0", "part-1"]
    assert [ask["allow_patterns"] for ask in hub] == ["data/part-1.jsonl", "data/part-*.jsonl"]
    with pytest.raises(UsageError, match=r"name/no\*\.csv names no file of this dataset"):
        find_files(["hf://owner/name/no*.csv"])


def test_a_hub_dataset_without_plain_splits_is_named_by_its_files(
    hub: list[dict[str, object]], tmp_path: Path
) -> None:
    (tmp_path / "snapshot" / "README.md").write_text(
        "---\nconfigs:\n- config_name: a\n  data_files: data/part-0.jsonl\n"
        "- config_name: b\n  data_files: data/part-1.jsonl\n---\n"
    )
    with pytest.raises(
        UsageError, match=r"cannot be opened by its splits \(Config name is missing"
    ):
        find_files(["hf://owner/name:train"])


def test_a_hub_that_cannot_be_reached_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        UsageError, match=r"hf://owner/name:train could not be had from the hub \(L"
    ):
        find_files(["hf://owner/name:train"])
    with pytest.raises(UsageError, match=r"hf://owner names no dataset of the hub: write hf://"):
        find_files(["hf://owner"])
