"""The files behind what a user names as corpus.

corpus.txt  folder/  'shards/*.jsonl.gz'    files by their endings
saved/  saved/train                         what `datasets` wrote with `save_to_disk`
hf://owner/name:train                       one split of a dataset of the hub
hf://owner/name@main/20231101.en/*.parquet  files of it, at a revision
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import huggingface_hub

from simcse.errors import DataError, UsageError
from simcse_platform.ingest.readers import ENDINGS, form_of

HUB = "hf://"

_HUB_SOURCE = re.compile(
    r"hf://(?P<name>[\w.-]+/[\w.-]+)(@(?P<revision>[\w.-]+))?(:(?P<split>[\w.-]+)|/(?P<files>.+))?"
)
_SAVED_SPLITS = "dataset_dict.json"
_SAVED_STATE = "state.json"


def find_files(sources: Sequence[str | Path]) -> list[Path]:
    """Absolute paths of the files behind all sources, in their order, each once.

    Raises as `files_by_source` does.
    """
    return list(chain.from_iterable(files_by_source(sources)))


def files_by_source(sources: Sequence[str | Path]) -> list[list[Path]]:
    """Absolute paths of the files behind each source; a file belongs to the first that names it.

    A folder stands for all files below it that have a known format, by name; names that begin with
    `.` or `_`, of folders too, are left out, and so are `.arrow` files, which belong to datasets.
    What is on the hub is downloaded into its cache, which all machines must see. Raises
    `UsageError` naming a source without files, a file without known format and a dataset of
    several splits, `DataError` an empty file.
    """
    if not sources:
        raise UsageError("no corpus is named: give data.corpus a file, a folder or a glob")
    seen: set[Path] = set()
    found: list[list[Path]] = []
    for source in map(str, sources):
        files = _from_hub(source) if source.startswith(HUB) else _from_path(source)
        found.append([file for file in dict.fromkeys(files) if file not in seen])
        seen.update(files)
    for file in seen:
        if form_of(file) is None:
            raise UsageError(f"{file} has no known format: the name must end in {ENDINGS}")
        if file.stat().st_size == 0:
            raise DataError(f"{file} is empty: remove it from the corpus")
    return found


def _from_path(source: str) -> list[Path]:
    path = Path(source).expanduser().absolute()
    if (path / _SAVED_SPLITS).is_file() or (path / _SAVED_STATE).is_file():
        return _saved_files(path)
    if path.is_dir():
        files = _below(path)
    elif path.exists():
        files = [path]
    else:
        matches = Path(path.anchor).glob(str(path.relative_to(path.anchor)))
        files = sorted(match for match in matches if match.is_file())
    if not files:
        raise UsageError(f"{source} names no file: give a file, a folder or a glob of {ENDINGS}")
    return files


def _below(folder: Path) -> list[Path]:
    return [
        file
        for file in sorted(folder.rglob("*"))
        if form_of(file) not in (None, ".arrow") and file.is_file() and not _is_hidden(file, folder)
    ]


def _is_hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith((".", "_")) for part in file.relative_to(folder).parts)


def _saved_files(folder: Path) -> list[Path]:
    """The Arrow files of a dataset saved by `datasets`, which alone knows which of them count."""
    import datasets  # type: ignore[import-untyped]

    try:
        if (folder / _SAVED_SPLITS).is_file():
            splits = json.loads((folder / _SAVED_SPLITS).read_bytes())["splits"]
            folder = folder / _only_split(str(folder), splits, "/")
        saved = datasets.load_from_disk(str(folder))
    except UsageError:
        raise
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise DataError(
            f"{folder} is no readable saved dataset ({_brief(error)}): save it again"
        ) from error
    return [Path(file["filename"]) for file in saved.cache_files]


def _from_hub(source: str) -> list[Path]:
    asked = _HUB_SOURCE.fullmatch(source)
    if asked is None:
        raise UsageError(
            f"{source} names no dataset of the hub: write hf://OWNER/NAME, then @REVISION if need "
            "be, then :SPLIT or /FILES"
        )
    folder = _download(source, asked["name"], asked["revision"], asked["files"])
    if asked["files"]:
        files = sorted(file for file in folder.glob(asked["files"]) if file.is_file())
        if not files:
            raise UsageError(f"{source} names no file of this dataset: check the path or glob")
        return files
    return _split_files(source, folder, asked["split"])


def _download(source: str, name: str, revision: str | None, files: str | None) -> Path:
    """The local copy of a dataset's files, all of them or those that a glob names."""
    try:
        return Path(
            huggingface_hub.snapshot_download(
                name, repo_type="dataset", revision=revision, allow_patterns=files
            )
        )
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{source} could not be had from the hub ({type(error).__name__}): check name and "
            "revision, or download it where there is a network and name its folder"
        ) from error


def _split_files(source: str, folder: Path, split: str | None) -> list[Path]:
    """The files of one split, found as `datasets` finds them."""
    import datasets

    try:
        by_split = datasets.load_dataset_builder(str(folder)).config.data_files
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{source} cannot be opened by its splits ({_brief(error)}): name its files as in "
            "hf://OWNER/NAME/FOLDER/*.parquet"
        ) from error
    if split is None:
        split = _only_split(source, list(by_split), ":")
    elif split not in by_split:
        raise UsageError(f"{source} is no split of this dataset: it has {', '.join(by_split)}")
    return [Path(file) for file in by_split[split]]


def _only_split(source: str, splits: Sequence[str], separator: str) -> str:
    if len(splits) > 1:
        raise UsageError(
            f"{source} has the splits {', '.join(splits)}: name one, such as "
            f"{source}{separator}{splits[0]}"
        )
    return splits[0]


def _brief(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
