/* A closed-loop load generator for HTTP/1.1: one thread, epoll, keep-alive.
 *
 *   loadgen -p PORT -f FILE [-H ADDRESS] [-c CONNECTIONS] [-w WARM_UP_S] [-d DURATION_S] [-n REQUESTS] [-t LIMIT_S]
 *           [-k COUNT]
 *
 * FILE holds one whole request, head and body, as it goes over the wire. Each connection sends it, waits for the reply,
 * and sends it again; nothing is pipelined. With -k there are COUNT requests, each behind its size in four bytes, which are sent in turns. Replies must carry a Content-Length and may have any size: their bodies are
 * counted and thrown away. What it prints is described in loadgen.h.
 */
#include "loadgen.h"

enum {
    HEAD_LIMIT = 16 * 1024,     /* a reply's head may not be longer */
    READ_BYTES = 256 * 1024,    /* per recv; stays in the second-level cache */
    READS_PER_EVENT = 16,       /* then the other connections get their turn */
    GIVE_UP_AFTER = 1000,       /* broken connections in a row without one reply between them */
};

struct connection {
    int fd;
    bool wants_write;      /* epoll also watches for room to send the rest of the request */
    const struct request *request;
    size_t sent;           /* bytes of the request that the kernel has taken */
    uint64_t began_ns;     /* when the request's first byte was offered */
    bool in_body;          /* the head is complete; what follows is body */
    bool closes;           /* the server announced that it closes after this reply */
    int status;
    uint64_t body_left;
    size_t head_bytes;
    char head[HEAD_LIMIT + 1];
};

static int broken_in_a_row;
static char incoming[READ_BYTES];

/* ---- one connection ---- */

static void watch(struct connection *connection, int operation, bool for_write)
{
    watch_socket(connection->fd, connection, operation, for_write);
    connection->wants_write = for_write;
}

static void open_connection(struct connection *connection)
{
    connection->fd = connect_to_server();
    watch(connection, EPOLL_CTL_ADD, false);
}

static void send_request(struct connection *connection);

static void begin_exchange(struct connection *connection)
{
    connection->request = take_request();
    connection->sent = 0;
    connection->head_bytes = 0;
    connection->in_body = false;
    connection->began_ns = now_ns();
    send_request(connection);
}

/* Epoll forgets a closed socket by itself, and no second event of this connection is pending: epoll_wait reports each
 * socket once. */
static void reopen(struct connection *connection)
{
    close(connection->fd);
    open_connection(connection);
    begin_exchange(connection);
}

static void abandon_exchange(struct connection *connection, const char *reason)
{
    note_error(reason, strlen(reason));
    if (++broken_in_a_row >= GIVE_UP_AFTER)
        fail(2, "%d connections broken in a row: %s", broken_in_a_row, tally.first_error);
    reopen(connection);
}

static void send_request(struct connection *connection)
{
    const struct request *request = connection->request;

    while (connection->sent < request->bytes) {
        ssize_t taken =
            send(connection->fd, request->data + connection->sent, request->bytes - connection->sent, MSG_NOSIGNAL);
        if (taken < 0 && errno == EINTR)
            continue;
        if (taken < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            if (!connection->wants_write)
                watch(connection, EPOLL_CTL_MOD, true);
            return;
        }
        if (taken < 0)
            return; /* the server closed: what it said before that, or the error itself, is found by reading */
        connection->sent += (size_t)taken;
        if (measuring)
            tally.bytes_sent += (uint64_t)taken;
    }
    if (connection->wants_write)
        watch(connection, EPOLL_CTL_MOD, false);
}

static void finish_exchange(struct connection *connection)
{
    bool whole = connection->sent == connection->request->bytes;

    broken_in_a_row = 0;
    if (connection->status == 200 && whole)
        note_latency(now_ns() - connection->began_ns);
    if (connection->closes || !whole)
        reopen(connection);
    else
        begin_exchange(connection);
}

static const char *find_field(const char *head, const char *name)
{
    const char *found = strcasestr(head, name); /* name begins with CR LF: a field, not a part of another's value */
    return found ? found + strlen(name) : NULL;
}

/* Read a complete head, terminated by a zero byte where its empty line began. */
static void parse_head(struct connection *connection)
{
    const char *length = find_field(connection->head, "\r\ncontent-length:");
    const char *closing = find_field(connection->head, "\r\nconnection:");

    if (strncmp(connection->head, "HTTP/1.", 7) != 0 || connection->head_bytes < 12)
        fail(2, "not an HTTP/1.1 reply: %.60s", connection->head);
    if (!length)
        fail(2, "a reply without Content-Length: %.200s", connection->head);
    connection->status = atoi(connection->head + 9);
    connection->body_left = strtoull(length, NULL, 10);
    connection->closes = closing && strncasecmp(closing + strspn(closing, " \t"), "close", 5) == 0;
    connection->in_body = true;
    tally.reply_bytes = connection->body_left;
}

/* Take the part of `data` that belongs to the head; return how many bytes that were. */
static size_t read_head(struct connection *connection, const char *data, size_t bytes)
{
    size_t before = connection->head_bytes;
    size_t taken = bytes < HEAD_LIMIT - before ? bytes : HEAD_LIMIT - before;
    size_t rescan = before < 3 ? before : 3; /* the empty line may have begun in the previous piece */
    char *end;

    memcpy(connection->head + before, data, taken);
    connection->head_bytes += taken;
    end = memmem(connection->head + before - rescan, taken + rescan, "\r\n\r\n", 4);
    if (!end) {
        if (connection->head_bytes == HEAD_LIMIT)
            fail(2, "a reply's head is longer than %d bytes", HEAD_LIMIT);
        return taken;
    }
    *end = 0;
    connection->head_bytes = (size_t)(end - connection->head) + 4;
    parse_head(connection);
    taken = connection->head_bytes - before;
    if (connection->status != 200) {
        char text[sizeof tally.first_error];
        int body = bytes - taken < 400 ? (int)(bytes - taken) : 400;
        int length = snprintf(text, sizeof text, "status %d: %.*s", connection->status, body, data + taken);
        note_error(text, (size_t)length < sizeof text ? (size_t)length : sizeof text - 1);
    }
    return taken;
}

static void read_reply(struct connection *connection)
{
    for (int reads = 0; reads < READS_PER_EVENT; reads++) {
        ssize_t bytes = recv(connection->fd, incoming, sizeof incoming, 0);
        size_t head = 0, body;

        if (bytes < 0 && errno == EINTR)
            continue;
        if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (bytes <= 0) {
            abandon_exchange(connection, bytes ? strerror(errno) : "the server closed the connection");
            return;
        }
        if (measuring)
            tally.bytes_received += (uint64_t)bytes;
        if (!connection->in_body)
            head = read_head(connection, incoming, (size_t)bytes);
        if (!connection->in_body)
            continue;
        body = (size_t)bytes - head;
        if (body > connection->body_left)
            fail(2, "%zu bytes follow a reply's end", body - (size_t)connection->body_left);
        connection->body_left -= body;
        if (connection->body_left == 0) {
            finish_exchange(connection);
            return;
        }
        if ((size_t)bytes < sizeof incoming)
            return; /* nothing more is there now; epoll tells when there is */
    }
}

/* ---- the run ---- */

static void serve_events(void)
{
    struct epoll_event events[EVENTS];
    int ready = epoll_wait(epoll_fd, events, EVENTS, TICK_MS);

    if (ready < 0 && errno != EINTR)
        fail(2, "epoll_wait: %s", strerror(errno));
    for (int i = 0; i < ready; i++) {
        struct connection *connection = events[i].data.ptr;
        if (events[i].events & EPOLLOUT)
            send_request(connection);
        if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
            read_reply(connection);
    }
}

static bool own_option(int letter)
{
    (void)letter;
    return false;
}

int main(int argc, char **argv)
{
    struct connection *connections;

    parse_options(argc, argv, COMMON_LETTERS);
    load_requests();
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    connections = calloc((size_t)options.connections, sizeof *connections);
    if (epoll_fd < 0 || !connections)
        fail(1, "%s", strerror(errno));
    for (int i = 0; i < options.connections; i++)
        open_connection(&connections[i]);
    for (int i = 0; i < options.connections; i++)
        begin_exchange(&connections[i]);
    run();
    return 0;
}
