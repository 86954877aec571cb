"""Errors of the platform, beside those of `simcse.errors`."""

from simcse.errors import SimcseError


class ClusterError(SimcseError):
    """Machines that are not there, or not enough of them."""


class TrainingError(SimcseError):
    """A run that cannot go on, such as one whose gradient is no longer finite."""


class PassingError(SimcseError):
    """What another attempt of the workers may mend."""


class StorageError(PassingError):
    """A file system that fails for a moment, such as one that a network stands between."""


class StreamError(PassingError):
    """Batches that do not arrive as planned, or not in time."""


class StalledError(PassingError):
    """Ranks that waited for each other too long."""


class CheckpointError(SimcseError):
    """A training checkpoint that cannot be read or written."""


class TrackingError(SimcseError):
    """A tracking server that does not answer, or refuses."""


class UnansweredError(TrackingError):
    """A tracking server that does not answer, and may come back."""


class RegistryError(SimcseError):
    """A registry operation whose conditions do not hold."""
