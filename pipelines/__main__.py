"""The command line: `simcse COMMAND`, or `python -m pipelines COMMAND` from a checkout.

Exit codes: 0 done, 1 the work failed, 2 wrong usage or configuration, 3 stopped or lost.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
from typing import Annotated

import typer
from typer.exceptions import TyperException

from pipelines.demo import demo
from pipelines.doctor import doctor
from pipelines.evaluate import evaluate
from pipelines.prepare import prepare
from pipelines.registry import history, promote, register, rollback
from pipelines.report import report
from pipelines.reproduce import reproduce
from pipelines.search import search
from pipelines.train import train
from pipelines.tune import tune
from pipelines.whiten import whiten
from simcse.errors import SimcseError, UsageError

STOPPED = 3
_INTERRUPTED = 130
"""What typer makes of Ctrl-C."""

app = typer.Typer(
    name="simcse",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    demo,
    prepare,
    train,
    tune,
    reproduce,
    evaluate,
    report,
    search,
    whiten,
    register,
    promote,
    rollback,
    history,
    doctor,
):
    app.command()(command)


@app.callback()
def options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the whole error; may stand anywhere.")
    ] = False,
) -> None:
    """SimCSE sentence encoders, trained on Ray and DeepSpeed, recorded in MLflow."""


def main() -> int:
    """Run the command of `sys.argv`; a mistake of the user's is one line, never a traceback."""
    # MLflow reads this when it is imported.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    # `ray job stop` and schedulers end a command by SIGTERM, which then ends it as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        code = int(app(arguments or ["--help"], standalone_mode=False) or 0)
    except TyperException as error:
        wrong = error.format_message().rstrip(".")
        return _fail(UsageError(f"{wrong}: --help shows the usage"), error.exit_code, debug=debug)
    except SimcseError as error:
        return _fail(error, error.exit_code, debug=debug)
    except Exception as error:
        return _fail(error, 1, debug=debug)
    if code == _INTERRUPTED:
        typer.echo("error: stopped; an unfinished run goes on by the same command", err=True)
        return STOPPED
    return code


def _fail(error: Exception, code: int, *, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    known = isinstance(error, SimcseError)
    text = " ".join(str(error).split()) or type(error).__name__
    hint = "" if known or debug else f" ({type(error).__name__}; --debug shows where)"
    typer.echo(f"error: {text}{hint}", err=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
