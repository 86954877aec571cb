from __future__ import annotations

import errno
import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simcse.errors import DataError, UsageError
from simcse_platform.errors import StorageError
from simcse_platform.ingest.parquet import unreadable
from simcse_platform.ingest.readers import common_columns, read


def rows_of(file: Path, *columns: str) -> list[tuple[object, ...]]:
    blank = (None,) * len(columns)
    rows = read(file, columns)
    return [(row.number, row.reason, *(row.texts or blank)) for row in rows]


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


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.ETIMEDOUT])
def test_a_file_system_that_fails_for_a_moment_is_no_fault_of_the_file(number: int) -> None:
    found = unreadable("a.parquet", OSError(number, "stale"))
    assert isinstance(found, StorageError)
    assert str(found) == (
        f"a.parquet cannot be read now ([Errno {number}] stale): see to its storage and to "
        "free memory, and run the same command again"
    )


def test_too_little_memory_is_no_fault_of_the_file_either() -> None:
    assert isinstance(unreadable("a.parquet", pa.ArrowMemoryError("malloc")), StorageError)


def test_a_name_that_leads_nowhere_is_met_again(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    file.symlink_to(file)
    with pytest.raises(OSError, match=r"symbolic") as found:
        pq.ParquetFile(file)
    assert found.value.errno == errno.ELOOP
    with pytest.raises(DataError, match=r"a\.parquet is no readable parquet file"):
        common_columns([file], None)


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES, errno.EMFILE, None])
def test_what_the_next_attempt_would_meet_again_is_no_passing_fault(number: int | None) -> None:
    error = OSError("no parquet") if number is None else OSError(number, "gone")
    assert isinstance(unreadable("a.parquet", error), DataError)


def test_a_column_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    first, second = tmp_path / "a.csv", tmp_path / "b.csv"
    first.write_text("s0,s1\na,b\n")
    second.write_text("s0,other\na,b\n")
    with pytest.raises(UsageError, match=r"a\.csv has no text column 'sent0': it has 's0', 's1'"):
        common_columns([first], ["sent0"])
    with pytest.raises(UsageError, match=r"b\.csv has no text column 's1'"):
        common_columns([first, second], None)
    with pytest.raises(UsageError, match="the columns are s0, s0: name each column once"):
        common_columns([first], ["s0", "s0"])


def test_files_without_rows_or_text_are_named(tmp_path: Path) -> None:
    header, numbers = tmp_path / "h.csv", tmp_path / "n.parquet"
    header.write_text("a,b\n")
    pq.write_table(pa.table({"n": [1]}), numbers)
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


def test_tsv_rows_take_quotes_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_bytes(b'a\tb\r\n"one\t two"\r\n\nx\n1\t2\t3\n\xff\ty\n1\t\n')
    assert rows_of(file, "b", "a") == [
        (2, None, ' two"', '"one'),
        (3, None, None, None),
        (4, "wrong number of columns", None, None),
        (5, "wrong number of columns", None, None),
        (6, "not UTF-8", None, None),
        (7, None, "", "1"),
    ]


def test_jsonl_rows_that_lack_a_text_are_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    lines = [
        b"[1]",
        b'{"label": 2, "text": "a\\nb", "more": [1], "sure": true}',
        b'{"text": null, "label": 0}',
        b"",
        b'{"label": 1}',
        b'{"text": 7, "label": 1}',
        b'{"text": "x", "label": "1"}',
        b'{"text": "x", "label": true}',
        b'{"text": "x"',
        b'{"text": "b\xe9d", "label": 1}',
        b'{"text": "half \\ud83d of it", "label": 1}',
        b'{"text": "whole \\ud83d\\ude00", "label": 1}',
    ]
    file.write_bytes(b"\n".join(lines))
    assert common_columns([file], None) == ("text",)
    assert common_columns([file], ["label", "text"], numbers=["label"]) == ("label", "text")
    with pytest.raises(UsageError, match=r"has no text column 'label': it has 'text'"):
        common_columns([file], ["label"])
    assert rows_of(file, "label", "text") == [
        (1, "no JSON object", None, None),
        (2, None, "2", "a\nb"),
        (3, None, "0", None),
        (4, None, None, None),
        (5, "missing field", None, None),
        (6, "field of another type", None, None),
        (7, "field of another type", None, None),
        (8, "field of another type", None, None),
        (9, "no JSON object", None, None),
        (10, "not UTF-8", None, None),
        (11, "not UTF-8", None, None),
        (12, None, "1", "whole \U0001f600"),
    ]


def test_whole_numbers_of_a_parquet_column_are_read_as_digits(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"label": [0, -1, None], "text": ["a", "b", "c"]}), file)
    assert common_columns([file], ["label", "text"], numbers=["label"]) == ("label", "text")
    assert [row[2] for row in rows_of(file, "label")] == ["0", "-1", None]


def packed(content: bytes, ending: str) -> bytes:
    return gzip.compress(content) if ending == ".gz" else bytes(pa.compress(content, "zstd"))


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_compressed_text_reads_like_plain_text(tmp_path: Path, ending: str) -> None:
    contents = {
        "txt": "\ufeffone\ntwo\n",
        "csv": 'text,b\n"one, ""1""",x\ntwo,y\n',
        "tsv": "text\tb\none\tx\n",
        "jsonl": json.dumps({"text": "one"}),
    }
    for form, content in contents.items():
        plain, file = tmp_path / f"a.{form}", tmp_path / f"a.{form}{ending}"
        plain.write_text(content, encoding="utf-8")
        # Two streams end to end are one file, as `cat` makes them.
        half = len(content) // 2
        file.write_bytes(
            b"".join(packed(p.encode(), ending) for p in (content[:half], content[half:]))
        )
        assert common_columns([file], None) == common_columns([plain], None)
        assert rows_of(file, "text") == rows_of(plain, "text")


@pytest.mark.parametrize(("ending", "kind"), [(".gz", "gzip"), (".zst", "zstd")])
def test_a_compressed_file_that_is_cut_off_is_named(tmp_path: Path, ending: str, kind: str) -> None:
    whole = packed("\n".join(map(str, range(50_000))).encode(), ending)
    file = tmp_path / f"a.txt{ending}"
    for content in (whole[:-3], whole[: len(whole) // 2], b"plain text", whole + b"more"):
        file.write_bytes(content)
        with pytest.raises(
            DataError, match=rf"a\.txt{ending} is no readable {kind} file \(.+\): re"
        ):
            rows_of(file, "text")


def test_a_flipped_bit_in_a_gzip_file_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "a.txt.gz"
    whole = bytearray(packed("\n".join(map(str, range(50_000))).encode(), ".gz"))
    whole[len(whole) // 2] ^= 1
    file.write_bytes(whole)
    with pytest.raises(DataError, match=r"a\.txt\.gz is no readable gzip file"):
        rows_of(file, "text")


def test_an_arrow_stream_is_read_in_its_batches(tmp_path: Path) -> None:
    file = tmp_path / "a.arrow"
    table = pa.table({"n": [1, 2, 3], "text": ["a", None, "c"]})
    with pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table, max_chunksize=2)
    assert common_columns([file], None) == ("text",)
    assert rows_of(file, "text") == [(1, None, "a"), (2, None, None), (3, None, "c")]
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(DataError, match=r"a\.arrow is no readable arrow file"):
        rows_of(file, "text")
