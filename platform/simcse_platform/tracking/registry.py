"""Models under a name in the registry: registered, copied from another one, fetched.

The newest registered version of a name has the alias `challenger`; `champions` has the others.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import mlflow.artifacts
import yaml
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion, RegisteredModel
from mlflow.exceptions import MlflowException
from mlflow.utils.mlflow_tags import MLFLOW_RUN_NOTE

from simcse.errors import UsageError
from simcse.model_source import locate
from simcse_platform.errors import RegistryError
from simcse_platform.storage import scratch_folder
from simcse_platform.tracking.location import without_password
from simcse_platform.tracking.mlflow_model import ENCODER, log_model
from simcse_platform.tracking.mlflow_session import session
from simcse_platform.tracking.mlflow_tracker import experiment_id, run_labels

CHALLENGER, CHAMPION, PREVIOUS = "challenger", "champion", "previous"

_ABOUT = (
    "Sentence encoders. `challenger` is the newest version, `champion` the one in use and "
    "`previous` the one to go back to; `simcse history` lists who decided so, and by which scores."
)
_COPIED_FROM, _COPIED_MODEL = "copied_from", "copied_model"
_NAME = re.compile(r"\w[\w .-]*")
_LONGEST_NAME = 200
_MODEL_URI = re.compile(r"models:/(?P<name>[^/@]+)(?:@(?P<alias>[^/@]+)|/(?P<version>\d+))")


@dataclass(frozen=True, kw_only=True)
class Version:
    """A registered version."""

    name: str
    version: str
    alias: str | None
    """`challenger`, unless it has another by now, or none since there is a newer version."""
    uri: str
    """`models:/NAME/VERSION`, which `fetch_model` and MLflow take."""
    run_id: str

    @property
    def shown(self) -> str:
        """A line for the user."""
        if self.alias is None:
            return f"{self.uri} is registered; a newer version is the challenger"
        if self.alias != CHALLENGER:
            return f"{self.uri} is registered already, with the alias {self.alias}"
        return f"registered {self.uri} with the alias {self.alias}"


def register(uri: str, name: str, *, run_id: str) -> Version:
    """The newest model of a run as the challenger of `name`.

    Registering the same logged model again gives the version it has, as it stands. Raises
    `RegistryError` for a run that is not there or has no model.
    """
    check_name(name)
    with session(uri) as client:
        return _challenger(client, name, run_id, _model_of_run(client, run_id))


def register_folder(
    uri: str, name: str, folder: Path, *, experiment: str = "simcse", origin: str | None = None
) -> Version:
    """A model folder, logged in a run of its own in `experiment`, as the challenger of `name`.

    `origin` says in the run where the model comes from, when that is not the folder. Raises
    `ModelError` for a folder that holds no model.
    """
    return _register_folder(uri, name, folder, experiment, origin, {})


def _register_folder(
    uri: str,
    name: str,
    folder: Path,
    experiment: str,
    origin: str | None,
    tags: Mapping[str, str],
) -> Version:
    locate(folder)
    check_name(name)
    with session(uri) as client:
        experiment = experiment_id(client, uri, experiment)
        labels = run_labels(f"Registers {origin or folder} as `{name}`; nothing is trained here.")
        run = client.create_run(experiment, run_name=f"register-{name}", tags=labels)
        run_id = str(run.info.run_id)
    status = "FAILED"
    try:
        model_uri = log_model(uri, run_id, folder)
        status = "FINISHED"
    finally:
        with session(uri) as client:
            client.set_terminated(run_id, status)
    with session(uri) as client:
        return _challenger(client, name, run_id, model_uri, tags)


def copy_version(
    source: str, model_uri: str, uri: str, name: str, *, cache: Path, experiment: str = "simcse"
) -> Version:
    """A version of the registry at `source` as the challenger of `name` in the one at `uri`.

    The copy's tags say where it came from; what was copied before is not copied again. Raises as
    `fetch_model` and `register_folder` do.
    """
    check_name(name)
    with session(source) as client:
        original, number = resolve(client, model_uri)
        model = str(client.get_model_version(original, number).source)
    origin = f"models:/{original}/{number} of {without_password(source)}"
    # The number alone may be that of another model, where a name was deleted and given anew.
    tags = {_COPIED_FROM: origin, _COPIED_MODEL: model}
    with session(uri) as client:
        for found in client.search_model_versions(f"name = '{name}'"):
            if tags.items() <= found.tags.items():
                return _challenger(client, name, str(found.run_id), str(found.source))
    folder = fetch_model(source, f"models:/{original}/{number}", cache)
    return _register_folder(uri, name, folder, experiment, origin, tags)


def fetch_model(uri: str, model_uri: str, cache: Path) -> Path:
    """Model folder of `models:/NAME@alias` or `models:/NAME/3`, downloaded once into `cache`.

    Raises `UsageError` for another form, `RegistryError` for a name, alias or version that is not
    there or holds no encoder of ours.
    """
    with session(uri) as client:
        name, version = resolve(client, model_uri)
        # Versions of one name and number may live on several servers; the location is unique.
        location = client.get_model_version_download_uri(name, version)
    folder = cache / name / f"{version}-{uuid.uuid5(uuid.NAMESPACE_URL, uri + location).hex[:12]}"
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder(cache) as scratch:
        with session(uri, patient=True):
            model = mlflow.artifacts.download_artifacts(
                artifact_uri=f"models:/{name}/{version}",
                dst_path=str(scratch),
                tracking_uri=uri,
                registry_uri=uri,
            )
        try:
            encoder = _encoder_path(Path(model))
        except FileNotFoundError:
            raise RegistryError(
                f"the files of {model_uri} are gone from {without_password(location)}: bring them "
                "back, or register the model again"
            ) from None
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


def resolve(client: MlflowClient, model_uri: str) -> tuple[str, str]:
    """Name and version of a model URI. Raises as `fetch_model` does."""
    match = _MODEL_URI.fullmatch(model_uri)
    if match is None:
        raise UsageError(
            f"{model_uri!r} is no model URI: write models:/NAME@alias or models:/NAME/3"
        )
    name, version = match["name"], match["version"]
    found = find_version(client, name, version) if version else None
    return name, found or alias_holder(client, name, match["alias"])


def find_version(client: MlflowClient, name: str, version: str) -> str:
    """The version, if it is there. Raises `RegistryError` otherwise."""
    try:
        return str(client.get_model_version(name, version).version)
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise
        raise RegistryError(f"there is no version {version} of {name}: check the number") from None


def alias_holder(client: MlflowClient, name: str, alias: str = CHALLENGER) -> str:
    """Version that has the alias. Raises `RegistryError` when none has."""
    version = alias_version(client, name, alias)
    if version is None:
        raise RegistryError(
            f"{name} has no version with the alias {alias}: register or promote one, or name a "
            "version by its number"
        )
    return version


def alias_version(client: MlflowClient, name: str, alias: str) -> str | None:
    """Version that has the alias, if any. Raises `RegistryError` for an unknown name."""
    version = find_registered(client, name).aliases.get(alias)
    return None if version is None else str(version)


def find_registered(client: MlflowClient, name: str) -> RegisteredModel:
    """What is registered under a name. Raises `RegistryError` when nothing is."""
    try:
        return client.get_registered_model(name)
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise
        registry = without_password(client.tracking_uri)
        raise RegistryError(
            f"there is no model {name!r} in the registry {registry}: register one"
        ) from None


def check_name(name: str) -> None:
    """What MLflow would refuse, or mistake for a part of a URI or a query, after the work.

    Nor does a longer one make the name of a folder, in which its versions are kept.
    """
    if not _NAME.fullmatch(name) or len(name.encode()) > _LONGEST_NAME:
        raise UsageError(
            f"{name!r} is no name for a model: use up to {_LONGEST_NAME} letters, digits, spaces, "
            "dots, dashes and underscores, beginning with a letter or digit"
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


def _challenger(
    client: MlflowClient,
    name: str,
    run_id: str,
    model_uri: str,
    tags: Mapping[str, str] = MappingProxyType({}),
) -> Version:
    held = _version_of(client, name, model_uri)
    found = held or _create(client, name, model_uri, run_id, tags)
    alias = _alias_of(client, name, found) if held else None
    # An older version takes it from no newer one.
    if alias is None and int(found.version) == _newest(client, name):
        client.set_registered_model_alias(name, CHALLENGER, found.version)
        alias = CHALLENGER
    return Version(
        name=name,
        version=str(found.version),
        alias=alias,
        uri=f"models:/{name}/{found.version}",
        run_id=run_id,
    )


def _version_of(client: MlflowClient, name: str, model_uri: str) -> ModelVersion | None:
    versions = client.search_model_versions(f"name = '{name}'")
    same = (version for version in versions if version.source == model_uri)
    return next(same, None)


def _alias_of(client: MlflowClient, name: str, version: ModelVersion) -> str | None:
    aliases = find_registered(client, name).aliases.items()
    return next((alias for alias, held in aliases if int(held) == int(version.version)), None)


def _newest(client: MlflowClient, name: str) -> int:
    versions = client.search_model_versions(f"name = '{name}'")
    return max(int(version.version) for version in versions)


def _create(
    client: MlflowClient, name: str, model_uri: str, run_id: str, tags: Mapping[str, str]
) -> ModelVersion:
    try:
        client.create_registered_model(
            name, tags={"task": "sentence-similarity"}, description=_ABOUT
        )
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    model_id = model_uri.removeprefix("models:/")
    facts = client.get_logged_model(model_id).tags
    return client.create_model_version(
        name,
        source=model_uri,
        run_id=run_id,
        model_id=model_id,
        description=facts.get(MLFLOW_RUN_NOTE),
        tags={key: text for key, text in facts.items() if not key.startswith("mlflow.")}
        | dict(tags),
    )
