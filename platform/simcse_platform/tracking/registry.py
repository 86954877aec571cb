"""The model registry: versions of a name, and the aliases challenger, champion and previous.

MLflow sets an alias unconditionally, so changes of champion hold a lease, the tag
`promotion_lock` of the registered model; `lease` says what it guarantees. An alias names one
version, so there is one champion even where two held it together: the last one set, with both
decisions on record.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlflow.artifacts
import yaml
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion, RegisteredModel
from mlflow.exceptions import MlflowException

from simcse.errors import UsageError
from simcse.model_source import locate
from simcse_platform.errors import RegistryError
from simcse_platform.tracking.lease import lease
from simcse_platform.tracking.location import author
from simcse_platform.tracking.mlflow_model import ENCODER, log_model
from simcse_platform.tracking.mlflow_session import session
from simcse_platform.tracking.mlflow_tracker import experiment_id
from simcse_platform.tracking.promotion import Comparison, Decision, PromotionPolicy, judge

CHALLENGER, CHAMPION, PREVIOUS = "challenger", "champion", "previous"

_NAME = re.compile(r"\w[\w .-]*")
_LOCK = "promotion_lock"
_DECISION = "decision."
"""What the names of tags begin with that hold a decision; its time follows."""
_MODEL_URI = re.compile(r"models:/(?P<name>[^/@]+)(?:@(?P<alias>[^/@]+)|/(?P<version>\d+))")


@dataclass(frozen=True, kw_only=True)
class Version:
    """A registered version."""

    name: str
    version: str
    alias: str
    uri: str
    """`models:/NAME/VERSION`, which `fetch_model` and MLflow take."""
    run_id: str


def register(uri: str, name: str, *, run_id: str) -> Version:
    """The newest model of a run as the challenger of `name`.

    Registering the same logged model again gives the version it has. Raises `RegistryError` for a
    run that is not there or has no model.
    """
    _check_name(name)
    with session(uri) as client:
        return _challenger(client, name, run_id, _model_of_run(client, run_id))


def register_folder(uri: str, name: str, folder: Path, *, experiment: str = "simcse") -> Version:
    """A model folder, logged in a run of its own in `experiment`, as the challenger of `name`.

    Raises `ModelError` for a folder that holds no model.
    """
    locate(folder)
    _check_name(name)
    with session(uri) as client:
        experiment = experiment_id(client, uri, experiment)
        run_id = str(client.create_run(experiment, run_name=f"register-{name}").info.run_id)
    status = "FAILED"
    try:
        model_uri = log_model(uri, run_id, folder)
        status = "FINISHED"
    finally:
        with session(uri) as client:
            client.set_terminated(run_id, status)
    with session(uri) as client:
        return _challenger(client, name, run_id, model_uri)


def promote(
    uri: str,
    name: str,
    *,
    compare: Callable[[Path | None, Path], Comparison],
    cache: Path,
    policy: PromotionPolicy | None = None,
    version: str | None = None,
    dry_run: bool = False,
) -> Decision:
    """The decision whether a version, by default the challenger, becomes champion.

    `compare` scores both model folders (None while nobody is champion), and `policy` judges by it;
    that may take its time, as no lease is held meanwhile. The decision is kept in a tag of the
    version, then carried out; `dry_run` does neither. Raises `RegistryError` when the champion
    changed while it was compared.
    """
    policy = policy or PromotionPolicy()
    with session(uri) as client:
        challenger = _version(client, name, version) if version else _holder(client, name)
        champion = _alias(client, name, CHAMPION)
    if challenger == champion:
        raise RegistryError(
            f"version {challenger} of {name} is the champion already: register or name another"
        )
    comparison = compare(
        None if champion is None else fetch_model(uri, f"models:/{name}/{champion}", cache),
        fetch_model(uri, f"models:/{name}/{challenger}", cache),
    )
    verdict = judge(comparison, policy)
    decision = Decision(
        name=name,
        action="promote",
        version=challenger,
        champion_before=champion,
        promoted=verdict.passed,
        reason=verdict.reason,
        comparison=comparison,
        bootstrap=verdict.bootstrap,
        policy=policy,
        earlier_comparisons=_earlier_comparisons(history(uri, name), comparison),
        author=author(),
        time=_now(),
        dry_run=dry_run,
    )
    if dry_run:
        return decision
    with session(uri) as client, lease(_Lock(client, name), author()):
        now = _alias(client, name, CHAMPION)
        if now != champion:
            raise RegistryError(
                f"the champion of {name} changed from {_shown(champion)} to {_shown(now)} while "
                f"version {challenger} was compared with it: promote again"
            )
        earlier = _earlier_comparisons(history(uri, name), comparison)
        decision = replace(decision, earlier_comparisons=earlier)
        _record(client, decision)
        if decision.promoted:
            _crown(client, name, challenger, champion)
            if _alias(client, name, CHALLENGER) == challenger:
                client.delete_registered_model_alias(name, CHALLENGER)
    return decision


def rollback(uri: str, name: str) -> Decision:
    """The previous champion is champion again, and the present one is previous.

    Raises `RegistryError` when there is no previous champion.
    """
    with session(uri) as client, lease(_Lock(client, name), author()):
        champion = _alias(client, name, CHAMPION)
        previous = _alias(client, name, PREVIOUS)
        if previous is None or previous == champion:
            raise RegistryError(
                f"{name} has no previous champion to go back to: promote the version you want"
            )
        decision = Decision(
            name=name,
            action="rollback",
            version=previous,
            champion_before=champion,
            promoted=True,
            reason=f"rolled back from version {champion}",
            author=author(),
            time=_now(),
        )
        _record(client, decision)
        # The other way round than a promotion: killed in between, this one has its effect, and
        # the version to go back to is not lost.
        client.set_registered_model_alias(name, CHAMPION, previous)
        if champion is not None:
            client.set_registered_model_alias(name, PREVIOUS, champion)
    return decision


def history(uri: str, name: str) -> list[dict[str, Any]]:
    """Every decision about `name`, made or refused, in the order of time: `Decision.to_dict`.

    Raises `RegistryError` when the name is not registered.
    """
    with session(uri) as client:
        _registered(client, name)
        tags = [
            tag
            for version in client.search_model_versions(f"name = '{name}'")
            for tag in version.tags.items()
        ]
    found = sorted((key, text) for key, text in tags if key.startswith(_DECISION))
    return [json.loads(text) for _, text in found]


def fetch_model(uri: str, model_uri: str, cache: Path) -> Path:
    """Model folder of `models:/NAME@alias` or `models:/NAME/3`, downloaded once into `cache`.

    Raises `UsageError` for another form, `RegistryError` for a name, alias or version that is not
    there or holds no encoder of ours.
    """
    match = _MODEL_URI.fullmatch(model_uri)
    if match is None:
        raise UsageError(
            f"{model_uri!r} is no model URI: write models:/NAME@alias or models:/NAME/3"
        )
    name = match["name"]
    with session(uri) as client:
        version = (
            _version(client, name, match["version"])
            if match["version"]
            else _holder(client, name, match["alias"])
        )
        # Versions of one name and number may live on several servers; the location is unique.
        location = client.get_model_version_download_uri(name, version)
    folder = cache / name / f"{version}-{uuid.uuid5(uuid.NAMESPACE_URL, uri + location).hex[:12]}"
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=cache) as scratch:
        with session(uri, patient=True):
            model = mlflow.artifacts.download_artifacts(
                artifact_uri=f"models:/{name}/{version}",
                dst_path=scratch,
                tracking_uri=uri,
                registry_uri=uri,
            )
        encoder = _encoder_path(Path(model))
        if encoder is None:
            raise RegistryError(
                f"{model_uri} holds no sentence encoder: register a model folder of this project"
            )
        try:
            encoder.rename(folder)
        except OSError:
            # Another process was quicker.
            if not folder.exists():
                raise
    return folder


def _check_name(name: str) -> None:
    """What MLflow would refuse, or mistake for a part of a URI or a query, after the work."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is no name for a model: use letters, digits, spaces, dots, dashes and "
            "underscores, beginning with a letter or digit"
        )


def _encoder_path(model: Path) -> Path | None:
    flavors = yaml.safe_load((model / "MLmodel").read_text(encoding="utf-8"))["flavors"]
    artifact = flavors.get("python_function", {}).get("artifacts", {}).get(ENCODER)
    return None if artifact is None else model / artifact["path"]


def _model_of_run(client: MlflowClient, run_id: str) -> str:
    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        raise RegistryError(f"there is no run {run_id}: check the id") from None
    models = client.search_logged_models(
        [run.info.experiment_id], filter_string=f"source_run_id = '{run_id}'"
    )
    ready = [model for model in models if model.status == "READY"]
    if not ready:
        raise RegistryError(f"run {run_id} has no model: register its model folder instead")
    return f"models:/{max(ready, key=lambda model: model.creation_timestamp).model_id}"


def _challenger(client: MlflowClient, name: str, run_id: str, model_uri: str) -> Version:
    found = _version_of(client, name, model_uri) or _create(client, name, model_uri, run_id)
    client.set_registered_model_alias(name, CHALLENGER, found.version)
    return Version(
        name=name,
        version=str(found.version),
        alias=CHALLENGER,
        uri=f"models:/{name}/{found.version}",
        run_id=run_id,
    )


def _version_of(client: MlflowClient, name: str, model_uri: str) -> ModelVersion | None:
    versions = client.search_model_versions(f"name = '{name}'")
    same = (version for version in versions if version.source == model_uri)
    return next(same, None)


def _create(client: MlflowClient, name: str, model_uri: str, run_id: str) -> ModelVersion:
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    model_id = model_uri.removeprefix("models:/")
    return client.create_model_version(name, source=model_uri, run_id=run_id, model_id=model_id)


def _version(client: MlflowClient, name: str, version: str) -> str:
    try:
        return str(client.get_model_version(name, version).version)
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise
        raise RegistryError(f"there is no version {version} of {name}: check the number") from None


def _holder(client: MlflowClient, name: str, alias: str = CHALLENGER) -> str:
    version = _alias(client, name, alias)
    if version is None:
        raise RegistryError(
            f"{name} has no version with the alias {alias}: register or promote one"
        )
    return version


def _alias(client: MlflowClient, name: str, alias: str) -> str | None:
    """Version that has the alias. Raises `RegistryError` when the name is not registered."""
    version = _registered(client, name).aliases.get(alias)
    return None if version is None else str(version)


def _registered(client: MlflowClient, name: str) -> RegisteredModel:
    try:
        return client.get_registered_model(name)
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise
        raise RegistryError(
            f"there is no model {name!r} in the registry {client.tracking_uri}: register one"
        ) from None


def _earlier_comparisons(past: Sequence[Mapping[str, Any]], comparison: Comparison) -> int:
    """Promotions tried on some of the same data, under whatever choice of sets."""
    own = comparison.data_sha256.items()
    return sum(bool(own & decision.get("data_sha256", {}).items()) for decision in past)


def _record(client: MlflowClient, decision: Decision) -> None:
    key = f"{_DECISION}{decision.time}"
    client.set_model_version_tag(
        decision.name, decision.version, key, json.dumps(decision.to_dict())
    )


def _crown(client: MlflowClient, name: str, version: str, former: str | None) -> None:
    # In this order a crash leaves a champion, and doing it again completes it.
    if former is not None:
        client.set_registered_model_alias(name, PREVIOUS, former)
    client.set_registered_model_alias(name, CHAMPION, version)


@dataclass(frozen=True)
class _Lock:
    """`lease.Tag` of a registered model: the right to change its champion."""

    client: MlflowClient
    name: str

    def read(self) -> str | None:
        tags: dict[str, str] = _registered(self.client, self.name).tags
        return tags.get(_LOCK)

    def write(self, text: str) -> None:
        try:
            self.client.set_registered_model_tag(self.name, _LOCK, text)
        except MlflowException:
            # SQL stores refuse one of two that set a new tag at the same moment.
            if self.read() is None:
                raise

    def clear(self) -> None:
        self.client.delete_registered_model_tag(self.name, _LOCK)


def _shown(version: str | None) -> str:
    return "nobody" if version is None else f"version {version}"


def _now() -> str:
    # Without "+00:00": MLflow takes no plus sign in the name of a tag.
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
