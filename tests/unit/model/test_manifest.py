import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import InvalidArgumentError, ModelFileError
from meshnet.domain.ids import Digest
from meshnet.model.digest import root_digest
from meshnet.model.manifest import Manifest, ManifestPart
from tests.support.tiny_gguf import TinyModel, index_of

HASHES = st.integers(0, 2**256 - 1).map("{:064x}".format)
PARTS = st.builds(
    lambda name, header, rest: ManifestPart(name, header + rest, header),
    st.from_regex(r"[a-z0-9.-]{3,40}\.gguf", fullmatch=True),
    st.integers(1, 1 << 40),
    st.integers(0, 1 << 60),
)
GOOD = Manifest(Digest("sha256:" + "0" * 64), (ManifestPart("m.gguf", 9, 3),), {"t": "1" * 64})


@given(
    digest=HASHES,
    parts=st.lists(PARTS, min_size=1, max_size=4),
    tensors=st.dictionaries(st.text(max_size=63), HASHES, max_size=5),
)
def test_what_is_written_is_read_again(
    digest: str, parts: list[ManifestPart], tensors: dict[str, str]
) -> None:
    manifest = Manifest(Digest(f"sha256:{digest}"), tuple(parts), tensors)
    assert Manifest.from_json(manifest.to_json()) == manifest


def changed(**values: object) -> bytes:
    return json.dumps(json.loads(GOOD.to_json()) | values).encode()


@pytest.mark.parametrize(
    ("content", "field"),
    [
        (b"", "manifest"),
        (b"[]", "manifest"),
        (b"{}", "manifest"),
        (b"[" * 100_000, "manifest"),
        (changed(version=2), "manifest.version"),
        (changed(digest="sha256:0"), "manifest.digest"),
        (changed(digest=[]), "manifest"),
        (changed(parts=[]), "manifest.parts"),
        (changed(parts=[["m.gguf", 9]]), "manifest"),
        (changed(parts=[["m.gguf", "9", 3]]), "manifest"),
        (changed(parts=[["m.gguf", True, True]]), "manifest"),
        (changed(parts=[["../m.gguf", 9, 3]]), "manifest.parts.name"),
        (changed(parts=[["..", 9, 3]]), "manifest.parts.name"),
        (changed(parts=[["m.gguf", 9, 10]]), "manifest.parts.header_bytes"),
        (changed(tensors=[]), "manifest"),
        (changed(tensors={"t": "0"}), "manifest.tensors"),
        (changed(tensors={"t": 0}), "manifest"),
    ],
)
def test_what_is_no_manifest_is_refused_by_field(content: bytes, field: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        Manifest.from_json(content)
    assert caught.value.details["field"] == field


def test_header_and_hashes_prove_themselves_against_the_digest() -> None:
    index = index_of()
    hashes = dict.fromkeys(index.tensors, "1" * 64)
    manifest = Manifest(root_digest(index, hashes), GOOD.parts, hashes)
    manifest.require_of(index)
    with pytest.raises(ModelFileError, match="don't give"):
        manifest.require_of(index_of(TinyModel(keys={"rope.freq_base": 5000.0})))
    with pytest.raises(ModelFileError, match="don't give"):
        Manifest(manifest.digest, GOOD.parts, hashes | {"output.weight": "2" * 64}).require_of(
            index
        )
    with pytest.raises(ModelFileError, match="other tensors"):
        manifest.require_of(index_of(TinyModel(layers=3)))
