"""``meshnet inspect --fingerprint``: what a node of this machine would compute with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from meshnet.cli.local import LocalModel, engine_config, model_digest
from meshnet.cli.options import NodeOptions
from meshnet.cli.output import print_json, print_line
from meshnet.cli.settings import Settings
from meshnet.domain.layers import LayerRange
from meshnet.domain.recipe import Recipe
from meshnet.domain.tensors import DType
from meshnet.node.config import CHUNK_TOKENS


def show_fingerprint(
    model: LocalModel,
    settings: Settings,
    options: NodeOptions,
    layers: LayerRange,
    boundary: DType,
    *,
    json: bool,
) -> None:
    """Print the fingerprint and all that makes it up; hashes the model unless its digest is known.

    Raises what the model's file, the options and this machine give reason for.
    """
    recipe = _recipe(model, settings, options, layers)
    fingerprint = recipe.fingerprint().with_boundary(boundary)
    shown = {
        "model_artifact_digest": fingerprint.model_artifact_digest,
        "runtime_recipe_digest": fingerprint.runtime_recipe_digest,
        "recipe_id": fingerprint.recipe_id,
        "recipe_version": fingerprint.recipe_version,
        "catalogue_version": fingerprint.catalogue_version,
    }
    fields = {"boundary_dtype": boundary.value, **recipe.fields()}
    if json:
        print_json({"fingerprint": shown, "recipe": fields})
        return
    for name, value in (shown | dict(_flat(fields))).items():
        print_line(f"{name:<24}{value}")


def _recipe(
    model: LocalModel, settings: Settings, options: NodeOptions, layers: LayerRange
) -> Recipe:
    # Loads libllama, which takes a moment that no other command should wait for.
    from meshnet.engine.llamacpp.machine import on_this_machine

    digest = model_digest(model, settings)
    config = engine_config(model.path, digest, digest, "", options, settings.variables)
    return on_this_machine(config.recipe(CHUNK_TOKENS), options.limits(), len(layers))


def _flat(fields: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        elif isinstance(value, tuple | list):
            yield name, ", ".join(map(str, value)) or "none"
        else:
            yield name, str(value)
