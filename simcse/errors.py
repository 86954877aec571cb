"""Errors a user can act on: one line that names the thing and the way out.

The command line prints the message without a traceback and exits with `exit_code`.
"""


class SimcseError(Exception):
    """Work that could not be done; the message says what and how to go on."""

    exit_code = 1


class UsageError(SimcseError, ValueError):
    """A command, setting or path that is wrong before any work begins."""

    exit_code = 2


class DataError(SimcseError, ValueError):
    """Content of a file that cannot be used: the message names file and row."""


class ModelError(SimcseError, ValueError):
    """A model folder or checkpoint that cannot be loaded as asked."""

    exit_code = 2
