"""`meshnet logs`: this machine's lines, and another machine's by way of the tracker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from meshnet.cli import logs
from meshnet.cli.cluster import Membership, StateFolder
from meshnet.cli.local import slice_cache
from meshnet.cli.logfiles import _Files, folder_of
from meshnet.cli.machine import Lent, MachineAgent
from meshnet.cli.options import NodeOptions
from meshnet.cli.settings import Settings
from meshnet.cli.slices import LocalSlices
from meshnet.cli.speed import Speed
from meshnet.domain.errors import InvalidArgumentError, NodeNotReadyError
from meshnet.tracker.client import TrackerClient
from meshnet.tracker.logmessages import LogLine
from meshnet.transport.certificates import Role
from meshnet.transport.identity_folder import IdentityFolder
from tests.support.live_tracker import Files, LiveTracker, live_tracker

WITHIN_SECONDS = 20.0
OPTIONS = NodeOptions(1, threads=1, context_length=1, sessions=1)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LOOK_SECONDS", 0.05)


@pytest.fixture
async def tracker(tmp_path: Path) -> AsyncIterator[LiveTracker]:
    async with live_tracker(Files(tmp_path)) as made:
        policy = made.service.observed.policy
        made.service.observed.policy = replace(policy, heartbeat_seconds=0.2)
        yield made


@pytest.fixture
def state(tracker: LiveTracker, tmp_path: Path) -> StateFolder:
    """The first machine's."""
    made = StateFolder(tmp_path / "first")
    folder = made.role(Role.ADMIN.value)
    _, certificate = tracker.service.admit(folder.public_key(), "first", Role.ADMIN)
    folder.keep(certificate, tracker.authority.certificate_pem)
    made.remember(Membership(tracker=tracker.address, cluster="test", name="first"))
    return made


@contextmanager
def log_of(state: Path) -> Iterator[Callable[[str], None]]:
    """Writes lines as a machine's agent does."""
    with closing(_Files(folder_of(state), "agent")) as handler:
        yield lambda text: handler.emit(
            logging.LogRecord("meshnet", logging.INFO, "", 0, text, (), None)
        )


@asynccontextmanager
async def agent_of(tracker: LiveTracker, settings: Settings) -> AsyncIterator[None]:
    """A machine called "desk" that holds nothing."""
    folder = IdentityFolder(settings.state / "node")
    _, certificate = tracker.service.admit(folder.public_key(), "desk", Role.NODE)
    identity = folder.keep(certificate, tracker.authority.certificate_pem)
    slices = LocalSlices({}, slice_cache(settings))
    async with TrackerClient(tracker.address, identity) as client:
        lent = Lent("127.0.0.1", OPTIONS, memory_bytes=1)
        agent = MachineAgent(client, folder, settings, lent, Speed(1e10, ()), slices)
        running = asyncio.create_task(agent.run())
        async with asyncio.timeout(WITHIN_SECONDS):
            while not tracker.service.status().machines[0].machine:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        try:
            yield
        finally:
            running.cancel()
            await asyncio.wait([running])


async def texts(lines: AsyncIterator[LogLine]) -> list[str]:
    return [line.text async for line in lines]


async def test_this_machines_lines_are_there_and_follow(state: StateFolder):
    with log_of(state.root) as say:
        for text in ("one", "two", "three"):
            say(text)
        for own in (None, "first"):
            shown = logs._lines(state, own, 2, follow=False)
            assert await texts(shown) == ["two", "three"]
        following = logs._own(state, 0, follow=True)
        async with asyncio.timeout(WITHIN_SECONDS), aclosing(following) as told:
            coming = asyncio.create_task(anext(told))
            await asyncio.sleep(0.2)
            say("four")
            assert (await coming).text == "four"
            say("five")
            assert (await anext(told)).text == "five"


async def test_another_machines_lines_come_and_follow(
    tracker: LiveTracker, state: StateFolder, tmp_path: Path
):
    settings = Settings(tmp_path / "cache", None, tmp_path / "desk")
    with log_of(settings.state) as say:
        for text in ("one", "two", "three"):
            say(text)
        async with agent_of(tracker, settings), asyncio.timeout(WITHIN_SECONDS):
            assert await texts(logs._lines(state, "desk", 2, follow=False)) == ["two", "three"]
            async with aclosing(logs._others(state, "desk", 1, follow=True)) as told:
                assert (await anext(told)).text == "three"
                say("four")
                say("five")
                assert [(await anext(told)).text for _ in range(2)] == ["four", "five"]


async def test_a_machine_that_is_unknown_or_silent_is_named(
    tracker: LiveTracker, state: StateFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(InvalidArgumentError, match="machine: 'desk' is none of the machines"):
        await texts(logs._lines(state, "desk", 1, follow=False))
    settings = Settings(tmp_path / "cache", None, tmp_path / "desk")
    monkeypatch.setattr(logs, "ANSWER_SECONDS", 0.2)
    async with agent_of(tracker, settings):
        pass
    with pytest.raises(NodeNotReadyError, match="desk sends no lines"):
        await texts(logs._lines(state, "desk", 1, follow=False))
