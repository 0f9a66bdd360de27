"""Equal recipes have equal fingerprints, and whatever changes the numbers changes the name."""

import hashlib
import json
from dataclasses import fields, replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from meshnet.domain.errors import FingerprintMismatchError, InvalidArgumentError
from meshnet.domain.ids import Digest
from meshnet.domain.recipe import FLOAT_KV_TYPES, KV_TYPES, MAX_CHUNK_TOKENS, Machine, Recipe
from meshnet.domain.tensors import DType

digests = st.text("0123456789abcdef", min_size=64, max_size=64).map(
    lambda text: Digest(f"sha256:{text}")
)
texts = st.text(max_size=20)
text_sets = st.sets(texts, max_size=3).map(lambda it: tuple(sorted(it)))
machines = st.builds(
    Machine,
    processor=texts,
    mathematics=texts,
    variables=text_sets,
    devices=text_sets,
    offload=texts,
    threads=st.integers(0, 256),
)
recipes = st.builds(
    Recipe,
    model_digest=digests,
    engine=texts,
    engine_build=texts,
    boundary_dtype=st.sampled_from(DType),
    kv_type_k=st.sampled_from(KV_TYPES),
    kv_type_v=st.sampled_from(KV_TYPES),
    flash_attention=st.just(True),
    chunk_tokens=st.integers(1, MAX_CHUNK_TOKENS),
    long_context=st.booleans(),
    machine=machines,
)
MODEL = Digest("sha256:" + "a" * 64)
RECIPE = Recipe(MODEL, "libllama", "1")


@given(recipes, recipes)
def test_fingerprints_are_equal_exactly_if_all_fields_are(one, other):
    assert (one.fingerprint() == other.fingerprint()) == (one == other)
    assert replace(one).fingerprint() == one.fingerprint()


@given(recipes, recipes, st.sampled_from([field.name for field in fields(Recipe)]))
def test_any_one_field_changes_the_fingerprint(recipe, donor, name):
    assume(getattr(recipe, name) != getattr(donor, name))
    changed = replace(recipe, **{name: getattr(donor, name)})
    assert changed.fingerprint() != recipe.fingerprint()


@given(machines, machines, st.sampled_from([field.name for field in fields(Machine)]))
def test_any_one_fact_of_the_machine_changes_the_fingerprint(machine, donor, name):
    assume(getattr(machine, name) != getattr(donor, name))
    changed = replace(machine, **{name: getattr(donor, name)})
    assert (
        replace(RECIPE, machine=changed).fingerprint()
        != replace(RECIPE, machine=machine).fingerprint()
    )


@given(recipes)
def test_the_fields_name_everything_but_the_model_and_the_boundary(recipe):
    shown = json.loads(json.dumps(recipe.fields()))
    machine = shown.pop("machine")
    names = {field.name for field in fields(Recipe)} - {"model_digest", "boundary_dtype", "machine"}
    assert set(shown) == names | {"recipe_version"}
    assert set(machine) == {field.name for field in fields(Machine)}


@given(recipes, st.sampled_from(DType))
def test_the_boundary_is_the_last_step_which_a_peer_can_do_too(recipe, dtype):
    float32 = replace(recipe, boundary_dtype=DType.FLOAT32).fingerprint()
    assert float32.with_boundary(dtype) == replace(recipe, boundary_dtype=dtype).fingerprint()


def test_a_narrow_fingerprint_is_derived_as_the_schema_says():
    float32 = RECIPE.fingerprint()
    text = f'{{"boundary_dtype":"bfloat16","recipe":"{float32.runtime_recipe_digest}"}}'
    derived = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    assert float32.with_boundary(DType.BFLOAT16).runtime_recipe_digest == derived


def test_a_fingerprint_is_the_same_on_every_machine_and_day():
    fingerprint = RECIPE.fingerprint()
    assert fingerprint.runtime_recipe_digest == (
        "sha256:b7e54df40dae3ee3a64e4b20120ece1bbdf9b426a1ae28f88e0135d48b2d0d65"
    )
    assert fingerprint.recipe_id == f"libllama-{fingerprint.runtime_recipe_digest[7:15]}"
    assert fingerprint.with_boundary(DType.Q8_0).recipe_id == f"{fingerprint.recipe_id}-q8_0"


@pytest.mark.parametrize(
    ("change", "advice"),
    [
        ({"model_digest": Digest("sha256:" + "b" * 64)}, "the same model file"),
        ({"flash_attention": True}, "flash attention"),
    ],
)
def test_a_mismatch_names_both_digests_and_what_to_do(change, advice):
    mine, theirs = RECIPE.fingerprint(), replace(RECIPE, **change).fingerprint()
    mine.require_equal(RECIPE.fingerprint(), "node-2")
    with pytest.raises(FingerprintMismatchError, match=advice) as caught:
        mine.require_equal(theirs, "node-2")
    for digest in caught.value.details.values():
        assert digest in caught.value.message


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"kv_type_k": "q9"}, "cache_type_k"),
        ({"kv_type_v": "q8_0"}, "cache_type_v: q8_0 values need flash attention"),
        ({"chunk_tokens": 0}, "chunk_tokens"),
        ({"chunk_tokens": MAX_CHUNK_TOKENS + 1}, "chunk_tokens"),
    ],
)
def test_a_recipe_that_cant_be_is_refused(change, field):
    with pytest.raises(InvalidArgumentError, match=field):
        replace(RECIPE, **change)


@given(st.sampled_from(KV_TYPES), st.sampled_from(KV_TYPES))
def test_without_flash_attention_only_values_must_be_floats(key, value):
    if value in FLOAT_KV_TYPES:
        assert replace(RECIPE, kv_type_k=key, kv_type_v=value).kv_type_k == key
    else:
        with pytest.raises(InvalidArgumentError):
            replace(RECIPE, kv_type_k=key, kv_type_v=value)


@pytest.mark.parametrize(
    "facts", [{"devices": ("b", "a")}, {"variables": ("A=1", "A=1")}, {"threads": -1}]
)
def test_a_machine_whose_facts_have_two_spellings_is_refused(facts):
    with pytest.raises(InvalidArgumentError, match=next(iter(facts))):
        Machine(**facts)
