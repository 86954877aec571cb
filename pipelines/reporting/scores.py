"""What the page says of a model that was scored for it: scores, geometry, neighbours, lineage."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pipelines.paper.published import AVERAGE, PUBLISHED_STS, PUBLISHED_TRANSFER
from pipelines.reporting import drawings
from pipelines.reporting.gathering import Scored
from pipelines.reporting.page import (
    Block,
    Cell,
    Drawings,
    Examples,
    Facts,
    Note,
    Section,
    Source,
    Table,
    as_json,
    by_name,
    number,
)
from simcse.evaluation import (
    STS_SUITE,
    TRANSFER_SUITE,
    Scores,
    missing_lines,
    printed_average,
)
from simcse.evaluation.geometry import GeometryNumbers
from simcse.figures import History
from simcse.model_card import SEEDS
from simcse.model_description import DESCRIPTION, ModelDescription

SPREAD = ("mean", "deviation", "minimum", "maximum")
"""What is said of scores over seeds."""
_SHORT = {"STSBenchmark": "STS-B", "SICKRelatedness": "SICK-R"}
"""What the literature's tables call them."""
_SUITES = (
    ("STS: Spearman x 100", STS_SUITE, PUBLISHED_STS),
    ("Transfer: accuracy x 100", TRANSFER_SUITE, PUBLISHED_TRANSFER),
)


def section(name: str, scored: Scored, *, way_out: str = "") -> Section:
    """The model's scores, beside the published ones where they are of the same sets.

    `way_out` is the command that scores what was scored in dev splits on test sets.
    """
    scores, is_dev = scored.evaluation.scores, scored.mode == "dev"
    blocks, rest = list[Block](), dict(scores)
    for caption, suite, published in _SUITES:
        own = {task: rest.pop(task) for task in suite if task in rest}
        if is_dev and own:
            blocks.append(_own(f"{caption}, dev splits", own))
        elif not is_dev and (own or any(task in suite for task in scored.missing)):
            caption = f"{caption}; the other rows are the paper's"
            blocks.append(_beside(caption, name, own, suite, published))
    if rest:
        blocks.append(_own("Other sets", rest))
    blocks += _subsets(scores)
    if not scores:
        blocks.append(Note("Nothing was scored."))
    blocks += [Note(f"{line}.") for line in missing_lines(scored.missing)]
    if is_dev:
        caption, suite, published = _SUITES[0]
        what = (
            "Published scores are of test sets, with which those of dev splits do not compare. To "
            "see this model beside them:"
        )
        blocks += [
            Note(what, way_out),
            _beside(f"Published scores, {caption}", "", {}, suite, published),
        ]
    return Section("Scores", blocks)


def _beside(
    caption: str,
    name: str,
    scores: Mapping[str, Scores],
    suite: Collection[str],
    published: Mapping[str, Mapping[str, float]],
) -> Table:
    """A row a model, a column a set, as the literature has it."""
    mean = printed_average(scores, suite)
    own = [number(scores[task].headline if task in scores else None) for task in suite]
    rows = [[Cell(name), *own, number(mean)]] if name else []
    rows += [
        [Cell(label), *(number(found.get(task)) for task in (*suite, AVERAGE))]
        for label, found in published.items()
    ]
    names = [_SHORT.get(task, task) for task in suite]
    return Table(caption, ["model", *names, AVERAGE], rows, marked=name)


def _own(caption: str, scores: Mapping[str, Scores]) -> Table:
    rows = [
        [Cell(name), Cell(found.measure), number(found.headline)] for name, found in scores.items()
    ]
    return Table(caption, ["set", "measure", "score"], rows)


def _subsets(scores: Mapping[str, Scores]) -> list[Block]:
    """Spearman and Pearson of the subsets of a year."""
    rows = []
    for name, found in scores.items():
        parts = found.numbers.get("subsets")
        if isinstance(parts, Mapping) and len(parts) > 1:
            rows += [
                [
                    Cell(name),
                    Cell(part),
                    number(numbers["pairs"], 0),
                    number(numbers["spearman"]),
                    number(numbers["pearson"]),
                ]
                for part, numbers in parts.items()
            ]
    columns = ["set", "subset", "pairs", "Spearman", "Pearson"]
    return [Table("By subset", columns, rows)] if rows else []


def geometry(found: GeometryNumbers | None, histories: Mapping[str, History]) -> list[Section]:
    """How the vectors lie, and how they came there; nothing where neither is known."""
    blocks: list[Block] = []
    if found is not None:
        alignment, spectrum = found["alignment"], found["spectrum"]
        facts = {
            "alignment": "no positive pairs" if alignment is None else f"{alignment:.3f}",
            "uniformity": f"{found['uniformity']:.3f}",
            "effective rank": f"{spectrum['effective_rank']:,.1f}",
            "share of the first direction": f"{spectrum['first_share']:.1%}",
            "measured on": f"{found['pairs']:,} graded pairs of {found['sentences']:,} sentences, "
            f"{found['positive_pairs']:,} of them graded above 4",
        }
        blocks.append(Facts(facts))
    if drawn := drawings.geometry_drawings(found, histories):
        blocks.append(Drawings(drawn))
    return [Section("How the vectors lie", blocks)] if blocks else []


def neighbours(scored: Scored) -> list[Section]:
    """What the model takes for similar."""
    if not scored.examples:
        return []
    what = Note("Sentences drawn from the sets that were scored, each with its nearest others.")
    return [Section("Nearest neighbours", [what, Examples(scored.examples)])]


def lineage(description: ModelDescription | None) -> list[Section]:
    """What `simcse.json` says of where the model comes from."""
    if description is None or not description.lineage:
        return []
    told = description.lineage
    versions = told.get("versions")
    facts = {
        "step": told.get("step"),
        "sha256 of the corpus": told.get("data_sha256"),
        "hash of the code": told.get("source_hash"),
        "MLflow run": told.get("mlflow_run_id"),
        "versions": by_name(versions) if isinstance(versions, dict) else None,
    }
    known = {name: str(fact) for name, fact in facts.items() if fact is not None}
    whole = Source(f"The lineage in {DESCRIPTION}", as_json(told))
    return [Section("Lineage", [Facts(known), *_over_seeds(told.get(SEEDS)), whole])]


def spread(values: Mapping[str, float | None]) -> list[Cell]:
    """Of a score over seeds: the columns of `SPREAD`."""
    return [number(values[name]) for name in SPREAD]


def _over_seeds(seeds: Any) -> list[Table]:
    """What other seeds gave, where the model was chosen among some."""
    if not isinstance(seeds, dict):
        return []
    rows = [[Cell(name), *spread(values)] for name, values in seeds["scores"].items()]
    return [Table(f"Over {seeds['count']} seeds", ["score", *SPREAD], rows)]
