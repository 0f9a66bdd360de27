import inspect

import pytest

from meshnet.domain import errors
from meshnet.domain.errors import MeshnetError, error_from, status_of
from meshnet.domain.status import OK, StatusCode, StructuredStatus

KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, MeshnetError)
]
RAISED = [kind for kind in KINDS if not kind.__subclasses__()]


@pytest.mark.parametrize("code", [code for code in StatusCode if code is not StatusCode.OK])
def test_every_code_stands_for_an_error_of_that_code(code):
    error = error_from(StructuredStatus(code, message="why", details={"a": "b"}))
    assert error.code is code
    assert (error.message, str(error), dict(error.details)) == ("why", "why", {"a": "b"})


@pytest.mark.parametrize("kind", RAISED, ids=lambda kind: kind.__name__)
def test_an_error_survives_a_process_border(kind):
    error = kind.__new__(kind)
    MeshnetError.__init__(error, "why", layers="[0, 3)")
    again = error_from(status_of(error))
    assert status_of(again) == status_of(error)
    assert type(again) is kind


@pytest.mark.parametrize("code", [code for code in StatusCode if code is not StatusCode.OK])
@pytest.mark.parametrize("name", ["message", "self", "field", "problem", "no name"])
def test_a_peer_may_name_its_details_as_it_likes(code, name):
    error = error_from(StructuredStatus(code, message="why", details={name: "b"}))
    assert (error.message, dict(error.details)) == ("why", {name: "b"})


def test_ok_is_no_error():
    with pytest.raises(ValueError, match="OK"):
        error_from(OK)


def test_the_tree_in_the_docstring_is_the_tree_in_the_code():
    drawn = errors.__doc__ or ""
    for kind in KINDS:
        assert kind.__name__ in drawn
