"""``POST /tokenize`` and ``POST /detokenize``, as llama-server offers them."""

from __future__ import annotations

from collections.abc import Mapping

from meshnet.domain.errors import InvalidArgumentError
from meshnet.gateway.openai import model_named, require_known
from meshnet.gateway.schema import Body, Refused, parse, refuse
from meshnet.session.service import ModelService

REFUSED_IN_TOKENIZE: Refused = {"with_pieces": (False,)}


class TokenizeBody(Body):
    """The body of ``POST /tokenize``."""

    content: str
    add_special: bool | None = None
    parse_special: bool | None = None
    model: str | None = None
    """Needed only where there are several."""


class DetokenizeBody(Body):
    """The body of ``POST /detokenize``."""

    tokens: list[int]
    model: str | None = None


def tokenize(body: bytes, models: Mapping[str, ModelService]) -> dict[str, object]:
    """``{"tokens": [...]}``; raises :class:`InputError` or one of its kinds."""
    asked = parse(TokenizeBody, body)
    refuse(asked, REFUSED_IN_TOKENIZE)
    tokens = _model(asked.model, models).tokenizer.tokenize(
        asked.content,
        add_special=bool(asked.add_special),
        parse_special=asked.parse_special is not False,
    )
    return {"tokens": list(tokens)}


def detokenize(body: bytes, models: Mapping[str, ModelService]) -> dict[str, object]:
    """``{"content": ...}``; control tokens are shown by name, half characters as U+FFFD."""
    asked = parse(DetokenizeBody, body)
    model = _model(asked.model, models)
    require_known("tokens", asked.tokens, model)
    text = b"".join(model.tokenizer.piece(token, special=True) for token in asked.tokens)
    return {"content": text.decode("utf-8", "replace")}


def _model(name: str | None, models: Mapping[str, ModelService]) -> ModelService:
    if name is not None:
        return model_named(models, name)
    if len({id(model) for model in models.values()}) > 1:
        raise InvalidArgumentError("model", "there are several models here; name one")
    return next(iter(models.values()))
