/* The hot path of a broker, compiled: optional, and equal to the Python that it stands in for.

   frame_bodies    measures bodies of any sizes, and lays them    martlet.protocol.nsq.bulk and
                   out as message frames                          martlet.log.batch
   publish         a PUB that is all that came                    martlet.server.nsq.publish
   serve           reads lone PUBs and FINs from the sockets,     martlet.server.nsq.lane
                   and answers them

   - Whatever may be refused is checked first. Where a check fails the result is 0, nothing has
     changed, and Python does the work: errors, TLS, AUTH, pauses, policies and traces are there.
   - Only the classes in `parts` are known here; their subclasses are left to Python.
   - The limited API of Python 3.11, so that one build serves every later version. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#define _GNU_SOURCE
#include <Python.h>
#include <errno.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "written for little-endian machines; elsewhere Martlet runs without it"
#endif

enum {
    HEADER_BYTES = 80, /* martlet.log.record */
    FRAME_HEADER_BYTES = 34,
    FRAME_SIZE_EXTRA = 30,
    FINISH_BYTES = 21, /* FIN, a space, 16 digits, a newline */
    MAX_LINE_BYTES = 128, /* martlet.protocol.nsq.decoder: of a line that is cached */
    MAX_LONE_BYTES = 1 << 14,
    COMFORTABLE_SPAN = 1 << 17, /* martlet.broker.queue.in_flight */
    MAX_EVENTS = 64,
};

/* ---------------------------------------------------------------- numbers and checksums */

static void put_be32(uint8_t *at, uint32_t number)
{
    number = __builtin_bswap32(number);
    memcpy(at, &number, 4);
}

static uint32_t get_be32(const uint8_t *at)
{
    uint32_t number;
    memcpy(&number, at, 4);
    return __builtin_bswap32(number);
}

static int get_hex(const uint8_t *at, uint64_t *number)
{
    *number = 0;
    for (int digit = 0; digit < 16; digit++) {
        uint8_t letter = at[digit], lower = letter | 0x20;
        int is_letter = lower >= 'a' && lower <= 'f';
        if (!is_letter && (letter < '0' || letter > '9'))
            return 0;
        *number = *number << 4 | (uint64_t)(is_letter ? lower - 'a' + 10 : letter - '0');
    }
    return 1;
}

#if defined(__x86_64__)
#define CRC_TARGET "sse4.2"
#define CRC_WORD __builtin_ia32_crc32di
#define HAS_CRC __builtin_cpu_supports("sse4.2")
#elif defined(__aarch64__)
#include <sys/auxv.h>
#define CRC_TARGET "+crc"
#define CRC_WORD __builtin_aarch64_crc32cx
#define HAS_CRC (getauxval(AT_HWCAP) & 1 << 7)
#else
#error "written for x86-64 and ARM 64; elsewhere Martlet runs without it"
#endif

/* `length` is a multiple of 8, as that of every record. */
__attribute__((target(CRC_TARGET))) static uint32_t crc32c(const uint8_t *data, int64_t length)
{
    uint64_t crc = 0xffffffffu, word;
    for (; length > 0; data += 8, length -= 8) {
        memcpy(&word, data, 8);
        crc = CRC_WORD((uint32_t)crc, word);
    }
    return ~(uint32_t)crc;
}

static void put_frame_head(uint8_t *at, uint32_t size, int64_t stored_at_ns, uint64_t id)
{
    put_be32(at, FRAME_SIZE_EXTRA + size);
    put_be32(at + 4, 2); /* a message */
    put_be32(at + 8, (uint32_t)((uint64_t)stored_at_ns >> 32));
    put_be32(at + 12, (uint32_t)stored_at_ns);
    at[16] = 0;
    at[17] = 1; /* attempts */
    for (int digit = 0; digit < 16; digit++)
        at[18 + digit] = (uint8_t)"0123456789abcdef"[id >> (60 - 4 * digit) & 15];
}

static int64_t monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* ---------------------------------------------------------------- batches */

/* frame_bodies(ReceivedBodies, FramePlace) -> (count, end, smallest, largest): see martlet.native.
   With an empty scratch the bodies are only measured. */
static PyObject *frame_bodies(PyObject *module, PyObject *args)
{
    Py_buffer source, scratch, ends;
    Py_ssize_t at, end, count, head, max_size, scratch_at, found = 0;
    unsigned long long first_id;
    long long stored_at_ns, smallest = 0, largest = 0;
    if (!PyArg_ParseTuple(args, "(y*nnnnn)(w*nKLw*)", &source, &at, &end, &count, &head, &max_size,
                          &scratch, &scratch_at, &first_id, &stored_at_ns, &ends))
        return NULL;
    const uint8_t *first = (const uint8_t *)source.buf + at, *from = first;
    uint8_t *start = (uint8_t *)scratch.buf + scratch_at, *to = start;
    Py_ssize_t left = end - at, room = scratch.len - scratch_at;
    if (scratch.len && count > ends.len / 4)
        count = ends.len / 4;
    if (at < 0 || left < 0 || end > source.len || head < 0 || scratch_at < 0 || room < 0)
        count = 0;
    for (; found < count && left >= head + 4 && !memcmp(from, first, (size_t)head); found++) {
        int64_t size = get_be32(from + head);
        if (size == 0 || size > max_size || size > left - head - 4 ||
            (scratch.len && size > room - FRAME_HEADER_BYTES))
            break;
        if (scratch.len) {
            put_frame_head(to, (uint32_t)size, stored_at_ns, first_id + (uint64_t)found);
            memcpy(to + FRAME_HEADER_BYTES, from + head + 4, (size_t)size);
            to += FRAME_HEADER_BYTES + size;
            room -= FRAME_HEADER_BYTES + size;
            uint32_t frame_end = (uint32_t)(to - start);
            memcpy((uint8_t *)ends.buf + 4 * found, &frame_end, 4);
        }
        smallest = found == 0 || size < smallest ? size : smallest;
        largest = size > largest ? size : largest;
        from += head + 4 + size;
        left -= head + 4 + size;
    }
    PyBuffer_Release(&source);
    PyBuffer_Release(&scratch);
    PyBuffer_Release(&ends);
    return Py_BuildValue("(nnLL)", found, at + (Py_ssize_t)(from - first), smallest, largest);
}

/* ---------------------------------------------------------------- attributes of Python's objects */

#define NAMES(X)                                                                                   \
    X(_closing) X(_current) X(_dirty) X(_end) X(_enter_line) X(_fd) X(_holders) X(_known_lines)    \
    X(_last_stored_ns) X(_line) X(_origin) X(_own) X(_waits) X(add) X(alarm) X(answered)           \
    X(append) X(at) X(awaiting) X(base) X(batch) X(blocked) X(bounded) X(brief) X(by_offset)       \
    X(channel) X(client) X(clock) X(consumer) X(cursor) X(decoder) X(delivery) X(dirty)            \
    X(end_offset) X(epoch) X(failed) X(finish_count) X(finishes) X(floor)                          \
    X(get_write_buffer_size) X(heard) X(id_base) X(in_flight_count) X(index) X(is_ready)           \
    X(leases) X(log) X(max_lone) X(message_bytes) X(message_count) X(message_counters) X(moved)    \
    X(next) X(note) X(number) X(order) X(paused) X(paused_at) X(pending) X(position) X(pump)       \
    X(queue) X(ready_count) X(replies) X(sample_rate) X(set_for_ns) X(several) X(state)            \
    X(stored_count) X(timeout_ns) X(topic) X(topics) X(trail) X(transport) X(trim_leases)          \
    X(unconfirmed) X(view) X(visible_end) X(wanted) X(window) X(write)
#define DECLARE(name) static PyObject *n_##name;
NAMES(DECLARE)

/* Returns an attribute that its owner keeps alive: borrowed. NULL with an error set. */
static PyObject *get(PyObject *of, PyObject *name)
{
    PyObject *value = of == NULL ? NULL : PyObject_GetAttr(of, name);
    Py_XDECREF(value);
    return value;
}

static int get_int(PyObject *of, PyObject *name, int64_t *number)
{
    PyObject *value = PyObject_GetAttr(of, name);
    if (value == NULL)
        return -1;
    *number = (int64_t)PyLong_AsUnsignedLongLongMask(value); /* ids use all 64 bits */
    Py_DECREF(value);
    return *number == -1 && PyErr_Occurred() ? -1 : 0;
}

/* These take over the reference to a value or an argument, which may be NULL after an error. */
static int set(PyObject *of, PyObject *name, PyObject *value)
{
    int result = value == NULL ? -1 : PyObject_SetAttr(of, name, value);
    Py_XDECREF(value);
    return result;
}

static int call(PyObject *of, PyObject *name, PyObject *argument)
{
    PyObject *result = of == NULL ? NULL : PyObject_CallMethodObjArgs(of, name, argument, NULL);
    Py_XDECREF(argument);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

static int set_int(PyObject *of, PyObject *name, int64_t number)
{
    return set(of, name, PyLong_FromLongLong(number));
}

static int add_int(PyObject *of, PyObject *name, int64_t more)
{
    int64_t number;
    return get_int(of, name, &number) < 0 ? -1 : set_int(of, name, number + more);
}

static int call_int(PyObject *of, PyObject *name, int64_t number)
{
    PyObject *argument = PyLong_FromLongLong(number);
    return argument == NULL ? -1 : call(of, name, argument);
}

/* Returns 1 where an attribute is that very object, 0 where it is another, -1 for an error. */
static int is(PyObject *of, PyObject *name, PyObject *expected)
{
    PyObject *value = get(of, name);
    return value == NULL ? -1 : value == expected;
}

#define TRY(action) do { if ((action) < 0) return -1; } while (0)
#define LET(variable, value) PyObject *variable = (value); if (variable == NULL) return -1
#define INT(variable, of, name) int64_t variable; TRY(get_int(of, n_##name, &variable))
/* Left to Python unless: */
#define ONLY_IF(of, name, expected)                                                                \
    do { int found = is(of, n_##name, expected); if (found <= 0) return found; } while (0)
#define ONLY_OF(object, type)                                                                      \
    do { if ((PyObject *)Py_TYPE(object) != part(lane, type)) return 0; } while (0)

/* ---------------------------------------------------------------- lone commands */

/* What Python hands over, in order; the last ones are classes. See martlet.server.nsq.lane. */
enum { BROKER, CONNECTIONS, FEED, FAIL, ENTRY, LEASE, RANK, SEGMENT, DELIVERY, CHANNEL, CONSUMER,
       CONNECTION };
enum { FED = 1, ELSEWHERE = 2, SERVED = 4 };

typedef struct {
    PyObject *parts;
    Py_buffer received; /* the buffer that all connections receive into */
} Lane;

static PyObject *part(Lane *lane, Py_ssize_t number)
{
    return PyTuple_GetItem(lane->parts, number);
}

static int get_now(Lane *lane, int64_t *now_ns)
{
    LET(clock, get(part(lane, BROKER), n_clock));
    LET(now, PyObject_CallNoArgs(clock));
    *now_ns = PyLong_AsLongLong(now);
    Py_DECREF(now);
    return *now_ns == -1 && PyErr_Occurred() ? -1 : 0;
}

static int mark_moved(PyObject *channel)
{
    int dirty = is(channel, n_dirty, Py_True);
    return dirty ? dirty : call(channel, n_moved, NULL);
}

/* Sends what fits, if nothing waits before it; the transport takes the rest, and meets errors. */
static int send_bytes(PyObject *connection, const uint8_t *data, Py_ssize_t length)
{
    INT(fd, connection, _fd);
    LET(transport, get(connection, n_transport));
    Py_ssize_t sent = 0;
    if (fd >= 0) {
        LET(waiting, PyObject_CallMethodObjArgs(transport, n_get_write_buffer_size, NULL));
        if (PyLong_AsLong(waiting) == 0)
            sent = send((int)fd, data, (size_t)length, MSG_DONTWAIT | MSG_NOSIGNAL);
        Py_DECREF(waiting);
    }
    if (sent == length)
        return 0;
    sent = sent < 0 ? 0 : sent;
    LET(rest, PyBytes_FromStringAndSize((const char *)data + sent, length - sent));
    return call(transport, n_write, rest);
}

/* As Delivery.pump_lone: 1 where the message was sent, 0 where Python has to deliver it. */
static int deliver(Lane *lane, PyObject *awaiting, int64_t offset, const uint8_t *frame,
                   Py_ssize_t length)
{
    PyObject *delivery, *none;
    Py_ssize_t place = 0;
    if (PyDict_Size(awaiting) != 1 || !PyDict_Next(awaiting, &place, &delivery, &none))
        return 0;
    ONLY_OF(delivery, DELIVERY);
    ONLY_IF(delivery, order, Py_None);
    LET(state, get(delivery, n_state));
    ONLY_IF(state, wanted, Py_None); ONLY_IF(state, paused, Py_False);
    ONLY_IF(state, trail, Py_None);
    LET(cursor, get(state, n_cursor));
    LET(window, get(cursor, n_window));
    INT(next, window, next); INT(floor, window, floor); INT(origin, window, _origin);
    LET(pending, get(get(cursor, n_pending), n_by_offset));
    LET(line, get(delivery, n__line));
    if (next != offset || offset - floor > COMFORTABLE_SPAN || PyDict_Size(pending) != 0 ||
        PyObject_Size(line) != 1)
        return 0;
    LET(consumer, PySequence_GetItem(line, 0));
    Py_DECREF(consumer); /* the line keeps it */
    ONLY_OF(consumer, CONSUMER);
    ONLY_IF(consumer, blocked, Py_False);
    INT(sample_rate, consumer, sample_rate); INT(ready, consumer, ready_count);
    INT(in_flight, consumer, in_flight_count); INT(number, consumer, number);
    INT(timeout_ns, consumer, timeout_ns);
    LET(leases, get(consumer, n_leases));
    LET(client, get(consumer, n_client));
    ONLY_OF(client, CONNECTION);
    Py_buffer holders;
    LET(array, get(window, n__holders));
    if (sample_rate || ready <= in_flight)
        return 0;
    TRY(PyObject_GetBuffer(array, &holders, PyBUF_WRITABLE));
    int fits = offset - origin < holders.len / 4;
    if (fits)
        ((int32_t *)holders.buf)[offset - origin] = (int32_t)number;
    PyBuffer_Release(&holders);
    if (!fits)
        return 0;

    int64_t now_ns;
    TRY(set_int(window, n_next, offset + 1));
    TRY(mark_moved(state));
    TRY(get_now(lane, &now_ns));
    if (PyObject_Size(leases) > 0)
        TRY(call_int(consumer, n_trim_leases, floor));
    int64_t deadline_ns = now_ns + timeout_ns;
    LET(rank, PyObject_CallNoArgs(part(lane, RANK)));
    LET(lease, PyObject_CallFunction(part(lane, LEASE), "((LLLN))", (long long)offset,
                                     (long long)offset + 1, (long long)deadline_ns, rank));
    TRY(call(leases, n_append, lease));
    TRY(set_int(consumer, n_in_flight_count, in_flight + 1));
    TRY(add_int(consumer, n_message_count, 1));
    LET(alarm, get(state, n_alarm));
    LET(set_for, get(alarm, n_set_for_ns));
    if (set_for == Py_None || PyLong_AsLongLong(set_for) > deadline_ns)
        TRY(call_int(alarm, n_at, deadline_ns));
    TRY(send_bytes(client, frame, length));
    return 1;
}

/* Delivers the message that was just stored, as Topic.stored_lone. */
static int deliver_stored(Lane *lane, PyObject *topic, PyObject *queue, PyObject *segment,
                          int64_t offset, int64_t at, const uint8_t *frame, Py_ssize_t length)
{
    LET(awaiting, get(topic, n_awaiting));
    int running = is(topic, n_paused_at, Py_None), sent = 1;
    TRY(running);
    if (running && PyDict_Size(awaiting) > 0)
        TRY(sent = deliver(lane, awaiting, offset, frame, length));
    if (sent) {
        TRY(set_int(queue, n_visible_end, offset + 1));
        return add_int(topic, n_message_count, 1);
    }
    LET(view, get(segment, n_view));
    LET(slice, PySequence_GetSlice(view, at, at + length));
    PyObject *done = PyObject_CallMethod(topic, "stored_lone", "LN", (long long)offset, slice);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Writes a record of one message to `lane->record`, as martlet.log.single_record. */
static void write_record(uint8_t *record, int64_t length, int64_t position, const uint32_t *places,
                         int64_t offset, int64_t now_ns, uint64_t id, const uint8_t *body,
                         Py_ssize_t size)
{
    int64_t payload = FRAME_HEADER_BYTES + size, ends_at = length - 8;
    const uint32_t numbers[] = {0x474c544d, 0, (uint32_t)length, 1 | 1 << 8 | 2 << 16};
    const int64_t times[] = {offset, now_ns, 0, payload, 0};
    memcpy(record, numbers, 16);
    memcpy(record + 16, &position, 8);
    memcpy(record + 24, places, 16);
    memcpy(record + 40, times, 40);
    put_frame_head(record + HEADER_BYTES, (uint32_t)size, now_ns, id);
    memcpy(record + HEADER_BYTES + FRAME_HEADER_BYTES, body, (size_t)size);
    memset(record + HEADER_BYTES + payload, 0, (size_t)(ends_at - HEADER_BYTES - payload));
    memcpy(record + ends_at, &payload, 8);
    uint32_t crc = crc32c(record + 8, (size_t)length - 8);
    memcpy(record + 4, &crc, 4);
}

/* A PUB that is all that came: 1 where it is stored and answered, 0 where Python has to do it. */
static int publish_lone(Lane *lane, PyObject *connection, Py_ssize_t length)
{
    const uint8_t *input = lane->received.buf;
    Py_ssize_t line_limit = length < MAX_LINE_BYTES ? length : MAX_LINE_BYTES;
    const uint8_t *newline = input[0] == 'P' ? memchr(input, '\n', (size_t)line_limit) : NULL;
    if (newline == NULL)
        return 0;
    Py_ssize_t start = newline - input + 5, size = length - start;
    LET(broker, part(lane, BROKER));
    LET(decoder, get(connection, n_decoder));
    LET(known_lines, get(decoder, n__known_lines));
    LET(replies, get(connection, n_replies));
    LET(topics, get(broker, n_topics));
    INT(max_lone, decoder, max_lone);
    if (size <= 0 || size > max_lone || size > MAX_LONE_BYTES || get_be32(newline + 1) != size ||
        PyObject_Size(replies) != 0)
        return 0;
    LET(line, PyBytes_FromStringAndSize((const char *)input, newline - input));
    PyObject *known = PyDict_GetItemWithError(known_lines, line);
    Py_DECREF(line);
    if (known == NULL || input[1] != 'U') /* or it is an MPUB */
        return PyErr_Occurred() ? -1 : 0;
    LET(name, PyTuple_GetItem(known, 1));
    PyObject *topic = PyDict_GetItemWithError(topics, name);
    if (topic == NULL)
        return PyErr_Occurred() ? -1 : 0;
    ONLY_IF(topic, several, Py_False); ONLY_IF(topic, bounded, Py_False);
    ONLY_IF(broker, unconfirmed, Py_None);
    LET(queue, get(topic, n_queue));
    ONLY_IF(queue, batch, Py_None);
    LET(log, get(broker, n_log));
    ONLY_IF(log, failed, Py_None);
    LET(segment, get(log, n__current));
    ONLY_OF(segment, SEGMENT);
    INT(position, log, position); INT(limit, log, _end); INT(base, segment, base);
    INT(file, segment, _fd); INT(epoch, log, epoch); INT(topic_number, queue, topic);
    INT(queue_number, queue, number); INT(offset, queue, end_offset); INT(id_base, queue, id_base);
    INT(last_ns, broker, _last_stored_ns);
    int64_t now_ns;
    TRY(get_now(lane, &now_ns));
    now_ns = now_ns > last_ns ? now_ns : last_ns;
    int64_t record_length = ((HEADER_BYTES + FRAME_HEADER_BYTES + size + 7) & ~7) + 8;
    if (position + record_length > limit)
        return 0;
    uint8_t record[HEADER_BYTES + FRAME_HEADER_BYTES + MAX_LONE_BYTES + 16];
    const uint32_t places[] = {(uint32_t)epoch, (uint32_t)topic_number, (uint32_t)queue_number, 1};
    write_record(record, record_length, position, places, offset, now_ns,
                 (uint64_t)id_base + (uint64_t)offset, input + start, size);
    if (pwrite((int)file, record, (size_t)record_length, position - base) != record_length)
        return 0; /* Python writes it again, and handles the error */

    TRY(set_int(log, n_position, position + record_length));
    LET(dirty, get(log, n__dirty));
    Py_ssize_t dirty_count = PyList_Size(dirty);
    if (dirty_count == 0 || PyList_GetItem(dirty, dirty_count - 1) != segment)
        TRY(PyList_Append(dirty, segment));
    LET(entry, PyObject_CallFunction(part(lane, ENTRY), "((LLiLLi))", (long long)offset,
                                     (long long)position, 1, (long long)record_length,
                                     (long long)now_ns, 0));
    TRY(call(get(queue, n_index), n_add, entry));
    TRY(set_int(broker, n__last_stored_ns, now_ns));
    TRY(set_int(queue, n_end_offset, offset + 1));
    TRY(add_int(queue, n_message_bytes, size));
    TRY(add_int(broker, n_stored_count, 1));
    TRY(deliver_stored(lane, topic, queue, segment, offset, position - base + HEADER_BYTES,
                       record + HEADER_BYTES, FRAME_HEADER_BYTES + size));
    LET(counters, get(connection, n_message_counters));
    PyObject *before = PyDict_GetItemWithError(counters, name);
    LET(count, PyLong_FromLongLong(before == NULL ? 1 : PyLong_AsLongLong(before) + 1));
    int counted = PyDict_SetItem(counters, name, count);
    Py_DECREF(count);
    TRY(counted);
    TRY(PyObject_SetAttr(connection, n_heard, Py_True));
    TRY(send_bytes(connection, (const uint8_t *)"\0\0\0\6\0\0\0\0OK", 10));
    return 1;
}

/* A FIN that is all that came, of a message in the window: as Channel.finish. */
static int finish_lone(Lane *lane, PyObject *connection, Py_ssize_t length)
{
    const uint8_t *input = lane->received.buf;
    uint64_t id;
    if (length != FINISH_BYTES || memcmp(input, "FIN ", 4) || input[FINISH_BYTES - 1] != '\n' ||
        !get_hex(input + 4, &id))
        return 0;
    LET(channel, get(connection, n_channel));
    LET(consumer, get(connection, n_consumer));
    ONLY_OF(channel, CHANNEL);
    ONLY_OF(consumer, CONSUMER);
    ONLY_IF(channel, trail, Py_None);
    LET(delivery, get(channel, n_delivery));
    ONLY_IF(delivery, order, Py_None);
    LET(queue, get(channel, n_queue));
    LET(cursor, get(channel, n_cursor));
    LET(window, get(cursor, n_window));
    LET(pending, get(get(cursor, n_pending), n_by_offset));
    LET(line, get(delivery, n__line));
    INT(id_base, queue, id_base); INT(visible_end, queue, visible_end); INT(floor, window, floor);
    INT(next, window, next); INT(origin, window, _origin); INT(number, consumer, number);
    INT(answered, consumer, answered); INT(ready, consumer, ready_count);
    INT(in_flight, consumer, in_flight_count);
    int blocked = is(consumer, n_blocked, Py_True), in_line = is(consumer, n_is_ready, Py_True);
    int64_t offset = (int64_t)(id - (uint64_t)id_base);
    if (blocked < 0 || in_line < 0)
        return -1;
    if (offset < floor || offset >= next)
        return 0;
    Py_buffer buffer;
    LET(array, get(window, n__holders));
    TRY(PyObject_GetBuffer(array, &buffer, PyBUF_WRITABLE));
    int32_t *holders = buffer.buf;
    int held = holders[offset - origin] == (int32_t)number;
    if (held) {
        holders[offset - origin] = 0;
        while (floor < next && holders[floor - origin] == 0)
            floor++;
    }
    PyBuffer_Release(&buffer);
    if (!held)
        return 0;
    TRY(set_int(window, n_floor, floor));
    if (floor == next)
        TRY(set_int(window, n__origin, floor));
    if (offset > answered)
        TRY(set_int(consumer, n_answered, offset));
    TRY(call_int(get(channel, n_finishes), n_note, offset));
    TRY(set_int(consumer, n_in_flight_count, in_flight - 1));
    TRY(add_int(consumer, n_finish_count, 1));
    TRY(mark_moved(channel));
    TRY(PyObject_SetAttr(connection, n_heard, Py_True));
    if (!in_line && !blocked && ready > in_flight - 1) {
        Py_INCREF(consumer);
        TRY(call(delivery, n__enter_line, consumer));
        in_line = 1;
    }
    if (in_line && (visible_end != next || PyDict_Size(pending) || PyObject_Size(line) != 1))
        TRY(call(delivery, n_pump, NULL));
    return 1;
}

/* publish(parts, received, connection, length) -> whether it was a lone PUB, stored and answered */
static PyObject *publish(PyObject *module, PyObject *args)
{
    Lane lane;
    PyObject *connection;
    Py_ssize_t length;
    if (!PyArg_ParseTuple(args, "O!w*On", &PyTuple_Type, &lane.parts, &lane.received, &connection,
                          &length))
        return NULL;
    int fits = length > 0 && length <= lane.received.len;
    int done = fits ? publish_lone(&lane, connection, length) : 0;
    PyBuffer_Release(&lane.received);
    return done < 0 ? NULL : PyBool_FromLong(done);
}

/* Reads what a connection has received, and handles it: FED, ELSEWHERE or SERVED. */
static int serve_one(Lane *lane, PyObject *connection)
{
    int usable = is(connection, n_brief, Py_True), waits = is(connection, n__waits, Py_True);
    int closing = is(connection, n__closing, Py_True), whole = is(connection, n__own, Py_None);
    INT(fd, connection, _fd);
    if (usable < 0 || waits < 0 || closing < 0 || whole < 0)
        return -1;
    if (!usable || waits || closing)
        return ELSEWHERE;
    Py_buffer into = lane->received;
    if (!whole) { /* behind the beginning of a command */
        PyObject *view = PyObject_CallMethod((PyObject *)connection, "get_buffer", "i", -1);
        int result = view == NULL ? -1 : PyObject_GetBuffer(view, &into, PyBUF_WRITABLE);
        Py_XDECREF(view);
        TRY(result);
    }
    ssize_t length = recv((int)fd, into.buf, (size_t)into.len, MSG_DONTWAIT);
    int error = errno, done = 0;
    if (!whole)
        PyBuffer_Release(&into);
    if (length == 0 || (length < 0 && (error == EAGAIN || error == EINTR)))
        return ELSEWHERE; /* the end stays there for the loop to see */
    if (length > 0 && whole) {
        TRY(done = publish_lone(lane, connection, length));
        if (!done)
            TRY(done = finish_lone(lane, connection, length));
    }
    if (done)
        return SERVED;
    PyObject *fed = PyObject_CallFunction(part(lane, length < 0 ? FAIL : FEED), "On", connection,
                                          length < 0 ? (Py_ssize_t)error : length);
    Py_XDECREF(fed);
    return fed == NULL ? -1 : FED;
}

/* Hands the error that is set to `FAIL`: it concerns one connection only. */
static int fail(Lane *lane, PyObject *connection)
{
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    PyObject *told = PyObject_CallFunction(part(lane, FAIL), "OO", connection, error);
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    Py_XDECREF(told);
    return told == NULL ? -1 : FED;
}

/* serve(parts, received, epoll, window_ns, budget_ns) -> FED, ELSEWHERE, SERVED: see the stub */
static PyObject *serve(PyObject *module, PyObject *args)
{
    Lane lane;
    int epoll, done = 0;
    long long window_ns, budget_ns;
    if (!PyArg_ParseTuple(args, "O!w*iLL", &PyTuple_Type, &lane.parts, &lane.received, &epoll,
                          &window_ns, &budget_ns))
        return NULL;
    int64_t began_ns = monotonic_ns(), last_ns = began_ns;
    while (done >= 0 && !(done & (FED | ELSEWHERE)) && last_ns - began_ns < budget_ns) {
        struct epoll_event events[MAX_EVENTS];
        int count;
        Py_BEGIN_ALLOW_THREADS
        while ((count = epoll_wait(epoll, events, MAX_EVENTS, 0)) == 0 &&
               monotonic_ns() - last_ns < window_ns)
            sched_yield();
        Py_END_ALLOW_THREADS
        if (count <= 0)
            break;
        for (int number = 0; number < count && done >= 0; number++) {
            PyObject *fd = PyLong_FromLong(events[number].data.fd), *connection = NULL;
            if (fd != NULL)
                connection = PyDict_GetItemWithError(part(&lane, CONNECTIONS), fd);
            Py_XDECREF(fd);
            int result = ELSEWHERE;
            if (connection != NULL && events[number].events == EPOLLIN) {
                Py_INCREF(connection);
                result = serve_one(&lane, connection);
                if (result < 0)
                    result = fail(&lane, connection);
                Py_DECREF(connection);
            }
            done = result < 0 || PyErr_Occurred() ? -1 : done | result;
        }
        last_ns = monotonic_ns();
    }
    PyBuffer_Release(&lane.received);
    return done < 0 ? NULL : PyLong_FromLong(done);
}

static PyMethodDef functions[] = {{"frame_bodies", frame_bodies, METH_VARARGS, NULL},
                                  {"publish", publish, METH_VARARGS, NULL},
                                  {"serve", serve, METH_VARARGS, NULL},
                                  {NULL, NULL, 0, NULL}};
static struct PyModuleDef definition = {.m_base = PyModuleDef_HEAD_INIT, .m_name = "_native",
                                        .m_size = -1, .m_methods = functions};

PyMODINIT_FUNC PyInit__native(void)
{
    if (!HAS_CRC) {
        PyErr_SetString(PyExc_ImportError, "the processor cannot compute CRC-32C");
        return NULL;
    }
#define INTERN(name) if ((n_##name = PyUnicode_InternFromString(#name)) == NULL) return NULL;
    NAMES(INTERN)
    return PyModule_Create(&definition);
}
