"""Every architecture that is promised: encoded, saved and loaded by us and by the libraries."""

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoModelForMaskedLM, MambaConfig, XLMConfig, XLMWithLMHeadModel

from simcse.backbone import dropout_probabilities, load_masked_language_model
from simcse.config import EncoderConfig
from simcse.encoder import SentenceEncoder
from simcse.errors import ModelError
from simcse.pooling import POOLINGS
from support.architectures import (
    ARCHITECTURES,
    WITH_DENSE_POOLER,
    save_encoder,
    save_masked_language_model,
)

SENTENCES = [
    "The cat sits on the road.",
    "a woman and a small child ride the bus to the city, and it is a good day",
    "Rain!",
    "",
    "a dog and a cat " * 10,
]
KINDS = [
    ("cls", "training"),
    ("cls", "always"),
    *((pooling, "none") for pooling in POOLINGS),
]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def architecture(request):
    return request.param


@pytest.fixture(scope="module")
def folder(architecture, tmp_path_factory):
    return save_encoder(tmp_path_factory.mktemp("encoders") / architecture, architecture)


@pytest.fixture(scope="module")
def language_model(architecture, tmp_path_factory):
    folder = tmp_path_factory.mktemp("language_models") / architecture
    return save_masked_language_model(folder, architecture)


def naive(pooling, output):
    """One sentence, no padding: the definition of a pooling."""
    layers = [states[0] for states in output.hidden_states]
    match pooling:
        case "cls":
            return output.pooler_output[0]
        case "cls_before_pooler":
            return output.last_hidden_state[0, 0]
        case "avg":
            return output.last_hidden_state[0].mean(0)
        case "avg_top2":
            return ((layers[-1] + layers[-2]) / 2).mean(0)
        case "avg_first_last":
            return ((layers[1] + layers[-1]) / 2).mean(0)


@torch.no_grad()
def test_each_pooling_equals_transformers_on_one_sentence_at_a_time(architecture, folder):
    model = AutoModel.from_pretrained(folder).double()
    for pooling in POOLINGS:
        if pooling == "cls" and architecture not in WITH_DENSE_POOLER:
            continue
        encoder = SentenceEncoder.load(folder, pooling=pooling).double()
        wanted = []
        for sentence in SENTENCES:
            ids = torch.tensor([encoder.tokenizer(sentence).input_ids])
            wanted.append(naive(pooling, model(input_ids=ids, output_hidden_states=True)))
        vectors = encoder(encoder.tokenize(SENTENCES))
        torch.testing.assert_close(vectors, torch.stack(wanted), atol=1e-6, rtol=0)


@pytest.mark.parametrize("without", sorted({*ARCHITECTURES} - {*WITH_DENSE_POOLER}))
def test_an_architecture_without_pooler_dense_refuses_its_pooling(without, tmp_path):
    save_encoder(tmp_path / without, without)
    with pytest.raises(ModelError, match=r"no weights pooler.dense.* choose cls_before_pooler"):
        SentenceEncoder.load(tmp_path / without, pooling="cls")


def test_a_sentence_does_not_depend_on_the_padding_its_company_brings(folder):
    encoder = SentenceEncoder.load(folder, pooling="avg")
    alone = np.concatenate([encoder.encode([sentence]) for sentence in SENTENCES])
    np.testing.assert_allclose(encoder.encode(SENTENCES), alone, atol=1e-5)


def test_sentences_are_read_up_to_the_last_position(folder):
    encoder = SentenceEncoder.load(folder, pooling="avg")
    assert encoder.model_limit == 64
    assert encoder.tokenize(["dog " * 90]).lengths_n.tolist() == [64]
    assert np.isfinite(encoder.encode(["dog " * 90])).all()


@pytest.mark.parametrize(("pooling", "head"), KINDS)
def test_a_trained_model_is_the_same_for_us_and_for_sentence_transformers(
    folder, pooling, head, tmp_path, capfd
):
    settings = EncoderConfig(model=str(folder), pooling=pooling, head=head)
    encoder = SentenceEncoder.from_config(settings, seed=3)
    encoder.save(tmp_path / "model")
    vectors = encoder.encode(SENTENCES)
    assert np.array_equal(SentenceEncoder.load(tmp_path / "model").encode(SENTENCES), vectors)
    theirs = SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(SENTENCES)
    np.testing.assert_allclose(theirs, vectors, atol=1e-6)
    captured = capfd.readouterr()
    assert "MISSING" not in captured.out + captured.err


@torch.no_grad()
def test_transformers_loads_a_trained_model_with_its_head_as_pooler(architecture, folder, tmp_path):
    encoder = SentenceEncoder.from_config(EncoderConfig(model=str(folder), head="always"), seed=3)
    encoder.save(tmp_path / "model")
    pooled = architecture in WITH_DENSE_POOLER
    options = {} if pooled or architecture != "albert" else {"add_pooling_layer": False}
    model, report = AutoModel.from_pretrained(
        tmp_path / "model", output_loading_info=True, **options
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    ids, mask = encoder.tokenize(SENTENCES).padded(encoder.tokenizer.pad_token_id)
    output = model(input_ids=ids, attention_mask=mask)
    first = output.last_hidden_state[:, 0]
    vectors = output.pooler_output if pooled else torch.tanh(encoder.head.dense(first))
    np.testing.assert_allclose(vectors, encoder.encode(SENTENCES), atol=1e-5)


@torch.no_grad()
def test_the_head_for_hidden_tokens_gives_the_logits_of_transformers(language_model):
    backbone, head = load_masked_language_model(language_model)
    wanted = AutoModelForMaskedLM.from_pretrained(language_model)
    encoder = SentenceEncoder.load(language_model, pooling="avg")
    ids, mask = encoder.tokenize(SENTENCES).padded(encoder.tokenizer.pad_token_id)
    ids[mask.bool() & (torch.arange(ids.shape[1]) % 3 == 1)] = encoder.tokenizer.mask_token_id
    hidden = ids == encoder.tokenizer.mask_token_id
    states = backbone.eval()(input_ids=ids, attention_mask=mask).last_hidden_state
    logits = head.eval()(states[hidden])
    assert logits.shape == (int(hidden.sum()), len(encoder.tokenizer))
    theirs = wanted(input_ids=ids, attention_mask=mask).logits[hidden]
    torch.testing.assert_close(logits, theirs, atol=1e-6, rtol=0)


def test_the_head_for_hidden_tokens_shares_the_embeddings_and_brings_no_pooler(language_model):
    backbone, head = load_masked_language_model(language_model, dropout=0.25)
    embeddings = backbone.get_input_embeddings().weight
    assert any(parameter is embeddings for parameter in head.parameters())
    assert not [name for name, _ in backbone.named_parameters() if "pooler" in name]
    assert {p.dtype for p in [*backbone.parameters(), *head.parameters()]} == {torch.float32}
    assert {m.p for m in backbone.modules() if isinstance(m, torch.nn.Dropout)} <= {0.25}
    assert set(dropout_probabilities(backbone.config).values()) == {0.25}


def test_a_checkpoint_without_the_head_for_hidden_tokens_is_refused(folder):
    with pytest.raises(ModelError, match=r"lack \S+ of the masked-language head.*: name a check"):
        load_masked_language_model(folder)


def test_a_head_for_hidden_tokens_that_is_not_known_is_refused(tmp_path):
    XLMWithLMHeadModel(XLMConfig(vocab_size=9, emb_dim=8, n_layers=1, n_heads=2)).save_pretrained(
        tmp_path
    )
    with pytest.raises(ModelError, match=r"head of a xlm model \(pred_layer\) is not known: name"):
        load_masked_language_model(tmp_path)


def test_an_architecture_without_a_head_for_hidden_tokens_is_refused(tmp_path):
    MambaConfig().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"a mamba model such as .* has no masked-language head"):
        load_masked_language_model(tmp_path)


DROPOUT = {
    "bert": {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
    "roberta": {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
    "distilbert": {"dropout": 0.1, "attention_dropout": 0.1},
    "albert": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "mpnet": {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
    "xlm-roberta": {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
    "modernbert": {"attention_dropout": 0.0, "embedding_dropout": 0.0, "mlp_dropout": 0.0},
}


def test_the_dropout_of_the_encoder_is_listed_without_that_of_task_heads(architecture, folder):
    encoder = SentenceEncoder.load(folder, pooling="avg")
    assert dropout_probabilities(encoder.backbone.config) == DROPOUT[architecture]
