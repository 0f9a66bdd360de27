import math

import pytest

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.frames import ReturnPath
from meshnet.domain.generation import GenerationSpec
from meshnet.domain.ids import Address, NodeId
from meshnet.domain.nodes import FlowControl
from meshnet.domain.sampling import SamplingParams
from meshnet.domain.tensors import BoundaryBundle, DType, EngineTensor


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", 1.5),
        ("repeat_penalty", 0.0),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -2.5),
        ("penalty_last_n", -2),
        ("seed", -1),
        ("seed", 2**64),
        ("top_logprobs", 21),
        ("logit_bias", {3: math.nan}),
    ],
)
def test_a_sampling_parameter_out_of_range_is_named(field, value):
    with pytest.raises(InvalidArgumentError, match=field):
        SamplingParams(**{field: value})


def test_a_tensor_whose_length_and_shape_disagree_is_refused():
    with pytest.raises(InvalidArgumentError, match="24 bytes"):
        EngineTensor("residual", DType.FLOAT32, (2, 3), bytes(23))


def test_q8_0_takes_34_bytes_for_32_values():
    assert DType.Q8_0.byte_length(64) == 68
    with pytest.raises(InvalidArgumentError):
        DType.Q8_0.byte_length(33)


def test_a_bundle_has_tensors_with_distinct_names():
    tensor = EngineTensor("residual", DType.FLOAT32, (1, 1), bytes(4))
    with pytest.raises(InvalidArgumentError):
        BoundaryBundle(())
    with pytest.raises(InvalidArgumentError, match="repeat"):
        BoundaryBundle((tensor, tensor))


def test_negotiation_takes_the_strictest_of_each_bound():
    ours = FlowControl(chunk_credits=2, max_chunk_bytes=100, max_queued_work=9, max_sessions=4)
    theirs = FlowControl(chunk_credits=3, max_chunk_bytes=50, max_queued_work=10, max_sessions=3)
    both = FlowControl(chunk_credits=2, max_chunk_bytes=50, max_queued_work=9, max_sessions=3)
    assert ours.strictest(theirs) == theirs.strictest(ours) == both


@pytest.mark.parametrize("spec", [{"prompt": ()}, {"prompt": (-1,)}])
def test_a_generation_without_a_prompt_is_refused(spec):
    with pytest.raises(InvalidArgumentError, match="prompt"):
        GenerationSpec(**spec)


def test_a_generation_of_no_tokens_is_refused():
    with pytest.raises(InvalidArgumentError, match="max_tokens"):
        GenerationSpec((1,), max_new_tokens=0)


def test_a_way_back_names_a_node_or_none():
    with pytest.raises(InvalidArgumentError, match=r"return_path\.node_id"):
        ReturnPath(Address("10.0.0.1:50051"), bytes(16), NodeId(""))
