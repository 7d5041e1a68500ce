/* The hot path of a broker, compiled: optional, and equal to the Python that it stands in for.

   frame_bodies    measures bodies of any sizes, and lays them    martlet.protocol.nsq.bulk and
                   out as message frames                          martlet.log.batch
   serve           reads lone PUBs and FINs from the sockets,     martlet.server.nsq.compiled_path
                   and answers them

   - Whatever may be refused is checked first. Where a check fails the result is 0, nothing has
     changed, and Python does the work: errors, TLS, AUTH, pauses, policies and traces are there.
   - Only the classes in `shared` are known here; their subclasses are left to Python.
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
    MAGIC = 0x474c544d, /* martlet.log.record */
    HEADER_BYTES = 80, FRAME_HEADER_BYTES = 34, FRAME_SIZE_EXTRA = 30,
    FINISH_BYTES = 21, /* FIN, a space, 16 digits, a newline */
    MAX_LINE_BYTES = 128, /* martlet.protocol.nsq.decoder: of a line that is cached */
    MAX_LONE_BYTES = 1 << 14,
    COMFORTABLE_SPAN = 1 << 17, /* martlet.broker.queue.in_flight */
    MAX_EVENTS = 64, MAX_KEPT = 64 + 16 * MAX_EVENTS, MAX_INPUT_BYTES = 1 << 15,
};

/* ---------------------------------------------------------------- numbers */

static void put_be32(uint8_t *at, uint32_t number)
{
    memcpy(at, &(uint32_t){__builtin_bswap32(number)}, 4);
}

static uint32_t get_be32(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* Eight hexadecimal digits, a byte each, by arithmetic on all of them at once. */
static void put_hex(uint8_t *at, uint64_t number)
{
    number = (number << 16 | number) & 0x0000ffff0000ffff;
    number = (number << 8 | number) & 0x00ff00ff00ff00ff;
    number = (number << 4 | number) & 0x0f0f0f0f0f0f0f0f;
    uint64_t letters = (number + 0x0606060606060606) >> 4 & 0x0101010101010101;
    number = __builtin_bswap64(number + 0x3030303030303030 + letters * ('a' - '0' - 10));
    memcpy(at, &number, 8);
}

static void put_frame_head(uint8_t *at, uint32_t size, int64_t stored_at_ns, uint64_t id)
{
    put_be32(at, FRAME_SIZE_EXTRA + size);
    put_be32(at + 4, 2); /* a message */
    memcpy(at + 8, &(uint64_t){__builtin_bswap64((uint64_t)stored_at_ns)}, 8);
    memcpy(at + 16, "\0\1", 2); /* attempts */
    put_hex(at + 18, id >> 32);
    put_hex(at + 26, id & UINT32_MAX);
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
    if (at < 0 || at > end || end > source.len || head < 0 || scratch_at < 0 ||
        scratch_at > scratch.len || scratch.len > UINT32_MAX)
        at = end = scratch_at = count = 0;
    const uint8_t *first = (const uint8_t *)source.buf + at, *from = first;
    uint8_t *to = (uint8_t *)scratch.buf + scratch_at;
    Py_ssize_t left = end - at, room = scratch.len - scratch_at;
    if (scratch.len && count > ends.len / 4) count = ends.len / 4;
    for (; found < count && left >= head + 4; found++) {
        int64_t size = get_be32(from + head);
        if ((head && memcmp(from, first, (size_t)head)) || size == 0 || size > max_size ||
            size > left - head - 4 || (scratch.len && size > room - FRAME_HEADER_BYTES))
            break;
        if (scratch.len) {
            put_frame_head(to, (uint32_t)size, stored_at_ns, first_id + (uint64_t)found);
            memcpy(to + FRAME_HEADER_BYTES, from + head + 4, (size_t)size);
            to += FRAME_HEADER_BYTES + size;
            room -= FRAME_HEADER_BYTES + size;
            uint32_t frame_end = (uint32_t)(to - (uint8_t *)scratch.buf - HEADER_BYTES);
            memcpy((uint8_t *)ends.buf + 4 * found, &frame_end, 4);
        }
        smallest = found == 0 || size < smallest ? size : smallest;
        largest = size > largest ? size : largest;
        from += head + 4 + size;
        left -= head + 4 + size;
    }
    PyBuffer_Release(&source); PyBuffer_Release(&scratch); PyBuffer_Release(&ends);
    return Py_BuildValue("(nnLL)", found, at + (Py_ssize_t)(from - first), smallest, largest);
}

/* ---------------------------------------------------------------- Python's objects */

#define NAMES(X)                                                                                   \
    X(_current) X(_end) X(_enter_line) X(_fd) X(_known_lines) X(_lend) X(_line) X(answered)        \
    X(appended) X(awaiting) X(base) X(batch) X(blocked) X(bounded) X(brief) X(by_offset)           \
    X(channel) X(channel_filter) X(client) X(consumer) X(cursor) X(decoder) X(delivery)            \
    X(dirty) X(due) X(end_offset) X(epoch) X(failed) X(fd) X(finish_count) X(finishes) X(floor)    \
    X(get_write_buffer_size) X(grant_one) X(has_received) X(held_from) X(id_base)                  \
    X(in_flight_count) X(input) X(is_ready) X(log) X(max_lone) X(message_count)                    \
    X(message_counters) X(moved) X(next) X(note) X(number) X(offset_of) X(order) X(output) X(own)  \
    X(paused) X(paused_at) X(pending) X(position) X(pump) X(queue) X(rate_limit) X(ready_count)    \
    X(recorder) X(release_one) X(replies) X(sample_rate) X(several) X(state) X(stored)             \
    X(stored_at_ns) X(stored_count) X(stored_lone) X(subscription) X(topic) X(topics) X(transport) \
    X(unconfirmed) X(visible_end) X(waits) X(window) X(write) X(written)
#define DECLARE(name) static PyObject *n_##name;
NAMES(DECLARE)

/* What Python hands over, in order (martlet.server.nsq.compiled_path); the last are classes. */
enum { BROKER, CONNECTIONS, FLUSH, FEED, FAIL, AWAIT, CRC, SEGMENT, DELIVERY, CHANNEL, CONSUMER,
       SUBSCRIPTION };
enum { FED = 1, ELSEWHERE = 2, SERVED = 4, READ = 8 };

/* A PUB that is all that came. */
typedef struct {
    PyObject *connection, *output, *topic, *name;
    const uint8_t *input, *body;
    int64_t length, size, stored; /* stored: 0 leaves it to Python, -1 is an error */
} Lone;

/* `kept` has every object that a command has read or made, until the command is done: so no call
   into Python frees one that is still used. */
typedef struct {
    PyObject *shared;
    Py_buffer received; /* the buffer that all connections receive into */
    PyObject *kept[MAX_KEPT];
    Lone lones[MAX_EVENTS]; /* the PUBs that are read and not stored yet */
    int kept_count, kept_floor, lone_count, input_bytes;
    uint8_t inputs[MAX_INPUT_BYTES]; /* theirs */
} Call;

#define shared(call, number) PyTuple_GetItem((call)->shared, number)

/* Takes over a reference, which is NULL after an error. */
static PyObject *keep(Call *call, PyObject *value)
{
    if (value != NULL && call->kept_count == MAX_KEPT) {
        Py_DECREF(value);
        PyErr_SetString(PyExc_SystemError, "a command keeps more objects than MAX_KEPT");
        return NULL;
    }
    return value == NULL ? NULL : (call->kept[call->kept_count++] = value);
}

static void forget_kept(Call *call)
{
    while (call->kept_count > call->kept_floor)
        Py_DECREF(call->kept[--call->kept_count]);
}

/* Functions return -1 for an error, which is set, and most of them 0 to leave it to Python. */
#define TRY(action) do { if ((action) < 0) return -1; } while (0)
#define LET(variable, value)                                                                       \
    PyObject *variable = keep(call, (value));                                                      \
    if (variable == NULL) return -1
#define GET(variable, of, name) LET(variable, PyObject_GetAttr(of, n_##name))
#define INT(variable, of, name) int64_t variable; TRY(get_int(of, n_##name, &variable))
#define NUMBER(variable, value) LET(variable, PyLong_FromLongLong(value))
#define CALL(of, ...)                                                                              \
    do { LET(done, PyObject_CallMethodObjArgs(of, __VA_ARGS__, NULL)); (void)done; } while (0)
#define NOTE_MOVED(channel) /* as ChannelState.moved, which does nothing where it is dirty */      \
    do { int clean = is(channel, n_dirty, Py_False); TRY(clean);                                   \
         if (clean) CALL(channel, n_moved); } while (0)
#define COUNT(variable, of) Py_ssize_t variable = PyObject_Size(of); TRY(variable)
#define ONLY_IF(of, name, expected)                                                                \
    do { int found = is(of, n_##name, expected); if (found <= 0) return found; } while (0)
#define ONLY_OF(object, type)                                                                      \
    do { if ((PyObject *)Py_TYPE(object) != shared(call, type)) return 0; } while (0)

static int get_int(PyObject *of, PyObject *name, int64_t *number)
{
    PyObject *value = PyObject_GetAttr(of, name);
    if (value == NULL) return -1;
    *number = (int64_t)PyLong_AsUnsignedLongLongMask(value); /* ids use all 64 bits */
    Py_DECREF(value);
    return *number == -1 && PyErr_Occurred() ? -1 : 0;
}

static int set_int(PyObject *of, PyObject *name, int64_t number)
{
    PyObject *value = PyLong_FromLongLong(number);
    int result = value == NULL ? -1 : PyObject_SetAttr(of, name, value);
    Py_XDECREF(value);
    return result;
}

static int add_int(PyObject *of, PyObject *name, int64_t more)
{
    int64_t number;
    return get_int(of, name, &number) < 0 ? -1 : set_int(of, name, number + more);
}

/* Returns 1 where an attribute is that very object, 0 where it is another. */
static int is(PyObject *of, PyObject *name, PyObject *expected)
{
    PyObject *value = PyObject_GetAttr(of, name);
    Py_XDECREF(value);
    return value == NULL ? -1 : value == expected;
}

/* ---------------------------------------------------------------- lone commands */

/* Sends what fits, if nothing waits before it; the transport takes the rest, and meets errors. */
static int send_bytes(Call *call, PyObject *output, const uint8_t *data, Py_ssize_t length)
{
    INT(fd, output, fd); GET(transport, output, transport);
    Py_ssize_t sent = 0;
    if (fd >= 0) {
        LET(waiting, PyObject_CallMethodObjArgs(transport, n_get_write_buffer_size, NULL));
        if (PyLong_AsLong(waiting) == 0)
            sent = send((int)fd, data, (size_t)length, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    if (sent == length) return 0;
    if (sent < 0) sent = 0;
    LET(rest, PyBytes_FromStringAndSize((const char *)data + sent, length - sent));
    CALL(transport, n_write, rest);
    return 0;
}

/* As Delivery.pump_lone: 1 where the message was sent. */
static int deliver(Call *call, PyObject *awaiting, int64_t offset, const uint8_t *frame,
                   Py_ssize_t length)
{
    PyObject *first, *none;
    Py_ssize_t place = 0;
    if (PyDict_Size(awaiting) != 1 || !PyDict_Next(awaiting, &place, &first, &none))
        return 0;
    LET(delivery, Py_NewRef(first)); ONLY_OF(delivery, DELIVERY);
    ONLY_IF(delivery, order, Py_None); ONLY_IF(delivery, rate_limit, Py_None);
    GET(state, delivery, state); ONLY_IF(state, channel_filter, Py_None);
    ONLY_IF(state, paused, Py_False); GET(cursor, state, cursor); GET(window, cursor, window);
    GET(pending, cursor, pending); GET(pending_by_offset, pending, by_offset);
    GET(line, delivery, _line); INT(next, window, next); INT(floor, window, floor);
    COUNT(pending_count, pending_by_offset); COUNT(line_count, line);
    if (next != offset || offset - floor > COMFORTABLE_SPAN || pending_count || line_count != 1)
        return 0;
    LET(consumer, PySequence_GetItem(line, 0)); ONLY_OF(consumer, CONSUMER);
    ONLY_IF(consumer, blocked, Py_False); INT(sample_rate, consumer, sample_rate);
    GET(client, consumer, client); ONLY_OF(client, SUBSCRIPTION);
    INT(ready, consumer, ready_count); INT(in_flight, consumer, in_flight_count);
    if (sample_rate || ready <= in_flight)
        return 0;

    GET(number, consumer, number);
    NUMBER(lent_offset, offset); NUMBER(one, 1);
    CALL(window, n_grant_one, number); NOTE_MOVED(state);
    CALL(delivery, n__lend, consumer, lent_offset, one);
    GET(output, client, output); TRY(send_bytes(call, output, frame, length));
    return 1;
}

/* Reads a PUB that is all that came, of a topic that is there: 1 where it is one. */
static int read_lone(Call *call, PyObject *connection, Py_ssize_t length, Lone *lone)
{
    const uint8_t *input = call->received.buf;
    Py_ssize_t line_limit = length < MAX_LINE_BYTES ? length : MAX_LINE_BYTES;
    const uint8_t *newline = input[0] == 'P' ? memchr(input, '\n', (size_t)line_limit) : NULL;
    if (newline == NULL) return 0;
    GET(decoder, connection, decoder); GET(known_lines, decoder, _known_lines);
    GET(replies, connection, replies); GET(due, replies, due); COUNT(reply_count, due);
    INT(max_lone, decoder, max_lone); GET(topics, shared(call, BROKER), topics);
    int64_t size = length - (newline + 5 - input);
    if (size <= 0 || size > max_lone || size > MAX_LONE_BYTES ||
        get_be32(newline + 1) != size || reply_count)
        return 0;
    LET(line, PyBytes_FromStringAndSize((const char *)input, newline - input));
    PyObject *known = PyDict_GetItemWithError(known_lines, line); /* with a P they are PUBs */
    if (known == NULL) return PyErr_Occurred() ? -1 : 0;
    LET(name, PySequence_GetItem(known, 1));
    PyObject *topic = PyDict_GetItemWithError(topics, name);
    if (topic == NULL) return PyErr_Occurred() ? -1 : 0;
    LET(kept_topic, Py_NewRef(topic));
    *lone = (Lone){connection, NULL, kept_topic, name, input, newline + 5, length, size};
    return 1;
}

/* Delivers the message of a record that was just stored, as Topic.stored_lone. */
static int deliver_stored(Call *call, PyObject *topic, int64_t offset, PyObject *record,
                          Py_ssize_t length)
{
    const uint8_t *frame = (const uint8_t *)PyBytes_AsString(record) + HEADER_BYTES;
    GET(queue, topic, queue); GET(awaiting, topic, awaiting);
    COUNT(awaiting_count, awaiting);
    int sent = 1, running = is(topic, n_paused_at, Py_None); TRY(running);
    TRY(set_int(queue, n_visible_end, offset + 1));
    if (running && awaiting_count > 0)
        TRY(sent = deliver(call, awaiting, offset, frame, length));
    if (sent)
        return add_int(topic, n_message_count, 1);
    NUMBER(lone_offset, offset);
    LET(view, PyMemoryView_FromObject(record));
    LET(slice, PySequence_GetSlice(view, HEADER_BYTES, HEADER_BYTES + length));
    CALL(topic, n_stored_lone, lone_offset, slice);
    return 0;
}

/* Stores PUBs of one topic in one record, as martlet.log.batch, and delivers them: 1 if done. */
static int store(Call *call, const Lone *lones, int count)
{
    PyObject *broker = shared(call, BROKER), *topic = lones->topic;
    GET(topics, broker, topics);
    if (PyDict_GetItemWithError(topics, lones->name) != topic)
        return PyErr_Occurred() ? -1 : 0; /* what Python did since has replaced it */
    ONLY_IF(topic, several, Py_False); ONLY_IF(topic, bounded, Py_False);
    GET(queue, topic, queue); ONLY_IF(queue, batch, Py_None);
    ONLY_IF(broker, unconfirmed, Py_None); ONLY_IF(topic, held_from, Py_None);
    GET(log, broker, log); ONLY_IF(log, failed, Py_None);
    GET(segment, log, _current); ONLY_OF(segment, SEGMENT);
    INT(position, log, position); INT(limit, log, _end); INT(base, segment, base);
    INT(file, segment, _fd); INT(epoch, log, epoch); INT(topic_number, queue, topic);
    INT(queue_number, queue, number); INT(offset, queue, end_offset); INT(id_base, queue, id_base);
    int64_t body_bytes = 0, flags = 2; /* UNIFORM */
    for (int number = 0; number < count; number++) {
        body_bytes += lones[number].size;
        flags = lones[number].size == lones->size ? flags : 0;
    }
    const int64_t payload = body_bytes + FRAME_HEADER_BYTES * count;
    const int64_t ends_at = (HEADER_BYTES + payload + 7) & ~7;
    const int64_t length = (ends_at + 4 * count + 7) & ~7;
    if (position < base || position + length > limit)
        return 0;
    LET(now, PyObject_CallMethodObjArgs(broker, n_stored_at_ns, NULL));
    const int64_t now_ns = PyLong_AsLongLong(now);
    const int64_t header[] = {MAGIC, length | (1 | 1 << 8 | flags << 16) << 32, position,
                              epoch | topic_number << 32, queue_number | (int64_t)count << 32,
                              offset, now_ns, 0, payload, 0};
    LET(record, PyBytes_FromStringAndSize(NULL, length));
    uint8_t *bytes = (uint8_t *)PyBytes_AsString(record), *to = bytes + HEADER_BYTES;
    memcpy(bytes, header, HEADER_BYTES);
    memset(to + payload, 0, (size_t)(length - HEADER_BYTES - payload));
    for (int number = 0; number < count; number++) {
        const Lone *lone = &lones[number];
        uint64_t id = (uint64_t)id_base + (uint64_t)(offset + number);
        put_frame_head(to, (uint32_t)lone->size, now_ns, id);
        memcpy(to + FRAME_HEADER_BYTES, lone->body, (size_t)lone->size);
        to += FRAME_HEADER_BYTES + lone->size;
        uint32_t frame_end = (uint32_t)(to - bytes - HEADER_BYTES);
        memcpy(bytes + ends_at + 4 * number, &frame_end, 4);
    }
    LET(checked, PySequence_GetSlice(record, 8, length));
    LET(sum, PyObject_CallFunctionObjArgs(shared(call, CRC), checked, NULL));
    uint32_t crc = (uint32_t)PyLong_AsUnsignedLong(sum);
    memcpy(bytes + 4, &crc, 4);
    NUMBER(at, position); NUMBER(record_length, length); NUMBER(size, body_bytes);
    NUMBER(messages, count); NUMBER(first, offset); NUMBER(end, offset + count);
    if (PyErr_Occurred()) return -1;
    if (pwrite((int)file, bytes, (size_t)length, position - base) != length)
        return 0; /* Python writes it again, and handles the error */

    CALL(log, n_written, record_length);
    CALL(queue, n_appended, at, record_length, size, now, messages);
    TRY(add_int(broker, n_stored_count, count));
    if (count > 1)
        CALL(topic, n_stored, first, end, Py_False);
    else
        TRY(deliver_stored(call, topic, offset, record, payload));
    return 1;
}

/* A FIN that is all that came, of a message in the window: as Channel.finish. */
static int finish_lone(Call *call, PyObject *connection, Py_ssize_t length)
{
    const uint8_t *input = call->received.buf;
    if (length != FINISH_BYTES || memcmp(input, "FIN ", 4) || input[FINISH_BYTES - 1] != '\n')
        return 0;
    GET(subscription, connection, subscription); ONLY_OF(subscription, SUBSCRIPTION);
    GET(channel, subscription, channel); ONLY_OF(channel, CHANNEL);
    GET(consumer, subscription, consumer); ONLY_OF(consumer, CONSUMER); /* not blocked: it is read */
    GET(delivery, channel, delivery); GET(line, delivery, _line); ONLY_IF(delivery, order, Py_None);
    GET(queue, channel, queue); GET(cursor, channel, cursor); GET(window, cursor, window);
    GET(pending, cursor, pending); GET(pending_by_offset, pending, by_offset);
    GET(finishes, channel, finishes); ONLY_IF(channel, recorder, Py_None);
    INT(visible_end, queue, visible_end); INT(answered, consumer, answered);
    INT(ready, consumer, ready_count); INT(in_flight, consumer, in_flight_count);
    int in_line = is(consumer, n_is_ready, Py_True); TRY(in_line); GET(number, consumer, number);
    LET(id, PyBytes_FromStringAndSize((const char *)input + 4, 16));
    PyObject *offset = keep(call, PyObject_CallMethodObjArgs(queue, n_offset_of, id, NULL));
    if (offset == NULL) /* Python answers what is no id */
        return PyErr_ExceptionMatches(PyExc_ValueError) ? (PyErr_Clear(), 0) : -1;
    LET(released, PyObject_CallMethodObjArgs(window, n_release_one, number, offset, NULL));
    if (released != Py_True)
        return 0;

    if (PyLong_AsLongLong(offset) > answered)
        TRY(PyObject_SetAttr(consumer, n_answered, offset));
    CALL(finishes, n_note, offset);
    TRY(set_int(consumer, n_in_flight_count, in_flight - 1));
    TRY(add_int(consumer, n_finish_count, 1)); NOTE_MOVED(channel);
    TRY(PyObject_SetAttr(connection, n_has_received, Py_True));
    int has_room = ready > in_flight - 1;
    if (!in_line && has_room) {
        CALL(delivery, n__enter_line, consumer);
        in_line = 1;
    }
    INT(next, window, next);
    COUNT(line_count, line); COUNT(pending_count, pending_by_offset);
    if (in_line && (!has_room || visible_end != next || pending_count || line_count != 1))
        CALL(delivery, n_pump); /* there is something to do */
    return 1;
}

/* ---------------------------------------------------------------- sockets */

/* Hands what was received, an errno or the error that is set to Python: it concerns no others. */
static int feed(Call *call, PyObject *connection, int function, Py_ssize_t number)
{
    PyObject *fed = PyObject_CallFunction(shared(call, function), "On", connection, number);
    Py_XDECREF(fed);
    return fed == NULL ? -1 : FED;
}

static int fail(Call *call, const Lone *lones, int count)
{
    PyObject *type, *error, *trace, *told = NULL;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    if (trace != NULL) PyException_SetTraceback(error, trace);
    for (int number = 0; number < count && (number == 0 || told != NULL); number++) {
        Py_XDECREF(told);
        told = PyObject_CallFunction(shared(call, FAIL), "OO", lones[number].connection, error);
    }
    Py_XDECREF(type); Py_XDECREF(error); Py_XDECREF(trace); Py_XDECREF(told);
    return told == NULL ? -1 : FED;
}

/* Reads what a connection has received, and handles it. A PUB is put into `lones`. */
static int serve_one(Call *call, PyObject *connection, int fd)
{
    ONLY_IF(connection, brief, Py_True); /* not if it closes, or its output is full */
    GET(input, connection, input); ONLY_IF(input, waits, Py_False);
    int whole = is(input, n_own, Py_None), done; TRY(whole);
    Py_buffer into = call->received;
    if (!whole) { /* behind the beginning of a command */
        LET(view, PyObject_CallMethod(connection, "get_buffer", "i", -1));
        TRY(PyObject_GetBuffer(view, &into, PyBUF_WRITABLE));
    }
    ssize_t length = recv(fd, into.buf, (size_t)into.len, MSG_DONTWAIT);
    int error = errno;
    if (!whole) PyBuffer_Release(&into);
    if (length == 0 || (length < 0 && (error == EAGAIN || error == EINTR || error == EBADF)))
        return 0; /* the end stays there for the loop to see */
    if (length > 0 && whole) {
        Lone *lone = &call->lones[call->lone_count];
        TRY(done = read_lone(call, connection, length, lone));
        if (done && length <= MAX_INPUT_BYTES - call->input_bytes) {
            uint8_t *input = memcpy(call->inputs + call->input_bytes, lone->input, (size_t)length);
            GET(output, connection, output); lone->output = output;
            lone->body += input - lone->input; lone->input = input;
            call->input_bytes += (int)length;
            call->lone_count++;
            LET(kept, Py_NewRef(connection));
            call->kept_floor = call->kept_count; /* until it is stored */
            return READ;
        }
        TRY(done = finish_lone(call, connection, length));
        if (done) return SERVED;
    }
    forget_kept(call); /* Python may replace or close what was read */
    return feed(call, connection, length < 0 ? FAIL : FEED, length < 0 ? error : length);
}

/* Serves a socket that has an event. */
static int serve_event(Call *call, struct epoll_event *event)
{
    LET(fd, PyLong_FromLong(event->data.fd));
    PyObject *found = PyDict_GetItemWithError(shared(call, CONNECTIONS), fd);
    if (found == NULL || event->events != EPOLLIN)
        return PyErr_Occurred() ? -1 : ELSEWHERE;
    Lone only = {.connection = Py_NewRef(found)};
    int result = serve_one(call, found, event->data.fd);
    result = result < 0 ? fail(call, &only, 1) : result == 0 ? ELSEWHERE : result;
    Py_DECREF(found);
    return result;
}

/* Answers a PUB that is stored, or has Python answer it after another flush. */
static int answer(Call *call, const Lone *lone, int durable)
{
    GET(counters, lone->connection, message_counters);
    PyObject *before = PyDict_GetItemWithError(counters, lone->name);
    NUMBER(count, before == NULL ? 1 : PyLong_AsLongLong(before) + 1);
    if (PyErr_Occurred()) return -1;
    TRY(PyDict_SetItem(counters, lone->name, count));
    TRY(PyObject_SetAttr(lone->connection, n_has_received, Py_True));
    if (!durable) return feed(call, lone->connection, AWAIT, 0);
    TRY(send_bytes(call, lone->output, (const uint8_t *)"\0\0\0\6\0\0\0\0OK", 10));
    return SERVED;
}

/* Stores the PUBs that were read, those of a topic together, flushes them where there is a flush, and
   answers. A FIN that has come at the same time has made room for them. */
static int store_all(Call *call)
{
    Lone *lones = call->lones, *last = lones + call->lone_count;
    int done = 0, durable = 1;
    call->lone_count = call->input_bytes = 0;
    for (Lone *first = lones, *end; first < last; first = end) {
        forget_kept(call);
        end = first + 1;
        for (Lone *other = end; other < last; other++)
            if (other->topic == first->topic) {
                Lone found = *other;
                *other = *end;
                *end++ = found;
            }
        int stored = store(call, first, (int)(end - first));
        TRY(done |= stored > 0 ? SERVED : stored < 0 ? fail(call, first, (int)(end - first)) : 0);
        for (Lone *lone = first; lone < end; lone++) lone->stored = stored;
    }
    if (done & SERVED && shared(call, FLUSH) != Py_None) {
        PyObject *flushed = keep(call, PyObject_CallFunction(shared(call, FLUSH), NULL));
        if (flushed == NULL) return fail(call, lones, (int)(last - lones));
        durable = flushed == Py_True;
    }
    for (Lone *lone = lones; lone < last; lone++) {
        forget_kept(call);
        if (lone->stored == 0)
            memmove(call->received.buf, lone->input, (size_t)lone->length);
        int result = lone->stored < 0    ? 0
                     : lone->stored == 0 ? feed(call, lone->connection, FEED, lone->length)
                                         : answer(call, lone, durable);
        TRY(done |= result < 0 ? fail(call, lone, 1) : result);
    }
    return done;
}

/* serve(shared, received, epoll, window_ns, budget_ns) -> FED, ELSEWHERE, SERVED: see the stub */
static PyObject *serve(PyObject *module, PyObject *args)
{
    Call call;
    int epoll, count, done = 0;
    long long window_ns, budget_ns;
    if (!PyArg_ParseTuple(args, "O!w*iLL", &PyTuple_Type, &call.shared, &call.received, &epoll,
                          &window_ns, &budget_ns))
        return NULL;
    int64_t began_ns = monotonic_ns(), last_ns = began_ns;
    call.kept_count = call.kept_floor = call.lone_count = call.input_bytes = 0;
    do {
        struct epoll_event events[MAX_EVENTS];
        Py_BEGIN_ALLOW_THREADS
        while ((count = epoll_wait(epoll, events, MAX_EVENTS, 0)) == 0 &&
               monotonic_ns() - last_ns < window_ns)
            sched_yield();
        Py_END_ALLOW_THREADS
        if (count <= 0) break;
        for (int number = 0; number <= count && done >= 0; number++) {
            int result = number < count ? serve_event(&call, &events[number]) : store_all(&call);
            done = result < 0 ? -1 : done | result;
            forget_kept(&call);
        }
        call.kept_floor = 0;
        forget_kept(&call);
        last_ns = monotonic_ns();
    } while (done >= 0 && !(done & (FED | ELSEWHERE)) && last_ns - began_ns < budget_ns);
    PyBuffer_Release(&call.received);
    return done < 0 ? NULL : PyLong_FromLong(done & ~READ);
}

static PyMethodDef functions[] = {{"frame_bodies", frame_bodies, METH_VARARGS, NULL},
                                  {"serve", serve, METH_VARARGS, NULL},
                                  {NULL, NULL, 0, NULL}};
static struct PyModuleDef definition = {.m_base = PyModuleDef_HEAD_INIT, .m_name = "_native",
                                        .m_size = -1, .m_methods = functions};

PyMODINIT_FUNC PyInit__native(void)
{
#define INTERN(name) if ((n_##name = PyUnicode_InternFromString(#name)) == NULL) return NULL;
    NAMES(INTERN)
    return PyModule_Create(&definition);
}
