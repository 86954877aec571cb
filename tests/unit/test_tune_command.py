"""What `simcse tune` refuses before Ray is started."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import pytest

from pipelines.tune import show_sweep
from simcse_platform.storage import RunFolder
from simcse_platform.sweep.execute import FinishedSweep
from simcse_platform.sweep.seeds import over_seeds
from simcse_platform.sweep.sweep import TrialResult
from support.command_line import CommandLine

RATES = ("--search", "optim.learning_rate=1e-5,1e-4")
RANGE = ("--search", "optim.learning_rate=loguniform(1e-5,1e-4)")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), "a sweep needs something to search: give --search section.field=values, or --space"),
        ((*RATES, "--sampler", "grid", "--trials", 2), "--trials 2 draws points, and a grid takes"),
        ((*RATES, "--sampler", "random"), "--sampler random draws points: say how many by"),
        ((*RANGE, "--sampler", "optuna"), "--sampler optuna draws points: say how many by"),
        (RANGE, "optim.learning_rate has a range, of which a grid would have no end: list"),
        ((*RATES, "--trials", 3), "--trials is 3, but the space has about 2 points: lower it"),
        (
            (*RANGE, "--sampler", "optuna", "--trials", 2, "--seeds", 2),
            "--seeds 2 repeats each point, and optuna takes every run for a point: leave out one",
        ),
        (
            ("--search", "seed=1,2", "--seeds", 2),
            "--seeds 2 repeats each point, and seed is searched: leave out one",
        ),
        (
            (*RATES, "--seeds", 3, "--asha"),
            "--asha stops some of the 3 runs at a point, whose mean would be that of the others: "
            "leave out --asha or --seeds",
        ),
        (
            (*RATES, "--register", "bad/name"),
            "'bad/name' is no name for a model: use up to 200 letters, digits, spaces, dots",
        ),
        ((*RATES, "--register", ""), "'' is no name for a model"),
        ((*RATES, "--tracking", "foo"), "tracking.uri is 'foo': give the URI of an MLflow server"),
        (
            tuple(
                text
                for path in ("seed", "epochs", "max_steps", "dev.every")
                for text in ("--search", f"{path}={','.join(map(str, range(1, 201)))}")
            ),
            "the grid has 1,600,000,000 points, and may have 10,000: search fewer values, or draw",
        ),
        (("--space", "bach"), "there is no space 'bach': did you mean batch?"),
        (
            (*RATES, "--set", "dev.tasks=[]"),
            "a sweep selects by dev scores, and dev.tasks is empty: name a set",
        ),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused(
    simcse: CommandLine, tmp_path: Path, arguments: tuple[object, ...], error: str
) -> None:
    (tmp_path / "text.txt").write_text("a dog\n")
    refused = simcse(
        *("tune", "--recipe", "demo", "--corpus", tmp_path / "text.txt"),
        *("--set", "dev.tasks=[DemoPairs]", "--output", tmp_path / "runs", *arguments),
    )
    assert refused.error.startswith(error)
    assert not (tmp_path / "runs").exists()


def test_optuna_is_asked_for_by_its_extra(
    simcse: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    recipe = ("--recipe", "unsup_bert_base")
    refused = simcse("tune", *recipe, *RANGE, "--sampler", "optuna", "--trials", 2)
    assert refused.error == (
        "--sampler optuna needs the package optuna: pip install 'simcse-platform[optuna]'"
    )


@pytest.mark.parametrize(
    ("paths", "columns"), [(["epochs"], ["epochs", "seed"]), (["seed"], ["seed"]), ([], ["seed"])]
)
def test_the_trials_of_several_seeds_say_which_they_had(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], paths: Sequence[str], columns: list[str]
) -> None:
    results = [
        TrialResult(
            name=f"trial-{seed}",
            assignments={"epochs": "3", "seed": seed},
            status="finished",
            rows=8,
            score=70.0 + int(seed),
        )
        for seed in ("41", "42")
    ]
    folder = RunFolder(tmp_path / "sweep")
    show_sweep(FinishedSweep(folder, "sqlite:///", "0", results, over_seeds(results)), paths)
    head, *lines = (
        [cell.strip() for cell in line.split("\u2503" if "\u2503" in line else "\u2502")[1:-1]]
        for line in capsys.readouterr().out.splitlines()
        if "\u2503" in line or "\u2502" in line
    )
    assert head == ["trial", *columns, "rows", "dev score", "outcome"]
    place = head.index("seed")
    assert {line[0]: line[place] for line in lines[:2]} == {"trial-41": "41", "trial-42": "42"}
