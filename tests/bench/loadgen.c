/* A closed-loop load generator for HTTP/1.1: one thread, epoll, keep-alive.
 *
 *   loadgen -p PORT -f FILE [-H ADDRESS] [-c CONNECTIONS] [-w WARM_UP_S] [-d DURATION_S] [-n REQUESTS] [-t LIMIT_S]
 *
 * FILE holds one whole request, head and body, as it goes over the wire. Each connection sends it, waits for the reply,
 * and sends it again; nothing is pipelined. Replies must carry a Content-Length and may have any size: their bodies are
 * counted and thrown away.
 *
 * Standard output gets the line "begin" when the warm-up is over and "end" when the measured window is, so that the
 * caller can read the servers' clocks at both moments, and then one line of JSON. The window lasts DURATION_S, or
 * longer until REQUESTS replies came, but the whole run never lasts longer than LIMIT_S.
 *
 * Exit status: 0 with a report, 1 when the command line or FILE is no good, 2 when the server cannot be reached or
 * speaks something else than is expected here.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    HEAD_LIMIT = 16 * 1024,     /* a reply's head may not be longer */
    READ_BYTES = 256 * 1024,    /* per recv; stays in the second-level cache */
    READS_PER_EVENT = 16,       /* then the other connections get their turn */
    EVENTS = 256,
    MAX_CONNECTIONS = 4096,
    GIVE_UP_AFTER = 1000,       /* broken connections in a row without one reply between them */
    TICK_MS = 20,               /* the longest wait between two looks at the clock */
};

static const uint64_t SECOND_NS = 1000000000ull;

struct options {
    const char *address;
    int port;
    int connections;
    double warm_up_s;
    double duration_s;
    double limit_s;
    uint64_t requests;
    const char *file;
};

struct connection {
    int fd;
    bool wants_write;      /* epoll also watches for room to send the rest of the request */
    size_t sent;           /* bytes of the request that the kernel has taken */
    uint64_t began_ns;     /* when the request's first byte was offered */
    bool in_body;          /* the head is complete; what follows is body */
    bool closes;           /* the server announced that it closes after this reply */
    int status;
    uint64_t body_left;
    size_t head_bytes;
    char head[HEAD_LIMIT + 1];
};

/* What happened in the measured window. */
struct tally {
    uint64_t *latency_ns;
    size_t replies;
    size_t room;
    uint64_t errors;
    uint64_t bytes_sent;
    uint64_t bytes_received;
    uint64_t reply_bytes;  /* body of the latest reply */
    char first_error[512];
};

static struct options options = {
    .address = "127.0.0.1", .connections = 1, .warm_up_s = 0.5, .duration_s = 2, .limit_s = 120, .requests = 1,
};
static char *request;
static size_t request_bytes;
static int epoll_fd;
static bool measuring;
static int broken_in_a_row;
static struct tally tally;
static char incoming[READ_BYTES];

__attribute__((noreturn, format(printf, 2, 3))) static void fail(int status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "loadgen: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    exit(status);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SECOND_NS + (uint64_t)now.tv_nsec;
}

/* ---- the tally ---- */

static void note_error(const char *text, size_t length)
{
    if (measuring)
        tally.errors++;
    if (tally.first_error[0])
        return;
    if (length > sizeof tally.first_error - 1)
        length = sizeof tally.first_error - 1;
    memcpy(tally.first_error, text, length);
    tally.first_error[length] = 0;
}

static void note_latency(uint64_t latency_ns)
{
    if (!measuring)
        return;
    if (tally.replies == tally.room) {
        tally.room = tally.room ? tally.room * 2 : 1 << 16;
        tally.latency_ns = realloc(tally.latency_ns, tally.room * sizeof *tally.latency_ns);
        if (!tally.latency_ns)
            fail(1, "out of memory for latencies");
    }
    tally.latency_ns[tally.replies++] = latency_ns;
}

/* ---- one connection ---- */

static void watch(struct connection *connection, int operation, bool for_write)
{
    struct epoll_event event = {.events = EPOLLIN | (for_write ? EPOLLOUT : 0), .data.ptr = connection};
    if (epoll_ctl(epoll_fd, operation, connection->fd, &event) < 0)
        fail(2, "epoll_ctl: %s", strerror(errno));
    connection->wants_write = for_write;
}

static void open_connection(struct connection *connection)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)options.port)};
    int one = 1;

    if (inet_pton(AF_INET, options.address, &address.sin_addr) != 1)
        fail(1, "'%s' is no IPv4 address", options.address);
    connection->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connection->fd < 0)
        fail(2, "socket: %s", strerror(errno));
    if (connect(connection->fd, (struct sockaddr *)&address, sizeof address) < 0)
        fail(2, "cannot connect to %s:%d: %s", options.address, options.port, strerror(errno));
    setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (fcntl(connection->fd, F_SETFL, O_NONBLOCK) < 0)
        fail(2, "fcntl: %s", strerror(errno));
    watch(connection, EPOLL_CTL_ADD, false);
}

static void send_request(struct connection *connection);

static void begin_exchange(struct connection *connection)
{
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
    while (connection->sent < request_bytes) {
        ssize_t taken =
            send(connection->fd, request + connection->sent, request_bytes - connection->sent, MSG_NOSIGNAL);
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
    bool whole = connection->sent == request_bytes;

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

static void say(const char *line)
{
    if (write(STDOUT_FILENO, line, strlen(line)) < 0)
        fail(1, "standard output: %s", strerror(errno));
}

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

static double cpu_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static int ascending(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

static double percentile_us(double fraction)
{
    return tally.replies ? (double)tally.latency_ns[(size_t)((double)(tally.replies - 1) * fraction)] / 1e3 : 0;
}

static void print_text(const char *text)
{
    putchar('"');
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            printf("\\%c", c);
        else if (c < 0x20 || c >= 0x7f)
            printf("\\u%04x", c);
        else
            putchar(c);
    }
    putchar('"');
}

static void report(double seconds, double client_cpu_s)
{
    double sum_us = 0;

    if (tally.replies)
        qsort(tally.latency_ns, tally.replies, sizeof *tally.latency_ns, ascending);
    for (size_t i = 0; i < tally.replies; i++)
        sum_us += (double)tally.latency_ns[i] / 1e3;
    printf("{\"connections\": %d, \"replies\": %zu, \"errors\": %llu, \"seconds\": %.6f, \"infer_per_s\": %.2f, ",
           options.connections, tally.replies, (unsigned long long)tally.errors, seconds,
           (double)tally.replies / seconds);
    printf("\"mean_us\": %.2f, \"p50_us\": %.2f, \"p90_us\": %.2f, \"p99_us\": %.2f, \"max_us\": %.2f, ",
           tally.replies ? sum_us / (double)tally.replies : 0, percentile_us(.5), percentile_us(.9),
           percentile_us(.99), percentile_us(1));
    printf("\"client_cpu_s\": %.6f, \"client_cpu_us\": %.3f, ", client_cpu_s,
           tally.replies ? client_cpu_s * 1e6 / (double)tally.replies : 0);
    printf("\"bytes_sent\": %llu, \"bytes_received\": %llu, \"reply_bytes\": %llu, \"first_error\": ",
           (unsigned long long)tally.bytes_sent, (unsigned long long)tally.bytes_received,
           (unsigned long long)tally.reply_bytes);
    print_text(tally.first_error);
    printf("}\n");
}

static void run(void)
{
    uint64_t start = now_ns();
    uint64_t window = start + (uint64_t)(options.warm_up_s * 1e9);
    uint64_t limit = start + (uint64_t)(options.limit_s * 1e9);
    uint64_t began, ended;
    double cpu_s;

    while (now_ns() < window)
        serve_events();
    say("begin\n");
    cpu_s = cpu_seconds();
    began = now_ns();
    window = began + (uint64_t)(options.duration_s * 1e9);
    measuring = true;
    do {
        serve_events();
        ended = now_ns();
    } while ((ended < window || tally.replies + tally.errors < options.requests) && ended < limit);
    measuring = false;
    cpu_s = cpu_seconds() - cpu_s;
    say("end\n");
    report((double)(ended - began) / 1e9, cpu_s);
}

/* ---- the command line ---- */

static void load_request(void)
{
    struct stat status;
    int fd = open(options.file, O_RDONLY | O_CLOEXEC);

    if (fd < 0 || fstat(fd, &status) < 0)
        fail(1, "%s: %s", options.file, strerror(errno));
    request = malloc((size_t)status.st_size + 1);
    if (!request)
        fail(1, "out of memory for the request");
    while (request_bytes < (size_t)status.st_size) {
        ssize_t bytes = read(fd, request + request_bytes, (size_t)status.st_size - request_bytes);
        if (bytes <= 0)
            fail(1, "%s: %s", options.file, bytes ? strerror(errno) : "it became shorter");
        request_bytes += (size_t)bytes;
    }
    close(fd);
    if (request_bytes == 0)
        fail(1, "%s is empty", options.file);
}

static void parse_options(int argc, char **argv)
{
    int letter;

    while ((letter = getopt(argc, argv, "H:p:c:w:d:n:t:f:")) > 0) {
        switch (letter) {
        case 'H': options.address = optarg; break;
        case 'p': options.port = atoi(optarg); break;
        case 'c': options.connections = atoi(optarg); break;
        case 'w': options.warm_up_s = atof(optarg); break;
        case 'd': options.duration_s = atof(optarg); break;
        case 'n': options.requests = strtoull(optarg, NULL, 10); break;
        case 't': options.limit_s = atof(optarg); break;
        case 'f': options.file = optarg; break;
        default: fail(1, "see the head of loadgen.c for the options");
        }
    }
    if (!options.file || options.port < 1 || options.port > 65535)
        fail(1, "-f FILE and -p PORT are needed");
    if (options.connections < 1 || options.connections > MAX_CONNECTIONS)
        fail(1, "-c must lie between 1 and %d", MAX_CONNECTIONS);
    if (options.warm_up_s < 0 || options.duration_s <= 0 || options.limit_s < options.warm_up_s + options.duration_s)
        fail(1, "-d must be positive, and -t at least as long as -w and -d together");
}

int main(int argc, char **argv)
{
    struct connection *connections;

    parse_options(argc, argv);
    load_request();
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
