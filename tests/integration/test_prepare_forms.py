"""Datasets made of other forms of text, and of some rows only."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simcse.config import EncoderConfig
from simcse.errors import DataError
from simcse.tokenizer import load_tokenizer, tokenize
from simcse_platform.config import DataConfig
from simcse_platform.ingest.cleaning import RowOptions, lexical_overlap
from simcse_platform.ingest.prepare import PrepareResult, prepare
from simcse_platform.ingest.source import Corpus, open_corpus
from support.command_line import CommandLine

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

Prepare = Callable[..., PrepareResult]


@pytest.fixture
def prepared(tmp_path: Path, tiny_encoder: Path) -> Prepare:
    """`prepare` into a folder of its own."""

    def run(*sources: Path, name: str = "out", **settings: object) -> PrepareResult:
        given = {"tokenizer_model": str(tiny_encoder), "max_length": 16} | settings
        return prepare(sources, tmp_path / name, **given)  # type: ignore[arg-type]

    return run


def table_of(result: PrepareResult) -> pa.Table:
    shards = result.manifest.shards
    return pa.concat_tables([pq.read_table(result.folder / shard.path) for shard in shards])


def opened(sources: Sequence[Path], encoder: Path, scratch: Path, *columns: str) -> Corpus:
    return open_corpus(
        DataConfig(corpus=tuple(map(str, sources)), columns=columns or None),
        EncoderConfig(model=str(encoder), max_length=16),
        scratch,
        lambda line: None,
    )


def test_articles_become_sentences_that_know_what_follows_them(
    prepared: Prepare, tmp_path: Path, tiny_encoder: Path
) -> None:
    articles = [" ".join(f"Article {a} says {s}." for s in range(5)) for a in range(4)]
    pq.write_table(pa.table({"title": ["t"] * 4, "text": articles}), tmp_path / "dump.parquet")
    result = prepared(
        tmp_path / "dump.parquet",
        options=RowOptions(split_language="en", keep_order=True),
        rows_per_shard=8,
    )
    table, manifest = table_of(result), result.manifest
    assert table.column_names == ["text", "text_tokens", "following"]
    assert table["text"].to_pylist() == [f"Article {i // 5} says {i % 5}." for i in range(20)]
    want = tokenize(load_tokenizer(tiny_encoder), table["text"].to_pylist(), 16).ids
    assert table["text_tokens"].to_pylist() == want
    # Shards end after sentence 2 of article 1 and sentence 0 of article 3.
    assert table["following"].type == pa.int32()
    assert table["following"].to_pylist() == [
        *[3, 3, 2, 1, 0],
        *[2, 1, 0, 1, 0],
        *[3, 3, 2, 1, 0],
        *[0, 3, 2, 1, 0],
    ]
    assert [shard.rows for shard in manifest.shards] == [8, 8, 4]
    assert (manifest.keep_order, manifest.dropped, manifest.lexical_overlap) == (True, {}, None)
    assert opened([result.folder], tiny_encoder, tmp_path).keep_order


def test_nli_files_become_triplets_on_the_command_line(
    simcse: CommandLine, data_dir: Path, tmp_path: Path, tiny_encoder: Path
) -> None:
    done = simcse(
        *("prepare", data_dir / "nli/pairs/snli_dev.tsv.gz", "--build", "nli-triplets"),
        *("--model", tiny_encoder, "--output", tmp_path / "out", "--json", tmp_path / "out.json"),
    )
    assert done.code == 0, done.err
    written = json.loads((tmp_path / "out.json").read_text())
    assert (written["rows"], written["columns"]) == (3167, ["anchor", "positive", "hard_negative"])
    assert written["dropped"] == {
        "labelled neutral": 3235,
        "repeated pair": 2,
        "hypothesis equals its premise": 4,
        "negative beyond the entailments": 60,
        "premise without all labels needed": 424,
    }
    rows = pq.read_table(tmp_path / "out" / "shard-00000.parquet").to_pylist()
    overlaps = [lexical_overlap(row["anchor"], row["positive"]) for row in rows]
    assert written["lexical_overlap"] == pytest.approx(sum(overlaps) / 3167)
    assert "lexical overlap of anchor and positive: 39.2%" in done.out


def test_rows_are_drawn_before_they_are_tokenised_however_the_corpus_is_cut(
    prepared: Prepare, tmp_path: Path
) -> None:
    lines = [f"sentence {number % 400}\n" for number in range(500)]
    (tmp_path / "one.txt").write_text("".join(lines))
    for part in range(5):
        (tmp_path / f"part{part}.txt.gz").write_bytes(
            gzip.compress("".join(lines[part * 100 : (part + 1) * 100]).encode())
        )
    options = RowOptions(dedupe_corpus=True, sample=50, seed=7)
    whole = prepared(tmp_path / "one.txt", options=options, rows_per_shard=20)
    parts = prepared(tmp_path / "part*.txt.gz", name="parts", options=options, rows_per_shard=20)
    assert whole.manifest.shards == parts.manifest.shards
    assert [shard.rows for shard in whole.manifest.shards] == [20, 20, 10]
    assert whole.manifest.dropped == {"duplicate": 100}
    texts = table_of(whole)["text"].to_pylist()
    assert texts == sorted(set(texts), key=lambda text: int(text.split()[1]))
    with pytest.raises(
        DataError, match=r"the corpus has 400 usable row\(s\) and --sample asks for"
    ):
        prepared(
            tmp_path / "one.txt", name="no", options=RowOptions(dedupe_corpus=True, sample=401)
        )


def test_files_without_usable_rows_cost_nothing_but_themselves(
    prepared: Prepare, tmp_path: Path
) -> None:
    for name, text in {"a": "\n\n", "b": "one\ntwo\n", "c": " \n", "d": "three\n"}.items():
        (tmp_path / f"{name}.txt").write_text(text)
    result = prepared(tmp_path / "*.txt", options=RowOptions(sample=3))
    assert table_of(result)["text"].to_pylist() == ["one", "two", "three"]
    assert result.manifest.dropped == {"empty": 3}
    assert sorted(path.name for path in result.folder.iterdir()) == [
        "manifest.json",
        "shard-00000.parquet",
    ]


def test_training_takes_every_form_of_text_together(tmp_path: Path, tiny_encoder: Path) -> None:
    saved, table, lines = tmp_path / "saved", tmp_path / "a.tsv.gz", tmp_path / "b.jsonl"
    datasets.Dataset.from_dict({"n": [1, 2], "text": ["one", "two"]}).save_to_disk(saved)
    table.write_bytes(gzip.compress(b'text\tother\n"three\tx\n'))
    lines.write_text('{"text": "four"}\n')
    sources = [saved, table, lines]
    corpus = opened(sources, tiny_encoder, tmp_path / "scratch", "text")
    assert (corpus.rows, corpus.columns, corpus.keep_order) == ((4,), ("text",), False)
    assert pq.read_table(corpus.files[0])["text"].to_pylist() == ["one", "two", '"three', "four"]
