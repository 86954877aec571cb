from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.command_line import CommandLine

SENTENCES = [
    "the dog runs in the rain",
    "a cat is sleeping",
    "the big red bus is on the road",
    "[the] :sun: and the sea",
]


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "sentences.txt"
    path.write_text("\n".join(SENTENCES))
    return path


def test_hits_are_lines_and_a_list_for_each_query(
    simcse: CommandLine, tiny_encoder: Path, text_file: Path, tmp_path: Path
) -> None:
    queries, result = tmp_path / "queries.txt", tmp_path / "result.json"
    queries.write_text(f"{SENTENCES[2]}\n")
    arguments = ["search", tiny_encoder, "--pooling", "avg", "--sentences", text_file]
    arguments += ["--query", SENTENCES[3], "--query", "water", "--queries", queries]
    shown = simcse(*arguments, "--top-k", 2, "--threshold", 0.99, "--json", result)
    assert shown.code == 0, shown.err
    assert shown.out.splitlines() == [
        "search: sentences 4/4",
        SENTENCES[3],
        f"  1.0000  {SENTENCES[3]}",
        "water",
        "  nothing at 0.99 or above",
        SENTENCES[2],
        f"  1.0000  {SENTENCES[2]}",
    ]
    written = json.loads(result.read_text())
    assert written["model"] == str(tiny_encoder)
    assert written["sentences"] == 4
    assert [found["query"] for found in written["queries"]] == [SENTENCES[3], "water", SENTENCES[2]]
    assert [len(found["hits"]) for found in written["queries"]] == [1, 0, 1]
    assert written["queries"][0]["hits"][0]["sentence"] == SENTENCES[3]
    assert written["queries"][0]["hits"][0]["cosine"] == pytest.approx(1, abs=1e-6)


def test_a_kept_index_is_searched_without_the_file(
    simcse: CommandLine, tiny_encoder: Path, text_file: Path, tmp_path: Path
) -> None:
    common = ["search", tiny_encoder, "--pooling", "avg", "--index", tmp_path / "kept"]
    built = simcse(*common, "--sentences", text_file)
    assert built.code == 0, built.err
    assert built.out.splitlines()[-1] == f"4 sentences are in the index {tmp_path / 'kept'}"
    text_file.unlink()
    shown = simcse(*common, "--query", SENTENCES[1], "--top-k", 1)
    assert shown.code == 0, shown.err
    assert shown.out.splitlines()[1:] == [SENTENCES[1], f"  1.0000  {SENTENCES[1]}"]

    refused = simcse("search", tiny_encoder, "--pooling", "cls", *common[4:], "--query", "x")
    assert refused.code == 2
    assert f"the index in {tmp_path / 'kept'} was made with another model" in refused.error


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--query", "x"], 2, "there is nothing to search in: give --sentences FILE or --index"),
        (["--sentences", "FILE"], 2, "there is nothing to find: give --query TEXT or --queries"),
        (["--sentences", "no.txt", "--query", "x"], 2, "there is no file of sentences no.txt"),
        (["--index", "none", "--query", "x"], 2, "there is no complete index in none: build it"),
        (["--sentences", "FILE", "--queries", "LATIN"], 1, "is not UTF-8 in line 2: convert"),
        (["--sentences", "FILE", "--query", "x", "--top-k", "0"], 2, "Invalid value for '--top-k'"),
        (["--index", "i", "--threshold", "2"], 2, "Invalid value for '--threshold'"),
    ],
)
def test_what_cannot_be_searched_is_one_line(
    simcse: CommandLine,
    tiny_encoder: Path,
    text_file: Path,
    tmp_path: Path,
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    latin = tmp_path / "latin.txt"
    latin.write_bytes("rain\nGröße\n".encode("latin-1"))
    files = {"FILE": text_file, "LATIN": latin}
    filled = [files.get(argument, argument) for argument in arguments]
    refused = simcse("search", tiny_encoder, "--pooling", "avg", *filled)
    assert refused.code == code
    assert message in refused.error


def test_a_query_without_words_is_refused(
    simcse: CommandLine, tiny_encoder: Path, text_file: Path
) -> None:
    refused = simcse("search", tiny_encoder, "--sentences", text_file, "--query", " ")
    assert refused.code == 2
    assert refused.error == "--query ' ' says nothing: give it words"
