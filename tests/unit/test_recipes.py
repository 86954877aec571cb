from __future__ import annotations

from pathlib import Path

import pytest

from pipelines import demo_data, recipes
from simcse.config import ObjectiveConfig, ViewsConfig
from simcse.errors import UsageError
from simcse.optim import learning_rate
from simcse_platform.config import TrainRun, load, override
from support.architectures import save_masked_language_model
from support.command_line import CommandLine
from support.training import ddp_engine, make_batches, make_task


@pytest.fixture(autouse=True)
def demo_input(monkeypatch: pytest.MonkeyPatch, tiny_encoder: Path, tmp_path: Path) -> None:
    """The demo's encoder and sentences, without the packages that hold them."""
    monkeypatch.setattr(demo_data, "minilm_folder", lambda: tiny_encoder)
    monkeypatch.setattr(demo_data, "sentences_file", lambda: tmp_path / "sentences.txt")


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_the_dry_run_of_a_recipe_is_a_file_that_gives_the_same_run(
    simcse: CommandLine, tmp_path: Path, name: str
) -> None:
    arguments = ["train", "--recipe", name, "--corpus", "wörds: [x]/:smile:.txt", "--dry-run"]
    shown = simcse(*arguments)
    assert (shown.code, shown.err) == (0, "")
    file = tmp_path / "run.yaml"
    file.write_text(shown.out, encoding="utf-8")
    assert load(file).encoder == recipes.find(name).encoder
    again = simcse("train", "--config", file, "--dry-run")
    assert (again.code, again.out) == (0, shown.out)


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_a_recipe_says_where_it_comes_from_and_what_to_expect(name: str) -> None:
    recipe = recipes.RECIPES[name]
    assert isinstance(recipe(), TrainRun)
    text = " ".join((recipe.__doc__ or "").split())
    assert "xpect" in text or "rises from" in text or "is the published" in text


# Appendix A's table: encoder, rows of a batch, learning rate, epochs, head.
PAPER = {
    "unsup_bert_base": ("bert-base-uncased", 64, 3e-5, 1, "training"),
    "unsup_bert_large": ("bert-large-uncased", 64, 1e-5, 1, "training"),
    "unsup_roberta_base": ("roberta-base", 512, 1e-5, 1, "training"),
    "unsup_roberta_large": ("roberta-large", 512, 3e-5, 1, "training"),
    "sup_bert_base": ("bert-base-uncased", 512, 5e-5, 3, "always"),
    "sup_bert_large": ("bert-large-uncased", 512, 1e-5, 3, "always"),
    "sup_roberta_base": ("roberta-base", 512, 5e-5, 3, "always"),
    "sup_roberta_large": ("roberta-large", 512, 1e-5, 3, "always"),
}


def test_there_is_a_recipe_for_each_published_model_and_the_demo() -> None:
    assert list(recipes.RECIPES) == [*PAPER, "demo"]


@pytest.mark.parametrize("name", PAPER)
def test_a_recipe_has_the_papers_hyperparameters(name: str) -> None:
    run = recipes.find(name)
    model, rows, rate, epochs, head = PAPER[name]
    assert (run.encoder.model, run.encoder.head) == (model, head)
    assert (run.global_batch_size, run.optim.learning_rate, run.epochs) == (rows, rate, epochs)
    assert (run.encoder.pooling, run.encoder.max_length) == ("cls", 32)
    assert (run.encoder.dropout, run.max_steps) == (None, None)
    assert (run.optim.weight_decay, run.optim.warmup_share) == (0, 0)
    assert (run.optim.beta1, run.optim.beta2, run.optim.eps) == (0.9, 0.999, 1e-8)
    assert run.optim.max_gradient_norm == 1
    assert run.objective == ObjectiveConfig(temperature=0.05)
    assert run.views == ViewsConfig()
    assert (run.dev.tasks, run.dev.every) == (("STSBenchmark",), 250)


@pytest.mark.parametrize("name", PAPER)
def test_a_recipe_trains_an_encoder_of_its_architecture(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    recipe = recipes.find(name)
    architecture = recipe.encoder.model.partition("-")[0]
    folder = save_masked_language_model(tmp_path_factory.mktemp(name), architecture)
    run = override(recipe, [f"encoder.model={folder}"])
    task = make_task(run)
    before = {name: weight.detach().clone() for name, weight in task.named_parameters()}
    engine = ddp_engine(task, run)
    columns = 1 if name.startswith("unsup") else 3
    losses = []
    for step, batch in enumerate(make_batches(run, range(2), columns=columns)):
        assert len(batch) == run.global_batch_size
        output = engine(batch)
        engine.backward(output.loss)
        engine.step(learning_rate(step, 2, run.optim))
        losses.append(output.loss.item())
    assert all(0 < loss < 20 for loss in losses)
    moved = {name: (weight - before[name]).abs().max() for name, weight in task.named_parameters()}
    assert moved["encoder.head.dense.weight"] > 0
    assert moved["encoder.backbone.embeddings.word_embeddings.weight"] > 0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "unsup_bert",
            "there is no recipe 'unsup_bert': did you mean unsup_bert_base? There are "
            "unsup_bert_base, unsup_bert_large, unsup_roberta_base, unsup_roberta_large, "
            "sup_bert_base, sup_bert_large, sup_roberta_base, sup_roberta_large, demo",
        ),
        ("zzz", "there is no recipe 'zzz': There are unsup_bert_base, "),
    ],
)
def test_an_unknown_recipe_is_refused_with_those_there_are(
    simcse: CommandLine, name: str, message: str
) -> None:
    refused = simcse("train", "--recipe", name)
    assert refused.code == 2
    assert refused.error.startswith(message)
    with pytest.raises(UsageError, match="there is no recipe"):
        recipes.find(name)
