"""The declarations of a protocol for Wireshark, in addition to those of its codec.

    DISSECTOR = Declaration("CAFE", Packets(packets), udp=True)

The fields of a frame come from the codec's dataclass (``wire/fields.py``); a ``Hint`` adds how a
field is shown, and which values are valid.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from struct import Struct
from typing import Any, Protocol, TypeAlias

from pubsub.wire.fields import FieldKind, Unsigned, layout

Number: TypeAlias = int | str
"""A number, or the name of the setting that has it."""


class Show(StrEnum):
    """The presentation of a field. A script of a protocol may define more."""

    HEX = "hex"
    TEXT = "text"
    BYTES = "bytes"
    UUID = "uuid"
    MILLISECONDS = "milliseconds"


class FrameSender(StrEnum):
    """The side that sends a frame."""

    CLIENT = "client"
    BROKER = "broker"
    EITHER = "either"


@dataclass(frozen=True, slots=True)
class Suffix:
    """The hexadecimal ``digits`` after the last ``marker`` in a text, as the field ``name``."""

    marker: str
    name: str
    digits: int


@dataclass(frozen=True, slots=True)
class Hint:
    """The presentation of a field, and its valid values.

    ``show``     a Show, or the name of a presentation in one of the protocol's scripts
    ``values``   names of values; no others are valid if ``strict``
    ``flags``    names of bits; no others are valid
    ``each``     the name of a further field for each byte
    ``suffix``   a part of its end that is a further field
    ``least``    the fewest valid bytes of the field
    ``most``     the most valid bytes of the field
    ``limit``    the largest valid length; the stream cannot be decoded behind a larger one
    ``utf8``     whether bytes that are not UTF-8 are invalid
    ``nonzero``  whether zero bytes alone are invalid
    ``refusal``  whether a number other than 0 is the code of an error
    """

    show: str = ""
    values: Mapping[int, str] | type[IntEnum] | None = None
    strict: bool = False
    flags: Mapping[int, str] | None = None
    each: str = ""
    suffix: Suffix | None = None
    least: int = 0
    most: int | None = None
    limit: Number | None = None
    utf8: bool = False
    nonzero: bool = False
    refusal: bool = False


_NO_HINT = Hint()
Hints: TypeAlias = Mapping[str, Hint]


@dataclass(frozen=True, slots=True)
class Item:
    """A field on the wire. The names of its display filters end with ``name``."""

    name: str
    kind: FieldKind
    hint: Hint = _NO_HINT


@dataclass(frozen=True, slots=True)
class Repeated:
    """Items that are repeated to the end of the frame."""

    name: str
    items: Sequence[Item]


Items: TypeAlias = Sequence[Item | Repeated]


def items(frame: type, hints: Hints) -> tuple[Item, ...]:
    """Return the items of a dataclass of ``wire/fields.py``."""
    return tuple(Item(name, kind, hints.get(name, _NO_HINT)) for name, kind in layout(frame))


def struct_items(struct: Struct, names: Sequence[str], hints: Hints) -> tuple[Item, ...]:
    """Return the items of a Struct of unsigned integers; raises ValueError for another."""
    sizes = {"B": 1, "H": 2, "I": 4, "Q": 8}
    order, codes = struct.format[0], struct.format[1:]
    if order not in "<>" or len(codes) != len(names) or not set(codes) <= sizes.keys():
        raise ValueError(f"{struct.format}: expected {len(names)} unsigned integers")
    kinds = [Unsigned(sizes[code], order == ">") for code in codes]
    pairs = zip(names, kinds, strict=True)
    return tuple(Item(name, kind, hints.get(name, _NO_HINT)) for name, kind in pairs)


def upper_name(frame: type) -> str:
    """Return the name of a frame as specifications write it: HANDSHAKE_PUB of HandshakePub."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", frame.__name__).upper()


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame, or the body of one."""

    name: str
    items: Items = ()
    sender: FrameSender = FrameSender.EITHER


@dataclass(frozen=True, slots=True)
class Packet:
    """A packet of a stream: a head, and one of several bodies.

    ``start``   the bytes with which it begins; they are the first item of the head
    ``select``  the head's item that selects from ``frames``; without one, there is frame 0 alone
    ``length``  the head's item with the body's length, up to ``limit``; without one, the length
                follows from the frame's items
    ``crc32``   whether a checksum of all bytes, a little-endian u32, is at the end
    """

    head: tuple[Item, ...]
    frames: Mapping[int, Frame]
    start: bytes = b""
    select: str = ""
    length: str = ""
    limit: int = 0
    crc32: bool = False


class Framing(Protocol):
    """The division of a stream into units.

    ``kind`` is its name in ``runtime.framings``, in the runtime or in a script of the protocol.
    """

    @property
    def kind(self) -> str: ...

    @property
    def variants(self) -> Sequence[str]:
        """The settings that the layout depends on; each has two values or a few."""

    def frames(self, options: Mapping[str, str]) -> Mapping[str, Any]:
        """Return the values that the framing needs for these variants.

        It consists of the classes of this module, of mappings, sequences, numbers, text and bytes.
        """


@dataclass(frozen=True, slots=True)
class Packets:
    """Binary packets; ``build`` returns them for some values of the variants."""

    build: Callable[[Mapping[str, str]], Sequence[Packet]]
    variants: Sequence[str] = ()
    kind: str = "packets"

    def frames(self, options: Mapping[str, str]) -> Mapping[str, Any]:
        """See Framing."""
        return {"packets": self.build(options)}


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a JSON object.

    ``type`` is ``string``, ``integer``, ``boolean``, ``base64``, ``object`` or ``array``; the
    objects in the last two are of the class ``of``.
    """

    name: str
    type: str = "string"
    of: str = ""
    required: bool = True
    hint: Hint = _NO_HINT


@dataclass(frozen=True, slots=True)
class JsonObject:
    """A JSON object, named by its member ``_class``; ``further`` members may have any name."""

    name: str
    members: Sequence[Member] = ()
    sender: FrameSender = FrameSender.EITHER
    further: bool = False
    refusal: bool = False


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of JSON, or of JSON in base64, of which clients send up to ``limit`` bytes."""

    objects: Sequence[JsonObject]
    limit: int
    class_member: str = "_class"
    variants: Sequence[str] = ()
    kind: str = "lines"

    def frames(self, options: Mapping[str, str]) -> Mapping[str, Any]:
        """See Framing."""
        objects = {each.name: each for each in self.objects}
        return {"objects": objects, "limit": self.limit, "class_member": self.class_member}


@dataclass(frozen=True, slots=True)
class Extra:
    """A field that no item has, for a script: ``type`` is a function of Lua's ``ProtoField``."""

    name: str
    type: str
    values: Mapping[int, str] | None = None


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua file of the protocol: ``name`` in ``package``. It may define framings and shows."""

    package: str
    name: str


@dataclass(frozen=True, slots=True)
class Declaration:
    """The dissector of one protocol.

    ``label`` is shown in the column Protocol. ``settings`` names further settings of the listener
    that are preferences, beside those that ``framing`` varies with.
    """

    label: str
    framing: Framing
    udp: bool = False
    settings: Sequence[str] = ()
    scripts: Sequence[Script] = ()
    extra: Sequence[Extra] = field(default=())
