"""The generated dissector: Lua's literals, tables of declarations, and figures of codecs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from unittest.mock import patch

from twisted.trial.unittest import SynchronousTestCase

from pubsub.dissector.declaration import (
    Declaration,
    Frame,
    Hint,
    Item,
    JsonObject,
    Lines,
    Member,
    Packet,
    Packets,
    Repeated,
    Show,
    items,
    struct_items,
    upper_name,
)
from pubsub.dissector.generator import display_filters, generate
from pubsub.dissector.lua import literal
from pubsub.dissector.tables import WireField, convert, merged, wire_fields
from pubsub.plugin import IWireProtocol, installed_protocols
from pubsub.protocols.cafe import codec as cafe
from pubsub.settings import SIZE, Setting, choice
from pubsub.wire.fields import U8, U16, U32, CountedBytes, Remainder, Unsigned, counted, u8, u32
from tests.unit.fakes import Toy
from tests.unit.raising import raised


class Colour(IntEnum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True)
class PaintWall:
    colour: int = u8()
    area: int = u32()
    note: bytes = counted(U16)


class LiteralTests(SynchronousTestCase):
    """literal"""

    def test_numbers_and_words(self) -> None:
        assert literal(None) == "nil"
        assert [literal(value) for value in (True, False, 7, -1)] == ["true", "false", "7", "-1"]

    def test_bytes_that_lua_would_read_differently_are_escaped(self) -> None:
        assert literal('a"b\\c') == '"a\\034b\\092c"'
        assert literal(b"\xfe\xca1") == '"\\254\\2021"'
        assert literal("é\n") == '"\\195\\169\\010"'

    def test_tables(self) -> None:
        assert literal([]) == "{}"
        assert literal([1, "a"]) == '{ 1, "a" }'
        assert literal({"end": 1, "a": False}) == '{ ["end"] = 1, ["a"] = false }'
        assert literal({2: "b"}) == '{ [2] = "b" }'

    def test_long_tables_have_lines(self) -> None:
        text = literal({"a": ["x" * 60, "y" * 60]})
        assert text.splitlines()[0] == "{"
        assert max(map(len, text.splitlines())) < 100


class DeclarationTests(SynchronousTestCase):
    """Declarations derived from a codec"""

    def test_items_follow_the_dataclass(self) -> None:
        hint = Hint(values=Colour)
        assert items(PaintWall, {"colour": hint}) == (
            Item("colour", U8, hint),
            Item("area", U32),
            Item("note", CountedBytes(U16)),
        )

    def test_items_of_a_struct(self) -> None:
        found = struct_items(Struct(">HB"), ("magic", "type"), {})
        assert found == (Item("magic", Unsigned(2, big=True)), Item("type", Unsigned(1, big=True)))

    def test_structs_of_anything_else_are_refused(self) -> None:
        for struct in (Struct("<H4s"), Struct("HB"), Struct("<H")):
            raised(ValueError, lambda struct=struct: struct_items(struct, ("a", "b"), {}))

    def test_names_are_as_in_specifications(self) -> None:
        assert upper_name(PaintWall) == "PAINT_WALL"


class TableTests(SynchronousTestCase):
    """Tables and display filters"""

    def test_each_field_has_the_type_that_shows_it(self) -> None:
        frame = Frame("PAINT", items(PaintWall, {"note": Hint(Show.TEXT)}))
        found = [(field.name, field.type) for field in merged(wire_fields(frame))]
        assert found == [
            ("colour", "uint8"),
            ("area", "uint32"),
            ("note.length", "uint16"),
            ("note", "string"),
        ]

    def test_one_name_is_one_field_with_the_widest_type(self) -> None:
        both = [Frame("A", [Item("n", U8)]), Frame("B", [Item("n", U32), Item("n", U16)])]
        assert merged(wire_fields(both)) == [WireField("n", "uint32")]

    def test_one_name_cannot_be_two_kinds_of_fields(self) -> None:
        both = [Frame("A", [Item("n", U8)]), Frame("B", [Item("n", Remainder())])]
        error = raised(ValueError, lambda: merged(wire_fields(both)))
        assert str(error) == "n: uint8 in one frame, bytes in another"

    def test_repeated_items(self) -> None:
        repeated = Repeated("list", [Item("entry", U8)])
        assert convert(repeated) == {
            "name": "list",
            "kind": "repeated",
            "items": [{"name": "entry", "kind": "uint", "size": 1, "big": False}],
        }

    def test_heads_have_fields_of_fixed_sizes(self) -> None:
        packet = Packet((Item("name", CountedBytes(U8)),), {0: Frame("A")})
        error = raised(ValueError, lambda: convert(packet))
        assert str(error) == "name: the head of a packet has fields of fixed sizes only"

    def test_unknown_kinds_of_fields_are_refused(self) -> None:
        class Bits:
            description = "bits"

        item = Item("n", Bits())  # type: ignore[arg-type]
        error = raised(ValueError, lambda: convert(item))
        assert str(error) == "bits: a dissector cannot decode it"

    def test_json_objects(self) -> None:
        listed = JsonObject("List", [Member("n", "integer"), Member("all", "array", of="List")])
        types = [(field.name, field.type) for field in merged(wire_fields(listed))]
        assert types == [("n", "int64"), ("all", "string"), ("list", "string")]


class GeneratorTests(SynchronousTestCase):
    """generate"""

    def test_installed_protocols_have_a_dissector(self) -> None:
        text = generate(installed_protocols())
        for name, protocol in installed_protocols().items():
            assert protocol.dissector is not None, name
            assert f'["name"] = "{name}",' in text
        assert text.count("runtime.register({") == len(installed_protocols())

    def test_a_protocol_may_have_none(self) -> None:
        assert "runtime.register({" not in generate({"toy": Toy("toy", 1)})
        assert display_filters(Toy("toy", 1)) == []

    def test_a_new_frame_of_a_codec_is_in_the_dissector(self) -> None:
        with patch.dict(cafe.FRAMES, {0x77: PaintWall}):
            text = generate({"cafe": installed_protocols()["cafe"]})
            names = [field.name for field in display_filters(installed_protocols()["cafe"])]
        assert '["name"] = "PAINT_WALL"' in text
        assert {"colour", "area", "note", "note.length"} <= set(names)

    def test_settings_are_preferences_with_the_listeners_values(self) -> None:
        setting = Setting("layout", choice("new", "old"), "old", "layout of requests")
        size = Setting("max-line", SIZE, "2K", "largest line")
        toy = toy_with(setting, size)
        text = generate({"toy": toy})
        assert '["choices"] = { "new", "old" }' in text
        assert '["preference"] = "max_line"' in text
        assert '["default"] = 2048' in text
        assert '["start"] = "n"' in text
        assert '["start"] = "o"' in text

    def test_a_setting_that_the_listener_does_not_have_is_an_error(self) -> None:
        raised(KeyError, lambda: generate({"toy": toy_with()}))

    def test_lines_of_json(self) -> None:
        toy = Toy("toy", 1)
        toy.dissector = Declaration("TOY", Lines([JsonObject("Say", [Member("text")])], 100))
        assert [field.name for field in display_filters(toy)] == ["text"]


def toy_with(*settings: Setting) -> IWireProtocol:
    """Return a protocol whose packets begin with the first letter of the setting ``layout``."""
    toy = Toy("toy", 1, settings)
    framing = Packets(
        lambda options: [
            Packet((Item("magic", U8),), {0: Frame("SAY")}, start=options["layout"][0].encode())
        ],
        ("layout",),
    )
    toy.dissector = Declaration("TOY", framing, settings=("max-line",))
    return toy
