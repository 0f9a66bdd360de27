"""From messages to tokens and from tokens to text, with the vocabularies of real models."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshnet.engine.llamacpp.vocabulary import Vocabulary
from meshnet.session.template import ChatTemplate
from meshnet.session.text import TextStream

SAMPLES = ("Hello wörld 🙂👩‍👩‍👧 code {}\n\n\tend", "日本語 العربية ไทย", "aaa" * 99)


@pytest.mark.model
def test_smollm2s_own_template_makes_the_prompt_it_was_trained_on(smollm2_path: Path) -> None:
    with Vocabulary.load(smollm2_path) as vocabulary:
        template = ChatTemplate(
            vocabulary.chat_template, vocabulary.bos_token, vocabulary.eos_token
        )
        prompt = template.render([{"role": "user", "content": "Hi"}])
        assert prompt == (
            "<|im_start|>system\n"
            "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        )
        tokens = vocabulary.tokenize(prompt, add_special=True, parse_special=True)
        assert tokens.count(vocabulary.eos_id or -1) == 2
        assert tokens[0] == vocabulary.bos_id


@pytest.mark.model
@pytest.mark.parametrize("model", ["smollm2_path", "gemma3_path"])
def test_streamed_text_is_the_tokenised_text_up_to_a_stop_string(
    model: str, request: pytest.FixtureRequest
) -> None:
    with Vocabulary.load(request.getfixturevalue(model)) as vocabulary:
        for text in SAMPLES:
            tokens = vocabulary.tokenize(text, add_special=False, parse_special=False)
            stream = TextStream(vocabulary)
            shown = [stream.feed(token) for token in tokens]
            assert "".join(shown) + stream.finish() == text
            assert not any("\ufffd" in part for part in shown)
            for begin in range(0, len(text) - 3, 5):
                stop = text[begin : begin + 3]
                stream = TextStream(vocabulary, [stop])
                cut = "".join(map(stream.feed, tokens)) + stream.finish()
                assert (cut, stream.stopped) == (text[: text.index(stop)], stop)
