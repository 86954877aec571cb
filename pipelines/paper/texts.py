"""What the paper's rows are trained on, made of the files that a user has."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pyarrow.parquet as pq

from pipelines.paper.rows import Text, Trained
from simcse.config import EncoderConfig
from simcse.errors import DataError, UsageError
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

    documents: tuple[str, ...] = ()
    """Sentences in the order they were written in, for rows that pair a sentence with the next."""
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

    `data` is the user's corpus of sentences and how text is read. Ray must be connected where
    something has to be prepared. Raises the errors of `prepare`.
    """

    def __init__(
        self,
        data: DataConfig,
        given: GivenTexts,
        encoder: EncoderConfig,
        folder: Path,
        say: Callable[[str], None],
    ) -> None:
        self._data = data
        self._given = given
        self._encoder = encoder
        self._folder = folder
        self._say = say

    def settings(self, source: Trained, sample: int | None) -> tuple[str, ...]:
        """The corpus of a row as `--set` has it; a sampled row has `sample` pairs.

        Raises `NotAtHandError`.
        """
        if source.text == "sentences":
            return ()
        if source.text == "documents":
            return (*_corpus(self._documents()), "data.columns=null")
        made = self._pairs(source.text)
        columns = made.manifest.columns
        # Triplets that were given are the entailment pairs as well, without their last column.
        wanted = columns[:2] if source.text == "entailment" else columns
        if source.sampled:
            if sample is None:
                raise NotAtHandError("a sample is as large as the paraphrases: give --paraphrases")
            if made.manifest.rows < sample:
                raise NotAtHandError(
                    f"a sample has {sample} pairs, as there are paraphrases, and this dataset has "
                    f"{made.manifest.rows}"
                )
            if made.manifest.rows > sample:
                made = self._pairs(source.text, sample=sample)
        return (*_corpus(made.folder), f"data.columns={json.dumps(wanted)}")

    def sample_size(self) -> int | None:
        """Pairs of a sample, as many as there are paraphrases; None without any."""
        return self._pairs("paraphrases").manifest.rows if self._given.paraphrases else None

    def whitening(self, count: int) -> tuple[list[str], bool]:
        """So many sentences to fit a whitening to, and whether they are of NLI.

        The paper takes those of NLI; without any at hand they are the corpus's.
        """
        data = self._data
        if of_nli := bool(self._given.nli or self._given.triplets):
            made = self._pairs("all-nli" if self._given.nli else "triplets")
            data = DataConfig(corpus=(str(made.folder),))
        corpus = open_corpus(data, self._encoder, self._folder, self._say)
        texts = (
            text
            for file in corpus.files
            for batch in pq.ParquetFile(file).iter_batches(columns=list(corpus.columns))
            for row in batch.to_pylist()
            for text in row.values()
        )
        return list(islice(dict.fromkeys(texts), count)), of_nli

    def captions(self, count: int) -> list[str]:
        """The first so many different captions. Raises `NotAtHandError`."""
        if not self._given.captions:
            raise _lacking("captions")
        rows = (row for file in find_files(self._given.captions) for row in read(file, ["caption"]))
        texts = dict.fromkeys(row.texts[0] for row in rows if row.texts and row.texts[0])
        return list(islice(texts, count))

    def _documents(self) -> Path:
        sources = self._given.documents
        if not sources:
            raise NotAtHandError("no text in the order it was written in: give --documents")
        if len(sources) == 1 and is_prepared(folder := Path(sources[0])):
            if not read_manifest(folder).keep_order:
                raise NotAtHandError(
                    f"{folder} does not keep the order of its documents: prepare it with "
                    "--keep-order"
                )
            return folder
        return self._prepare(sources, "documents", RowOptions(keep_order=True)).folder

    def _pairs(self, text: Text, sample: int | None = None) -> PrepareResult:
        seed = _SEED if sample is not None else 0
        given = self._given
        if text in ("entailment", "triplets") and given.triplets:
            plain = RowOptions(sample=sample, seed=seed)
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
        options = RowOptions(build=_BUILDS[text], sample=sample, seed=seed)
        return self._prepare(sources, text, options)

    def _prepare(self, sources: Sequence[str], name: str, options: RowOptions) -> PrepareResult:
        planned = plan(
            sources,
            tokenizer_model=self._encoder.model,
            max_length=self._encoder.max_length,
            options=options,
        )
        folder = self._folder / f"{name}-{planned.key[:16]}"
        made = make(planned, folder, max_bad_share=self._data.max_bad_share)
        if made.created:
            self._say(f"{name}: {made.manifest.rows} rows prepared in {made.folder}")
        return made


def size_note(text: Text, data: DataConfig) -> str:
    """How large the text is that was prepared for a row, since the paper's had its own size.

    Empty for the user's sentences, and where nothing was prepared.
    """
    if text == "sentences" or not is_prepared(folder := Path(data.corpus[0])):
        return ""
    manifest = read_manifest(folder)
    columns = len(data.columns or manifest.columns)
    kind = {1: "sentences", 2: "pairs", 3: "triplets"}.get(columns, "rows")
    of = " of the given triplets" if columns < len(manifest.columns) else ""
    return f"its text has {manifest.rows:,} {kind}{of}"


def _lacking(text: Text) -> NotAtHandError:
    if text in ("paraphrases", "captions"):
        return NotAtHandError(f"no {text}: give --{text}")
    either = " or --triplets" if text in ("entailment", "triplets") else ""
    return NotAtHandError(f"no NLI data: give --nli{either}")


def _corpus(folder: Path) -> tuple[str]:
    return (f"data.corpus={json.dumps([str(folder)])}",)
