"""The positives that a window makes for a corpus of one column.

R: rows of the window.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from simcse.config import ViewsConfig
from simcse.errors import DataError
from simcse.substitution import TokenSubstitution
from simcse.tokenizer import load_tokenizer, tokenize
from simcse.tokens import RaggedTokens
from simcse.views import alter
from simcse_platform.ingest.source import Corpus
from simcse_platform.ingest.window import NO_STEP, WindowPlan, to_batch
from support.architectures import save_masked_language_model
from support.tiny import WORDS

MAX_LENGTH = 16
DOCUMENTS = ((7, 1, 12), (3, 25, 2))
"""Sentences of each document of each shard."""
W = 2


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_masked_language_model(tmp_path_factory.mktemp("models") / "bert", "bert")


def sentences_of(shard: int) -> list[str]:
    generator = np.random.default_rng(shard)
    words = WORDS.split()
    return [
        " ".join(generator.choice(words, size=int(generator.integers(2, 9))))
        for _ in range(sum(DOCUMENTS[shard]))
    ]


def make_corpus(folder: Path, model: Path, *, tokenised: bool) -> Corpus:
    """Two shards of documents, in the form that preparing with their order kept gives."""
    tokenizer = load_tokenizer(model)
    files = []
    for shard, documents in enumerate(DOCUMENTS):
        texts = sentences_of(shard)
        columns = {"text": pa.array(texts)}
        if tokenised:
            ids = tokenize(tokenizer, texts, MAX_LENGTH).ids
            columns["text_tokens"] = pa.array(ids, pa.list_(pa.int32()))
            following = [min(3, size - 1 - place) for size in documents for place in range(size)]
            columns["following"] = pa.array(following, pa.int32())
        path = folder / f"shard-{shard}.parquet"
        pq.write_table(pa.table(columns), path, row_group_size=4)
        files.append(str(path))
    return Corpus(
        files=tuple(files),
        rows=tuple(sum(documents) for documents in DOCUMENTS),
        columns=("text",),
        tokenised=tokenised,
        tokenizer_model=str(model),
        max_length=MAX_LENGTH,
        fingerprint="",
        keep_order=tokenised,
    )


def read_rows(corpus: Corpus, views: ViewsConfig, epoch: int = 0) -> dict[int, list[list[int]]]:
    """Ids of each row's views, by the row's place in the corpus, over one epoch."""
    order = WindowPlan(corpus, 7, 8, 2, total_steps=100, views=views)
    found: dict[int, list[list[int]]] = {}
    per_epoch = order.order.windows_per_epoch
    for number in range(epoch * per_epoch, (epoch + 1) * per_epoch):
        table = order.read(number, W)
        for i in range(len(table)):
            slice_row = {name: table[name][i] for name in table.column_names}
            if slice_row["step"].as_py() == NO_STEP:
                continue
            batch = to_batch(slice_row, order.num_columns)
            for place, row in enumerate(batch.row_ids_b.tolist()):
                views_of_row = [
                    c.select(torch.tensor([place])).ids_T.tolist() for c in batch.columns
                ]
                found[row] = views_of_row
    assert sorted(found) == list(range(sum(corpus.rows)))
    return found


@pytest.mark.parametrize(("view", "count"), [("next_sentence", 1), ("next_three_sentences", 3)])
def test_the_sentences_that_follow_are_the_positive_up_to_the_documents_end(
    model: Path, tmp_path: Path, view: str, count: int
) -> None:
    corpus = make_corpus(tmp_path, model, tokenised=True)
    want, row = {}, 0
    for shard, documents in enumerate(DOCUMENTS):
        texts = sentences_of(shard)
        for size in documents:
            for place in range(size):
                after = texts[place + 1 : min(size, place + 1 + count)] or [texts[place]]
                want[row] = [texts[place], " ".join(after)]
                row += 1
            texts = texts[size:]
    found = read_rows(corpus, ViewsConfig.model_validate({"positive": view}))
    tokenizer = load_tokenizer(model)
    assert found == {row: tokenize(tokenizer, texts, MAX_LENGTH).ids for row, texts in want.items()}


@pytest.mark.parametrize("tokenised", [True, False], ids=["prepared", "as it is"])
@pytest.mark.parametrize("view", ["word_deletion", "delete_one_word", "crop"])
def test_altered_text_is_altered_by_row_and_epoch_and_the_anchor_is_not(
    model: Path, tmp_path: Path, view: str, tokenised: bool
) -> None:
    corpus = make_corpus(tmp_path, model, tokenised=tokenised)
    views = ViewsConfig.model_validate(
        {"positive": view} if view == "delete_one_word" else {"positive": view, "rate": 0.3}
    )
    texts = sentences_of(0) + sentences_of(1)
    tokenizer = load_tokenizer(model)
    for epoch in (0, 1):
        altered = alter(texts, views, None, seed=7, epoch=epoch, row_ids_R=np.arange(len(texts)))
        pairs = zip(
            tokenize(tokenizer, texts, MAX_LENGTH).ids,
            tokenize(tokenizer, altered, MAX_LENGTH).ids,
            strict=True,
        )
        assert read_rows(corpus, views, epoch) == {
            row: list(pair) for row, pair in enumerate(pairs)
        }


def test_substituted_tokens_are_those_of_the_encoders_own_masked_language_model(
    model: Path, tmp_path: Path
) -> None:
    corpus = make_corpus(tmp_path, model, tokenised=False)
    views = ViewsConfig(positive="masked_language", rate=0.3)
    texts = sentences_of(0) + sentences_of(1)
    tokens = RaggedTokens.from_lists(tokenize(load_tokenizer(model), texts, MAX_LENGTH).ids)
    row_ids_n = torch.arange(len(texts))
    want = TokenSubstitution(model).substitute(
        tokens, rate=0.3, seed=7, epoch=0, row_ids_n=row_ids_n
    )
    found = read_rows(corpus, views)
    for row in range(len(texts)):
        one = torch.tensor([row])
        assert found[row] == [tokens.select(one).ids_T.tolist(), want.select(one).ids_T.tolist()]


def test_the_same_sentence_needs_no_second_column(model: Path, tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, model, tokenised=True)
    assert {len(views) for views in read_rows(corpus, ViewsConfig()).values()} == {1}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"a": ["x", "y", "z"], "b": ["u", "y", "w"]},
            r":2: the text in column 'b' is that of col",
        ),
        (
            {"a": ["x", "y"], "b": ["u", "v"], "c": ["s", "v"]},
            r":2: the text in column 'c' is that of column 'b': `simcse prepare` sorts such rows",
        ),
        (
            {"a": ["x", "y"], "b": ["u", " "]},
            r":2: the text in column 'b' is empty: `simcse prepare`",
        ),
    ],
)
def test_a_row_of_a_streamed_file_that_repeats_itself_or_is_empty_is_named(
    model: Path, tmp_path: Path, columns: dict[str, list[str]], message: str
) -> None:
    path = tmp_path / "shard.parquet"
    pq.write_table(pa.table(columns), path)
    corpus = Corpus(
        files=(str(path),),
        rows=(len(columns["a"]),),
        columns=tuple(columns),
        tokenised=False,
        tokenizer_model=str(model),
        max_length=MAX_LENGTH,
        fingerprint="",
    )
    with pytest.raises(DataError, match=message):
        WindowPlan(corpus, 7, 8, 2, total_steps=1).read(0, 1)
