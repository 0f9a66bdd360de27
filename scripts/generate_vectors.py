"""Write the bytes of ``conformance/vectors.json`` into ``conformance/``.

Usage: python scripts/generate_vectors.py [--check]
With --check nothing is written: the files are made anew in a temporary folder and compared with the
committed ones; a difference is printed and the exit code is 1.

The cases are data: this script only puts fields into messages and serialises them, by the rules in
``conformance/README.md``.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from meshnet.wire._generated.v1 import shard_runtime_pb2 as pb

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "conformance"
FOLDERS = ("vectors", "malformed")
UNKNOWN = "@unknown"

Fields = dict[str, Any]


def message_of(kind: str, fields: Fields) -> Message:
    """The message of that type with exactly these fields."""
    message: Message = getattr(pb, kind)()
    fill(message, fields)
    return message


def fill(message: Message, fields: Fields) -> None:
    """Set fields from their form in JSON; raises ``KeyError`` for one that the schema hasn't."""
    for name, value in fields.items():
        if name == UNKNOWN:
            message.MergeFromString(b"".join(map(unknown_field, value)))
            continue
        field = message.DESCRIPTOR.fields_by_name[name]
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            if field.is_repeated:
                for each in value:
                    fill(getattr(message, name).add(), each)
            else:
                getattr(message, name).SetInParent()
                fill(getattr(message, name), value)
        elif field.is_repeated:
            getattr(message, name).extend(scalar(field, each) for each in value)
        else:
            setattr(message, name, scalar(field, value))


def scalar(field: Any, value: Any) -> Any:
    """A value for the field of that descriptor, from its form in JSON."""
    if field.type == FieldDescriptor.TYPE_ENUM and isinstance(value, str):
        return field.enum_type.values_by_name[value].number
    if field.type == FieldDescriptor.TYPE_BYTES:
        return bytes.fromhex(value)
    if field.type == FieldDescriptor.TYPE_DOUBLE:
        return float(value)
    return value


def unknown_field(entry: Fields) -> bytes:
    """A field that the schema hasn't, as bytes: its tag and its value."""
    tag = entry["number"] << 3
    match entry:
        case {"varint": int(number)}:
            return varint(tag) + varint(number)
        case {"fixed64": int(number)}:
            return varint(tag | 1) + struct.pack("<Q", number)
        case {"bytes": str(text)}:
            return varint(tag | 2) + varint(len(text) // 2) + bytes.fromhex(text)
        case {"fixed32": int(number)}:
            return varint(tag | 5) + struct.pack("<I", number)
    raise ValueError(f"an unknown field has a number and one value: {entry}")


def varint(value: int) -> bytes:
    """A base-128 number, the lowest seven bits first."""
    low, high = value & 0x7F, value >> 7
    return bytes((low | 0x80,)) + varint(high) if high else bytes((low,))


def changed(fields: Fields, case: Fields) -> Fields:
    """A copy with the case's ``set`` and ``clear``, each a path such as ``hops[1].node_id``."""
    made = copy.deepcopy(fields)
    for path in case.get("clear", ()):
        holder, last = _holder(made, path)
        del holder[last]
    for path, value in case.get("set", {}).items():
        holder, last = _holder(made, path)
        holder[last] = value
    return made


def _holder(fields: Any, path: str) -> tuple[Any, str | int]:
    """What holds the last part of a path, and that part."""
    parts = [int(part) if part.isdigit() else part for part in re.findall(r"[^.\[\]]+", path)]
    for part in parts[:-1]:
        fields = fields[part]
    return fields, parts[-1]


def generate(target: Path, cases: Fields) -> None:
    """Write every file of the cases below ``target``."""
    vectors = {vector["name"]: vector for vector in cases["vectors"]}
    for folder in FOLDERS:
        (target / folder).mkdir(parents=True, exist_ok=True)
        for case in cases[folder]:
            if "bytes" in case:
                data = bytes.fromhex(case["bytes"])
            else:
                base = vectors[case["base"]] if "base" in case else case
                message = message_of(base["message"], changed(base["fields"], case))
                data = message.SerializeToString(deterministic=True)
            (target / folder / f"{case['name']}.bin").write_bytes(data)


def differences(committed: Path, fresh: Path) -> list[str]:
    """One line for each file that is missing, superfluous or different."""
    old, new = (
        {
            path.relative_to(root).as_posix(): path.read_bytes()
            for folder in FOLDERS
            for path in (root / folder).glob("*")
        }
        for root in (committed, fresh)
    )
    lines = [f"missing: {name}" for name in new.keys() - old.keys()]
    lines += [f"superfluous: {name}" for name in old.keys() - new.keys()]
    lines += [f"different: {name}" for name in new.keys() & old.keys() if new[name] != old[name]]
    return sorted(lines)


def main() -> int:
    """Generate or check; see the module's text."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args().check
    cases = json.loads((TARGET / "vectors.json").read_text())
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch), cases)
        found = differences(TARGET, Path(scratch))
    if check:
        for line in found:
            print(line)
        if found:
            print("run: python scripts/generate_vectors.py")
        return 1 if found else 0
    for line in found:
        if line.startswith("superfluous: "):
            (TARGET / line.removeprefix("superfluous: ")).unlink()
    generate(TARGET, cases)
    print(f"{sum(len(cases[folder]) for folder in FOLDERS)} files, {len(found)} changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
