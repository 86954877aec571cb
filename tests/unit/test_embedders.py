import json
import sys

import numpy as np
import pytest

from pipelines.embedders import choose, import_embedder
from simcse.errors import ModelError, UsageError

MODULE = """
import numpy as np


class Lengths:
    def encode(self, sentences):
        assert type(sentences) is list
        return np.array([[len(s), 1.0] for s in sentences])


class NeedsMore(Lengths):
    def __init__(self, size):
        self.size = size


def make():
    return Lengths()


def nothing():
    return None


def broken(result):
    class Broken:
        def encode(self, sentences):
            return result(sentences)

    return Broken()


model = Lengths()
number = 3
short = broken(lambda s: np.zeros((len(s) - 1, 2)))
flat = broken(lambda s: np.zeros(len(s)))
whole = broken(lambda s: np.zeros((len(s), 2), dtype=int))
ragged = broken(lambda s: [[0.0] * (i + 1) for i in range(len(s))])
def fail(sentences):
    raise RuntimeError("out of memory")


def factory():
    raise RuntimeError("no licence")


narrow = broken(lambda s: np.zeros((len(s), 0)))
raises = broken(fail)
diverged = broken(lambda s: np.full((len(s), 2), np.nan))
"""
SENTENCES = ["a dog", "two dogs run"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current folder, with a module `others`."""
    (tmp_path / "others.py").write_text(MODULE)
    (tmp_path / "faulty.py").write_text("import numpy as np\nnp.no_such_thing\n")
    (tmp_path / "pairs.tsv").write_text(
        "score\tsentence1\tsentence2\n5\ta dog\tthe dog\n2\ta dog\ta man runs\n0\ta dog\train\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("others", "faulty"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("attribute", ["model", "Lengths", "make"])
def test_an_object_a_class_and_a_function_of_the_current_folder_embed(here, attribute):
    done = []
    vectors = import_embedder(f"others:{attribute}").encode(SENTENCES, progress=done.append)
    assert vectors.dtype == np.float32
    assert vectors.tolist() == [[5, 1], [12, 1]]
    assert done == [2]


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("others", r"--embedder others is not of the form MODULE:ATTRIBUTE"),
        ("nowhere:model", r"nowhere cannot be imported \(ModuleNotFoundError: .*\): it must be in"),
        ("faulty:model", r"faulty cannot be imported \(AttributeError: .*no_such_thing"),
        ("others:nobody", r"--embedder others:nobody: others has no nobody: check it"),
        ("others:number", r"others:number is of type int, which has no method encode: give it"),
        ("others:nothing", r"others:nothing is of type NoneType, which has no method encode"),
        ("others:NeedsMore", r"others:NeedsMore cannot be called without arguments \(.*size"),
    ],
)
def test_what_is_no_embedder_is_named(here, reference, message):
    with pytest.raises(UsageError, match=message):
        import_embedder(reference)


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ("short", r"others:short returned 1 rows for 2 sentences: return one row of floats a sen"),
        ("flat", r"returned an array of float64 of shape \(2,\), not one of floats with a row"),
        ("whole", r"returned an array of int64 of shape \(2, 2\), not one of floats with a row"),
        ("narrow", r"returned an array of float64 of shape \(2, 0\), not one of floats with a"),
        ("raises", r"returned no array \(RuntimeError: out of memory\)"),
        ("ragged", r"returned no array \(.*inhomogeneous"),
    ],
)
def test_what_an_embedder_must_not_return_is_named(here, attribute, message):
    with pytest.raises(ModelError, match=message):
        import_embedder(f"others:{attribute}").encode(SENTENCES)


@pytest.mark.parametrize(("model", "embedder"), [(None, None), ("folder", "others:model")])
def test_exactly_one_of_model_and_embedder_is_scored(model, embedder, tmp_path):
    with pytest.raises(UsageError, match="name what is scored: either MODEL or --embedder MODULE"):
        choose(model, embedder, pooling=None, output=tmp_path, tracking=None)


@pytest.mark.parametrize(("model", "embedder"), [(None, "others:model"), ("glove.txt", None)])
def test_only_encoders_have_a_pooling(model, embedder, tmp_path):
    with pytest.raises(UsageError, match="--pooling avg is for encoders: leave it out"):
        choose(model, embedder, pooling="avg", output=tmp_path, tracking=None)


def test_a_system_from_elsewhere_stands_in_the_table(simcse, here):
    outcome = simcse(
        *("evaluate", "--embedder", "others:model", "--tasks", "pairs.tsv"),
        *("--json", "said.json"),
    )
    assert outcome.code == 0, outcome.err
    said = json.loads((here / "said.json").read_text())
    assert (said["model"], said["pooling"]) == ("others:model", None)


def test_vectors_that_are_not_finite_are_named(simcse, here):
    outcome = simcse("evaluate", "--embedder", "others:diverged", "--tasks", "pairs.tsv")
    assert outcome.code == 2
    assert "the vectors of 4 of 4 sentences are not finite" in outcome.error


def test_word_vectors_stand_in_the_table_and_unknown_words_are_said(simcse, here):
    (here / "glove.txt").write_text("a 1 0\ndog 1 2\nthe 2 1\nman 0 1\n")
    outcome = simcse(
        *("evaluate", "glove.txt", "--tasks", "pairs.tsv", "--json", "said.json"),
    )
    assert outcome.code == 0, outcome.err
    assert "2 of 8 words have no vector and were left out" in outcome.out
    assert json.loads((here / "said.json").read_text())["model"] == "glove.txt"


def test_a_factory_that_fails_is_named(here):
    with pytest.raises(
        UsageError, match=r"others:factory failed \(RuntimeError: no licence\): mend"
    ):
        import_embedder("others:factory")


def test_an_evaluation_without_any_set_is_no_success(simcse, here, tiny_encoder):
    (here / "sts" / "STS12").mkdir(parents=True)
    outcome = simcse(
        "evaluate", tiny_encoder, "--pooling", "avg", "--tasks", "STS12", "--data", here
    )
    assert outcome.code == 1
    assert outcome.error.startswith("nothing was scored, since every set is missing: name others")


def test_two_results_in_one_file_are_refused(simcse, here):
    same = ("--json", "same.out", "--markdown", "same.out")
    outcome = simcse("evaluate", "--embedder", "others:model", "--tasks", "pairs.tsv", *same)
    assert outcome.code == 2
    assert outcome.error == "--json and --markdown both name same.out: name two files"
