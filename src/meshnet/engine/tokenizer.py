"""What the layers above an engine need of a vocabulary, and a vocabulary of bytes for tests."""

from __future__ import annotations

import re
from typing import Final, Protocol

from meshnet.domain.errors import InvalidArgumentError

CHATML: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""The plainest of the widely used chat formats."""


class Tokenizer(Protocol):
    """A model's vocabulary. Its methods may be called from any thread."""

    @property
    def n_vocab(self) -> int:
        """Number of token ids; they run from 0."""

    @property
    def end_of_generation(self) -> frozenset[int]:
        """The tokens by which the model says that it is done."""

    @property
    def chat_template(self) -> str | None:
        """Jinja source that turns a conversation into a prompt; None if the model has none."""

    @property
    def bos_token(self) -> str:
        """Text of the beginning-of-sequence token; empty if there is none."""

    @property
    def eos_token(self) -> str:
        """Text of the end-of-sequence token; empty if there is none."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> tuple[int, ...]:
        """Turn text into token ids.

        ``add_special`` adds the tokens the model wants around a text, such as the one that begins
        a sequence; ``parse_special`` reads the names of control tokens in the text as these tokens.
        Raises :class:`InvalidArgumentError` for text that can't be encoded.
        """

    def piece(self, token_id: int, *, special: bool) -> bytes:
        """The bytes a token stands for, which may be a part of a UTF-8 character.

        Control tokens are empty unless ``special``. Raises :class:`InvalidArgumentError` for an id
        outside the vocabulary.
        """


def encode_text(text: str) -> bytes:
    """``text`` in UTF-8; raises :class:`InvalidArgumentError` for half of a surrogate pair."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(
            "text", f"character {error.start} is half of a surrogate pair; send valid Unicode"
        ) from None


def require_token(token_id: int, n_vocab: int) -> None:
    """Raise :class:`InvalidArgumentError` unless the vocabulary has ``token_id``."""
    if not 0 <= token_id < n_vocab:
        raise InvalidArgumentError(
            "token_id", f"the vocabulary has no token {token_id}, only 0 to {n_vocab - 1}"
        )


class ByteTokenizer:
    """256 bytes and four control tokens; ids 0 to 255 are the bytes themselves."""

    bos_id: Final = 256
    eos_id: Final = 257
    im_start_id: Final = 258
    im_end_id: Final = 259
    bos_token: Final[str] = "<s>"  # noqa: S105 - a control token, not a password
    eos_token: Final[str] = "</s>"  # noqa: S105
    n_vocab: Final[int] = 260
    end_of_generation: Final[frozenset[int]] = frozenset({eos_id, im_end_id})
    chat_template: Final[str | None] = CHATML

    _names: Final = (b"<s>", b"</s>", b"<|im_start|>", b"<|im_end|>")
    _control: Final = re.compile(b"(" + b"|".join(map(re.escape, _names)) + b")")

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> tuple[int, ...]:
        """See :class:`Tokenizer`; the beginning-of-sequence token is the one added."""
        data = encode_text(text)
        tokens = [self.bos_id] if add_special else []
        for part in self._control.split(data) if parse_special else (data,):
            if parse_special and part in self._names:
                tokens.append(self.bos_id + self._names.index(part))
            else:
                tokens.extend(part)
        return tuple(tokens)

    def piece(self, token_id: int, *, special: bool) -> bytes:
        """See :class:`Tokenizer`."""
        require_token(token_id, self.n_vocab)
        if token_id < self.bos_id:
            return bytes((token_id,))
        return self._names[token_id - self.bos_id] if special else b""
