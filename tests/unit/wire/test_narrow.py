"""Each type's error stays within the bound that the module states."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType, dequantize
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.tensors import DType
from meshnet.wire.narrow import BLOCK, rows_of, tensor_of

finite = arrays(
    np.float32,
    st.tuples(st.integers(1, 5), st.sampled_from([BLOCK, 3 * BLOCK])),
    elements=st.floats(-60000, 60000, width=32),
)


@given(finite)
def test_float32_is_exact(rows):
    assert rows_of(tensor_of("residual", rows, DType.FLOAT32)).tobytes() == rows.tobytes()


@given(finite)
def test_float16_stays_within_its_bound(rows):
    error = np.abs(rows_of(tensor_of("residual", rows, DType.FLOAT16)) - rows)
    assert (error <= np.maximum(np.abs(rows) * 2.0**-11, 2.0**-25)).all()


@given(finite)
def test_bfloat16_stays_within_its_bound(rows):
    error = np.abs(rows_of(tensor_of("residual", rows, DType.BFLOAT16)) - rows)
    assert (error <= np.maximum(np.abs(rows) * 2.0**-8, 2.0**-133)).all()


@given(finite)
def test_q8_0_stays_within_half_a_scale(rows):
    tensor = tensor_of("residual", rows, DType.Q8_0)
    error = np.abs(rows_of(tensor).astype(np.float64) - rows).reshape(-1, BLOCK)
    scale = np.frombuffer(tensor.data, np.uint8).reshape(-1, BLOCK + 2)[:, :2]
    half = scale.copy().view("<f2").astype(np.float64) / 2
    assert (error <= half + 2.0**-18).all()
    assert (error <= half * (1 + 2.0**-20))[half[:, 0] >= 2.0**-15].all()


def test_q8_0_is_ggmls_layout():
    rows = np.random.default_rng(0).normal(size=(4, 2 * BLOCK)).astype(np.float32)
    tensor = tensor_of("residual", rows, DType.Q8_0)
    data = np.frombuffer(tensor.data, np.uint8).reshape(4, -1)
    assert np.array_equal(dequantize(data, GGMLQuantizationType.Q8_0), rows_of(tensor))


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.Q8_0])
@pytest.mark.parametrize("value", [np.inf, np.nan, 3.4e38])
def test_a_value_that_doesnt_fit_is_refused(dtype, value):
    with pytest.raises(InvalidArgumentError, match="boundary"):
        tensor_of("residual", np.full((1, BLOCK), value, np.float32), dtype)


def test_rows_that_dont_fill_blocks_are_refused():
    with pytest.raises(InvalidArgumentError, match="shape"):
        tensor_of("residual", np.zeros((32, 1), np.float32), DType.Q8_0)
