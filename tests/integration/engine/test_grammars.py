"""Grammars in their process: which tokens they allow, and what hostile ones do."""

import codecs
import itertools
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meshnet.domain.errors import InvalidArgumentError, ResourceExhaustedError
from meshnet.domain.ids import RouteSessionId, SessionKey
from meshnet.domain.sampling import SamplingParams
from meshnet.engine.llamacpp import grammar_frames as frames
from meshnet.engine.llamacpp import grammars as module
from meshnet.engine.llamacpp.engine import LlamaShardEngine
from meshnet.engine.llamacpp.grammar_child import SESSION_STATES, Follower
from meshnet.engine.llamacpp.grammar_frames import Request
from meshnet.engine.llamacpp.grammars import LlamaGrammars
from meshnet.engine.llamacpp.vocabulary import Vocabulary
from meshnet.engine.sampling import sample
from tests.support.tiny_gguf import END_OF_TEXT, IM_END, IM_START, VOCABULARY, build

LIST = 'root ::= "[" item ( "," item )* "]"\nitem ::= "hello" | "he" | [0-9]+'
TEXT = 'root ::= "\\"" [^"\\\\]* "\\""'
DEEP = "root ::= " + "(" * 90_000 + '"a"' + ")" * 90_000
DOUBLED = "\n".join(f"r{i} ::= r{i + 1} | r{i + 1}" for i in range(40)) + '\nr40 ::= "a"'
SLOW_AT_FIRST = f"root ::= {'x ' * 100}\nx ::= [a-n]?"
"""There are millions of ways to take a part of "hello", and none to take all of it."""
HOSTILE = {
    "an open text": 'root ::= "a',
    "no root": 'other ::= "a"',
    "an undefined rule": "root ::= other",
    "left recursion": 'root ::= root "a" | "b"',
    "left recursion behind nothing": 'root ::= a root "y" | "x"\na ::= b\nb ::= | "q"',
    "parentheses in parentheses": DEEP,
    "many repetitions": 'root ::= "a"{0,100000}',
    "a number without end": 'root ::= "a"{99999999999999999999999}',
    "repetitions of repetitions": 'root ::= (("a"{0,2000}){0,2000}){0,2000}',
    "two ways at each of many steps": f"root ::= r0\n{DOUBLED}",
    "a chain of rules that ends nowhere": "root ::= r0\n"
    + "\n".join(f"r{i} ::= r{i + 1}" for i in range(14_000)),
    "an unknown token": "root ::= <nobody>",
    "an unknown escape": 'root ::= "\\q"',
    "the end of a C string": 'root ::= "a\0"',
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return build(tmp_path / "tiny.gguf")


@pytest.fixture
def grammars(path: Path) -> Iterator[LlamaGrammars]:
    made = LlamaGrammars(path)
    yield made
    made.close()


def tokens(allowed: np.ndarray) -> set[int]:
    return set(map(int, np.flatnonzero(allowed)))


def test_what_is_allowed_begins_the_rest_of_a_text(grammars):
    hello = VOCABULARY - 4
    assert tokens(grammars.all(LIST, [])) == {ord("[")}
    he = next(iter(tokens(grammars.all(LIST, [ord("[")])) - {ord("h"), hello, *b"0123456789"}))
    assert tokens(grammars.all(LIST, [ord("["), he])) == {*b",l]"} | {
        it for it in range(256, VOCABULARY) if it in tokens(grammars.all(LIST, [ord("["), he]))
    }
    assert tokens(grammars.all(LIST, list(b"[1]"))) == {IM_END, END_OF_TEXT}


def test_one_token_is_allowed_as_it_is_among_all(grammars):
    for made in ([], list(b"["), list(b"[12,"), list(b"[1]")):
        allowed = grammars.all(LIST, made)
        assert allowed.shape == (VOCABULARY,)
        single = [grammars.one(LIST, made, token) for token in range(VOCABULARY)]
        assert single == allowed.tolist()


def test_the_answer_depends_on_the_tokens_alone(grammars):
    """In whatever order: forward, back, aside, of two grammars, of more states than are kept."""
    walks = [list(f"[{n},he,{n}".encode()) for n in range(90)]
    asked = [(LIST, walk[:length]) for walk in walks for length in (0, 1, 3, len(walk))]
    asked += [(TEXT, list(b'"' + bytes(walk))) for walk in walks[:10]]
    random.Random(5).shuffle(asked)
    for number, (grammar, made) in enumerate(asked):
        # The same grammar under another name has no state yet.
        fresh = f"{grammar}\n# {number}"
        assert tokens(grammars.all(grammar, made)) == tokens(grammars.all(fresh, made))


def test_a_greedy_choice_is_that_among_all_allowed(grammars):
    random_logits = np.random.default_rng(3)
    for made in ([], list(b"["), list(b"[1"), list(b"[he")):
        for _ in range(20):
            logits = random_logits.standard_normal(VOCABULARY).astype(np.float32)
            logits[list(b"[1,")] += random_logits.integers(0, 4)
            params = SamplingParams(temperature=0.0, logit_bias={ord("]"): 1.0}, logprobs=True)
            quick = sample(logits, made, params, 9, grammars.allowed(LIST, made))
            whole = sample(logits, made, params, 9, _Whole(grammars.all(LIST, made)))
            assert quick == whole


class _Whole:
    """Tells nothing of one token, so that all must be asked for."""

    def __init__(self, allowed: np.ndarray) -> None:
        self._allowed = allowed

    def one(self, token_id: int) -> bool:
        return False

    def all(self) -> np.ndarray:
        return self._allowed


def test_characters_stay_whole(grammars):
    """Byte tokens make no text that nobody can read, and no end comes within a character."""
    grammar = "root ::= [^a]*"
    made: list[int] = []
    pick = random.Random(7)
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    for _ in range(400):
        allowed = tokens(grammars.all(grammar, made))
        begun = decoder.getstate()[0]
        assert (IM_END in allowed) is not bool(begun)
        high = [token for token in allowed if 128 <= token < 256]
        made.append(pick.choice(high))
        decoder.decode(bytes(made[-1:]))
    assert not {0xC0, 0xC1, *range(0xF5, 0x100)} & tokens(grammars.all(grammar, made[:0]))


def test_control_tokens_are_no_text_but_can_be_named(grammars):
    assert IM_START not in tokens(grammars.all(TEXT, list(b'"')))
    assert IM_START not in tokens(grammars.all('root ::= "<|im_start|>"', []))
    named = f'root ::= <[{IM_START}]> "x"'
    assert tokens(grammars.all(named, [])) == {IM_START}
    assert tokens(grammars.all(named, [IM_START])) == {ord("x")}


def test_tokens_that_the_grammar_doesnt_allow_are_refused_and_end_nothing(grammars):
    grammars.check(LIST)
    child = grammars._child
    for made in ([ord("x")], [ord("["), IM_END], [VOCABULARY + 5], [-1]):
        with pytest.raises(InvalidArgumentError, match="allows"):
            grammars.all(LIST, made)
    assert grammars._child is child


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_is_refused_by_name_and_others_go_on(name, grammars):
    with pytest.raises(InvalidArgumentError) as refused:
        grammars.check(HOSTILE[name])
    assert refused.value.details["field"] == "grammar"
    assert len(refused.value.message) < 400
    assert grammars.one('root ::= "a"', [], ord("a"))


def test_states_without_end_are_refused(grammars):
    grammar = 'root ::= "a" root x | "a" root y | "b"\nx ::= "c"\ny ::= "d"'
    with pytest.raises(InvalidArgumentError, match=r"computing time|memory"):
        for length in itertools.count():
            grammars.all(grammar, [ord("a")] * length)
    with pytest.raises(InvalidArgumentError, match="simpler"):
        grammars.one(grammar, [], ord("a"))
    assert grammars.one(LIST, [], ord("["))


def test_a_grammar_that_overran_stalls_nobody_again(grammars):
    """It is refused at its beginning, and again without a question; the vocabulary stays loaded."""
    grammars.check(LIST)
    process = grammars._child._process
    with pytest.raises(InvalidArgumentError, match="computing time"):
        grammars.check(SLOW_AT_FIRST)
    started = time.monotonic()
    assert grammars.one(LIST, list(b"[1"), ord("]"))
    for _ in range(100):
        with pytest.raises(InvalidArgumentError, match="computing time"):
            grammars.check(SLOW_AT_FIRST)
    assert time.monotonic() - started < 1
    assert grammars._child._process is process


def test_a_session_has_so_much_computing_time_in_all(grammars, monkeypatch):
    monkeypatch.setattr(module, "SESSION_SECONDS", 0.001)
    greedy, other = SessionKey(RouteSessionId("greedy"), 1), SessionKey(RouteSessionId("other"), 1)
    with pytest.raises(InvalidArgumentError, match="computing time"):
        for _ in itertools.repeat(None, 2000):
            grammars.all(LIST, [], greedy)
    with pytest.raises(InvalidArgumentError, match="computing time"):
        grammars.one(LIST, [ord("[")], ord("1"), greedy)
    assert grammars.one(LIST, [ord("[")], ord("1"), other)
    grammars.release(greedy)
    assert grammars.one(LIST, [ord("[")], ord("1"), greedy)


def test_memory_that_others_filled_is_no_reason_to_refuse(grammars, monkeypatch):
    grammars.check(TEXT)
    asked = []

    def once_gone(child, request):
        asked.append(request)
        if len(asked) == 2:
            raise module._GoneError(wholly=True)
        return ask(child, request)

    ask = module._Child.ask
    monkeypatch.setattr(module._Child, "ask", once_gone)
    assert grammars.one(LIST, [ord("[")], ord("1"))
    assert len(asked) == 4


def test_a_process_that_takes_long_to_end_fails_nobody(grammars, monkeypatch, caplog):
    grammars.check(LIST)
    process = grammars._child._process
    with monkeypatch.context() as patch:
        patch.setattr(module, "END_SECONDS", 0.0)
        patch.setattr(process, "kill", lambda: None)
        grammars.close()
    assert "takes long to end" in caplog.text
    process.kill()
    process.wait(5)


def test_the_states_of_a_session_are_few_and_end_with_it(path):
    with Vocabulary.load(path) as vocabulary:
        follower = Follower(vocabulary)
        follower.learn(1, LIST.encode())
        aside = Request(frames.ALL, 1, session=7, tokens=list(b"[29"))
        for number in range(10, 30):
            other = replace(aside, tokens=list(f"[{number}".encode()))
            assert follower.mask(other)[ord("]")]
        assert follower.missing(aside) == 0
        first = replace(aside, tokens=list(b"[10"))
        assert follower.missing(first) == 3
        assert len(follower._states) == SESSION_STATES
        follower.mask(replace(aside, session=8))
        follower.drop(7)
        assert [key[1] for key in follower._states] == [8]


def test_more_grammars_than_are_kept(grammars):
    texts = [f'root ::= "{chr(97 + n % 26)}{n}"' for n in range(module.MAX_GRAMMARS + 8)]
    for _ in range(2):
        for text in texts:
            assert tokens(grammars.all(text, [])) == {ord(text[10])}


def test_a_process_that_cant_start_is_told(tmp_path):
    garbage = tmp_path / "garbage.gguf"
    garbage.write_bytes(b"GGUF but not really")
    with pytest.raises(ResourceExhaustedError, match="garbage"):
        LlamaGrammars(garbage).check(LIST)


def test_a_process_that_says_nothing_is_given_up(grammars, monkeypatch):
    grammars.check(LIST)
    grammars._child._link.settimeout(0.05)
    slow = 'root ::= "a" root x | "a" root y | "b"\nx ::= "c"\ny ::= "d"'
    with pytest.raises(ResourceExhaustedError, match="no answer"):
        grammars.all(slow, [ord("a")] * 18)
    assert grammars.one(LIST, [], ord("["))


def test_a_process_that_has_begun_is_used(grammars):
    grammars.begin()
    child = grammars._child
    grammars.begin()
    assert grammars.one(LIST, [], ord("["))
    assert grammars._child is child


def test_the_process_ends_with_the_engine_s_file(path):
    made = LlamaGrammars(path)
    made.check(LIST)
    assert made._child is not None
    process = made._child._process
    made.close()
    assert process.poll() is not None
    with Vocabulary.load(path) as vocabulary:
        assert vocabulary.n_vocab == VOCABULARY


def test_an_engine_frees_the_states_of_a_session_that_ends(path):
    engine, key = LlamaShardEngine(), SessionKey(RouteSessionId("ended"), 1)
    engine._grammars = LlamaGrammars(path)
    try:
        for end in (engine.release, engine.cancel):
            assert engine._grammars.one(LIST, [], ord("["), key)
            end(key)
            assert not engine._grammars._sessions
    finally:
        engine.close()
