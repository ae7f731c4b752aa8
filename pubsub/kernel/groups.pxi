# Frames for several groups of subscribers, a part of ``compiled.pyx``. See
# ``interpreted/frame_encoder.py``.

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
