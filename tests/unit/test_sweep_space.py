"""The space of a sweep."""

from __future__ import annotations

import pytest

from simcse.config import EncoderConfig
from simcse.errors import UsageError
from simcse_platform.config import TrainRun
from simcse_platform.sweep.space import (
    Choice,
    Range,
    as_text,
    grid,
    parse,
    trial_name,
    trial_run,
)

BASE = TrainRun(encoder=EncoderConfig(model="some/model"))


def test_lists_and_ranges_are_read() -> None:
    assert parse(
        [
            "objective.temperature=0.01, 0.05,0.1",
            "optim.learning_rate=loguniform(1e-6, 1e-4)",
            "optim.weight_decay=uniform(0,0.1)",
            "global_batch_size=integer(64,512)",
            "data.corpus=[a.txt],[b.txt,c.txt]",
        ],
        BASE,
    ) == {
        "objective.temperature": Choice(("0.01", "0.05", "0.1")),
        "optim.learning_rate": Range("loguniform", 1e-6, 1e-4),
        "optim.weight_decay": Range("uniform", 0, 0.1),
        "global_batch_size": Range("integer", 64, 512),
        "data.corpus": Choice(("[a.txt]", "[b.txt,c.txt]")),
    }


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ("objective.temperature", "spans no space: write section.field=value,value or"),
        ("=0.1", "spans no space"),
        ("objective.temperature=", "spans no space"),
        ("objective.temprature=0.1", "there is no setting objective.temprature: did you mean"),
        ("objective.temperature=0.1,,0.2", "give each value once, none of them empty"),
        ("objective.temperature=0.1,0.1", "give each value once, none of them empty"),
        ("objective.temperature=0.1,-1", "objective.temperature is -1: Input should be greater"),
        ("objective.temperature=uniform(-1,1)", r"objective.temperature is -1\.0: Input should"),
        ("objective.temperature=uniform(1,0.5)", "the lower bound must be below the upper one"),
        ("objective.temperature=uniform(a,b)", "the bounds must be numbers"),
        ("objective.temperature=normal(0,1)", "there is no normal, write uniform, loguniform or"),
        ("optim.learning_rate=loguniform(0,1)", "a logarithm needs bounds above 0"),
        ("global_batch_size=integer(2.5,8)", "the bounds must be whole numbers"),
        ("seed=integer(1,1e300)", "the bounds must be within 64 bits"),
        ("scale.num_workers=1,2", "scale.num_workers changes how a run is carried out, not what"),
        ("dev.tasks=[STS12],[STS13]", "dev.tasks is what all trials are compared on: set it by"),
        ("dev.data=a,b", "dev.data is what all trials are compared on: set it by --set, for all"),
    ],
)
def test_what_spans_no_space_is_refused(search: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse([search], BASE)


def test_a_sweep_needs_a_space_and_each_setting_once() -> None:
    with pytest.raises(UsageError, match="a sweep needs something to search"):
        parse([], BASE)
    with pytest.raises(UsageError, match="seed is searched twice: put all its values into one"):
        parse(["seed=1", "seed=2"], BASE)


def test_a_grid_is_every_combination_and_has_an_end() -> None:
    space = parse(["objective.temperature=0.01,0.05", "seed=1,2"], BASE)
    assert list(grid(space)) == [
        {"objective.temperature": "0.01", "seed": "1"},
        {"objective.temperature": "0.01", "seed": "2"},
        {"objective.temperature": "0.05", "seed": "1"},
        {"objective.temperature": "0.05", "seed": "2"},
    ]
    with pytest.raises(UsageError, match="seed has a range, of which a grid would have no end"):
        list(grid(parse(["seed=integer(1,5)"], BASE)))
    many = ",".join(map(str, range(1, 102)))
    with pytest.raises(UsageError, match="the grid has 10,201 points, and may have 10,000: search"):
        next(grid(parse([f"seed={many}", f"epochs={many}"], BASE)))


def test_a_trial_is_a_run_whose_name_its_settings_decide() -> None:
    one = {"objective.temperature": "0.01", "optim.learning_rate": "1e-5"}
    run = trial_run(BASE, one)
    assert (run.objective.temperature, run.optim.learning_rate) == (0.01, 1e-5)
    name = trial_name("sweep", one)
    assert name == trial_name("sweep", dict(reversed(one.items())))
    assert name != trial_name("sweep", {**one, "optim.learning_rate": "3e-5"})
    assert name.startswith("sweep-")


def test_numbers_that_are_drawn_are_text_that_keeps_them() -> None:
    rate = Range("loguniform", 1e-6, 1e-4)
    assert float(as_text(rate, 1.2345678901234e-5)) == 1.2345678901234e-5
    assert as_text(Range("integer", 1, 9), 4.0) == "4"
