"""Vocabularies through libllama: tiny ones made here, the two real ones, and broken ones."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from gguf import GGUFWriter, TokenType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshnet.domain.errors import InternalError, InvalidArgumentError, ModelFileError
from meshnet.engine.llamacpp.vocabulary import MAX_TEXT_BYTES, Vocabulary
from meshnet.engine.tokenizer import Tokenizer
from tests.support.tiny_gguf import (
    CHAT_TEMPLATE,
    END_OF_TEXT,
    IM_END,
    IM_START,
    VOCABULARY,
    build,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
LONG_TOKEN = "long" * 50
DEEP_CALL = """
import sys
from pathlib import Path
from meshnet.engine.llamacpp.vocabulary import Vocabulary
with Vocabulary.load(Path(sys.argv[1])) as vocabulary:
    print(len(vocabulary.tokenize("a" * 200_000, add_special=False, parse_special=False)))
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vocabulary]:
    with Vocabulary.load(build(tmp_path_factory.mktemp("tiny") / "tiny.gguf")) as vocabulary:
        yield vocabulary


def write_vocabulary(
    path: Path,
    model: str = "llama",
    *,
    tokens: list[str] | None = None,
    pre: str = "default",
    flags: dict[str, bool] | None = None,
    bos: int | None = 1,
) -> Path:
    """A GGUF file of a vocabulary alone: three control tokens, and bytes unless told otherwise."""
    control = ["<unk>", "<s>", "</s>"]
    spelled = [f"<0x{byte:02X}>" for byte in range(256)] if tokens is None else tokens
    kinds = [TokenType.CONTROL] * 3
    kinds += [TokenType.BYTE if one.startswith("<0x") else TokenType.NORMAL for one in spelled]
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([*control, *spelled])
    writer.add_token_scores([0.0] * len(kinds))
    writer.add_token_types(kinds)
    if model == "gpt2":
        writer.add_token_merges(["a a"])
    if bos is not None:
        writer.add_bos_token_id(bos)
    for name, value in (flags or {}).items():
        writer.add_bool(f"tokenizer.ggml.{name}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_what_a_model_says_about_its_vocabulary(tiny: Vocabulary) -> None:
    tokenizer: Tokenizer = tiny
    assert tokenizer.n_vocab == VOCABULARY
    assert (tiny.bos_id, tiny.eos_id) == (END_OF_TEXT, IM_END)
    assert tokenizer.end_of_generation == {END_OF_TEXT, IM_END}
    assert tokenizer.chat_template == CHAT_TEMPLATE
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|endoftext|>", "<|im_end|>")
    assert tiny.adds_bos is False
    assert tiny.context_length == 256


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXT, add_special=st.booleans())
def test_any_text_comes_back_from_its_tokens(
    tiny: Vocabulary, text: str, add_special: bool
) -> None:
    tokens = tiny.tokenize(text, add_special=add_special, parse_special=False)
    assert b"".join(tiny.piece(token, special=True) for token in tokens) == text.encode()


def test_control_tokens_are_read_and_shown_only_where_asked_for(tiny: Vocabulary) -> None:
    text = "<|im_start|>hello<|im_end|>"
    read = tiny.tokenize(text, add_special=False, parse_special=True)
    assert (read[0], read[-1]) == (IM_START, IM_END)
    assert IM_START not in tiny.tokenize(text, add_special=False, parse_special=False)
    assert b"".join(tiny.piece(token, special=True) for token in read) == text.encode()
    assert b"".join(tiny.piece(token, special=False) for token in read) == b"hello"
    assert tiny.token_text(IM_START) == "<|im_start|>"


def test_a_vocabulary_may_begin_and_end_every_text(tmp_path: Path) -> None:
    path = write_vocabulary(tmp_path / "v.gguf", flags={"add_eos_token": True})
    with Vocabulary.load(path) as vocabulary:
        assert vocabulary.adds_bos
        assert vocabulary.tokenize("", add_special=True, parse_special=False) == (1, 2)
        assert vocabulary.tokenize("", add_special=False, parse_special=False) == ()
        assert vocabulary.name == "v"
        assert vocabulary.chat_template is None


def test_a_token_longer_than_any_buffer_comes_out_whole(tmp_path: Path) -> None:
    tokens = [LONG_TOKEN, *(f"<0x{byte:02X}>" for byte in range(256))]
    with Vocabulary.load(write_vocabulary(tmp_path / "v.gguf", tokens=tokens)) as vocabulary:
        assert vocabulary.piece(3, special=False) == LONG_TOKEN.encode()


def test_a_token_outside_the_vocabulary_is_refused(tiny: Vocabulary) -> None:
    for token in (-1, VOCABULARY, 2**40):
        with pytest.raises(InvalidArgumentError, match=f"no token {token}, only 0 to"):
            tiny.piece(token, special=False)
        with pytest.raises(InvalidArgumentError, match=f"no token {token}, only 0 to"):
            tiny.token_text(token)


def test_text_that_cant_be_tokenised_is_refused(tiny: Vocabulary) -> None:
    with pytest.raises(InvalidArgumentError, match="half of a surrogate pair"):
        tiny.tokenize("\ud800", add_special=False, parse_special=False)
    with pytest.raises(InvalidArgumentError, match=f"text: it has {MAX_TEXT_BYTES + 1} bytes"):
        tiny.tokenize("a" * (MAX_TEXT_BYTES + 1), add_special=False, parse_special=False)


@pytest.mark.parametrize("pre", ["deepseek-llm", "gpt-4o", "tekken"])
def test_a_long_run_of_one_kind_of_character_doesnt_overflow_the_stack(
    tmp_path: Path, pre: str
) -> None:
    # In a process of its own, since an overflow ends it.
    path = write_vocabulary(tmp_path / "v.gguf", "gpt2", tokens=["a"], pre=pre)
    done = subprocess.run(
        [sys.executable, "-c", DEEP_CALL, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "200000\n"), done.stderr


def test_many_threads_get_the_same_tokens(tiny: Vocabulary) -> None:
    texts = [f"hello the {number} world " * 400 for number in range(8)]

    def there_and_back(text: str) -> bool:
        tokens = tiny.tokenize(text, add_special=False, parse_special=True)
        return b"".join(tiny.piece(token, special=False) for token in tokens) == text.encode()

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(there_and_back, texts * 8))


def test_a_closed_vocabulary_raises_instead_of_using_freed_memory(tmp_path: Path) -> None:
    vocabulary = Vocabulary.load(write_vocabulary(tmp_path / "v.gguf"))
    known = vocabulary.piece(3, special=False)
    vocabulary.close()
    vocabulary.close()
    assert vocabulary.piece(3, special=False) == known
    with pytest.raises(InternalError, match="closed"):
        vocabulary.piece(4, special=False)
    with pytest.raises(InternalError, match="closed"):
        vocabulary.tokenize("a", add_special=False, parse_special=False)


def test_a_file_that_isnt_a_vocabulary_says_why(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="isn't a file"):
        Vocabulary.load(tmp_path)
    garbage = tmp_path / "garbage.gguf"
    garbage.write_bytes(b"GGUF" + b"\xff" * 60)
    with pytest.raises(ModelFileError, match=r"can't load the vocabulary of .*garbage"):
        Vocabulary.load(garbage)
    unknown = write_vocabulary(tmp_path / "u.gguf", "nonsense")
    with pytest.raises(ModelFileError, match="unknown tokenizer: 'nonsense'"):
        Vocabulary.load(unknown)


def test_a_slice_without_a_vocabulary_is_refused(tmp_path: Path) -> None:
    path = write_vocabulary(tmp_path / "v.gguf", "none")
    with pytest.raises(ModelFileError, match="has no vocabulary: it is a slice"):
        Vocabulary.load(path)


def test_what_libllama_would_end_the_process_over_is_refused(tmp_path: Path) -> None:
    # A special token out of range counts as absent, and adding an absent one is asserted against.
    flags = {"add_bos_token": True}
    path = write_vocabulary(tmp_path / "a.gguf", "gpt2", tokens=["a"], flags=flags, bos=None)
    with pytest.raises(ModelFileError, match="add_bos_token asks for a token"):
        Vocabulary.load(path)
    lacking = [f"<0x{byte:02X}>" for byte in range(256) if byte != 0xC3]
    path = write_vocabulary(tmp_path / "b.gguf", tokens=lacking)
    with pytest.raises(ModelFileError, match="no token for byte 0xC3"):
        Vocabulary.load(path)


@pytest.mark.model
def test_the_vocabulary_of_smollm2(smollm2_path: Path) -> None:
    with Vocabulary.load(smollm2_path) as vocabulary:
        assert vocabulary.n_vocab == 49152
        assert vocabulary.context_length == 8192
        assert (vocabulary.bos_token, vocabulary.eos_token) == ("<|im_start|>", "<|im_end|>")
        ending = {vocabulary.token_text(token) for token in vocabulary.end_of_generation}
        assert {"<|im_end|>", "<|endoftext|>"} <= ending
        assert vocabulary.chat_template is not None
        assert_reads_any_text(vocabulary)


@pytest.mark.model
def test_the_vocabulary_of_gemma3(gemma3_path: Path) -> None:
    with Vocabulary.load(gemma3_path) as vocabulary:
        assert vocabulary.n_vocab == 262144
        assert vocabulary.context_length == 32768
        assert vocabulary.adds_bos
        assert (vocabulary.bos_token, vocabulary.eos_token) == ("<bos>", "<eos>")
        ending = {vocabulary.token_text(token) for token in vocabulary.end_of_generation}
        assert {"<eos>", "<end_of_turn>"} <= ending
        tokens = vocabulary.tokenize("<start_of_turn>user", add_special=True, parse_special=True)
        assert tokens[0] == vocabulary.bos_id
        assert vocabulary.piece(tokens[1], special=False) == b""
        assert_reads_any_text(vocabulary)


def assert_reads_any_text(vocabulary: Vocabulary) -> None:
    for text in (
        "Hello wörld 🙂\n\n\t code {}",
        "日本語 العربية",
        "a\x00b",
        " leading",
        "x" * 50_000,
    ):
        tokens = vocabulary.tokenize(text, add_special=False, parse_special=False)
        pieces = b"".join(vocabulary.piece(token, special=False) for token in tokens)
        assert pieces.decode() == text
