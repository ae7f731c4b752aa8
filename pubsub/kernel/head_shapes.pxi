# The shapes of heads, by which a head is looked for: a part of ``compiled.pyx``. Heads have one
# shape if they say the length of the payload in the same way, at the same places.

cdef extern from *:
    int lowest_bit "__builtin_ctzll"(uint64_t) noexcept nogil

cdef enum:
    # Heads from which it is seen in which byte most shapes differ.
    SAMPLED = 64

cdef struct Telling:
    # The place of a byte that most shapes differ in, and by its values, a bit for each shape that
    # heads with this value have.
    Py_ssize_t at
    uint64_t shapes[256]


cdef inline uint64_t stir(uint64_t value, uint64_t word) noexcept nogil:
    value = (value ^ word) * <uint64_t>0x9E3779B97F4A7C15
    return value ^ value >> 29


cdef inline uint64_t mix(uint64_t value, const uint8_t *p, Py_ssize_t size) noexcept nogil:
    cdef uint64_t word, words[4]
    cdef uint64_t two = ~value, three = value << 32 | value >> 32, four = ~three
    if size >= 64:
        # A long head, as of a token: four at a time, because each step waits for the one before.
        while size >= 32:
            memcpy(words, p, 32)
            value, two = stir(value, words[0]), stir(two, words[1])
            three, four = stir(three, words[2]), stir(four, words[3])
            p += 32
            size -= 32
        value = stir(stir(stir(value, two), three), four)
    while size > 0:
        word = 0
        memcpy(&word, p, 8 if size > 8 else size)
        value = stir(value, word)
        p += 8
        size -= 8
    return value


cdef uint64_t digest(const uint8_t *p, Entry *shape, const uint64_t *keys) noexcept nogil:
    """Hash a head of the shape of another, without its length fields.

    The upper bits depend on all bytes, and on the keys in a way that nobody else can predict.
    """
    cdef Py_ssize_t at = 0
    cdef uint64_t word, value = keys[0]
    cdef int i
    if shape.word_count:
        # No step waits for the one before.
        for i in range(shape.word_count):
            memcpy(&word, p + word_at(shape, i), 8)
            word = ((word & shape.masks[i]) ^ keys[i]) * <uint64_t>0x9E3779B97F4A7C15
            value += (word ^ word >> 32) * keys[i]
        return value
    for i in range(shape.field_count):
        value = mix(value, p + at, shape.fields[i].at - at)
        at = shape.fields[i].at + shape.fields[i].width
    return mix(value, p + at, shape.length - at)


cdef inline bint is_constant(Entry *entry, Py_ssize_t at) noexcept nogil:
    """Return whether the byte at ``at`` is part of a head, and of none of its length fields."""
    cdef int i
    for i in range(entry.field_count):
        if 0 <= at - entry.fields[i].at < entry.fields[i].width:
            return False
    return at < entry.length


cdef inline int bits_in(uint64_t bits) noexcept nogil:
    cdef int count = 0
    while bits:
        bits &= bits - 1
        count += 1
    return count


cdef bint same_shape(Entry *one, Entry *other) noexcept nogil:
    """Return whether heads say the payload's length in the same way."""
    cdef int i
    if one.length != other.length or one.field_count != other.field_count:
        return False
    for i in range(one.field_count):
        if (
            one.fields[i].at != other.fields[i].at
            or one.fields[i].width != other.fields[i].width
            or one.fields[i].big != other.fields[i].big
            or one.fields[i].add != other.fields[i].add
        ):
            return False
    return True


cdef bint equal(Entry *one, Entry *other) noexcept nogil:
    return (
        same_shape(one, other)
        and one.least == other.least
        and one.limit == other.limit
        and memcmp(one.data, other.data, one.length) == 0
        and one.after_length == other.after_length
        and (one.after_length == 0 or memcmp(one.after, other.after, one.after_length) == 0)
    )


cdef inline void note_shape(Telling *telling, Entry *entry) noexcept nogil:
    """Look for heads with the byte of ``entry`` in its shape."""
    cdef uint64_t bit = <uint64_t>1 << entry.shape if entry.shape < MAX_SHAPES else 0
    cdef int i
    if is_constant(entry, telling.at):
        telling.shapes[entry.data[telling.at]] |= bit
    else:
        for i in range(256):
            telling.shapes[i] |= bit


cdef void choose_telling(Telling *telling, Entry *entries, int count) noexcept nogil:
    """Choose the byte by which ``count`` heads are looked for in the fewest shapes."""
    cdef Py_ssize_t at, best = 0, places = 8 * WORDS
    cdef int i, cost, lowest = MAX_SHAPES * SAMPLED + 1
    for i in range(count):
        places = min(places, entries[i].length)
    for at in range(places + 1):
        # Once more for the best one, at the end.
        telling.at = at if at < places else best
        memset(telling.shapes, 0, sizeof(telling.shapes))
        for i in range(count):
            note_shape(telling, &entries[i])
        cost = 0
        for i in range(count):
            cost += bits_in(telling.shapes[entries[i].data[telling.at]])
        if cost < lowest:
            lowest, best = cost, at
