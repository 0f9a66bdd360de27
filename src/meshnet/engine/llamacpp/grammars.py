"""Grammars over a model's vocabulary, followed by libllama in a process of its own.

See :mod:`meshnet.engine.llamacpp.grammar_child` for why. The process starts when it is first
needed. A question that takes it too long, or a session whose questions do so in all, is refused,
and so is every later one about a grammar that was its end.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import numpy as np
from numpy.typing import NDArray

from meshnet.domain.errors import InvalidArgumentError, MeshnetError, ResourceExhaustedError
from meshnet.domain.ids import SessionKey
from meshnet.engine.base import LoadRequest
from meshnet.engine.grammar_text import require_bounded
from meshnet.engine.llamacpp import grammar_frames as frames
from meshnet.engine.llamacpp.context import LlamaContext
from meshnet.engine.llamacpp.grammar_frames import Answer, Request

LOGGER: Final = logging.getLogger(__name__)
START_SECONDS: Final = 60.0
ANSWER_SECONDS: Final = 20.0
"""Much more than the computing time that the process has: others may keep the machine busy."""
END_SECONDS: Final = 5.0
MAX_GRAMMARS: Final = 32
"""Kept compiled."""
MAX_SESSIONS: Final = 512
"""Whose computing time is kept count of."""
MAX_OVERRUN: Final = 64
"""Grammars that are remembered as the end of their process."""
SESSION_SECONDS: Final = 2.0
"""Of computing for a session, and for each generated token a time for each of the vocabulary."""
TOKEN_SECONDS: Final = 1e-6
"""Some three times what it takes to tell of a token of the vocabulary whether it may follow."""
_TOO_SLOW: Final = "following it takes too much computing time"
_TOO_MUCH: Final = "following it takes too much memory, or more than libllama can do"
_COMMAND: Final = (sys.executable, "-m", "meshnet.engine.llamacpp.grammar_child")


class LlamaGrammars:
    """Thread-safe; one question at a time. ``path`` is a GGUF file with the vocabulary.

    Every method raises :class:`InvalidArgumentError` naming ``grammar`` for one that libllama
    refuses or that takes too much time or memory, and :class:`ResourceExhaustedError` if the
    process can't be started or gives no answer in time.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._numbers: OrderedDict[str, int] = OrderedDict()
        self._overrun: OrderedDict[str, str] = OrderedDict()
        """What was wrong with a grammar, by its text."""
        self._sessions: OrderedDict[SessionKey, _Account] = OrderedDict()
        self._next = 0

    def begin(self) -> None:
        """Start the process if nobody uses it, without waiting: soon it will be needed."""
        if self._lock.acquire(blocking=False):
            try:
                if self._child is None:
                    self._child = _Child(self._path)
            except OSError as error:
                # Told to who needs it, if it can't be started then either.
                LOGGER.warning("the process for grammars doesn't start: %s", error)
            finally:
                self._lock.release()

    def check(self, grammar: str) -> None:
        """Raise if the grammar can't be followed, or takes too long at its very beginning."""
        self.all(grammar, ())

    def allowed(
        self, grammar: str, generated: Sequence[int], session: SessionKey | None = None
    ) -> AllowedNext:
        """The tokens that may follow the ``generated`` ones; the session pays for the answer."""
        return AllowedNext(self, grammar, generated, session)

    def one(
        self,
        grammar: str,
        generated: Sequence[int],
        token: int,
        session: SessionKey | None = None,
    ) -> bool:
        """Whether the token may follow."""
        with self._turn():
            answer = self._answer(grammar, frames.ONE, (*generated, token), session)
        return answer.kind == frames.YES

    def all(
        self, grammar: str, generated: Sequence[int], session: SessionKey | None = None
    ) -> NDArray[np.bool_]:
        """Whether each token may follow, shape (n_vocab,)."""
        with self._turn():
            answer = self._answer(grammar, frames.ALL, generated, session)
            count = 0 if self._child is None else self._child.n_vocab
        bits = np.frombuffer(answer.body, np.uint8)
        return np.unpackbits(bits, count=count).view(np.bool_)

    def release(self, session: SessionKey) -> None:
        """Forget a session that has ended, if it asked anything. Never raises."""
        if session not in self._sessions:
            return
        try:
            with self._turn():
                self._forget_session(session)
        except MeshnetError as error:
            LOGGER.warning("the grammar's states of an ended session stay: %s", error)

    def close(self) -> None:
        """End the process; it starts again if it is needed."""
        with self._turn():
            self._drop()

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        if not self._lock.acquire(timeout=START_SECONDS + ANSWER_SECONDS):
            raise ResourceExhaustedError("other grammars keep their process busy; try again later")
        try:
            yield
        finally:
            self._lock.release()

    def _answer(
        self, grammar: str, kind: int, tokens: Sequence[int], session: SessionKey | None
    ) -> Answer:
        if grammar in self._overrun:
            raise InvalidArgumentError("grammar", f"{self._overrun[grammar]}; make it simpler")
        account = self._account(session)
        if account.refused:
            raise InvalidArgumentError("grammar", _TOO_SLOW)
        try:
            answer = self._followed(grammar, kind, tokens, account.number)
        except _GoneError as gone:
            self._overrun[grammar] = str(gone)
            if len(self._overrun) > MAX_OVERRUN:
                self._overrun.popitem(last=False)
            raise InvalidArgumentError("grammar", f"{gone}; make it simpler") from None
        if session is not None and self._child is not None:
            account.spent += answer.micros / 1e6
            each = self._child.n_vocab * TOKEN_SECONDS
            account.refused = account.spent > SESSION_SECONDS + each * len(tokens)
        return answer

    def _followed(self, grammar: str, kind: int, tokens: Sequence[int], session: int) -> Answer:
        """The answer; raises :class:`_GoneError` if the question is the end of the process."""
        alone = len(self._sessions) < 2 and not self._numbers.keys() - {grammar}
        try:
            return self._ask(Request(kind, self._number(grammar), session, tokens=tokens))
        except _GoneError as gone:
            if gone.too_slow or alone:
                raise
        # The memory may have been full of others' states; the next process has none.
        LOGGER.info("the process for grammars has ended; the question is asked again")
        return self._ask(Request(kind, self._number(grammar), session, tokens=tokens))

    def _account(self, session: SessionKey | None) -> _Account:
        if session is None:
            return _Account(0)
        account = self._sessions.get(session)
        if account is None:
            self._next += 1
            account = self._sessions[session] = _Account(self._next)
            if len(self._sessions) > MAX_SESSIONS:
                self._forget_session(next(iter(self._sessions)))
        self._sessions.move_to_end(session)
        return account

    def _forget_session(self, session: SessionKey) -> None:
        account = self._sessions.pop(session)
        if self._child is not None and self._child.n_vocab:
            with contextlib.suppress(_GoneError):  # Its states are gone as well.
                self._ask(Request(frames.DROP, 0, account.number))

    def _number(self, grammar: str) -> int:
        """The grammar's number in the process, which knows it from here on."""
        number = self._numbers.get(grammar)
        if number is not None and self._child is not None:
            self._numbers.move_to_end(grammar)
            return number
        require_bounded(grammar)
        self._next += 1
        self._ask(Request(frames.LEARN, self._next, text=grammar.encode()))
        self._numbers[grammar] = self._next
        if len(self._numbers) > MAX_GRAMMARS:
            self._ask(Request(frames.FORGET, self._numbers.popitem(last=False)[1]))
        return self._next

    def _ask(self, request: Request) -> Answer:
        child = self._ready()
        try:
            answer = child.ask(request)
        except TimeoutError:
            self._drop()
            raise ResourceExhaustedError(
                f"the grammar's process gave no answer within {ANSWER_SECONDS:g} s; try again later"
            ) from None
        except _GoneError as gone:
            if gone.wholly:
                self._drop()
            self._numbers.clear()
            raise
        if answer.kind == frames.REFUSED:
            reason = answer.body.decode(errors="replace")
            raise InvalidArgumentError("grammar", f"it can't be followed: {reason}")
        return answer

    def _ready(self) -> _Child:
        try:
            if self._child is None:
                self._child = _Child(self._path)
            self._child.require_ready()
        except OSError as error:
            self._drop()
            raise ResourceExhaustedError(
                f"the process for grammars doesn't start: {error}"
            ) from error
        return self._child

    def _drop(self) -> None:
        child, self._child = self._child, None
        self._numbers.clear()
        if child is not None:
            child.end()


def grammars_of(context: LlamaContext, request: LoadRequest) -> LlamaGrammars | None:
    """For a shard that chooses tokens and whose file says what their texts are."""
    known = context.metadata("tokenizer.ggml.model") not in (None, "none", "no_vocab")
    if context.taps or not known or request.model_path is None:
        return None
    return LlamaGrammars(request.model_path)


class AllowedNext:
    """What a grammar allows after some tokens; see ``meshnet.engine.sampling.Allowed``."""

    def __init__(
        self,
        grammars: LlamaGrammars,
        grammar: str,
        generated: Sequence[int],
        session: SessionKey | None,
    ) -> None:
        self._grammars = grammars
        self._grammar = grammar
        self._generated = generated
        self._session = session

    def one(self, token_id: int) -> bool:
        """Whether it allows the token."""
        return self._grammars.one(self._grammar, self._generated, token_id, self._session)

    def all(self) -> NDArray[np.bool_]:
        """Whether it allows each token, shape (n_vocab,)."""
        return self._grammars.all(self._grammar, self._generated, self._session)


@dataclass(slots=True)
class _Account:
    """A session's number in the process, and the computing time that it took, in seconds."""

    number: int
    spent: float = 0.0
    refused: bool = False


class _GoneError(Exception):
    """The process has ended in the middle of a question.

    ``wholly`` says that there is no other one that goes on.
    """

    def __init__(self, *, too_slow: bool = False, wholly: bool = False) -> None:
        super().__init__(_TOO_SLOW if too_slow else _TOO_MUCH)
        self.too_slow = too_slow
        self.wholly = wholly


class _Child:
    """The process and the socket to it."""

    def __init__(self, path: Path) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end()
        self._link, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                _COMMAND, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=self._errors
            )
        self._link.settimeout(START_SECONDS)
        try:
            frames.send(self._link, str(path).encode())
        except OSError:
            self.end()
            raise
        self.n_vocab = 0
        """Tokens of the vocabulary; 0 until the process is ready."""

    def require_ready(self) -> None:
        """Wait until the process has its vocabulary; raises ``OSError`` if that fails."""
        if self.n_vocab:
            return
        told_ready = frames.receive(self._link)
        if told_ready is None:
            self._errors.seek(0)
            told = self._errors.read()[-400:].decode(errors="replace").strip()
            raise OSError(told)
        self.n_vocab = int.from_bytes(Answer.unpack(told_ready).body, "little")
        self._link.settimeout(ANSWER_SECONDS)

    def ask(self, request: Request) -> Answer:
        """Raises ``TimeoutError``, and :class:`_GoneError` if the question is the process's end."""
        try:
            frames.send(self._link, request.pack())
            told = frames.receive(self._link)
        except TimeoutError:
            raise
        except OSError:
            told = None
        if told is None:
            raise _GoneError(wholly=True)
        answer = Answer.unpack(told)
        if answer.kind == frames.GONE:
            raise _GoneError(too_slow=answer.body[0] == signal.SIGPROF)
        return answer

    def end(self) -> None:
        """End the process, whatever it does. Never raises."""
        self._link.close()
        self._process.kill()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            # Those who wait for their tokens have nothing to do with it.
            LOGGER.warning("the process for grammars, %d, takes long to end", self._process.pid)
        self._errors.close()
