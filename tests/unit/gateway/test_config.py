import pytest

from meshnet.domain.errors import InvalidArgumentError
from meshnet.gateway.config import GatewayConfig


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"host": "0.0.0.0"}, "host"),
        ({"host": "::"}, "host"),
        ({"host": "gpu-box"}, "host"),
        ({"host": ""}, "host"),
        ({"api_key": ""}, "api_key"),
        ({"api_key": "two words"}, "api_key"),
        ({"allowed_hosts": ("box:80",)}, "allowed_hosts"),
        ({"allowed_hosts": ("",)}, "allowed_hosts"),
        ({"max_body_bytes": 0}, "max_body_bytes"),
        ({"client_timeout_seconds": 0.0}, "client_timeout_seconds"),
        ({"health_timeout_seconds": float("nan")}, "health_timeout_seconds"),
        ({"generation_timeout_seconds": float("inf")}, "generation_timeout_seconds"),
    ],
)
def test_a_setting_that_cant_be_is_refused_by_name(settings: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        GatewayConfig(**settings)  # type: ignore[arg-type]
    assert caught.value.details["field"] == field


def test_a_reachable_host_needs_a_key_or_a_clear_word() -> None:
    assert GatewayConfig(host="0.0.0.0", api_key="k").api_key == "k"
    assert GatewayConfig(host="0.0.0.0", open_access=True).open_access
    for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost", "LOCALHOST"):
        assert GatewayConfig(host=host).host == host


def test_the_key_is_not_shown() -> None:
    assert "hunter2" not in repr(GatewayConfig(api_key="hunter2"))


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        ("localhost", True),
        ("LocalHost:8000", True),
        ("localhost.:8000", True),
        ("127.0.0.1:1", True),
        ("[::1]:8000", True),
        ("box.lan:8000", True),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("evil.example@localhost", False),
        ("localhost/../evil", False),
        ("192.168.1.5:8000", False),
        ("localhost:", False),
        ("", False),
    ],
)
def test_a_loopback_gateway_answers_for_loopback_names_and_allowed_ones(
    header: str, accepted: bool
) -> None:
    config = GatewayConfig(allowed_hosts=("Box.lan",))
    assert config.accepts_host(header) is accepted


def test_a_reachable_gateway_answers_for_every_name_unless_told_which() -> None:
    assert GatewayConfig(host="0.0.0.0", api_key="k").accepts_host("any.example:80")
    strict = GatewayConfig(host="0.0.0.0", api_key="k", allowed_hosts=("api.example",))
    assert strict.accepts_host("api.example")
    assert not strict.accepts_host("any.example")
