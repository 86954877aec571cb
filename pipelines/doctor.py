"""`simcse doctor`: what is there, what is missing and how to get it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import typer

from pipelines import settings
from pipelines.console import JsonFile, say, write_json
from simcse.errors import SimcseError

Status = Literal["ok", "missing", "broken"]


@dataclass(frozen=True)
class Finding:
    """One thing looked at."""

    what: str
    status: Status
    detail: str
    """What was found, or how to get it."""


def doctor(
    data: settings.Data = None,
    output: settings.Output = Path("runs"),
    tracking: settings.TrackingUri = None,
    address: settings.Address = None,
    json_file: JsonFile = None,
) -> None:
    """Show versions, devices, cluster, tracking server and data: what is missing, and the way out.

    Exit code 1 means that something is broken; what is merely missing has a way round.
    """
    findings = [
        *_libraries(),
        _devices(),
        _disk(output),
        _cluster(address),
        _tracking(tracking, output),
        _data(data),
        _demo(),
    ]
    width = max(len(finding.what) for finding in findings)
    for finding in findings:
        say(f"{finding.what:<{width}}  {finding.status:<7}  {finding.detail}")
    write_json(json_file, {"findings": [asdict(finding) for finding in findings]})
    if any(finding.status == "broken" for finding in findings):
        raise typer.Exit(1)


def _libraries() -> Iterator[Finding]:
    yield Finding("python", "ok", platform.python_version())
    for name in ("torch", "transformers", "ray", "deepspeed", "mlflow", "datasets", "scipy"):
        try:
            yield Finding(name, "ok", importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Finding(name, "broken", "not installed: run `make setup`")


def _devices() -> Finding:
    import torch

    count = torch.cuda.device_count()
    names = ", ".join(torch.cuda.get_device_name(i) for i in range(count))
    return Finding("devices", "ok", f"{os.cpu_count()} CPU cores, GPUs: {names or 'none'}")


def _disk(output: Path) -> Finding:
    folder = next(part for part in (output.absolute(), *output.absolute().parents) if part.exists())
    free = shutil.disk_usage(folder).free
    return Finding("disk", "ok", f"{free / 2**30:.0f} GiB free for {output}")


def _cluster(address: str | None) -> Finding:
    from simcse_platform import runtime

    if address is None and "RAY_ADDRESS" not in os.environ:
        return Finding("ray cluster", "ok", "none given: commands start one on this machine")
    try:
        with runtime.connect(address) as found:
            detail = f"{found.nodes} nodes, {found.cpus:g} CPUs, {found.gpus:g} GPUs"
            return Finding("ray cluster", "ok", detail)
    except SimcseError as error:
        return Finding("ray cluster", "broken", str(error))


def _tracking(tracking: str | None, output: Path) -> Finding:
    from simcse_platform.tracking.location import tracking_uri
    from simcse_platform.tracking.mlflow_session import session

    try:
        uri = tracking_uri(tracking, output)
        path = uri.removeprefix("sqlite:///")
        if path != uri and not Path(path).exists():
            return Finding("tracking", "ok", f"{path} will be made by the first run")
        with session(uri) as client:
            experiments = len(client.search_experiments())
    except SimcseError as error:
        return Finding("tracking", "broken", str(error))
    return Finding("tracking", "ok", f"{uri}, {experiments} experiments")


def _data(data: Path | None) -> Finding:
    from simcse.evaluation import load_sets

    folder = settings.evaluation_data(data)
    if folder is None:
        return Finding(
            "sts data",
            "missing",
            f"no folder is given by --data or ${settings.DATA_VARIABLE}: commands ask the hub for "
            "the mteb/* datasets",
        )
    try:
        loaded = load_sets(["sts"], data=folder, mode="test")
    except SimcseError as error:
        return Finding("sts data", "broken", str(error))
    found = ", ".join(evaluated.name for evaluated in loaded.sets) or "no set"
    if not loaded.missing:
        return Finding("sts data", "ok", f"{folder}: {found}")
    return Finding(
        "sts data",
        "missing",
        f"{folder} has {found}; missing: {', '.join(loaded.missing)}. Give a folder that holds "
        f"them by --data or ${settings.DATA_VARIABLE}",
    )


def _demo() -> Finding:
    from pipelines.demo_data import minilm_folder

    try:
        return Finding("demo encoder", "ok", str(minilm_folder()))
    except SimcseError as error:
        return Finding("demo encoder", "missing", str(error))
