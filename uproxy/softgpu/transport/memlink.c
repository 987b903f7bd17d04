// SPDX-License-Identifier: Apache-2.0
/*
 * memlink.c - links in shared memory
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "wire_i.h"

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static int map(struct link *l, int fd)
{
	void *mem = mmap(NULL, sizeof(*l->mem), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (mem == MAP_FAILED)
		return -ENOMEM;
	l->mem = mem;
	return 0;
}

int memory_make(struct link *l, int *out)
{
	int fd = memfd_create("singvgpu-link", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int rc;

	if (fd < 0)
		return -ENOMEM;
	rc = ftruncate(fd, sizeof(*l->mem)) || fcntl(fd, F_ADD_SEALS, SEALS) ? -ENOMEM : map(l, fd);
	if (rc)
		close(fd);
	else
		*out = fd;
	return rc;
}

/* What another process has made. Sealed, it cannot shrink under our reads. */
int memory_map(struct link *l, int fd)
{
	int seals = fcntl(fd, F_GET_SEALS);	/* -1: a file that cannot be sealed */
	struct stat st;

	if (fstat(fd, &st) || st.st_size != sizeof(*l->mem) || seals < 0 || (seals & SEALS) != SEALS)
		return -EPROTO;
	return map(l, fd);
}

static void ring(const struct link *l, uint32_t *flag)
{
	/* pairs with itself: each mark rings once */
	if (__atomic_exchange_n(flag, 0, __ATOMIC_ACQ_REL) &&
	    send(l->fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		return; /* it has rung so often that it cannot be missed, or has gone */
}

static bool find_slot(struct link *l)
{
	for (uint32_t i = 0; i < SLOTS; i++) {
		uint32_t slot = (l->slot + i) % SLOTS;

		/* Pairs with memory_release(): the receiver has read what was there. */
		if (!__atomic_load_n(&l->mem->busy[slot], __ATOMIC_ACQUIRE)) {
			l->slot = slot;
			return true;
		}
	}
	return false;
}

bool memory_room(struct link *l, uint32_t len)
{
	if (l->at - l->taken >= ENTRIES) {
		/* Pairs with memory_take(). */
		l->taken = __atomic_load_n(&l->mem->taken, __ATOMIC_ACQUIRE);
		if (l->at - l->taken >= ENTRIES)
			return false;
	}
	return len <= INLINE || find_slot(l);
}

void memory_put(struct link *l, const struct msg *m, struct op *op, const struct flow_out *out)
{
	struct entry *e = &l->mem->entry[l->at % ENTRIES];
	void *data = m->len <= sizeof(e->word) ? &e->word : (void *)e->data;

	e->msg = *m;
	if (m->len > INLINE) {
		data = l->mem->slot[l->slot];
		__atomic_store_n(&l->mem->busy[l->slot], 1, __ATOMIC_RELAXED);
		e->slot = l->slot;
		l->slot = (l->slot + 1) % SLOTS;
	}
	if (m->len)
		flow_pack(op, out, m->first, data, m->len / out->size);
	/* Pairs with memory_has(). */
	__atomic_store_n(&e->seq, ++l->at, __ATOMIC_RELEASE);
	/*
	 * The receiver stores sleeps, has a barrier executed on this processor, too, and looks again
	 * (wire_rest()): so no barrier is needed here.
	 */
	if (__atomic_load_n(&l->mem->sleeps, __ATOMIC_RELAXED))
		ring(l, &l->mem->sleeps);
}

bool memory_has(const struct link *l)
{
	/* Pairs with memory_put(). */
	return __atomic_load_n(&l->mem->entry[l->at % ENTRIES].seq, __ATOMIC_ACQUIRE) == l->at + 1;
}

void memory_release(struct link *l, void *data)
{
	uint32_t slot = ((char *)data - l->mem->slot[0]) / CHUNK;

	/* Pairs with find_slot(). */
	__atomic_store_n(&l->mem->busy[slot], 0, __ATOMIC_RELEASE);
	if (__atomic_load_n(&l->mem->waits, __ATOMIC_RELAXED))
		ring(l, &l->mem->waits);
}

bool memory_take(struct link *l)
{
	struct entry *e = &l->mem->entry[l->at % ENTRIES];
	void *data = NULL;
	struct msg m;
	uint32_t at;
	bool slot;

	if (!memory_has(l))
		return false;
	/* The sender can change the entry at any time: what is checked here is read once. */
	m = e->msg;
	at = __atomic_load_n(&e->slot, __ATOMIC_RELAXED);
	__asm__ volatile("" : "+m"(m));
	slot = m.len > INLINE;
	if (m.len > CHUNK || (slot && at >= SLOTS) || m.from != l->device) {
		wire_refuse(l->c, l->device, "a message with a wrong length, slot or sender");
		return true;
	}
	data = slot ? l->mem->slot[at] : m.len <= sizeof(e->word) ? (void *)&e->word : e->data;
	/* What is kept may not take all slots: then it is copied. */
	if (!flow_message(l->c, &m, data, slot && l->held < SLOTS / 2 ? l : NULL, m.len)) {
		if (slot)
			memory_release(l, data);
	} else {
		l->held++;
	}
	/* Pairs with memory_room(). */
	__atomic_store_n(&l->mem->taken, ++l->at, __ATOMIC_RELEASE);
	if (__atomic_load_n(&l->mem->waits, __ATOMIC_RELAXED))
		ring(l, &l->mem->waits);
	return true;
}
