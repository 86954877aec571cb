"""What the paper's rows are trained on, made of a user's files."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pipelines.paper.rows import Trained
from pipelines.paper.texts import GivenTexts, NotAtHandError, TrainingTexts
from simcse.config import EncoderConfig
from simcse.errors import DataError
from simcse_platform.config import DataConfig
from simcse_platform.ingest.manifest import read_manifest
from simcse_platform.ingest.prepare import prepare

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

NLI = """label\tpremise\thypothesis
entailment\ta dog runs\tan animal runs
neutral\ta dog runs\tthe dog plays
contradiction\ta dog runs\tthe dog sleeps
entailment\ta man reads\ta man is reading
contradiction\ta man reads\tnobody reads
"""
QUESTIONS = """label\tquestion1\tquestion2
1\twhere is the sea\twhere lies the sea
0\twhere is the sea\twho plays
1\twho eats\twho is eating
1\twho rides\twho is riding
"""
CAPTIONS = "image\tcaption\n1\ta dog\n1\ta black dog\n1\tone dog\n2\ta car\n2\ta red car\n"


@pytest.fixture
def given(tmp_path: Path) -> GivenTexts:
    files = {
        "text.txt": "a dog runs\nit rains\n\na cat sits\na dog runs\n",
        "nli.tsv": NLI,
        "questions.tsv": QUESTIONS,
        "captions.tsv": CAPTIONS,
        "triplets.csv": "sent0,sent1,hard_neg\na sea,the sea,a sun\na car,the car,a bus\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return GivenTexts(
        documents=(str(tmp_path / "text.txt"),),
        nli=(str(tmp_path / "nli.tsv"),),
        paraphrases=(str(tmp_path / "questions.tsv"),),
        captions=(str(tmp_path / "captions.tsv"),),
    )


def texts(
    given: GivenTexts, tiny_encoder: Path, folder: Path, said: list[str], **data: object
) -> TrainingTexts:
    encoder = EncoderConfig(model=str(tiny_encoder), max_length=16)
    corpus = DataConfig.model_validate({"corpus": (str(folder / "text.txt"),), **data})
    return TrainingTexts(corpus, given, encoder, folder / "prepared", said.append)


def made(settings: tuple[str, ...]) -> tuple[int, list[str] | None]:
    """Rows of the corpus that settings name, and its columns."""
    values = {k: yaml.safe_load(v) for k, v in (text.split("=", 1) for text in settings)}
    [folder] = values["data.corpus"]
    return read_manifest(Path(folder)).rows, values.get("data.columns")


def test_every_kind_of_text_is_built_once(
    given: GivenTexts, tiny_encoder: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    found = texts(given, tiny_encoder, tmp_path, said)
    pair, triplet = ["anchor", "positive"], ["anchor", "positive", "hard_negative"]
    want = {
        "paraphrases": (3, pair),
        "captions": (4, pair),
        "entailment": (2, pair),
        "neutral": (1, pair),
        "contradiction": (2, pair),
        "all-nli": (5, pair),
        "triplets": (2, triplet),
        "triplets-neutral": (1, [*triplet, "neutral_negative"]),
    }
    for _ in range(2):
        for text, rows_and_columns in want.items():
            source = Trained("supervised", text=text)  # type: ignore[arg-type]
            assert made(found.settings(source, None)) == rows_and_columns
    assert sum("rows prepared" in line for line in said) == len(want)
    assert found.settings(Trained("unsupervised"), None) == ()


def test_documents_keep_their_order(given: GivenTexts, tiny_encoder: Path, tmp_path: Path) -> None:
    ordered = Trained("unsupervised", text="documents")
    found = texts(given, tiny_encoder, tmp_path, [])
    assert made(found.settings(ordered, None)) == (4, None)
    none = texts(GivenTexts(), tiny_encoder, tmp_path, [])
    with pytest.raises(NotAtHandError, match=r"^no text in the order .*: give --documents$"):
        none.settings(ordered, None)
    shuffled = prepare(
        given.documents, tmp_path / "plain", tokenizer_model=str(tiny_encoder), max_length=16
    ).folder
    other = texts(GivenTexts(documents=(str(shuffled),)), tiny_encoder, tmp_path, [])
    with pytest.raises(NotAtHandError, match="does not keep the order of its documents: prepare"):
        other.settings(ordered, None)


def test_samples_are_as_large_as_the_paraphrases(
    given: GivenTexts, tiny_encoder: Path, tmp_path: Path
) -> None:
    found = texts(given, tiny_encoder, tmp_path, [])
    size = found.sample_size()
    assert size == 3

    def rows(text: str, *, sampled: bool = True) -> int:
        source = Trained("supervised", text=text, sampled=sampled)  # type: ignore[arg-type]
        return made(found.settings(source, size))[0]

    assert [rows(text) for text in ("paraphrases", "captions", "all-nli")] == [3, 3, 3]
    assert rows("captions", sampled=False) == 4
    with pytest.raises(NotAtHandError, match=r"a sample has 3 pairs, .*, and this dataset has 1"):
        rows("neutral")
    few = texts(GivenTexts(captions=given.captions), tiny_encoder, tmp_path, [])
    assert few.sample_size() is None
    with pytest.raises(NotAtHandError, match="as large as the paraphrases: give --paraphrases"):
        few.settings(Trained("supervised", text="captions", sampled=True), None)


def test_a_whitening_is_fitted_to_nli_or_else_to_the_corpus(
    given: GivenTexts, tiny_encoder: Path, tmp_path: Path
) -> None:
    nli, of_nli = texts(given, tiny_encoder, tmp_path, []).whitening(3)
    assert (nli, of_nli) == (["a dog runs", "an animal runs", "the dog plays"], True)
    table = tmp_path / "table.csv"
    table.write_text("title,text\nA title,a dog runs\nA title,it rains\n")
    chosen = {"corpus": (str(table),), "columns": ("text",)}
    corpus = texts(GivenTexts(), tiny_encoder, tmp_path, [], **chosen)
    assert corpus.whitening(5) == (["a dog runs", "it rains"], False)


def test_a_users_share_of_bad_rows_holds_for_every_text(
    given: GivenTexts, tiny_encoder: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.tsv"
    bad.write_bytes(QUESTIONS.encode() + b"1\t\xff\twho\n")
    broken = GivenTexts(paraphrases=(str(bad),))
    with pytest.raises(DataError, match=r"1 of 5 rows .* cannot be used"):
        texts(broken, tiny_encoder, tmp_path, []).sample_size()
    assert texts(broken, tiny_encoder, tmp_path, [], max_bad_share=0.5).sample_size() == 3


def test_triplets_of_the_user_are_entailment_pairs_too(
    given: GivenTexts, tiny_encoder: Path, tmp_path: Path
) -> None:
    own = GivenTexts(triplets=(str(tmp_path / "triplets.csv"),))
    found = texts(own, tiny_encoder, tmp_path, [])
    triplets = made(found.settings(Trained("supervised", text="triplets"), None))
    assert triplets == (2, ["sent0", "sent1", "hard_neg"])
    entailment = made(found.settings(Trained("supervised", text="entailment"), None))
    assert entailment == (2, ["sent0", "sent1"])
    with pytest.raises(NotAtHandError, match=r"^no NLI data: give --nli$"):
        found.settings(Trained("supervised", text="neutral"), None)
    with pytest.raises(NotAtHandError, match=r"^no captions: give --captions$"):
        found.captions(5)
    wrong = GivenTexts(triplets=given.documents)
    with pytest.raises(DataError, match="has the text columns text: --triplets needs three"):
        texts(wrong, tiny_encoder, tmp_path, []).settings(
            Trained("supervised", text="triplets"), None
        )


def test_captions_are_read_once_each(given: GivenTexts, tiny_encoder: Path, tmp_path: Path) -> None:
    found = texts(given, tiny_encoder, tmp_path, [])
    assert found.captions(3) == ["a dog", "a black dog", "one dog"]
