# Frames of several topics, for one or for several groups of subscribers: a part of
# ``compiled.pyx``. See ``interpreted/frame_encoder.py``.

cdef struct Link:
    # What writes the messages of an index for a group, and the next of that index, or -1.
    PyObject *encoder
    Py_ssize_t group
    Py_ssize_t next

cdef struct Written:
    # What is written for a group, and its variable bytes.
    uint8_t *at
    Py_ssize_t nbytes
    Py_ssize_t count
    const char *stamp
    Py_ssize_t stamp_size


cdef int make_links(
    list groups, Py_ssize_t *first, Py_ssize_t indexes, Link *links
) except -1:
    """Link what ``groups`` have for each index below ``indexes``."""
    cdef Py_ssize_t number = 0, index, group
    cdef FrameEncoder one
    cdef dict encoders
    for index in range(indexes):
        first[index] = -1
    for group in range(len(groups)):
        encoders = groups[group][0]
        for key, one in encoders.items():
            if one is None:
                raise TypeError("an encoder is None")
            index = key
            if 0 <= index < indexes:
                links[number].encoder, links[number].group = <PyObject *>one, group
                links[number].next = first[index]
                first[index] = number
                number += 1
    return 0


def encode_groups(list groups not None, Columns columns not None):
    """See ``interpreted.encode_groups``."""
    # Held by these until the end: no Python code runs while the links are used.
    cdef list given = [(dict(encoders), bytes(variable)) for encoders, variable in groups]
    cdef list made = []
    cdef Py_ssize_t i, link, indexes = 0, number = 0, count = len(given)
    cdef Py_ssize_t *first = NULL
    cdef Link *links = NULL
    cdef Written *written = NULL
    cdef Written *its
    cdef FrameEncoder one
    cdef Message message
    cdef Entry *entry
    cdef const uint8_t *p
    columns.join()
    p = <const uint8_t *>PyBytes_AsString(columns.data)
    for i in range(columns.count):
        indexes = max(indexes, <Py_ssize_t>columns.messages[i].index + 1)
    for encoders, _ in given:
        number += len(encoders)
    try:
        first = <Py_ssize_t *>malloc(max(indexes, 1) * sizeof(Py_ssize_t))
        links = <Link *>malloc(max(number, 1) * sizeof(Link))
        written = <Written *>calloc(max(count, 1), sizeof(Written))
        if first == NULL or links == NULL or written == NULL:
            raise MemoryError
        make_links(given, first, indexes, links)
        for i in range(count):
            written[i].stamp = PyBytes_AsString(given[i][1])
            written[i].stamp_size = PyBytes_Size(given[i][1])
        for i in range(columns.count):
            message = columns.messages[i]
            link, message.index = first[message.index], 0
            while link >= 0:
                its, one = &written[links[link].group], <FrameEncoder>links[link].encoder
                if one.variable_size != its.stamp_size:
                    raise ValueError("the variable bytes have another length")
                entry = one.entry_for(&message)
                if entry != NULL:
                    its.nbytes += entry.length + message.size
                    its.count += 1
                link = links[link].next
        for i in range(count):
            out = PyBytes_FromStringAndSize(NULL, written[i].nbytes)
            written[i].at = <uint8_t *>PyBytes_AsString(out)
            made.append((out, written[i].count))
        for i in range(columns.count):
            message = columns.messages[i]
            link, message.index = first[message.index], 0
            while link >= 0:
                its, one = &written[links[link].group], <FrameEncoder>links[link].encoder
                entry = one.entry_for(&message)
                if entry != NULL:
                    memcpy(its.at, entry.data, entry.length)
                    write_lengths(its.at, entry, message.size)
                    copy_short(
                        its.at + one.variable_at, <const uint8_t *>its.stamp, its.stamp_size
                    )
                    its.at = write_text(its.at + entry.length, p + message.start, message.size)
                link = links[link].next
    finally:
        free(first)
        free(links)
        free(written)
    return made


cdef tuple encode_mixed(
    FrameEncoder self, Columns columns, const char *stamp, Py_ssize_t *starts
):
    """As ``encode``, for messages of several indexes.

    ``starts`` gets where the frame of each message begins and where the last one ends; or NULL.
    """
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AsString(columns.data)
    cdef Py_ssize_t i, total = 0, count = 0
    cdef uint32_t size
    # Locals, because a write to the frames could change members as far as C can tell.
    cdef Py_ssize_t number = columns.count, indexes = self.indexes
    cdef const Message *messages = columns.messages
    cdef Entry *entry
    cdef Ready *ready
    cdef Ready *heads = <Ready *>calloc(indexes, sizeof(Ready))
    cdef bytes out
    cdef uint8_t *o
    cdef uint8_t *end
    if heads == NULL:
        raise MemoryError
    try:
        for i in range(indexes):
            if self.first[i] < self.first[i + 1]:
                self.prepare(&heads[i], &self.entries[self.first[i]], stamp)
        for i in range(number):
            if messages[i].index >= <size_t>indexes:
                continue
            ready = &heads[messages[i].index]
            if ready.first == NULL:
                continue
            if messages[i].size - ready.least <= ready.span and ready.length:
                total += ready.length + messages[i].size
                count += 1
            elif (entry := self.entry_for(&messages[i])) != NULL:
                total += entry.length + messages[i].size
                count += 1
        out = PyBytes_FromStringAndSize(NULL, total)
        o = <uint8_t *>PyBytes_AsString(out)
        end = o + total
        for i in range(number):
            if starts != NULL:
                starts[i] = total - (end - o)
            if messages[i].index >= <size_t>indexes:
                continue
            ready = &heads[messages[i].index]
            if ready.first == NULL:
                continue
            size = messages[i].size
            if size - ready.least <= ready.span and ready.length and end - o >= HEAD_BYTES:
                # What is behind the head is written next.
                memcpy(o, ready.text, HEAD_BYTES)
                if ready.width == 4:
                    write_4(o + ready.at, size + ready.add, ready.big)
                else:
                    o[ready.at] = <uint8_t>(size + ready.add)
                o += ready.length
            else:
                entry = self.entry_for(&messages[i])
                if entry == NULL:
                    continue
                memcpy(o, entry.data, entry.length)
                write_lengths(o, entry, size)
                copy_short(o + self.variable_at, <const uint8_t *>stamp, self.variable_size)
                o += entry.length
            memcpy(o, p + messages[i].start, size)
            o += size
        if starts != NULL:
            starts[number] = total
    finally:
        free(heads)
    return out, count


cdef tuple wanted_frames(
    const uint8_t *frames,
    Columns columns,
    const Py_ssize_t *starts,
    const Py_ssize_t *sums,
    const uint8_t *wanted,
    Py_ssize_t indexes,
):
    """Return the ``frames`` of the wanted indexes; ``sums`` has their number and bytes by index."""
    cdef const Message *messages = columns.messages
    cdef Py_ssize_t i, at = 0, end, count = columns.count, number = 0, nbytes = 0
    cdef bytes out
    cdef uint8_t *o
    for i in range(indexes):
        if wanted[i]:
            number += sums[2 * i]
            nbytes += sums[2 * i + 1]
    out = PyBytes_FromStringAndSize(NULL, nbytes)
    o = <uint8_t *>PyBytes_AsString(out)
    while at < count:
        # Messages of larger indexes have no frames.
        end = at
        while end < count and messages[end].index < <size_t>indexes and (
            wanted[messages[end].index]
        ):
            end += 1
        if end > at:
            memcpy(o, frames + starts[at], starts[end] - starts[at])
            o += starts[end] - starts[at]
        at = end + 1
    return out, number


cdef list encode_each(FrameEncoder frames, Columns columns, bytes variable, list wanted):
    # Held until the end.
    cdef list given = wanted.copy()
    cdef list made = []
    cdef Py_ssize_t i, nbytes, count = columns.count, indexes = frames.indexes
    cdef Py_ssize_t *starts = NULL
    cdef Py_ssize_t *sums = NULL
    cdef bytes whole, one
    cdef uint32_t index
    if PyBytes_Size(variable) != frames.variable_size:
        raise ValueError("the variable bytes have another length")
    for one in given:
        if PyBytes_Size(one) != indexes:
            raise ValueError("the wanted indexes and the heads differ in number")
    columns.join()
    try:
        starts = <Py_ssize_t *>malloc((count + 1) * sizeof(Py_ssize_t))
        sums = <Py_ssize_t *>calloc(2 * indexes + 1, sizeof(Py_ssize_t))
        if starts == NULL or sums == NULL:
            raise MemoryError
        whole = encode_mixed(frames, columns, PyBytes_AsString(variable), starts)[0]
        for i in range(count):
            index, nbytes = columns.messages[i].index, starts[i + 1] - starts[i]
            if index < <size_t>indexes and nbytes:
                sums[2 * index] += 1
                sums[2 * index + 1] += nbytes
        for one in given:
            made.append(
                wanted_frames(
                    <const uint8_t *>PyBytes_AsString(whole),
                    columns,
                    starts,
                    sums,
                    <const uint8_t *>PyBytes_AsString(one),
                    indexes,
                )
            )
    finally:
        free(starts)
        free(sums)
    return made
