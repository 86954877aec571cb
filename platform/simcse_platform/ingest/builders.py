"""Training rows made of labelled ones: pairs and triplets of NLI, paraphrases, captions.

A builder turns rows of its input columns into rows of its output columns, or into the reason why a
row gives none (paper section 4 and table 4 for the data, 4.2 for the hard negatives). Builders
that join rows keep those of all files in memory: 0.4 GB for the 942,000 pairs of SNLI and MultiNLI.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations

from simcse_platform.ingest.readers import collapse_spaces

Texts = tuple[str | None, ...]
"""Texts of one row as they were read."""
Reason = str
"""Why a row is left out."""

ENTAILMENT, NEUTRAL, CONTRADICTION = _NLI = ("entailment", "neutral", "contradiction")
_NLI_LABELS = dict(zip(("0", "1", "2"), _NLI, strict=True)) | dict(zip(_NLI, _NLI, strict=True))
_UNLABELLED = ("", "-", "-1")
UNLABELLED = "no gold label"
UNKNOWN_LABEL = "unknown label"
EMPTY = "empty"
REPEATED = "repeated pair"
SAME_AS_PREMISE = "hypothesis equals its premise"
AMBIGUOUS = "hypothesis with two labels"
INCOMPLETE = "premise without all labels needed"
SPARE = "negative beyond the entailments"
NO_PARAPHRASE = "no paraphrase"
LONE_CAPTION = "only caption of its image"


@dataclass(frozen=True, slots=True)
class Builder:
    """How rows of one kind are made."""

    inputs: tuple[str, ...]
    """Default names of the columns it reads; the first, a label or an image, may be a number."""
    outputs: tuple[str, ...]
    """Anchor, positive, hard negatives."""
    build: Callable[[Iterable[Texts]], Iterator[Texts | Reason]]
    joins: bool = False
    """Whether it needs the rows of all files together."""


def _nli_pairs(rows: Iterable[Texts], labels: Sequence[str]) -> Iterator[Texts | Reason]:
    """Premise and hypothesis of the pairs with one of `labels`."""
    for written, premise, hypothesis in rows:
        label = _nli_label(written)
        yield (premise, hypothesis) if label in labels else _left_out(label)


def _nli_triplets(rows: Iterable[Texts], negatives: Sequence[str]) -> Iterator[Texts | Reason]:
    """Premise, entailed hypothesis and a hypothesis of each label in `negatives`.

    Every entailed hypothesis of a premise that has all labels gives a row, and the negatives of
    the premise are used in turn. A hypothesis with two labels for the same premise gives none.
    """
    needed = (ENTAILMENT, *negatives)
    labels_by_premise: dict[str, dict[str, list[str]]] = {}
    for written, *texts in rows:
        label = _nli_label(written)
        premise, hypothesis = (collapse_spaces(text or "") for text in texts)
        if label not in needed:
            yield _left_out(label)
        elif not premise or not hypothesis:
            yield EMPTY
        elif hypothesis == premise:
            yield SAME_AS_PREMISE
        else:
            labels = labels_by_premise.setdefault(premise, {}).setdefault(hypothesis, [])
            if label in labels:
                yield REPEATED
            else:
                labels.append(label)
    for premise, hypotheses in labels_by_premise.items():
        yield from _triplets_of(premise, hypotheses, needed)


def _triplets_of(
    premise: str, hypotheses: dict[str, list[str]], needed: Sequence[str]
) -> Iterator[Texts | Reason]:
    by_label: dict[str, list[str]] = {label: [] for label in needed}
    for hypothesis, labels in hypotheses.items():
        if len(labels) > 1:
            yield from (AMBIGUOUS for _ in labels)
        else:
            by_label[labels[0]].append(hypothesis)
    if not all(by_label.values()):
        yield from (INCOMPLETE for found in by_label.values() for _ in found)
        return
    entailed, *negatives = by_label.values()
    for turn, hypothesis in enumerate(entailed):
        yield premise, hypothesis, *(found[turn % len(found)] for found in negatives)
    yield from (SPARE for found in negatives for _ in found[len(entailed) :])


def _nli_label(written: str | None) -> Reason:
    """One of the three labels, also for GLUE's numbers; or the reason why there is none."""
    label = (written or "").strip().lower()
    return UNLABELLED if label in _UNLABELLED else _NLI_LABELS.get(label, UNKNOWN_LABEL)


def _left_out(label: str) -> Reason:
    return f"labelled {label}" if label in _NLI else label


def _paraphrases(rows: Iterable[Texts]) -> Iterator[Texts | Reason]:
    """Pairs with label 1."""
    for written, *texts in rows:
        label = (written or "").strip()
        if label == "1":
            yield tuple(texts)
        else:
            yield NO_PARAPHRASE if label == "0" else UNKNOWN_LABEL


def _caption_pairs(rows: Iterable[Texts]) -> Iterator[Texts | Reason]:
    """Any two captions of an image: ten pairs for five.

    So counted, the 31,783 images of Flickr30k give the 318k pairs of the paper's table 4.
    """
    captions: dict[str, list[str | None]] = {}
    for image, caption in rows:
        if image and image.strip():
            captions.setdefault(image.strip(), []).append(caption)
        else:
            yield EMPTY
    for of_image in captions.values():
        if len(of_image) == 1:
            yield LONE_CAPTION
        yield from combinations(of_image, 2)


_NLI_INPUTS = ("label", "premise", "hypothesis")
_PAIR = ("anchor", "positive")
_TRIPLET = (*_PAIR, "hard_negative")


def _pairs_labelled(*labels: str) -> Builder:
    return Builder(_NLI_INPUTS, _PAIR, partial(_nli_pairs, labels=labels))


BUILDERS = {
    "nli-entailment": _pairs_labelled(ENTAILMENT),
    "nli-neutral": _pairs_labelled(NEUTRAL),
    "nli-contradiction": _pairs_labelled(CONTRADICTION),
    "nli-all": _pairs_labelled(*_NLI),
    "nli-triplets": Builder(
        _NLI_INPUTS, _TRIPLET, partial(_nli_triplets, negatives=(CONTRADICTION,)), joins=True
    ),
    "nli-triplets-neutral": Builder(
        _NLI_INPUTS,
        (*_TRIPLET, "neutral_negative"),
        partial(_nli_triplets, negatives=(CONTRADICTION, NEUTRAL)),
        joins=True,
    ),
    "paraphrases": Builder(("label", "question1", "question2"), _PAIR, _paraphrases),
    "captions": Builder(("image", "caption"), _PAIR, _caption_pairs, joins=True),
}
"""Builders by the name that `prepare --build` takes."""
