#!/usr/bin/env python3
"""Writes the types of the wire, `src/vivavoce/messages.py` and `resources.py`, from the server's schemas.

`generate.py` writes them, `generate.py --check` fails when they are not what the schemas say. TypedDicts need nothing at run
time and are what `json.loads` gives; the usual generators lose the descriptions of fields, or need a package at run time.
"""

from __future__ import annotations

import json
import keyword
import sys
import textwrap
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent.parent / "docs"
WIDTH = 110

#: Resources of the HTTP API that the library uses, by the names that it gives them.
RESOURCES = {
    "CallAnswer": "Call",
    "CallInfo": "CallInfo",
    "CallMedia": "CallMedia",
    "Metadata": "Recording",
    "Page": "RecordingPage",
    "Participant": "RecordingParticipant",
    "RoomParticipant": "RoomMember",
    "RoomDetails": "RoomDetails",
    "RoomList": "RoomList",
    "RoomSummary": "RoomSummary",
    "SessionInfo": "SessionInfo",
    "SessionList": "SessionList",
    "TokenAnswer": "RoomToken",
    "Track": "RoomMemberTrack",
    "TransferAnswer": "Transfer",
    "Voice": "Voice",
}

Schema = dict[str, Any]


def camel(name: str) -> str:
    """`stt_config` as `SttConfig`."""
    return "".join(part.capitalize() for part in name.split("_"))


def described(text: str, indent: str = "    ") -> list[str]:
    """A docstring."""
    text = " ".join(text.split()).replace("\\", "\\\\")
    if len(text) + len(indent) + 6 <= WIDTH:
        return [f'{indent}"""{text}"""']
    wrapped = textwrap.wrap(text, WIDTH - len(indent))
    return [f'{indent}"""', *(indent + line for line in wrapped), f'{indent}"""']


class Module:
    """One module of types."""

    def __init__(self, names: dict[str, str] | None = None) -> None:
        self.names = names
        self.parts: list[str] = []

    def named(self, reference: str) -> str:
        """The name of a referenced schema."""
        name = reference.rsplit("/", 1)[-1]
        return self.names.get(name, "") if self.names else name

    def type_of(self, schema: Schema, place: str) -> str:
        """The type of a schema; an object of its own is added under the name of its place."""
        if not isinstance(schema, dict):
            return "object"
        if "$ref" in schema:
            return self.named(schema["$ref"]) or "dict[str, object]"
        if "const" in schema:
            return f"Literal[{json.dumps(schema['const'])}]"
        if "enum" in schema:
            values = [value for value in schema["enum"] if value is not None]
            literal = f"Literal[{', '.join(map(json.dumps, values))}]"
            return f"{literal} | None" if None in schema["enum"] else literal
        kinds = schema.get("type")
        # A number that is zero or large enough, say: alternatives that only restrict add no type.
        alternatives = schema.get("oneOf") or schema.get("anyOf") or []
        if alternatives and not kinds:
            types = [self.type_of(one, place) for one in alternatives]
            if all(one.startswith("Literal[") for one in types):
                return f"Literal[{', '.join(one[8:-1] for one in types)}]"
            return " | ".join(dict.fromkeys(types))
        kinds = kinds if isinstance(kinds, list) else [kinds]
        return " | ".join(self.simple(kind, schema, place) for kind in kinds)

    def simple(self, kind: str | None, schema: Schema, place: str) -> str:
        if kind == "array":
            return f"list[{self.type_of(schema['items'], place + 'Item')}]"
        if kind == "object" and "properties" in schema:
            self.object(place, schema)
            return place
        if kind == "object":
            values = schema.get("additionalProperties")
            of = self.type_of(values, place + "Value") if isinstance(values, dict) else "object"
            return f"dict[str, {of}]"
        names = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
        return names.get(kind or "", "object")

    def object(self, name: str, schema: Schema) -> None:
        """A TypedDict. What is required comes first, `type` before everything."""
        required = set(schema.get("required", []))
        fields = schema["properties"]
        order = sorted(fields, key=lambda field: (field != "type", field not in required))
        place = name.removesuffix("Message")
        typed = {}
        for field in order:
            of = self.type_of(fields[field], place + camel(field))
            typed[field] = of if field in required else f"NotRequired[{of}]"
        description = described(schema.get("description", name))
        if any(keyword.iskeyword(field) for field in fields):
            # Names that are no identifiers of Python: the functional form, which is evaluated, unlike annotations.
            items = [f'        "{field}": {of!r},' for field, of in typed.items()]
            description = described(schema.get("description", name), "")
            lines = [f"{name} = TypedDict(", f'    "{name}",', "    {", *items, "    },", ")", *description]
        else:
            lines = [f"class {name}(TypedDict):", *description]
            for field, of in typed.items():
                lines += ["", f"    {field}: {of}"]
                if text := fields[field].get("description"):
                    lines += described(text)
        self.parts.append("\n".join(lines))

    def definition(self, name: str, schema: Schema) -> None:
        if "properties" in schema:
            self.object(name, schema)
            return
        of = self.type_of(schema, name)
        if "Message" in of and " | " in of:
            of = "(\n    " + of.replace(" | ", "\n    | ") + "\n)"
        elif len(of) > 80 and of.startswith("Literal["):
            of = "Literal[\n    " + of[8:-1].replace(", ", ",\n    ") + ",\n]"
        text = schema.get("description")
        # A string: an alias is evaluated, and may name what comes below.
        of = f'Union[{", ".join(one.strip() for one in of[1:-1].split("|"))}]' if of.startswith("(") else of
        if of.startswith("Union["):
            members = of[6:-1].split(", ")
            of = "Union[\n" + "".join(f'    "{one}",\n' for one in members) + "]"
        self.parts.append("\n".join([f"{name}: TypeAlias = {of}", *(described(text, "") if text else [])]))


HEAD = '''"""{title}

Generated by `generate.py` from `docs/{source}`; not to be edited.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, {names}

if TYPE_CHECKING:
    from typing_extensions import NotRequired

'''


def module(title: str, source: str, definitions: dict[str, Schema], names: dict[str, str] | None) -> str:
    made = Module(names)
    for name, schema in definitions.items():
        if names is None or name in names:
            made.definition(names[name] if names else name, schema)
    body = "\n\n\n".join(made.parts) + "\n"
    used = [name for name in ("Literal", "TypeAlias", "TypedDict", "Union") if name in body]
    return HEAD.format(title=title, source=source, names=", ".join(used)) + "\n" + body


#: What the library itself tells, by `type`.
LOCAL_EVENTS = {
    "audio": "AudioEvent",
    "reconnecting": "ReconnectingEvent",
    "resumed": "ResumedEvent",
    "utterance_queued": "UtteranceQueuedEvent",
    "utterance_ended": "UtteranceEndedEvent",
    "closed": "ClosedEvent",
}

CALLBACKS = '''"""Callbacks for the events of a session, typed by the event.

Generated by `generate.py` from `docs/schemas/socket.json`; not to be edited.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, overload

from . import events, messages

Remove = Callable[[], None]


class Callbacks:
    """Who is called for which event."""

    def __init__(self) -> None:
        self._callbacks: dict[str, list[Callable[[Any], object]]] = {{}}
{overloads}

    def on(self, type: str, callback: Callable[[Any], object]) -> Remove:
        """Calls `callback` with each event of this type; a coroutine that it returns becomes a task.

        Returns a function that removes it.
        """
        self._callbacks.setdefault(type, []).append(callback)
        return lambda: self._callbacks[type].remove(callback)
'''


def callbacks(definitions: dict[str, Schema]) -> str:
    """An overload for each event."""
    of = {}
    for reference in definitions["ServerMessage"]["oneOf"]:
        name = reference["$ref"].rsplit("/", 1)[-1]
        of[definitions[name]["properties"]["type"]["const"]] = f"messages.{name}"
    of |= {type: f"events.{name}" for type, name in LOCAL_EVENTS.items()}
    overloads = [
        f"""
    @overload
    def on(
        self, type: Literal["{type}"], callback: Callable[[{name}], object]
    ) -> Remove: ..."""
        for type, name in of.items()
    ]
    return CALLBACKS.format(overloads="\n".join(overloads))


def generated() -> dict[Path, str]:
    """What the files hold, by their paths."""
    socket = json.loads((DOCS / "schemas/socket.json").read_text("utf-8"))
    openapi = json.loads((DOCS / "openapi.json").read_text("utf-8"))
    folder = HERE / "src/vivavoce"
    return {
        folder / "messages.py": module(
            "The messages of a session's socket.", "schemas/socket.json", socket["$defs"], None
        ),
        folder / "resources.py": module(
            "What the HTTP API answers.", "openapi.json", openapi["components"]["schemas"], RESOURCES
        ),
        folder / "_callbacks.py": callbacks(socket["$defs"]),
    }


def main() -> None:
    for path, text in generated().items():
        if "--check" not in sys.argv[1:]:
            path.write_text(text, "utf-8")
        elif not path.exists() or path.read_text("utf-8") != text:
            sys.exit(f"{path.name} is not what the schemas say: run clients/python/generate.py")


if __name__ == "__main__":
    main()
