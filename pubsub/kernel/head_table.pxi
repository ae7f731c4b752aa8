# The messages of a read, found by the heads of their frames: a part of ``compiled.pyx``. See
# ``interpreted/head_table.py``.

cdef class HeadTable:
    """See ``interpreted.HeadTable``."""

    cdef object learn
    cdef list heads
    # The addresses there are, and their places in that list.
    cdef list addresses
    cdef dict numbers
    cdef Entry *entries
    cdef int count, room, last
    # Entries that stand for the lengths and length fields there are.
    cdef int shapes[MAX_SHAPES]
    cdef int shape_count
    cdef Telling telling
    # Numbers of entries by the upper bits of digests, which depend on all bytes; -1 is free.
    cdef int *buckets
    cdef int bucket_count, place_shift
    cdef uint64_t keys[WORDS]
    # What numbers of addresses belong to: another object after each `clear`.
    cdef object generation
    # By address; `scans` numbers the calls of `scan`.
    cdef Seen *seen
    cdef Py_ssize_t seen_room
    cdef uint64_t scans

    def __cinit__(self, learn):
        self.learn = learn
        for i in range(WORDS):
            self.keys[i] = getrandbits(64) | 1
        self.clear()

    def __dealloc__(self):
        free(self.entries)
        free(self.buckets)
        free(self.seen)

    def __len__(self):
        return self.count

    def held(self):
        """See ``interpreted.HeadTable.held``."""
        return self.heads + self.addresses

    cdef int clear(self) except -1:
        self.count = self.shape_count = 0
        memset(&self.telling, 0, sizeof(self.telling))
        self.generation = object()
        self.last = -1
        self.heads = []
        self.addresses = []
        self.numbers = {}
        self.place_shift = 65 - 6
        self.rehash(64)
        return 0

    cdef int rehash(self, int bucket_count) except -1:
        cdef int *made = <int *>realloc(self.buckets, bucket_count * sizeof(int))
        cdef int number
        if made == NULL:
            raise MemoryError
        self.buckets = made
        self.bucket_count = bucket_count
        self.place_shift -= 1
        memset(made, 0xFF, self.bucket_count * sizeof(int))
        for number in range(self.count):
            self.insert(number)
        return 0

    cdef void insert(self, int number) noexcept nogil:
        cdef uint64_t at = self.entries[number].digest >> self.place_shift
        while self.buckets[at] >= 0:
            at = (at + 1) & (self.bucket_count - 1)
        self.buckets[at] = number

    cdef int number_of(self, address) except -1:
        """Return the number of an address, which has room in ``seen``."""
        cdef Py_ssize_t room
        cdef Seen *grown
        number = self.numbers.get(address)
        if number is not None:
            return number
        if len(self.addresses) == self.seen_room:
            room = max(2 * self.seen_room, 16)
            grown = <Seen *>realloc(self.seen, room * sizeof(Seen))
            if grown == NULL:
                raise MemoryError
            memset(grown + self.seen_room, 0, (room - self.seen_room) * sizeof(Seen))
            self.seen = grown
            self.seen_room = room
        number = self.numbers[address] = len(self.addresses)
        self.addresses.append(address)
        return number

    cdef int add(self, head, address) except -1:
        """Append an entry and return its number."""
        cdef Entry *grown
        cdef Entry *entry
        cdef uint32_t number = self.number_of(address)
        cdef int i
        if self.count == self.room:
            grown = <Entry *>realloc(self.entries, max(2 * self.room, 16) * sizeof(Entry))
            if grown == NULL:
                raise MemoryError
            self.entries = grown
            self.room = max(2 * self.room, 16)
        entry = &self.entries[self.count]
        fill_entry(entry, head, number)
        for i in range(self.shape_count):
            if same_shape(entry, &self.entries[self.shapes[i]]):
                break
        else:
            i = self.shape_count
            if i < MAX_SHAPES:
                self.shapes[i] = self.count
                self.shape_count += 1
        entry.shape = i
        entry.digest = digest(entry.data, entry, self.keys)
        self.heads.append(head)
        self.count += 1
        if self.count <= SAMPLED:
            choose_telling(&self.telling, self.entries, self.count)
        else:
            note_shape(&self.telling, entry)
        if 3 * self.count > self.bucket_count:
            self.rehash(2 * self.bucket_count)
        else:
            self.insert(self.count - 1)
        return self.count - 1

    cdef int find(
        self,
        const uint8_t *p,
        Py_ssize_t left,
        Match *matched,
        Py_ssize_t *size,
        Py_ssize_t *length,
    ) noexcept nogil:
        """Return the number of the entry that the frame at ``p`` begins with, or -1.

        ``size`` is that of the payload, and ``length`` that of the frame: by its shape, so that a
        processor can begin with the next frame before it has the entry of this one.
        """
        cdef int i, number
        cdef uint64_t at, shapes, found = 0
        cdef Entry *shape
        cdef Entry *entry
        if self.telling.at >= left:
            # No head of the sample is as short; `learn_at` finds the others.
            return -1
        shapes = self.telling.shapes[p[self.telling.at]]
        while shapes:
            i = lowest_bit(shapes)
            shapes &= shapes - 1
            shape = &self.entries[self.shapes[i]]
            if shape.length > left:
                continue
            if shape.after == NULL:
                found = size_in(p, shape)
            at = digest(p, shape, self.keys) >> self.place_shift
            while self.buckets[at] >= 0:
                number = self.buckets[at]
                entry = &self.entries[number]
                if entry.shape != i:
                    pass
                elif entry.after != NULL:
                    matched[0] = match_text(p, left, entry, size)
                    if matched[0] != DIFFERENT:
                        length[0] = shape.length + size[0] + entry.after_length
                        return number
                elif same_constants(p, entry) and fits(entry, found):
                    size[0] = <Py_ssize_t>found
                    length[0] = shape.length + <Py_ssize_t>found
                    matched[0] = WHOLE if length[0] <= left else INCOMPLETE
                    return number
                at = (at + 1) & (self.bucket_count - 1)
        return -1

    cdef int equal_to(self, Entry *entry) noexcept nogil:
        """Return the number of an equal entry, which ``find`` leaves out if its shape is one too
        many; or -1."""
        cdef uint64_t at = digest(entry.data, entry, self.keys) >> self.place_shift
        while self.buckets[at] >= 0:
            if equal(&self.entries[self.buckets[at]], entry):
                return self.buckets[at]
            at = (at + 1) & (self.bucket_count - 1)
        return -1

    cdef int learn_at(
        self, Columns columns, bytes data, Py_ssize_t at, Match *matched, Py_ssize_t *size
    ) except -2:
        """Ask for the head at ``at`` and return the number of its entry, or -1."""
        cdef const uint8_t *p = <const uint8_t *>PyBytes_AsString(data) + at
        cdef int number
        cdef Entry entry
        learnt = self.learn(data, at)
        if learnt is None:
            return -1
        fill_entry(&entry, learnt[0], 0)
        matched[0] = match(p, PyBytes_Size(data) - at, &entry, size)
        if matched[0] == DIFFERENT:
            return -1
        number = self.equal_to(&entry)
        if number >= 0 and self.addresses[self.entries[number].address] == learnt[1]:
            return number
        # Entries must not be forgotten while columns that refer to them are made.
        if self.count >= MAX_HEADS:
            if columns.count:
                return -1
            self.clear()
        return self.add(learnt[0], learnt[1])

    def scan(self, bytes data not None, Py_ssize_t at=0):
        """See ``interpreted.HeadTable.scan``."""
        cdef const uint8_t *p = <const uint8_t *>PyBytes_AsString(data)
        cdef Py_ssize_t length = PyBytes_Size(data)
        cdef Columns columns = Columns.__new__(Columns)
        cdef Py_ssize_t size = 0
        # Of the message before; and whether that had the entry and the size of the one before it.
        cdef Py_ssize_t head = 0, last_size = -1, row, step = 0
        cdef Entry *entry = NULL
        cdef bint alike = False
        cdef Match matched, other = DIFFERENT
        cdef int number, last, guesses = GUESSES
        # Locals, so that they stay in registers: those that a call gets the address of do not.
        cdef uint64_t scans
        cdef Entry *entries
        cdef Py_ssize_t found = 0, frame = 0
        cdef Seen *seen
        if not 0 <= at <= length or length > MAX_DATA:
            raise ValueError("at is outside the data, or the data is too long")
        columns.data = data
        columns.addresses = []
        self.scans += 1
        scans, last, entries = self.scans, self.last, self.entries
        while at < length:
            # A head can be long, and of messages of several sizes or topics few are the same.
            if alike:
                # The entry is the last one, and follows itself.
                step = entry.length + size
                row = count_alike(p + at, length - at, p + head, entry.length, step)
                if row:
                    columns.append_alike(row, step)
                    entries[last].next = last
                    at += row * step
                    head = at - step
                    if at == length:
                        break
                if same_head(p + at, length - at, p + head, entry):
                    # Not whole.
                    break
            matched = DIFFERENT
            number = -1
            if last >= 0 and guesses:
                number = entries[last].next
                if number >= 0:
                    matched = match(p + at, length - at, &entries[number], &size)
                if matched == DIFFERENT and number != last:
                    number = last
                    matched = match(p + at, length - at, &entries[number], &size)
            if matched != DIFFERENT:
                step = entries[number].length + size + entries[number].after_length
            else:
                number = self.find(p + at, length - at, &other, &found, &frame)
                matched = other
                if number < 0:
                    self.last = last
                    number = self.learn_at(columns, data, at, &other, &found)
                    matched = other
                    last, entries = self.last, self.entries
                    if number < 0:
                        break
                    frame = entries[number].length + found + entries[number].after_length
                size, step = found, frame
            if matched == INCOMPLETE:
                break
            entry = &entries[number]
            seen = &self.seen[entry.address]
            if seen.scan != scans:
                seen.scan = scans
                seen.index = <uint32_t>len(columns.addresses)
                columns.addresses.append(self.addresses[entry.address])
            columns.append(at + entry.length, size, seen.index)
            alike = number == last and size == last_size and entry.after == NULL
            if last >= 0:
                # Topics that come at random are not guessed.
                if number == entries[last].next or number == last:
                    guesses = GUESSES
                elif guesses:
                    guesses -= 1
                entries[last].next = number
            last = number
            last_size = size
            head = at
            at += step
        self.last = last
        columns.end = at
        if len(columns.addresses) == 1:
            columns.source, columns.source_address = self.generation, entries[last].address
        return columns

    def put_alike(
        self,
        bytes data not None,
        ColumnQueue queue not None,
        LinkedTally tally not None,
    ):
        """See ``interpreted.HeadTable.put_alike``."""
        cdef const uint8_t *p = <const uint8_t *>PyBytes_AsString(data)
        cdef Py_ssize_t size = 0, step = 0, length = PyBytes_Size(data)
        cdef int number = self.last
        cdef Match matched = DIFFERENT
        cdef Entry *entry
        if (
            tally.source is not self.generation
            or length > MAX_DATA
        ):
            return False
        if number >= 0:
            matched = match(p, length, &self.entries[number], &size)
        if matched == DIFFERENT:
            number = self.find(p, length, &matched, &size, &step)
        if number < 0 or matched != WHOLE:
            return False
        entry = &self.entries[number]
        if (
            entry.address != tally.source_address
            or entry.length + size + entry.after_length != length
        ):
            return False
        if not queue.make_room(1, size, tally.source_protocol):
            return False
        length = queue.columns.nbytes
        memcpy(queue.payloads + length, p + entry.length, size)
        number = queue.begin_run(tally.other, tally.source_sender, 1)
        queue.columns.append(length, size, number)
        tally.add_linked(1, size)
        return True


cdef class TextTable(HeadTable):
    """See ``interpreted.TextTable``; the entries of its heads have a text after the payload."""
