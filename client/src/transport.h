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
/* Send and receive packets and descriptors over a SOCK_SEQPACKET socket; other small functions that client and publisher share. */
#ifndef ZC_TRANSPORT_H
#define ZC_TRANSPORT_H

#include <sys/types.h>

#include "wire.h"

/* A received packet with its descriptors, which the caller must close. */
struct packet {
    uint8_t bytes[WIRE_MAX_PACKET];
    size_t length;
    int fds[WIRE_MAX_FDS];
    size_t num_fds;
    int flags; /* the flags that recvmsg() set */
    int error; /* errno if nothing was received, else 0 */
};
enum received { RECEIVED_NOTHING, RECEIVED_PACKET, RECEIVED_END, RECEIVED_BROKEN };

/* Read one packet, without waiting and without checking it; true: a packet, or the socket's end, which has length 0. All fields except bytes are
 * always set. */
bool transport_fetch(int sock, struct packet *packet);
/* Read the next packet without waiting; RECEIVED_BROKEN: the packet was truncated. */
enum received transport_receive(int sock, struct packet *packet, struct wire_fault *fault);
/* Send one packet without waiting. Return 0; -EAGAIN: the socket is full; -EPIPE: the peer has ended, but its last messages can still be read; or
 * another negative errno value. */
int transport_send(int sock, const uint8_t *bytes, size_t length, const int *fds, size_t num_fds);
void transport_close_fds(struct packet *packet);
void transport_close(int *fd);
int64_t transport_now_ns(void);
/* Set the sentence that zc_error() returns; return error. */
__attribute__((format(printf, 2, 3))) int transport_fail(int error, const char *format, ...);

#endif
