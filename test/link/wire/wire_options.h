/* The wire consumer's command line, and the rules of docs/wire.md that it can break on purpose. */
#pragma once
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/un.h>

#include "wire_bytes.h"

enum { HELLO = 1, WELCOME, REFUSED, BUFFERS, FRAME, RELEASE, BUFFER_RETIRED, NOTED };
enum { WAITS = 2 }; /* of HELLO's flags */
enum { ENDED = 1, USAGE = 2, TURNED_AWAY = 3, RULE_BROKEN = 4 };
enum { MAX_WINDOW = 64 };

/* Rules that `--misbehave` breaks by one wrong value in the HELLO, or in the RELEASE of the first frame. */
static const struct patch { const char *kind; unsigned message, offset, bytes; uint64_t value; } PATCHES[] = {
    {"bad-magic", HELLO, 8, 4, 0x4b4c435b}, {"wrong-length", HELLO, 2, 2, 136}, {"header-reserved", HELLO, 4, 4, 1},
    {"unknown-type", HELLO, 0, 2, 99}, {"options-many", HELLO, 52, 4, 1025}, {"options-count", HELLO, 52, 4, 1},
    {"unknown-flag", HELLO, 24, 4, 0x80000000},
    {"window-zero", HELLO, 16, 4, 0}, {"window-large", HELLO, 16, 4, 65}, {"depth-zero", HELLO, 20, 4, 0}, {"depth-large", HELLO, 20, 4, 65},
    {"memory-none", HELLO, 28, 4, 0}, {"memory-unknown", HELLO, 28, 4, 7}, {"stride-align-zero", HELLO, 32, 4, 0},
    {"offset-align-zero", HELLO, 36, 4, 0}, {"formats-many", HELLO, 48, 4, 65}, {"formats-count", HELLO, 48, 4, 32},
    {"release-length", RELEASE, 2, 2, 40}, {"release-header-reserved", RELEASE, 4, 4, 1}, {"release-reserved", RELEASE, 28, 4, 1},
    {"release-unknown", RELEASE, 8, 8, UINT64_MAX}, {"release-generation", RELEASE, 16, 8, UINT64_MAX},
    {"release-unknown-flag", RELEASE, 24, 4, 2}, {"release-flag-without-fd", RELEASE, 24, 4, 1},
};
static const char *const OTHERS[] = {
    "garbage", "truncated-header", "oversized", "empty-packet", "fd-with-hello", "many-fds", "never-hello", "release-before-hello", "second-hello",
    "welcome-from-consumer", "double-release", "release-pipe", "release-fd-without-flag", "never-read", "never-release",
};

static struct {
    const char *socket, *publisher, *name, *misbehave;
    uint32_t window, depth, min_version, max_version, memory, stride_align, offset_align, max_width, max_height, num_formats, history, timeout_s;
    struct { uint32_t fourcc; uint64_t modifier; } formats[32];
    uint64_t frames;
    double reconnect_s;
    bool hold, user_told;
    uid_t user;
} options = {.publisher = "", .name = "wire_consumer", .window = 2, .depth = 1, .min_version = 1, .max_version = 1, .memory = 3,
             .stride_align = 1, .offset_align = 1, .timeout_s = 10};

static bool misbehaves(const char *kind) { return options.misbehave != NULL && strcmp(options.misbehave, kind) == 0; }
static const char USAGE_TEXT[] =
    "usage: wire_consumer --socket PATH [--publisher ID] [--window N] [--depth N] [--frames N] [--name NAME]\n"
    "  [--reconnect SECONDS] [--hold] [--history] [--version MIN:MAX] [--format FOURCC:MODIFIER]... [--memory dmabuf,memfd]\n"
    "  [--align STRIDE:OFFSET] [--max-size WIDTH:HEIGHT] [--user UID] [--misbehave KIND|list] [--timeout SECONDS] [--help]\n";
static _Noreturn void usage(const char *problem) {
    fprintf(stderr, "wire_consumer: %s\n%s", problem, USAGE_TEXT);
    exit(USAGE);
}
static uint64_t number(const char *text, const char **rest, uint64_t highest) {
    char *end;
    errno = 0;
    const unsigned long long value = strtoull(text, &end, 0);
    if (end == text || *text == '-' || errno != 0 || value > highest || (rest == NULL && *end != '\0')) usage(text);
    if (rest != NULL) *rest = end;
    return value;
}
static void pair(const char *text, uint32_t *first, uint32_t *second) {
    *first = (uint32_t)number(text, &text, UINT32_MAX);
    if (*text != ':') usage(text);
    *second = (uint32_t)number(text + 1, NULL, UINT32_MAX);
}
static void parse(int count, char **arguments) {
    static const char *const names[] = {"--socket", "--publisher", "--name", "--window", "--depth", "--frames", "--reconnect", "--version",
                                        "--format", "--memory", "--align", "--max-size", "--user", "--misbehave", "--timeout"};
    for (int i = 1; i < count; i++) {
        size_t option = 0;
        if (strcmp(arguments[i], "--help") == 0) { fputs(USAGE_TEXT, stdout); exit(0); }
        if (strcmp(arguments[i], "--hold") == 0) { options.hold = true; continue; }
        if (strcmp(arguments[i], "--history") == 0) { options.history = 1; continue; }
        while (option < 15 && strcmp(arguments[i], names[option]) != 0) option++;
        if (option == 15 || i + 1 == count) usage(arguments[i]);
        const char *value = arguments[++i], *rest = strchr(value, ':');
        if (option == 0) options.socket = value;
        if (option == 1) options.publisher = value;
        if (option == 2) options.name = value;
        if (option == 3) options.window = (uint32_t)number(value, NULL, MAX_WINDOW);
        if (option == 4) options.depth = (uint32_t)number(value, NULL, 64);
        if (option == 5) options.frames = number(value, NULL, UINT64_MAX);
        if (option == 6) options.reconnect_s = (double)number(value, NULL, 86400);
        if (option == 7) pair(value, &options.min_version, &options.max_version);
        if (option == 8) {
            char name[] = "    ";
            if (rest == NULL || rest == value || rest - value > 4 || options.num_formats == 32) usage(value);
            memcpy(name, value, (size_t)(rest - value));
            options.formats[options.num_formats].fourcc = get32((const uint8_t *)name);
            options.formats[options.num_formats++].modifier = number(rest + 1, NULL, UINT64_MAX);
        }
        if (option == 9) options.memory = (strstr(value, "dmabuf") != NULL) | (strstr(value, "memfd") != NULL) << 1;
        if (option == 10) pair(value, &options.stride_align, &options.offset_align);
        if (option == 11) pair(value, &options.max_width, &options.max_height);
        if (option == 12) options.user = (uid_t)number(value, NULL, UINT32_MAX), options.user_told = true;
        if (option == 13) options.misbehave = value;
        if (option == 14) options.timeout_s = (uint32_t)number(value, NULL, 86400);
    }
    bool known = options.misbehave == NULL;
    for (size_t i = 0; i < sizeof PATCHES / sizeof *PATCHES; i++) known = known || misbehaves(PATCHES[i].kind);
    for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++) known = known || misbehaves(OTHERS[i]);
    if (misbehaves("list")) {
        for (size_t i = 0; i < sizeof PATCHES / sizeof *PATCHES; i++) puts(PATCHES[i].kind);
        for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++) puts(OTHERS[i]);
        exit(0);
    }
    if (!known) usage(options.misbehave);
    if (options.socket == NULL || strlen(options.socket) >= sizeof ((struct sockaddr_un *)NULL)->sun_path) usage("a --socket of at most 107 bytes");
    if (strlen(options.publisher) > 32 || strlen(options.name) > 40 || !is_utf8((const uint8_t *)options.name, strlen(options.name)))
        usage("--publisher has at most 32 bytes, --name 40 of UTF-8");
    uint8_t publisher[32] = {0};
    memcpy(publisher, options.publisher, strlen(options.publisher));
    if (publisher[0] != 0 && !is_identifier(publisher)) usage("--publisher is printable ASCII");
    if (options.window == 0 || options.depth == 0 || options.memory == 0 || options.stride_align == 0 || options.offset_align == 0)
        usage("--window, --depth, --memory and --align aren't zero");
    if (options.max_version > UINT16_MAX || options.min_version > options.max_version) usage("--version is MIN:MAX");
}
