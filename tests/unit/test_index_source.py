from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from simcse.errors import DataError, UsageError
from simcse.index_source import SentenceFile


@pytest.mark.parametrize("name", ["text.txt", "text.txt.gz"])
def test_lines_with_text_are_sentences_however_lines_end(tmp_path: Path, name: str) -> None:
    content = "\ufeffSnow fell.  \r\n\n  Größe \n \t\n東京\n\nthe last".encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    sentences = SentenceFile(path)
    assert len(sentences) == 4
    for _ in range(2):
        assert list(sentences) == ["Snow fell.", "  Größe", "東京", "the last"]


def test_a_line_that_is_not_utf8_is_named_before_the_work(tmp_path: Path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes("one\n\ntwo\nGröße\n".encode("latin-1"))
    with pytest.raises(
        DataError, match=r"latin.txt is not UTF-8 in line 4: convert the file, or remove the line$"
    ):
        SentenceFile(path)


def test_a_file_that_is_missing_empty_or_blank_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^there is no file of sentences .*: check the path$"):
        SentenceFile(tmp_path / "no.txt")
    with pytest.raises(UsageError, match=r"^there is no file of sentences"):
        SentenceFile(tmp_path)
    for content in ("", "\n \n"):
        (tmp_path / "empty.txt").write_text(content)
        with pytest.raises(DataError, match=r"empty.txt holds no sentences: write one a line$"):
            SentenceFile(tmp_path / "empty.txt")


def test_a_gz_file_that_is_no_gz_file_or_damaged_is_named(tmp_path: Path) -> None:
    path = tmp_path / "text.gz"
    whole = gzip.compress(b"".join(b"%d lines\n" % number for number in range(1000)))
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 255
    for content in (b"plain text", whole[:-20], bytes(damaged)):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"text.gz is no complete gz file \(.*\): copy it anew"):
            SentenceFile(path)
