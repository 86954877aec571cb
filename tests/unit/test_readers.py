from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simcse.errors import DataError, UsageError
from simcse_platform.ingest.readers import common_columns, find_files, read


def rows_of(file: Path, *columns: str) -> list[tuple[object, ...]]:
    tables = list(read(file, columns))
    table = pa.concat_tables(tables)
    texts = [table[f"text_{i}"].to_pylist() for i in range(len(columns))]
    return list(zip(table["row"].to_pylist(), table["reason"].to_pylist(), *texts, strict=True))


def test_a_text_file_has_one_sentence_a_line(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes("\ufeffone\r\n\ntwo \u2028 still two\nlast".encode())
    assert [text.strip() for *_, text in rows_of(file, "text")] == [  # type: ignore[attr-defined]
        "one",
        "",
        "two \u2028 still two",
        "last",
    ]


def test_bytes_that_are_no_utf8_cost_their_row_only(tmp_path: Path) -> None:
    text, table = tmp_path / "a.txt", tmp_path / "a.csv"
    text.write_bytes(b"good\nb\xe9d\nfine\n")
    table.write_bytes(b"a,b\n1,2\n\xff,2\n5,6\n")
    assert [row[:2] for row in rows_of(text, "text")] == [(1, None), (2, "not UTF-8"), (3, None)]
    assert rows_of(table, "a", "b") == [
        (2, None, "1", "2"),
        (3, "not UTF-8", None, None),
        (4, None, "5", "6"),
    ]


def test_csv_rows_keep_quotes_commas_and_line_breaks(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text('s0,s1\n"a, ""b""","two\nlines"\nplain,"x"\n', encoding="utf-8")
    assert rows_of(file, "s1", "s0") == [
        (2, None, "two\nlines", 'a, "b"'),
        (4, None, "x", "plain"),
    ]


def test_csv_rows_of_another_width_or_with_broken_quotes_are_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text('a,b\n1\n1,2,3\n"x"y,2\n1,2\n', encoding="utf-8")
    assert [row[:2] for row in rows_of(file, "a", "b")] == [
        (2, "wrong number of columns"),
        (3, "wrong number of columns"),
        (4, "malformed quoting"),
        (5, None),
    ]


def test_parquet_text_may_be_stored_in_any_string_type(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    words = pa.array(["x", None, "x"])
    pq.write_table(
        pa.table(
            {
                "n": [1, 2, 3],
                "a": words.dictionary_encode(),
                "b": words.cast(pa.large_string()),
            }
        ),
        file,
    )
    assert common_columns([file], None) == ("a", "b")
    assert rows_of(file, "a", "b") == [
        (1, None, "x", "x"),
        (2, None, None, None),
        (3, None, "x", "x"),
    ]


def test_parquet_bytes_that_are_no_utf8_cost_their_row_only(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    raw = pa.array([b"good", b"b\xe9d", None], pa.binary())
    broken = pa.StringArray.from_buffers(3, raw.buffers()[1], raw.buffers()[2], raw.buffers()[0])
    pq.write_table(pa.table({"text": broken}), file)
    assert rows_of(file, "text") == [(1, None, "good"), (2, "not UTF-8", None), (3, None, None)]


def test_a_corrupt_parquet_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["some words"] * 1000}), file, compression="zstd")
    content = bytearray(file.read_bytes())
    content[4:60] = bytes(56)
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.parquet is no readable parquet file"):
        rows_of(file, "text")
    file.write_bytes(b"PAR1 nothing of the kind")
    with pytest.raises(DataError, match=r"a\.parquet is no readable parquet file"):
        common_columns([file], None)


def test_folders_and_globs_stand_for_their_files_by_name(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "deep/c.csv", "notes.md", "part.csv/d.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text\n")
    names = [str(file.relative_to(tmp_path)) for file in find_files([tmp_path])]
    assert names == ["a.txt", "b.txt", "deep/c.csv", "part.csv/d.txt"]
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
    (tmp_path / "a.doc").write_text("x")
    with pytest.raises(UsageError, match=r"a\.doc has no known format: .*\.txt, \.csv, \.parquet"):
        find_files([tmp_path / "a.doc"])


def test_a_column_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    first, second = tmp_path / "a.csv", tmp_path / "b.csv"
    first.write_text("s0,s1\na,b\n")
    second.write_text("s0,other\na,b\n")
    with pytest.raises(UsageError, match=r"a\.csv has no text column 'sent0': it has 's0', 's1'"):
        common_columns([first], ["sent0"])
    with pytest.raises(UsageError, match=r"b\.csv has no text column 's1'"):
        common_columns([first, second], None)


def test_files_without_rows_or_text_are_named(tmp_path: Path) -> None:
    empty, header, numbers = tmp_path / "e.txt", tmp_path / "h.csv", tmp_path / "n.parquet"
    empty.touch()
    header.write_text("a,b\n")
    pq.write_table(pa.table({"n": [1]}), numbers)
    with pytest.raises(DataError, match=r"e\.txt is empty"):
        find_files([empty])
    with pytest.raises(DataError, match=r"h\.csv has no rows"):
        rows_of(header, "a")
    with pytest.raises(DataError, match=r"n\.parquet has no text column"):
        common_columns([numbers], None)


@pytest.mark.parametrize("header", ["a,a", "a,", "\udcff,b"])
def test_a_csv_header_names_each_column_once(tmp_path: Path, header: str) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(header.encode(errors="surrogateescape") + b"\n1,2\n")
    with pytest.raises(DataError, match=r"a\.csv:1: the header must name each column once"):
        common_columns([file], None)
