"""Options that don't go together are refused by name, before anything is read or started."""

from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from meshnet.cli.main import app
from meshnet.cli.options import NodeOptions
from meshnet.domain.errors import InvalidArgumentError

OF_NODES = (
    *("--nodes=3", "--optimise=latency", "--threads=1", "--ctx=4096", "--gpu-layers=0"),
    *("--flash-attn", "--cache-type-k=f16", "--cache-type-v=f16", "--mlock", "--no-mmap"),
)
OF_CACHES = ("--cache-size=1GiB",)
OF_SERVED_NODES = ("--sessions=8", "--max-gap-ms=0", "--no-prefix-cache")


class Terminal:
    """Standard input of somebody who types."""

    def isatty(self) -> bool:
        return True


def refusal(*arguments: str) -> InvalidArgumentError:
    error = CliRunner().invoke(app, arguments).exception
    assert isinstance(error, InvalidArgumentError), error
    return error


@pytest.mark.parametrize(
    ("command", "option"),
    [("run", option) for option in (*OF_NODES, *OF_CACHES)]
    + [("serve", option) for option in (*OF_NODES, *OF_SERVED_NODES, *OF_CACHES)],
)
def test_each_option_of_nodes_is_refused_with_a_chain_even_at_its_default(command, option):
    error = refusal(command, "model.gguf", "--chain", "127.0.0.1:1", option)
    assert error.message.startswith("chain: ")
    assert error.message.endswith(f"leave out {option.partition('=')[0]}")


def test_every_option_of_nodes_is_tried_above():
    # Each sets one field; the one that is left says which architectures may be tried.
    assert len(OF_NODES) + len(OF_SERVED_NODES) + 1 == len(NodeOptions.__dataclass_fields__)


@pytest.mark.parametrize("option", ["--boundary=q8_0", "--layers=0:1", "--threads=1"])
def test_inspect_refuses_what_changes_the_fingerprint_alone(option):
    error = refusal("inspect", "model.gguf", option)
    assert error.message.startswith("fingerprint: ")
    assert option.partition("=")[0] in error.message


@pytest.mark.parametrize("option", ["--json", "--raw"])
def test_a_chat_is_no_answer_to_options_of_one_prompt(option, monkeypatch):
    # The runner puts a stream of its own in the place of standard input itself.
    monkeypatch.setattr("meshnet.cli.run.sys", SimpleNamespace(stdin=Terminal()))
    error = refusal("run", "model.gguf", option)
    assert error.message.startswith(f"PROMPT: {option} needs one")


@pytest.mark.parametrize("command", ["serve", "node", "plan", "inspect"])
def test_more_sessions_than_libllama_keeps_are_refused_as_they_are_read(command):
    result = CliRunner().invoke(app, [command, "model.gguf", "--sessions", "257"])
    assert result.exit_code == 2
    assert "--sessions" in result.output
    assert "less than or equal to 256" in result.output
