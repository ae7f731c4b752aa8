# Rows of text, a part of ``compiled.pyx``. See ``interpreted/rows.py``.

from pubsub.kernel.layout import RowField

cdef enum:
    # Pieces of a row, and `RowField`.
    MAX_PIECES = 24
    NUMBER = 0
    NEXT = 1
    NAME = 2
    VALUE = 3
    TEXT = 4
    PAYLOAD = 5
    ID = 6
    END = 7
    FRAME = 8
    LENGTH = 9

cdef struct Piece:
    # Text; if it is NULL, a field.
    const uint8_t *text
    Py_ssize_t size
    int field

cdef struct Row:
    const uint8_t *payload
    Py_ssize_t size
    # The bytes of the payload in a string of JSON; negative if it is not UTF-8.
    Py_ssize_t text_size
    const uint8_t *name
    Py_ssize_t name_size
    const uint8_t *end
    Py_ssize_t end_size
    uint64_t number
    uint64_t id
    # What the fields of this name count.
    Py_ssize_t frame
    Py_ssize_t length


cdef Py_ssize_t escaped_length(const uint8_t *p, Py_ssize_t left) noexcept nogil:
    """Return the bytes of a text in a string of JSON; -1 if it is not UTF-8."""
    cdef Py_ssize_t size = 0, plain
    while True:
        plain = plain_length(p, left)
        size += plain
        if plain == left:
            return size
        p += plain
        if p[0] >= 0x80:
            return -1
        size += 2 if short_escape(p[0]) else 6
        p += 1
        left -= plain + 1


cdef inline uint8_t short_escape(uint8_t byte) noexcept nogil:
    """Return the character that stands for ``byte`` behind a backslash, or 0."""
    if byte == 0x22 or byte == 0x5C:
        return byte
    return b"btn\0fr"[byte - 8] if 8 <= byte <= 13 else 0


cdef uint8_t *write_escaped(uint8_t *o, const uint8_t *p, Py_ssize_t left) noexcept nogil:
    """Write a text that is UTF-8; see ``escaped_length``."""
    cdef Py_ssize_t plain
    cdef uint8_t escape
    while True:
        plain = plain_length(p, left)
        o = write_text(o, p, plain)
        if plain == left:
            return o
        escape = short_escape(p[plain])
        if escape:
            o[0] = 0x5C
            o[1] = escape
            o += 2
        else:
            o = write_text(o, b"\\u00", 4)
            o = write_hexadecimal(o, p[plain], 2)
        p += plain + 1
        left -= plain + 1


cdef inline uint8_t *write_number(uint8_t *o, uint64_t number) noexcept nogil:
    cdef uint8_t digits[20]
    cdef int at = 20
    while True:
        at -= 1
        digits[at] = <uint8_t>(48 + number % 10)
        number //= 10
        if not number:
            return write_text(o, digits + at, 20 - at)


cdef uint8_t *write_hexadecimal(uint8_t *o, uint64_t number, int digits) noexcept nogil:
    cdef int i
    for i in range(digits):
        o[i] = b"0123456789abcdef"[number >> 4 * (digits - 1 - i) & 15]
    return o + digits


cdef uint8_t *write_base64(uint8_t *o, const uint8_t *p, Py_ssize_t left) noexcept nogil:
    cdef uint32_t word
    cdef int i
    while left > 0:
        word = p[0] << 16 | (p[1] << 8 if left > 1 else 0) | (p[2] if left > 2 else 0)
        for i in range(4):
            o[i] = (
                b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
                [word >> (18 - 6 * i) & 63]
                if i <= left else 0x3D
            )
        o += 4
        p += 3
        left -= 3
    return o


cdef uint8_t *write_big(uint8_t *o, uint64_t number, int width) noexcept nogil:
    cdef int i
    for i in range(width):
        o[i] = <uint8_t>(number >> 8 * (width - 1 - i))
    return o + width


cdef inline int digits_of(uint64_t number) noexcept nogil:
    cdef int digits = 1
    while number >= 10:
        number //= 10
        digits += 1
    return digits


cdef bint has_field(const Piece *pieces, int count, int field) noexcept nogil:
    cdef int k
    for k in range(count):
        if pieces[k].text == NULL and pieces[k].field == field:
            return True
    return False


cdef int read_pieces(tuple template, Piece *pieces) except -1:
    """Read the pieces of rows, which stay valid with ``template``; return their number."""
    cdef int count = 0
    if len(template) > MAX_PIECES:
        raise ValueError("a row has too many pieces")
    for item in template:
        pieces[count].text = NULL
        if isinstance(item, bytes):
            pieces[count].text = <const uint8_t *>PyBytes_AsString(item)
            pieces[count].size = PyBytes_Size(item)
        else:
            # To make a field from one takes a microsecond.
            pieces[count].field = item if isinstance(item, RowField) else RowField(item)
            if pieces[count].field >= FRAME and has_field(pieces, count, pieces[count].field):
                raise ValueError("a row has two lengths of one kind")
        count += 1
    return count


cdef Py_ssize_t measure_row(const Piece *pieces, int count, Row *row) noexcept nogil:
    """Return the bytes of a row, from the last piece on; note those of its lengths."""
    cdef Py_ssize_t size = 0, behind = 0
    cdef const Piece *piece
    cdef int k
    for k in range(count - 1, -1, -1):
        piece = &pieces[k]
        if piece.text != NULL:
            size += piece.size
        elif piece.field == NUMBER:
            size += digits_of(row.number)
        elif piece.field == NEXT:
            size += digits_of(row.number + 1)
        elif piece.field == NAME:
            size += row.name_size
        elif piece.field == VALUE:
            # With the name of the member, in quotes, and the quotes of the value.
            size += 11 + row.text_size if row.text_size >= 0 else 18 + (row.size + 2) // 3 * 4
        elif piece.field == TEXT:
            size += row.text_size
        elif piece.field == PAYLOAD:
            size += row.size
            behind += row.size
        elif piece.field == ID:
            size += 17
        elif piece.field == END:
            size += row.end_size
        elif piece.field == LENGTH:
            row.length = size - behind
            size += 4
        else:
            row.frame = size
            size += 1 if size < 126 else 3 if size < 65536 else 9
    return size


cdef uint8_t *write_pieces(uint8_t *o, const Piece *pieces, int count, Row *row) noexcept nogil:
    """Write a row that was measured."""
    cdef const Piece *piece
    cdef int k
    for k in range(count):
        piece = &pieces[k]
        if piece.text != NULL:
            o = write_text(o, piece.text, piece.size)
        elif piece.field == NUMBER:
            o = write_number(o, row.number)
        elif piece.field == NEXT:
            o = write_number(o, row.number + 1)
        elif piece.field == NAME:
            o = write_text(o, row.name, row.name_size)
        elif piece.field == VALUE and row.text_size >= 0:
            o = write_text(o, b'"value": "', 10)
            o = write_escaped(o, row.payload, row.size)
            o = write_text(o, b'"', 1)
        elif piece.field == VALUE:
            o = write_text(o, b'"value_base64": "', 17)
            o = write_base64(o, row.payload, row.size)
            o = write_text(o, b'"', 1)
        elif piece.field == TEXT:
            o = write_escaped(o, row.payload, row.size)
        elif piece.field == PAYLOAD:
            o = write_text(o, row.payload, row.size)
        elif piece.field == ID:
            o = write_hexadecimal(o, row.id >> 48, 4)
            o = write_text(o, b"-", 1)
            o = write_hexadecimal(o, row.id, 12)
        elif piece.field == END:
            o = write_text(o, row.end, row.end_size)
        elif piece.field == LENGTH:
            o = write_big(o, row.length, 4)
        elif row.frame < 126:
            o = write_big(o, row.frame, 1)
        else:
            o = write_big(o, 126 if row.frame < 65536 else 127, 1)
            o = write_big(o, row.frame, 2 if row.frame < 65536 else 8)
    return o


cdef const uint64_t *words_of(object given, Py_ssize_t count, int bits) except? NULL:
    """Return the numbers of ``count`` messages; NULL if ``given`` is that of the first."""
    cdef const uint64_t *words
    cdef Py_ssize_t i
    if not isinstance(given, bytes):
        return NULL
    if PyBytes_Size(given) != 8 * count:
        raise ValueError("the numbers are not as many as the messages")
    words = <const uint64_t *>PyBytes_AsString(given)
    for i in range(count):
        if words[i] >> (bits - 1) >> 1:
            raise ValueError("the numbers are negative or too large")
    return words


def encode_rows(
    Columns columns not None,
    tuple template not None,
    list names,
    number,
    id=0,
    list ends=None,
):
    """See ``interpreted.encode_rows``."""
    cdef Piece pieces[MAX_PIECES]
    cdef int piece_count = read_pieces(template, pieces)
    cdef Py_ssize_t i, total = 0, rows = 0
    cdef bint has_text = has_field(pieces, piece_count, TEXT)
    cdef bint has_value = has_text or has_field(pieces, piece_count, VALUE)
    cdef Message *message
    cdef PyObject *item
    cdef Row *row
    cdef Row *made
    cdef bytes out
    cdef uint8_t *o
    cdef const uint64_t *numbers = words_of(number, columns.count, 63)
    cdef const uint64_t *ids = words_of(id, columns.count, 64)
    if numbers == NULL and not 0 <= number <= 2**63 - max(columns.count, 1):
        raise ValueError("the numbers are negative or too large")
    if ids == NULL and not 0 <= id <= 2**64 - max(columns.count, 1):
        raise ValueError("the numbers are negative or too large")
    if ends is not None and len(ends) != columns.count:
        raise ValueError("the ends are not as many as the messages")
    cdef uint64_t first = 0 if numbers != NULL else number
    cdef uint64_t first_id = 0 if ids != NULL else id
    columns.join()
    made = <Row *>calloc(max(columns.count, 1), sizeof(Row))
    if made == NULL:
        raise MemoryError
    try:
        for i in range(columns.count):
            message = &columns.messages[i]
            row = &made[rows]
            # Not NULL, of which C may not copy even nothing.
            row.name = row.end = <const uint8_t *>PyBytes_AsString(columns.data)
            if names is not None:
                item = borrowed_item(names, message.index)
                if item == <PyObject *>None:
                    continue
                borrowed_bytes(item, <char **>&row.name, &row.name_size)
            if ends is not None:
                borrowed_bytes(borrowed_item(ends, i), <char **>&row.end, &row.end_size)
            row.payload = <const uint8_t *>PyBytes_AsString(columns.data) + message.start
            row.size = message.size
            row.number = numbers[i] if numbers != NULL else first + i
            row.id = ids[i] if ids != NULL else first_id + i
            if has_value:
                row.text_size = escaped_length(row.payload, row.size)
                if has_text and row.text_size < 0:
                    return None
            total += measure_row(pieces, piece_count, row)
            rows += 1
        out = PyBytes_FromStringAndSize(NULL, total)
        o = <uint8_t *>PyBytes_AsString(out)
        for i in range(rows):
            o = write_pieces(o, pieces, piece_count, &made[i])
        return out, rows
    finally:
        free(made)
