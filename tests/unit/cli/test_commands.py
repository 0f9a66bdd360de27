"""The list of commands says of each what the command's own help begins with."""

import subprocess
import sys
from importlib.metadata import version

import pytest
from typer.testing import CliRunner

from meshnet.cli.commands import COMMANDS, load
from meshnet.cli.main import app


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_listed_with_the_first_line_of_its_own_help(name):
    help_text = load(name).help
    assert help_text is not None
    assert " ".join(help_text.split("\n\n")[0].split()) == COMMANDS[name].help


def test_the_help_lists_every_command_without_importing_one():
    code = (
        "import sys; from typer.testing import CliRunner; from meshnet.cli.main import app\n"
        "result = CliRunner().invoke(app, ['--help'])\n"
        "assert result.exit_code == 0, result.output\n"
        f"assert all(name in result.output for name in {list(COMMANDS)})\n"
        "heavy = {'sqlalchemy', 'grpc', 'fastapi', 'llama_cpp', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_group_of_commands_and_a_wrong_name():
    runner = CliRunner()
    assert "create" in runner.invoke(app, ["keys", "--help"]).output
    wrong = runner.invoke(app, ["serv"])
    assert wrong.exit_code == 2
    assert "serve" in wrong.output


def test_the_version_is_told():
    told = CliRunner().invoke(app, ["--version"])
    assert (told.exit_code, told.output) == (0, f"meshnet {version('meshnet')}\n")
