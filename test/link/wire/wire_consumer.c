/* A consumer of rung 2's wire protocol. Written from docs/wire.md and nothing else, which is the proof that the page is enough.
 *
 * Prints one JSON object for each line: frames, then a summary. Exit codes: 0 all frames were read, 1 the producer ended or isn't there,
 * 2 usage or the machine, 3 refused by the producer, 4 the producer broke a rule of the page (the line names it). */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/dma-buf.h>
#include <linux/sync_file.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "wire_bytes.h"
#include "wire_options.h"
#include "wire_slot.h"

enum { MAX_PACKET = 4096, MAX_SLOTS = 256 };
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

struct frame {
    size_t slot, id_length;
    uint64_t generation, sequence;
    int64_t stamp_ns, published_ns, received_ns;
    uint32_t dropped, crc[4];
    int fence;
    uint8_t id[255];
    bool read, failed;
};

static int connection = -1, incoming[4];
static size_t num_incoming, num_slots, num_held, num_at_start;
static int64_t last_heard_ns;
static struct slot *slots;
static struct frame held[MAX_WINDOW];
static bool welcomed, misbehaved, foreign_user;
static uint32_t window;
static uint64_t num_frames, num_mappings, num_connections, num_dropped, num_retired, num_read_again;

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}
static size_t open_descriptors(void) {
    size_t count = 0;
    DIR *folder = opendir("/proc/self/fd");
    if (folder == NULL) return 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) count += entry->d_name[0] != '.';
    closedir(folder);
    return count - 1; /* the listing's own */
}
static void close_incoming(void) {
    while (num_incoming > 0) close(incoming[--num_incoming]);
}
static void disconnect(void) {
    close_incoming();
    for (size_t i = 0; i < num_held; i++)
        if (held[i].fence >= 0) close(held[i].fence);
    for (size_t i = 0; i < num_slots; i++) close_slot(&slots[i]);
    if (connection >= 0) close(connection);
    connection = -1;
    num_held = num_slots = 0;
    welcomed = false;
}
static _Noreturn void finish(int code) {
    size_t open_slots = 0;
    for (size_t i = 0; i < num_slots; i++) open_slots += slots[i].open;
    disconnect();
    free(slots);
    printf("{\"frames\": %ju, \"mappings\": %ju, \"slots_open\": %zu, \"retired\": %ju, \"dropped\": %ju, \"reread\": %ju, \"reconnects\": %ju, "
           "\"open_fds\": %zu, \"open_fds_at_start\": %zu}\n", (uintmax_t)num_frames, (uintmax_t)num_mappings, open_slots, (uintmax_t)num_retired,
           (uintmax_t)num_dropped, (uintmax_t)num_read_again, (uintmax_t)(num_connections > 0 ? num_connections - 1 : 0), open_descriptors(), num_at_start);
    exit(code);
}
static _Noreturn void stop(const char *what) {
    fprintf(stderr, "wire_consumer: %s: %s\n", what, strerror(errno));
    finish(USAGE);
}
__attribute__((format(printf, 2, 3))) static _Noreturn void broken(const char *rule, const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    printf("{\"rule\": \"%s\", \"text\": ", rule);
    print_text((const uint8_t *)text, strlen(text));
    printf("}\n");
    finish(RULE_BROKEN);
}
static void check(bool holds, const char *rule, const char *text) {
    if (!holds) broken(rule, "%s", text);
}
static void check_zero(const uint8_t *at, size_t length, const char *rule, const char *text) {
    for (size_t i = 0; i < length; i++) check(at[i] == 0, rule, text);
}

/* One packet, its descriptors in incoming: the length, 0 at EOF, -1 where DONTWAIT finds none. */
static size_t receive(uint8_t *packet, int flags, bool *none) {
    union { struct cmsghdr header; char bytes[CMSG_SPACE(4 * sizeof(int))]; } control;
    struct iovec part = {packet, MAX_PACKET};
    struct msghdr message;
    ssize_t length;
    do {
        message = (struct msghdr){.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
        length = recvmsg(connection, &message, flags | MSG_CMSG_CLOEXEC);
    } while (length < 0 && (errno == EINTR || errno == ECONNRESET)); /* a reset is told once, before what still lies in the queue */
    *none = length < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    if (*none && flags == 0) broken("welcome", "neither WELCOME nor REFUSED in %u s", options.timeout_s);
    if (length < 0 && !*none) stop("recvmsg");
    if (length < 0) return 0;
    for (struct cmsghdr *part_of = CMSG_FIRSTHDR(&message); part_of != NULL; part_of = CMSG_NXTHDR(&message, part_of)) {
        check(part_of->cmsg_level == SOL_SOCKET && part_of->cmsg_type == SCM_RIGHTS, "control", "control data that isn't descriptors");
        size_t count = (part_of->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count && num_incoming < 4; i++)
            memcpy(&incoming[num_incoming++], CMSG_DATA(part_of) + i * sizeof(int), sizeof(int));
    }
    check(!(message.msg_flags & MSG_TRUNC), "packet", "a packet longer than 4096 bytes");
    check(!(message.msg_flags & MSG_CTRUNC), "control", "control data were truncated: more than 4 descriptors, or no descriptors left here");
    return (size_t)length;
}
/* False where the producer is gone: what it still said can be read. */
static bool send_packet(const uint8_t *packet, size_t length, const int *fds, size_t num_fds) {
    union { struct cmsghdr header; char bytes[CMSG_SPACE(8 * sizeof(int))]; } control = {.bytes = {0}};
    struct iovec part = {(void *)(uintptr_t)packet, length};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (num_fds > 0) {
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE(num_fds * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        *header = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(num_fds * sizeof(int))};
        memcpy(CMSG_DATA(header), fds, num_fds * sizeof(int));
    }
    ssize_t sent;
    do sent = sendmsg(connection, &message, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent < 0 && errno != EPIPE && errno != ECONNRESET) stop("sendmsg");
    return sent >= 0;
}
static void apply_patch(uint8_t *packet, unsigned type) {
    for (size_t i = 0; i < sizeof PATCHES / sizeof *PATCHES; i++)
        if (PATCHES[i].message == type && misbehaves(PATCHES[i].kind)) {
            put(packet + PATCHES[i].offset, PATCHES[i].bytes, PATCHES[i].value);
            misbehaved = true;
        }
}
static void say_release(uint64_t uid, uint64_t generation) {
    uint8_t packet[32] = {0};
    int fds[2] = {-1, -1};
    put(packet, 2, RELEASE), put(packet + 2, 2, sizeof packet), put(packet + 8, 8, uid), put(packet + 16, 8, generation);
    bool with_pipe = !misbehaved && (misbehaves("release-pipe") || misbehaves("release-fd-without-flag"));
    if (with_pipe && pipe(fds) != 0) stop("pipe");
    if (misbehaves("release-pipe")) put(packet + 24, 4, 1);
    apply_patch(packet, RELEASE);
    misbehaved = misbehaved || with_pipe || misbehaves("double-release") || misbehaves("release-before-hello");
    send_packet(packet, sizeof packet, fds, with_pipe);
    if (misbehaves("double-release")) send_packet(packet, sizeof packet, NULL, 0);
    if (with_pipe) close(fds[0]), close(fds[1]);
}
static void say_hello(void) {
    uint8_t packet[8192] = {0};
    int fds[8] = {0};
    size_t length = 128 + 16 * options.num_formats, num_fds = misbehaves("fd-with-hello") ? 1 : misbehaves("many-fds") ? 8 : 0;
    const uint32_t numbers[] = {options.window, options.depth, options.history | WAITS, options.memory, options.stride_align, options.offset_align,
                                options.max_width, options.max_height, options.num_formats};
    put(packet, 2, HELLO), put(packet + 2, 2, length), put(packet + 8, 4, 0x4b4c435a);
    put(packet + 12, 2, options.min_version), put(packet + 14, 2, options.max_version);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) put(packet + 16 + 4 * i, 4, numbers[i]);
    memcpy(packet + 56, options.publisher, strlen(options.publisher));
    memcpy(packet + 88, options.name, strlen(options.name));
    for (size_t i = 0; i < options.num_formats; i++)
        put(packet + 128 + 16 * i, 4, options.formats[i].fourcc), put(packet + 136 + 16 * i, 8, options.formats[i].modifier);
    apply_patch(packet, HELLO);
    if (misbehaves("never-hello")) { misbehaved = true; return; }
    if (misbehaves("release-before-hello")) { say_release(1, 1); return; }
    for (size_t i = 0; misbehaves("garbage") && i < length; i++) packet[i] = (uint8_t)(0xa5 + 31 * i);
    if (misbehaves("truncated-header")) length = 4;
    if (misbehaves("empty-packet")) length = 0;
    if (misbehaves("oversized")) length = 5000, put(packet + 2, 2, length);
    misbehaved = misbehaved || num_fds > 0 || length != 128 + 16 * options.num_formats || misbehaves("garbage");
    send_packet(packet, length, fds, num_fds);
    struct pollfd hang_up = {.fd = connection};
    if (misbehaves("never-read")) { poll(&hang_up, 1, -1); finish(ENDED); }
}

static bool is_dmabuf(int fd) {
    char path[64], line[256];
    bool found = false;
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    FILE *file = fopen(path, "re");
    if (file == NULL) stop(path);
    while (!found && fgets(line, sizeof line, file) != NULL) found = strncmp(line, "exp_name:", 9) == 0;
    fclose(file);
    return found;
}
static void check_buffer(struct slot *slot, uint32_t index, int fd) {
    if (slot->kind == DMABUF) check(is_dmabuf(fd), "kind", "a descriptor announced as a dma-buf isn't one");
    if (slot->kind == MEMFD) {
        const int seals = fcntl(fd, F_GET_SEALS), wanted = F_SEAL_SHRINK | F_SEAL_GROW | (foreign_user ? F_SEAL_FUTURE_WRITE : 0);
        check(seals >= 0, "kind", "a descriptor announced as a memfd isn't one");
        if ((seals & wanted) != wanted) broken("seals", "the memfd carries seals %#x of %#x", (unsigned)seals, (unsigned)wanted);
    }
    const off_t end = lseek(fd, 0, SEEK_END);
    if (slot->sizes[index] == 0 || end < 0 || (uint64_t)end < slot->sizes[index])
        broken("buffer_size", "buffer %u has %jd bytes, announced are %ju", index, (intmax_t)end, (uintmax_t)slot->sizes[index]);
    if (fstat(fd, &slot->files[index]) != 0) stop("fstat");
}
static void check_image(const struct slot *slot) {
    const struct known_format *format = known_format(slot->fourcc);
    check(slot->width >= 1 && slot->width <= 65535 && slot->height >= 1 && slot->height <= 65535, "image", "width and height are 1 to 65535");
    for (uint32_t i = 0; format != NULL && i < format->num_planes; i++)
        check(slot->width % format->planes[i].across == 0 && slot->height % format->planes[i].down == 0, "image", "no multiple of the subsampling");
    check((options.max_width == 0 || slot->width <= options.max_width) && (options.max_height == 0 || slot->height <= options.max_height), "image",
          "an image larger than this consumer takes");
}
static void check_planes(const struct slot *slot) {
    const struct known_format *format = slot->modifier == 0 ? known_format(slot->fourcc) : NULL;
    uint32_t used = 0;
    const struct known_format *any_modifier = known_format(slot->fourcc);
    check(format == NULL || format->num_planes == slot->num_planes, "planes", "num_planes doesn't fit the LINEAR format");
    check(any_modifier == NULL || any_modifier->num_planes <= slot->num_planes, "planes", "fewer planes than the format has");
    for (uint32_t i = 0; i < slot->num_planes; i++) {
        const struct plane *plane = &slot->planes[i];
        uint64_t row;
        const uint64_t rows = rows_of(slot, i, &row);
        check(plane->buffer < slot->num_buffers, "planes", "a plane in a buffer that isn't there");
        check(plane->buffer <= used, "planes", "the buffers aren't in the order of the planes");
        if (plane->buffer == used) used++;
        const uint64_t size = slot->sizes[plane->buffer];
        if (plane->size == 0 || plane->offset > size || plane->size > size - plane->offset)
            broken("bounds", "plane %u: %ju bytes at %ju in %ju", i, (uintmax_t)plane->size, (uintmax_t)plane->offset, (uintmax_t)size);
        if (format != NULL && plane->stride < row) broken("stride", "plane %u: stride %u, a row is %ju bytes", i, plane->stride, (uintmax_t)row);
        check(format == NULL || (rows - 1) * plane->stride + row <= plane->size, "bounds", "a plane's rows don't fit into its size");
        check(format == NULL || (plane->stride % format->sample == 0 && plane->offset % format->sample == 0), "alignment", "samples are torn");
        check(plane->stride % options.stride_align == 0 && plane->offset % options.offset_align == 0, "alignment", "not aligned as asked");
        for (uint32_t k = 0; k < i; k++) { /* two descriptors of one file are one buffer */
            const struct plane *other = &slot->planes[k];
            const struct stat *a = &slot->files[plane->buffer], *b = &slot->files[other->buffer];
            if (a->st_ino == b->st_ino && a->st_dev == b->st_dev && plane->offset < other->offset + other->size && other->offset < plane->offset + plane->size)
                broken("overlap", "planes %u and %u overlap", k, i);
        }
    }
    check(used == slot->num_buffers, "planes", "a buffer without a plane");
}
static size_t find_slot(uint64_t uid) {
    size_t i = 0;
    while (i < num_slots && slots[i].uid != uid) i++;
    return i;
}
static void on_buffers(const uint8_t *packet) {
    struct slot slot = {.uid = get(packet + 8, 8), .width = get32(packet + 16), .height = get32(packet + 20), .fourcc = get32(packet + 24),
                        .num_planes = get32(packet + 28), .modifier = get(packet + 32, 8), .num_buffers = get32(packet + 40), .kind = get32(packet + 44)};
    check(slot.num_buffers >= 1 && slot.num_buffers <= 4 && slot.num_planes >= 1 && slot.num_planes <= 4, "planes", "1 to 4 planes and buffers");
    if (num_incoming != slot.num_buffers) broken("descriptors", "%zu descriptors came with %u buffers", num_incoming, slot.num_buffers);
    check(find_slot(slot.uid) == num_slots, "uid", "a uid was used twice");
    size_t known = 0;
    for (size_t i = 0; i < num_slots; i++) known += !slots[i].retired;
    check(known < MAX_SLOTS, "slots", "more than 256 slots are known");
    check(slot.kind == DMABUF || slot.kind == MEMFD, "kind", "kind is neither 1 nor 2");
    check(options.memory >> (slot.kind - 1) & 1, "kind", "memory that this consumer doesn't take");
    check(packet[48] >= 1 && packet[48] <= 4 && packet[49] >= 1 && packet[49] <= 2 && packet[50] >= 1 && packet[50] <= 3, "colour", "no such colour");
    check_zero(packet + 51, 13, "reserved", "reserved bytes of BUFFERS aren't zero");
    check_image(&slot);
    bool offered = options.num_formats == 0;
    for (uint32_t i = 0; i < options.num_formats; i++)
        offered = offered || (options.formats[i].fourcc == slot.fourcc && options.formats[i].modifier == slot.modifier);
    check(offered, "format", "a format that this consumer didn't offer");
    for (uint32_t i = 0; i < 4; i++) {
        const uint8_t *plane = packet + 64 + 24 * i;
        slot.planes[i] = (struct plane){get32(plane), get32(plane + 4), get(plane + 8, 8), get(plane + 16, 8)};
        slot.sizes[i] = get(packet + 160 + 8 * i, 8);
        if (i >= slot.num_planes) check_zero(plane, 24, "reserved", "an unused plane isn't zero");
        if (i >= slot.num_buffers) check_zero(packet + 160 + 8 * i, 8, "reserved", "an unused buffer_size isn't zero");
        else check_buffer(&slot, i, incoming[i]);
    }
    check_planes(&slot);
    for (uint32_t i = 0; i < slot.num_buffers; i++, num_mappings++) {
        void *map = mmap(NULL, (size_t)slot.sizes[i], PROT_READ, MAP_SHARED, incoming[i], 0);
        if (map == MAP_FAILED) stop("mmap");
        slot.maps[i] = map, slot.fds[i] = incoming[i];
    }
    num_incoming = 0;
    slot.open = true;
    slots = realloc(slots, (num_slots + 1) * sizeof *slots);
    if (slots == NULL) stop("realloc");
    slots[num_slots++] = slot;
}
static void on_frame(const uint8_t *packet, size_t length) {
    const size_t index = find_slot(get(packet + 8, 8));
    const uint32_t flags = get32(packet + 68);
    check(flags <= 1, "reserved", "unknown flags in FRAME");
    if (num_incoming != flags) broken("descriptors", "%zu descriptors came with flags %u", num_incoming, flags);
    check(index < num_slots, "uid", "a FRAME before its BUFFERS");
    struct slot *slot = &slots[index];
    check(!slot->retired, "retired", "a FRAME after BUFFER_RETIRED");
    check(num_held < window, "window", "more FRAMEs than the window");
    check(!slot->held, "lease", "a FRAME in a slot that is held");
    struct frame frame = {.slot = index, .generation = get(packet + 16, 8), .sequence = get(packet + 24, 8), .stamp_ns = (int64_t)get(packet + 32, 8),
                          .published_ns = (int64_t)get(packet + 48, 8), .received_ns = now_ns(), .dropped = get32(packet + 64),
                          .fence = flags ? incoming[0] : -1, .id_length = length - 72};
    check(!slot->used || frame.generation > slot->generation, "generation", "the generation doesn't grow");
    check(is_utf8(packet + 72, frame.id_length), "text", "frame_id isn't UTF-8");
    struct sync_file_info info = {.num_fences = 0};
    check(!flags || ioctl(frame.fence, SYNC_IOC_FILE_INFO, &info) == 0, "fence", "the acquire fence isn't a sync_file");
    memcpy(frame.id, packet + 72, frame.id_length);
    num_incoming = 0;
    slot->used = slot->held = true;
    slot->generation = frame.generation;
    num_dropped += frame.dropped;
    held[num_held++] = frame;
}
static _Noreturn void on_refused(const uint8_t *packet, size_t length) {
    const uint32_t code = get32(packet + 8);
    printf("{\"refused\": %u, \"text\": ", code >= 1 && code <= 6 ? code : 5);
    print_text(packet + 12, length - 12);
    printf("}\n");
    finish(TURNED_AWAY);
}
static void wait_for_ever(void) {
    const struct timeval for_ever = {0, 0};
    if (setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &for_ever, sizeof for_ever) != 0) stop("SO_RCVTIMEO");
}
static void on_welcome(const uint8_t *packet) {
    uint8_t wanted[32] = {0};
    const uint32_t version = (uint32_t)get(packet + 8, 2), depth = get32(packet + 16);
    memcpy(wanted, options.publisher, strlen(options.publisher));
    window = get32(packet + 12);
    check(version >= options.min_version && version <= options.max_version, "version", "a version that this consumer doesn't speak");
    check(window >= 1 && window <= options.window && depth >= 1 && depth <= options.depth, "granted", "window and depth are 1 to what was asked");
    check_zero(packet + 10, 2, "reserved", "reserved bytes of WELCOME aren't zero");
    check_zero(packet + 20, 12, "reserved", "reserved bytes of WELCOME aren't zero");
    check(is_identifier(packet + 32), "publisher", "WELCOME doesn't say who this is in 1 to 32 printable ASCII characters");
    check(options.publisher[0] == '\0' || memcmp(packet + 32, wanted, 32) == 0, "publisher", "another publisher than asked for");
    welcomed = true;
    wait_for_ever();
    if (misbehaves("second-hello")) say_hello(), misbehaved = true;
    uint8_t wrong[64] = {WELCOME, 0, 64};
    if (misbehaves("welcome-from-consumer")) misbehaved = send_packet(wrong, sizeof wrong, NULL, 0) || true;
}
static void on_packet(const uint8_t *packet, size_t length) {
    static const struct { size_t shortest, longest; bool from_producer; } types[] = {[HELLO] = {0}, [WELCOME] = {64, 64, true},
        [REFUSED] = {12, 512, true}, [BUFFERS] = {192, 192, true}, [FRAME] = {72, 327, true}, [RELEASE] = {0}, [BUFFER_RETIRED] = {16, 16, true},
        [NOTED] = {8, 512, true}};
    check(length >= 8, "header", "a packet without a header");
    const size_t type = (size_t)get(packet, 2);
    check(type >= HELLO && type <= NOTED && types[type].from_producer, "type", "not a message of a producer");
    if (get(packet + 2, 2) != length || length < types[type].shortest || length > types[type].longest)
        broken("length", "type %zu: %zu bytes, its header says %ju", type, length, (uintmax_t)get(packet + 2, 2));
    check_zero(packet + 4, 4, "reserved", "the header's zero isn't zero");
    check(type == BUFFERS || type == FRAME || num_incoming == 0, "descriptors", "descriptors with a message that has none");
    if (type == REFUSED) on_refused(packet, length);
    if (misbehaved) { close_incoming(); return; } /* only the refusal matters now */
    if (type == NOTED && !welcomed) { wait_for_ever(); return; }
    check((type == WELCOME || type == NOTED) != welcomed, "state", welcomed ? "a second WELCOME" : "neither WELCOME nor REFUSED first");
    if (type == WELCOME) on_welcome(packet);
    if (type == BUFFERS) on_buffers(packet);
    if (type == FRAME) on_frame(packet, length);
    if (type != BUFFER_RETIRED) return;
    const size_t index = find_slot(get(packet + 8, 8));
    check(index < num_slots && !slots[index].retired, "retired", "BUFFER_RETIRED of what wasn't announced, or a second one");
    slots[index].retired = true, num_retired++;
    if (!slots[index].held) close_slot(&slots[index]);
}

static void sync_buffers(const struct slot *slot, uint64_t flags) {
    struct dma_buf_sync sync = {.flags = flags | DMA_BUF_SYNC_READ};
    for (uint32_t i = 0; slot->kind == DMABUF && i < slot->num_buffers; i++)
        while (ioctl(slot->fds[i], DMA_BUF_IOCTL_SYNC, &sync) != 0)
            if (errno != EINTR && errno != EAGAIN) stop("DMA_BUF_IOCTL_SYNC");
}
static void read_planes(const struct slot *slot, uint32_t crc[4]) {
    sync_buffers(slot, DMA_BUF_SYNC_START);
    for (uint32_t i = 0; i < slot->num_planes; i++) {
        uint64_t row;
        const uint64_t rows = rows_of(slot, i, &row);
        const uint8_t *plane = slot->maps[slot->planes[i].buffer] + slot->planes[i].offset;
        uint32_t value = UINT32_MAX;
        for (uint64_t y = 0; y < rows; y++, plane += slot->planes[i].stride) value = crc32_of(value, plane, row);
        crc[i] = ~value;
    }
    sync_buffers(slot, DMA_BUF_SYNC_END);
}
/* Waits until the pixels are valid; what the fence says, 1 is good. */
static int32_t wait_for_fence(struct frame *frame) {
    struct sync_file_info info = {.num_fences = 0};
    struct pollfd ready = {.fd = frame->fence, .events = POLLIN};
    if (frame->fence < 0) return 1;
    int count;
    do count = poll(&ready, 1, (int)options.timeout_s * 1000);
    while (count < 0 && errno == EINTR);
    check(count > 0, "fence", "the acquire fence doesn't signal");
    if (ioctl(frame->fence, SYNC_IOC_FILE_INFO, &info) != 0) stop("SYNC_IOC_FILE_INFO");
    close(frame->fence);
    frame->fence = -1;
    return info.status;
}
static void read_frame(struct frame *frame) {
    struct slot *slot = &slots[frame->slot];
    const int32_t status = wait_for_fence(frame);
    frame->read = true, frame->failed = status != 1;
    if (!frame->failed) read_planes(slot, frame->crc);
    printf("{\"sequence\": %ju, \"uid\": %ju, \"generation\": %ju, \"stamp_ns\": %jd, \"frame_id\": ", (uintmax_t)frame->sequence,
           (uintmax_t)slot->uid, (uintmax_t)frame->generation, (intmax_t)frame->stamp_ns);
    print_text(frame->id, frame->id_length);
    printf(", \"dropped\": %u, \"inode\": %ju, \"fence_status\": %d, \"crc\": [", frame->dropped, (uintmax_t)slot->files[0].st_ino, status);
    for (uint32_t i = 0; !frame->failed && i < slot->num_planes; i++) printf(i > 0 ? ", %u" : "%u", frame->crc[i]);
    printf("], \"latency_us\": %.1f}\n", ((double)frame->received_ns - (double)frame->published_ns) / 1000.0);
    fflush(stdout);
    num_frames++;
}
static void release_frame(struct frame *frame) {
    struct slot *slot = &slots[frame->slot];
    slot->held = false;
    say_release(slot->uid, frame->generation);
    if (slot->retired) close_slot(slot);
    memmove(frame, frame + 1, (size_t)(&held[--num_held] - frame) * sizeof *frame);
}
/* One connection, from HELLO to EOF. */
static void converse(void) {
    uint8_t packet[MAX_PACKET];
    say_hello();
    for (;;) {
        bool none;
        size_t next = 0;
        while (next < num_held && held[next].read) next++;
        const size_t length = receive(packet, next < num_held && !misbehaved ? MSG_DONTWAIT : 0, &none);
        if (!none && length == 0) break;
        if (!none) on_packet(packet, length);
        if (!none || misbehaved) continue;
        read_frame(&held[next]);
        if (!options.hold && !misbehaves("never-release")) release_frame(&held[next]);
        if (options.frames > 0 && num_frames >= options.frames && !options.hold && options.misbehave == NULL) finish(0);
    }
    for (size_t i = 0; i < num_held && !misbehaved; i++) { /* what is held stays readable after the producer's end */
        uint32_t crc[4] = {0};
        if (!held[i].read) read_frame(&held[i]);
        else if (!held[i].failed) {
            read_planes(&slots[held[i].slot], crc);
            check(memcmp(crc, held[i].crc, sizeof crc) == 0, "lease", "the pixels of a held frame changed");
            num_read_again++;
        }
    }
    if (options.hold || (options.frames > 0 && num_frames >= options.frames && options.misbehave == NULL)) finish(0);
    if (welcomed) last_heard_ns = now_ns();
    disconnect();
}
/* A connection to the producer's socket, waiting until there is one. */
static void connect_to_producer(void) {
    const int64_t deadline = last_heard_ns + (int64_t)(options.reconnect_s * 1e9);
    const struct timespec pause = {0, 20000000};
    const struct timeval patience = {(time_t)options.timeout_s, 0};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct ucred peer;
    socklen_t length = sizeof peer;
    memcpy(address.sun_path, options.socket, strlen(options.socket));
    connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (connection < 0) stop("socket");
    if (num_connections > 0) nanosleep(&pause, NULL); /* not a busy loop where a producer closes at once */
    while (connect(connection, (const struct sockaddr *)&address, sizeof address) != 0) {
        if (errno != ENOENT && errno != ECONNREFUSED && errno != EINTR && errno != EAGAIN) stop(options.socket);
        if (now_ns() >= deadline) { printf("{\"ended\": \"nobody listens\"}\n"); finish(ENDED); }
        nanosleep(&pause, NULL);
    }
    num_connections++;
    if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) stop("SO_PEERCRED");
    if (peer.uid != 0 && peer.uid != geteuid() && !(options.user_told && peer.uid == options.user))
        broken("peer", "the producer's user is %ju, neither this one nor root nor one that was told", (uintmax_t)peer.uid);
    foreign_user = peer.uid != geteuid();
    if (setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) != 0) stop("SO_RCVTIMEO");
}

int main(int count, char **arguments) {
    parse(count, arguments);
    num_at_start = open_descriptors();
    last_heard_ns = now_ns();
    do {
        connect_to_producer();
        converse();
    } while (!misbehaved && options.misbehave == NULL && options.reconnect_s > 0);
    printf("{\"ended\": \"the producer closed\"}\n");
    finish(options.frames == 0 && options.misbehave == NULL ? 0 : ENDED);
}
