/*
 * Copyright 2026 The zc_perception authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Licensed under the Apache License, Version 2.0 (the "License");
 * you may not use this file except in compliance with the License.
 * You may obtain a copy of the License at
 *
 *     http://www.apache.org/licenses/LICENSE-2.0
 *
 * Unless required by applicable law or agreed to in writing, software
 * distributed under the License is distributed on an "AS IS" BASIS,
 * WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
 * See the License for the specific language governing permissions and
 * limitations under the License.
 */
/* A consumer by the protocol of docs/wire.md.
 *
 * Ownership: the client owns its socket and the slots that BUFFERS announced. A frame that the caller holds has a share of its
 * slot and of the client (shares), so it stays valid after the connection's end and after zc_client_close(). One lock guards
 * all of this; it is never held during a system call that can wait.
 *
 * Order of a connection: look for an announcement, connect, send HELLO, wait for WELCOME (after NOTED without a time limit),
 * then receive BUFFERS and FRAMEs. The end of a connection sets the time of the next attempt; at that time a timer makes the
 * descriptor that the caller polls readable. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/dma-buf.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "folder.h"
#include "transport.h"

#define MS INT64_C(1000000)
static const int64_t ANSWER_NS = 1000 * MS, FIRST_PAUSE_NS = 20 * MS, LONGEST_PAUSE_NS = 500 * MS, BUSY_PAUSE_NS = 5000 * MS, LOOK_NS = 2000 * MS;
enum { MOST_WITHOUT_FRAME = 4096 };

/* One slot's memory, shared by its connection and the frame in it; releasing the last share closes it. */
struct slot {
    uint64_t uid, generation;
    zc_image image;
    void *maps[ZC_MAX_PLANES];
    bool used, held, retired;
    unsigned shares;
    struct slot *next;
};
struct held {
    zc_frame frame; /* must be first: the caller's zc_frame * is a pointer to this struct */
    struct slot *slot;
    zc_client *client;
    uint64_t connection;
    bool reading;
};
enum phase { LOOKING, ASKED, TOLD_TO_WAIT, OPEN };

struct zc_client {
    pthread_mutex_t lock;
    unsigned shares; /* one of the caller, until zc_client_close(), and one of each frame */
    bool closed;
    char topic[512], folder[PATH_MAX];
    int domain;
    struct wire_hello hello;
    uid_t *users;
    size_t num_users;
    int poller, timer, watch, sock;
    struct announcement target; /* the publisher of the connection, or of the next attempt */
    bool named_socket, has_target;
    struct announcement told; /* the newest of zc_client_announce(), for a camera whose file is in another folder */
    bool has_told;
    bool news; /* the folder has changed since on_folder() last looked */
    struct announcement rejected; /* the announcement whose buffers zc_client_reject() rejected */
    enum phase phase;
    uint64_t connection; /* number of the connection; grows with each */
    bool foreign;
    uint32_t window, num_held;
    struct slot *slots;
    size_t num_slots, without_frame;
    uint64_t frames;
    int64_t since_ns, due_ns, pause_ns; /* begin of this connection; time of the next attempt or timeout; next pause between attempts */
    bool refused;
    uint32_t refusal;
    const char *rule;
    uint64_t connections;
    char reason[WIRE_MAX_TEXT * 3 + 64];
};

static void slot_drop(struct slot *slot) {
    if (--slot->shares > 0) return;
    for (uint32_t i = 0; i < slot->image.num_buffers; i++) {
        if (slot->maps[i] != NULL) munmap(slot->maps[i], (size_t)slot->image.buffer_size[i]);
        transport_close(&slot->image.fds[i]);
    }
    free(slot);
}
static void client_drop(zc_client *client) { /* called with the lock held; unlocks it */
    const bool last = --client->shares == 0;
    pthread_mutex_unlock(&client->lock);
    if (!last) return;
    transport_close(&client->sock);
    transport_close(&client->watch);
    transport_close(&client->timer);
    transport_close(&client->poller);
    pthread_mutex_destroy(&client->lock);
    free(client->users);
    free(client);
}
static void set_due(zc_client *client, int64_t at_ns) {
    client->due_ns = at_ns;
    const struct itimerspec when = {.it_value = {at_ns / 1000000000, at_ns % 1000000000}};
    timerfd_settime(client->timer, TFD_TIMER_ABSTIME, &when, NULL);
}

/* End the connection, and schedule the next attempt after pause_ns; frames that the caller holds stay valid. */
static void disconnect(zc_client *client, int64_t pause_ns) {
    for (struct slot *slot = client->slots, *next; slot != NULL; slot = next) {
        next = slot->next;
        slot_drop(slot);
    }
    client->slots = NULL;
    client->num_slots = client->num_held = 0;
    /* Closing alone doesn't end the watch if a forked child has the socket, too. */
    if (client->sock >= 0) epoll_ctl(client->poller, EPOLL_CTL_DEL, client->sock, NULL);
    transport_close(&client->sock);
    client->phase = LOOKING;
    client->connection++;
    set_due(client, transport_now_ns() + (pause_ns > 0 ? pause_ns : 1));
}
static int64_t longer(zc_client *client, int64_t most_ns) {
    const int64_t pause = client->pause_ns;
    client->pause_ns = pause * 2 < most_ns ? pause * 2 : most_ns;
    return pause < most_ns ? pause : most_ns;
}
static void broke_rule(zc_client *client, const struct wire_fault *fault) {
    snprintf(client->reason, sizeof client->reason, "the camera broke the rule '%s': %s", fault->rule, fault->text);
    client->refused = true;
    client->rule = fault->rule;
    disconnect(client, longer(client, LONGEST_PAUSE_NS));
}
static void on_end(zc_client *client) {
    const bool lived = client->frames > 0 && transport_now_ns() - client->since_ns >= 1000 * MS;
    snprintf(client->reason, sizeof client->reason, "the camera ended the connection");
    client->refused = false;
    if (lived) client->pause_ns = FIRST_PAUSE_NS;
    if (!client->named_socket) client->has_target = false;
    disconnect(client, lived ? 0 : longer(client, LONGEST_PAUSE_NS));
}
static void on_refused(zc_client *client, const struct packet *packet) {
    uint32_t code;
    char text[WIRE_MAX_TEXT * 3 + 1];
    wire_parse_text(packet->bytes, packet->length, WIRE_REFUSED, &code, text);
    snprintf(client->reason, sizeof client->reason, "refused with %u: %s", code, text);
    client->refused = true;
    client->refusal = code;
    disconnect(client, code == WIRE_BUSY ? longer(client, LONGEST_PAUSE_NS) : BUSY_PAUSE_NS);
}

/* Tell the camera that its buffers can't be used; connect again when it announces others. */
static void reject(zc_client *client, const char *why) {
    uint8_t packet[WIRE_MAX_TEXT];
    transport_send(client->sock, packet, wire_pack_text(packet, WIRE_REFUSED, WIRE_UNSUITABLE, why), NULL, 0);
    client->rejected = client->target;
    client->refused = true;
    snprintf(client->reason, sizeof client->reason, "this program rejected the buffers: %s", why);
    client->has_target = client->named_socket;
    disconnect(client, BUSY_PAUSE_NS);
}

static struct slot *find_slot(zc_client *client, uint64_t uid) {
    struct slot *slot = client->slots;
    while (slot != NULL && slot->uid != uid) slot = slot->next;
    return slot;
}
#define REQUIRE(holds, rule, ...) do { if (!(holds)) return wire_broken(fault, WIRE_RULE, rule, __VA_ARGS__); } while (0)

static bool on_buffers(zc_client *client, struct packet *packet, struct wire_fault *fault) {
    zc_image image;
    const uint64_t uid = wire_uid(packet->bytes);
    size_t known = 0;
    for (struct slot *slot = client->slots; slot != NULL; slot = slot->next) known += !slot->retired;
    REQUIRE(find_slot(client, uid) == NULL, "uid", "BUFFERS: slot %ju was announced before", (uintmax_t)uid);
    REQUIRE(known < WIRE_MAX_SLOTS, "slots", "more than %d slots are known", WIRE_MAX_SLOTS);
    if (!wire_parse_buffers(packet->bytes, packet->fds, packet->num_fds, &image, fault) ||
        !wire_check_image(&image, &client->hello, client->foreign, fault))
        return false;
    for (uint32_t i = 0; image.kind == ZC_MEMFD && i < image.num_buffers; i++)
        if ((fcntl(image.fds[i], F_GETFL) & O_ACCMODE) == O_WRONLY) {
            reject(client, "a memfd that was opened with O_WRONLY can't be mapped for reading");
            return true;
        }
    struct slot *slot = calloc(1, sizeof *slot);
    REQUIRE(slot != NULL, "memory", "there is no memory for a slot");
    packet->num_fds = 0; /* the slot owns the descriptors now */
    *slot = (struct slot){.uid = uid, .image = image, .shares = 1, .next = client->slots};
    client->slots = slot;
    return true;
}
static bool on_frame(zc_client *client, struct packet *packet, struct held **out, struct wire_fault *fault) {
    struct wire_frame told;
    if (!wire_parse_frame(packet->bytes, packet->length, &told, fault)) return false;
    struct slot *slot = find_slot(client, told.uid);
    REQUIRE(packet->num_fds == told.fence, "descriptors", "FRAME: %zu descriptors came with %d fences", packet->num_fds, told.fence);
    REQUIRE(!told.fence || wire_is_sync_file(packet->fds[0]), "fence", "FRAME: the acquire fence is no sync_file");
    REQUIRE(slot != NULL, "uid", "FRAME of slot %ju, which was not announced", (uintmax_t)told.uid);
    REQUIRE(!slot->retired, "retired", "FRAME of slot %ju, which is retired", (uintmax_t)told.uid);
    REQUIRE(!slot->held, "lease", "FRAME of slot %ju, which is held", (uintmax_t)told.uid);
    REQUIRE(client->num_held < client->window, "window", "more FRAMEs than the window, %u", client->window);
    REQUIRE(!slot->used || told.generation > slot->generation, "generation", "FRAME: the generation of slot %ju doesn't grow", (uintmax_t)told.uid);
    struct held *held = calloc(1, sizeof *held);
    REQUIRE(held != NULL, "memory", "there is no memory for a frame");
    held->frame = (zc_frame){.image = &slot->image, .slot = told.uid, .generation = told.generation, .sequence = told.sequence,
                             .stamp_ns = told.stamp_ns, .captured_ns = told.captured_ns, .published_ns = told.published_ns,
                             .capture_cost_ns = told.capture_cost_ns, .dropped = told.dropped, .fence = told.fence ? packet->fds[0] : -1};
    memcpy(held->frame.frame_id, told.frame_id, sizeof told.frame_id);
    packet->num_fds = 0;
    held->slot = slot, held->client = client, held->connection = client->connection;
    slot->used = slot->held = true;
    slot->generation = told.generation;
    slot->shares++;
    client->shares++;
    client->num_held++;
    client->frames++;
    client->without_frame = 0;
    *out = held;
    return true;
}
static bool on_retired(zc_client *client, const struct packet *packet, struct wire_fault *fault) {
    struct slot *slot = find_slot(client, wire_uid(packet->bytes));
    REQUIRE(slot != NULL && !slot->retired, "retired", "BUFFER_RETIRED of slot %ju, which isn't known any more", (uintmax_t)wire_uid(packet->bytes));
    slot->retired = true;
    if (slot->held) return true;
    struct slot **link = &client->slots;
    while (*link != slot) link = &(*link)->next;
    *link = slot->next;
    slot_drop(slot);
    return true;
}
/* Handle one packet; false: it broke a rule. */
static bool on_packet(zc_client *client, struct packet *packet, struct held **out, struct wire_fault *fault) {
    enum wire_type type;
    if (!wire_parse_header(packet->bytes, packet->length, true, &type, fault)) return false;
    REQUIRE(packet->num_fds == 0 || type == WIRE_BUFFERS || type == WIRE_FRAME, "descriptors", "descriptors with a message that has none");
    if (type == WIRE_REFUSED) {
        on_refused(client, packet);
        return true;
    }
    const bool begun = client->phase == OPEN;
    REQUIRE(begun == (type != WIRE_WELCOME && type != WIRE_NOTED), "state", "message type %d %s WELCOME", type, begun ? "after" : "before");
    if (type == WIRE_NOTED) {
        uint32_t code;
        wire_parse_text(packet->bytes, packet->length, WIRE_NOTED, &code, client->reason);
        client->phase = TOLD_TO_WAIT;
        client->refused = false;
        set_due(client, INT64_MAX / 2);
        return true;
    }
    if (type == WIRE_WELCOME) {
        struct wire_welcome welcome;
        if (!wire_parse_welcome(packet->bytes, &client->hello, &welcome, fault)) return false;
        client->window = welcome.window;
        client->phase = OPEN;
        client->refused = false;
        client->reason[0] = '\0';
        client->connections++;
        client->frames = client->without_frame = 0;
        client->since_ns = transport_now_ns();
        set_due(client, INT64_MAX / 2);
        return true;
    }
    REQUIRE(type == WIRE_FRAME || ++client->without_frame <= MOST_WITHOUT_FRAME, "frames", "%d messages came without a FRAME", MOST_WITHOUT_FRAME);
    return type == WIRE_BUFFERS ? on_buffers(client, packet, fault)
         : type == WIRE_FRAME   ? on_frame(client, packet, out, fault)
                                : on_retired(client, packet, fault);
}

static bool same(const struct announcement *one, const struct announcement *other) {
    return strcmp(one->socket, other->socket) == 0 && one->generation == other->generation;
}
/* Set target to the topic's newest announcement with a socket on which a process listens; false: there is none. */
static bool look(zc_client *client) {
    struct announcement found;
    DIR *folder = opendir(client->folder);
    if (folder == NULL) return false;
    bool any = false;
    struct timespec newest = {0, 0};
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        const size_t length = strlen(entry->d_name), suffix = strlen(".announcement");
        struct stat about;
        if (entry->d_name[0] == '.' || length <= suffix || strcmp(entry->d_name + length - suffix, ".announcement") != 0) continue;
        if (fstatat(dirfd(folder), entry->d_name, &about, AT_SYMLINK_NOFOLLOW) != 0) continue;
        const bool newer = about.st_mtim.tv_sec > newest.tv_sec || (about.st_mtim.tv_sec == newest.tv_sec && about.st_mtim.tv_nsec > newest.tv_nsec);
        if ((any && !newer) || !folder_read(client->folder, entry->d_name, client->topic, client->domain, &found) || found.socket[0] == '\0') continue;
        struct sockaddr_un there = {.sun_family = AF_UNIX};
        memcpy(there.sun_path, found.socket, sizeof there.sun_path);
        const int probe = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        const bool listens = probe >= 0 && (connect(probe, (const struct sockaddr *)&there, sizeof there) == 0 || errno == EAGAIN);
        if (probe >= 0) close(probe);
        if (!listens) continue;
        client->target = found;
        newest = about.st_mtim;
        any = true;
    }
    closedir(folder);
    return any;
}
static void watch_folder(zc_client *client) {
    if (client->named_socket || client->watch >= 0) return;
    const int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = 2};
    if (watch >= 0 && inotify_add_watch(watch, client->folder, IN_MOVED_TO) >= 0 && epoll_ctl(client->poller, EPOLL_CTL_ADD, watch, &event) == 0)
        client->watch = watch;
    else if (watch >= 0)
        close(watch); /* the folder doesn't exist yet: look again when the timer expires */
}
static bool producer_allowed(const zc_client *client, uid_t user) {
    if (user == 0 || user == geteuid()) return true;
    for (size_t i = 0; i < client->num_users; i++)
        if (client->users[i] == user) return true;
    return false;
}
/* Try once to connect and to send HELLO. */
static void try_to_connect(zc_client *client) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = 1};
    struct ucred peer;
    socklen_t size = sizeof peer;
    uint8_t packet[WIRE_MAX_HELLO];
    if (!client->named_socket) {
        watch_folder(client);
        if (!client->has_target) client->has_target = look(client);
        if (!client->has_target && client->has_told) {
            client->target = client->told;
            client->has_target = true;
        }
        if (!client->has_target || same(&client->target, &client->rejected)) {
            client->has_target = false;
            if (!client->refused && client->reason[0] == '\0')
                snprintf(client->reason, sizeof client->reason, "nobody announces topic '%s' of domain %d in '%.900s'", client->topic, client->domain,
                         client->folder);
            set_due(client, transport_now_ns() + LOOK_NS);
            return;
        }
    }
    client->sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    memcpy(address.sun_path, client->target.socket, sizeof address.sun_path);
    memcpy(client->hello.publisher_id, client->target.publisher_id, sizeof client->hello.publisher_id);
    if (client->sock < 0 || connect(client->sock, (const struct sockaddr *)&address, sizeof address) != 0 ||
        getsockopt(client->sock, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || epoll_ctl(client->poller, EPOLL_CTL_ADD, client->sock, &event) != 0) {
        const int error = errno;
        snprintf(client->reason, sizeof client->reason, "no connection to '%s': %s", client->target.socket, strerror(error));
        client->refused = error == EAGAIN;
        if (!client->named_socket) client->has_target = false;
        if ((error == ECONNREFUSED || error == ENOENT) && same(&client->told, &client->target)) client->has_told = false; /* that camera has ended */
        disconnect(client, longer(client, error == EAGAIN ? BUSY_PAUSE_NS : LONGEST_PAUSE_NS));
        return;
    }
    if (!producer_allowed(client, peer.uid)) {
        snprintf(client->reason, sizeof client->reason, "the camera at '%s' is of user %ju, who is neither this one nor root nor in option users",
                 client->target.socket, (uintmax_t)peer.uid);
        client->refused = true;
        disconnect(client, BUSY_PAUSE_NS);
        return;
    }
    client->foreign = peer.uid != geteuid();
    client->phase = ASKED;
    set_due(client, transport_now_ns() + ANSWER_NS);
    /* Ignore errors: a producer that refused at once may have closed already, but its REFUSED can still be read. */
    transport_send(client->sock, packet, wire_pack_hello(packet, &client->hello), NULL, 0);
}
/* Handle a change in the folder: if there is another announcement, connect to it at once instead of after the pause. */
static void on_folder(zc_client *client) {
    char events[4096];
    struct announcement before = client->target;
    while (read(client->watch, events, sizeof events) > 0) client->news = true;
    if (client->phase != LOOKING || !client->news) return;
    client->news = false;
    if (!look(client)) return;
    client->has_target = true;
    if (!same(&before, &client->target) || !client->refused)
        set_due(client, transport_now_ns());
}
/* Connect, receive and handle timeouts, all without waiting; *out gets the next frame, if one came. */
static void step(zc_client *client, struct held **out) {
    struct packet packet;
    struct wire_fault fault;
    uint64_t expired;
    (void)!read(client->timer, &expired, sizeof expired);
    if (client->watch >= 0) on_folder(client);
    if (transport_now_ns() >= client->due_ns) {
        if (client->phase == LOOKING) try_to_connect(client);
        else {
            snprintf(client->reason, sizeof client->reason, "no answer to HELLO within 1 s: the camera is stopped or busy");
            client->refused = true;
            disconnect(client, longer(client, BUSY_PAUSE_NS));
        }
    }
    while (client->phase != LOOKING && *out == NULL) {
        const enum received what = transport_receive(client->sock, &packet, &fault);
        if (what == RECEIVED_NOTHING) return;
        if (what == RECEIVED_END) on_end(client);
        else if (what == RECEIVED_BROKEN || !on_packet(client, &packet, out, &fault)) broke_rule(client, &fault);
        transport_close_fds(&packet);
    }
}

static int check_options(const zc_client_options *options, zc_client *client) {
    struct wire_hello *hello = &client->hello;
    const char *name = options->name != NULL ? options->name : program_invocation_short_name;
    if ((options->topic == NULL) == (options->socket == NULL)) return transport_fail(-EINVAL, "set exactly one of topic and socket");
    if (options->topic != NULL && (options->topic[0] != '/' || strlen(options->topic) >= sizeof client->topic))
        return transport_fail(-EINVAL, "topic is '%s'; it must be in full, such as '/front/image_raw', with at most 511 bytes", options->topic);
    if (options->socket != NULL && (options->socket[0] == '\0' || strlen(options->socket) >= sizeof client->target.socket))
        return transport_fail(-EINVAL, "socket is '%s'; it must be a path of 1 to %zu bytes", options->socket, sizeof client->target.socket - 1);
    if (options->publisher_id != NULL && (options->socket == NULL || !wire_is_identifier(options->publisher_id)))
        return transport_fail(-EINVAL, "publisher_id is '%s'; it must be 1 to 32 printable ASCII characters, and goes with socket", options->publisher_id);
    if (options->window > WIRE_MAX_WINDOW || options->depth > WIRE_MAX_WINDOW)
        return transport_fail(-EINVAL, "window is %u and depth %u; they must be 1 to 64, or 0 for 1", options->window, options->depth);
    if (options->num_formats > WIRE_MAX_FORMATS || (options->num_formats > 0 && options->formats == NULL))
        return transport_fail(-EINVAL, "there are %zu formats; name at most 64, or none to take any", options->num_formats);
    if (options->options != NULL && (strlen(options->options) > WIRE_MAX_OPTIONS || !wire_is_utf8((const uint8_t *)options->options, strlen(options->options))))
        return transport_fail(-EINVAL, "options have %zu bytes; they must be UTF-8 with at most 1024", strlen(options->options));
    *hello = (struct wire_hello){.window = options->window ? options->window : 1, .depth = options->depth ? options->depth : 1,
                                 .flags = WIRE_FLAG_WAITS | (options->history ? WIRE_FLAG_HISTORY : 0u),
                                 .memory = options->dmabufs_only ? ZC_DMABUF : ZC_DMABUF | ZC_MEMFD, .min_version = WIRE_VERSION,
                                 .max_version = WIRE_VERSION, .stride_align = options->stride_align ? options->stride_align : 1,
                                 .offset_align = options->offset_align ? options->offset_align : 1, .max_width = options->max_width,
                                 .max_height = options->max_height, .num_formats = options->num_formats};
    for (size_t i = 0; i < options->num_formats; i++) hello->formats[i] = options->formats[i];
    if (options->options != NULL) strcpy(hello->options, options->options);
    size_t length = strlen(name) < 40 ? strlen(name) : 40;
    while (length > 0 && !wire_is_utf8((const uint8_t *)name, length)) length--;
    memcpy(hello->name, name, length);
    return 0;
}
int zc_client_open(const zc_client_options *options, zc_client **out) {
    zc_client *client = calloc(1, sizeof *client);
    *out = NULL;
    if (client == NULL) return transport_fail(-ENOMEM, "there is no memory for a client");
    pthread_mutex_init(&client->lock, NULL);
    client->shares = 1;
    client->sock = client->watch = client->timer = -1;
    client->poller = epoll_create1(EPOLL_CLOEXEC);
    client->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    client->pause_ns = FIRST_PAUSE_NS;
    client->domain = folder_domain(options->domain);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = 0};
    int error = check_options(options, client);
    if (error == 0 && (client->poller < 0 || client->timer < 0 || epoll_ctl(client->poller, EPOLL_CTL_ADD, client->timer, &event) != 0)) {
        error = -errno;
        transport_fail(error, "no descriptors for a client: %s", strerror(-error));
    }
    if (error == 0 && options->num_users > 0) {
        client->users = calloc(options->num_users, sizeof *client->users);
        if (client->users == NULL) error = transport_fail(-ENOMEM, "there is no memory for a client");
        else memcpy(client->users, options->users, options->num_users * sizeof *client->users);
        client->num_users = options->num_users;
    }
    if (error == 0 && options->topic != NULL) {
        strcpy(client->topic, options->topic);
        if (!folder_path(client->folder)) error = transport_fail(-ENAMETOOLONG, "the folder of the sockets has a name that is too long: set ZC_RUNTIME_DIR");
    } else if (error == 0) {
        strcpy(client->target.socket, options->socket);
        if (options->publisher_id != NULL) strcpy(client->target.publisher_id, options->publisher_id);
        client->named_socket = true;
    }
    pthread_mutex_lock(&client->lock);
    if (error != 0) return client_drop(client), error;
    set_due(client, transport_now_ns());
    pthread_mutex_unlock(&client->lock);
    *out = client;
    return 0;
}
void zc_client_close(zc_client *client) {
    if (client == NULL) return;
    pthread_mutex_lock(&client->lock);
    client->closed = true;
    if (client->num_held > 0) shutdown(client->sock, SHUT_RD); /* the release of the last frame closes the socket */
    else if (client->phase != LOOKING) disconnect(client, 0);
    client_drop(client);
}
int zc_client_fd(const zc_client *client) { return client->poller; }

int zc_client_next(zc_client *client, int timeout_ms, zc_frame **frame) {
    const int64_t deadline = timeout_ms < 0 ? INT64_MAX : transport_now_ns() + timeout_ms * MS;
    struct pollfd ready = {.fd = client->poller, .events = POLLIN};
    struct held *held = NULL;
    for (;;) {
        pthread_mutex_lock(&client->lock);
        step(client, &held);
        pthread_mutex_unlock(&client->lock);
        if (held != NULL) {
            *frame = &held->frame;
            return 1;
        }
        const int64_t left = deadline == INT64_MAX ? -1 : deadline - transport_now_ns();
        if (timeout_ms == 0 || (left < 0 && timeout_ms > 0)) return 0;
        if (poll(&ready, 1, timeout_ms < 0 ? -1 : (int)(left / MS + 1)) < 0) return transport_fail(-errno, "poll: %s", strerror(errno));
    }
}
void zc_client_status(zc_client *client, zc_status *status) {
    pthread_mutex_lock(&client->lock);
    *status = (zc_status){.state = client->phase == OPEN ? ZC_CONNECTED : client->phase == TOLD_TO_WAIT ? ZC_WAITING
                                   : client->refused ? ZC_REFUSED : ZC_SEARCHING,
                          .refusal = client->refusal, .rule = client->rule, .connections = client->connections};
    wire_cut(status->text, sizeof status->text, client->reason);
    pthread_mutex_unlock(&client->lock);
}
int zc_client_announce(zc_client *client, const char *announcement) {
    struct announcement found;
    if (!folder_parse(announcement, &found) || found.socket[0] == '\0')
        return transport_fail(-EINVAL, "that is no announcement of version 1 with a socket on this host");
    pthread_mutex_lock(&client->lock);
    client->told = found;
    client->has_told = true;
    if (client->phase == LOOKING && !client->named_socket && (!client->has_target || !same(&found, &client->target))) {
        client->target = found;
        client->has_target = true;
        set_due(client, transport_now_ns());
    }
    pthread_mutex_unlock(&client->lock);
    return 0;
}
void zc_client_reject(zc_client *client, const char *why) {
    pthread_mutex_lock(&client->lock);
    if (client->phase == OPEN) reject(client, why);
    pthread_mutex_unlock(&client->lock);
}

int zc_frame_release(zc_frame *frame, int fence) {
    struct held *held = (struct held *)(void *)frame;
    zc_client *client = held->client;
    struct slot *slot = held->slot;
    uint8_t packet[32];
    const bool wrong = fence >= 0 && !wire_is_sync_file(fence);
    if (held->reading) zc_frame_end_read(frame);
    pthread_mutex_lock(&client->lock);
    transport_close(&held->frame.fence);
    if (held->connection == client->connection && client->phase == OPEN) {
        const struct wire_release release = {slot->uid, held->frame.generation, fence >= 0 && !wrong};
        slot->held = false;
        client->num_held--;
        /* Ignore errors: the socket always has room for a connection's RELEASEs, so a failure means that the connection has ended, and
         * the next step() handles that. */
        transport_send(client->sock, packet, wire_pack_release(packet, &release), &fence, release.fence);
        if (slot->retired) {
            struct slot **link = &client->slots;
            while (*link != slot) link = &(*link)->next;
            *link = slot->next;
            slot_drop(slot);
        }
        if (client->closed && client->num_held == 0) disconnect(client, 0);
    }
    slot_drop(slot);
    client_drop(client);
    free(held);
    return wrong ? transport_fail(-EINVAL, "descriptor %d is no sync_file; the frame was released without a fence", fence) : 0;
}

int zc_plane_rows(const zc_image *image, uint32_t plane, size_t *rows, size_t *row) {
    uint64_t number, bytes;
    if (!wire_plane_rows(image, plane, &number, &bytes))
        return transport_fail(-ENOTSUP, "the rows of plane %u of format %s with modifier 0x%jx are not known", plane,
                              wire_fourcc(image->fourcc, (char[16]){0}), (uintmax_t)image->modifier);
    *rows = (size_t)number, *row = (size_t)bytes;
    return 0;
}
static int sync_buffers(const zc_image *image, uint64_t flags) {
    const struct dma_buf_sync sync = {.flags = flags | DMA_BUF_SYNC_READ};
    for (uint32_t i = 0; image->kind == ZC_DMABUF && i < image->num_buffers; i++)
        while (ioctl(image->fds[i], DMA_BUF_IOCTL_SYNC, &sync) != 0)
            if (errno != EINTR && errno != EAGAIN) return transport_fail(-errno, "DMA_BUF_IOCTL_SYNC: %s", strerror(errno));
    return 0;
}
int zc_frame_begin_read(zc_frame *frame, int timeout_ms, const uint8_t *planes[ZC_MAX_PLANES]) {
    struct held *held = (struct held *)(void *)frame;
    struct slot *slot = held->slot;
    const zc_image *image = frame->image;
    uint64_t rows, row;
    if (!wire_plane_rows(image, 0, &rows, &row))
        return transport_fail(-ENOTSUP, "the layout of format %s with modifier 0x%jx is not one that a CPU can read",
                              wire_fourcc(image->fourcc, (char[16]){0}), (uintmax_t)image->modifier);
    if (frame->fence >= 0) {
        struct pollfd ready = {.fd = frame->fence, .events = POLLIN};
        const int count = poll(&ready, 1, timeout_ms);
        if (count < 0) return transport_fail(-errno, "poll: %s", strerror(errno));
        if (count == 0) return transport_fail(-ETIMEDOUT, "the acquire fence did not signal within %d ms", timeout_ms);
        const int status = wire_fence_status(frame->fence);
        if (status != 1) return transport_fail(-EIO, "the acquire fence has error %d, so the pixels are bad: release the frame unread", status);
    }
    int error = 0;
    pthread_mutex_lock(&held->client->lock);
    for (uint32_t i = 0; i < image->num_buffers && error == 0; i++) {
        if (slot->maps[i] != NULL) continue;
        void *map = mmap(NULL, (size_t)image->buffer_size[i], PROT_READ, MAP_SHARED, image->fds[i], 0);
        if (map == MAP_FAILED) error = transport_fail(-errno, "buffer %u can't be mapped: %s", i, strerror(errno));
        else slot->maps[i] = map;
    }
    pthread_mutex_unlock(&held->client->lock);
    if (error == 0) error = sync_buffers(image, DMA_BUF_SYNC_START);
    if (error != 0) return error;
    held->reading = true;
    for (uint32_t i = 0; i < ZC_MAX_PLANES; i++)
        planes[i] = i < image->num_planes ? (const uint8_t *)slot->maps[image->planes[i].buffer] + image->planes[i].offset : NULL;
    return 0;
}
int zc_frame_end_read(zc_frame *frame) {
    struct held *held = (struct held *)(void *)frame;
    if (!held->reading) return transport_fail(-EINVAL, "the frame is not being read");
    held->reading = false;
    return sync_buffers(frame->image, DMA_BUF_SYNC_END);
}
