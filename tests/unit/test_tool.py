from __future__ import annotations

import gzip
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from simcse import SimCSE
from simcse.encoder import SentenceEncoder
from simcse.errors import ModelError, UsageError

SENTENCES = [
    "the dog runs in the rain",
    "a cat is sleeping",
    "the big red bus is on the road",
    "she eats food and water",
    "they play music in the city",
    "a cat is sleeping",
    "the sun and the sea",
]
QUERIES = ["the cat sleeps", "a bus in the city"]


@pytest.fixture(scope="module")
def tool(tiny_encoder: Path) -> SimCSE:
    return SimCSE(str(tiny_encoder), device="cpu", pooler="avg")


@pytest.fixture
def text_file(tmp_path: Path) -> str:
    path = tmp_path / "sentences.txt"
    path.write_text("\n".join(SENTENCES))
    return str(path)


def by_hand(model: Path, sentences: list[str]) -> np.ndarray:
    """Unit means of the token states, by transformers, one sentence at a time."""
    tokenizer, encoder = AutoTokenizer.from_pretrained(model), AutoModel.from_pretrained(model)
    tokenizer.backend_tokenizer.no_padding()
    vectors = []
    for sentence in sentences:
        with torch.no_grad():
            states = encoder(**tokenizer(sentence, return_tensors="pt")).last_hidden_state[0]
        vector = states.mean(0).double().numpy()
        vectors.append(vector / np.linalg.norm(vector))
    return np.stack(vectors)


def test_the_package_alone_costs_no_torch_and_knows_no_other_name() -> None:
    script = (
        "import sys, simcse\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
        "assert not hasattr(simcse, 'SimCES')\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    assert SimCSE.__module__ == "simcse.tool"


def test_a_real_encoder_gives_the_cosines_and_the_order_worked_out_by_hand(minilm: Path) -> None:
    sentences = [
        "The ferry leaves at dawn.",
        "Two nurses share a pot of tea.",
        "Our boat sets out early in the morning.",
        "The recipe asks for three eggs.",
        "A violinist tunes her instrument.",
        "He cracks eggs into the bowl.",
    ]
    queries = ["The ship departs at sunrise.", "Someone is cooking an omelette."]
    cosines = by_hand(minilm, queries) @ by_hand(minilm, sentences).T
    tool = SimCSE(str(minilm), device="cpu", pooler="avg")
    np.testing.assert_allclose(tool.similarity(queries, sentences), cosines, atol=1e-6)

    tool.build_index(sentences)
    for threshold, top_k in ((0.2, 3), (-1.0, 10), (0.99, 5)):
        found = tool.search(queries, threshold=threshold, top_k=top_k)
        for row, hits in zip(cosines, found, strict=True):
            best = [place for place in np.argsort(-row) if row[place] >= threshold][:top_k]
            assert [sentence for sentence, _ in hits] == [sentences[place] for place in best]
            np.testing.assert_allclose([c for _, c in hits], row[best], atol=1e-6)
    first, second = tool.search(queries[0], threshold=0.3)[:2]
    assert {first[0], second[0]} == {sentences[0], sentences[2]}


def test_pooler_cls_is_the_pooler_output_that_the_original_takes(tiny_encoder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_encoder)
    with torch.no_grad():
        output = AutoModel.from_pretrained(tiny_encoder)(
            **tokenizer(SENTENCES, padding=True, return_tensors="pt")
        )
    for pooler, wanted in (
        ("cls", output.pooler_output),
        ("cls_before_pooler", output.last_hidden_state[:, 0]),
    ):
        tool = SimCSE(str(tiny_encoder), device="cpu", pooler=pooler)
        got = tool.encode(SENTENCES, normalize_to_unit=False)
        torch.testing.assert_close(got, wanted, atol=1e-6, rtol=0)
        unit = wanted / wanted.norm(dim=1, keepdim=True)
        torch.testing.assert_close(tool.encode(SENTENCES), unit, atol=1e-6, rtol=0)


def test_encode_gives_the_types_and_shapes_of_the_original(tool: SimCSE) -> None:
    one, many = SENTENCES[0], SENTENCES[:3]
    for sentence, keepdim, shape in (
        (one, False, (32,)),
        (one, True, (1, 32)),
        ([one], False, (1, 32)),
        (many, False, (3, 32)),
    ):
        tensor = tool.encode(sentence, keepdim=keepdim)
        array = tool.encode(sentence, keepdim=keepdim, return_numpy=True)
        assert isinstance(tensor, torch.Tensor)
        assert isinstance(array, np.ndarray)
        assert tensor.shape == array.shape == shape
        assert tensor.dtype == torch.float32
        assert array.dtype == np.float32
        np.testing.assert_array_equal(tensor.numpy(), array)
        np.testing.assert_allclose(np.linalg.norm(array, axis=-1), 1, atol=1e-6)


def test_encode_cuts_at_max_length_and_at_the_limit_of_the_model(tool: SimCSE) -> None:
    words = ["dog", "cat", "bus", "sun"] * 30
    for max_length, kept in ((6, 4), (128, 62)):
        cut = tool.encode(" ".join(words), max_length=max_length)
        torch.testing.assert_close(cut, tool.encode(" ".join(words[:kept])), atol=1e-6, rtol=0)


def test_similarity_gives_the_types_and_shapes_of_the_original(tool: SimCSE) -> None:
    keys = SENTENCES[:3]
    cosines = tool.similarity(QUERIES, keys)
    assert cosines.shape == (2, 3)
    assert cosines.dtype == np.float32
    number = tool.similarity(QUERIES[0], keys[1])
    assert type(number) is float
    assert number == pytest.approx(cosines[0, 1], abs=1e-6)
    np.testing.assert_allclose(tool.similarity(QUERIES[0], keys), cosines[0], atol=1e-6)
    np.testing.assert_allclose(tool.similarity(QUERIES, keys[1]), cosines[:, [1]], atol=1e-6)
    vectors = 3 * tool.encode(keys, return_numpy=True)
    np.testing.assert_allclose(tool.similarity(QUERIES, vectors), cosines, atol=1e-6)
    number = tool.similarity(QUERIES[0], vectors[1])
    assert type(number) is float
    assert number == pytest.approx(cosines[0, 1], abs=1e-6)


@pytest.mark.parametrize("options", [{}, {"use_faiss": False, "faiss_fast": True}])
def test_search_gives_the_types_of_the_original_and_ties_in_order(
    tool: SimCSE, options: dict[str, bool]
) -> None:
    tool.build_index(SENTENCES, **options)
    hits = tool.search(QUERIES[0], threshold=-1, top_k=100)
    assert len(hits) == len(SENTENCES)
    assert all(type(hit) is tuple and type(hit[1]) is float for hit in hits)
    assert tool.search(QUERIES[:1], threshold=-1, top_k=100) == [hits]
    cosines = tool.similarity(QUERIES[0], SENTENCES)
    order = np.argsort(-cosines, kind="stable")
    assert [sentence for sentence, _ in hits] == [SENTENCES[place] for place in order]
    assert tool.search(QUERIES, threshold=1) == [[], []]


def test_a_file_plain_or_gz_is_indexed_as_the_list_of_its_lines(
    tool: SimCSE, text_file: str, tmp_path: Path
) -> None:
    packed = tmp_path / "sentences.txt.gz"
    packed.write_bytes(gzip.compress(Path(text_file).read_bytes()))
    found = []
    for source in (SENTENCES, text_file, packed):
        tool.build_index(source)
        found.append(tool.search(QUERIES, threshold=-1))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("options", [{}, {"use_faiss": True}, {"faiss_fast": True}])
def test_a_searched_index_grows_in_every_kind_of_search(
    tool: SimCSE, text_file: str, options: dict[str, bool]
) -> None:
    if options:
        pytest.importorskip("faiss")
    tool.build_index(SENTENCES)
    whole = tool.search(QUERIES, threshold=-1, top_k=100)
    tool.build_index(SENTENCES[:2], **options)
    tool.search(QUERIES)
    tool.add_to_index(SENTENCES[2:5])
    tool.search(QUERIES)
    tool.add_to_index(SENTENCES[5:])
    found = tool.search(QUERIES, threshold=-1, top_k=100)
    for hits, expected in zip(found, whole, strict=True):
        assert [sentence for sentence, _ in hits] == [sentence for sentence, _ in expected]
        np.testing.assert_allclose(
            [c for _, c in hits], [c for _, c in expected], atol=1e-6, rtol=0
        )
    tool.add_to_index(text_file)
    assert tool.index is not None
    assert list(tool.index) == SENTENCES * 2


# A kept index


def test_a_kept_index_is_used_again_without_embedding_and_grows(
    tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make() -> SimCSE:
        return SimCSE(tiny_encoder, device="cpu", pooler="avg")

    done: list[int] = []
    first = make()
    first.build_index(SENTENCES, batch_size=2, index_path=tmp_path / "kept", progress=done.append)
    assert done == [2, 4, 6, 7]
    hits = first.search(QUERIES, threshold=-1)

    second = make()
    with monkeypatch.context() as patch:
        patch.setattr(second, "_embed_in_batches", None)
        second.build_index(SENTENCES, index_path=tmp_path / "kept", progress=done.append)
    assert done == [2, 4, 6, 7]
    assert second.search(QUERIES, threshold=-1) == hits

    second.add_to_index(["the world"], progress=done.append)
    assert done[4:] == [1]
    third = make()
    third.open_index(tmp_path / "kept")
    assert third.search("the world", threshold=0.999)[0][0] == "the world"
    for sentences in (SENTENCES, [*SENTENCES, "the moon"]):
        with pytest.raises(UsageError, match=r"kept holds other sentences: name another folder"):
            third.build_index(sentences, index_path=tmp_path / "kept")


def test_progress_goes_on_over_parts_that_are_embedded_together(
    tool: SimCSE, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simcse.tool._BATCHES_AT_ONCE", 2)
    done: list[int] = []
    tool.build_index(SENTENCES, batch_size=2, progress=done.append)
    assert done == [2, 4, 6, 7]
    assert tool.index is not None
    assert list(tool.index) == SENTENCES


def test_an_index_of_other_weights_or_pooling_is_refused(
    tool: SimCSE, tiny_encoder: Path, tmp_path: Path
) -> None:
    tool.build_index(SENTENCES, index_path=tmp_path / "kept")
    with torch.no_grad():
        changed = SentenceEncoder.load(tiny_encoder, pooling="avg")
        next(changed.parameters())[0, 0] += 1e-3
    for other, pooling in (
        (SimCSE(tiny_encoder, "cpu", pooler="cls"), "cls"),
        (SimCSE(changed, "cpu"), "avg"),
    ):
        message = (
            r"was made with another model \(.*tiny with pooling avg\) than .*tiny with pooling "
            rf"{pooling}, or with other weights: search it with that model, or build"
        )
        with pytest.raises(UsageError, match=message):
            other.open_index(tmp_path / "kept")
        with pytest.raises(UsageError, match=r"was made with another model"):
            other.build_index(SENTENCES, index_path=tmp_path / "kept")
    SimCSE(SentenceEncoder.load(tiny_encoder, pooling="avg"), "cpu").open_index(tmp_path / "kept")


def test_an_index_without_a_path_leaves_nothing_behind(
    tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tool = SimCSE(tiny_encoder, device="cpu", pooler="avg")
    for sentences in (SENTENCES, SENTENCES[:2]):
        tool.build_index(sentences)
        assert len(list(tmp_path.iterdir())) == 1
    tool.index = tool._searcher = None
    assert not list(tmp_path.iterdir())


# What cannot be


def test_a_build_that_fails_leaves_the_index_before_it(tool: SimCSE) -> None:
    tool.build_index(SENTENCES)
    with pytest.raises(UsageError, match=r"^there are no sentences to index: give at least one$"):
        tool.build_index([])
    with pytest.raises(UsageError, match=r"^batch_size is 0: give at least 1$"):
        tool.build_index(SENTENCES, batch_size=0)
    assert tool.search(SENTENCES[0], threshold=0.999)[0][0] == SENTENCES[0]


def test_without_faiss_a_search_by_it_is_refused_before_the_work(
    tool: SimCSE, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    monkeypatch.setattr(tool, "_embed_in_batches", None)
    for options in ({"use_faiss": True}, {"faiss_fast": True}):
        with pytest.raises(UsageError, match=r"need faiss, which is not installed: pip install"):
            tool.build_index(SENTENCES, **options)


def test_before_there_is_an_index_it_is_neither_searched_nor_grown(tiny_encoder: Path) -> None:
    tool = SimCSE(tiny_encoder, device="cpu", pooler="avg")
    with pytest.raises(UsageError, match=r"^there is no index to search: call build_index first$"):
        tool.search("the sea")
    with pytest.raises(UsageError, match=r"^there is no index to add to: call build_index first$"):
        tool.add_to_index(["the sea"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda tool: tool.encode([]), r"^there are no sentences to embed: give at least one$"),
        (lambda tool: tool.search([]), r"^there are no sentences to embed"),
        (lambda tool: tool.similarity("a", []), r"^there are no sentences to embed"),
        (lambda tool: tool.encode("a", batch_size=0), r"^batch_size is 0: give at least 1$"),
        (lambda tool: tool.encode("a", max_length=2), r"^max_length is 2: give at least 3$"),
        (lambda tool: tool.encode("a", device="gpu"), r"^device 'gpu' cannot be used here \(.*\)"),
        (lambda tool: tool.search("a", top_k=0), r"^top_k is 0: ask for at least 1 sentence$"),
        (lambda tool: tool.search("a", threshold=60), r"^threshold is 60: give a cosine, from"),
        (
            lambda tool: tool.similarity("a", np.ones((2, 5), np.float32)),
            r"^keys have width 5: .*tiny gives 32$",
        ),
    ],
)
def test_wrong_arguments_are_named(
    tool: SimCSE, call: Callable[[SimCSE], object], message: str
) -> None:
    tool.build_index(SENTENCES)
    with pytest.raises(UsageError, match=message):
        call(tool)


def test_wrong_settings_are_named_before_the_model_is_loaded() -> None:
    with pytest.raises(UsageError, match=r"^device 'cuda:77' cannot be used here \(.*\): name ano"):
        SimCSE("nowhere", device="cuda:77")
    with pytest.raises(UsageError, match=r"^num_cells is 0: give at least 1$"):
        SimCSE("nowhere", num_cells=0)
    with pytest.raises(UsageError, match=r"^num_cells_in_search is -1: give at least 1$"):
        SimCSE("nowhere", num_cells_in_search=-1)


def test_vectors_that_are_not_finite_are_named_by_their_sentence(tiny_encoder: Path) -> None:
    encoder = SentenceEncoder.load(tiny_encoder, pooling="avg")
    bus = encoder.tokenizer.convert_tokens_to_ids("bus")
    with torch.no_grad():
        encoder.backbone.embeddings.word_embeddings.weight[bus] = torch.nan
    tool = SimCSE(encoder, "cpu")
    message = r"^1 of 7 vectors are zero or not finite, the first that of 'the big red bus is on th"
    with pytest.raises(ModelError, match=message):
        tool.build_index(SENTENCES)
    for normalize in (True, False):
        with pytest.raises(ModelError, match=message):
            tool.encode(SENTENCES, normalize_to_unit=normalize)
    with pytest.raises(UsageError, match=r"^there is no index to search"):
        tool.search("a cat")


def test_a_pooler_for_an_encoder_that_has_another_is_refused(tiny_encoder: Path) -> None:
    encoder = SentenceEncoder.load(tiny_encoder, pooling="avg")
    assert SimCSE(encoder, pooler="avg") is not None
    with pytest.raises(UsageError, match=r"pooler is 'cls', but the encoder pools by avg: name"):
        SimCSE(encoder, pooler="cls")
