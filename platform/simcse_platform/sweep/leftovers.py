"""What a trial leaves behind that Tune stops: its workers' share of the cluster."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from ray import tune
from ray.tune.experiment import Trial
from ray.util.placement_group import remove_placement_group

from simcse_platform.config import shown
from simcse_platform.storage import RunFolder
from simcse_platform.sweep.trial import POINT, TrialSetup
from simcse_platform.training.worker import Attempt

_GRACE_S = 10.0
"""After which the processes of a trial that was stopped are gone."""


class Leftovers(tune.Callback):
    """Frees the placement groups of trials that have ended.

    Tune kills the actor of a trial that it stops, and a machine may lose one, and with it Ray
    Train's controller, which would have freed them. Ray Train's own cleaner asks the dashboard
    whether the controller is alive, and a cluster on this machine has none: the next trial would
    wait for a CPU that nobody uses.
    """

    def __init__(self, setup: TrialSetup) -> None:
        # It is kept with the tuner: dev sets are large, and a password is nobody else's.
        self._setup = replace(setup, base=shown(setup.base), dev_sets=())
        self._ended: dict[RunFolder, float] = {}

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        self._ends(trial)

    def on_trial_error(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        self._ends(trial)

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        for folder, since in list(self._ended.items()):
            if time.time() - since >= _GRACE_S:
                del self._ended[folder]
                free(folder)

    def _ends(self, trial: Trial) -> None:
        point = trial.config.get(POINT) or {}
        folder = self._setup.folder(self._setup.assignments(point), trial.trial_id)
        self._ended[folder] = time.time()


def free(folder: RunFolder) -> None:
    """Remove the placement groups of a run whose processes are gone."""
    for attempt in Attempt.recorded(folder):
        if (group := attempt.group()) is not None:
            remove_placement_group(group)
