"""The sets of the literature, seven for STS and seven for transfer: their parts and sizes.

STS13 is without its subset SMT, whose sentences were withdrawn; SentEval, the original project and
MTEB leave it out as well.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from simcse.errors import SimcseError, UsageError

Split = Literal["dev", "test"]
Mode = Literal["test", "dev", "fasttest"]
"""The original's modes: `test` and `fasttest` score test splits, the latter with quicker transfer
tasks; `dev` scores dev splits, and transfer tasks by what their settings are chosen by."""

STS_SUITE: Mapping[str, Mapping[Split, Mapping[str, int]]] = {
    "STS12": {
        "test": {
            "MSRpar": 750,
            "MSRvid": 750,
            "SMTeuroparl": 459,
            "surprise.OnWN": 750,
            "surprise.SMTnews": 399,
        }
    },
    "STS13": {"test": {"FNWN": 189, "headlines": 750, "OnWN": 561}},
    "STS14": {
        "test": {
            "deft-forum": 450,
            "deft-news": 300,
            "headlines": 750,
            "images": 750,
            "OnWN": 750,
            "tweet-news": 750,
        }
    },
    "STS15": {
        "test": {
            "answers-forums": 375,
            "answers-students": 750,
            "belief": 375,
            "headlines": 750,
            "images": 750,
        }
    },
    "STS16": {
        "test": {
            "answer-answer": 254,
            "headlines": 249,
            "plagiarism": 230,
            "postediting": 244,
            "question-question": 209,
        }
    },
    "STSBenchmark": {"dev": {"dev": 1500}, "test": {"test": 1379}},
    "SICKRelatedness": {"dev": {"dev": 500}, "test": {"test": 4927}},
}
"""Graded pairs by set, split and subset."""


TRANSFER_SUITE: Mapping[str, Mapping[str, int]] = {
    "MR": {"MR/rt-polarity.pos": 5331, "MR/rt-polarity.neg": 5331},
    "CR": {"CR/custrev.pos": 2407, "CR/custrev.neg": 1368},
    "SUBJ": {"SUBJ/subj.objective": 5000, "SUBJ/subj.subjective": 5000},
    "MPQA": {"MPQA/mpqa.pos": 3312, "MPQA/mpqa.neg": 7294},
    "SST2": {
        "SST/binary/sentiment-train": 67349,
        "SST/binary/sentiment-dev": 872,
        "SST/binary/sentiment-test": 1821,
    },
    "TREC": {"TREC/train_5500.label": 5452, "TREC/TREC_10.label": 500},
    "MRPC": {"MRPC/msr_paraphrase_train.txt": 4076, "MRPC/msr_paraphrase_test.txt": 1725},
}
"""Examples by set and file in SentEval's layout; sets in the order of the original's table."""

GEOMETRY = "geometry"
"""Alignment, uniformity and what else the vectors of STS-B show of their distribution."""

SHORT_NAMES: Mapping[str, str] = {"STSBenchmark": "stsb", "SICKRelatedness": "sickr"}
"""What the original project calls these sets in the names of its metrics."""

_SETS = (*STS_SUITE, *TRANSFER_SUITE, GEOMETRY)


class MissingSetError(SimcseError):
    """A set that a source does not hold; the message is the reason."""


def split_of(mode: Mode) -> Split:
    """The split that a mode scores."""
    return "dev" if mode == "dev" else "test"


def is_file(task: str) -> bool:
    """Whether a task is the path of a user's own set."""
    return task.endswith(".tsv")


def resolve_tasks(tasks: Sequence[str], mode: Mode) -> tuple[str, ...]:
    """Names of sets and paths of files, each once, in the order given.

    "sts" stands for the STS sets that have the split, "transfer" for the transfer tasks, "full" for
    both. Raises `UsageError` for a name that is no set and for a set without the split.
    """
    split = split_of(mode)
    with_split = [name for name, splits in STS_SUITE.items() if split in splits]
    groups = {
        "sts": with_split,
        "transfer": [*TRANSFER_SUITE],
        "full": [*with_split, *TRANSFER_SUITE],
    }
    names: dict[str, None] = {}
    for task in tasks:
        if task in STS_SUITE and task not in with_split:
            raise UsageError(f"{task} has no {split} split: {', '.join(with_split)} have one")
        if task not in groups and task not in _SETS and not is_file(task):
            raise UsageError(
                f"there is no evaluation set {task!r}{_did_you_mean(task, groups)}: the sets are "
                f"{', '.join(_SETS)}; sts, transfer and full stand for several, and a path that "
                "ends in .tsv is a set of your own"
            )
        names |= dict.fromkeys(groups.get(task, [task]))
    return tuple(names)


def _did_you_mean(task: str, groups: Iterable[str]) -> str:
    spellings = {name.lower(): name for name in (*_SETS, *groups)}
    spellings |= {short: name for name, short in SHORT_NAMES.items()}
    near = difflib.get_close_matches(task.lower().replace("-", ""), spellings, n=1, cutoff=0.7)
    return f" (did you mean {spellings[near[0]]}?)" if near else ""
