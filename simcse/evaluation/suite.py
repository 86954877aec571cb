"""The seven STS sets of the literature: their subsets, and how many graded pairs each has.

STS13 is without its subset SMT, whose sentences were withdrawn; SentEval, the original project and
MTEB leave it out as well.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Literal

from simcse.errors import SimcseError, UsageError

Split = Literal["train", "dev", "test"]

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
    "STSBenchmark": {"train": {"train": 5749}, "dev": {"dev": 1500}, "test": {"test": 1379}},
    "SICKRelatedness": {"train": {"train": 4500}, "dev": {"dev": 500}, "test": {"test": 4927}},
}
"""Graded pairs by set, split and subset."""


SHORT_NAMES: Mapping[str, str] = {"STSBenchmark": "stsb", "SICKRelatedness": "sickr"}
"""What the original project calls these sets in the names of its metrics."""


class MissingSetError(SimcseError):
    """A set that a source does not hold; the message is the reason."""


def resolve_tasks(tasks: Sequence[str], split: Split) -> tuple[str, ...]:
    """Names of sets, each once, in the order given; "sts" stands for all that have the split.

    Raises `UsageError` for a name that is no set and for a set without the split.
    """
    with_split = [name for name, splits in STS_SUITE.items() if split in splits]
    names: dict[str, None] = {}
    for task in tasks:
        if task == "sts":
            names |= dict.fromkeys(with_split)
        elif task not in STS_SUITE:
            raise UsageError(
                f"there is no evaluation set {task!r}{_did_you_mean(task)}: the sets are "
                f"{', '.join(STS_SUITE)}, and sts for all of them"
            )
        elif task not in with_split:
            raise UsageError(f"{task} has no {split} split: {', '.join(with_split)} have one")
        else:
            names[task] = None
    return tuple(names)


def _did_you_mean(task: str) -> str:
    spellings = {name.lower(): name for name in STS_SUITE}
    spellings |= {short: name for name, short in SHORT_NAMES.items()}
    near = difflib.get_close_matches(task.lower().replace("-", ""), spellings, n=1, cutoff=0.7)
    return f" (did you mean {spellings[near[0]]}?)" if near else ""
