"""The process in which libllama follows grammars.

libllama ends its process over a token that a grammar doesn't allow, and some grammars take it any
time or memory: whoever asks for an answer may send one. So this process has bounds on both, and
its loss costs little: the state of a grammar is made anew of the tokens, and the vocabulary, which
takes seconds to load, is held by a first process that forks another one to follow grammars.

It reads requests from its standard input, a socket, and writes an answer for each. Both have four
bytes of length before them; :mod:`meshnet.engine.llamacpp.grammar_frames` says what they hold.
"""

from __future__ import annotations

import codecs
import ctypes
import os
import resource
import signal
import socket
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from meshnet.engine.grammar_text import numbered_tokens
from meshnet.engine.llamacpp import grammar_frames as frames
from meshnet.engine.llamacpp.grammar_frames import Answer
from meshnet.engine.llamacpp.library import LOGGER
from meshnet.engine.llamacpp.log import recent_errors
from meshnet.engine.llamacpp.vocabulary import Vocabulary

LEARN_SECONDS: Final = 1.0
"""Of computing, to compile a grammar."""
QUESTION_SECONDS: Final = 0.1
"""For one question, and for large vocabularies a time for each of their tokens."""
TOKEN_SECONDS: Final = 4e-6
"""What a mask takes for a token of the vocabulary where some 200 things may follow; 20 times less
is usual."""
REMADE_SECONDS: Final = 5e-4
"""More of it for each generated token that a state must be taken over, as after a restart."""
_USUAL: Final = 16
"""More tokens at once mean that a state was lost, which isn't the session's doing."""
MEMORY_BYTES: Final = 256 << 20
"""For all grammars and their states."""
MAX_STATES: Final = 256
"""As many as an engine has sessions at most; one that isn't kept is made anew."""
SESSION_STATES: Final = 4
"""Of one session: a guess that was wrong leaves one behind."""
_MAX_REASON: Final = 200
_STDIN, _STDERR = 0, 2
_START: Final = b"root"
_TOKEN: Final = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
"""``llama_token_data`` of ``llama.h``."""
_HIDDEN: Final = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN


class RefusedError(Exception):
    """What was asked for can't be done; its text is the answer."""


@dataclass(slots=True)
class _State:
    """A grammar after some tokens."""

    sampler: Any
    tokens: list[int] = field(default_factory=list)
    begun: bytes = b""
    """The bytes of a character that isn't complete."""


@dataclass(slots=True)
class _Grammar:
    pristine: Any
    named: frozenset[int]
    """Tokens that may be named by number: control tokens among them count."""


class Follower:
    """Grammars over one vocabulary, each with a number, and their latest states."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self.count = count = vocabulary.n_vocab
        self._pieces = _pieces(vocabulary)
        self._ends = vocabulary.end_of_generation
        self._hidden = frozenset(
            token
            for token in range(count)
            if llama_cpp.llama_vocab_get_attr(vocabulary.handle, token) & _HIDDEN
        ).difference(self._ends)
        self._beginnings = np.array(
            [piece.isascii() or _completes(b"", piece) is not None for piece in self._pieces]
        )
        self._beginnings[list(self._hidden)] = False
        self._going_on = [
            token for token, piece in enumerate(self._pieces) if piece and piece[0] & 0xC0 == 0x80
        ]
        self._all = np.zeros(count, _TOKEN)
        self._all["id"] = np.arange(count)
        self._grammars: dict[int, _Grammar] = {}
        self._states: OrderedDict[tuple[int, int, int], _State] = OrderedDict()
        """By the grammar's number, the session's and one of their own; the latest used is last."""
        self._next = 0

    def learn(self, number: int, text: bytes) -> None:
        """Compile a grammar; raises :class:`RefusedError` with libllama's reason."""
        recent_errors.clear()
        os.ftruncate(_STDERR, 0)
        os.lseek(_STDERR, 0, os.SEEK_SET)
        vocabulary = self._vocabulary.handle
        sampler = llama_cpp.llama_sampler_init_grammar(vocabulary, text, _START)
        if not sampler:
            # Of what its parser finds it tells the standard error, with all that follows the place.
            told = os.pread(_STDERR, 4096, 0).decode(errors="replace").split("\n\n")[0]
            reason = told.partition("error parsing grammar: ")[2] or recent_errors.text()
            raise RefusedError(reason[:_MAX_REASON])
        self._grammars[number] = _Grammar(sampler, numbered_tokens(text.decode()))

    def forget(self, number: int) -> None:
        """Free a grammar and its states."""
        self._free([key for key in self._states if key[0] == number])
        llama_cpp.llama_sampler_free(self._grammars.pop(number).pristine)

    def drop(self, session: int) -> None:
        """Free the states of a session."""
        self._free([key for key in self._states if key[1] == session])

    def _free(self, keys: Sequence[tuple[int, int, int]]) -> None:
        for key in keys:
            llama_cpp.llama_sampler_free(self._states.pop(key).sampler)

    def missing(self, asked: frames.Request) -> int:
        """How many tokens the nearest state must still be taken over."""
        nearest = self._nearest(asked)
        held = 0 if nearest is None else len(self._states[nearest].tokens)
        return max(len(asked.tokens) - held, 0)

    def allows(self, asked: frames.Request) -> bool:
        """Whether the last token may follow those before it.

        Raises :class:`RefusedError` if these don't follow the grammar themselves.
        """
        *tokens, token = asked.tokens
        before = replace(asked, tokens=tokens)
        return self._allows(self._grammars[asked.number], self._state(before), token)

    def mask(self, asked: frames.Request) -> NDArray[np.bool_]:
        """Which tokens may follow, shape (n_vocab,); raises as :meth:`allows`."""
        grammar, state = self._grammars[asked.number], self._state(asked)
        if state.begun:
            going_on = np.zeros(len(self._all), np.bool_)
            going_on[[it for it in self._going_on if self._allows(grammar, state, it)]] = True
            return going_on
        self._all["logit"] = 0.0
        _apply(state.sampler, self._all)
        allowed: NDArray[np.bool_] = (self._all["logit"] == 0.0) & self._beginnings
        for token in grammar.named & self._hidden:
            allowed[token] = self._allows(grammar, state, token)
        return allowed

    def _allows(self, grammar: _Grammar, state: _State, token: int) -> bool:
        if token in self._ends:
            if state.begun:
                return False
        elif _completes(state.begun, self._pieces[token]) is None:
            return False
        if token in self._hidden and token not in grammar.named:
            return False
        one = self._all[token : token + 1].copy()
        one["logit"] = 0.0
        _apply(state.sampler, one)
        return bool(one["logit"][0] == 0.0)

    def _nearest(self, asked: frames.Request) -> tuple[int, int, int] | None:
        """The session's state with the most of the tokens and no others."""
        wanted, longest = list(asked.tokens), -1
        best: tuple[int, int, int] | None = None
        for key, state in self._states.items():
            held = len(state.tokens)
            same = key[:2] == (asked.number, asked.session) and held > longest
            if same and state.tokens == wanted[:held]:
                best, longest = key, held
        return best

    def _state(self, asked: frames.Request) -> _State:
        """The grammar's state after the tokens: the nearest one that is kept goes on to there."""
        grammar, wanted = self._grammars[asked.number], list(asked.tokens)
        best = self._nearest(asked)
        if best is None:
            others = [key for key in self._states if key[1] == asked.session]
            self._free(others[: max(len(others) + 1 - SESSION_STATES, 0)])
            best = (asked.number, asked.session, self._next)
            self._next += 1
            self._states[best] = _State(llama_cpp.llama_sampler_clone(grammar.pristine))
        self._states.move_to_end(best)
        state = self._states[best]
        for place in range(len(state.tokens), len(wanted)):
            self._accept(grammar, state, wanted[place], place)
        self._free(list(self._states)[: max(len(self._states) - MAX_STATES, 0)])
        return state

    def _accept(self, grammar: _Grammar, state: _State, token: int, place: int) -> None:
        # libllama ends the process over a token that isn't allowed.
        known = 0 <= token < len(self._pieces)
        if not known or not self._allows(grammar, state, token):
            raise RefusedError(f"its generated token {place}, {token}, isn't one that it allows")
        llama_cpp.llama_sampler_accept(state.sampler, token)
        state.tokens.append(token)
        state.begun = _completes(state.begun, self._pieces[token]) or b""


def _pieces(vocabulary: Vocabulary) -> list[bytes]:
    """The bytes of all tokens, control tokens by name; there may be hundreds of thousands."""
    room = 256
    buffer = ctypes.create_string_buffer(room)
    handle, to_piece = vocabulary.handle, llama_cpp.llama_token_to_piece
    pieces = []
    for token in range(vocabulary.n_vocab):
        size = to_piece(handle, token, buffer, room, 0, True)  # noqa: FBT003 - a C function
        long = size < 0
        pieces.append(
            vocabulary.piece(token, special=True) if long else ctypes.string_at(buffer, size)
        )
    return pieces


def _apply(sampler: Any, candidates: NDArray[np.void]) -> None:
    kind: Any = llama_cpp.llama_token_data_array
    data = ctypes.cast(candidates.ctypes.data, llama_cpp.llama_token_data_p)
    array = kind(data, len(candidates), -1, False)  # noqa: FBT003 - a C structure
    llama_cpp.llama_sampler_apply(sampler, ctypes.byref(array))


def _completes(begun: bytes, piece: bytes) -> bytes | None:
    """What is incomplete after the piece; None if both together begin no valid UTF-8.

    libllama takes overlong forms and bytes for characters that nobody can read.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    try:
        decoder.decode(begun + piece)
    except UnicodeDecodeError:
        return None
    left = decoder.getstate()[0]
    # Half of a surrogate pair, which the decoder refuses only once it is complete.
    surrogate = left[:1] == b"\xed" and left[1:2] >= b"\xa0"
    return None if surrogate else left


def main() -> None:
    """Serve until the other end closes the socket."""
    # On a terminal it reaches all processes, but generations that run may still come to their end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    link = socket.socket(fileno=os.dup(_STDIN))
    LOGGER.propagate = False
    path = frames.receive(link)
    if path is None:
        return
    follower = Follower(Vocabulary.load(Path(path.decode())))
    count = follower.count.to_bytes(4, "little")
    frames.send(link, Answer(frames.READY, body=count).pack())
    while (ended := _forked(follower, link)) is not None:
        frames.send(link, Answer(frames.GONE, body=bytes([ended])).pack())


def _forked(follower: Follower, link: socket.socket) -> int | None:
    """Serve in a process with bounds; the number of what was its end, None for the link's."""
    process = os.fork()
    if not process:
        code = 1
        try:
            _bound_memory()
            _serve(follower, link)
            code = 0
        finally:
            # The first process alone goes on from here.
            os._exit(code)
    return abs(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])) or None


def _serve(follower: Follower, link: socket.socket) -> None:
    while (request := frames.receive(link)) is not None:
        asked = frames.Request.unpack(request)
        missing, begun = follower.missing(asked), time.process_time_ns()
        seconds = QUESTION_SECONDS + follower.count * TOKEN_SECONDS + missing * REMADE_SECONDS
        # Its signal ends the process, also while libllama computes.
        signal.setitimer(
            signal.ITIMER_PROF, LEARN_SECONDS if asked.kind == frames.LEARN else seconds
        )
        try:
            answer = _answer(follower, asked)
        except RefusedError as refused:
            answer = Answer(frames.REFUSED, body=str(refused).encode(errors="replace"))
        signal.setitimer(signal.ITIMER_PROF, 0)
        if missing <= _USUAL:
            answer = replace(answer, micros=(time.process_time_ns() - begun) // 1000)
        frames.send(link, answer.pack())


def _answer(follower: Follower, asked: frames.Request) -> Answer:
    if asked.kind == frames.LEARN:
        follower.learn(asked.number, asked.text)
    elif asked.kind == frames.FORGET:
        follower.forget(asked.number)
    elif asked.kind == frames.DROP:
        follower.drop(asked.session)
    elif asked.kind == frames.ONE:
        return Answer(frames.YES if follower.allows(asked) else frames.NO)
    else:
        return Answer(frames.MASK, body=np.packbits(follower.mask(asked)).tobytes())
    return Answer(frames.YES)


def _bound_memory() -> None:
    """Of the process's addresses; where it can't be told how many are used, there is no bound."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    used = Path("/proc/self/statm")
    if used.exists():
        pages = int(used.read_text().split()[0])
        limit = pages * resource.getpagesize() + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    main()
