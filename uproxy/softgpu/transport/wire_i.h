/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire_i.h - links: one-way queues of messages from a device to another one
 *
 *   sender                                        receiver
 *   link_connect ── unix: hello, memory ────────► wire.c accepts: maps the memory
 *                └─ TCP: hello, frames ─────────► wire.c accepts: reads frames
 *
 * The sender makes the link when it has its first message, and the receiver finds what was written
 * meanwhile. Both ends are of the transports' owners. A link ends with its socket.
 *
 * A byte on the socket of memory wakes the other end. An eventfd would be faster, but is not ours: its
 * owner could fill it and make it block whoever rings.
 *
 * Memory of a link (memlink.c): a page of control, ENTRIES entries, SLOTS slots. An entry is a
 * message; data of more than 64 bytes lies in a slot. The sender alone writes entries, whose seq it
 * stores last, and slots that are free; the receiver frees slots, in any order. So a sender that is
 * killed leaves nothing half done that could be taken for a message, and blocks no other sender.
 */
#ifndef WIRE_I_H
#define WIRE_I_H

#include "transport_i.h"

#define ENTRIES 256u
#define SLOTS   24u
#define INLINE  64u /* bytes of data in an entry */
#define FRAMES  (8u * (CHUNK + sizeof(struct msg))) /* bytes of a buffer of TCP */

struct entry {
	struct msg msg;
	uint64_t word; /* data of up to 8 bytes */
	uint32_t slot;
	uint32_t seq; /* the entry's number + 1, when the rest is there */
	char data[INLINE];
};

_Static_assert(sizeof(struct entry) == 128, "an entry is two cache lines");

/* Each line has one writer, but for sleeps and waits, which the other side clears. */
struct link_memory {
	_Alignas(64) uint32_t taken; /* entries; receiver */
	_Alignas(64) uint32_t sleeps; /* the receiver does, or is about to */
	_Alignas(64) uint32_t waits; /* the sender waits for room, and may sleep */
	_Alignas(64) uint8_t busy[64]; /* slots: set by the sender, cleared by the receiver */
	_Alignas(64) uint32_t cpu; /* where the sender's thread was when it last waited; + 1 */
	_Alignas(4096) struct entry entry[ENTRIES];
	_Alignas(4096) char slot[SLOTS][CHUNK];
};

_Static_assert(SLOTS <= 64, "a slot has a byte");

enum link_kind { LINK_NONE, LINK_MEMORY, LINK_TCP };

/* What an address says. Numbers are of the host: a job's hosts have one byte order. */
#define ADDRESSES 8
#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
struct address {
	uint64_t host, net; /* the same: a socket in memory can be reached */
	uint8_t name[16]; /* of that socket */
	uint8_t key[16]; /* whoever says hello has to know it */
	uint16_t port, n; /* TCP */
	uint32_t zero;
	struct {
		uint8_t family, bits, zero[2]; /* 4 or 6 */
		uint8_t ip[16];
	} tcp[ADDRESSES];
};

_Static_assert(sizeof(struct address) <= TRANSPORT_ADDRESS_MAX, "an address fits");

#define HELLO_MAGIC 0x6f6c6c65686d6d32ull

struct hello {
	uint64_t magic;
	uint8_t key[16];
	uint32_t from, size; /* size: of struct link_memory, as a check of versions */
};
#pragma GCC diagnostic pop

_Static_assert(sizeof(struct address) == 216, "goes through the board");
_Static_assert(sizeof(struct hello) == 32, "goes through a socket");

/* A message without data that found no room. */
struct later {
	struct later *next;
	struct msg msg;
};

struct link {
	struct transport *c;
	uint32_t device;
	enum link_kind kind;
	bool out, lost;
	bool refused; /* it has sent nonsense: nothing more of it is read */
	uint64_t since; /* in: when it was accepted; out: when it was found lost; now_ns() or 0 */
	bool greeted; /* in: hello has come; out: it can be sent to */
	bool wants; /* out: an operation found no room */
	int fd;
	uint32_t listed; /* in: index in wire's list */

	struct link_memory *mem;
	uint32_t at, taken; /* entries; taken: as last seen by the sender */
	uint32_t slot; /* where the sender looks next */
	uint32_t held; /* slots that the receiver keeps */

	char *buffer; /* TCP: frames */
	size_t from, to; /* what is in it */
	uint32_t tried; /* addresses */
	struct address peer;
	struct later *later, **later_end; /* out */
};

struct wire {
	int epoll, unix_fd, tcp_fd;
	struct address self;
	struct link *out[TRANSPORT_DEVICES_MAX];
	struct link **in; /* greeted and other ones */
	uint32_t nin, room_in;
	uint32_t tcp; /* links of TCP */
	uint32_t wants; /* links on which somebody waits for room, or for a connection */
	uint32_t polls;
	uint32_t cpu; /* what the links say; + 1 */
	uint64_t parted; /* when the thread last went to another processor, or looked for one */
	bool lost; /* some link is */
	bool told[TRANSPORT_DEVICES_MAX]; /* the user, of nonsense */
	bool barrier; /* the kernel has expedited barriers */
};

/* link.c */
void link_free(struct link *l);
/* Makes the link to a device, which may come later: not `greeted` until then. -EHOSTUNREACH, -ENOMEM. */
int link_connect(struct transport *c, uint32_t device, struct link **out);
/* Tries again, where the other end had no place for a connection. -EAGAIN: it still has none. */
int link_again(struct link *l);
/* Something can be read or written on its socket. false: it has ended. */
bool link_event(struct link *l, uint32_t events);
int wire_listen(struct transport *c, struct why *why);
bool wire_accept(struct transport *c, int fd);

/* memlink.c: memory_take: whether there was a message. */
int memory_make(struct link *l, int *fd);
int memory_map(struct link *l, int fd);
bool memory_room(struct link *l, uint32_t len);
void memory_put(struct link *l, const struct msg *m, struct op *op, const struct flow_out *out);
bool memory_take(struct link *l);
bool memory_has(const struct link *l);
void memory_release(struct link *l, void *data);

/* tcplink.c: false: the link has ended. */
bool tcp_room(const struct link *l);
void tcp_put(struct link *l, const struct msg *m, struct op *op, const struct flow_out *out);
bool tcp_flush(struct link *l);
bool tcp_read(struct link *l, bool *any);
/* Connects to the next address; -EHOSTUNREACH: there is none. */
int tcp_connect(struct link *l);

#endif /* WIRE_I_H */
