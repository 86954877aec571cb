"""What the paper's rows are trained on, made of the files that a user has."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pyarrow.parquet as pq

from pipelines.paper.rows import Source, Text, Trained
from simcse.config import EncoderConfig
from simcse.errors import DataError, SimcseError, UsageError
from simcse_platform.config import DataConfig
from simcse_platform.ingest.cleaning import RowOptions
from simcse_platform.ingest.manifest import is_prepared, read_manifest
from simcse_platform.ingest.prepare import PrepareResult, make, plan
from simcse_platform.ingest.readers import read
from simcse_platform.ingest.source import open_corpus
from simcse_platform.ingest.sources import find_files

_BUILDS: dict[Text, str] = {
    "paraphrases": "paraphrases",
    "captions": "captions",
    "entailment": "nli-entailment",
    "neutral": "nli-neutral",
    "contradiction": "nli-contradiction",
    "all-nli": "nli-all",
    "triplets": "nli-triplets",
    "triplets-neutral": "nli-triplets-neutral",
}
_SEED = 1
"""Of the pairs that a sample takes."""


class NotAtHandError(UsageError):
    """A row whose model or data the user did not name; the message says how to."""


@dataclass(frozen=True, kw_only=True)
class GivenTexts:
    """The user's files, each as `prepare` takes them; empty is none."""

    sentences: tuple[str, ...]
    nli: tuple[str, ...] = ()
    """Labelled pairs: label, premise, hypothesis."""
    triplets: tuple[str, ...] = ()
    """Anchor, positive, hard negative: used for entailment and triplets instead of `nli`."""
    paraphrases: tuple[str, ...] = ()
    """Labelled questions: label, question1, question2."""
    captions: tuple[str, ...] = ()
    """Image and caption."""


class TrainingTexts:
    """Datasets by what a row asks for, prepared once into a folder named by their content.

    Ray must be connected where something has to be prepared. Raises the errors of `prepare`.
    """

    def __init__(
        self,
        given: GivenTexts,
        encoder: EncoderConfig,
        folder: Path,
        say: Callable[[str], None],
    ) -> None:
        self._given = given
        self._encoder = encoder
        self._folder = folder
        self._say = say

    def settings(self, source: Trained, smallest: int | None) -> tuple[str, ...]:
        """The corpus of a row as `--set` has it, cut to `smallest` pairs if the row is sampled.

        Raises `NotAtHandError`.
        """
        if source.text == "sentences":
            return (_corpus(self._given.sentences),)
        if source.text == "documents":
            return (_corpus([str(self._documents())]),)
        made = self._pairs(source.text)
        columns = made.manifest.columns
        # Triplets that were given are the entailment pairs as well, without their last column.
        wanted = columns[:2] if source.text == "entailment" else columns
        if source.sampled and smallest is not None and smallest < made.manifest.rows:
            made = self._pairs(source.text, sample=smallest)
        return (_corpus([str(made.folder)]), f"data.columns={json.dumps(wanted)}")

    def smallest(self, sources: Iterable[Source]) -> int | None:
        """Rows of the smallest dataset at hand of those that rows take a sample of."""
        found = []
        for source in sources:
            if isinstance(source, Trained) and source.sampled:
                try:
                    found.append(self._pairs(source.text).manifest.rows)
                except SimcseError:
                    # The row itself says why.
                    continue
        return min(found, default=None)

    def sentences(self, count: int) -> list[str]:
        """The first so many sentences that models are trained on, without repetitions."""
        data = DataConfig(corpus=self._given.sentences)
        corpus = open_corpus(data, self._encoder, self._folder, self._say)
        column = corpus.columns[0]
        texts = (
            text
            for file in corpus.files
            for batch in pq.ParquetFile(file).iter_batches(columns=[column])
            for text in batch.column(0).to_pylist()
        )
        return list(islice(dict.fromkeys(texts), count))

    def captions(self, count: int) -> list[str]:
        """The first so many different captions. Raises `NotAtHandError`."""
        if not self._given.captions:
            raise _lacking("captions")
        rows = (row for file in find_files(self._given.captions) for row in read(file, ["caption"]))
        texts = dict.fromkeys(row.texts[0] for row in rows if row.texts and row.texts[0])
        return list(islice(texts, count))

    def _documents(self) -> Path:
        sources = self._given.sentences
        if len(sources) == 1 and is_prepared(folder := Path(sources[0])):
            if not read_manifest(folder).keep_order:
                raise NotAtHandError(
                    f"{folder} does not keep the order of its documents: prepare it with "
                    "--keep-order"
                )
            return folder
        return self._prepare(sources, "documents", RowOptions(keep_order=True)).folder

    def _pairs(self, text: Text, sample: int | None = None) -> PrepareResult:
        options = RowOptions(
            build=_BUILDS[text], sample=sample, seed=_SEED if sample is not None else 0
        )
        given = self._given
        if text in ("entailment", "triplets") and given.triplets:
            plain = RowOptions(sample=sample, seed=_SEED if sample is not None else 0)
            made = self._prepare(given.triplets, "triplets", plain)
            if len(made.manifest.columns) != 3:
                raise DataError(
                    f"{given.triplets[0]} has the text columns "
                    f"{', '.join(made.manifest.columns)}: --triplets needs three, anchor, positive "
                    "and hard negative"
                )
            return made
        of_kind = {"paraphrases": given.paraphrases, "captions": given.captions}
        sources = of_kind.get(text, given.nli)
        if not sources:
            raise _lacking(text)
        return self._prepare(sources, text, options)

    def _prepare(self, sources: Sequence[str], name: str, options: RowOptions) -> PrepareResult:
        planned = plan(
            sources,
            tokenizer_model=self._encoder.model,
            max_length=self._encoder.max_length,
            options=options,
        )
        made = make(planned, self._folder / f"{name}-{planned.key[:16]}")
        if made.created:
            self._say(f"{name}: {made.manifest.rows} rows prepared in {made.folder}")
        return made


def _lacking(text: Text) -> NotAtHandError:
    if text in ("paraphrases", "captions"):
        return NotAtHandError(f"no {text}: give --{text}")
    either = " or --triplets" if text in ("entailment", "triplets") else ""
    return NotAtHandError(f"no NLI data: give --nli{either}")


def _corpus(paths: Sequence[str]) -> str:
    return f"data.corpus={json.dumps(list(paths))}"
