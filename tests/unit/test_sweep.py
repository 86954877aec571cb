"""A sweep's points, how many trials run at a time, and its pictures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from simcse.config import EncoderConfig
from simcse.errors import UsageError
from simcse.figures import save_png
from simcse_platform.config import TrainRun, override
from simcse_platform.errors import ClusterError
from simcse_platform.runtime import Resources
from simcse_platform.storage import RunFolder
from simcse_platform.sweep.concurrency import concurrency, share_cores
from simcse_platform.sweep.execute import check_claim, describe, flat, read
from simcse_platform.sweep.figures import sweep_figures
from simcse_platform.sweep.seeds import Spread, over_seeds
from simcse_platform.sweep.space import parse
from simcse_platform.sweep.sweep import (
    SearchPlan,
    TrialResult,
    draw,
    table,
)

BASE = TrainRun(encoder=EncoderConfig(model="some/model"))


def results() -> list[TrialResult]:
    scores = {("0.05", "1e-5"): 70.0, ("0.05", "1e-4"): None, ("0.2", "1e-5"): 72.5}
    return [
        TrialResult(
            name=f"sweep-{temperature}-{rate}",
            assignments={"objective.temperature": temperature, "optim.learning_rate": rate},
            status="failed" if score is None else "finished",
            reason="because" if score is None else "",
            score=score,
        )
        for (temperature, rate), score in scores.items()
    ]


def test_draws_are_different_points_and_a_function_of_the_seed() -> None:
    space = parse(["seed=1,2,3", "optim.learning_rate=loguniform(1e-6,1e-4)"], BASE)
    points = draw(space, 5, seed=3)
    assert draw(space, 5, seed=3) == points
    assert draw(space, 5, seed=4) != points
    assert draw(space, 8, seed=3)[:5] == points
    assert all(1e-6 <= float(point["optim.learning_rate"]) <= 1e-4 for point in points)
    few = parse(["seed=1,2"], BASE)
    assert sorted(point["seed"] for point in draw(few, 2, seed=0)) == ["1", "2"]
    with pytest.raises(UsageError, match="--trials is 3, but the space has about 2 points: lower"):
        draw(few, 3, seed=0)


@pytest.mark.parametrize(
    ("cpus", "gpus", "workers", "cpus_per_worker", "most"),
    [
        (2, 0, 1, "null", 1),
        (2, 0, 2, "null", 1),
        (9, 0, 2, "null", 4),
        (9, 0, 2, "2", 2),
        (33, 4, 2, "null", 2),
    ],
)
def test_as_many_trials_run_as_the_cluster_holds_beside_its_data(
    cpus: int, gpus: int, workers: int, cpus_per_worker: str, most: int
) -> None:
    run = override(
        BASE, [f"scale.num_workers={workers}", f"scale.cpus_per_worker={cpus_per_worker}"]
    )
    resources = Resources(cpus=cpus, gpus=gpus, nodes=1)
    assert concurrency(run, resources, None) == most
    assert concurrency(run, resources, 1) == 1
    with pytest.raises(UsageError, match=f"but the cluster holds {most} trial"):
        concurrency(run, resources, most + 1)


def test_a_trial_that_fits_nowhere_is_refused() -> None:
    run = override(BASE, ["scale.num_workers=4", "scale.cpus_per_worker=1"])
    with pytest.raises(ClusterError, match=r"4 worker\(s\) of 1 CPUs leave none"):
        concurrency(run, Resources(cpus=4, gpus=0, nodes=1), None)


def test_trials_at_a_time_share_the_cores() -> None:
    resources = Resources(cpus=8, gpus=0, nodes=1)
    assert share_cores(BASE, resources, 1).scale.threads_per_worker == 8
    assert share_cores(BASE, resources, 4).scale.threads_per_worker == 2
    assert share_cores(BASE, resources, 9).scale.threads_per_worker == 1
    chosen = override(BASE, ["scale.threads_per_worker=3"])
    assert share_cores(chosen, resources, 4) == chosen


def test_trials_are_counted_by_what_fits_on_each_machine() -> None:
    run = override(BASE, ["scale.cpus_per_worker=2"])
    three = Resources(cpus=9, gpus=0, nodes=3, node_cpus=(3, 3, 3))
    # Ray Data has the third CPU of one of them, which no worker can use.
    assert concurrency(run, three, None) == 3
    assert concurrency(run, Resources(cpus=8, gpus=0, nodes=2, node_cpus=(4, 4)), None) == 3
    assert concurrency(run, Resources(cpus=9, gpus=0, nodes=1, node_cpus=(9,)), None) == 4
    elastic = override(BASE, ["scale.max_workers=4", "scale.cpus_per_worker=1"])
    assert concurrency(elastic, Resources(cpus=9, gpus=0, nodes=1, node_cpus=(9,)), None) == 2


def test_a_table_has_the_best_first_and_the_failed_last() -> None:
    found = results()
    assert [row["score"] for row in table(found)] == [72.5, 70.0, None]


def test_trials_of_unlike_settings_share_the_columns_of_a_table() -> None:
    one = TrialResult(name="a", assignments={"seed": "1"}, status="finished", rows=3, score=1.0)
    other = TrialResult(name="b", assignments={"epochs": "2"}, status="failed", reason="why")
    assert flat(table([one, other])) == [
        {
            **{"name": "a", "status": "finished", "seed": "1", "epochs": "", "rows": 3},
            **{"score": 1.0, "reason": ""},
        },
        {
            **{"name": "b", "status": "failed", "seed": "", "epochs": "2", "rows": 0},
            **{"score": "", "reason": "why"},
        },
    ]


def test_pictures_are_drawn_where_they_say_something(tmp_path: Path) -> None:
    two = parse(["objective.temperature=0.05,0.2", "optim.learning_rate=1e-5,1e-4"], BASE)
    drawn = sweep_figures(results(), two)
    assert list(drawn) == ["heat_map", "parallel_coordinates"]
    # The mean of a cell without a score is no number, and the cell says so.
    [image] = drawn["heat_map"].axes[0].images
    assert image.get_array().tolist() == [[70.0, None], [72.5, None]]
    save_png(drawn, tmp_path / "figures")
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == [
        "heat_map.png",
        "parallel_coordinates.png",
    ]
    line = parse(["objective.temperature=0.05,0.2", "optim.learning_rate=uniform(0.1,0.2)"], BASE)
    assert list(sweep_figures(results(), line)) == ["parallel_coordinates"]
    assert sweep_figures([results()[1]], line) == {}


def test_a_sweep_of_other_settings_is_not_gone_on_with(tmp_path: Path) -> None:
    space, plan = parse(["seed=1,2"], BASE), SearchPlan(sampler="grid")
    folder = RunFolder(tmp_path / "sweep")
    check_claim(folder, describe(BASE, space, plan))
    folder.write_text("sweep.yaml", describe(BASE, space, plan))
    check_claim(folder, describe(BASE, space, SearchPlan(sampler="grid", concurrent=2)))
    with pytest.raises(UsageError, match="sweep sweep was started with other settings, which"):
        check_claim(folder, describe(BASE, parse(["seed=1,3"], BASE), plan))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(UsageError, match="other exists and holds no sweep: choose another --name"):
        check_claim(RunFolder(tmp_path / "other"), describe(BASE, space, plan))


def test_a_sweep_is_read_back_from_its_folder(tmp_path: Path) -> None:
    searches = ["objective.temperature=0.05,0.2", "optim.learning_rate=loguniform(1e-6,1e-4)"]
    space, plan = parse(searches, BASE), SearchPlan(sampler="random", trials=3, seeds=2)
    folder = RunFolder(tmp_path / "sweep")
    folder.write_text("sweep.yaml", describe(BASE, space, plan))
    folder.write_text("trials.json", json.dumps(table(results())))
    found = read(folder)
    assert (found.base, found.space, found.plan) == (BASE, space, plan)
    assert table(found.results) == table(results())
    points = {"one": {"seed": "1"}, "other": {"optim.learning_rate": "1e-5"}}
    listed = SearchPlan(sampler="listed", points=points)
    folder.write_text("sweep.yaml", describe(BASE, {}, listed))
    assert (read(folder).space, read(folder).plan) == ({}, listed)
    trial = {"name": "a", "assignments": {}, "status": "finished", "score": 1.0}
    folder.write_text("trials.json", json.dumps([trial]))
    assert [result.score for result in read(folder).results] == [1.0]
    for damaged in (
        [{}],
        {},
        [trial | {"score": None}],
        [trial | {"score": "x"}],
        [trial | {"name": 5}],
        [trial | {"assignments": None}],
        [trial | {"rows": None}],
    ):
        folder.write_text("trials.json", json.dumps(damaged))
        with pytest.raises(UsageError, match=r"sweep sweep cannot be read .*: bring them back, or"):
            read(folder)
    (folder.path / "sweep.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"sweep sweep cannot be read .*: bring them back, or"):
        read(folder)
    with pytest.raises(UsageError, match=r"sweep sweep was started with other settings"):
        check_claim(folder, describe(BASE, space, plan))


def repeat(temperature: str, scores: dict[str, float]) -> list[TrialResult]:
    return [
        TrialResult(
            name=f"{temperature}-{seed}",
            assignments={"objective.temperature": temperature, "seed": seed},
            status="finished",
            score=score,
            scores={"dev_stsb_spearman": score},
        )
        for seed, score in scores.items()
    ]


def test_seeds_are_brought_together_and_the_best_mean_wins() -> None:
    lucky = repeat("0.05", {"1": 60.0, "2": 80.0})
    steady = repeat("0.2", {"1": 74.0, "2": 75.0, "3": 76.0})
    failed = TrialResult(
        name="f", assignments={"objective.temperature": "0.2", "seed": "4"}, status="failed"
    )
    first, second = over_seeds([*lucky, *steady])
    assert first.assignments == {"objective.temperature": "0.2"}
    assert [trial.score for trial in first.trials] == [76, 75, 74]
    assert first.score == Spread(mean=75, deviation=1, minimum=74, maximum=76)
    assert first.scores == {"dev_stsb_spearman": first.score}
    assert second.score == Spread(
        mean=70, deviation=pytest.approx(200**0.5), minimum=60, maximum=80
    )
    assert (first.count, second.count) == ("3", "2")
    # What seeds gave of which one did not finish is no match for what all gave.
    for status in ("failed", "stopped early"):
        first, second = over_seeds([*lucky, replace(failed, status=status), *steady])
        assert (first.score.mean, second.score.mean) == (70, 75)
        assert (first.count, second.count) == ("2", "3 of 4")
    (alone,) = over_seeds(lucky[:1])
    assert alone.score == Spread(mean=60, deviation=None, minimum=60, maximum=60)
    assert over_seeds([failed]) == []
