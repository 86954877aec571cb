"""The settings of a run from a recipe or file, flags and `--set`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simcse.config import Pooling
from simcse.errors import UsageError

if TYPE_CHECKING:
    from simcse_platform.config import TrainRun
    from simcse_platform.sweep.space import Dimension

DATA_VARIABLE = "SIMCSE_DATA"

Recipe = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Start from this recipe: demo, or a published model."),
]
Config = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Start from this YAML, such as the run.yaml of a run."),
]
Corpus = Annotated[
    list[str] | None,
    typer.Option(metavar="PATH", help="Text to train on: file, folder or glob; may be repeated."),
]
Data = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help=f"Folder with the evaluation sets (no corpus); default: ${DATA_VARIABLE}, or the hub.",
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=VALUE", help="Override one setting; may be repeated."),
]
Output = Annotated[
    Path, typer.Option(metavar="DIR", help="Folder of all runs, shared by all machines.")
]
Address = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Ray cluster to join; default: $RAY_ADDRESS, else local."),
]
PoolingOption = Annotated[
    Pooling | None,
    typer.Option(help="How token states become one vector; default: as the folder says."),
]
TrackingUri = Annotated[
    str | None,
    typer.Option(
        "--tracking", metavar="URI", help="MLflow server; default: an SQLite file in --output."
    ),
]


@dataclass(frozen=True)
class Resolved:
    """A run and the short name of what it was made from."""

    run: TrainRun
    origin: str


def resolve(
    recipe: str | None,
    config: Path | None,
    corpus: Sequence[str] | None,
    data: Path | None,
    tracking: str | None,
    assignments: Sequence[str] | None,
) -> Resolved:
    """A recipe or file with the flags laid over it; `--set` has the last word.

    Paths become absolute, because workers have working directories of their own.
    """
    from pipelines import recipes
    from simcse_platform import config as settings

    if recipe is not None and config is not None:
        raise UsageError(
            "a run starts from --recipe or from --config, not from both: leave one out"
        )
    if recipe is None and config is None:
        raise UsageError(
            "name a run by --recipe NAME or by --config FILE; the recipes are "
            f"{', '.join(recipes.RECIPES)}"
        )
    run = recipes.find(recipe) if recipe is not None else settings.load(_given(config))
    tree = run.model_dump(mode="json")
    if corpus:
        tree["data"]["corpus"] = list(corpus)
    # The environment is for what nothing else names: a stored run goes on with the data it had.
    if data or not tree["dev"]["data"]:
        folder = evaluation_data(data)
        tree["dev"]["data"] = folder and str(folder)
    if tracking:
        tree["tracking"]["uri"] = tracking
    run = settings.override(settings.from_tree(tree), assignments or [])
    return Resolved(_with_absolute_paths(run), recipe or _given(config).stem)


def absolute_space(space: Mapping[str, Dimension], base: TrainRun) -> dict[str, Dimension]:
    """The space with absolute paths among its listed values, as `resolve` makes those of a run."""
    from simcse_platform.config import override
    from simcse_platform.sweep.space import Choice

    def absolute_value(path: str, text: str) -> str:
        given = override(base, [f"{path}={text}"])
        before, after = (_value(run, path) for run in (given, _with_absolute_paths(given)))
        if before == after:
            return text
        return after if isinstance(after, str) else json.dumps(after)

    return {
        path: Choice(tuple(absolute_value(path, text) for text in dimension.values))
        if isinstance(dimension, Choice)
        else dimension
        for path, dimension in space.items()
    }


def _value(run: TrainRun, path: str) -> Any:
    return reduce(getitem, path.split("."), run.model_dump(mode="json"))


def _with_absolute_paths(run: TrainRun) -> TrainRun:
    from simcse.views import WORDNET
    from simcse_platform.config import from_tree

    tree = run.model_dump(mode="json")
    tree["data"]["corpus"] = [absolute(path) for path in tree["data"]["corpus"]]
    if tree["dev"]["data"]:
        tree["dev"]["data"] = absolute(tree["dev"]["data"])
    if tree["views"]["synonyms"] not in (None, WORDNET):
        tree["views"]["synonyms"] = absolute(tree["views"]["synonyms"])
    tree["dev"]["tasks"] = [evaluation_task(task) for task in tree["dev"]["tasks"]]
    tree["encoder"]["model"] = model_source(tree["encoder"]["model"])
    return from_tree(tree)


def evaluation_data(data: Path | None) -> Path | None:
    """The folder given, or that of the environment; None means the hub."""
    if data is None and os.environ.get(DATA_VARIABLE):
        data = Path(os.environ[DATA_VARIABLE])
    return None if data is None else Path(absolute(str(data)))


def evaluation_task(task: str) -> str:
    """A user's own set as an absolute path, the name of any other set as it is."""
    return absolute(task) if task.endswith(".tsv") else task


def absolute(path: str) -> str:
    """A path that means the same in every directory; `scheme://` paths mean that already."""
    return path if "://" in path else str(Path(path).expanduser().absolute())


def model_source(model: str) -> str:
    """A folder as an absolute path, a hub id as it is."""
    return absolute(model) if Path(model).expanduser().exists() else model


def names(text: str) -> list[str]:
    """What is separated by commas in an option."""
    return [name.strip() for name in text.split(",")]


def _given(config: Path | None) -> Path:
    assert config is not None
    return config
