// SPDX-License-Identifier: Apache-2.0
/*
 * fakeclient.c - replaces a CUDA program in tests of the launcher: connects, and prints the replies
 *
 * fakeclient N SECONDS: makes N connections, and holds them for SECONDS. Prints a line for each:
 * "connected WHY", "refused ERRNO WHY", "hung up". Ends with status 4 as soon as one of its proxies
 * is gone.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto.h"

static int open_one(void)
{
	struct sv_connect req = { .magic = SV_CONNECT_MAGIC, .version = SV_PROTO_VERSION, .device = -1,
				  .api = 13000 };
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	struct sv_connected reply;

	snprintf(a.sun_path, sizeof(a.sun_path), "%s", getenv("SINGVGPU_SOCKET") ?: "");
	if (fd < 0 || connect(fd, (void *)&a, sizeof(a))) {
		printf("unreachable: %s\n", strerror(errno));
		return -1;
	}
	send(fd, &req, sizeof(req), MSG_NOSIGNAL);
	if (recv(fd, &reply, sizeof(reply), MSG_WAITALL) != sizeof(reply)) {
		puts("hung up");
	} else if (reply.status) {
		printf("refused %d %s\n", -reply.status, reply.why);
	} else {
		printf("connected %s\n", reply.why);
		return fd;
	}
	close(fd);
	return -1;
}

int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 1, served = 0;
	struct pollfd *p = calloc(n, sizeof(*p));

	for (int i = 0; i < n; i++) {
		p[i] = (struct pollfd){ .fd = open_one(), .events = POLLIN };
		served += p[i].fd >= 0;
	}
	fflush(stdout);
	if (!served)
		return 3;
	return poll(p, n, (argc > 2 ? atof(argv[2]) : 0) * 1000) ? 4 : 0;
}
