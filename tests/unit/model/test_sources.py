import pytest

from meshnet.domain.errors import InvalidArgumentError, ModelFileError
from meshnet.domain.layers import LayerRange
from meshnet.model.sources import HUB, RemoteFile, Source, file_name, is_address, source_of

KEY = "hf_0123"


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("hf://org/model.gguf", "hf://ORG/REPOSITORY/FILE.gguf"),
        ("hf://org/repo/readme.md", "hf://ORG/REPOSITORY/FILE.gguf"),
        ("ftp://host/model.gguf", "ftp:// isn't read"),
        ("http://example.org/model.gguf", "use https://"),
        ("https://example.org", "names no file"),
        ("https://example.org:x/model.gguf", "is no URL"),
    ],
)
def test_addresses_that_are_none_are_refused(address: str, problem: str) -> None:
    with pytest.raises(InvalidArgumentError, match=problem):
        source_of(address)


def test_a_hub_address_leads_to_its_file() -> None:
    source = source_of("hf://org/repo/sub folder/m-00001-of-00002.gguf", "http://127.0.0.1:1")
    base = "http://127.0.0.1:1/org/repo/resolve/main/sub%20folder/m"
    assert source.part_urls(2) == (f"{base}-00001-of-00002.gguf", f"{base}-00002-of-00002.gguf")


def test_the_hub_alone_is_shown_the_token() -> None:
    assert source_of("hf://org/repo/m.gguf", HUB, KEY).headers == {"Authorization": f"Bearer {KEY}"}
    assert source_of("https://example.org/m.gguf", HUB, KEY).headers == {}
    assert KEY not in repr(source_of("hf://org/repo/m.gguf", HUB, KEY))


@pytest.mark.parametrize(
    ("argument", "address"),
    [
        ("hf://org/repo/m.gguf", True),
        ("https://host/m.gguf", True),
        ("HTTPS://host/m.gguf", True),
        ("folder/m.gguf", False),
        ("C:/m.gguf", False),
        ("demo", False),
    ],
)
def test_addresses_are_told_from_paths(argument: str, address: bool) -> None:
    assert is_address(argument) is address


def test_parts_are_found_beside_the_one_that_is_named_whatever_follows_it() -> None:
    source = Source(("https://host/a%20b/m-00002-of-00002.gguf?download=true",))
    assert source.part_urls(2) == (
        "https://host/a%20b/m-00001-of-00002.gguf?download=true",
        "https://host/a%20b/m-00002-of-00002.gguf?download=true",
    )


@pytest.mark.parametrize(
    "urls", [("https://host/m.gguf",), ("https://host/1.gguf", "https://host/2.gguf")]
)
def test_parts_that_cannot_be_found_are_refused(urls: tuple[str, ...]) -> None:
    with pytest.raises(ModelFileError, match=r"split\.count"):
        Source(urls).part_urls(3)


def test_a_slice_has_one_file() -> None:
    with pytest.raises(InvalidArgumentError, match=r"source\.urls"):
        Source(("https://host/1.gguf", "https://host/2.gguf"), LayerRange(0, 1))


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://host/m-00001-of-00002.gguf?x=/../y", "m-00001-of-00002.gguf"),
        ("https://host/a/..%2F..%2Fetc%2Fpasswd", "passwd"),
        ("https://host/%2e%2e", "model.gguf"),
        ("https://host/.hidden$(x).gguf", "hidden__x_.gguf"),
    ],
)
def test_a_files_name_is_safe_on_this_machine(url: str, name: str) -> None:
    assert file_name(url) == name


def test_what_is_named_holds_no_secret() -> None:
    assert Source(("https://me:word@host:1/m.gguf?key=x",)).name == "https://host:1/m.gguf"


def test_the_hub_is_where_its_models_are() -> None:
    assert source_of("hf://o/r/m.gguf").urls == (f"{HUB}/o/r/resolve/main/m.gguf",)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (RemoteFile("u", 1, '"a"'), RemoteFile("v", 1, 'W/"a"'), True),
        (RemoteFile("u", 1, '"a"'), RemoteFile("u", 1, '"b"'), False),
        (RemoteFile("u", 1, '"a"'), RemoteFile("u", 2, '"a"'), False),
        (RemoteFile("u", 1, '"a"', None, '"x"'), RemoteFile("u", 1, '"b"', None, '"x"'), True),
        (RemoteFile("u", 1, None, "Monday"), RemoteFile("u", 1, None, "Tuesday"), False),
    ],
)
def test_versions_are_told_by_tag_or_date_and_size(
    one: RemoteFile, other: RemoteFile, same: bool
) -> None:
    assert (one.version() == other.version()) is same


def test_only_a_strong_tag_can_be_a_condition() -> None:
    assert RemoteFile("u", 1, '"a"').condition() == {"If-Range": '"a"'}
    assert RemoteFile("u", 1, 'W/"a"').condition() == {}
