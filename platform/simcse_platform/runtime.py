"""Ray, started or joined. Nothing else in the project calls `ray.init`."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import ray
from ray.data import DataContext

from simcse.errors import SimcseError
from simcse_platform.errors import ClusterError

_PACKAGES = ("simcse", "simcse_platform", "pipelines")
_WORKER_ENVIRONMENT = {"TOKENIZERS_PARALLELISM": "false"}
_PROBE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Resources:
    """What the cluster has in all, busy or not."""

    cpus: float
    gpus: float
    nodes: int
    node_cpus: tuple[float, ...] = ()
    """CPUs of each node, where that is known."""

    @property
    def largest_node(self) -> float:
        """CPUs of the node that has most."""
        return max(self.node_cpus, default=self.cpus)


@contextmanager
def connect(
    address: str | None = None,
    *,
    num_cpus: int | None = None,
    object_store_memory: int | None = None,
) -> Iterator[Resources]:
    """A connection to Ray; on leaving, what this call started is stopped.

    With `address` or `RAY_ADDRESS` it joins that cluster and ships the packages unless it runs
    inside a Ray job, which has shipped them. Without, it starts a cluster on this machine with
    `num_cpus` (default: its cores) and `object_store_memory` bytes. A connection that exists
    already is used and kept. Raises `ClusterError` when no cluster answers.
    """
    if ray.is_initialized():
        yield cluster_resources()
        return
    address = address or os.environ.get("RAY_ADDRESS")
    _set_authentication(joins=address is not None)
    terminated = signal.getsignal(signal.SIGTERM)
    # Ray warns about the coming default of this switch in every process without a GPU.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if address is None:
        # Of this process's sys.path Ray forwards two entries only.
        environment = _WORKER_ENVIRONMENT | {"PYTHONPATH": _python_path()}
        ray.init(
            address="local",
            num_cpus=num_cpus,
            object_store_memory=object_store_memory,
            include_dashboard=False,
            runtime_env={"env_vars": environment},
            logging_level=logging.WARNING,
            log_to_driver=False,
        )
    else:
        _join(address)
    if threading.current_thread() is threading.main_thread():
        # Ray's own handler prints a stack, and at a second signal ends the process by SIGABRT.
        signal.signal(signal.SIGTERM, terminated)
    try:
        _silence_ray_data()
        yield cluster_resources()
    finally:
        ray.shutdown()


def in_job() -> bool:
    """Whether this process was started by Ray's job server, in a copy of the sent tree."""
    return "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ


def cluster_resources() -> Resources:
    """Resources of the connected cluster."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    node_cpus = tuple(node.get("CPU", 0.0) for node in nodes)
    return Resources(
        cpus=sum(node_cpus),
        gpus=sum(node.get("GPU", 0.0) for node in nodes),
        nodes=len(nodes),
        node_cpus=node_cpus,
    )


def cause(error: BaseException) -> SimcseError | None:
    """The project's own error inside what Ray raises for a failed task or worker, if any."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop()
        if current is None or id(current) in seen:
            continue
        if isinstance(current, SimcseError) and not hasattr(current, "as_instanceof_cause"):
            # Ray Data writes advice on its own retries behind our one line.
            current.args = (str(current).partition("\n")[0],)
            return current
        seen.add(id(current))
        failures = getattr(current, "worker_failures", {})
        pending += [
            current.__context__,
            current.__cause__,
            getattr(current, "cause", None),
            *failures.values(),
        ]
    return None


def _join(address: str) -> None:
    _probe(address)
    # Inside a job Ray merges the job's runtime_env into ours and refuses two values for one key.
    shipped = {
        "py_modules": [str(folder) for folder in _folders()],
        "env_vars": _WORKER_ENVIRONMENT,
    }
    try:
        ray.init(
            address=address,
            runtime_env=None if in_job() else shipped,
            logging_level=logging.WARNING,
            log_to_driver=False,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise _no_answer(address, error) from None


def _probe(address: str) -> None:
    # Ray itself retries for more than three minutes before it gives up.
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if colon and port.isdecimal():
        try:
            socket.create_connection((host, int(port)), timeout=_PROBE_SECONDS).close()
        except OSError as error:
            raise _no_answer(address, error) from None


def _no_answer(address: str, error: Exception) -> ClusterError:
    reason = str(error).strip().partition("\n")[0]
    return ClusterError(
        f"no Ray cluster answers at {address} ({reason}): start one with `ray start --head`, or "
        "leave the address out for a cluster on this machine"
    )


def _silence_ray_data() -> None:
    # On the terminal only: the files of Ray's session keep everything.
    DataContext.get_current().enable_progress_bars = False
    for handler in logging.getLogger("ray.data").handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setLevel(logging.CRITICAL)


def _set_authentication(*, joins: bool) -> None:
    # Ray 2.59 and later turn tokens on by themselves for a local cluster and write one into the
    # home folder, after which every other client of this machine is refused.
    token = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token")).expanduser()
    has_token = "RAY_AUTH_TOKEN" in os.environ or token.is_file()
    os.environ.setdefault("RAY_AUTH_MODE", "token" if joins and has_token else "disabled")
    if os.environ["RAY_AUTH_MODE"] == "token" and "RAY_AUTH_TOKEN" not in os.environ:
        os.environ.setdefault("RAY_AUTH_TOKEN_PATH", str(token))


def _folders() -> list[Path]:
    """Folders of the project's packages that this process has imported."""
    files = [sys.modules[name].__file__ for name in _PACKAGES if name in sys.modules]
    return [Path(file).parent for file in files if file is not None]


def _python_path() -> str:
    roots = dict.fromkeys(str(folder.parent) for folder in _folders())
    inherited = os.environ.get("PYTHONPATH")
    return os.pathsep.join([*roots, *([inherited] if inherited else [])])
