"""From what was gathered to what the page says, section by section."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import timedelta
from statistics import fmean

from pipelines.reporting import drawings, scores
from pipelines.reporting.gathering import ModelReport, Report, RunReport, SweepReport
from pipelines.reporting.page import (
    Block,
    Cell,
    Drawings,
    Facts,
    Note,
    Page,
    Section,
    Source,
    Table,
    as_json,
    by_name,
    number,
)
from simcse.config import EncoderConfig
from simcse.evaluation import STS_SUITE, TRANSFER_SUITE, printed_average
from simcse.model_description import ModelDescription
from simcse_platform.config import TrainRun, flatten, to_yaml
from simcse_platform.run import SETTINGS_FILE, score_rows
from simcse_platform.sweep import execute as sweeps
from simcse_platform.sweep.sweep import SEED, in_order
from simcse_platform.tracking.champions import Standing, outcome


def page_of(report: Report, *, written: str) -> Page:
    """The whole page about a run, a model or a sweep."""
    match report:
        case RunReport():
            kind, headline, found = "training run", _run_headline(report), _run_sections(report)
        case SweepReport():
            kind, headline, found = "sweep", _sweep_headline(report), _sweep_sections(report)
        case ModelReport():
            kind = "model" if report.standing is None else "registered model"
            headline, found = _model_headline(report), _model_sections(report)
    return Page(kind=kind, name=report.name, headline=headline, sections=[*found], written=written)


def _run_headline(report: RunReport) -> dict[str, str]:
    summary, tiles = report.summary, {}
    if best := summary["best"]["scores"]:
        tiles["best dev score"] = f"{fmean(best.values()):.2f}"
        tiles["before training"] = f"{fmean(summary['dev_before'].values()):.2f}"
    tiles["steps"] = f"{summary['steps']:,}"
    tiles["rows a second"] = f"{summary['rows_per_s']:,.1f}"
    if (record := report.record.run) and record.ended:
        tiles["from start to end"] = _duration(record.ended - record.started)
    return tiles


def _run_sections(report: RunReport) -> Iterable[Section]:
    yield Section("The run", [Facts(_run_facts(report))])
    yield from _training(report)
    yield from _what_came_of_it(report)


def _run_facts(report: RunReport) -> dict[str, str]:
    run, summary, record = report.run, report.summary, report.record.run
    corpus = ", ".join(run.data.corpus)
    if record and record.corpus_rows is not None:
        corpus = f"{corpus} ({record.corpus_rows:,} rows)"
    facts = {
        "status": record.status.lower() if record else "finished",
        "encoder": run.encoder.model,
        "corpus": corpus,
        "steps": f"{summary['steps']:,} of {run.global_batch_size:,} rows, "
        f"{summary['rows']:,} rows in all",
        "best model": f"step {summary['best']['step']:,}",
        "throughput": f"{summary['rows_per_s']:,.1f} rows/s, "
        f"{summary['tokens_per_s']:,.0f} tokens/s",
        "padding efficiency": f"{summary['padding_efficiency']:.1%}",
        "waiting for data": f"{summary['data_stall_share']:.1%}",
        "peak memory of a worker": f"{summary['peak_rss_mb']:,.0f} MiB",
    }
    if record:
        facts["started"] = f"{record.started:%Y-%m-%d %H:%M} UTC"
    if record and record.ended:
        facts["from start to end"] = _duration(record.ended - record.started)
    return facts | {"MLflow run": str(summary["run_id"])}


def _training(report: RunReport) -> Iterable[Section]:
    names = ("before", "after", "best")
    rows = [
        [Cell(str(row["score"])), *(number(float(row[name])) for name in names)]
        for row in score_rows(report.summary)
    ]
    if rows:
        table = Table("x 100; best is the model that was kept", ["score", *names], rows)
        yield Section("Dev scores", [table])
    if report.record.unread:
        yield Section("Curves", [Note(f"There are none: {report.record.unread}.")])
    elif curves := drawings.run_curves(report):
        yield Section("Curves", [Drawings(curves)])


def _what_came_of_it(report: RunReport) -> Iterable[Section]:
    way_out = f"simcse report {report.folder} --tasks sts"
    yield scores.section(report.name, report.scored, way_out=way_out)
    yield from scores.geometry(report.geometry, report.record.histories)
    yield from scores.neighbours(report.scored)
    yield Section("Configuration", _configuration(report.run))
    yield from scores.lineage(report.description)


def _configuration(run: TrainRun) -> list[Block]:
    """What is not as by default, and all of it for `--config`."""
    usual = flatten(TrainRun(encoder=EncoderConfig(model=run.encoder.model)))
    changed = {path: text for path, text in flatten(run).items() if text != usual[path]}
    rows = [[Cell(path), Cell(text), Cell(usual[path])] for path, text in changed.items()]
    return [
        Table("Settings that are not the defaults", ["setting", "value", "default"], rows),
        Source(f"All settings, as in {SETTINGS_FILE}", to_yaml(run)),
    ]


def _model_headline(report: ModelReport) -> dict[str, str]:
    found, stands = report.scored.evaluation.scores, report.standing
    tiles = {} if stands is None else {"version": stands.version}
    for name, suite in (("STS average", STS_SUITE), ("transfer average", TRANSFER_SUITE)):
        if (mean := printed_average(found, suite)) is not None:
            tiles[name] = f"{mean:.2f}"
    if report.description:
        tiles["dimensions"] = f"{report.description.dimension:,}"
    return tiles | {"sets scored": f"{len(found)}", "pooling": report.scored.pooling or "unknown"}


def _model_sections(report: ModelReport) -> Iterable[Section]:
    if report.standing is not None:
        yield Section("In the registry", _standing(report.standing))
    yield scores.section(report.name, report.scored)
    yield from scores.geometry(report.scored.geometry, {})
    yield from scores.neighbours(report.scored)
    if report.description is not None:
        yield Section("Description", _description(report.description))
    yield from scores.lineage(report.description)


def _standing(stands: Standing) -> list[Block]:
    """Where a version stands, and the decision that put or left it there."""
    facts = {
        "name": stands.name,
        "version": stands.version,
        "aliases": ", ".join(stands.aliases) or "none",
        "MLflow run": stands.run_id or "none",
    }
    blocks: list[Block] = [Facts(facts)]
    if (last := stands.decision) is None:
        blocks.append(Note("Nobody has tried to promote it."))
    else:
        decision = {
            "last decision": f"{last['action']}: {outcome(last)}",
            "reason": last["reason"],
            "champion before": last["champion_before"] or "nobody",
            "by": last["author"],
            "at": f"{last['time'][:16].replace('T', ' ')} UTC",
        }
        blocks += [Facts(decision), Source("The decision with all its numbers", as_json(last))]
    if stands.tags:
        rows = [[Cell(name), Cell(text)] for name, text in sorted(stands.tags.items())]
        blocks.append(Table("Tags of the version", ["tag", "value"], rows))
    return blocks


def _description(said: ModelDescription) -> list[Block]:
    """What the model folder says of itself."""
    facts = {
        "pooling": said.pooling,
        "head": said.head,
        "whitened": "yes" if said.whitened else "no",
        "longest training sentence": f"{said.max_length} tokens",
        "dimensions": f"{said.dimension:,}",
        "written with": by_name(said.versions),
    }
    rows = [[Cell(name), number(score)] for name, score in said.scores.items()]
    table = [Table("Scores when it was saved", ["score", "x 100"], rows)] if rows else []
    return [Facts(facts), *table]


def _sweep_headline(report: SweepReport) -> dict[str, str]:
    results = report.sweep.results
    tiles = {"trials": f"{len(results)}"}
    for status in ("finished", "stopped early", "failed"):
        if count := sum(result.status == status for result in results):
            tiles[status] = f"{count}"
    if report.repeated:
        tiles["best dev score"] = f"{report.repeated[0].score.mean:.2f}"
    return tiles


def _sweep_sections(report: SweepReport) -> Iterable[Section]:
    sweep = report.sweep
    paths = [*dict.fromkeys(path for result in sweep.results for path in result.assignments)]
    best = report.repeated[0].trials[0].name if report.repeated else ""
    facts = {
        "searched": ", ".join(path for path in paths if path != SEED) or "the seed alone",
        "sampler": sweep.plan.sampler,
        "seeds at each point": f"{sweep.plan.seeds}",
        "encoder": sweep.base.encoder.model,
        "corpus": ", ".join(sweep.base.data.corpus),
        "selected by": ", ".join(sweep.base.dev.tasks),
        "MLflow run": report.record.run_id or "unknown",
    }
    described = sweeps.describe(sweep.base, sweep.space, sweep.plan)
    yield Section(
        "The sweep", [Facts(facts), Source(f"All of it, as in {sweeps.SWEEP_FILE}", described)]
    )
    rows = [
        [
            Cell(result.name),
            *(_setting(result.assignments.get(path, "")) for path in paths),
            number(result.rows, 0),
            number(result.score),
            Cell(f"{result.status}: {result.reason}" if result.reason else result.status),
        ]
        for result in in_order(sweep.results)
    ]
    columns = ["trial", *paths, "rows", "dev score", "outcome"]
    yield Section("Trials", [Table("The best first", columns, rows, marked=best)])
    if any(len(repeated.trials) > 1 for repeated in report.repeated):
        yield _seeds(report)
    if drawn := drawings.sweep_drawings(report):
        yield Section("Scores over the settings", [Drawings(drawn)])
    if report.best is None:
        why = "no trial finished" if not best else f"the folder of {best} is not there"
        yield Section("Best trial", [Note(f"There is nothing to show: {why}.")])
        return
    yield Section(f"Best trial: {best}", [Facts(_run_facts(report.best))], opens=True)
    yield from _training(report.best)
    yield from _what_came_of_it(report.best)


def _seeds(report: SweepReport) -> Section:
    paths = [*dict.fromkeys(path for found in report.repeated for path in found.assignments)]
    rows = [
        [
            *(_setting(found.assignments.get(path, "")) for path in paths),
            Cell(found.count),
            *scores.spread(asdict(found.score)),
        ]
        for found in report.repeated
    ]
    columns = [*paths, "seeds", *scores.SPREAD]
    return Section("Over seeds", [Table("Dev score; the best mean first", columns, rows)])


def _setting(text: str) -> Cell:
    """A value of a setting, sorted as a number if it is one."""
    try:
        return Cell(text, float(text))
    except ValueError:
        return Cell(text)


def _duration(span: timedelta) -> str:
    seconds = span.total_seconds()
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"
