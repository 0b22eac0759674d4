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
/* A producer by the protocol of docs/wire.md.
 *
 * Ownership: the publisher owns duplicates of the buffers' descriptors (one slot for each image) and its consumers' sockets. A
 * published frame counts its users: consumers that hold it, and consumers to which it is still to be sent. When it has no user
 * and the slot's fences have signalled, the slot is free for the caller again. Earlier buffers stay open until their last frame
 * ends. One lock guards all of this, and no call waits for a consumer while the lock is held. */
#define _GNU_SOURCE
#include "zc_client/zc_publisher.h"

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
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "folder.h"
#include "transport.h"

#define MS INT64_C(1000000)
static const int64_t HELLO_NS = 1000 * MS, REST_NS = 2000 * MS, TICK_NS = 250 * MS;
static const int64_t MOST_AHEAD_NS = 1000 * MS; /* of captured_ns: a driver may name the time at which an exposure will end */
static const int64_t LAST_STAMP_NS = (INT64_C(1) << 31) * 1000 * MS - 1; /* a ROS time has 31 bits for the seconds */
enum { MOST_CONSUMERS = 64, DEFAULT_RESERVED = 2, SPARE = 2 };
struct export_sync_file { uint32_t flags; int32_t fd; };
#define EXPORT_SYNC_FILE _IOWR('b', 2, struct export_sync_file)

/* One slot. Each call of zc_publisher_set_buffers() makes a new array of slots (struct buffers). */
struct out_slot {
    uint64_t uid, generation;
    zc_image image;
    size_t users; /* number of frames and rests for which the slot isn't free */
    bool callers; /* whether the caller owns the slot and may fill it */
    struct buffers *buffers;
};
struct buffers {
    size_t count, busy; /* number of slots; number of slots that have users */
    bool retired;
    struct out_slot slots[WIRE_MAX_SLOTS];
};
/* A published frame that consumers hold, or that is still to be sent to them. */
struct out_frame {
    size_t users;
    struct out_slot *slot;
    struct wire_frame told;
    int fence;
};
enum peer_phase { NEW, WAITING, SERVED };
struct peer {
    int sock;
    enum peer_phase phase;
    int64_t since_ns;
    struct wire_hello hello;
    uint32_t window, depth, dropped;
    bool known[WIRE_MAX_SLOTS]; /* known[i]: BUFFERS was sent to this peer for slot i of the current buffers */
    struct out_frame *held[WIRE_MAX_WINDOW], *waiting[WIRE_MAX_WINDOW + 1];
    size_t num_held, num_waiting;
};
/* A released slot that must not be filled yet: a device may still read it until fence signals or, without a fence, until until_ns. */
struct rest {
    int fence;
    int64_t until_ns;
    struct out_slot *slot;
    struct rest *next;
};

struct zc_publisher {
    pthread_mutex_t lock;
    char folder[PATH_MAX], topic[512], heap[64], id[33], host[33], base[PATH_MAX];
    int domain, poller, listener, timer, event;
    uint32_t reserved;
    bool renegotiates;
    char possible[64 * 40];
    uint64_t uids, announced;
    char announcement[8192];
    struct buffers *buffers;
    int free_slots[WIRE_MAX_SLOTS];
    size_t num_free;
    struct peer *peers[MOST_CONSUMERS];
    size_t num_peers;
    struct rest *rests;
};

static void free_slot(zc_publisher *publisher, struct out_slot *slot) {
    const uint64_t one = 1;
    struct buffers *buffers = slot->buffers;
    if (--slot->users > 0) return;
    buffers->busy--;
    if (buffers == publisher->buffers) {
        publisher->free_slots[publisher->num_free++] = (int)(slot - buffers->slots);
        (void)!write(publisher->event, &one, sizeof one);
    } else if (buffers->retired && buffers->busy == 0) {
        for (size_t i = 0; i < buffers->count; i++)
            for (uint32_t k = 0; k < buffers->slots[i].image.num_buffers; k++) close(buffers->slots[i].image.fds[k]);
        free(buffers);
    }
}
static void use_slot(struct out_slot *slot) {
    if (slot->users++ == 0) slot->buffers->busy++;
}
static void drop_frame(zc_publisher *publisher, struct out_frame *frame) {
    if (--frame->users > 0) return;
    transport_close(&frame->fence);
    free_slot(publisher, frame->slot);
    free(frame);
}
/* Keep a slot from being filled until fence signals, or without a fence until until_ns. This takes over fence. */
static void add_rest(zc_publisher *publisher, struct out_slot *slot, int fence, int64_t until_ns) {
    struct rest *rest = malloc(sizeof *rest);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    if (rest == NULL) { /* without memory the slot is never free again, which is better than a torn frame */
        use_slot(slot);
        transport_close(&fence);
        return;
    }
    *rest = (struct rest){fence, until_ns, slot, publisher->rests};
    publisher->rests = rest;
    use_slot(slot);
    if (fence >= 0) epoll_ctl(publisher->poller, EPOLL_CTL_ADD, fence, &event);
}
static void end_rests(zc_publisher *publisher, bool all) {
    const int64_t now = transport_now_ns();
    for (struct rest **link = &publisher->rests; *link != NULL;) {
        struct rest *rest = *link;
        if (!all && (rest->fence >= 0 ? wire_fence_status(rest->fence) == 0 : now < rest->until_ns)) {
            link = &rest->next;
            continue;
        }
        *link = rest->next;
        /* Closing alone doesn't end the watch: the consumer may still have the fence open, which then would stay readable. */
        if (rest->fence >= 0) epoll_ctl(publisher->poller, EPOLL_CTL_DEL, rest->fence, NULL);
        transport_close(&rest->fence);
        free_slot(publisher, rest->slot);
        free(rest);
    }
}
/* A device of a consumer that has ended may still read a slot. So keep the slot until the buffers' fences in the kernel have signalled, or for
 * REST_NS if the kernel doesn't export these fences. */
static void rest_after_death(zc_publisher *publisher, struct out_slot *slot) {
    for (uint32_t i = 0; slot->image.kind == ZC_DMABUF && i < slot->image.num_buffers; i++) {
        struct export_sync_file asked = {DMA_BUF_SYNC_RW, -1};
        if (ioctl(slot->image.fds[i], EXPORT_SYNC_FILE, &asked) == 0) add_rest(publisher, slot, asked.fd, 0);
        else add_rest(publisher, slot, -1, transport_now_ns() + REST_NS);
    }
}
static void close_peer(zc_publisher *publisher, struct peer *peer) {
    size_t i = 0;
    while (publisher->peers[i] != peer) i++;
    /* Keep the others in the order in which they came. */
    memmove(publisher->peers + i, publisher->peers + i + 1, (--publisher->num_peers - i) * sizeof *publisher->peers);
    epoll_ctl(publisher->poller, EPOLL_CTL_DEL, peer->sock, NULL); /* as a forked child may have the socket, too */
    close(peer->sock);
    for (i = 0; i < peer->num_held; i++) {
        rest_after_death(publisher, peer->held[i]->slot);
        drop_frame(publisher, peer->held[i]);
    }
    for (i = 0; i < peer->num_waiting; i++) drop_frame(publisher, peer->waiting[i]);
    free(peer);
}
static void refuse(zc_publisher *publisher, struct peer *peer, uint32_t code, const char *text) {
    uint8_t packet[WIRE_MAX_TEXT];
    struct packet unread;
    struct wire_fault fault;
    transport_send(peer->sock, packet, wire_pack_text(packet, WIRE_REFUSED, code, text), NULL, 0);
    /* Read the remaining packets: closing the socket with unread packets would reset the connection, and the peer would miss REFUSED. */
    for (int i = 0; i < 128 && transport_receive(peer->sock, &unread, &fault) == RECEIVED_PACKET; i++) transport_close_fds(&unread);
    close_peer(publisher, peer);
}
static void drop_oldest(zc_publisher *publisher, struct peer *peer) {
    drop_frame(publisher, peer->waiting[0]);
    memmove(peer->waiting, peer->waiting + 1, --peer->num_waiting * sizeof *peer->waiting);
    peer->dropped += peer->dropped < UINT32_MAX;
}
/* Send as many of the waiting frames as the window allows. */
static void flush(zc_publisher *publisher, struct peer *peer) {
    while (peer->num_waiting > 0 && peer->num_held < peer->window) {
        uint8_t packet[WIRE_MAX_PACKET];
        struct out_frame *frame = peer->waiting[0];
        struct out_slot *slot = frame->slot;
        const size_t index = (size_t)(slot - slot->buffers->slots);
        int error = 0;
        if (!peer->known[index])
            error = transport_send(peer->sock, packet, wire_pack_buffers(packet, slot->uid, &slot->image), slot->image.fds, slot->image.num_buffers);
        if (error == 0) {
            peer->known[index] = true;
            frame->told.dropped = peer->dropped;
            error = transport_send(peer->sock, packet, wire_pack_frame(packet, &frame->told), &frame->fence, frame->told.fence);
        }
        if (error == -EAGAIN) { /* the socket is full, because the peer doesn't read it */
            drop_oldest(publisher, peer);
            return;
        }
        if (error != 0) return; /* the peer receives no more frames; it closes its socket when it has released all of them */
        memmove(peer->waiting, peer->waiting + 1, --peer->num_waiting * sizeof *peer->waiting);
        peer->held[peer->num_held++] = frame;
        peer->dropped = 0;
    }
}

/* Answer a consumer's HELLO: WELCOME if it can use the current buffers, else NOTED or REFUSED. */
static void judge(zc_publisher *publisher, struct peer *peer) {
    uint8_t packet[WIRE_MAX_TEXT];
    char why[300] = "", text[240];
    const char *step = "it has no buffers yet";
    if (publisher->buffers != NULL) {
        /* Each window is promised, and the greatest depth once: the newest frames, which wait, are the same for all. */
        uint32_t promised = publisher->reserved, deepest = 0, count = (uint32_t)publisher->buffers->count;
        for (size_t i = 0; i < publisher->num_peers; i++) {
            if (publisher->peers[i]->phase != SERVED) continue;
            promised += publisher->peers[i]->window;
            if (publisher->peers[i]->depth > deepest) deepest = publisher->peers[i]->depth;
        }
        wire_misfit(&publisher->buffers->slots[0].image, publisher->heap, &peer->hello, text);
        if (text[0] == '\0') {
            const uint32_t waiting = deepest > 1 ? deepest : 1, left = count > promised ? count - promised : 0;
            if (left < 1 + waiting) {
                snprintf(why, sizeof why, "%u of %u slots are promised: give the camera more of them, or end another consumer", promised + deepest, count);
                refuse(publisher, peer, WIRE_BUSY, why);
                return;
            }
            /* Grant less only where slots are few, and then leave SPARE of them for the next consumer where possible. A depth always leaves
             * them, because waiting frames are needed less than frames in use. */
            const uint32_t room = left - waiting, few = room > 2 * SPARE ? room - SPARE : room < SPARE ? room : SPARE;
            peer->window = peer->hello.window <= room ? peer->hello.window : few;
            const uint32_t deep = left > peer->window + SPARE ? left - peer->window - SPARE : 0, most = deep > waiting ? deep : waiting;
            peer->depth = peer->hello.depth < most ? peer->hello.depth : most;
            peer->phase = SERVED;
            struct wire_welcome welcome = {.version = WIRE_VERSION, .window = peer->window, .depth = peer->depth};
            memcpy(welcome.publisher_id, publisher->id, sizeof welcome.publisher_id);
            transport_send(peer->sock, packet, wire_pack_welcome(packet, &welcome), NULL, 0);
            return;
        }
        snprintf(why, sizeof why, "'%s': %s", peer->hello.name, text);
        if (!publisher->renegotiates || peer->phase == WAITING) {
            refuse(publisher, peer, WIRE_UNSUITABLE, why);
            return;
        }
        step = why;
    }
    if (!(peer->hello.flags & WIRE_FLAG_WAITS)) {
        refuse(publisher, peer, WIRE_BUSY, step);
        return;
    }
    peer->phase = WAITING;
    transport_send(peer->sock, packet, wire_pack_text(packet, WIRE_NOTED, 0, step), NULL, 0);
}
static void on_release(zc_publisher *publisher, struct peer *peer, struct packet *packet, struct wire_fault *fault) {
    struct wire_release release;
    size_t i = 0;
    if (!wire_parse_release(packet->bytes, &release, fault)) {
        refuse(publisher, peer, WIRE_RULE, fault->text);
        return;
    }
    while (i < peer->num_held && (peer->held[i]->slot->uid != release.uid || peer->held[i]->told.generation != release.generation)) i++;
    if (i == peer->num_held) {
        refuse(publisher, peer, WIRE_RULE, "RELEASE of a frame that it doesn't hold");
        return;
    }
    if (packet->num_fds != release.fence || (release.fence && !wire_is_sync_file(packet->fds[0]))) {
        refuse(publisher, peer, WIRE_RULE, "RELEASE with a fence that is no sync_file, or with other descriptors");
        return;
    }
    struct out_frame *frame = peer->held[i];
    peer->held[i] = peer->held[--peer->num_held];
    if (release.fence) {
        add_rest(publisher, frame->slot, packet->fds[0], 0);
        packet->num_fds = 0;
    }
    drop_frame(publisher, frame);
    flush(publisher, peer);
}
static void on_message(zc_publisher *publisher, struct peer *peer, struct packet *packet) {
    struct wire_fault fault;
    enum wire_type type;
    if (peer->phase == NEW) {
        if (packet->num_fds > 0) {
            refuse(publisher, peer, WIRE_RULE, "HELLO with descriptors");
            return;
        }
        if (!wire_parse_hello(packet->bytes, packet->length, &peer->hello, &fault)) {
            refuse(publisher, peer, fault.code, fault.text);
            return;
        }
        if (peer->hello.publisher_id[0] != '\0' && strcmp(peer->hello.publisher_id, publisher->id) != 0) {
            refuse(publisher, peer, WIRE_OTHER_PUBLISHER, "another publisher listens here now");
            return;
        }
        judge(publisher, peer);
        return;
    }
    if (!wire_parse_header(packet->bytes, packet->length, false, &type, &fault)) {
        refuse(publisher, peer, WIRE_RULE, fault.text);
        return;
    }
    if (type == WIRE_REFUSED && packet->num_fds == 0) {
        char text[WIRE_MAX_TEXT * 3 + 1];
        uint32_t code;
        wire_parse_text(packet->bytes, packet->length, type, &code, text);
        if (code == WIRE_UNSUITABLE) close_peer(publisher, peer);
        else refuse(publisher, peer, WIRE_RULE, "REFUSED with another code than 3");
        return;
    }
    if (type != WIRE_RELEASE || peer->phase != SERVED) {
        refuse(publisher, peer, WIRE_RULE, "a message that may not come now");
        return;
    }
    on_release(publisher, peer, packet, &fault);
}
/* Handle the messages that a consumer has sent. */
static void read_peer(zc_publisher *publisher, struct peer *peer) {
    struct packet packet;
    struct wire_fault fault;
    for (int i = 0; i < 256; i++) {
        const enum received what = transport_receive(peer->sock, &packet, &fault);
        if (what == RECEIVED_NOTHING) return;
        if (what == RECEIVED_END) {
            close_peer(publisher, peer);
            return;
        }
        if (what == RECEIVED_BROKEN) {
            refuse(publisher, peer, WIRE_RULE, fault.text);
            return;
        }
        on_message(publisher, peer, &packet);
        transport_close_fds(&packet);
        bool there = false;
        for (size_t k = 0; k < publisher->num_peers; k++) there = there || publisher->peers[k] == peer;
        if (!there) return;
    }
}
static void watch_listener(zc_publisher *publisher, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = &publisher->listener};
    epoll_ctl(publisher->poller, EPOLL_CTL_MOD, publisher->listener, &event);
}
static void accept_peer(zc_publisher *publisher) {
    const int sock = accept4(publisher->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (sock < 0) { /* no descriptor is left: the listener stays readable, so try again at the next tick of the timer, not all the time */
        watch_listener(publisher, 0);
        return;
    }
    struct peer *peer = calloc(1, sizeof *peer);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = peer};
    struct ucred who = {0};
    socklen_t size = sizeof who;
    if (peer == NULL || epoll_ctl(publisher->poller, EPOLL_CTL_ADD, sock, &event) != 0) {
        close(sock);
        free(peer);
        return;
    }
    *peer = (struct peer){.sock = sock, .since_ns = transport_now_ns()};
    if (publisher->num_peers == MOST_CONSUMERS) { /* refuse the new consumer */
        uint8_t packet[WIRE_MAX_TEXT];
        transport_send(sock, packet, wire_pack_text(packet, WIRE_REFUSED, WIRE_BUSY, "64 consumers are connected already"), NULL, 0);
        close(sock);
        free(peer);
        return;
    }
    publisher->peers[publisher->num_peers++] = peer;
    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0 || (who.uid != geteuid() && who.uid != 0))
        refuse(publisher, peer, WIRE_NOT_ALLOWED, "only the camera's own user and root may connect");
}

int zc_publisher_step(zc_publisher *publisher, int timeout_ms) {
    struct epoll_event events[32];
    uint64_t none;
    if (timeout_ms != 0) { /* wait without holding the lock */
        struct pollfd ready = {.fd = publisher->poller, .events = POLLIN};
        if (poll(&ready, 1, timeout_ms) < 0) return transport_fail(-errno, "poll: %s", strerror(errno));
    }
    pthread_mutex_lock(&publisher->lock);
    const int count = epoll_wait(publisher->poller, events, 32, 0);
    for (int i = 0; i < count; i++) {
        if (events[i].data.ptr == &publisher->listener) accept_peer(publisher);
        else if (events[i].data.ptr == &publisher->timer) {
            (void)!read(publisher->timer, &none, sizeof none);
            watch_listener(publisher, EPOLLIN); /* which accept_peer() may have stopped */
        } else
            for (size_t k = 0; k < publisher->num_peers; k++) /* search the list, because the peer may have been freed since epoll_wait() */
                if (publisher->peers[k] == events[i].data.ptr) {
                    read_peer(publisher, publisher->peers[k]);
                    break;
                }
    }
    end_rests(publisher, false);
    const int64_t late = transport_now_ns() - HELLO_NS;
    for (size_t k = publisher->num_peers; k > 0; k--)
        if (publisher->peers[k - 1]->phase == NEW && publisher->peers[k - 1]->since_ns < late)
            refuse(publisher, publisher->peers[k - 1], WIRE_RULE, "no HELLO came within 1 s");
    pthread_mutex_unlock(&publisher->lock);
    return 0;
}

static int write_announcement(zc_publisher *publisher) {
    const struct buffers *buffers = publisher->buffers;
    const zc_image *image = buffers == NULL ? NULL : &buffers->slots[0].image;
    char format[64] = "", heap[160] = "", socket_name[2 * PATH_MAX] = "", name[PATH_MAX + 32], path[PATH_MAX + 32];
    static const size_t ROOM = 4 * sizeof publisher->announcement;
    char *file = malloc(ROOM), *socket_path = malloc(PATH_MAX + 16);
    uint32_t number = 0;
    int error = 0;
    if (file == NULL || socket_path == NULL) {
        free(file);
        free(socket_path);
        return transport_fail(-ENOMEM, "there is no memory for an announcement");
    }
    if (image != NULL && image->modifier == ZC_LINEAR) snprintf(format, sizeof format, "\"%.4s\"", (const char *)&image->fourcc);
    else if (image != NULL)
        snprintf(format, sizeof format, image->modifier == ZC_UNKNOWN_MODIFIER ? "\"%.4s:INVALID\"" : "\"%.4s:0x%016jx\"", (const char *)&image->fourcc,
                 (uintmax_t)image->modifier);
    snprintf(socket_path, PATH_MAX + 16, "%s.sock", publisher->base);
    bool fits = folder_quote(heap, sizeof heap, image != NULL ? publisher->heap : "") && folder_quote(socket_name, sizeof socket_name, socket_path);
    fits = fits && (size_t)snprintf(publisher->announcement, sizeof publisher->announcement,
                                    "{\"version\": 1, \"publisher_id\": \"%s\", \"host_id\": \"%s\", \"socket\": %s, \"width\": %u, \"height\": %u, "
                                    "\"formats\": [%s], \"heap\": %s, \"generation\": %ju%s}",
                                    publisher->id, publisher->host, socket_name, image != NULL ? image->width : 1, image != NULL ? image->height : 1, format,
                                    heap, (uintmax_t)publisher->announced, publisher->possible) < sizeof publisher->announcement;
    snprintf(file, ROOM, "{\"topic\": ");
    fits = fits && folder_quote(file, ROOM, publisher->topic);
    if (fits) {
        snprintf(file + strlen(file), ROOM - strlen(file), ", \"domain\": %d, \"announcement\": ", publisher->domain);
        fits = folder_quote(file, ROOM, publisher->announcement) && strlen(file) + 1 < FOLDER_MAX_FILE;
    }
    if (!fits) error = transport_fail(-ENAMETOOLONG, "the announcement has no room: give a shorter topic or folder");
    if (error == 0) {
        strcat(file, "}");
        (void)!getrandom(&number, sizeof number, 0);
        snprintf(name, sizeof name, "%s/.starting-%08x", publisher->folder, number);
        snprintf(path, sizeof path, "%s.announcement", publisher->base);
        const int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        const ssize_t written = fd >= 0 ? write(fd, file, strlen(file)) : -1;
        if (fd >= 0) close(fd);
        if (written >= 0 && written < (ssize_t)strlen(file)) errno = ENOSPC; /* a write of a part sets no error */
        if (written != (ssize_t)strlen(file) || rename(name, path) != 0) {
            error = transport_fail(-errno, "'%s' can't be written: %s", path, strerror(errno));
            unlink(name);
        }
    }
    free(file);
    free(socket_path);
    return error;
}
/* Remove the sockets and announcements of this user's producers that were killed. */
static void remove_dead(const char *folder) {
    DIR *listing = opendir(folder);
    if (listing == NULL) return;
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;) {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        char beside[sizeof address.sun_path + 16];
        const size_t length = strlen(entry->d_name);
        if (entry->d_name[0] == '.' || length <= 5 || strcmp(entry->d_name + length - 5, ".sock") != 0 ||
            snprintf(address.sun_path, sizeof address.sun_path, "%s/%s", folder, entry->d_name) >= (int)sizeof address.sun_path)
            continue;
        const int probe = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (probe >= 0 && connect(probe, (const struct sockaddr *)&address, sizeof address) != 0 && errno == ECONNREFUSED) {
            snprintf(beside, sizeof beside, "%s", address.sun_path);
            strcpy(strrchr(beside, '.'), ".announcement");
            unlink(beside);
            unlink(address.sun_path);
        }
        if (probe >= 0) close(probe);
    }
    closedir(listing);
}
static int enter_folder(zc_publisher *publisher) {
    struct stat about;
    if (!folder_path(publisher->folder)) return transport_fail(-ENAMETOOLONG, "the folder of the sockets has a name that is too long: set ZC_RUNTIME_DIR");
    if (mkdir(publisher->folder, 0700) != 0 && errno != EEXIST)
        return transport_fail(-errno, "folder '%s' can't be made: %s; set ZC_RUNTIME_DIR to another one", publisher->folder, strerror(errno));
    if (lstat(publisher->folder, &about) != 0 || !S_ISDIR(about.st_mode) || about.st_uid != geteuid() || (about.st_mode & 027) != 0)
        return transport_fail(-EPERM, "folder '%s' is a link, is somebody else's or is open to others; set ZC_RUNTIME_DIR to another one", publisher->folder);
    remove_dead(publisher->folder);
    return 0;
}
static int begin_to_listen(zc_publisher *publisher) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char path[PATH_MAX + 16];
    uint32_t random[5];
    if (getrandom(random, sizeof random, 0) != sizeof random) return transport_fail(-EIO, "the kernel has no random numbers");
    for (int i = 0; i < 4; i++) sprintf(publisher->id + 8 * i, "%08x", random[i]);
    if (snprintf(publisher->base, sizeof publisher->base, "%s/%s", publisher->folder, publisher->id) >= (int)sizeof address.sun_path - 5 || strlen(publisher->folder) > 80)
        return transport_fail(-ENAMETOOLONG, "folder '%s' has a name that is too long for a socket: set ZC_RUNTIME_DIR to a shorter one", publisher->folder);
    snprintf(address.sun_path, sizeof address.sun_path, "%.80s/.starting-%08x", publisher->folder, random[4]);
    snprintf(path, sizeof path, "%s.sock", publisher->base);
    publisher->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (publisher->listener < 0 || bind(publisher->listener, (const struct sockaddr *)&address, sizeof address) != 0 ||
        chmod(address.sun_path, 0600) != 0 || listen(publisher->listener, 128) != 0 || rename(address.sun_path, path) != 0) {
        const int error = errno;
        unlink(address.sun_path);
        return transport_fail(-error, "no socket can be made in '%s': %s", publisher->folder, strerror(error));
    }
    return 0;
}
int zc_publisher_open(const zc_publisher_options *options, zc_publisher **out) {
    *out = NULL;
    if (options->topic == NULL || options->topic[0] != '/' || strlen(options->topic) >= 512)
        return transport_fail(-EINVAL, "topic is '%s'; it must be in full, such as '/front/image_raw', with at most 511 bytes", options->topic ? options->topic : "");
    if (options->heap == NULL || strlen(options->heap) >= 64) return transport_fail(-EINVAL, "heap must say where the memory comes from, such as 'memfd'");
    if (options->num_possible > 64 || options->reserved > 64) return transport_fail(-EINVAL, "reserved and num_possible are at most 64");
    zc_publisher *publisher = calloc(1, sizeof *publisher);
    if (publisher == NULL) return transport_fail(-ENOMEM, "there is no memory for a publisher");
    pthread_mutex_init(&publisher->lock, NULL);
    publisher->listener = publisher->timer = -1;
    publisher->domain = folder_domain(options->domain);
    publisher->reserved = options->reserved > 0 ? options->reserved : DEFAULT_RESERVED;
    publisher->renegotiates = options->renegotiates;
    publisher->uids = 1;
    strcpy(publisher->topic, options->topic);
    strcpy(publisher->heap, options->heap);
    for (size_t i = 0; i < options->num_possible; i++) {
        char *at = strchr(publisher->possible, '\0');
        const zc_format *format = &options->possible[i];
        at += sprintf(at, "%s\"%.4s", i == 0 ? ", \"possible_formats\": [" : ", ", (const char *)&format->fourcc);
        if (format->modifier != ZC_LINEAR) at += sprintf(at, ":0x%016jx", (uintmax_t)format->modifier);
        strcpy(at, i + 1 == options->num_possible ? "\"]" : "\"");
    }
    publisher->poller = epoll_create1(EPOLL_CLOEXEC);
    publisher->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    publisher->event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int error = enter_folder(publisher);
    if (error == 0 && !folder_host_id(publisher->host)) error = transport_fail(-EIO, "/proc/sys/kernel/random/boot_id can't be read");
    if (error == 0) error = begin_to_listen(publisher);
    struct epoll_event on_listener = {.events = EPOLLIN, .data.ptr = &publisher->listener}, on_timer = {.events = EPOLLIN, .data.ptr = &publisher->timer};
    struct epoll_event on_event = {.events = EPOLLIN, .data.ptr = NULL};
    const struct itimerspec every = {{0, TICK_NS}, {0, TICK_NS}};
    if (error == 0 && (epoll_ctl(publisher->poller, EPOLL_CTL_ADD, publisher->listener, &on_listener) != 0 ||
                       epoll_ctl(publisher->poller, EPOLL_CTL_ADD, publisher->timer, &on_timer) != 0 ||
                       epoll_ctl(publisher->poller, EPOLL_CTL_ADD, publisher->event, &on_event) != 0 ||
                       timerfd_settime(publisher->timer, 0, &every, NULL) != 0))
        error = transport_fail(-errno, "no descriptors for a publisher: %s", strerror(errno));
    if (error == 0) error = write_announcement(publisher);
    if (error != 0) {
        char kept[512];
        snprintf(kept, sizeof kept, "%s", zc_error());
        zc_publisher_close(publisher);
        return transport_fail(error, "%s", kept);
    }
    *out = publisher;
    return 0;
}
/* Send BUFFER_RETIRED to the consumers that have the current buffers; close these buffers when their last frame ends. */
static void retire(zc_publisher *publisher) {
    struct buffers *old = publisher->buffers;
    if (old == NULL) return;
    publisher->buffers = NULL;
    publisher->num_free = 0;
    old->retired = true;
    old->busy++; /* so that drop_oldest() doesn't free the buffers below */
    for (size_t k = publisher->num_peers; k > 0; k--) {
        struct peer *peer = publisher->peers[k - 1];
        uint8_t packet[16];
        bool told = true;
        while (peer->num_waiting > 0) drop_oldest(publisher, peer);
        for (size_t i = 0; told && i < old->count; i++)
            told = !peer->known[i] || transport_send(peer->sock, packet, wire_pack_retired(packet, old->slots[i].uid), NULL, 0) != -EAGAIN;
        memset(peer->known, 0, sizeof peer->known);
        if (!told) close_peer(publisher, peer);
    }
    if (--old->busy > 0) return;
    for (size_t i = 0; i < old->count; i++)
        for (uint32_t k = 0; k < old->slots[i].image.num_buffers; k++) close(old->slots[i].image.fds[k]);
    free(old);
}
void zc_publisher_close(zc_publisher *publisher) {
    char path[PATH_MAX + 16];
    if (publisher == NULL) return;
    if (publisher->listener >= 0) {
        snprintf(path, sizeof path, "%s.announcement", publisher->base);
        unlink(path);
        snprintf(path, sizeof path, "%s.sock", publisher->base);
        unlink(path);
    }
    retire(publisher);
    while (publisher->num_peers > 0) close_peer(publisher, publisher->peers[0]);
    end_rests(publisher, true);
    transport_close(&publisher->listener);
    transport_close(&publisher->timer);
    transport_close(&publisher->event);
    transport_close(&publisher->poller);
    pthread_mutex_destroy(&publisher->lock);
    free(publisher);
}
int zc_publisher_fd(const zc_publisher *publisher) { return publisher->poller; }
const char *zc_publisher_announcement(const zc_publisher *publisher) { return publisher->announcement; }

static void consumer_of(const struct peer *peer, zc_consumer *consumer) {
    const struct wire_hello *hello = &peer->hello;
    *consumer = (zc_consumer){.served = peer->phase == SERVED, .window = hello->window, .depth = hello->depth, .memory = hello->memory,
                              .stride_align = hello->stride_align, .offset_align = hello->offset_align, .max_width = hello->max_width,
                              .max_height = hello->max_height, .num_formats = hello->num_formats};
    memcpy(consumer->name, hello->name, sizeof hello->name);
    memcpy(consumer->formats, hello->formats, sizeof hello->formats);
    memcpy(consumer->options, hello->options, sizeof hello->options);
}
size_t zc_publisher_consumers(zc_publisher *publisher, zc_consumer *list, size_t room) {
    size_t count = 0;
    pthread_mutex_lock(&publisher->lock);
    for (size_t k = 0; k < publisher->num_peers; k++)
        if (publisher->peers[k]->phase != NEW) {
            if (count < room) consumer_of(publisher->peers[k], &list[count]);
            count++;
        }
    pthread_mutex_unlock(&publisher->lock);
    return count;
}
bool zc_consumer_takes(const zc_consumer *consumer, const zc_image *image, const char *heap, char *why, size_t size) {
    struct wire_hello needs = {.memory = consumer->memory, .stride_align = consumer->stride_align, .offset_align = consumer->offset_align,
                               .max_width = consumer->max_width, .max_height = consumer->max_height, .num_formats = consumer->num_formats};
    char text[240];
    memcpy(needs.formats, consumer->formats, sizeof needs.formats);
    memcpy(needs.options, consumer->options, sizeof needs.options);
    wire_misfit(image, heap, &needs, text);
    if (size > 0) snprintf(why, size, "%s", text);
    return text[0] == '\0';
}
int zc_publisher_set_buffers(zc_publisher *publisher, const zc_image *images, size_t count) {
    const struct wire_hello anything = {.memory = ZC_DMABUF | ZC_MEMFD, .stride_align = 1, .offset_align = 1};
    struct wire_fault fault;
    if (count < publisher->reserved + 2 || count > WIRE_MAX_SLOTS)
        return transport_fail(-EINVAL, "there are %zu buffers; give %u to %d: %u are reserved, and a consumer needs 2", count, publisher->reserved + 2,
                              WIRE_MAX_SLOTS, publisher->reserved);
    for (size_t i = 0; i < count; i++)
        if (!wire_check_image(&images[i], &anything, false, &fault)) return transport_fail(-EINVAL, "image %zu: %s (rule '%s')", i, fault.text, fault.rule);
    struct buffers *buffers = calloc(1, sizeof *buffers);
    if (buffers == NULL) return transport_fail(-ENOMEM, "there is no memory for %zu slots", count);
    pthread_mutex_lock(&publisher->lock);
    int error = 0;
    if (publisher->buffers != NULL && count < publisher->buffers->count)
        error = transport_fail(-EINVAL, "there are %zu buffers; give %zu at least, as before: consumers were promised some of them", count,
                               publisher->buffers->count);
    for (size_t i = 0; i < count && error == 0; i++) {
        struct out_slot *slot = &buffers->slots[buffers->count++];
        *slot = (struct out_slot){.uid = publisher->uids++, .image = images[i], .buffers = buffers};
        for (uint32_t k = 0; k < images[i].num_buffers; k++) {
            slot->image.fds[k] = fcntl(images[i].fds[k], F_DUPFD_CLOEXEC, 3);
            if (slot->image.fds[k] < 0 && error == 0) error = transport_fail(-errno, "buffer %u of image %zu can't be duplicated: %s", k, i, strerror(errno));
        }
    }
    if (error != 0) {
        for (size_t i = 0; i < buffers->count; i++)
            for (uint32_t k = 0; k < buffers->slots[i].image.num_buffers; k++) transport_close(&buffers->slots[i].image.fds[k]);
        free(buffers);
    } else {
        retire(publisher);
        publisher->buffers = buffers;
        publisher->announced++;
        for (size_t i = 0; i < count; i++) publisher->free_slots[publisher->num_free++] = (int)i;
        for (size_t k = 0; k < publisher->num_peers;) {
            struct peer *peer = publisher->peers[k];
            const size_t before = publisher->num_peers;
            char text[240];
            if (peer->phase == WAITING) judge(publisher, peer);
            else if (peer->phase == SERVED && (wire_misfit(&images[0], publisher->heap, &peer->hello, text), text[0] != '\0'))
                refuse(publisher, peer, WIRE_UNSUITABLE, text);
            k += publisher->num_peers == before; /* else the peer was removed */
        }
        error = write_announcement(publisher);
    }
    pthread_mutex_unlock(&publisher->lock);
    return error;
}
int zc_publisher_free_slot(zc_publisher *publisher) {
    uint64_t none;
    int index = -EAGAIN;
    pthread_mutex_lock(&publisher->lock);
    if (publisher->num_free > 0) {
        index = publisher->free_slots[0];
        memmove(publisher->free_slots, publisher->free_slots + 1, --publisher->num_free * sizeof *publisher->free_slots);
        publisher->buffers->slots[index].callers = true;
    }
    if (publisher->num_free == 0) (void)!read(publisher->event, &none, sizeof none);
    pthread_mutex_unlock(&publisher->lock);
    return index;
}
int zc_publisher_publish(zc_publisher *publisher, unsigned index, const zc_frame_info *about, int fence) {
    const char *id = about->frame_id != NULL ? about->frame_id : "";
    if (strlen(id) > WIRE_MAX_FRAME_ID || !wire_is_utf8((const uint8_t *)id, strlen(id)))
        return transport_fail(-EINVAL, "frame_id has %zu bytes; it must be UTF-8 with at most 255", strlen(id));
    if (about->stamp_ns < 0 || about->stamp_ns > LAST_STAMP_NS)
        return transport_fail(-EINVAL, "stamp_ns is %jd, outside the range of a ROS time: give nanoseconds since 1970", (intmax_t)about->stamp_ns);
    if (about->captured_ns > transport_now_ns() + MOST_AHEAD_NS)
        return transport_fail(-EINVAL, "captured_ns is %jd, in the future: give a time of CLOCK_MONOTONIC", (intmax_t)about->captured_ns);
    if (fence >= 0 && !wire_is_sync_file(fence)) return transport_fail(-EINVAL, "descriptor %d is no sync_file", fence);
    struct out_frame *frame = calloc(1, sizeof *frame);
    if (frame == NULL) return transport_fail(-ENOMEM, "there is no memory for a frame");
    pthread_mutex_lock(&publisher->lock);
    struct buffers *buffers = publisher->buffers;
    struct out_slot *slot = buffers != NULL && index < buffers->count ? &buffers->slots[index] : NULL;
    frame->fence = slot != NULL && slot->callers && fence >= 0 ? fcntl(fence, F_DUPFD_CLOEXEC, 3) : -1;
    if (slot == NULL || !slot->callers || (fence >= 0 && frame->fence < 0)) {
        const int error = slot == NULL || !slot->callers ? -EINVAL : -errno;
        pthread_mutex_unlock(&publisher->lock);
        free(frame);
        return error == -EINVAL ? transport_fail(error, "slot %u is not the caller's now: take it from zc_publisher_free_slot() first", index)
                                : transport_fail(error, "the fence can't be duplicated: %s", strerror(-error));
    }
    int sent = 0;
    const int64_t now = transport_now_ns();
    slot->callers = false;
    use_slot(slot);
    frame->users = 1;
    frame->slot = slot;
    frame->told = (struct wire_frame){.uid = slot->uid, .generation = ++slot->generation, .sequence = about->sequence, .stamp_ns = about->stamp_ns,
                                      .captured_ns = about->captured_ns != 0 ? about->captured_ns : now, .published_ns = now,
                                      .capture_cost_ns = about->capture_cost_ns, .fence = fence >= 0};
    strcpy(frame->told.frame_id, id);
    for (size_t k = 0; k < publisher->num_peers; k++) {
        struct peer *peer = publisher->peers[k];
        if (peer->phase != SERVED) continue;
        frame->users++;
        peer->waiting[peer->num_waiting++] = frame;
        flush(publisher, peer);
        if (peer->num_waiting > peer->depth) drop_oldest(publisher, peer);
        sent++;
    }
    drop_frame(publisher, frame);
    pthread_mutex_unlock(&publisher->lock);
    return sent;
}

int zc_image_linear(zc_image *image, uint32_t fourcc, uint32_t width, uint32_t height, uint32_t stride_align, uint32_t offset_align) {
    uint64_t rows, row, end = 0;
    *image = (zc_image){.width = width, .height = height, .fourcc = fourcc, .num_buffers = 1, .modifier = ZC_LINEAR, .fds = {-1, -1, -1, -1}};
    if (!wire_has_size(image)) return transport_fail(-EINVAL, "format %s can't have %ux%u pixels", wire_fourcc(fourcc, (char[16]){0}), width, height);
    if (stride_align == 0) stride_align = 1;
    if (offset_align == 0) offset_align = 1;
    for (uint32_t i = 0; i < ZC_MAX_PLANES && wire_plane_rows(image, i, &rows, &row); i++) {
        const uint64_t stride = (row + stride_align - 1) / stride_align * stride_align;
        end = (end + offset_align - 1) / offset_align * offset_align;
        image->planes[image->num_planes++] = (zc_plane){0, (uint32_t)stride, end, stride * rows};
        end += stride * rows;
    }
    image->buffer_size[0] = end;
    if (image->num_planes == 0) return transport_fail(-EINVAL, "format %s is not in docs/linear_formats.md", wire_fourcc(fourcc, (char[16]){0}));
    return 0;
}
int zc_memfd(const char *name, size_t size, void **map) {
    const int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, (off_t)size) != 0) goto failed;
    *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (*map == MAP_FAILED) goto failed;
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | 16 /* F_SEAL_FUTURE_WRITE */) == 0) return fd;
    munmap(*map, size);
failed:;
    const int error = errno;
    if (fd >= 0) close(fd);
    return transport_fail(-error, "no memfd of %zu bytes: %s", size, strerror(error));
}
