/* A closed-loop load generator for gRPC on HTTP/2: one thread, epoll.
 *
 *   loadgen_grpc -p PORT -f FILE -m METHOD [-H ADDRESS] [-c CONNECTIONS] [-s STREAMS] [-e MESSAGES] [-k COUNT] [-x]
 *                [-w WARM_UP_S] [-d DURATION_S] [-n REQUESTS] [-t LIMIT_S]
 *
 * FILE holds one message. Each stream of each connection sends it and waits for the answer, again and again. Without -e
 * each exchange is a unary call. With it, every stream is one call of a streaming method that stays open, and MESSAGES
 * messages of the server are the answer to one of the client.
 *
 * With -k, FILE holds COUNT messages, which are sent in turns; each lies behind its size in four bytes. With -x each call has a field
 * traceparent of its own.
 *
 * It sends its header block as gRPC's own clients do: in full once for a connection, then as indexes into the dynamic table.
 * Messages are cut into frames of the size that the server accepts, as far as its windows allow. Its own windows are open
 * wide, and are filled again as data is read. At the end it waits for the answers that are on their way, because the
 * reference server does not always survive clients that leave with calls open. What it prints is described in loadgen.h.
 */
#include "loadgen.h"

enum {
    PREFACE_BYTES = 24,
    FRAME_HEADER_BYTES = 9,
    MESSAGE_PREFIX_BYTES = 5,
    READ_BYTES = 256 * 1024,
    READS_PER_EVENT = 16,
    CONTROL_LIMIT = 1024 * 1024,   /* headers and control frames that wait to be sent */
    PAYLOAD_LIMIT = 16 * 1024,     /* of received frames other than DATA */
    MAX_STREAMS = 1024,
    DRAIN_S = 5,

    DATA = 0, HEADERS = 1, RST_STREAM = 3, SETTINGS = 4, PING = 6, GOAWAY = 7, WINDOW_UPDATE = 8,
    END_STREAM = 1, ACK = 1, END_HEADERS = 4,
};

static const uint32_t OUR_WINDOW = 1u << 30;      /* of a stream and of the connection */
static const uint32_t OUR_FRAME = 1u << 20;
static const char PREFACE[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/* A place for one exchange at a time. */
struct stream {
    uint32_t id;              /* 0 while there is none */
    uint64_t began_ns;
    const struct request *request;
    size_t sent;              /* bytes of the request that were put into frames */
    int64_t window;           /* DATA that the server takes on this stream */
    uint64_t unreturned;      /* received DATA of which the server was not told that there is room again */
    uint64_t reply_bytes;
    int messages;             /* complete ones of this exchange */
    uint64_t message_left;    /* bytes of the message that is arriving */
    size_t prefix_bytes;      /* received bytes of its prefix */
    uint8_t prefix[MESSAGE_PREFIX_BYTES];
};

struct connection {
    int fd;
    bool wants_write;
    bool greeted;             /* the header block is in the server's dynamic table */
    uint32_t next_id;
    int64_t window;
    uint32_t frame_limit;
    uint32_t initial_window;
    uint64_t unreturned;
    struct stream *streams;
    int first;                /* the stream whose turn it is to send */
    uint8_t *out;             /* control frames that wait */
    size_t out_bytes, out_sent;
    uint8_t data_header[FRAME_HEADER_BYTES]; /* a DATA frame that is being sent */
    size_t data_header_sent;
    const char *data;
    size_t data_left;
    uint8_t header[FRAME_HEADER_BYTES];      /* a frame that is being received */
    size_t header_bytes;
    uint32_t payload_left;
    uint8_t payload[PAYLOAD_LIMIT];
    size_t payload_bytes;
};

static const char *method = "/inference.GRPCInferenceService/ModelInfer";
static int streams_each = 1;
static int expected_messages;   /* of a streaming method; 0 for unary calls */
static bool draining;
static int open_exchanges;
static bool is_traced;          /* each call has a trace context of its own */
static uint8_t first_block[1024], later_block[128];
static size_t first_block_bytes, later_block_bytes;
static uint8_t incoming[READ_BYTES];

/* ---- header blocks (RFC 7541) ---- */

static void add_text(const char *text)
{
    size_t length = strlen(text);

    if (length > 126 || first_block_bytes + length + 1 > sizeof first_block)
        fail(1, "'%s' is too long for a header", text);
    first_block[first_block_bytes++] = (uint8_t)length;
    memcpy(first_block + first_block_bytes, text, length);
    first_block_bytes += length;
}

/* A field that enters the dynamic table; index is that of its name in the static table, or 0. */
static void add_field(int index, const char *name, const char *value)
{
    first_block[first_block_bytes++] = (uint8_t)(0x40 | index);
    if (!index)
        add_text(name);
    add_text(value);
}

static void make_blocks(void)
{
    enum { FIELDS = 6, STATIC_ENTRIES = 61 };
    char authority[64];

    snprintf(authority, sizeof authority, "%s:%d", options.address, options.port);
    first_block[first_block_bytes++] = 0x83; /* :method POST */
    first_block[first_block_bytes++] = 0x86; /* :scheme http */
    add_field(4, ":path", method);
    add_field(1, ":authority", authority);
    add_field(0, "te", "trailers");
    add_field(31, "content-type", "application/grpc");
    add_field(58, "user-agent", "grpc-c/37.0.0 (linux; chttp2)");
    add_field(16, "accept-encoding", "identity");
    later_block[later_block_bytes++] = 0x83;
    later_block[later_block_bytes++] = 0x86;
    for (int age = FIELDS; age > 0; age--)
        later_block[later_block_bytes++] = (uint8_t)(0x80 | (STATIC_ENTRIES + age));
    if (is_traced) {
        static const char field[] = "\0\013traceparent\06700-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01";
        memcpy(later_block + later_block_bytes, field, sizeof field - 1);
        later_block_bytes += sizeof field - 1;
    }
}

/* Write another number into the trace context, as gRPC's clients send it: in literal form, outside the table. */
static void trace_next(void)
{
    enum { BEHIND = 3, DIGITS = 16 };
    static uint64_t count;
    char digits[DIGITS + 1];

    snprintf(digits, sizeof digits, "%016llx", (unsigned long long)++count);
    memcpy(later_block + later_block_bytes - BEHIND - DIGITS, digits, DIGITS);
}

/* ---- output ---- */

static void put_header(uint8_t *at, size_t length, int kind, int flags, uint32_t id)
{
    const uint8_t header[FRAME_HEADER_BYTES] = {
        (uint8_t)(length >> 16), (uint8_t)(length >> 8), (uint8_t)length, (uint8_t)kind, (uint8_t)flags,
        (uint8_t)(id >> 24), (uint8_t)(id >> 16), (uint8_t)(id >> 8), (uint8_t)id,
    };
    memcpy(at, header, sizeof header);
}

static void put_frame(struct connection *connection, int kind, int flags, uint32_t id, const void *payload, size_t length)
{
    if (connection->out_bytes + FRAME_HEADER_BYTES + length > CONTROL_LIMIT)
        fail(2, "the server does not read");
    put_header(connection->out + connection->out_bytes, length, kind, flags, id);
    memcpy(connection->out + connection->out_bytes + FRAME_HEADER_BYTES, payload, length);
    connection->out_bytes += FRAME_HEADER_BYTES + length;
}

static void put_number(struct connection *connection, int kind, uint32_t id, uint32_t number)
{
    const uint32_t payload = htonl(number);
    put_frame(connection, kind, 0, id, &payload, sizeof payload);
}

/* Put the next DATA of a stream after everything that was put before: small ones are copied, large ones are remembered. */
static bool put_data(struct connection *connection, struct stream *stream)
{
    size_t size = stream->request ? stream->request->bytes - stream->sent : 0;
    int flags;

    if (!stream->id || size == 0 || connection->data_left)
        return false;
    if (stream->window < (int64_t)size)
        size = stream->window > 0 ? (size_t)stream->window : 0;
    if (connection->window < (int64_t)size)
        size = connection->window > 0 ? (size_t)connection->window : 0;
    if (size > connection->frame_limit)
        size = connection->frame_limit;
    if (size == 0)
        return false;
    flags = !expected_messages && stream->sent + size == stream->request->bytes ? END_STREAM : 0;
    if (size <= 4096) {
        put_frame(connection, DATA, flags, stream->id, stream->request->data + stream->sent, size);
    } else {
        put_header(connection->data_header, size, DATA, flags, stream->id);
        connection->data_header_sent = 0;
        connection->data = stream->request->data + stream->sent;
        connection->data_left = size;
    }
    stream->sent += size;
    stream->window -= (int64_t)size;
    connection->window -= (int64_t)size;
    return true;
}

/* Give streams their turns until a large frame waits, or none may send. */
static void put_requests(struct connection *connection)
{
    for (int passed = 0; passed < streams_each && !connection->data_left; passed++) {
        struct stream *stream = &connection->streams[connection->first];
        while (put_data(connection, stream))
            passed = 0;
        if (!connection->data_left)
            connection->first = (connection->first + 1) % streams_each;
    }
}

/* Write everything that waits; false if the kernel takes no more. */
static bool write_piece(struct connection *connection, const void *data, size_t *left, size_t total)
{
    while (*left) {
        ssize_t taken = send(connection->fd, (const uint8_t *)data + (total - *left), *left, MSG_NOSIGNAL);
        if (taken < 0 && errno == EINTR)
            continue;
        if (taken < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return false;
        if (taken < 0)
            fail(2, "send: %s", strerror(errno));
        *left -= (size_t)taken;
        if (measuring)
            tally.bytes_sent += (uint64_t)taken;
    }
    return true;
}

static bool write_all(struct connection *connection)
{
    for (;;) {
        size_t left = connection->out_bytes - connection->out_sent;
        bool done;

        /* A large frame that has begun must end before control frames may follow. */
        if (!(connection->data_left && connection->data_header_sent)) {
            done = write_piece(connection, connection->out, &left, connection->out_bytes);
            connection->out_sent = connection->out_bytes - left;
            if (!done)
                return false;
            connection->out_bytes = connection->out_sent = 0;
        }
        if (!connection->data_left) {
            put_requests(connection);
            if (!connection->data_left && !connection->out_bytes)
                return true;
            continue;
        }
        left = FRAME_HEADER_BYTES - connection->data_header_sent;
        done = write_piece(connection, connection->data_header, &left, FRAME_HEADER_BYTES);
        connection->data_header_sent = FRAME_HEADER_BYTES - left;
        if (!done)
            return false;
        left = connection->data_left;
        done = write_piece(connection, connection->data, &left, connection->data_left);
        connection->data += connection->data_left - left;
        connection->data_left = left;
        if (!done)
            return false;
        put_requests(connection);
    }
}

static void flush_output(struct connection *connection)
{
    bool waits = !write_all(connection);

    if (waits != connection->wants_write) {
        watch_socket(connection->fd, connection, EPOLL_CTL_MOD, waits);
        connection->wants_write = waits;
    }
}

/* ---- exchanges ---- */

static void begin_exchange(struct connection *connection, struct stream *stream)
{
    if (draining)
        return;
    if (!stream->id) {
        stream->id = connection->next_id;
        connection->next_id += 2;
        stream->window = connection->initial_window;
        stream->unreturned = 0;
        if (is_traced)
            trace_next();
        put_frame(connection, HEADERS, END_HEADERS, stream->id, connection->greeted ? later_block : first_block,
                  connection->greeted ? later_block_bytes : first_block_bytes);
        connection->greeted = true;
    }
    stream->request = take_request();
    stream->sent = 0;
    stream->messages = 0;
    stream->reply_bytes = 0;
    stream->prefix_bytes = 0;
    stream->message_left = 0;
    stream->began_ns = now_ns();
    open_exchanges++;
}

static void end_exchange(struct connection *connection, struct stream *stream, bool succeeded)
{
    open_exchanges--;
    tally.reply_bytes = stream->reply_bytes;
    if (succeeded)
        note_latency(now_ns() - stream->began_ns);
    begin_exchange(connection, stream);
}

static void end_call(struct connection *connection, struct stream *stream, const char *reason)
{
    bool succeeded = !expected_messages && stream->messages == 1 && !reason;

    if (!succeeded)
        note_error(reason ? reason : "the call ended early", strlen(reason ? reason : "the call ended early"));
    stream->id = 0;
    end_exchange(connection, stream, succeeded);
}

/* ---- input ---- */

static struct stream *find_stream(struct connection *connection, uint32_t id)
{
    for (int i = 0; id && i < streams_each; i++)
        if (connection->streams[i].id == id)
            return &connection->streams[i];
    return NULL;
}

static uint32_t number_at(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static void take_data(struct connection *connection, struct stream *stream, const uint8_t *data, size_t bytes)
{
    while (bytes) {
        size_t taken;
        if (stream->prefix_bytes < MESSAGE_PREFIX_BYTES) {
            taken = MESSAGE_PREFIX_BYTES - stream->prefix_bytes;
            taken = taken < bytes ? taken : bytes;
            memcpy(stream->prefix + stream->prefix_bytes, data, taken);
            stream->prefix_bytes += taken;
            if (stream->prefix_bytes == MESSAGE_PREFIX_BYTES)
                stream->message_left = number_at(stream->prefix + 1);
        } else {
            taken = bytes < stream->message_left ? bytes : (size_t)stream->message_left;
            stream->message_left -= taken;
        }
        data += taken;
        bytes -= taken;
        stream->reply_bytes += taken;
        if (stream->prefix_bytes == MESSAGE_PREFIX_BYTES && stream->message_left == 0) {
            stream->prefix_bytes = 0;
            stream->messages++;
            if (stream->messages == expected_messages)
                end_exchange(connection, stream, true);
        }
    }
}

static void open_windows(struct connection *connection, struct stream *stream, size_t bytes)
{
    connection->unreturned += bytes;
    if (connection->unreturned >= OUR_WINDOW / 4) {
        put_number(connection, WINDOW_UPDATE, 0, (uint32_t)connection->unreturned);
        connection->unreturned = 0;
    }
    if (!stream)
        return;
    stream->unreturned += bytes;
    if (stream->unreturned >= OUR_WINDOW / 4) {
        put_number(connection, WINDOW_UPDATE, stream->id, (uint32_t)stream->unreturned);
        stream->unreturned = 0;
    }
}

static void take_settings(struct connection *connection, const uint8_t *payload, size_t bytes)
{
    for (size_t at = 0; at + 6 <= bytes; at += 6) {
        uint32_t key = (uint32_t)payload[at] << 8 | payload[at + 1], value = number_at(payload + at + 2);
        if (key == 4) {
            for (int i = 0; i < streams_each; i++)
                connection->streams[i].window += (int64_t)value - connection->initial_window;
            connection->initial_window = value;
        } else if (key == 5) {
            connection->frame_limit = value;
        }
    }
    put_frame(connection, SETTINGS, ACK, 0, "", 0);
}

/* Frames other than DATA, whole. */
static void take_frame(struct connection *connection, int kind, int flags, uint32_t id)
{
    const uint8_t *payload = connection->payload;
    size_t bytes = connection->payload_bytes;
    struct stream *stream = find_stream(connection, id);

    if (kind == SETTINGS && !(flags & ACK))
        take_settings(connection, payload, bytes);
    else if (kind == PING && !(flags & ACK))
        put_frame(connection, PING, ACK, 0, payload, bytes);
    else if (kind == GOAWAY)
        fail(2, "the server says goodbye: %.*s", bytes > 8 ? (int)bytes - 8 : 0, (const char *)payload + 8);
    else if (kind == WINDOW_UPDATE && !id)
        connection->window += number_at(payload);
    else if (kind == WINDOW_UPDATE && stream)
        stream->window += number_at(payload);
    else if (kind == RST_STREAM && stream)
        end_call(connection, stream, "the server reset the call");
    else if (kind == HEADERS && stream && flags & END_STREAM)
        end_call(connection, stream, stream->messages ? NULL : "a status without a message");
}

static void take_header(struct connection *connection)
{
    connection->payload_left = number_at(connection->header) >> 8;
    connection->payload_bytes = 0;
    if (connection->header[3] != DATA && connection->payload_left > PAYLOAD_LIMIT)
        fail(2, "a frame of kind %d has %u bytes", connection->header[3], connection->payload_left);
}

/* Take bytes of a frame's payload; returns how many. */
static size_t take_payload(struct connection *connection, const uint8_t *data, size_t bytes)
{
    int kind = connection->header[3], flags = connection->header[4];
    uint32_t id = number_at(connection->header + 5) & 0x7fffffff;
    size_t taken = bytes < connection->payload_left ? bytes : connection->payload_left;

    connection->payload_left -= (uint32_t)taken;
    if (kind == DATA) {
        struct stream *stream = find_stream(connection, id);
        open_windows(connection, stream, taken);
        if (stream)
            take_data(connection, stream, data, taken);
    } else {
        memcpy(connection->payload + connection->payload_bytes, data, taken);
        connection->payload_bytes += taken;
    }
    if (connection->payload_left == 0) {
        struct stream *stream = find_stream(connection, id);
        connection->header_bytes = 0;
        if (kind != DATA)
            take_frame(connection, kind, flags, id);
        else if (flags & END_STREAM && stream)
            end_call(connection, stream, "DATA without trailers");
    }
    return taken;
}

static void take_bytes(struct connection *connection, const uint8_t *data, size_t bytes)
{
    while (bytes) {
        size_t taken;
        if (connection->header_bytes < FRAME_HEADER_BYTES) {
            taken = FRAME_HEADER_BYTES - connection->header_bytes;
            taken = taken < bytes ? taken : bytes;
            memcpy(connection->header + connection->header_bytes, data, taken);
            connection->header_bytes += taken;
            if (connection->header_bytes == FRAME_HEADER_BYTES) {
                take_header(connection);
                if (connection->payload_left == 0)
                    take_payload(connection, data, 0);
            }
        } else {
            taken = take_payload(connection, data, bytes);
        }
        data += taken;
        bytes -= taken;
    }
}

static void read_socket(struct connection *connection)
{
    for (int reads = 0; reads < READS_PER_EVENT; reads++) {
        ssize_t bytes = recv(connection->fd, incoming, sizeof incoming, 0);
        if (bytes < 0 && errno == EINTR)
            continue;
        if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        if (bytes <= 0)
            fail(2, "%s", bytes ? strerror(errno) : "the server closed the connection");
        if (measuring)
            tally.bytes_received += (uint64_t)bytes;
        take_bytes(connection, incoming, (size_t)bytes);
        if ((size_t)bytes < sizeof incoming)
            break;
    }
    flush_output(connection);
}

/* ---- the run ---- */

static void serve_events(void)
{
    struct epoll_event events[EVENTS];
    int ready = epoll_wait(epoll_fd, events, EVENTS, TICK_MS);

    if (ready < 0 && errno != EINTR)
        fail(2, "epoll_wait: %s", strerror(errno));
    for (int i = 0; i < ready; i++) {
        if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
            read_socket(events[i].data.ptr);
        else
            flush_output(events[i].data.ptr);
    }
}

static void greet(struct connection *connection)
{
    const uint8_t settings[] = {
        0, 4, (uint8_t)(OUR_WINDOW >> 24), (uint8_t)(OUR_WINDOW >> 16), (uint8_t)(OUR_WINDOW >> 8), (uint8_t)OUR_WINDOW,
        0, 5, (uint8_t)(OUR_FRAME >> 24), (uint8_t)(OUR_FRAME >> 16), (uint8_t)(OUR_FRAME >> 8), (uint8_t)OUR_FRAME,
    };

    connection->fd = connect_to_server();
    watch_socket(connection->fd, connection, EPOLL_CTL_ADD, false);
    connection->next_id = 1;
    connection->window = connection->initial_window = 65535;
    connection->frame_limit = 16384;
    connection->streams = calloc((size_t)streams_each, sizeof *connection->streams);
    connection->out = malloc(CONTROL_LIMIT);
    if (!connection->streams || !connection->out)
        fail(1, "out of memory for streams");
    memcpy(connection->out, PREFACE, PREFACE_BYTES);
    connection->out_bytes = PREFACE_BYTES;
    put_frame(connection, SETTINGS, 0, 0, settings, sizeof settings);
    put_number(connection, WINDOW_UPDATE, 0, OUR_WINDOW - 65535);
}

static bool own_option(int letter)
{
    switch (letter) {
    case 'm': method = optarg; return true;
    case 's': streams_each = atoi(optarg); return true;
    case 'e': expected_messages = atoi(optarg); return true;
    case 'x': is_traced = true; return true;
    default: return false;
    }
}

/* Put each message's prefix before it: not compressed, and its length. */
static void frame_requests(void)
{
    for (size_t i = 0; i < request_count; i++) {
        struct request *request = &requests[i];
        char *framed = malloc(request->bytes + MESSAGE_PREFIX_BYTES);
        const uint32_t length = htonl((uint32_t)request->bytes);

        if (!framed)
            fail(1, "out of memory for the requests");
        framed[0] = 0;
        memcpy(framed + 1, &length, sizeof length);
        memcpy(framed + MESSAGE_PREFIX_BYTES, request->data, request->bytes);
        request->data = framed;
        request->bytes += MESSAGE_PREFIX_BYTES;
    }
}

static void drain(void)
{
    uint64_t limit = now_ns() + DRAIN_S * SECOND_NS;

    draining = true;
    while (open_exchanges > 0 && now_ns() < limit)
        serve_events();
}

int main(int argc, char **argv)
{
    struct connection *connections;

    parse_options(argc, argv, COMMON_LETTERS "m:s:e:x");
    if (streams_each < 1 || streams_each > MAX_STREAMS || expected_messages < 0)
        fail(1, "-s must lie between 1 and %d, and -e must not be negative", MAX_STREAMS);
    load_requests();
    frame_requests();
    make_blocks();
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    connections = calloc((size_t)options.connections, sizeof *connections);
    if (epoll_fd < 0 || !connections)
        fail(1, "%s", strerror(errno));
    for (int i = 0; i < options.connections; i++)
        greet(&connections[i]);
    for (int i = 0; i < options.connections; i++) {
        for (int stream = 0; stream < streams_each; stream++)
            begin_exchange(&connections[i], &connections[i].streams[stream]);
        flush_output(&connections[i]);
    }
    run();
    drain();
    return 0;
}
