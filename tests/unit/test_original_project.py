"""What the original project saves and publishes, made here with its key names and layout."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModel

from simcse.config import EncoderConfig
from simcse.encoder import SentenceEncoder
from simcse.errors import ModelError
from simcse.original_project import pooling_by_name
from support.architectures import save_encoder

SENTENCES = ["a dog runs in the rain", "Rain!", "the woman reads a red book, and the man sleeps"]


@pytest.fixture(scope="module", params=["bert", "roberta"])
def published(request, tmp_path_factory):
    """A plain BERT or RoBERTa with `pooler.dense`, as the original publishes its models."""
    return save_encoder(tmp_path_factory.mktemp("original") / request.param, request.param)


def as_training_checkpoint(source, folder, form="bin"):
    """The folder as `BertForCL` or `RobertaForCL` saves it: another prefix, `mlp`, no pooler."""
    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).symlink_to(source / name)
    config = json.loads((source / "config.json").read_text())
    kind = config["model_type"]
    config["architectures"] = ["BertForCL" if kind == "bert" else "RobertaForCL"]
    (folder / "config.json").write_text(json.dumps(config))
    state = {
        f"mlp.{name.removeprefix('pooler.')}" if "pooler" in name else f"{kind}.{name}": tensor
        for name, tensor in AutoModel.from_pretrained(source).state_dict().items()
    }
    state[f"{kind}.embeddings.position_ids"] = torch.arange(64)[None]
    state["lm_head.bias"] = torch.zeros(config["vocab_size"])
    if form == "bin":
        torch.save(state, folder / "pytorch_model.bin")
    else:
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@torch.no_grad()
def own_forward(source, *, mlp):
    """[CLS] of the last layer, and for supervised models dense and tanh over it."""
    model = AutoModel.from_pretrained(source)
    encoder = SentenceEncoder.load(source, pooling="cls_before_pooler")
    ids, mask = encoder.tokenize(SENTENCES).padded(encoder.tokenizer.pad_token_id)
    first = model(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0]
    dense = model.pooler.dense
    return torch.tanh(first @ dense.weight.T + dense.bias) if mlp else first


@pytest.mark.parametrize("form", ["bin", "safetensors"])
def test_a_training_checkpoint_gives_the_vectors_of_its_own_forward(published, form, tmp_path):
    folder = as_training_checkpoint(published, tmp_path / "checkpoint", form)
    for pooling, mlp in (("cls", True), ("cls_before_pooler", False)):
        vectors = SentenceEncoder.load(folder, pooling=pooling).encode(SENTENCES)
        np.testing.assert_allclose(vectors, own_forward(published, mlp=mlp), atol=1e-6)


def test_a_training_checkpoint_without_a_telling_name_needs_the_pooling_said(published, tmp_path):
    folder = as_training_checkpoint(published, tmp_path / "simcse-checkpoint")
    with pytest.raises(
        ModelError,
        match=r"is a training checkpoint of the original SimCSE.* choose pooling cls for a "
        r"supervised model, cls_before_pooler for an unsupervised one",
    ):
        SentenceEncoder.load(folder)


@pytest.mark.parametrize(
    ("name", "pooling", "mlp"),
    [
        ("my-sup-simcse-bert-base-uncased", "cls", True),
        ("my-unsup-simcse-bert-base-uncased", "cls_before_pooler", False),
    ],
)
def test_a_name_as_the_original_gives_decides_the_pooling(
    published, name, pooling, mlp, tmp_path, monkeypatch
):
    checkpoint = as_training_checkpoint(published, tmp_path / "result" / name)
    (tmp_path / name).symlink_to(published)
    for folder in (checkpoint, tmp_path / name):
        encoder = SentenceEncoder.load(folder)
        assert encoder.pooling == pooling
        np.testing.assert_allclose(
            encoder.encode(SENTENCES), own_forward(published, mlp=mlp), atol=1e-6
        )
    monkeypatch.chdir(checkpoint)
    assert SentenceEncoder.load(".").pooling == pooling


@pytest.mark.parametrize(
    ("name", "pooling"),
    [
        ("princeton-nlp/sup-simcse-roberta-large", "cls"),
        ("princeton-nlp/unsup-simcse-bert-base-uncased", "cls_before_pooler"),
        ("someone/SimCSE_unsup", "cls_before_pooler"),
        ("someone/simcse-bert", None),
        ("someone/super-simcse", None),
        ("sup-simcse/bert-base-uncased", None),
        ("bert-base-uncased", None),
    ],
)
def test_only_a_name_that_tells_the_supervision_decides_the_pooling(name, pooling):
    assert pooling_by_name(name) == pooling


def test_further_training_keeps_the_head_of_the_original(published, tmp_path):
    (tmp_path / "sup-simcse").symlink_to(published)
    wanted = AutoModel.from_pretrained(published).pooler.dense
    for folder in (
        as_training_checkpoint(published, tmp_path / "checkpoint"),
        tmp_path / "sup-simcse",
    ):
        for head in ("training", "always"):
            config = EncoderConfig(model=str(folder), head=head)
            encoder = SentenceEncoder.from_config(config, seed=1)
            assert torch.equal(encoder.head.dense.weight, wanted.weight)
            assert torch.equal(encoder.head.dense.bias, wanted.bias)


def test_the_pooler_of_a_model_that_simcse_did_not_train_is_no_head(published):
    config = EncoderConfig(model=str(published), head="always")
    encoder = SentenceEncoder.from_config(config, seed=1)
    pooler = AutoModel.from_pretrained(published).pooler.dense
    assert not torch.equal(encoder.head.dense.weight, pooler.weight)


def test_a_model_of_the_original_saved_by_us_says_its_pooling(published, tmp_path):
    folder = as_training_checkpoint(published, tmp_path / "my-sup-simcse")
    encoder = SentenceEncoder.load(folder)
    encoder.save(tmp_path / "ours")
    again = SentenceEncoder.load(tmp_path / "ours")
    assert (again.pooling, again.head_kind) == ("cls", "always")
    assert np.array_equal(again.encode(SENTENCES), encoder.encode(SENTENCES))


class Payload:
    def __reduce__(self):
        return print, ("code of a stranger was run",)


def test_a_bin_file_that_would_run_code_is_refused(published, tmp_path, capfd):
    folder = as_training_checkpoint(published, tmp_path / "my-sup-simcse")
    torch.save({"bert": Payload()}, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"my-sup-simcse has a \.bin file .*: save the tensors as"):
        SentenceEncoder.load(folder)
    assert "stranger" not in capfd.readouterr().out


def test_a_bin_file_cut_short_is_refused(published, tmp_path):
    folder = as_training_checkpoint(published, tmp_path / "my-sup-simcse")
    path = folder / "pytorch_model.bin"
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ModelError, match="my-sup-simcse cannot be read, so copy it anew"):
        SentenceEncoder.load(folder)
