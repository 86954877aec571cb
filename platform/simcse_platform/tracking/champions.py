"""Which version of a name is in use: promotions, rollbacks, and the record of both.

MLflow sets an alias unconditionally, so changes of champion hold a lease, the tag
`promotion_lock` of the registered model; `lease` says what it guarantees. An alias names one
version, so there is one champion even where two held it together: the last one set, with both
decisions on record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from simcse_platform.errors import RegistryError
from simcse_platform.tracking.lease import lease
from simcse_platform.tracking.location import author
from simcse_platform.tracking.mlflow_session import session
from simcse_platform.tracking.promotion import Comparison, Decision, PromotionPolicy, judge
from simcse_platform.tracking.registry import (
    CHALLENGER,
    CHAMPION,
    PREVIOUS,
    alias_holder,
    alias_version,
    fetch_model,
    find_registered,
    find_version,
    resolve,
)

_LOCK = "promotion_lock"
_DECISION = "decision."
"""What the names of tags begin with that hold a decision; its time follows."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where a version stands among those of its name."""

    name: str
    version: str
    run_id: str | None
    """None for a version that was registered without one."""
    aliases: tuple[str, ...]
    tags: Mapping[str, str]
    """But for those that hold decisions."""
    decision: Mapping[str, Any] | None
    """The last one about it, as `history` has it; None before the first."""


def standing(uri: str, model_uri: str) -> Standing:
    """That of `models:/NAME@alias` or `models:/NAME/3`.

    Raises `RegistryError` when it is not registered.
    """
    with session(uri) as client:
        name, number = resolve(client, model_uri)
        version = client.get_model_version(name, number)
        aliases = find_registered(client, name).aliases
    about = [past for past in history(uri, name) if str(past["version"]) == number]
    return Standing(
        name=name,
        version=number,
        run_id=version.run_id or None,
        aliases=tuple(sorted(alias for alias, held in aliases.items() if str(held) == number)),
        tags={key: text for key, text in version.tags.items() if not key.startswith(_DECISION)},
        decision=about[-1] if about else None,
    )


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
    version, carried out, and kept as carried out; `dry_run` does none of it. Raises
    `RegistryError` when the champion changed while it was compared.
    """
    policy = policy or PromotionPolicy()
    with session(uri) as client:
        challenger = (
            alias_holder(client, name) if version is None else find_version(client, name, version)
        )
        champion = alias_version(client, name, CHAMPION)
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
        now = alias_version(client, name, CHAMPION)
        if now != champion:
            raise RegistryError(
                f"the champion of {name} changed from {_shown(champion)} to {_shown(now)} while "
                f"version {challenger} was compared with it: promote again"
            )
        earlier = _earlier_comparisons(history(uri, name), comparison)
        decision = replace(decision, earlier_comparisons=earlier)
        if not decision.promoted:
            return _record(client, replace(decision, carried_out=True))
        _record(client, decision)
        _crown(client, name, challenger, champion)
        if alias_version(client, name, CHALLENGER) == challenger:
            client.delete_registered_model_alias(name, CHALLENGER)
        return _record(client, replace(decision, carried_out=True))


def rollback(uri: str, name: str) -> Decision:
    """The previous champion is champion again, and the present one is previous.

    Raises `RegistryError` when there is no previous champion.
    """
    with session(uri) as client, lease(_Lock(client, name), author()):
        champion = alias_version(client, name, CHAMPION)
        previous = alias_version(client, name, PREVIOUS)
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
        return _record(client, replace(decision, carried_out=True))


def history(uri: str, name: str) -> list[dict[str, Any]]:
    """Every decision about `name`, made or refused, in the order of time: `Decision.to_dict`.

    Raises `RegistryError` when the name is not registered.
    """
    with session(uri) as client:
        find_registered(client, name)
        tags = [
            tag
            for version in client.search_model_versions(f"name = '{name}'")
            for tag in version.tags.items()
        ]
    found = sorted((key, text) for key, text in tags if key.startswith(_DECISION))
    return [json.loads(text) for _, text in found]


def _earlier_comparisons(past: Sequence[Mapping[str, Any]], comparison: Comparison) -> int:
    """Promotions tried on some of the same data, under whatever choice of sets."""
    own = comparison.data_sha256.items()
    return sum(bool(own & decision.get("data_sha256", {}).items()) for decision in past)


def _record(client: MlflowClient, decision: Decision) -> Decision:
    """Keep it, in place of what was kept of it before."""
    key = f"{_DECISION}{decision.time}"
    client.set_model_version_tag(
        decision.name, decision.version, key, json.dumps(decision.to_dict())
    )
    return decision


def outcome(decision: Mapping[str, Any]) -> str:
    """What became of a decision of `history`, in a word or two."""
    if not decision["promoted"]:
        return "refused"
    return "champion" if decision.get("carried_out", True) else "cut short"


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
        tags: dict[str, str] = find_registered(self.client, self.name).tags
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
