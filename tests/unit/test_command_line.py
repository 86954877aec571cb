from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pipelines import doctor, train
from support.command_line import CommandLine

COMMANDS = (
    "demo",
    "prepare",
    "train",
    "evaluate",
    "search",
    "whiten",
    "register",
    "promote",
    "rollback",
    "doctor",
)


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_help_lists_every_command(simcse: CommandLine, arguments: tuple[str, ...]) -> None:
    shown = simcse(*arguments)
    assert shown.code == 0
    assert shown.err == ""
    assert [line.split()[1] for line in shown.out.splitlines() if line.startswith("│ ")][:2] == [
        "--debug",
        "--help",
    ]
    for command in COMMANDS:
        assert f"│ {command} " in shown.out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_and_writes_json(simcse: CommandLine, command: str) -> None:
    shown = simcse(command, "--help")
    assert shown.code == 0
    assert shown.err == ""
    assert f"simcse {command}" in shown.out
    assert "--json" in shown.out


def test_help_answers_within_a_second_of_processor_time_and_imports_nothing_heavy() -> None:
    heavy = {"torch", "ray", "mlflow", "transformers", "deepspeed", "numpy", "pyarrow"}
    script = (
        "import sys, time\n"
        "from pipelines.__main__ import main\n"
        "sys.argv = ['simcse', 'train', '--help']\n"
        "assert main() == 0\n"
        f"assert not {heavy} & sys.modules.keys(), {heavy} & sys.modules.keys()\n"
        "assert time.process_time() < 1, time.process_time()\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)


def test_a_checkout_runs_as_a_module_with_the_exit_code_of_the_command(tmp_path: Path) -> None:
    run = [sys.executable, "-m", "pipelines"]
    shown = subprocess.run([*run, "--help"], capture_output=True, text=True, check=True)
    assert "python -m pipelines" in shown.stdout
    refused = subprocess.run(
        [*run, "train", "--config", str(tmp_path / "no.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert refused.stderr == (
        f"error: there is no configuration file {tmp_path / 'no.yaml'}: check the path\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["frobnicate"], "No such command 'frobnicate'"),
        (["trian"], "No such command 'trian'. Did you mean 'train'?"),
        (["train", "--nmae", "x"], "No such option: --nmae (Possible options: --name)"),
        (["search"], "Missing argument 'MODEL'"),
        (["prepare", "a.txt", "--model", "m"], "Missing option '--output'"),
        (["evaluate", "m", "--mode", "train"], "Invalid value for '--mode': "),
        (["prepare", "--max-length", "2"], "Invalid value for '--max-length': "),
        (["prepare", "--max-bad-share", "2"], "Invalid value for '--max-bad-share': "),
    ],
)
def test_wrong_usage_is_one_line_that_leads_to_the_help(
    simcse: CommandLine, arguments: list[str], message: str
) -> None:
    refused = simcse(*arguments)
    assert refused.code == 2
    assert refused.error.startswith(message)
    assert refused.error.endswith(": --help shows the usage")
    assert refused.out == ""


@pytest.mark.parametrize(
    ("failure", "code", "line"),
    [
        (
            RuntimeError("it\nbroke"),
            1,
            "it broke (RuntimeError; --debug shows where)",
        ),
        (KeyError("x"), 1, "'x' (KeyError; --debug shows where)"),
        (AssertionError(), 1, "AssertionError (AssertionError; --debug shows where)"),
        (KeyboardInterrupt(), 3, "stopped; an unfinished run goes on by the same command"),
    ],
)
def test_whatever_goes_wrong_is_one_line_and_an_exit_code(
    simcse: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    failure: BaseException,
    code: int,
    line: str,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(train, "execute", fail)
    config = tmp_path / "run.yaml"
    config.write_text("encoder: {model: m}")
    failed = simcse("train", "--config", config)
    assert failed.code == code
    assert failed.error == line


@pytest.mark.parametrize("arguments", [["--debug", "train"], ["train", "--debug"]])
def test_debug_shows_the_traceback_wherever_it_stands(
    simcse: CommandLine, arguments: list[str]
) -> None:
    failed = simcse(*arguments, "--recipe", "nothing")
    assert failed.code == 2
    assert failed.err.startswith("Traceback (most recent call last):\n")
    assert "in find\n" in failed.err
    assert failed.err.splitlines()[-1].startswith("error: there is no recipe 'nothing'")


def test_a_finding_that_is_broken_ends_with_exit_code_1_and_no_error_line(
    simcse: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(doctor, "_data", lambda _: doctor.Finding("sts data", "broken", "torn"))
    shown = simcse("doctor", "--output", tmp_path / "runs")
    assert (shown.code, shown.err) == (1, "")


@pytest.mark.parametrize("command", ["register", "promote", "rollback"])
def test_a_wrong_json_path_is_found_before_the_work(
    simcse: CommandLine, tmp_path: Path, command: str
) -> None:
    (tmp_path / "file").touch()
    model = ["folder"] if command == "register" else []
    refused = simcse(command, *model, "name", "--json", tmp_path)
    assert refused.code == 2
    assert refused.error == f"--json {tmp_path} is a folder: name a file"
    refused = simcse(command, *model, "name", "--json", tmp_path / "file" / "out.json")
    assert refused.code == 2
    assert refused.error == (
        f"nothing can be written into {tmp_path / 'file'} (File exists): name another folder"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
