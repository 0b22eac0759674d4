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
#define _GNU_SOURCE
#include "transport.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static __thread char last_error[512];

const char *zc_error(void) { return last_error; }

int transport_fail(int error, const char *format, ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(last_error, sizeof last_error, format, values);
    va_end(values);
    return error;
}
int64_t transport_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}
void transport_close(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}
void transport_close_fds(struct packet *packet) {
    while (packet->num_fds > 0) close(packet->fds[--packet->num_fds]);
}

bool transport_fetch(int sock, struct packet *packet) {
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(WIRE_MAX_FDS * sizeof(int))];
    } control;
    struct iovec part = {packet->bytes, sizeof packet->bytes};
    struct msghdr message;
    ssize_t length;
    bool reset = false, again;
    do {
        message = (struct msghdr){.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
        length = recvmsg(sock, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        again = length < 0 && (errno == EINTR || (errno == ECONNRESET && !reset)); /* after a reset the peer's last packets can still be read */
        reset = reset || (length < 0 && errno == ECONNRESET);
    } while (again);
    packet->error = length < 0 ? errno : 0;
    packet->length = length < 0 ? 0 : (size_t)length;
    packet->num_fds = 0;
    packet->flags = length < 0 ? 0 : message.msg_flags;
    for (struct cmsghdr *each = length < 0 ? NULL : CMSG_FIRSTHDR(&message); each != NULL; each = CMSG_NXTHDR(&message, each)) {
        if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS) continue;
        const size_t count = (each->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count && packet->num_fds < WIRE_MAX_FDS; i++)
            memcpy(&packet->fds[packet->num_fds++], CMSG_DATA(each) + i * sizeof(int), sizeof(int));
    }
    return length >= 0;
}
enum received transport_receive(int sock, struct packet *packet, struct wire_fault *fault) {
    if (!transport_fetch(sock, packet)) return packet->error == EAGAIN || packet->error == EWOULDBLOCK ? RECEIVED_NOTHING : RECEIVED_END;
    if (packet->flags & (MSG_TRUNC | MSG_CTRUNC)) {
        transport_close_fds(packet);
        wire_broken(fault, WIRE_RULE, packet->flags & MSG_TRUNC ? "packet" : "control",
                    "a packet too long, or with more descriptors than 4 or than this process may still open (RLIMIT_NOFILE)");
        return RECEIVED_BROKEN;
    }
    if (packet->length > 0) return RECEIVED_PACKET;
    transport_close_fds(packet);
    return RECEIVED_END;
}

int transport_send(int sock, const uint8_t *bytes, size_t length, const int *fds, size_t num_fds) {
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(WIRE_MAX_FDS * sizeof(int))];
    } control = {.bytes = {0}};
    struct iovec part = {(void *)(uintptr_t)bytes, length};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (num_fds > 0) {
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE(num_fds * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        *header = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(num_fds * sizeof(int))};
        memcpy(CMSG_DATA(header), fds, num_fds * sizeof(int));
    }
    ssize_t sent;
    do sent = sendmsg(sock, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    if (sent >= 0) return 0;
    return errno == EWOULDBLOCK ? -EAGAIN : errno == ECONNRESET ? -EPIPE : -errno;
}
