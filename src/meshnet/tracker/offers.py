"""What machines are told of the models that a cluster serves, so that they measure themselves."""

from __future__ import annotations

from typing import Final

from meshnet.tracker.fields import DigestText, Message
from meshnet.tracker.messages import Serving
from meshnet.tracker.state import ClusterState

PATH_MODELS: Final = "/models"


class OfferedReply(Message):
    """A model that the cluster serves, and how."""

    model: DigestText
    name: str
    serving: Serving


class ModelsReply(Message):
    """All of them."""

    models: tuple[OfferedReply, ...] = ()


def models_of(state: ClusterState) -> ModelsReply:
    """The models that are served."""
    return ModelsReply(
        models=tuple(
            OfferedReply(model=digest, name=offer.name, serving=offer.serving)
            for digest, offer in state.models.items()
        )
    )
