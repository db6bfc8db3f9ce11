/* What the load generators have in common: the tally, the measured window, the report and most of the command line.
 *
 * Each program is one file that includes this one and defines serve_events(). It passes LETTERS, its own options in
 * getopt's form, and parses them in own_option().
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

#define COMMON_LETTERS "H:p:c:w:d:n:t:f:k:"

enum {
    EVENTS = 256,
    MAX_CONNECTIONS = 4096,
    TICK_MS = 20, /* the longest wait between two looks at the clock */
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
    size_t in_turns;
    const char *file;
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
struct request {
    char *data;
    size_t bytes;
};
static struct request *requests;
static size_t request_count, requests_taken;
static int epoll_fd;
static bool measuring;
static struct tally tally;

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

/* ---- sockets ---- */

/* A connection to the server that does not block and sends at once. */
static int connect_to_server(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)options.port)};
    int one = 1, fd;

    if (inet_pton(AF_INET, options.address, &address.sin_addr) != 1)
        fail(1, "'%s' is no IPv4 address", options.address);
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        fail(2, "socket: %s", strerror(errno));
    if (connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
        fail(2, "cannot connect to %s:%d: %s", options.address, options.port, strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (fcntl(fd, F_SETFL, O_NONBLOCK) < 0)
        fail(2, "fcntl: %s", strerror(errno));
    return fd;
}

/* Let epoll report what the server sends, and room to send if that is asked for. */
static void watch_socket(int fd, void *owner, int operation, bool for_write)
{
    struct epoll_event event = {.events = EPOLLIN | (for_write ? EPOLLOUT : 0), .data.ptr = owner};

    if (epoll_ctl(epoll_fd, operation, fd, &event) < 0)
        fail(2, "epoll_ctl: %s", strerror(errno));
}

/* ---- the run ---- */

/* Wait for TICK_MS at most, and do what the sockets allow. */
static void serve_events(void);

/* Take an option of LETTERS; false if it is none. */
static bool own_option(int letter);

static void say(const char *line)
{
    if (write(STDOUT_FILENO, line, strlen(line)) < 0)
        fail(1, "standard output: %s", strerror(errno));
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

static char *read_file(size_t *size)
{
    struct stat status;
    int fd = open(options.file, O_RDONLY | O_CLOEXEC);
    size_t got = 0;
    char *data;

    if (fd < 0 || fstat(fd, &status) < 0)
        fail(1, "%s: %s", options.file, strerror(errno));
    data = malloc((size_t)status.st_size + 1);
    if (!data)
        fail(1, "out of memory for the requests");
    while (got < (size_t)status.st_size) {
        ssize_t bytes = read(fd, data + got, (size_t)status.st_size - got);
        if (bytes <= 0)
            fail(1, "%s: %s", options.file, bytes ? strerror(errno) : "it became shorter");
        got += (size_t)bytes;
    }
    close(fd);
    if (got == 0)
        fail(1, "%s is empty", options.file);
    *size = got;
    return data;
}

/* With -k, the file holds several requests, each behind its size in four bytes. They are sent in turns. */
static void load_requests(void)
{
    size_t size, at = 0;
    char *data = read_file(&size);

    request_count = options.in_turns ? options.in_turns : 1;
    requests = calloc(request_count, sizeof *requests);
    if (!requests)
        fail(1, "out of memory for the requests");
    for (size_t i = 0; i < request_count; i++) {
        uint32_t bytes = (uint32_t)size;
        if (options.in_turns) {
            if (size - at < sizeof bytes)
                fail(1, "%s has fewer than %zu requests", options.file, request_count);
            memcpy(&bytes, data + at, sizeof bytes);
            bytes = ntohl(bytes);
            at += sizeof bytes;
            if (size - at < bytes)
                fail(1, "%s ends within a request", options.file);
        }
        requests[i].data = data + at;
        requests[i].bytes = bytes;
        at += bytes;
    }
}

static const struct request *take_request(void)
{
    return &requests[requests_taken++ % request_count];
}

static void parse_options(int argc, char **argv, const char *letters)
{
    int letter;

    while ((letter = getopt(argc, argv, letters)) > 0) {
        switch (letter) {
        case 'H': options.address = optarg; break;
        case 'p': options.port = atoi(optarg); break;
        case 'c': options.connections = atoi(optarg); break;
        case 'w': options.warm_up_s = atof(optarg); break;
        case 'd': options.duration_s = atof(optarg); break;
        case 'n': options.requests = strtoull(optarg, NULL, 10); break;
        case 't': options.limit_s = atof(optarg); break;
        case 'f': options.file = optarg; break;
        case 'k': options.in_turns = strtoull(optarg, NULL, 10); break;
        default:
            if (!own_option(letter))
                fail(1, "see the head of the load generator's source for the options");
        }
    }
    if (!options.file || options.port < 1 || options.port > 65535)
        fail(1, "-f FILE and -p PORT are needed");
    if (options.connections < 1 || options.connections > MAX_CONNECTIONS)
        fail(1, "-c must lie between 1 and %d", MAX_CONNECTIONS);
    if (options.warm_up_s < 0 || options.duration_s <= 0 || options.limit_s < options.warm_up_s + options.duration_s)
        fail(1, "-d must be positive, and -t at least as long as -w and -d together");
}
