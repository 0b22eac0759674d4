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
/* The folder with the producers' sockets and announcements, which docs/wire.md describes. */
#ifndef ZC_FOLDER_H
#define ZC_FOLDER_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/un.h>

enum { FOLDER_MAX_FILE = 16384, FOLDER_MAX_SOCKET = sizeof(((struct sockaddr_un *)0)->sun_path) };

/* The fields of an announcement that a consumer needs. */
struct announcement {
    char publisher_id[33];
    char socket[FOLDER_MAX_SOCKET]; /* path; "": this publisher shares no memory */
    uint64_t generation;
};

/* Write the folder's path; false: it is too long. */
bool folder_path(char path[PATH_MAX]);
/* Return the ROS domain. wanted > 0: wanted; wanted == 0: the one in ROS_DOMAIN_ID, or 0; wanted < 0: 0. */
int folder_domain(int wanted);
/* Write this host's id, 32 hexadecimal digits, which changes with each boot; false: it can't be read. */
bool folder_host_id(char id[33]);
/* Parse the JSON object in text; false: it is no announcement of version 1 by a publisher on this host. */
bool folder_parse(const char *text, struct announcement *found);
/* Parse an announcement's file; false: it is for another topic or domain, or its socket isn't the one of the same name in folder. */
bool folder_read(const char *folder, const char *file, const char *topic, int domain, struct announcement *found);
/* Append text as a JSON string to the string in out; false: out is too small. */
bool folder_quote(char *out, size_t size, const char *text);

#endif
