"""Which server a TLS client means."""

import ssl

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meshnet.domain.errors import MalformedFrameError
from meshnet.transport.hello import named_server


def hello(name: str | None) -> bytes:
    """The first message of this process's own TLS library."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = name is not None
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


def test_the_name_is_read_once_the_message_is_whole():
    message = hello("0123456789abcdef.meshnet")
    assert named_server(message) == "0123456789abcdef.meshnet"
    for length in (0, 1, 5, 100, len(message) - 1):
        assert named_server(message[:length]) is None


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (hello(None), "names no server"),
        (b"GET / HTTP/1.1\r\n\r\n", "isn't TLS"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "isn't TLS"),
        (bytes(100), "isn't TLS"),
        (b"\x16\x03\x01\xff\xff" + bytes(100), "isn't TLS"),
    ],
)
def test_what_means_no_server_is_refused(said, why):
    with pytest.raises(MalformedFrameError, match=why):
        named_server(said)


@given(st.binary(max_size=300))
@example(b"")
def test_any_bytes_are_a_name_unfinished_or_refused(said):
    try:
        found = named_server(said)
    except MalformedFrameError as error:
        assert error.details["field"] == "hello"
    else:
        assert found is None or isinstance(found, str)
