import numpy as np
import pytest
import torch
from transformers import AutoModel

from simcse.config import EncoderConfig
from simcse.encoder import SentenceEncoder
from simcse.errors import ModelError, UsageError
from simcse.model_folder import read_head
from simcse.pooling import POOLINGS
from simcse.tokens import RaggedTokens

ANIMALS = ["dog", "cat", "bird", "horse", "x", "y"]
SENTENCES = [
    f"the {size} {animal} {'runs and ' * (i % 5)}sleeps"
    for size in ("big", "small", "old")
    for i, animal in enumerate(ANIMALS)
]


def config(folder, **settings):
    return EncoderConfig(model=str(folder), **settings)


def gradients(encoder):
    return {name: parameter.grad for name, parameter in encoder.named_parameters()}


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("count", [0, 1, 2, 5, 17])
def test_buckets_change_neither_vectors_nor_gradients(tiny_encoder, pooling, count):
    head = "always" if pooling == "cls" else "none"
    results = []
    for buckets in (1, 3, 8):
        settings = config(
            tiny_encoder, pooling=pooling, head=head, dropout=0.0, length_buckets=buckets
        )
        encoder = SentenceEncoder.from_config(settings, seed=0).double()
        vectors = encoder(encoder.tokenize(SENTENCES[:count]))
        assert vectors.shape == (count, 32)
        vectors.square().sum().backward()
        results.append((vectors.detach(), gradients(encoder)))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("count", [0, 1, 4, 17])
def test_the_backbone_is_called_once_a_bucket_however_few_sentences(tiny_encoder, count):
    encoder = SentenceEncoder.from_config(config(tiny_encoder, length_buckets=5), seed=0)
    calls = []
    encoder.backbone.register_forward_hook(lambda *_: calls.append(1))
    encoder(encoder.tokenize(SENTENCES[:count]))
    assert len(calls) == 5


def test_no_sentences_give_every_parameter_a_gradient_of_zero(tiny_encoder):
    encoder = SentenceEncoder.from_config(config(tiny_encoder, length_buckets=2), seed=0)
    encoder(RaggedTokens.from_lists([])).sum().backward()
    for name, gradient in gradients(encoder).items():
        assert gradient is not None, name
        assert not gradient.any(), name


def test_dropout_differs_between_passes_and_repeats_with_the_seed(tiny_encoder):
    encoder = SentenceEncoder.from_config(config(tiny_encoder), seed=0)
    tokens = encoder.tokenize(SENTENCES)
    torch.manual_seed(3)
    first, second = encoder(tokens), encoder(tokens)
    torch.manual_seed(3)
    assert torch.equal(encoder(tokens), first)
    assert not torch.isclose(first, second).all(1).any()


def test_a_dropout_setting_reaches_every_dropout_of_the_encoder(tiny_encoder):
    encoder = SentenceEncoder.from_config(config(tiny_encoder, dropout=0.25), seed=0)
    modules = [m for m in encoder.modules() if isinstance(m, torch.nn.Dropout)]
    assert len(modules) == 7
    assert {module.p for module in modules} == {0.25}
    assert encoder.backbone.config.classifier_dropout is None
    kept = SentenceEncoder.from_config(config(tiny_encoder), seed=0)
    assert kept.backbone.config.hidden_dropout_prob == 0.1


def test_the_seed_decides_the_head_and_the_global_generator_is_left_alone(tiny_encoder):
    state = torch.get_rng_state()
    heads = [
        SentenceEncoder.from_config(config(tiny_encoder), seed=seed).head.dense.weight
        for seed in (1, 1, 2)
    ]
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])


def test_the_training_head_is_applied_in_training_only(tiny_encoder):
    encoder = SentenceEncoder.from_config(config(tiny_encoder, dropout=0.0), seed=0)
    tokens = encoder.tokenize(SENTENCES)
    trained = encoder(tokens)
    used = encoder.eval()(tokens)
    torch.testing.assert_close(trained, torch.tanh(encoder.head.dense(used)))
    plain = SentenceEncoder.load(tiny_encoder, pooling="cls_before_pooler")
    torch.testing.assert_close(used, plain(tokens))


def test_parameters_are_named_by_backbone_and_head_without_a_pooler(tiny_encoder):
    encoder = SentenceEncoder.from_config(config(tiny_encoder), seed=0)
    names = set(encoder.state_dict())
    assert {"head.dense.weight", "head.dense.bias"} < names
    assert "backbone.embeddings.word_embeddings.weight" in names
    assert not [name for name in names if "pooler" in name]


@pytest.mark.parametrize("batch_size", [1, 4, 64])
def test_encode_keeps_input_order_and_does_not_depend_on_company(tiny_encoder, batch_size):
    encoder = SentenceEncoder.load(tiny_encoder, pooling="avg")
    done = []
    vectors = encoder.encode(SENTENCES, batch_size=batch_size, progress=done.append)
    assert vectors.dtype == np.float32
    assert done[-1] == len(SENTENCES)
    alone = np.concatenate([encoder.encode([sentence]) for sentence in SENTENCES])
    np.testing.assert_allclose(vectors, alone, atol=1e-6)
    assert encoder.encode([]).shape == (0, 32)


@pytest.mark.parametrize("training", [True, False])
def test_encode_runs_without_dropout_and_restores_the_mode(tiny_encoder, training):
    encoder = SentenceEncoder.from_config(config(tiny_encoder), seed=0).train(training)
    once, again = encoder.encode(SENTENCES), encoder.encode(SENTENCES)
    assert np.array_equal(once, again)
    assert {module.training for module in encoder.modules()} == {training}


@torch.no_grad()
def test_encode_equals_plain_transformers(minilm):
    encoder = SentenceEncoder.load(minilm)
    assert encoder.pooling == "avg"
    batch = encoder.tokenizer(SENTENCES, padding=True, return_tensors="pt")
    states = AutoModel.from_pretrained(minilm)(**batch).last_hidden_state
    weights = batch["attention_mask"][:, :, None]
    mean = (states * weights).sum(1) / weights.sum(1)
    np.testing.assert_allclose(encoder.encode(SENTENCES), mean, atol=1e-6)
    by_cls = SentenceEncoder.load(minilm, pooling="cls_before_pooler").encode(SENTENCES)
    np.testing.assert_allclose(by_cls, states[:, 0], atol=1e-6)


@torch.no_grad()
def test_cls_of_a_plain_folder_is_its_pooler_output(tiny_encoder):
    encoder = SentenceEncoder.load(tiny_encoder, pooling="cls")
    assert encoder.head_kind == "always"
    batch = encoder.tokenizer(SENTENCES, padding=True, return_tensors="pt")
    wanted = AutoModel.from_pretrained(tiny_encoder)(**batch).pooler_output
    np.testing.assert_allclose(encoder.encode(SENTENCES), wanted, atol=1e-6)


def test_reduced_precision_ends_before_pooling_and_head(tiny_encoder):
    encoder = SentenceEncoder.from_config(config(tiny_encoder, dropout=0.0), seed=0)
    tokens = encoder.tokenize(SENTENCES)
    with torch.autocast("cpu", torch.bfloat16):
        vectors = encoder(tokens)
    assert vectors.dtype == torch.float32
    assert not torch.equal(vectors, encoder(tokens))
    assert not torch.equal(vectors, vectors.bfloat16().float())


def test_the_limit_is_that_of_positions_and_longer_text_is_cut(minilm):
    encoder = SentenceEncoder.load(minilm)
    assert encoder.model_limit == 512
    assert encoder.tokenize(["dog " * 600]).lengths_n.tolist() == [512]
    assert encoder.tokenize(["dog " * 600], max_length=32).lengths_n.tolist() == [32]


def test_a_roberta_has_two_positions_fewer(tiny_encoder, tmp_path):
    from transformers import RobertaConfig, RobertaModel

    roberta = RobertaModel(
        RobertaConfig(
            vocab_size=200,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=40,
            pad_token_id=1,
        )
    )
    roberta.save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).symlink_to(tiny_encoder / name)
    encoder = SentenceEncoder.load(tmp_path, pooling="avg")
    assert encoder.model_limit == 38
    assert np.isfinite(encoder.encode(["dog " * 60])).all()


def test_longer_training_sentences_than_the_model_reads_are_refused(tiny_encoder):
    with pytest.raises(UsageError, match=r"encoder.max_length is 65, but .* at most 64 tokens"):
        SentenceEncoder.from_config(config(tiny_encoder, max_length=65), seed=0)


def test_a_folder_that_does_not_say_its_pooling_needs_it_said(tiny_encoder):
    with pytest.raises(ModelError, match="choose a pooling, one of cls, cls_before_pooler, avg"):
        SentenceEncoder.load(tiny_encoder)


def test_cls_without_pooler_weights_is_refused(without_pooler):
    with pytest.raises(ModelError, match=r"no weights pooler.dense.* choose cls_before_pooler"):
        SentenceEncoder.load(without_pooler, pooling="cls")


@pytest.fixture
def without_pooler(tiny_encoder, tmp_path):
    folder = tmp_path / "without_pooler"
    model = AutoModel.from_pretrained(tiny_encoder, add_pooling_layer=False)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).symlink_to(tiny_encoder / name)
    return folder


def test_a_head_of_ours_is_kept_for_further_training(tiny_encoder, tmp_path):
    for head in ("training", "always"):
        first = SentenceEncoder.from_config(config(tiny_encoder, head=head), seed=1)
        first.save(tmp_path / head)
        for next_head in ("training", "always"):
            settings = config(tmp_path / head, head=next_head)
            second = SentenceEncoder.from_config(settings, seed=2)
            assert second.head_kind == next_head
            assert torch.equal(second.head.dense.weight, first.head.dense.weight)
        assert read_head(tmp_path / head, head).keys() == {"dense.weight", "dense.bias"}
