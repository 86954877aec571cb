"""`simcse register`, `promote`, `rollback` and `history` on models whose scores are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow import MlflowClient

from simcse.encoder import SentenceEncoder
from support.command_line import CommandLine
from support.tiny import WORDS, save_tiny_encoder

PAIRS = 120


class Registry:
    """Two encoders under one name, and sets whose grades are the cosines of one of them."""

    def __init__(self, folder: Path, simcse: CommandLine) -> None:
        self._folder, self._simcse = folder, simcse
        self.encoders = {
            name: SentenceEncoder.load(
                save_tiny_encoder(folder / f"plain-{name}", seed=seed), pooling="avg"
            )
            for seed, name in enumerate(("start", "better"), start=1)
        }
        for name, encoder in self.encoders.items():
            encoder.save(folder / name)

    def grade(self, name: str, *, by: str, seed: int) -> Path:
        """A set on which the encoder `by` has 100."""
        words, draw = WORDS.split(), np.random.default_rng(seed)
        pairs = [[" ".join(draw.choice(words, 6)) for _ in range(2)] for _ in range(PAIRS)]
        first, second = (self.encoders[by].encode([p[side] for p in pairs]) for side in (0, 1))
        norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
        cosines = (first * second).sum(axis=1) / norms
        path = self._folder / f"{name}.tsv"
        lines = [f"{5 * c:.6f}\t{a}\t{b}" for c, (a, b) in zip(cosines, pairs, strict=True)]
        path.write_text("\n".join(["score\tsentence1\tsentence2", *lines]) + "\n")
        return path

    def __call__(self, command: str, *arguments: object) -> tuple[int, dict[str, Any], str]:
        """Exit code, result and what was said."""
        result = self._folder / "result.json"
        done = self._simcse(
            command, *arguments, "--output", self._folder / "runs", "--json", result
        )
        return done.code, json.loads(result.read_text()), done.out

    def aliases(self) -> dict[str, str]:
        uri = f"sqlite:///{self._folder / 'runs' / 'mlflow.db'}"
        return {
            alias: str(version)
            for alias, version in MlflowClient(uri).get_registered_model("mine").aliases.items()
        }


def test_a_model_is_promoted_for_what_it_scores_and_rolled_back(
    tmp_path: Path, simcse: CommandLine
) -> None:
    registry = Registry(tmp_path, simcse)
    one, two = (registry.grade(name, by="better", seed=i) for i, name in enumerate(("one", "two")))
    sets = ("--tasks", f"{one},{two}")
    registry("register", tmp_path / "start", "mine")
    code, first, _ = registry("promote", "mine", *sets)
    assert (code, first["champion_before"]) == (0, None)

    registry("register", tmp_path / "better", "mine")
    code, dry, said = registry("promote", "mine", *sets, "--dry-run")
    assert (code, dry["promoted"]) == (0, True)
    assert "(dry run, nothing was changed)" in said
    assert registry.aliases() == {"champion": "1", "challenger": "2"}
    code, decision, said = registry("promote", "mine", *sets)
    assert code == 0
    # Who is whom: the challenger has the grades, the champion is the one that was there.
    assert decision["challenger"]["average"] == pytest.approx(100, abs=0.01)
    assert decision["champion"]["average"] == pytest.approx(first["challenger"]["average"])
    average = decision["difference"]["average"]
    assert 0 < average["low"] < average["difference"] < average["high"]
    assert registry.aliases() == {"champion": "2", "previous": "1"}
    # Both were scored for the dry run already.
    assert said.count("scored before on this data") == 2

    code, back, _ = registry("rollback", "mine")
    assert (code, back["version"], back["carried_out"]) == (0, "1", True)
    assert registry.aliases() == {"champion": "1", "previous": "2"}
    _, past, said = registry("history", "mine")
    assert [(entry["action"], entry["version"]) for entry in past["decisions"]] == [
        ("promote", "1"),
        ("promote", "2"),
        ("rollback", "1"),
    ]
    assert said.count("champion") >= 3


def test_a_model_against_itself_and_one_that_loses_a_set_are_refused(
    tmp_path: Path, simcse: CommandLine
) -> None:
    registry = Registry(tmp_path, simcse)
    won = [registry.grade(f"won-{i}", by="better", seed=i) for i in range(3)]
    lost = registry.grade("lost", by="start", seed=9)
    registry("register", tmp_path / "start", "mine")
    registry("promote", "mine", "--tasks", won[0])

    registry("register", tmp_path / "start", "mine")
    code, same, said = registry("promote", "mine", "--tasks", won[0])
    assert (code, same["promoted"]) == (1, False)
    assert same["difference"]["average"] == {"difference": 0, "low": 0, "high": 0}
    assert "+0.00, 95% between +0.00 and +0.00 is not surely above 0" in said

    registry("register", tmp_path / "better", "mine")
    code, mixed, said = registry("promote", "mine", "--tasks", ",".join(map(str, [*won, lost])))
    assert (code, mixed["promoted"]) == (1, False)
    assert mixed["difference"]["average"]["low"] > 0
    assert mixed["reason"].startswith("lost loses ")
    assert registry.aliases() == {"champion": "1", "challenger": "3"}
    _, past, said = registry("history", "mine")
    assert [entry["promoted"] for entry in past["decisions"]] == [True, False, False]
    assert said.count("refused") == 2
