import json
import shutil
from importlib.metadata import version

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import (
    AutoModel,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    MambaConfig,
    T5Config,
)

from simcse.config import EncoderConfig
from simcse.encoder import SentenceEncoder
from simcse.errors import ModelError, UsageError
from simcse.pooling import POOLINGS
from simcse.tokenizer import load_tokenizer

SENTENCES = [
    "The cat sits on the road.",
    "a woman and a small child ride the bus to the city, and it is a good day",
    "Rain!",
    "dog " * 90,
]
KINDS = [
    ("cls", "none"),
    ("cls", "training"),
    ("cls", "always"),
    *((pooling, "none") for pooling in POOLINGS if pooling != "cls"),
]


def trained(folder, pooling="cls", head="training", seed=5):
    settings = EncoderConfig(model=str(folder), pooling=pooling, head=head)
    return SentenceEncoder.from_config(settings, seed=seed)


@pytest.mark.parametrize(("pooling", "head"), KINDS)
@pytest.mark.parametrize("model", ["tiny_encoder", "minilm"])
def test_sentence_transformers_gives_the_same_vectors_without_a_warning(
    model, pooling, head, request, tmp_path, capfd
):
    encoder = trained(request.getfixturevalue(model), pooling, head)
    encoder.save(tmp_path / "model")
    vectors = encoder.encode(SENTENCES)
    theirs = SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(SENTENCES)
    np.testing.assert_allclose(theirs, vectors, atol=1e-6)
    assert "MISSING" not in capfd.readouterr().err


@pytest.mark.parametrize(("pooling", "head"), KINDS)
def test_a_saved_model_loads_bit_equal(tiny_encoder, pooling, head, tmp_path):
    encoder = trained(tiny_encoder, pooling, head)
    encoder.save(tmp_path / "model")
    loaded = SentenceEncoder.load(tmp_path / "model")
    assert (loaded.pooling, loaded.head_kind) == (pooling, head)
    assert loaded.max_length == encoder.max_length
    assert not loaded.training
    assert np.array_equal(loaded.encode(SENTENCES), encoder.encode(SENTENCES))
    state, again = encoder.state_dict(), loaded.state_dict()
    assert state.keys() == again.keys()
    assert all(torch.equal(state[name], again[name]) for name in state)


@torch.no_grad()
def test_pooler_output_of_transformers_is_the_vector_when_the_head_always_applies(
    tiny_encoder, tmp_path
):
    encoder = trained(tiny_encoder, head="always")
    encoder.save(tmp_path / "model")
    model, report = AutoModel.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    batch = encoder.tokenizer(
        SENTENCES, padding=True, truncation=True, max_length=64, return_tensors="pt"
    )
    np.testing.assert_allclose(model(**batch).pooler_output, encoder.encode(SENTENCES), atol=1e-6)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_transformers_finds_every_weight_but_the_pooler(tiny_encoder, pooling, tmp_path):
    trained(tiny_encoder, pooling, "none").save(tmp_path / "model")
    _, report = AutoModel.from_pretrained(
        tmp_path / "model", add_pooling_layer=False, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]


def test_an_explicit_pooling_overrides_that_of_the_folder(tiny_encoder, tmp_path):
    encoder = trained(tiny_encoder, head="always")
    encoder.save(tmp_path / "model")
    averaged = SentenceEncoder.load(tmp_path / "model", pooling="avg")
    assert averaged.head is None
    plain = SentenceEncoder.load(tiny_encoder, pooling="avg")
    assert np.array_equal(averaged.encode(SENTENCES), plain.encode(SENTENCES))


def test_the_head_of_an_architecture_without_pooler_is_kept_beside_it(tiny_encoder, tmp_path):
    folder = tmp_path / "distil"
    vocabulary = len(load_tokenizer(tiny_encoder))
    DistilBertModel(
        DistilBertConfig(
            vocab_size=vocabulary,
            dim=32,
            n_layers=2,
            n_heads=2,
            hidden_dim=64,
            max_position_embeddings=64,
        )
    ).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_encoder / name, folder)
    encoder = SentenceEncoder.from_config(
        EncoderConfig(model=str(folder), head="always", dropout=0.3), seed=0
    )
    assert {m.p for m in encoder.modules() if isinstance(m, torch.nn.Dropout)} == {0.3}
    encoder.save(tmp_path / "model")
    vectors = encoder.encode(SENTENCES)
    assert np.array_equal(SentenceEncoder.load(tmp_path / "model").encode(SENTENCES), vectors)
    theirs = SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(SENTENCES)
    np.testing.assert_allclose(theirs, vectors, atol=1e-6)
    _, report = AutoModel.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not report["unexpected_keys"]
    with pytest.raises(ModelError, match=r"no weights pooler.dense"):
        SentenceEncoder.load(folder, pooling="cls")


def test_weights_given_by_name_are_saved_instead_of_the_module_s_own(tiny_encoder, tmp_path):
    encoder, other = trained(tiny_encoder, head="always"), trained(tiny_encoder, head="always")
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += 0.01
    encoder.save(tmp_path / "model", state_dict=other.state_dict())
    loaded = SentenceEncoder.load(tmp_path / "model")
    assert np.array_equal(loaded.encode(SENTENCES), other.encode(SENTENCES))


def test_weights_given_by_other_names_are_refused(tiny_encoder, tmp_path):
    encoder = trained(tiny_encoder)
    state = {f"module.{name}": tensor for name, tensor in encoder.state_dict().items()}
    with pytest.raises(ValueError, match=r"state_dict lacks backbone.embeddings.word_emb.* others"):
        encoder.save(tmp_path / "model", state_dict=state)


def test_description_and_card_say_where_the_model_comes_from(tiny_encoder, tmp_path):
    encoder = trained(tiny_encoder, head="always")
    encoder.save(
        tmp_path / "model",
        lineage={"seed": 5, "data": {"fingerprint": "abc"}},
        scores={"dev_stsb_spearman": 84.4912},
    )
    said = json.loads((tmp_path / "model" / "simcse.json").read_text())
    assert said["lineage"] == {"seed": 5, "data": {"fingerprint": "abc"}}
    assert said["scores"] == {"dev_stsb_spearman": 84.4912}
    assert (said["format"], said["dimension"], said["max_length"]) == (1, 32, 32)
    assert said["versions"]["torch"] == version("torch")
    card = (tmp_path / "model" / "README.md").read_text()
    for part in ("license: unknown", "dev_stsb_spearman | 84.49", '"abc"', "pooler_output"):
        assert part in card
    limit = json.loads((tmp_path / "model" / "sentence_bert_config.json").read_text())
    assert limit["max_seq_length"] == 64


def test_the_licence_of_the_base_model_is_handed_on(minilm, tmp_path):
    trained(minilm).save(tmp_path / "one")
    trained(tmp_path / "one").save(tmp_path / "two")
    assert "license: apache-2.0" in (tmp_path / "two" / "README.md").read_text()


def test_a_saved_model_is_replaced_and_nothing_else_is(tiny_encoder, tmp_path):
    folder = tmp_path / "model"
    trained(tiny_encoder, head="always").save(folder)
    trained(tiny_encoder, "avg", "none").save(folder)
    assert SentenceEncoder.load(folder).pooling == "avg"
    assert not (folder / "2_Dense").exists()
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("words")
    with pytest.raises(UsageError, match="thesis exists and is no model that simcse wrote"):
        trained(tiny_encoder).save(tmp_path / "thesis")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "thesis"]


def test_saving_that_fails_leaves_the_old_model_and_nothing_half_written(
    tiny_encoder, tmp_path, monkeypatch
):
    folder = tmp_path / "model"
    encoder = trained(tiny_encoder, "avg", "none")
    encoder.save(folder)
    vectors = encoder.encode(SENTENCES)

    def full_disk(*_args, **_kwargs):
        raise OSError("no space left on device")

    monkeypatch.setattr(type(encoder.tokenizer), "save_pretrained", full_disk)
    with pytest.raises(OSError, match="no space left"):
        trained(tiny_encoder).save(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert np.array_equal(SentenceEncoder.load(folder).encode(SENTENCES), vectors)


def test_nothing_is_printed_while_loading_and_saving(tiny_encoder, tmp_path, capfd, caplog):
    trained(tiny_encoder).save(tmp_path / "model")
    SentenceEncoder.load(tmp_path / "model")
    captured = capfd.readouterr()
    assert (captured.out, captured.err, caplog.text) == ("", "", "")


def change_config(folder, **settings):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


@pytest.fixture
def broken(tiny_encoder, tmp_path):
    return shutil.copytree(tiny_encoder, tmp_path / "broken")


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("config.json", "has no config.json"),
        ("model.safetensors", "has no weights"),
        ("tokenizer.json", "has no tokenizer"),
    ],
)
def test_a_folder_that_lacks_a_file_is_refused_by_name(broken, name, what):
    (broken / name).unlink()
    with pytest.raises(ModelError, match=f"model folder .*broken {what}.*: copy it there"):
        SentenceEncoder.load(broken, pooling="avg")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_file_cut_short_is_refused(broken, name):
    content = (broken / name).read_bytes()
    (broken / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelError, match=r"broken cannot be read, so copy it anew: .+") as refusal:
        SentenceEncoder.load(broken, pooling="avg")
    assert "\n" not in str(refusal.value)


def test_a_checkpoint_that_lacks_weights_is_refused(broken):
    model = BertModel.from_pretrained(broken)
    state = {k: v for k, v in model.state_dict().items() if "layer.1.output.dense" not in k}
    model.save_pretrained(broken, state_dict=state)
    with pytest.raises(ModelError, match=r"lack encoder.layer.1.output.dense.bias and 1 others"):
        SentenceEncoder.load(broken, pooling="avg")


def test_weights_of_another_shape_are_refused(broken):
    change_config(broken, intermediate_size=48)
    with pytest.raises(ModelError, match=r"lack encoder.layer.0.intermediate.* and 5 others in"):
        SentenceEncoder.load(broken, pooling="avg")


def test_a_tokenizer_without_a_fast_form_is_refused(broken):
    (broken / "tokenizer.json").unlink()
    (broken / "vocab.txt").touch()
    (broken / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}')
    with pytest.raises(ModelError, match=r"\(ByT5Tokenizer\) has no fast form: convert it"):
        SentenceEncoder.load(broken, pooling="avg")


def test_a_path_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"there is no model folder .*nowhere: check the path"):
        SentenceEncoder.load(tmp_path / "nowhere")


def test_a_hub_model_that_cannot_be_had_is_refused():
    with pytest.raises(ModelError, match="some/model is no folder here and could not be had"):
        SentenceEncoder.load("some/model")


@pytest.mark.parametrize("value", ["wide", None])
def test_a_configuration_with_a_wrong_value_is_refused(broken, value):
    change_config(broken, hidden_size=value)
    with pytest.raises(ModelError, match=r"broken cannot be read.*hidden_size"):
        SentenceEncoder.load(broken, pooling="avg")


def test_a_hub_model_is_found_in_the_local_cache(tiny_encoder, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    cached = tmp_path / "models--some--model"
    shutil.copytree(tiny_encoder, cached / "snapshots" / "abc")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("abc")
    vectors = SentenceEncoder.load("some/model", pooling="avg").encode(SENTENCES)
    plain = SentenceEncoder.load(tiny_encoder, pooling="avg").encode(SENTENCES)
    assert np.array_equal(vectors, plain)


def test_an_encoder_decoder_is_refused(broken):
    T5Config().save_pretrained(broken)
    with pytest.raises(ModelError, match=r"holds an encoder-decoder \(t5\): name an encoder"):
        SentenceEncoder.load(broken, pooling="avg")


def test_dropout_for_a_model_that_has_no_such_setting_is_refused(broken):
    MambaConfig().save_pretrained(broken)
    settings = EncoderConfig(model=str(broken), dropout=0.1)
    with pytest.raises(ModelError, match=r"dropout is 0.1, but a mamba model has no dropout"):
        SentenceEncoder.from_config(settings, seed=0)


def test_a_description_of_another_format_is_refused(tiny_encoder, tmp_path):
    trained(tiny_encoder).save(tmp_path / "model")
    path = tmp_path / "model" / "simcse.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(ModelError, match=r"simcse.json cannot be used \(format: Input should be 1"):
        SentenceEncoder.load(tmp_path / "model")


def write_modules(folder, *modules, pooling=None):
    described = [{"path": f"{i}_{m}" if i else "", "type": f"x.{m}"} for i, m in enumerate(modules)]
    (folder / "modules.json").write_text(json.dumps(described))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        ({"pooling_mode": "mean"}, "avg"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "avg"),
        ({"pooling_mode": "cls"}, "cls_before_pooler"),
        ({"pooling_mode_cls_token": True}, "cls_before_pooler"),
    ],
)
def test_the_pooling_of_sentence_transformers_is_read(broken, config, pooling):
    write_modules(broken, "Transformer", "Pooling", "Normalize", pooling=config)
    assert SentenceEncoder.load(broken).pooling == pooling


def test_pooling_that_is_none_of_the_five_is_refused(broken):
    modes = {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}
    write_modules(broken, "Transformer", "Pooling", pooling=modes)
    with pytest.raises(ModelError, match=r"pools by mean\+max, which is none of ours"):
        SentenceEncoder.load(broken)


def test_a_module_that_cannot_be_applied_is_refused(broken):
    write_modules(broken, "Transformer", "Pooling", "Dense", pooling={"pooling_mode": "mean"})
    with pytest.raises(ModelError, match="has a Dense module, which this encoder cannot apply"):
        SentenceEncoder.load(broken)
    assert SentenceEncoder.load(broken, pooling="avg").pooling == "avg"
