import json

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel

from simcse.config import EncoderConfig
from simcse.encoder import SentenceEncoder
from simcse.errors import DataError
from simcse.metrics import cosine_rows, unit_rows
from simcse.whitening import Whitening
from support.tiny import WORDS

SENTENCES = [f"{a} {b} {c}" for a in ("the", "a") for b in WORDS.split()[20:60] for c in "xy"]


def correlated(count, width, seed=0):
    """Vectors far from the origin that spread over four orders of magnitude."""
    rng = np.random.default_rng(seed)
    scale = np.logspace(0, -4, width)
    mixing = np.linalg.qr(rng.normal(size=(width, width)))[0]
    return ((rng.normal(size=(count, width)) * scale) @ mixing + 3.0).astype(np.float32)


@pytest.mark.parametrize("dimensions", [None, 24, 5])
def test_whitened_vectors_have_mean_zero_and_covariance_one(dimensions):
    vectors = correlated(400, 24)
    whitened = Whitening.fit(vectors, dimensions)(vectors)
    assert whitened.shape == (400, dimensions or 24)
    np.testing.assert_allclose(whitened.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(
        np.cov(whitened, rowvar=False, bias=True), np.eye(dimensions or 24), atol=1e-6
    )


def test_the_kernel_is_that_of_the_paper_from_a_singular_value_decomposition():
    vectors = correlated(300, 8).astype(np.float64)
    covariance = np.cov(vectors, rowvar=False, bias=True)
    directions, variances, _ = np.linalg.svd(covariance)
    kernel = directions @ np.diag(1 / np.sqrt(variances))
    fitted = Whitening.fit(vectors, 3)
    # The sign of a direction is free.
    signs = np.sign((fitted.kernel_Dk * kernel[:, :3]).sum(0))
    np.testing.assert_allclose(fitted.kernel_Dk * signs, kernel[:, :3], rtol=1e-6)
    np.testing.assert_allclose(fitted.mean_D, vectors.mean(0))


def test_fewer_sentences_than_dimensions_are_refused():
    with pytest.raises(DataError, match="23 sentences are too few for vectors of 24 numbers"):
        Whitening.fit(correlated(23, 24))


def test_directions_without_spread_are_left_out_and_refused_when_asked_for():
    vectors = correlated(200, 24)
    vectors[:, 20:] = vectors[:, :4]
    whitened = Whitening.fit(vectors)(vectors)
    covariance = np.cov(whitened, rowvar=False, bias=True)
    np.testing.assert_allclose(covariance, np.eye(20), atol=1e-6)
    with pytest.raises(DataError, match=r"spread in only 20 of 24 directions: keep at most 20"):
        Whitening.fit(vectors, 21)


@pytest.mark.parametrize("dimensions", [0, 25])
def test_more_dimensions_than_the_vectors_have_are_a_mistake(dimensions):
    with pytest.raises(ValueError, match=f"dimensions must be 1 to 24, got {dimensions}"):
        Whitening.fit(correlated(100, 24), dimensions)


@pytest.mark.parametrize(
    ("pooling", "head"), [("avg", "none"), ("avg_first_last", "none"), ("cls", "always")]
)
def test_a_whitened_model_is_the_same_for_us_and_for_sentence_transformers(
    tiny_encoder, pooling, head, tmp_path, capfd
):
    settings = EncoderConfig(model=str(tiny_encoder), pooling=pooling, head=head)
    encoder = SentenceEncoder.from_config(settings, seed=3).eval()
    plain = encoder.encode(SENTENCES)
    whitening = Whitening.fit(plain, 16)
    encoder.whitening = whitening.layer()
    vectors = encoder.encode(SENTENCES)
    assert vectors.shape == (len(SENTENCES), 16) == (len(SENTENCES), encoder.dimension)
    np.testing.assert_allclose(vectors, whitening(plain), atol=1e-4)
    encoder.save(tmp_path / "model")
    assert json.loads((tmp_path / "model" / "simcse.json").read_text())["whitened"]
    assert np.array_equal(SentenceEncoder.load(tmp_path / "model").encode(SENTENCES), vectors)
    theirs = SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(SENTENCES)
    np.testing.assert_allclose(unit_rows(theirs), unit_rows(vectors), atol=1e-6)
    assert "MISSING" not in capfd.readouterr().err
    _, report = AutoModel.from_pretrained(
        tmp_path / "model", add_pooling_layer=head == "always", output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]


@pytest.fixture
def whitened(tiny_encoder, tmp_path):
    encoder = SentenceEncoder.load(tiny_encoder, pooling="avg")
    encoder.whitening = Whitening.fit(encoder.encode(SENTENCES)).layer()
    encoder.save(tmp_path / "whitened")
    return tmp_path / "whitened"


def test_another_pooling_and_further_training_leave_the_whitening_behind(tiny_encoder, whitened):
    other = SentenceEncoder.load(whitened, pooling="avg_top2").encode(SENTENCES)
    plain = SentenceEncoder.load(tiny_encoder, pooling="avg_top2").encode(SENTENCES)
    assert np.array_equal(other, plain)
    settings = EncoderConfig(model=str(whitened), pooling="avg", head="none")
    assert SentenceEncoder.from_config(settings, seed=0).whitening is None


def test_the_card_of_a_whitened_model_says_so(whitened):
    card = (whitened / "README.md").read_text()
    assert "then whitened by an affine map" in card
    assert "pooler_output` is the vector" not in card


def test_the_map_is_not_trained_and_has_a_direction_less_after_a_layer_norm(whitened):
    encoder = SentenceEncoder.load(whitened)
    assert encoder.dimension == 31
    assert not any(parameter.requires_grad for parameter in encoder.whitening.parameters())
    assert encoder.whitening.weight.dtype == torch.float32


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{sentence}\n" for sentence in [*SENTENCES, *SENTENCES]))
    return path


def test_the_command_writes_a_model_that_says_what_it_was_fitted_to(
    simcse, tiny_encoder, text, tmp_path
):
    outcome = simcse(
        *("whiten", tiny_encoder, "--text", text, "--output", tmp_path / "model"),
        *("--pooling", "avg_first_last", "--dimensions", 12, "--json", tmp_path / "said.json"),
    )
    assert outcome.code == 0, outcome.err
    assert f"whitened on {len(SENTENCES)} sentences of {text}, 32 to 12 dimensions" in outcome.out
    said = json.loads((tmp_path / "said.json").read_text())
    assert (said["sentences"], said["dimensions"]) == (len(SENTENCES), 12)
    encoder = SentenceEncoder.load(tmp_path / "model")
    assert encoder.pooling == "avg_first_last"
    vectors = encoder.encode(SENTENCES).astype(np.float64)
    covariance = np.cov(vectors, rowvar=False, bias=True)
    np.testing.assert_allclose(covariance, np.eye(12), atol=1e-4)
    lineage = json.loads((tmp_path / "model" / "simcse.json").read_text())["lineage"]
    assert lineage["whitening"]["text"] == "text.txt"


def test_whitening_a_whitened_model_starts_from_its_plain_vectors(
    simcse, tiny_encoder, text, tmp_path
):
    command = ("whiten", "--text", text, "--dimensions", 8)
    simcse(*command, tiny_encoder, "--pooling", "avg", "--output", tmp_path / "once")
    simcse(*command, tmp_path / "once", "--output", tmp_path / "twice")
    once, twice = (SentenceEncoder.load(tmp_path / name) for name in ("once", "twice"))
    np.testing.assert_allclose(
        cosine_rows(once.encode(SENTENCES), twice.encode(SENTENCES)), 1, atol=1e-6
    )


def test_the_command_names_what_it_cannot_fit_to(simcse, tiny_encoder, text, tmp_path):
    command = ("whiten", tiny_encoder, "--pooling", "avg", "--output", tmp_path / "model")
    outcome = simcse(*command, "--text", text, "--dimensions", 33)
    assert outcome.code == 2
    assert outcome.error == "--dimensions is 33, but the vectors have 32: lower it"
    text.write_text("one dog\ntwo dogs\n")
    outcome = simcse(*command, "--text", text)
    assert outcome.code == 1
    assert outcome.error.startswith(f"{text}: 2 sentences are too few for vectors of 32 numbers")
    assert not (tmp_path / "model").exists()
