"""STS sets from the Hugging Face hub: MTEB's datasets, at the revisions that MTEB pins."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import huggingface_hub as hub
import numpy as np

from simcse.evaluation.sts import Pairs, STSSet
from simcse.evaluation.suite import STS_SUITE, MissingSetError, Split
from simcse.evaluation.text_files import words

HUB_DATASETS: Mapping[str, tuple[str, str]] = {
    "STS12": ("mteb/sts12-sts", "a0d554a64d88156834ff5ae9920b964011b16384"),
    "STS13": ("mteb/sts13-sts", "7e90230a92c190f1bf69ae9002b8cea547a64cca"),
    "STS14": ("mteb/sts14-sts", "6031580fec1f6af667f0bd2da0a551cf4f0b2375"),
    "STS15": ("mteb/sts15-sts", "ae752c7c21bf194d8b67fd573edf7ae58183cbe3"),
    "STS16": ("mteb/sts16-sts", "4d8694f8f0e0100860b497b999b3dbed754a0513"),
    "STSBenchmark": ("mteb/stsbenchmark-sts", "b0fddb56ed78048fa8b90373c8a3cfc37b684831"),
    "SICKRelatedness": ("mteb/sickr-sts", "20a6d6f312dd54037fe07a32d58e5e168867909d"),
}
"""Dataset and revision by set. STS12 to STS16 hold the pairs of a year in one list, without their
subsets. SICK-R holds all 9,927 pairs in one split, so its count refuses it as SICKRelatedness."""

_HUB_SPLIT: Mapping[Split, str] = {"dev": "validation", "test": "test"}
_TIMEOUT_S = 5.0
_WAY_OUT = "point --data at a folder that holds the set"


class HubSource:
    """Reads sets from the local cache of the hub, else from the hub."""

    def __init__(self) -> None:
        self._unreachable: HubUnreachableError | None = None

    def read(self, name: str, split: Split) -> tuple[STSSet, dict[str, str]]:
        """A set and its SHA-256. Raises `MissingSetError` with the reason when there is none."""
        dataset, revision = HUB_DATASETS[name]
        folder = cached_folder(dataset, revision) or self._download(dataset, revision)
        rows = _read_rows(folder, dataset, _HUB_SPLIT[split])
        expected = sum(STS_SUITE[name][split].values())
        if len(rows) != expected:
            raise MissingSetError(
                f"{dataset} on the hub has {len(rows)} pairs in its {_HUB_SPLIT[split]} split, but "
                f"{name} {split} has {expected}: {_WAY_OUT}"
            )
        pairs = Pairs(
            tuple(words(row["sentence1"]) for row in rows),
            tuple(words(row["sentence2"]) for row in rows),
            np.array([row["score"] for row in rows], dtype=np.float64),
        )
        found = STSSet(name, split, {split: pairs}, subsets_known=len(STS_SUITE[name][split]) == 1)
        content = json.dumps([[r["score"], r["sentence1"], r["sentence2"]] for r in rows]).encode()
        source = f"{dataset}@{revision}/{_HUB_SPLIT[split]}"
        return found, {source: hashlib.sha256(content).hexdigest()}

    def _download(self, dataset: str, revision: str) -> str:
        if self._unreachable:
            raise self._unreachable
        try:
            return download(dataset, revision)
        except HubUnreachableError as error:
            self._unreachable = error
            raise


class HubUnreachableError(MissingSetError):
    """A hub that gives no answer, whatever it is asked for."""


def cached_folder(dataset: str, revision: str) -> str | None:
    """Folder of a revision that was downloaded before; needs no network."""
    try:
        return hub.snapshot_download(
            dataset, repo_type="dataset", revision=revision, local_files_only=True
        )
    except hub.errors.LocalEntryNotFoundError:
        return None


def download(dataset: str, revision: str) -> str:
    """Folder of a revision, fetched from the hub.

    Raises `HubUnreachableError` within seconds when the hub does not answer, and `MissingSetError`
    when it refuses.
    """
    try:
        # Asked first, because a download goes on trying for minutes.
        hub.HfApi().dataset_info(dataset, revision=revision, timeout=_TIMEOUT_S)
        return hub.snapshot_download(dataset, repo_type="dataset", revision=revision)
    except hub.errors.HfHubHTTPError as error:
        raise MissingSetError(f"the hub refuses {dataset} ({_brief(error)}): {_WAY_OUT}") from None
    # The transport's errors are those of whichever HTTP library the client uses.
    except Exception as error:
        raise HubUnreachableError(
            f"the hub cannot be reached ({_brief(error)}): {_WAY_OUT}"
        ) from None


def _read_rows(folder: str, dataset: str, split: str) -> list[dict[str, Any]]:
    import datasets  # type: ignore[import-untyped]

    splits = datasets.load_dataset(folder)
    if split not in splits:
        raise MissingSetError(f"{dataset} on the hub has no {split} split: {_WAY_OUT}")
    rows: list[dict[str, Any]] = splits[split].to_list()
    return rows


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
