"""A record of the log: the messages and operations of one commit. Sans-IO.

A record is a head of fixed size, the columns of a ``Block``, the operations, and the payloads.
``docs/history-format.md`` specifies every byte. Integers are little-endian.

Operations change the metadata. They are in the log so that they are atomic with the messages of the
record; SQLite has a copy that is derived from them.

The head has a checksum of its own, so that the length in it can be trusted where the rest of the
record is damaged. Both begin with the salt of the segment. So a payload that holds the bytes of a
record, or of its head, cannot pass for one, because publishers do not know the salt.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

# As zlib computes it, with the processor's instructions for it. That of the system's zlib took a
# third of the instructions of storing messages of 64 bytes.
from zlib_ng.zlib_ng import crc32

from pubsub.errors import NewerVersion
from pubsub.interfaces import Value
from pubsub.store.records.block import Block
from pubsub.store.records.block_columns import counted_bytes, encode_name, encode_names
from pubsub.store.records.compression import compressed, decompressed
from pubsub.store.records.run_encoding import RunColumns, encode_runs
from pubsub.store.records.stored_runs import RunRecord

MAGIC = b"PSLR"
VERSION = 1
START = MAGIC + bytes([VERSION, 0])
"""The first bytes of a record."""
LOST, CLOSED, SEALED, COMPRESSED = 1, 2, 4, 8
"""Flags: the messages of the record are lost; the log was closed; the segment ends here; all behind
the head is compressed. In the record that ends a segment the last one says that its records were
compressed where that made them smaller."""
REWRITTEN = 0
"""The epoch of the records of segments that were rewritten, which have no operations."""
_KNOWN_FLAGS = LOST | CLOSED | SEALED | COMPRESSED
_HEAD = struct.Struct("<4sBBHIIQQQQqqQ8I")
HEAD_BYTES = _HEAD.size
# Where the checksums are: that of the head covers all bytes before it but that of the record, which
# covers these too, and the bytes behind the head.
_CRC_AT, _CRC_END = 8, 12
_CHECK_AT = HEAD_BYTES - 4
# Payloads of at least this average size are not copied into one buffer.
_LARGE = 16 * 1024
# ``crc32`` releases the interpreter for larger buffers.
_CRC_BYTES = 5000
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_EPOCH = struct.Struct("<IIq16s")
_PUT, _DELETE, _END, _BEGIN = 1, 2, 3, 4


class Put(NamedTuple):
    """Store ``value`` under ``key``; None deletes the key."""

    table: str
    key: str
    value: Value | None


class End(NamedTuple):
    """End ``topic``: its messages before ``offset`` are not read again."""

    topic: str
    offset: int


class Begin(NamedTuple):
    """Begin an epoch, at ``opened`` (µs), under the boot of the operating system ``boot``."""

    number: int
    mark: int
    opened: int
    boot: bytes


Operation: TypeAlias = Put | End | Begin


@dataclass(slots=True)
class Record:
    """A record to be written; it has ``count`` offsets from ``base`` on.

    ``first`` and ``last`` are timestamps in µs, ``run`` is the number of the broker run.
    ``columns`` are names, runs, lists, picks, lengths and headers.
    """

    base: int
    count: int = 0
    first: int = 0
    last: int = 0
    run: int = 0
    flags: int = 0
    columns: tuple[bytes, ...] = (b"",) * 6
    operations: Sequence[Operation] = ()
    payloads: Sequence[bytes | memoryview] = field(default=(), repr=False)

    @property
    def stop(self) -> int:
        """The offset after the last message."""
        return self.base + self.count


@dataclass(frozen=True, slots=True)
class RecordHead:
    """The head of a record; ``length`` is that of the whole record in bytes.

    ``crc`` is the checksum of the record, ``check`` that of the head.
    """

    flags: int
    crc: int
    epoch: int
    length: int
    base: int
    count: int
    ceiling: int
    first: int
    last: int
    run: int
    sizes: tuple[int, ...]
    check: int

    @property
    def stop(self) -> int:
        """The offset after the last message."""
        return self.base + self.count


def record_of_runs(
    runs: Sequence[RunRecord], operations: Sequence[Operation], base: int, stop: int, run: int
) -> Record:
    """Return a record of ``runs`` from the offset ``base`` to before ``stop``."""
    names: dict[bytes, int] = {}
    columns = encode_runs(runs, base, names)
    return Record(
        base,
        stop - base,
        columns.first_timestamp,
        columns.last_timestamp,
        run,
        0,
        (encode_names(names), *_five(columns)),
        operations,
        columns.payloads,
    )


def _five(columns: RunColumns) -> tuple[bytes, ...]:
    return (columns.runs, columns.lists, columns.picks, columns.lengths, columns.headers)


def record_of_block(block: Block) -> Record:
    """Return a record of the messages of ``block``."""
    columns = (block.names, block.runs, block.lists, block.picks, block.lengths, block.headers)
    return Record(
        block.base, block.count, block.first, block.last, block.run, 0, columns, (),
        (block.payloads,),
    )  # fmt: skip


def encode(
    record: Record, salt: bytes, epoch: int, ceiling: int, compress: bool = False
) -> tuple[list[bytes | memoryview], int]:
    """Return the bytes of ``record`` as buffers to be written one after another, and their length.

    ``ceiling`` is an offset that no message shown to a reader has reached. With ``compress`` the
    record is compressed if that makes it smaller.
    """
    operations = encode_operations(record.operations)
    before = b"".join((*record.columns, operations))
    sizes = (*map(len, record.columns), len(operations))
    payloads, flags = record.payloads, record.flags
    if compress and (packed := compressed(b"".join((before, *payloads)))) is not None:
        before, payloads, flags = packed, (), flags | COMPRESSED
    nbytes = sum(map(len, payloads))
    length = HEAD_BYTES + len(before) + nbytes
    fields = (
        MAGIC, VERSION, 0, flags, 0, epoch, length, record.base, record.count, ceiling,
        record.first, record.last, record.run, *sizes, 0,
    )  # fmt: skip
    head = bytearray(_HEAD.pack(*fields))
    check = _check_of(head, salt)
    if len(payloads) > 1 and nbytes < _LARGE * len(payloads):
        payloads = (b"".join(payloads),)
    crc = _checksum(payloads, crc32(before, check))
    _U32.pack_into(head, _CRC_AT, crc)
    _U32.pack_into(head, _CHECK_AT, check)
    return [bytes(head) + before, *payloads], length


def _checksum(payloads: Sequence[bytes | memoryview], crc: int) -> int:
    """Continue the checksum ``crc`` with ``payloads``."""
    if len(payloads) <= 1:
        return crc32(payloads[0], crc) if payloads else crc
    # The checksum of a whole payload would release the interpreter, and it can take milliseconds
    # to get it back.
    for payload in payloads:
        view = memoryview(payload)
        for at in range(0, len(view), _CRC_BYTES):
            crc = crc32(view[at : at + _CRC_BYTES], crc)
    return crc


def decode_head(data: bytes | memoryview, salt: bytes, at: int = 0) -> RecordHead | None:
    """Return the head of the record at ``at``; None if no intact head is there.

    Raises NewerVersion for one that a later version has written.
    """
    if len(data) - at < HEAD_BYTES:
        return None
    (
        magic, version, _, flags, crc, epoch, length, base, count, ceiling, first, last, run,
        *sizes, check,
    ) = _HEAD.unpack_from(data, at)  # fmt: skip
    if magic != MAGIC or check != _check_of(data[at : at + HEAD_BYTES], salt):
        return None
    if version != VERSION or flags & ~_KNOWN_FLAGS:
        raise NewerVersion(
            f"history: a record has version {version} and the flags {flags:#x}, which this version "
            "does not know; use the version that wrote it, or restore a backup"
        )
    if length < (HEAD_BYTES if flags & COMPRESSED else HEAD_BYTES + sum(sizes)):
        return None
    return RecordHead(
        flags, crc, epoch, length, base, count, ceiling, first, last, run, tuple(sizes), check
    )


def _check_of(head: bytes | bytearray | memoryview, salt: bytes) -> int:
    return crc32(head[_CRC_END:_CHECK_AT], crc32(head[:_CRC_AT], crc32(salt)))


def is_intact(head: RecordHead, data: memoryview) -> bool:
    """Return whether the checksum of ``data``, a whole record, is right."""
    return len(data) == head.length and crc32(data[HEAD_BYTES:], head.check) == head.crc


def decode_block(head: RecordHead, data: memoryview) -> Block:
    """Return the messages of a record that has been verified."""
    columns = []
    data = _body_of(head, data)
    at = 0
    for size in head.sizes[:6]:
        columns.append(bytes(data[at : at + size]))
        at += size
    names, runs, lists, picks, lengths, headers = columns
    at += sum(head.sizes[6:])
    return Block(
        head.base, head.count, head.first, head.last, head.run,
        names, runs, lengths, headers, data[at:], lists, picks,
    )  # fmt: skip


def operations_of(head: RecordHead, data: memoryview) -> list[Operation]:
    """Return the operations of a record that has been verified."""
    at = sum(head.sizes[:6])
    return decode_operations(bytes(_body_of(head, data)[at : at + head.sizes[6]]))


def _body_of(head: RecordHead, data: memoryview) -> memoryview:
    """Return the bytes after the head, uncompressed."""
    body = data[HEAD_BYTES:]
    return memoryview(decompressed(body)) if head.flags & COMPRESSED and body else body


@dataclass(frozen=True, slots=True)
class Found:
    """A record of a segment: its head, its position, and its bytes, which have been verified."""

    head: RecordHead
    position: int
    data: memoryview

    def block(self) -> Block:
        """Return the messages."""
        return decode_block(self.head, self.data)

    def operations(self) -> list[Operation]:
        """Return the operations; raises NewerVersion if they are not those of this version."""
        try:
            return operations_of(self.head, self.data)
        except (ValueError, struct.error) as error:
            # The checksum is right, so they are as they were written.
            raise NewerVersion(
                f"history: the record at offset {self.head.base} has operations that this version "
                f"cannot read: {error}; use the version that wrote it, or restore a backup"
            ) from None


def encode_operations(operations: Iterable[Operation]) -> bytes:
    """Encode operations: a code of one byte each, then its fields."""
    parts: list[bytes] = []
    for one in operations:
        if isinstance(one, Begin):
            parts.append(bytes([_BEGIN]) + _EPOCH.pack(one.number, one.mark, one.opened, one.boot))
        elif isinstance(one, End):
            parts.append(bytes([_END]) + encode_name(one.topic.encode()) + _U64.pack(one.offset))
        else:
            value = one.value() if callable(one.value) else one.value
            parts.append(bytes([_DELETE if value is None else _PUT]))
            parts.append(encode_name(one.table.encode()) + encode_name(one.key.encode()))
            parts.append(b"" if value is None else encode_name(value))
    return b"".join(parts)


def decode_operations(data: bytes) -> list[Operation]:
    """Return the operations that ``encode_operations`` encoded.

    Raises ValueError or struct.error for others.
    """
    found: list[Operation] = []
    at = 0
    while at < len(data):
        code = data[at]
        at += 1
        if not _PUT <= code <= _BEGIN:
            raise ValueError(f"an operation has the unknown code {code}")
        if code == _BEGIN:
            found.append(Begin(*_EPOCH.unpack_from(data, at)))
            at += _EPOCH.size
            continue
        name, at = _counted(data, at)
        if code == _END:
            (offset,) = _U64.unpack_from(data, at)
            at += _U64.size
            found.append(End(name.decode(), offset))
            continue
        key, at = _counted(data, at)
        value = None
        if code == _PUT:
            value, at = _counted(data, at)
        found.append(Put(name.decode(), key.decode(), value))
    return found


def _counted(data: bytes, at: int) -> tuple[bytes, int]:
    found, end = counted_bytes(data, at)
    if end > len(data):
        raise ValueError("the last operation is not complete")
    return found, end
