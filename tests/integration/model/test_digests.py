from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from gguf import GGMLQuantizationType, GGUFReader
from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet.model.digest import model_digest
from meshnet.model.gguf import read_index
from tests.support.tiny_gguf import KeyValue, TinyModel, build


def digest(path: Path) -> str:
    return model_digest(read_index(path))


def test_name_parts_and_texts_about_a_model_do_not_count(tmp_path: Path) -> None:
    whole = digest(build(tmp_path / "whole.gguf"))
    assert digest(build(tmp_path / "other-name.gguf")) == whole
    assert digest(build(tmp_path / "split.gguf", parts=3)) == whole
    described: dict[str, KeyValue] = {
        "general.name": "another",
        "general.author": "somebody",
        "general.file_type": 1,
        "quantize.imatrix.file": "imatrix.dat",
    }
    assert digest(build(tmp_path / "described.gguf", described=described)) == whole


@pytest.mark.parametrize(
    "key", ["tokenizer.chat_template", "tokenizer.ggml.add_bos_token", "llama.a_new_key"]
)
def test_keys_that_decide_tokens_and_keys_that_nobody_knows_count(key: str, tmp_path: Path) -> None:
    value: KeyValue = True if key.endswith("bos_token") else "another"
    changed = build(tmp_path / "changed.gguf", described={key: value})
    assert digest(changed) != digest(build(tmp_path / "plain.gguf"))


@settings(max_examples=10, deadline=None)
@given(
    layout=st.one_of(
        st.tuples(st.integers(1, 6), st.just(32)),
        # The writer states an alignment in the first part alone, though it keeps it in all.
        st.tuples(st.just(1), st.sampled_from([64, 512])),
    ),
    backwards=st.booleans(),
)
def test_no_layout_of_the_same_model_changes_it(layout: tuple[int, int], backwards: bool) -> None:
    parts, alignment = layout
    with TemporaryDirectory() as folder:
        plain = build(Path(folder) / "plain.gguf")
        path = Path(folder) / "laid-out.gguf"
        laid_out = build(path, parts=parts, alignment=alignment, backwards=backwards)
        assert digest(laid_out) == digest(plain)


def test_the_order_of_tensors_does_not_count(tmp_path: Path) -> None:
    plain = digest(build(tmp_path / "a.gguf"))
    assert digest(build(tmp_path / "b.gguf", backwards=True)) == plain


@pytest.mark.parametrize(
    "model",
    [
        TinyModel(seed=1),
        TinyModel(tied=True),
        TinyModel("qwen2"),
        TinyModel(quantization=GGMLQuantizationType.Q8_0),
        TinyModel(keys={"rope.freq_base": 5000.0}),
    ],
    ids=["weights", "tensors", "architecture", "types", "a key"],
)
def test_whatever_changes_numbers_counts(model: TinyModel, tmp_path: Path) -> None:
    assert digest(build(tmp_path / "a.gguf", model)) != digest(build(tmp_path / "b.gguf"))


def flip_weight(path: Path) -> None:
    reader = GGUFReader(path, "r+")
    reader.tensors[-1].data.flat[-1] += 1
    reader.data.flush()


def retitle_token(path: Path) -> None:
    content = path.read_bytes()
    assert content.count(b"<|im_start|>") > 1
    path.write_bytes(content.replace(b"<|im_start|>", b"<|im_other|>", 1))


@pytest.mark.parametrize("change", [flip_weight, retitle_token])
def test_one_changed_value_counts(change: Callable[[Path], None], tmp_path: Path) -> None:
    path = build(tmp_path / "m.gguf")
    before = digest(path)
    change(path)
    assert digest(path) != before


def test_progress_grows_to_the_bytes_of_all_tensors(tmp_path: Path) -> None:
    index = read_index(build(tmp_path / "m.gguf"))
    seen: list[tuple[int, int]] = []
    model_digest(index, lambda _, done, total: seen.append((done, total)))
    total = sum(tensor.size for tensor in index.tensors.values())
    assert seen[-1] == (total, total)
    assert seen == sorted(seen)
