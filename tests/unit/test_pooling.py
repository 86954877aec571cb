import pytest
import torch
from transformers import AutoModel
from transformers.modeling_outputs import BaseModelOutput

from simcse.backbone import load_checkpoint
from simcse.pooling import POOLINGS, DenseHead, pool
from simcse.tokenizer import load_tokenizer, tokenize
from simcse.tokens import RaggedTokens

SENTENCES = ["a dog runs in the rain", "cat", "the woman reads a red book, and sleeps", ""]


def naive(pooling, backbone, ids):
    """One sentence, no padding, no mask: the definition of a pooling."""
    output = backbone(torch.tensor([ids]), output_hidden_states=True)
    layers = [states[0] for states in output.hidden_states]
    match pooling:
        case "cls" | "cls_before_pooler":
            return output.last_hidden_state[0, 0]
        case "avg":
            return output.last_hidden_state[0].mean(0)
        case "avg_top2":
            return torch.stack([layers[-1], layers[-2]]).mean(0).mean(0)
        case "avg_first_last":
            return torch.stack([layers[1], layers[-1]]).mean(0).mean(0)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("model", ["tiny_encoder", "minilm"])
@torch.no_grad()
def test_pooling_equals_a_loop_over_single_sentences(pooling, model, request):
    folder = request.getfixturevalue(model)
    # float64: the padded and the single sentence differ in float noise, and only in that.
    backbone = load_checkpoint(folder).backbone.double()
    rows = tokenize(load_tokenizer(folder), SENTENCES, 64).ids
    ids, mask = RaggedTokens.from_lists(rows).padded(0)
    got = pool(pooling, backbone(ids, attention_mask=mask, output_hidden_states=True), mask)
    wanted = torch.stack([naive(pooling, backbone, row) for row in rows])
    torch.testing.assert_close(got, wanted, atol=1e-9, rtol=1e-6)


def test_first_last_means_the_first_transformer_layer_not_the_embeddings():
    layers = tuple(torch.full((1, 2, 3), float(value)) for value in (100, 1, 7, 5))
    output = BaseModelOutput(last_hidden_state=layers[-1], hidden_states=layers)
    mask = torch.ones(1, 2)
    assert pool("avg_first_last", output, mask).unique().tolist() == [3.0]
    assert pool("avg_top2", output, mask).unique().tolist() == [6.0]


def test_reduced_precision_is_averaged_in_float32():
    states = torch.full((1, 1024, 1), 1.0, dtype=torch.bfloat16)
    states[0, 0] = 1.0 + 2**-7
    vector = pool("avg", BaseModelOutput(last_hidden_state=states), torch.ones(1, 1024))
    assert vector.dtype == torch.float32
    assert vector.item() == 1.0 + 2**-17


@torch.no_grad()
def test_pooling_equals_plain_transformers_on_a_padded_batch(minilm):
    rows = RaggedTokens.from_lists(tokenize(load_tokenizer(minilm), SENTENCES, 64).ids)
    ids, mask = rows.padded(0)
    output = AutoModel.from_pretrained(minilm)(ids, attention_mask=mask)
    weights = mask[:, :, None].float()
    mean = (output.last_hidden_state * weights).sum(1) / weights.sum(1)
    backbone = load_checkpoint(minilm).backbone
    ours = backbone(ids, attention_mask=mask)
    assert torch.equal(pool("avg", ours, mask), mean)
    assert torch.equal(pool("cls", ours, mask), output.last_hidden_state[:, 0])


def test_a_new_head_is_a_function_of_its_seed_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    one, again, other = (
        DenseHead.initialised(384, standard_deviation=0.02, seed=seed) for seed in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one.dense.weight, again.dense.weight)
    assert not torch.equal(one.dense.weight, other.dense.weight)
    assert one.dense.weight.std().item() == pytest.approx(0.02, rel=0.01)
    assert not one.dense.bias.any()
