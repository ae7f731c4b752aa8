# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, binding=False, always_allow_keywords=False
"""The kernel in C: one step for each message, without the interpreter. See ``interpreted/``.

``interpreted/`` defines the behaviour; both are compared by tests with random input. Memory is
read only through ``data`` objects that are held, at offsets that were compared with their length.
"""

from secrets import randbits as getrandbits

from cpython.bytearray cimport PyByteArray_AsString, PyByteArray_Size
from cpython.bytes cimport (
    PyBytes_AsString,
    PyBytes_FromStringAndSize,
    PyBytes_Size,
)
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from pubsub.kernel.layout import TextHead

cdef extern from "Python.h":
    ctypedef struct PyObject
    # As those of cpython.list and cpython.bytes, for references that somebody else holds.
    PyObject *borrowed_item "PyList_GetItem"(list, Py_ssize_t) except NULL
    PyObject *found_item "PyDict_GetItemWithError"(dict, object) except? NULL
    int borrowed_bytes "PyBytes_AsStringAndSize"(PyObject *, char **, Py_ssize_t *) except -1
    bint is_plain_bytes "PyBytes_CheckExact"(PyObject *) noexcept
    # The length of bytes: the one member of their structure that the stable ABI has.
    ctypedef struct PyVarObject:
        Py_ssize_t ob_size

cdef enum:
    FIELDS = 2
    HEAD_BYTES = 32
    WORDS = 5
    # The fields of a run at rest, and the bytes of its row in a record of the history.
    RECORD = 15
    ROW = 40
    MAX_SHAPES = 64
    # Guesses at the next head that may fail in a row before none are made.
    GUESSES = 4
    # Beside the payload of a message in a queue, and beside the name of one of several senders.
    MESSAGE_BYTES = 64
    SENDER_BYTES = 48
cdef Py_ssize_t MAX_DATA = 0x7FFFFFFF
cdef int MAX_HEADS = 131072
# Where plain bytes begin in their object, so that a large list of them takes no call for each.
cdef bytes _SOME_BYTES = b"some"
cdef Py_ssize_t BYTES_AT = PyBytes_AsString(_SOME_BYTES) - <char *><PyObject *>_SOME_BYTES

cdef enum Match:
    DIFFERENT
    INCOMPLETE
    WHOLE

cdef struct Message:
    uint32_t start
    uint32_t size
    uint32_t index

cdef struct Field:
    Py_ssize_t at
    int width
    bint big
    # Of two's complement: what is added may be negative.
    uint64_t add

cdef struct Entry:
    const uint8_t *data
    Py_ssize_t length
    Field fields[FIELDS]
    int field_count
    # The head as words, of which the last one may overlap the one before, and which of their bits
    # are not those of length fields; none for a very short or a long head.
    int word_count
    uint64_t words[WORDS]
    uint64_t masks[WORDS]
    Py_ssize_t least
    Py_ssize_t limit
    # What follows a payload of text; NULL for a head with length fields.
    const uint8_t *after
    Py_ssize_t after_length
    uint32_t address
    int shape
    int next
    uint64_t digest


cdef struct Ready:
    # The first entry of an index. If its head is short and has one length field of 1 or 4 bytes,
    # the head with the variable bytes and what is needed to complete it; else ``length`` is 0.
    Entry *first
    uint32_t length
    uint32_t least
    uint32_t span
    uint32_t at
    uint32_t add
    int width
    bint big
    uint8_t text[HEAD_BYTES]


cdef struct Seen:
    # The scan in which an address was last seen, and its index in the columns of that scan.
    uint64_t scan
    uint32_t index


cdef inline bint same_bytes(const uint8_t *p, const uint8_t *q, Py_ssize_t size) noexcept nogil:
    """Compare bytes without a call, as most heads are short."""
    cdef uint64_t one, other
    while size >= 8:
        memcpy(&one, p, 8)
        memcpy(&other, q, 8)
        if one != other:
            return False
        p += 8
        q += 8
        size -= 8
    while size > 0:
        if p[0] != q[0]:
            return False
        p += 1
        q += 1
        size -= 1
    return True


cdef inline void copy_short(uint8_t *o, const uint8_t *p, Py_ssize_t size) noexcept nogil:
    """Copy bytes without a call, as most heads are short."""
    while size >= 8:
        memcpy(o, p, 8)
        o += 8
        p += 8
        size -= 8
    while size > 0:
        o[0] = p[0]
        o += 1
        p += 1
        size -= 1


cdef inline void copy_payload(uint8_t *o, const uint8_t *p, Py_ssize_t size) noexcept nogil:
    """Copy bytes, without a call if they are few."""
    if size > 256:
        memcpy(o, p, size)
        return
    if size < 32:
        copy_short(o, p, size)
        return
    memcpy(o + size - 32, p + size - 32, 32)
    while size > 32:
        memcpy(o, p, 32)
        o += 32
        p += 32
        size -= 32


cdef uint8_t *write_row(
    uint8_t *o,
    Py_ssize_t head_size,
    const uint8_t *data,
    const uint8_t **parts,
    const Message *messages,
    Py_ssize_t count,
) noexcept nogil:
    """Write messages of one size behind the head at ``o``, which all have; return the end.

    Their bytes are in ``parts``, or in ``data`` if that is NULL.
    """
    cdef const uint8_t *head = o
    cdef Py_ssize_t i, size = messages[0].size
    cdef uint64_t first = 0, last = 0
    cdef bint short = 8 <= head_size <= 16
    if short:
        memcpy(&first, head, 8)
        memcpy(&last, head + head_size - 8, 8)
    for i in range(count):
        if short:
            memcpy(o, &first, 8)
            memcpy(o + head_size - 8, &last, 8)
        elif i > 0:
            copy_short(o, head, head_size)
        o += head_size
        copy_payload(o, data + messages[i].start if parts == NULL else parts[i], size)
        o += size
    return o


cdef inline uint64_t read_field(const uint8_t *p, Field *field) noexcept nogil:
    cdef uint64_t value = 0
    cdef int i
    if field.width == 4:
        p += field.at
        if field.big:
            return <uint32_t>p[0] << 24 | <uint32_t>p[1] << 16 | <uint32_t>p[2] << 8 | p[3]
        return <uint32_t>p[3] << 24 | <uint32_t>p[2] << 16 | <uint32_t>p[1] << 8 | p[0]
    for i in range(field.width):
        if field.big:
            value = value << 8 | p[field.at + i]
        else:
            value |= <uint64_t>p[field.at + i] << (8 * i)
    return value


cdef inline void write_4(uint8_t *p, uint32_t value, bint big) noexcept nogil:
    # Without a loop a compiler makes one or two instructions of it.
    if big:
        p[0] = <uint8_t>(value >> 24)
        p[1] = <uint8_t>(value >> 16)
        p[2] = <uint8_t>(value >> 8)
        p[3] = <uint8_t>value
    else:
        p[0] = <uint8_t>value
        p[1] = <uint8_t>(value >> 8)
        p[2] = <uint8_t>(value >> 16)
        p[3] = <uint8_t>(value >> 24)


cdef inline void write_field(uint8_t *p, Field *field, uint64_t value) noexcept nogil:
    cdef int i
    if field.width == 4:
        write_4(p + field.at, <uint32_t>value, field.big)
        return
    for i in range(field.width):
        if field.big:
            p[field.at + field.width - 1 - i] = <uint8_t>(value >> (8 * i))
        else:
            p[field.at + i] = <uint8_t>(value >> (8 * i))


cdef inline uint64_t special_bytes(uint64_t word) noexcept nogil:
    """Return 0 if all bytes are ASCII without controls, quotes and backslashes."""
    cdef uint64_t ones = <uint64_t>0x0101010101010101
    cdef uint64_t quote = word ^ (ones * 0x22)
    cdef uint64_t backslash = word ^ (ones * 0x5C)
    return (
        word
        | ((word - ones * 0x20) & ~word)
        | ((quote - ones) & ~quote)
        | ((backslash - ones) & ~backslash)
    ) & (ones * 0x80)


cdef inline bint continues(uint8_t byte) noexcept nogil:
    return byte & 0xC0 == 0x80


cdef Py_ssize_t character_size(const uint8_t *p, Py_ssize_t left) noexcept nogil:
    """Return the bytes of the character at ``p``, which is not ASCII; 0 if it is not UTF-8."""
    cdef uint8_t first = p[0]
    if left < 2 or not 0xC2 <= first <= 0xF4 or not continues(p[1]):
        return 0
    if first < 0xE0:
        return 2
    if left < 3 or not continues(p[2]):
        return 0
    if first < 0xF0:
        # Neither overlong nor a surrogate.
        return 0 if (first == 0xE0 and p[1] < 0xA0) or (first == 0xED and p[1] >= 0xA0) else 3
    if left < 4 or not continues(p[3]):
        return 0
    return 0 if (first == 0xF0 and p[1] < 0x90) or (first == 0xF4 and p[1] >= 0x90) else 4


cdef Py_ssize_t plain_length(const uint8_t *p, Py_ssize_t left) noexcept nogil:
    """Return how many of the ``left`` bytes at ``p`` are UTF-8 that JSON does not escape."""
    cdef Py_ssize_t at = 0, size
    cdef uint64_t word
    while at < left:
        if left - at >= 8:
            memcpy(&word, p + at, 8)
            if not special_bytes(word):
                at += 8
                continue
        if p[at] >= 0x80:
            size = character_size(p + at, left - at)
            if not size:
                break
            at += size
        elif p[at] < 0x20 or p[at] == 0x22 or p[at] == 0x5C:
            break
        else:
            at += 1
    return at


cdef Match match_text(
    const uint8_t *p, Py_ssize_t left, Entry *entry, Py_ssize_t *size
) noexcept nogil:
    """As ``match``, for a text head."""
    cdef Py_ssize_t room = left - entry.length, rest
    if room < 0 or memcmp(p, entry.data, entry.length) != 0:
        return DIFFERENT
    size[0] = plain_length(p + entry.length, min(room, entry.limit + 1))
    if size[0] > entry.limit:
        return DIFFERENT
    rest = room - size[0]
    if memcmp(p + entry.length + size[0], entry.after, min(rest, entry.after_length)) != 0:
        return DIFFERENT
    return INCOMPLETE if rest < entry.after_length else WHOLE


cdef inline Py_ssize_t word_at(Entry *entry, int number) noexcept nogil:
    return 8 * number if number + 1 < entry.word_count else entry.length - 8


cdef inline uint64_t other_words(const uint8_t *p, Entry *entry) noexcept nogil:
    """Compare a head without its length fields; 0 if it is the same."""
    cdef uint64_t word, other = 0
    cdef int i
    for i in range(entry.word_count):
        memcpy(&word, p + word_at(entry, i), 8)
        other |= (word ^ entry.words[i]) & entry.masks[i]
    return other


cdef void fill_words(Entry *entry) noexcept nogil:
    """Set the words of a head, whose bytes and fields are known."""
    cdef uint8_t mask[8 * WORDS]
    cdef int i
    entry.word_count = 0
    if not 8 <= entry.length <= 8 * WORDS:
        return
    entry.word_count = <int>(entry.length + 7) // 8
    memset(mask, 0xFF, sizeof(mask))
    for i in range(entry.field_count):
        memset(mask + entry.fields[i].at, 0, entry.fields[i].width)
    for i in range(entry.word_count):
        memcpy(&entry.words[i], entry.data + word_at(entry, i), 8)
        memcpy(&entry.masks[i], mask + word_at(entry, i), 8)


cdef inline bint same_constants(const uint8_t *p, Entry *entry) noexcept nogil:
    """Compare a head without its length fields."""
    cdef Py_ssize_t at = 0
    cdef int i
    cdef Field *field
    if entry.word_count:
        return other_words(p, entry) == 0
    if entry.field_count:
        # Most long heads differ in their last bytes, behind a token that many have.
        at = max(entry.fields[0].at - 8, 0)
        if memcmp(p + at, entry.data + at, entry.fields[0].at - at) != 0:
            return False
        at = 0
    for i in range(entry.field_count):
        field = &entry.fields[i]
        if memcmp(p + at, entry.data + at, field.at - at) != 0:
            return False
        at = field.at + field.width
    return memcmp(p + at, entry.data + at, entry.length - at) == 0


cdef inline uint64_t size_in(const uint8_t *p, Entry *shape) noexcept nogil:
    """Return the payload's length by the one or two fields of a head."""
    cdef uint64_t size = read_field(p, &shape.fields[0]) - shape.fields[0].add
    if shape.field_count == 2 and read_field(p, &shape.fields[1]) - shape.fields[1].add != size:
        # More than the limit of any head.
        return ~<uint64_t>0
    return size


cdef inline bint fits(Entry *entry, uint64_t size) noexcept nogil:
    # A field smaller than what is added to it has become very large.
    return <uint64_t>entry.least <= size <= <uint64_t>entry.limit


cdef inline Match match(
    const uint8_t *p, Py_ssize_t left, Entry *entry, Py_ssize_t *size
) noexcept nogil:
    """Compare the ``left`` bytes at ``p`` with a head; set ``size`` to the payload's length."""
    cdef uint64_t found
    if entry.after != NULL:
        return match_text(p, left, entry, size)
    if left < entry.length or not same_constants(p, entry):
        return DIFFERENT
    found = size_in(p, entry)
    if not fits(entry, found):
        return DIFFERENT
    size[0] = <Py_ssize_t>found
    return WHOLE if size[0] <= left - entry.length else INCOMPLETE


cdef inline bint same_head(
    const uint8_t *p, Py_ssize_t left, const uint8_t *before, Entry *entry
) noexcept nogil:
    """Return whether a message at ``p`` has the head of the one before, which says its size."""
    return left >= entry.length and same_bytes(p, before, entry.length)


cdef Py_ssize_t count_alike(
    const uint8_t *p, Py_ssize_t left, const uint8_t *head, Py_ssize_t size, Py_ssize_t step
) noexcept nogil:
    """Return how many whole messages at ``p``, each of ``step`` bytes, have a head of ``size``."""
    cdef Py_ssize_t count = 0
    cdef uint64_t one, other, first, last
    if 8 <= size <= 16:
        memcpy(&first, head, 8)
        memcpy(&last, head + size - 8, 8)
        while left >= step:
            memcpy(&one, p, 8)
            memcpy(&other, p + size - 8, 8)
            if one != first or other != last:
                break
            p += step
            left -= step
            count += 1
        return count
    while left >= step and same_bytes(p, head, size):
        p += step
        left -= step
        count += 1
    return count


cdef int fill_text_entry(Entry *entry, head, uint32_t address) except -1:
    cdef bytes before = head.before, after = head.after
    if not after.startswith(b'"'):
        raise ValueError("the text after a payload begins with a quote")
    entry.data = <const uint8_t *>PyBytes_AsString(before)
    entry.length = PyBytes_Size(before)
    entry.after = <const uint8_t *>PyBytes_AsString(after)
    entry.after_length = PyBytes_Size(after)
    entry.field_count = entry.word_count = 0
    entry.least = 0
    # Also if it is negative, nothing fits.
    entry.limit = max(min(head.limit, MAX_DATA), -1)
    entry.address = address
    entry.next = -1
    entry.shape = 0
    entry.digest = 0
    return 0


cdef int fill_entry(Entry *entry, head, uint32_t address) except -1:
    cdef bytes data
    cdef Py_ssize_t before = 0
    if isinstance(head, TextHead):
        return fill_text_entry(entry, head, address)
    data = head.data
    entry.data = <const uint8_t *>PyBytes_AsString(data)
    entry.length = PyBytes_Size(data)
    entry.after = NULL
    entry.after_length = 0
    entry.field_count = <int>len(head.fields)
    if not 1 <= entry.field_count <= FIELDS:
        raise ValueError(f"a head has 1 or {FIELDS} length fields, not {entry.field_count}")
    for i, field in enumerate(head.fields):
        entry.fields[i].at = field.at
        entry.fields[i].width = field.width
        entry.fields[i].big = field.big
        entry.fields[i].add = <uint64_t><int64_t>field.add
        if field.at < before or not 1 <= field.width <= 8:
            raise ValueError("length fields are in ascending order, of 1 to 8 bytes")
        before = field.at + field.width
    if before > entry.length:
        raise ValueError("a length field is outside its head")
    if head.least < 0:
        raise ValueError("the least length of a payload is negative")
    entry.least = head.least
    entry.limit = min(head.limit, MAX_DATA)
    if entry.limit < entry.least:
        # Nothing fits. A negative limit would be a very large one where it is compared.
        entry.least, entry.limit = 1, 0
    fill_words(entry)
    entry.address = address
    entry.next = -1
    entry.shape = 0
    entry.digest = 0
    return 0


cdef class Columns:
    """See ``interpreted.Columns``."""

    cdef readonly bytes data
    cdef readonly Py_ssize_t end
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t nbytes
    cdef readonly Py_ssize_t largest
    cdef readonly Py_ssize_t smallest
    cdef readonly list addresses
    cdef Message *messages
    cdef Py_ssize_t room
    # Payloads that are not joined to `data` yet, and where the bytes of each are; then NULL.
    cdef list held
    cdef const uint8_t **parts
    # The generation of the table that found them, and the number of their address there; or None.
    cdef object source
    cdef uint32_t source_address

    def __dealloc__(self):
        free(self.messages)
        free(self.parts)

    def __eq__(self, other):
        """See ``interpreted.Columns.__eq__``."""
        return isinstance(other, Columns) and self.pack() == other.pack()

    __hash__ = None

    cdef int reserve(self, Py_ssize_t room) except -1:
        cdef Message *grown
        if room > self.room:
            grown = <Message *>realloc(self.messages, room * sizeof(Message))
            if grown == NULL:
                raise MemoryError
            self.messages = grown
            self.room = room
        return 0

    cdef inline int append(self, Py_ssize_t start, Py_ssize_t size, uint32_t index) except -1:
        if self.count == self.room:
            self.reserve(2 * self.room if self.room else 8)
        self.messages[self.count].start = <uint32_t>start
        self.messages[self.count].size = <uint32_t>size
        self.messages[self.count].index = index
        if size > self.largest:
            self.largest = size
        if size < self.smallest or self.count == 0:
            self.smallest = size
        self.count += 1
        self.nbytes += size
        return 0

    cdef int append_alike(self, Py_ssize_t count, Py_ssize_t step) except -1:
        """Append messages of the size and the index of the last one, ``step`` bytes apart."""
        cdef Message like = self.messages[self.count - 1]
        cdef Message *message
        cdef Py_ssize_t i
        if self.count + count > self.room:
            self.reserve(max(2 * self.room, self.count + count))
        message = &self.messages[self.count]
        for i in range(count):
            like.start += <uint32_t>step
            message[i].start, message[i].size, message[i].index = like.start, like.size, like.index
        self.count += count
        self.nbytes += count * like.size
        return 0

    cdef inline Py_ssize_t row_end(self, Py_ssize_t at) noexcept nogil:
        """Return where the messages with the size and the index of the one at ``at`` end."""
        cdef const Message *messages = self.messages
        cdef uint32_t size = messages[at].size, index = messages[at].index
        cdef Py_ssize_t count = self.count
        if self.parts != NULL and self.smallest == self.largest:
            # All have index 0.
            return count
        at += 1
        while at < count and messages[at].size == size and messages[at].index == index:
            at += 1
        return at

    cdef int refer(self, list held) except -1:
        """Take payloads of index 0 from a list that nothing else changes."""
        cdef Py_ssize_t i, size = 0, at = 0, largest = 0, smallest = MAX_DATA, count = len(held)
        cdef PyObject *item
        cdef char *part = NULL
        # Locals, because a write could change members as far as C can tell.
        cdef const uint8_t **parts = <const uint8_t **>malloc(max(count, 1) * sizeof(uint8_t *))
        self.parts = parts
        if parts == NULL:
            raise MemoryError
        self.held = held
        for i in range(count):
            item = borrowed_item(held, i)
            if is_plain_bytes(item):
                size = (<PyVarObject *>item).ob_size
                part = <char *>item + BYTES_AT
            else:
                borrowed_bytes(item, &part, &size)
            if at > MAX_DATA - size:
                raise ValueError("too many bytes for one batch")
            parts[i] = <const uint8_t *>part
            at += size
            largest = max(size, largest)
            smallest = min(size, smallest)
        self.nbytes = self.end = at
        self.largest, self.smallest = largest, smallest if count else 0
        self.number_parts(count)
        return 0

    cdef int number_parts(self, Py_ssize_t count) except -1:
        """Make the messages of ``count`` parts, whose bounds and total are known."""
        cdef Message *messages
        cdef Message made
        cdef Py_ssize_t i
        self.reserve(count)
        messages = self.messages
        made.start = made.index = 0
        made.size = <uint32_t>self.largest
        if self.smallest == self.largest:
            for i in range(count):
                messages[i] = made
                made.start += made.size
        else:
            for i in range(count):
                made.size = <uint32_t>PyBytes_Size(self.held[i])
                messages[i] = made
                made.start += made.size
        self.count = count
        return 0

    cdef uint8_t *write(self, uint8_t *o) except NULL:
        """Write the payloads, which are ``nbytes``; return their end."""
        cdef const uint8_t *p = NULL
        # Locals, because a write could change members as far as C can tell.
        cdef const uint8_t **parts = self.parts
        cdef const Message *messages = self.messages
        cdef Py_ssize_t i, count = self.count
        if parts == NULL:
            p = <const uint8_t *>PyBytes_AsString(self.data)
        if count and self.smallest == self.largest:
            return write_row(o, 0, p, parts, messages, count)
        for i in range(count):
            copy_payload(o, p + messages[i].start if parts == NULL else parts[i], messages[i].size)
            o += messages[i].size
        return o

    cdef int join(self) except -1:
        """Have the payloads in ``data``."""
        if self.parts == NULL:
            return 0
        self.data = self.held[0] if self.count == 1 else Columns.joined([self])
        free(self.parts)
        self.parts = NULL
        self.held = None
        return 0

    cdef Columns like(self, Py_ssize_t room):
        cdef Columns made = Columns.__new__(Columns)
        self.join()
        made.data = self.data
        made.end = self.end
        made.addresses = self.addresses
        made.reserve(room)
        return made

    @staticmethod
    def one(bytes payload not None, address=0, Py_ssize_t end=0):
        """See ``interpreted.Columns.one``."""
        cdef Columns made = Columns.__new__(Columns)
        if PyBytes_Size(payload) > MAX_DATA:
            raise ValueError("too many bytes for one batch")
        made.data = payload
        made.addresses = [address]
        made.reserve(1)
        made.append(0, PyBytes_Size(payload), 0)
        made.end = end
        return made

    @staticmethod
    def of(list payloads not None, indexes=None, list addresses=None):
        """See ``interpreted.Columns.of``."""
        cdef Columns made = Columns.__new__(Columns)
        cdef Py_ssize_t i
        if indexes is not None and len(indexes) != len(payloads):
            raise ValueError("indexes and payloads differ in number")
        made.addresses = [0] if addresses is None else addresses
        made.refer(payloads.copy())
        if indexes is not None:
            for i in range(made.count):
                made.messages[i].index = indexes[i]
        made.join()
        return made

    @staticmethod
    def gather(list payloads not None):
        """See ``interpreted.Columns.gather``."""
        cdef Columns made = Columns.__new__(Columns)
        made.addresses = [0]
        made.refer(payloads.copy())
        return made

    @staticmethod
    def unpack(
        bytes data not None, bytes sizes not None, bytes indexes not None, Py_ssize_t at=0, stop=None
    ):
        """See ``interpreted.Columns.unpack``."""
        cdef Columns made = Columns.__new__(Columns)
        cdef Py_ssize_t i, count = PyBytes_Size(sizes) // 4
        cdef Py_ssize_t nbytes = PyBytes_Size(data) if stop is None else stop
        cdef const uint32_t *size = <const uint32_t *>PyBytes_AsString(sizes)
        cdef const uint32_t *index = NULL
        if PyBytes_Size(indexes):
            index = <const uint32_t *>PyBytes_AsString(indexes)
            if PyBytes_Size(indexes) != 4 * count:
                raise ValueError("indexes and sizes differ in number")
        if not 0 <= at <= nbytes <= PyBytes_Size(data) <= MAX_DATA:
            raise ValueError("the payloads are outside the data, or the data is too long")
        if PyBytes_Size(sizes) != 4 * count:
            raise ValueError("a size has four bytes")
        made.data = data
        made.addresses = [0]
        made.reserve(count)
        for i in range(count):
            if size[i] > nbytes - at:
                raise ValueError("the sizes exceed the data")
            made.append(at, size[i], 0 if index == NULL else index[i])
            at += size[i]
        if at != nbytes:
            raise ValueError("the data exceeds the sizes")
        made.end = made.nbytes
        return made

    @staticmethod
    def equal(bytes data not None, Py_ssize_t size, Py_ssize_t count, Py_ssize_t at=0, stop=None):
        """See ``interpreted.Columns.equal``."""
        cdef Columns made = Columns.__new__(Columns)
        cdef Py_ssize_t end = PyBytes_Size(data) if stop is None else stop
        if not 0 <= at <= end <= PyBytes_Size(data) <= MAX_DATA:
            raise ValueError("the payloads are outside the data, or the data is too long")
        # Neither is so large that the product exceeds its type.
        if not 0 <= size <= MAX_DATA or not 0 <= count <= MAX_DATA or size * count != end - at:
            raise ValueError("the size and the data differ in length")
        made.data = data
        made.addresses = [0]
        made.reserve(count)
        if count:
            made.append(at, size, 0)
            made.append_alike(count - 1, size)
        made.end = made.nbytes
        return made

    @staticmethod
    def joined(list parts not None):
        """See ``interpreted.Columns.joined``."""
        # Held, so that what is measured is what is copied.
        cdef tuple held = tuple(parts)
        cdef Py_ssize_t total = 0
        cdef bytes out
        cdef uint8_t *o
        for part in held:
            total += (<Columns>part).nbytes if isinstance(part, Columns) else PyBytes_Size(part)
        out = PyBytes_FromStringAndSize(NULL, total)
        o = <uint8_t *>PyBytes_AsString(out)
        for part in held:
            if isinstance(part, Columns):
                o = (<Columns>part).write(o)
            else:
                o = write_text(o, PyBytes_AsString(part), PyBytes_Size(part))
        return out

    def totals(self):
        """See ``interpreted.Columns.totals``."""
        cdef Py_ssize_t i, most = 0
        cdef Py_ssize_t *counts
        cdef Py_ssize_t *sums
        if not self.count:
            return []
        for i in range(self.count):
            if self.messages[i].index > most:
                most = self.messages[i].index
        if most == 0:
            return [(0, self.count, self.nbytes)]
        if most > 4 * self.count + 256:
            return self.sparse_totals()
        counts = <Py_ssize_t *>malloc(2 * (most + 1) * sizeof(Py_ssize_t))
        if counts == NULL:
            raise MemoryError
        try:
            memset(counts, 0, 2 * (most + 1) * sizeof(Py_ssize_t))
            sums = counts + most + 1
            for i in range(self.count):
                counts[self.messages[i].index] += 1
                sums[self.messages[i].index] += self.messages[i].size
            return [(i, counts[i], sums[i]) for i in range(most + 1) if counts[i]]
        finally:
            free(counts)

    def add_totals(self, bytearray tallies not None):
        """See ``interpreted.Columns.add_totals``."""
        # Locals, because a write to the sums could change members as far as C can tell.
        cdef Py_ssize_t i, count = self.count, places = PyByteArray_Size(tallies) // 16
        cdef const Message *messages = self.messages
        cdef int64_t *sums = <int64_t *>PyByteArray_AsString(tallies)
        cdef int64_t *tally
        cdef uint32_t most = 0
        for i in range(count):
            if messages[i].index > most:
                most = messages[i].index
        if count and most >= places:
            raise ValueError("an index has no tally")
        for i in range(count):
            tally = sums + 2 * messages[i].index
            tally[0] += 1
            tally[1] += messages[i].size

    @staticmethod
    def count_each(bytes sizes not None, bytes indexes not None):
        """See ``interpreted.Columns.count_each``."""
        cdef Py_ssize_t i, count = PyBytes_Size(sizes) // 4
        cdef const uint32_t *size = <const uint32_t *>PyBytes_AsString(sizes)
        cdef const uint32_t *index = <const uint32_t *>PyBytes_AsString(indexes)
        cdef uint32_t most = 0
        cdef int64_t *counts
        cdef int64_t *sums
        if PyBytes_Size(indexes) != 4 * count or PyBytes_Size(sizes) != 4 * count:
            raise ValueError("indexes and sizes differ in number")
        for i in range(count):
            if index[i] > most:
                most = index[i]
        if most > 4 * count + 256:
            raise ValueError("an index is too large")
        counts = <int64_t *>calloc(2 * (<size_t>most + 1), sizeof(int64_t))
        if counts == NULL:
            raise MemoryError
        try:
            sums = counts + most + 1
            for i in range(count):
                counts[index[i]] += 1
                sums[index[i]] += size[i]
            return [(i, counts[i], sums[i]) for i in range(<Py_ssize_t>most + 1) if counts[i]]
        finally:
            free(counts)

    cdef list sparse_totals(self):
        """As ``totals``, without memory for the indexes that no message has."""
        cdef dict totals = {}
        cdef Py_ssize_t i
        for i in range(self.count):
            count, nbytes = totals.get(self.messages[i].index, (0, 0))
            totals[self.messages[i].index] = (count + 1, nbytes + self.messages[i].size)
        return [(index, *totals[index]) for index in sorted(totals)]

    def sizes(self):
        """See ``interpreted.Columns.sizes``."""
        cdef Py_ssize_t i
        return [self.messages[i].size for i in range(self.count)]

    def indexes(self):
        """See ``interpreted.Columns.indexes``."""
        cdef Py_ssize_t i
        return [self.messages[i].index for i in range(self.count)]

    def payloads(self):
        """See ``interpreted.Columns.payloads``."""
        cdef const char *p
        cdef Py_ssize_t i
        if self.parts != NULL:
            return self.held.copy()
        p = PyBytes_AsString(self.data)
        return [
            PyBytes_FromStringAndSize(p + self.messages[i].start, self.messages[i].size)
            for i in range(self.count)
        ]

    def slice(self, Py_ssize_t start, Py_ssize_t stop):
        """See ``interpreted.Columns.slice``."""
        cdef Columns made = self.like(max(min(stop, self.count) - max(start, 0), 0))
        cdef Py_ssize_t i
        for i in range(max(start, 0), min(stop, self.count)):
            made.append(self.messages[i].start, self.messages[i].size, self.messages[i].index)
        return made

    def runs(self):
        """See ``interpreted.Columns.runs``."""
        cdef list found = []
        cdef Columns made = None
        cdef Message *message
        cdef Py_ssize_t i
        self.join()
        for i in range(self.count):
            message = &self.messages[i]
            if i == 0 or message.index != self.messages[i - 1].index:
                made = Columns.__new__(Columns)
                made.data = self.data
                made.end = self.end
                made.addresses = self.addresses[message.index : message.index + 1]
                made.source, made.source_address = self.source, self.source_address
                found.append((message.index, made))
            made.append(message.start, message.size, 0)
        return found

    def remap(self, list indexes not None):
        """See ``interpreted.Columns.remap``."""
        cdef Columns made = self.like(self.count)
        cdef Py_ssize_t i, given = len(indexes)
        cdef int *places = <int *>malloc(max(given, 1) * sizeof(int))
        if places == NULL:
            raise MemoryError
        try:
            for i in range(given):
                places[i] = indexes[i]
            made.take_remapped(self, places, given)
        finally:
            free(places)
        return made

    cdef int take_remapped(self, Columns other, const int *places, Py_ssize_t given) except -1:
        """Take the messages of ``other``, for which there is room, with their new indexes."""
        cdef const Message *messages = other.messages
        cdef Message *taken = self.messages
        cdef Py_ssize_t i, count = other.count, at = 0
        cdef int index
        for i in range(count):
            if messages[i].index >= <size_t>given:
                raise IndexError("no new index is given for an index of the column")
            index = places[messages[i].index]
            taken[at] = messages[i]
            taken[at].index = <uint32_t>index
            at += index >= 0
        self.count, self.nbytes = at, other.nbytes
        self.largest, self.smallest = other.largest, other.smallest
        if at < count:
            self.measure()
        return 0

    cdef int measure(self) except -1:
        """Set the bounds and the total of the messages."""
        cdef Py_ssize_t i, size
        self.nbytes = self.largest = 0
        self.smallest = self.messages[0].size if self.count else 0
        for i in range(self.count):
            size = self.messages[i].size
            self.nbytes += size
            self.largest = max(size, self.largest)
            self.smallest = min(size, self.smallest)
        return 0

    def pack(self):
        """See ``interpreted.Columns.pack``."""
        return Columns.joined([self]), self.words(False), self.words(True)

    def words(self, bint of_indexes=False):
        """See ``interpreted.Columns.words``."""
        cdef bytes out = PyBytes_FromStringAndSize(NULL, 4 * self.count)
        cdef uint32_t *o = <uint32_t *>PyBytes_AsString(out)
        cdef Py_ssize_t i
        for i in range(self.count):
            o[i] = self.messages[i].index if of_indexes else self.messages[i].size
        return out


include "head_shapes.pxi"
include "head_table.pxi"


cdef inline uint8_t *write_text(uint8_t *o, const void *text, Py_ssize_t size) noexcept nogil:
    memcpy(o, text, size)
    return o + size


cdef class Tally:
    """See ``interpreted.Tally``."""

    cdef public int64_t messages
    cdef public int64_t nbytes


cdef class LinkedTally(Tally):
    """See ``interpreted.LinkedTally``."""

    cdef readonly Tally total
    cdef Tally other
    # Those of the columns that a queue took last (see ``Columns``), since `other` was linked.
    cdef object source
    cdef uint32_t source_address
    cdef bytes source_sender
    cdef str source_protocol

    def __cinit__(self, *arguments, **options):
        # A subclass may leave __init__ out.
        self.total = self.other = Tally()

    def __init__(self, Tally total not None):
        self.total = total

    def link(self, Tally other not None):
        """See ``interpreted.LinkedTally.link``."""
        self.other = other
        self.source = None

    def count(self, Columns columns not None):
        """See ``interpreted.LinkedTally.count``."""
        self.add(columns.count, columns.nbytes)

    def count_linked(self, Columns columns not None):
        """See ``interpreted.LinkedTally.count_linked``."""
        self.add_linked(columns.count, columns.nbytes)

    cdef inline void add_linked(self, Py_ssize_t count, Py_ssize_t nbytes):
        self.other.messages += count
        self.other.nbytes += nbytes
        self.add(count, nbytes)

    cdef inline void add(self, Py_ssize_t count, Py_ssize_t nbytes):
        self.messages += count
        self.nbytes += nbytes
        self.total.messages += count
        self.total.nbytes += nbytes


cdef class ColumnQueue:
    """See ``interpreted.ColumnQueue``."""

    cdef Py_ssize_t small
    cdef Py_ssize_t total
    # The payloads, which become the data of `columns` at the end, and the messages of each sender.
    cdef uint8_t *payloads
    cdef uint32_t *counts
    cdef Columns columns
    cdef list senders
    # Columns that were put.
    cdef Py_ssize_t parts
    # Indexes by topic, and the last topic with its index.
    cdef dict places
    cdef Tally topic
    cdef int place
    cdef str protocol

    def __cinit__(self, Py_ssize_t small, Py_ssize_t total):
        if not 0 <= small <= MAX_DATA or not 0 <= total <= MAX_DATA:
            raise ValueError("the queue is too large")
        self.small, self.total = small, total
        self.payloads = <uint8_t *>malloc(total + 1)
        self.counts = <uint32_t *>malloc((total // MESSAGE_BYTES + 1) * sizeof(uint32_t))
        if self.payloads == NULL or self.counts == NULL:
            raise MemoryError
        self.begin()

    def __dealloc__(self):
        free(self.payloads)
        free(self.counts)

    def __len__(self):
        return self.parts

    cdef int begin(self) except -1:
        self.columns, self.senders, self.places = Columns.__new__(Columns), [], {}
        self.parts = 0
        self.protocol = self.topic = None
        return 0

    def open(self, str protocol not None):
        """See ``interpreted.ColumnQueue.open``."""
        self.protocol = protocol

    cdef bint make_room(self, Py_ssize_t count, Py_ssize_t nbytes, str protocol) except -1:
        """Return whether the messages are accepted; then there is room for them."""
        nbytes += MESSAGE_BYTES * count
        if (
            protocol is not self.protocol
            or nbytes > self.small
            or not count
            or nbytes + self.columns.nbytes + MESSAGE_BYTES * self.columns.count > self.total
        ):
            return False
        if self.columns.count + count > self.columns.room:
            self.columns.reserve(2 * (self.columns.count + count))
        self.parts += 1
        return True

    cdef int begin_run(self, Tally topic, bytes sender, Py_ssize_t count) except -1:
        """Note messages of a sender and a topic; return the index of the topic."""
        self.counts[len(self.senders)] = <uint32_t>count
        self.senders.append(sender)
        if topic is not self.topic:
            found = self.places.get(topic)
            if found is None:
                found = self.places[topic] = len(self.places)
            self.topic, self.place = topic, found
        return self.place

    def put(
        self,
        Columns columns not None,
        bytes sender not None,
        str protocol not None,
        LinkedTally tally not None,
    ):
        """See ``interpreted.ColumnQueue.put``."""
        cdef Py_ssize_t i, size, at = self.columns.nbytes
        cdef int place
        if not self.make_room(columns.count, columns.nbytes, protocol):
            return False
        columns.write(self.payloads + at)
        place = self.begin_run(tally.other, sender, columns.count)
        for i in range(columns.count):
            size = columns.messages[i].size
            self.columns.append(at, size, place)
            at += size
        tally.add_linked(columns.count, columns.nbytes)
        tally.source, tally.source_address = columns.source, columns.source_address
        tally.source_sender, tally.source_protocol = sender, protocol
        return True

    def put_mixed(
        self,
        Columns columns not None,
        tuple topics not None,
        bytes sender not None,
        str protocol not None,
        LinkedTally tally not None,
    ):
        """See ``interpreted.ColumnQueue.put_mixed``."""
        for topic in topics:
            if not isinstance(topic, Tally):
                raise TypeError("a topic is not a tally")
        return self.put_tallies(columns, list(topics), sender, protocol, tally)

    cdef bint put_tallies(
        self, Columns columns, list topics, bytes sender, str protocol, LinkedTally tally
    ) except -1:
        """Do as ``put_mixed`` with a list of tallies."""
        cdef Py_ssize_t i, size, number = len(topics), at = self.columns.nbytes
        cdef int place = 0
        cdef Tally topic
        for i in range(columns.count):
            if columns.messages[i].index >= <size_t>number:
                raise IndexError("a message has no topic")
        if not self.make_room(columns.count, columns.nbytes, protocol):
            return False
        columns.write(self.payloads + at)
        for i in range(columns.count):
            size = columns.messages[i].size
            # Not tested again: nothing else has the list.
            topic = <Tally>borrowed_item(topics, columns.messages[i].index)
            if i == 0 or topic is not self.topic:
                place = self.begin_run(topic, sender, 0)
            self.counts[len(self.senders) - 1] += 1
            self.columns.append(at, size, place)
            topic.messages += 1
            topic.nbytes += size
            at += size
        tally.add(columns.count, columns.nbytes)
        return True

    def put_known(
        self,
        Columns columns not None,
        dict topics not None,
        bytes sender not None,
        str protocol not None,
        LinkedTally tally not None,
    ):
        """See ``interpreted.ColumnQueue.put_known``."""
        cdef list found = []
        for address in columns.addresses:
            topic = topics.get(address)
            if not isinstance(topic, Tally):
                return False
            found.append(topic)
        return self.put_tallies(columns, found, sender, protocol, tally)

    def take(self):
        """See ``interpreted.ColumnQueue.take``."""
        cdef Columns made = self.columns
        cdef tuple senders = tuple(self.senders), topics = tuple(self.places)
        made.data = PyBytes_FromStringAndSize(<char *>self.payloads, made.nbytes)
        made.addresses = [0]
        made.end = made.nbytes
        counts = PyBytes_FromStringAndSize(<char *>self.counts, 4 * len(senders))
        self.begin()
        return made, (counts, senders), topics


def add_to_each(tuple tallies not None, int64_t messages, int64_t nbytes, tuple totals not None):
    """See ``interpreted.add_to_each``."""
    cdef Tally tally
    for tally in tallies:
        tally.messages += messages
        tally.nbytes += nbytes
    for tally in totals:
        tally.messages += messages * len(tallies)
        tally.nbytes += nbytes * len(tallies)


include "rows.pxi"


cdef extern from "Python.h":
    void PyObject_GC_UnTrack(void *)


def run_record(
    Columns columns not None,
    int64_t offset,
    timestamp,
    int64_t beside,
    tuple topics not None,
    sequence,
    sender,
    str protocol not None,
    headers,
    run,
):
    """See ``interpreted.run_record``."""
    cdef int64_t nbytes = columns.nbytes + beside
    cdef bytes data
    cdef bytes sizes = None
    cdef bytes indexes
    cdef tuple made
    cdef tuple mix = None
    cdef str topic = topics[0]
    cdef int64_t size = columns.largest
    if not isinstance(sender, bytes):
        check_senders(sender, columns.count)
        for name in <tuple>sender[1]:
            nbytes += SENDER_BYTES + PyBytes_Size(name)
        PyObject_GC_UnTrack(<void *>sender)
        PyObject_GC_UnTrack(<void *>sender[1])
    if columns.count == 1 and len(topics) == 1 and columns.parts == NULL:
        if columns.messages[0].size == PyBytes_Size(columns.data):
            data = columns.data
        else:
            data = PyBytes_FromStringAndSize(
                PyBytes_AsString(columns.data) + columns.messages[0].start,
                columns.messages[0].size,
            )
    else:
        data, sizes, indexes = columns.pack()
        if columns.smallest == columns.largest:
            sizes = None
        else:
            size = -1
            nbytes += 4 * columns.count
        if len(topics) > 1:
            topic = ""
            mix = (topics, indexes)
            nbytes += 4 * columns.count
    made = (
        offset + columns.count - 1, offset, timestamp, nbytes, topic, columns.count, data, size,
        sizes, sequence, sender, protocol, headers, mix, run,
    )
    if headers is None:
        # It has texts and numbers alone, also in its tuples. The garbage collector would find that,
        # but while as many of them end as are made, it waits until there are thousands.
        PyObject_GC_UnTrack(<void *>made)
        if mix is not None:
            PyObject_GC_UnTrack(<void *>mix)
    return made


cdef inline void write_u32(uint8_t *o, uint32_t number) noexcept nogil:
    cdef int i
    for i in range(4):
        o[i] = <uint8_t>(number >> (8 * i))


cdef inline void write_i64(uint8_t *o, int64_t number) noexcept nogil:
    cdef int i
    for i in range(8):
        o[i] = <uint8_t>(<uint64_t>number >> (8 * i))


cdef uint32_t place_of(dict names, bytes name) except? 0xFFFFFFFF:
    # Without a call of a method, as there is one for each row.
    cdef PyObject *found = found_item(names, name)
    if found != NULL:
        return <uint32_t><object>found
    cdef uint32_t place = <uint32_t>len(names)
    names[name] = place
    return place


cdef int check_senders(tuple senders, int64_t count) except -1:
    """Raise ValueError unless ``senders`` are those of ``count`` messages."""
    cdef bytes counts
    cdef tuple names
    cdef const uint32_t *each
    cdef Py_ssize_t i
    counts, names = senders
    each = <const uint32_t *>PyBytes_AsString(counts)
    if PyBytes_Size(counts) != 4 * len(names):
        raise ValueError("each sender has a number of messages")
    for i in range(len(names)):
        count -= each[i]
        if each[i] == 0:
            raise ValueError("the number of a sender's messages is 0")
    if count:
        raise ValueError("the messages and their senders differ in number")
    return 0


cdef int64_t rows_of(tuple record) except -1:
    """Return how many rows a plain run takes, of which the fields are checked; 0 for another."""
    cdef int64_t count
    if len(record) != RECORD:
        raise ValueError("this is not a run")
    if record[12] is not None:
        return 0
    if isinstance(record[10], bytes):
        return 0 if record[8] is not None or record[13] is not None else 1
    count = record[5]
    check_senders(record[10], count)
    if record[13] is not None and PyBytes_Size(record[13][1]) != 4 * count:
        raise ValueError("each message has a topic")
    if record[8] is None:
        return len(record[10][1])
    if PyBytes_Size(record[8]) != 4 * count:
        raise ValueError("each message has a length")
    return count


def pack_plain_runs(list records not None, Py_ssize_t at, int64_t base, dict names not None):
    """See ``interpreted.pack_plain_runs``."""
    # Finalizers, which the garbage collector may run, must not change what is read.
    cdef tuple held = tuple(records)
    cdef Py_ssize_t i, part, parts, count = len(held)
    cdef int64_t rows = 0, own
    cdef bytes out
    cdef uint8_t *o
    cdef tuple record
    cdef tuple senders = None, topics = None
    cdef str topic = None
    cdef str protocol = None
    cdef uint32_t topic_place = 0, protocol_place = 0, sender_place, left, step
    cdef int32_t size
    cdef int64_t start, timestamp, sequence
    cdef const uint32_t *counts
    cdef const uint32_t *sizes
    cdef const uint32_t *picks
    if at < 0:
        raise ValueError("the place is negative")
    for i in range(at, count):
        own = rows_of(held[i])
        if not own:
            count = i
            break
        rows += own
    out = PyBytes_FromStringAndSize(NULL, ROW * rows)
    o = <uint8_t *>PyBytes_AsString(out)
    for i in range(at, count):
        record = held[i]
        start, left, size = record[1], record[5], record[7]
        timestamp, sequence = record[2], record[9]
        if record[13] is not None:
            # Each of its rows has a topic of its own.
            topic = None
        elif record[4] is not topic:
            topic = record[4]
            topic_place = place_of(names, topic.encode())
        parts, counts, sizes, picks, senders = 1, &left, NULL, NULL, (record[10],)
        if isinstance(record[10], tuple):
            counts = <const uint32_t *>PyBytes_AsString(record[10][0])
            senders = record[10][1]
            parts = len(senders)
            if record[8] is not None:
                sizes = <const uint32_t *>PyBytes_AsString(record[8])
            if record[13] is not None:
                topics = record[13][0]
                picks = <const uint32_t *>PyBytes_AsString(record[13][1])
        for part in range(parts):
            left = counts[part]
            if picks != NULL:
                topic_place = place_of(names, topic_at(topics, picks[0]).encode())
                picks += left
            sender_place = place_of(names, senders[part])
            if part == 0 and record[11] is not protocol:
                # After the first sender: new names are in the order of the columns.
                protocol = record[11]
                protocol_place = place_of(names, protocol.encode())
            while True:
                step = left
                if start < base or start - base > 0xFFFFFFFF:
                    raise OverflowError("a run is outside its record")
                if sizes != NULL:
                    size, step = <int32_t>sizes[0], 1
                    sizes += 1
                write_u32(o, <uint32_t>(start - base))
                write_u32(o + 4, step)
                write_u32(o + 8, topic_place)
                write_u32(o + 12, sender_place)
                write_u32(o + 16, protocol_place)
                write_u32(o + 20, <uint32_t>size)
                write_i64(o + 24, timestamp)
                write_i64(o + 32, sequence)
                o += ROW
                start += step
                sequence += step
                left -= step
                if not left:
                    break
    return out, max(at, count)


cdef str topic_at(tuple topics, uint32_t pick):
    if pick >= <size_t>len(topics):
        raise IndexError("a message has no topic")
    return topics[pick]


def total_plain_runs(list records not None, dict totals not None):
    """See ``interpreted.total_plain_runs``."""
    cdef tuple record
    cdef str topic = None
    cdef tuple senders
    cdef int64_t count = 0, nbytes = 0, number
    cdef const uint32_t *counts
    cdef Py_ssize_t i
    cdef list others = []
    for record in tuple(records):
        if len(record) != RECORD:
            raise ValueError("this is not a run")
        if record[12] is not None or (record[13] is not None and isinstance(record[10], bytes)):
            others.append(record)
            continue
        if record[13] is not None:
            total_each(record, totals)
            continue
        if record[4] is not topic:
            if topic is not None:
                add_total(totals, topic, count, nbytes)
            topic = record[4]
            count = nbytes = 0
        number = record[5]
        count += number
        nbytes += PyBytes_Size(record[6])
        if isinstance(record[10], bytes):
            nbytes += number * PyBytes_Size(record[10])
        else:
            check_senders(record[10], number)
            counts = <const uint32_t *>PyBytes_AsString(record[10][0])
            senders = record[10][1]
            for i in range(len(senders)):
                nbytes += counts[i] * PyBytes_Size(senders[i])
    if topic is not None:
        add_total(totals, topic, count, nbytes)
    return others


cdef int total_each(tuple record, dict totals) except -1:
    """Add the messages of a run of several topics and senders."""
    cdef int64_t count = record[5], nbytes, size = record[7]
    cdef uint32_t i, part
    cdef const uint32_t *counts
    cdef const uint32_t *sizes = NULL
    cdef const uint32_t *picks
    cdef tuple senders, topics
    rows_of(record)
    counts, senders = <const uint32_t *>PyBytes_AsString(record[10][0]), record[10][1]
    picks, topics = <const uint32_t *>PyBytes_AsString(record[13][1]), record[13][0]
    if record[8] is not None:
        sizes = <const uint32_t *>PyBytes_AsString(record[8])
    for part in range(<uint32_t>len(senders)):
        nbytes = counts[part] * PyBytes_Size(senders[part])
        for i in range(counts[part]):
            nbytes += size if sizes == NULL else sizes[i]
        add_total(totals, topic_at(topics, picks[0]), counts[part], nbytes)
        picks += counts[part]
        if sizes != NULL:
            sizes += counts[part]
    return 0


cdef int add_total(dict totals, str topic, int64_t count, int64_t nbytes) except -1:
    before_count, before_nbytes = totals.get(topic, (0, 0))
    totals[topic] = (before_count + count, before_nbytes + nbytes)
    return 0


cdef inline void write_lengths(uint8_t *o, Entry *entry, uint32_t size) noexcept nogil:
    cdef int i
    for i in range(entry.field_count):
        write_field(o, &entry.fields[i], size + entry.fields[i].add)


cdef class FrameEncoder:
    """See ``interpreted.FrameEncoder``."""

    cdef list heads
    cdef Entry *entries
    # Where the heads of an index begin in `entries`; one more than there are indexes.
    cdef int *first
    cdef Py_ssize_t indexes
    cdef Py_ssize_t variable_at
    cdef Py_ssize_t variable_size

    def __cinit__(self, list heads not None, Py_ssize_t variable_at=0, Py_ssize_t variable_size=0):
        cdef Py_ssize_t i, number = 0, total = 0
        cdef tuple own
        self.heads = heads.copy()
        for own in self.heads:
            total += len(own)
        self.indexes = len(heads)
        self.variable_at = variable_at
        self.variable_size = variable_size
        self.entries = <Entry *>malloc(max(total, 1) * sizeof(Entry))
        self.first = <int *>malloc((self.indexes + 1) * sizeof(int))
        if self.entries == NULL or self.first == NULL:
            raise MemoryError
        for i in range(self.indexes):
            self.first[i] = <int>number
            for head in self.heads[i]:
                if isinstance(head, TextHead):
                    raise TypeError("a text head cannot be encoded")
                fill_entry(&self.entries[number], head, 0)
                if variable_at < 0 or variable_at + variable_size > self.entries[number].length:
                    raise ValueError("the variable bytes are outside a head")
                number += 1
        self.first[self.indexes] = <int>number

    def __dealloc__(self):
        free(self.entries)
        free(self.first)

    cdef inline Entry *entry_for(self, const Message *message) noexcept nogil:
        cdef int i
        if message.index >= <size_t>self.indexes:
            return NULL
        for i in range(self.first[message.index], self.first[message.index + 1]):
            if self.entries[i].least <= message.size <= self.entries[i].limit:
                return &self.entries[i]
        return NULL

    cdef inline void prepare(self, Ready *ready, Entry *entry, const char *stamp) noexcept nogil:
        cdef Field *field = &entry.fields[0]
        ready.first = entry
        if entry.length > HEAD_BYTES or entry.field_count != 1 or field.width not in (1, 4):
            return
        if entry.limit < entry.least:
            return
        if field.at < self.variable_at + self.variable_size and (
            self.variable_at < field.at + field.width
        ):
            # The variable bytes are written last.
            return
        memcpy(ready.text, entry.data, entry.length)
        memcpy(ready.text + self.variable_at, stamp, self.variable_size)
        ready.length = <uint32_t>entry.length
        ready.least = <uint32_t>entry.least
        ready.span = <uint32_t>(min(entry.limit, MAX_DATA) - entry.least)
        ready.at, ready.add = <uint32_t>field.at, <uint32_t>field.add
        ready.width, ready.big = field.width, field.big

    def encode_alike(self, list payloads not None):
        """See ``interpreted.FrameEncoder.encode_alike``."""
        # No Python code runs until the last one is copied, so nothing is held.
        cdef Py_ssize_t i, size, count = len(payloads)
        cdef PyObject *item = borrowed_item(payloads, 0) if count else NULL
        cdef Message like
        cdef Entry *entry
        cdef uint64_t first = 0, last = 0
        cdef bytes out
        cdef uint8_t *o
        if item == NULL or not is_plain_bytes(item) or self.variable_size:
            return b""
        size = (<PyVarObject *>item).ob_size
        if size > MAX_DATA // count:
            return b""
        like.start, like.size, like.index = 0, <uint32_t>size, 0
        entry = self.entry_for(&like)
        # Shorter and longer heads are left to ``encode``.
        if entry == NULL or not 8 <= entry.length <= 16:
            return b""
        out = PyBytes_FromStringAndSize(NULL, count * (entry.length + size))
        o = <uint8_t *>PyBytes_AsString(out)
        memcpy(o, entry.data, entry.length)
        write_lengths(o, entry, like.size)
        memcpy(&first, o, 8)
        memcpy(&last, o + entry.length - 8, 8)
        for i in range(count):
            item = borrowed_item(payloads, i)
            if not is_plain_bytes(item) or (<PyVarObject *>item).ob_size != size:
                return b""
            memcpy(o, &first, 8)
            memcpy(o + entry.length - 8, &last, 8)
            o += entry.length
            copy_payload(o, <const uint8_t *>item + BYTES_AT, size)
            o += size
        return out

    def encode(self, Columns columns not None, bytes variable not None=b""):
        """See ``interpreted.FrameEncoder.encode``."""
        cdef const uint8_t *p = NULL
        cdef const uint8_t **parts
        cdef const char *stamp = PyBytes_AsString(variable)
        cdef Py_ssize_t at, end, total = 0, count = 0
        cdef Entry *entry
        cdef uint32_t size
        cdef bytes out
        cdef uint8_t *o
        if columns.parts == NULL:
            p = <const uint8_t *>PyBytes_AsString(columns.data)
        if PyBytes_Size(variable) != self.variable_size:
            raise ValueError("the variable bytes have another length")
        if columns.parts == NULL and columns.count >= 2 * self.indexes and (
            self.indexes > 1 or columns.smallest != columns.largest
        ):
            return encode_mixed(self, columns, stamp, NULL)
        end = 0
        while end < columns.count:
            at = end
            end = columns.row_end(at)
            entry = self.entry_for(&columns.messages[at])
            if entry != NULL:
                total += (end - at) * (entry.length + columns.messages[at].size)
                count += end - at
        out = PyBytes_FromStringAndSize(NULL, total)
        o = <uint8_t *>PyBytes_AsString(out)
        end = 0
        while end < columns.count:
            at = end
            end = columns.row_end(at)
            entry = self.entry_for(&columns.messages[at])
            if entry == NULL:
                continue
            size = columns.messages[at].size
            memcpy(o, entry.data, entry.length)
            write_lengths(o, entry, size)
            if self.variable_size:
                memcpy(o + self.variable_at, stamp, self.variable_size)
            parts = NULL if columns.parts == NULL else columns.parts + at
            o = write_row(o, entry.length, p, parts, &columns.messages[at], end - at)
        return out, count

    def encode_each(self, Columns columns not None, bytes variable not None, list wanted not None):
        """See ``interpreted.FrameEncoder.encode_each``."""
        return encode_each(self, columns, variable, wanted)


include "groups.pxi"
