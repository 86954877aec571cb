from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simcse.config import EncoderConfig
from simcse.errors import DataError, UsageError
from simcse.tokenizer import load_tokenizer, tokenize
from simcse_platform.config import DataConfig
from simcse_platform.ingest import source as source_module
from simcse_platform.ingest.manifest import Manifest, read_manifest
from simcse_platform.ingest.prepare import prepare
from simcse_platform.ingest.source import open_corpus
from simcse_platform.ingest.window import WindowPlan

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


def table_of(folder: Path, manifest: Manifest) -> pa.Table:
    return pa.concat_tables([pq.read_table(folder / shard.path) for shard in manifest.shards])


def files_under(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_text_is_cleaned_counted_and_kept_beside_its_tokens(
    tmp_path: Path, tiny_encoder: Path
) -> None:
    source = tmp_path / "a.txt"
    long = " ".join(["fish"] * 40)
    source.write_text(f"the  dog\truns\n\n a cat sits \nthe dog runs\n   \n{long}\n")
    seen: list[int] = []
    result = prepare(
        [source],
        tmp_path / "out",
        tokenizer_model=str(tiny_encoder),
        max_length=16,
        progress=seen.append,
    )
    table = table_of(result.folder, result.manifest)
    assert table["text"].to_pylist() == ["the dog runs", "a cat sits", long]
    want = tokenize(load_tokenizer(tiny_encoder), table["text"].to_pylist(), 16).ids
    assert table["text_tokens"].to_pylist() == want
    manifest = result.manifest
    assert (result.created, manifest.rows, sum(seen)) == (True, 3, 4)
    assert manifest.dropped == {"empty": 2, "duplicate": 1}
    assert manifest.cut == 1
    assert manifest.lengths == {"text": {5: 2, 16: 1}}


def test_shards_follow_the_input_whatever_runs_first(tmp_path: Path, tiny_encoder: Path) -> None:
    lines = [f"sentence {i}" for i in range(1000)]
    bounds = [0, 10, 400, 401, 750, 1000]
    for i in range(5):
        chunk = lines[bounds[i] : bounds[i + 1]]
        (tmp_path / f"{i}.txt").write_text("\n".join(chunk) + "\n")
    result = prepare(
        [tmp_path / "*.txt"],
        tmp_path / "out",
        tokenizer_model=str(tiny_encoder),
        max_length=16,
        rows_per_shard=128,
    )
    manifest = result.manifest
    assert [shard.rows for shard in manifest.shards] == [128] * 7 + [104]
    assert [shard.path for shard in manifest.shards] == sorted(s.path for s in manifest.shards)
    assert table_of(result.folder, manifest)["text"].to_pylist() == lines
    for shard in manifest.shards:
        content = (result.folder / shard.path).read_bytes()
        assert shard.sha256 == hashlib.sha256(content).hexdigest()


def test_three_columns_of_a_csv_keep_their_order(tmp_path: Path, tiny_encoder: Path) -> None:
    source = tmp_path / "nli.csv"
    source.write_text('sent0,sent1,hard_neg\n"a, dog",dog,cat\nman,,child\nx,y,z\n')
    result = prepare(
        [source],
        tmp_path / "out",
        tokenizer_model=str(tiny_encoder),
        max_length=8,
        columns=["hard_neg", "sent0"],
    )
    assert result.manifest.columns == ("hard_neg", "sent0")
    table = table_of(result.folder, result.manifest)
    assert table.select(["hard_neg", "sent0"]).to_pylist() == [
        {"hard_neg": "cat", "sent0": "a, dog"},
        {"hard_neg": "child", "sent0": "man"},
        {"hard_neg": "z", "sent0": "x"},
    ]
    assert table.column_names == ["hard_neg", "hard_neg_tokens", "sent0", "sent0_tokens"]


def test_unusable_rows_go_to_quarantine(tmp_path: Path, tiny_encoder: Path) -> None:
    text, rows = tmp_path / "a.txt", tmp_path / "b.csv"
    text.write_bytes(b"good\nb\xe9d\nfine\n")
    rows.write_text("text\none\ntwo,three\nfour\n")
    result = prepare(
        [text, rows],
        tmp_path / "out",
        tokenizer_model=str(tiny_encoder),
        max_length=8,
        max_bad_share=0.5,
    )
    assert result.manifest.quarantined == {"not UTF-8": 1, "wrong number of columns": 1}
    lines = (result.folder / "quarantine.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"file": str(text), "row": 2, "reason": "not UTF-8"},
        {"file": str(rows), "row": 3, "reason": "wrong number of columns"},
    ]


def test_too_many_unusable_rows_fail_and_leave_nothing(tmp_path: Path, tiny_encoder: Path) -> None:
    source = tmp_path / "in" / "a.txt"
    source.parent.mkdir()
    source.write_bytes(b"good\n" * 97 + b"b\xe9d\n" + b"good\n" + b"\xff\n")
    with pytest.raises(DataError, match=r"2 of 100 rows \(2\.0%\) .* is .*a\.txt:98 \(not UTF"):
        prepare([source], tmp_path / "out", tokenizer_model=str(tiny_encoder), max_length=8)
    assert files_under(tmp_path) == ["in/a.txt"]
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_corrupt_shard_met_while_reading_is_named(tmp_path: Path, tiny_encoder: Path) -> None:
    source = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [f"words {i}" for i in range(1000)]}), source)
    content = bytearray(source.read_bytes())
    content[4:60] = bytes(56)
    source.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.parquet is no readable parquet file"):
        prepare([source], tmp_path / "out", tokenizer_model=str(tiny_encoder), max_length=8)
    assert files_under(tmp_path) == ["a.parquet"]


def test_a_corpus_of_blank_lines_is_refused(tmp_path: Path, tiny_encoder: Path) -> None:
    source = tmp_path / "a.txt"
    source.write_text("\n \n")
    with pytest.raises(DataError, match=r"no usable row in .*a\.txt: 2 empty were dropped"):
        prepare([source], tmp_path / "out", tokenizer_model=str(tiny_encoder), max_length=8)


def test_a_finished_dataset_is_kept_and_another_one_is_not_overwritten(
    tmp_path: Path, tiny_encoder: Path
) -> None:
    source = tmp_path / "a.txt"
    source.write_text("one\ntwo\n")
    model = str(tiny_encoder)
    first = prepare([source], tmp_path / "out", tokenizer_model=model, max_length=8)
    again = prepare([source], tmp_path / "out", tokenizer_model=model, max_length=8)
    assert (first.created, again.created) == (True, False)
    assert again.manifest == first.manifest == read_manifest(tmp_path / "out")
    with pytest.raises(UsageError, match="holds a dataset prepared from other input or settings"):
        prepare([source], tmp_path / "out", tokenizer_model=model, max_length=9)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    with pytest.raises(UsageError, match="full exists and is no prepared dataset"):
        prepare([source], tmp_path / "full", tokenizer_model=model, max_length=8)


def test_text_given_to_training_is_prepared_once_into_a_folder_named_by_content(
    tmp_path: Path, tiny_encoder: Path
) -> None:
    source = tmp_path / "a.txt"
    source.write_text("the dog\na cat\n")
    encoder = EncoderConfig(model=str(tiny_encoder), max_length=8)
    data = DataConfig(corpus=(str(source),))
    said: list[str] = []
    first = open_corpus(data, encoder, tmp_path / "scratch", said.append)
    again = open_corpus(data, encoder, tmp_path / "scratch", said.append)
    source.write_text("the dog\na bird\n")
    other = open_corpus(data, encoder, tmp_path / "scratch", said.append)
    assert first == again
    assert (first.rows, first.columns, first.tokenised) == ((2,), ("text",), True)
    assert other.fingerprint != first.fingerprint
    names = [corpus.files[0].split("/")[-2] for corpus in (first, again, other)]
    folders = [tmp_path / "scratch" / name for name in names]
    announced = (
        "corpus: tokenising 1 file(s) once, into {}: only parquet, which {} is not, streams "
        "straight into training"
    )
    assert said == [
        announced.format(folders[0], source),
        f"corpus: prepared from 1 file(s) into {folders[0]}",
        f"corpus: already prepared from 1 file(s) into {folders[0]}",
        announced.format(folders[2], source),
        f"corpus: prepared from 1 file(s) into {folders[2]}",
    ]


def test_implicit_preparing_says_how_far_it_is(
    tmp_path: Path, tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "_SECONDS_BETWEEN_LINES", 0.0)
    (tmp_path / "a.txt").write_text("the dog\na cat\n")
    said: list[str] = []
    open_corpus(
        DataConfig(corpus=(str(tmp_path / "a.txt"),)),
        EncoderConfig(model=str(tiny_encoder), max_length=8),
        tmp_path / "scratch",
        said.append,
    )
    assert said[1:-1] == ["corpus: 2 rows prepared"]


def test_a_prepared_folder_is_taken_alone_and_checked(tmp_path: Path, tiny_encoder: Path) -> None:
    source, folder = tmp_path / "a.csv", tmp_path / "out"
    source.write_text("a,b\nx,y\n")
    prepare([source], folder, tokenizer_model=str(tiny_encoder), max_length=8)
    encoder = EncoderConfig(model=str(tiny_encoder), max_length=8)
    data = DataConfig(corpus=(str(folder),), columns=("b",))
    corpus = open_corpus(data, encoder, tmp_path, lambda line: None)
    assert (corpus.columns, corpus.tokenised) == (("b",), True)
    with pytest.raises(UsageError, match=r"out has no text column 'c': it has 'a', 'b'"):
        open_corpus(
            DataConfig(corpus=(str(folder),), columns=("c",)), encoder, tmp_path, lambda line: None
        )
    with pytest.raises(UsageError, match=r"names the prepared dataset .*out and more"):
        open_corpus(
            DataConfig(corpus=(str(folder), str(source))), encoder, tmp_path, lambda line: None
        )
    with pytest.raises(UsageError, match=r"max_length 8, encoder\.max_length is 9"):
        open_corpus(
            data, EncoderConfig(model=str(tiny_encoder), max_length=9), tmp_path, lambda line: None
        )


def test_raw_parquet_is_taken_as_it_is_with_rows_from_the_footers(
    tmp_path: Path, tiny_encoder: Path
) -> None:
    for i, rows in enumerate((3, 5)):
        pq.write_table(
            pa.table({"id": range(rows), "text": ["x"] * rows}), tmp_path / f"{i}.parquet"
        )
    encoder = EncoderConfig(model=str(tiny_encoder))
    said: list[str] = []
    corpus = open_corpus(
        DataConfig(corpus=(str(tmp_path),)), encoder, tmp_path / "scratch", said.append
    )
    assert (corpus.rows, corpus.columns, corpus.tokenised) == ((3, 5), ("text",), False)
    assert said == [
        "corpus: 2 parquet file(s), tokenised while training; a row without text stops the run, "
        "`simcse prepare` sorts such rows out"
    ]
    assert not (tmp_path / "scratch").exists()
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "none.parquet")
    with pytest.raises(DataError, match=r"none\.parquet has no rows"):
        open_corpus(
            DataConfig(corpus=(str(tmp_path / "none.parquet"),)), encoder, tmp_path, said.append
        )


def test_raw_parquet_that_says_it_holds_nulls_is_refused(
    tmp_path: Path, tiny_encoder: Path
) -> None:
    table = pa.table({"a": ["x"] * 9, "b": ["x", None] * 4 + ["x"], "other": [None] * 9})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    encoder = EncoderConfig(model=str(tiny_encoder))
    want = r"a\.parquet has 4 row\(s\) without text in column 'b': `simcse prepare` sorts such"
    with pytest.raises(DataError, match=want):
        open_corpus(
            DataConfig(corpus=(str(tmp_path),)), encoder, tmp_path / "scratch", lambda line: None
        )
    only_a = DataConfig(corpus=(str(tmp_path),), columns=("a",))
    assert open_corpus(only_a, encoder, tmp_path / "scratch", lambda line: None).rows == (9,)


def test_a_flipped_bit_in_a_prepared_shard_never_reads_as_other_tokens(
    tmp_path: Path, tiny_encoder: Path
) -> None:
    source = tmp_path / "a.txt"
    source.write_text("".join(f"the dog {i} runs {i * i}\n" for i in range(2000)))
    folder = prepare(
        [source], tmp_path / "out", tokenizer_model=str(tiny_encoder), max_length=16
    ).folder
    corpus = open_corpus(
        DataConfig(corpus=(str(folder),)),
        EncoderConfig(model=str(tiny_encoder), max_length=16),
        tmp_path,
        lambda line: None,
    )
    plan = WindowPlan(corpus, seed=0, global_batch_size=2000, batches_per_window=1, total_steps=1)
    want = plan.read(0, 1)
    shard = Path(corpus.files[0])
    whole = shard.read_bytes()
    chunk = pq.read_metadata(shard).row_group(0).column(1)
    first = chunk.dictionary_page_offset or chunk.data_page_offset
    places = range(first, first + chunk.total_compressed_size, 97)
    refused: list[str] = []
    for number, place in enumerate(places):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << number % 8
        shard.write_bytes(damaged)
        try:
            assert plan.read(0, 1) == want
        except DataError as error:
            refused.append(str(error))
    assert len(refused) > 0.9 * len(places) > 90
    assert all(line.startswith(f"{shard} is no readable parquet file (") for line in refused)


def test_wikipedia_sentences_survive_preparing(
    tmp_path: Path, minilm: Path, data_dir: Path
) -> None:
    lines = gzip.decompress((data_dir / "wiki/wiki_sentences.txt.gz").read_bytes()).splitlines()
    source = tmp_path / "wiki.txt"
    source.write_bytes(b"\n".join(lines[:20_000]) + b"\n")
    result = prepare(
        [source],
        tmp_path / "out",
        tokenizer_model=str(minilm),
        max_length=32,
        rows_per_shard=4096,
    )
    table = table_of(result.folder, result.manifest)
    assert table["text"].to_pylist() == [line.decode() for line in lines[:20_000]]
    assert result.manifest.dropped == {}
    assert 3000 < result.manifest.cut < 10_000
