"""`simcse demo`: the whole chain on real input, for a machine with two cores and no GPU."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

from pipelines import settings
from pipelines.console import JsonFile, say, write_json

MODEL_NAME = "simcse-demo"


def demo(
    data: settings.Data = None,
    assignments: settings.Assignments = None,
    output: settings.Output = Path("runs"),
    tracking: settings.TrackingUri = None,
    address: settings.Address = None,
    json_file: JsonFile = None,
) -> None:
    """Train, score, register and promote all-MiniLM-L6-v2 by [CLS] on Wikipedia sentences.

    With STS data at hand it is scored on STS-B, otherwise on two sets of the demo's own.
    """
    from pipelines import evaluation_sets
    from pipelines.registry import comparison, read_policy
    from pipelines.train import execute, say_result
    from simcse_platform.tracking import champions, registry

    folder = settings.evaluation_data(data)
    tasks = _tasks(folder)
    chosen = [f"dev.tasks=[{', '.join(tasks)}]", *(assignments or [])]
    run = settings.resolve("demo", None, None, folder, tracking, chosen).run
    say(f"scored on {' and '.join(run.dev.tasks)}")
    trained = execute(run, name=_free_name(output), output=output, address=address)

    version = registry.register(trained.tracking_uri, MODEL_NAME, run_id=trained.summary["run_id"])
    test = evaluation_sets.load_all(
        tasks, data=folder, mode="test", purpose="the demo promotes by it"
    )
    policy = read_policy(None)
    decision = champions.promote(
        trained.tracking_uri,
        MODEL_NAME,
        compare=comparison(test, policy, kept=output / ".scores"),
        cache=output / ".models",
        policy=policy,
        version=version.version,
    )
    alias = registry.CHAMPION if decision.promoted else registry.CHALLENGER
    say("")
    say_result(trained)
    say(f"registered: {MODEL_NAME} version {version.version}, alias {alias} ({decision.reason})")
    if tasks == evaluation_sets.DEMO_TASKS:
        say("compared on the demo's own sets, by which the best step was chosen too: no benchmark")
    mlflow = Path(sys.executable).with_name("mlflow")
    say(f"open MLflow's page: {mlflow} ui --backend-store-uri {trained.tracking_uri}")
    write_json(
        json_file,
        {
            **trained.summary,
            "version": asdict(version) | {"alias": alias},
            "decision": decision.to_dict(),
            "tracking_uri": trained.tracking_uri,
        },
    )


def _tasks(data: Path | None) -> tuple[str, ...]:
    """STS-B where it is at hand in both splits, else the demo's own sets."""
    from pipelines import evaluation_sets

    for mode in ("dev", "test"):
        loaded = evaluation_sets.load(["STSBenchmark"], data=data, mode=mode)
        if loaded.missing:
            say(f"no STS-B, since {loaded.missing['STSBenchmark']}")
            say("using the demo's own sets instead")
            return evaluation_sets.DEMO_TASKS
    return ("STSBenchmark",)


def _free_name(output: Path) -> str:
    """A demo trains anew each time, so that it always shows all there is to see."""
    number = 1
    while (output / f"demo-{number}").exists():
        number += 1
    return f"demo-{number}"
