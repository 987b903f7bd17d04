// SPDX-License-Identifier: Apache-2.0
/*
 * seating.c - the table of who sits where
 */
#include <errno.h>
#include <string.h>

#include "seating.h"

void seating_make(struct seating *t, int ranks, int devices)
{
	memset(t, 0, sizeof(*t));
	t->ranks = ranks;
	t->devices = devices;
	for (int r = 0; r < ranks; r++) {
		t->rank[r].local = r;
		t->rank[r].first = r % devices;
		for (int l = 0; l < SEATING_DEVICES; l++)
			t->rank[r].physical[l] = l;
	}
}

static const char *const share_word[] = { "", "auto", "together", "slices", "never" };

enum seating_share seating_share_parse(const char *word)
{
	for (int i = SHARE_AUTO; i <= SHARE_NEVER; i++)
		if (!strcmp(word, share_word[i]))
			return i;
	return SHARE_UNSAID;
}

const char *seating_share_word(enum seating_share share)
{
	return share_word[share];
}

void seating_let_share(struct seating *t, enum seating_share share, enum seating_share how)
{
	t->share = share;
	t->slices = (share == SHARE_AUTO ? how : share) == SHARE_SLICES;
}

int seating_on_parse(const char *text, struct seating_on *on)
{
	struct seating_on new = { .given = true };
	const char *at = text;
	unsigned int device;
	int n, used;

	for (n = 0; *at; n++) {
		used = 0;
		if (*at < '0' || *at > '9' || sscanf(at, "%2u%n", &device, &used) != 1 || !used || n == SEATING_DEVICES)
			return -EINVAL;
		at += used;
		if (!n && !*at) {		/* a count */
			new.count = (int)device;
			break;
		}
		if (device >= SEATING_DEVICES || (*at && *at != ','))
			return -EINVAL;
		new.physical[n] = device;
		if (*at && !at[1] && n)		/* a comma at the end of a list */
			return -EINVAL;
		at += *at == ',';
	}
	if (!*text || new.count > SEATING_DEVICES)
		return -EINVAL;
	if (!strchr(text, ',') && !new.count)
		return -ERANGE;
	new.listed = n > 1 ? n : 0;
	*on = new;
	return 0;
}

int seating_on_end(const struct seating_on *on)
{
	int end = on->count;

	for (int l = 0; !on->count && l < (on->listed ?: 1); l++)
		if (on->physical[l] >= end)
			end = on->physical[l] + 1;
	return on->given ? end : 0;
}

int seating_on_map(const struct seating_on *on, int devices, int here, uint8_t map[SEATING_DEVICES], struct why *why)
{
	int end = seating_on_end(on);

	if (devices < 1 || devices > SEATING_DEVICES)
		return why_set(why, -EINVAL, "a job's devices can be chosen if it has 1 to %d of them, and this one has %d", SEATING_DEVICES,
			       devices);
	if (on->count > devices)
		return why_set(why, -EINVAL, "--on %d: the job has %d device%s, which can be on 1 to %d; --on %d, with a comma "
			       "puts all on device %d", on->count, devices, devices > 1 ? "s" : "", devices, on->count, on->count);
	if (on->listed && on->listed != devices)
		return why_set(why, -EINVAL, "a list of %d devices, and the job has %d: one for each, please", on->listed, devices);
	if (here && end > here)
		return why_set(why, -EINVAL, "there is no device %d here, there %s %d", end - 1, here > 1 ? "are" : "is", here);
	for (int l = 0; l < SEATING_DEVICES; l++)
		map[l] = l >= devices ? l : on->count ? l * on->count / devices : on->physical[on->listed ? l : 0];
	return 0;
}

void seating_put(struct seating *t, const uint8_t map[SEATING_DEVICES])
{
	for (int r = 0; r < t->ranks; r++)
		memcpy(t->rank[r].physical, map, sizeof(t->rank[r].physical));
}

int seating_device(const struct seating_where *w, int rank, int physical)
{
	if (w->all)
		return w->first + rank;
	if (physical >= 0 && physical < SEATING_DEVICES && w->instead[physical])
		return w->instead[physical] - 1;
	return physical;
}

void seating_move(struct seating *t, int rank, int logical, int physical)
{
	if (rank < t->ranks && logical >= 0 && logical < SEATING_DEVICES && physical >= 0 && physical < SEATING_DEVICES)
		t->rank[rank].physical[logical] = physical;
}

void seating_instead(struct seating *t, const struct seating_where *w)
{
	for (int r = 0; r < t->ranks; r++)
		for (int l = 0; l < SEATING_DEVICES; l++) {
			uint8_t *p = &t->rank[r].physical[l];

			if (w->instead[*p])
				*p = w->instead[*p] - 1;
		}
}

int seating_physical(const struct seating *t, int rank, int logical)
{
	return t->rank[rank].physical[logical];
}

int seating_sharers(const struct seating *t, int host, int physical)
{
	int n = 0;

	for (int r = 0; r < t->ranks; r++)
		n += seating_host(t, r) == host && t->rank[r].physical[t->rank[r].first] == physical;
	return n;
}

int seating_crowded(const struct seating *t)
{
	for (int r = 0; r < t->ranks; r++) {
		int physical = t->rank[r].physical[t->rank[r].first];

		if (seating_sharers(t, seating_host(t, r), physical) > 1)
			return physical;
	}
	return -1;
}

bool seating_is_plain(const struct seating *t, int rank)
{
	for (int l = 0; l < SEATING_DEVICES; l++)
		if (t->rank[rank].physical[l] != l)
			return false;
	return true;
}

static void put(char *text, size_t size, int i, int n)
{
	size_t at = strlen(text);

	snprintf(text + at, size - at, "%s%d", i ? "," : "", n);
}

void seating_map_text(const struct seating *t, int rank, char *text, size_t size)
{
	*text = '\0';
	for (int l = 0; l < SEATING_DEVICES; l++)
		put(text, size, l, t->rank[rank].physical[l]);
}

void seating_sharers_text(const struct seating *t, int rank, char *text, size_t size)
{
	*text = '\0';
	for (int d = 0; d < SEATING_DEVICES; d++)
		put(text, size, d, seating_sharers(t, seating_host(t, rank), d));
}

int seating_host(const struct seating *t, int rank)
{
	return t->rank[rank].host;
}

int seating_local_size(const struct seating *t, int rank)
{
	int n = 0;

	for (int r = 0; r < t->ranks; r++)
		n += seating_host(t, r) == seating_host(t, rank);
	return n;
}

bool seating_one_host(const struct seating *t)
{
	return !t->ranks || seating_local_size(t, 0) == t->ranks;
}

const char *seating_master(const struct seating *t)
{
	(void)t;	/* a restore refuses a table of several hosts */
	return "127.0.0.1";
}

int seating_seat(struct seating *t, int seat)
{
	int i = seat < 0 ? 0 : seat, end = seat < 0 ? SEATING_SEATS : i + 1;

	for (; i < end && i < SEATING_SEATS; i++)
		if (!t->taken[i]) {
			t->taken[i] = true;
			return i;
		}
	return -EAGAIN;
}

void seating_leave(struct seating *t, int seat)
{
	if (seat >= 0 && seat < SEATING_SEATS)
		t->taken[seat] = false;
}

void seating_write(const struct seating *t, FILE *out)
{
	char map[4 * SEATING_DEVICES];

	if (t->ranks && t->devices)
		fprintf(out, "logical %d\n", t->devices);
	/* Who takes turns since an older version has started the job shall go on to. */
	if (t->ranks && (t->share || t->slices))
		fprintf(out, "share %s %s\n", seating_share_word(t->share ?: SHARE_SLICES),
			seating_share_word(t->slices ? SHARE_SLICES : SHARE_TOGETHER));
	for (int r = 0; r < t->ranks; r++) {
		seating_map_text(t, r, map, sizeof(map));
		fprintf(out, "place %d %d %d %d %s\n", r, seating_host(t, r), t->rank[r].local, t->rank[r].first, map);
	}
}

bool seating_has(const char *line)
{
	return !strncmp(line, "place ", 6) || !strncmp(line, "logical ", 8) || !strncmp(line, "share ", 6);
}

/* "logical DEVICES", once. */
static int read_devices(struct seating *t, const char *line)
{
	int n, used = -1;

	if (sscanf(line, "logical %d%n", &n, &used) != 1 || used < 0 || line[used] || n < 1 || n > SEATING_DEVICES || t->devices)
		return -EBADMSG;
	t->devices = n;
	return 0;
}

/* "share WANTED DONE", once. */
static int read_share(struct seating *t, const char *line)
{
	char wanted[16], done[16];
	enum seating_share how;
	int used = -1;

	if (sscanf(line, "share %15s %15s%n", wanted, done, &used) != 2 || used < 0 || line[used] || t->share)
		return -EBADMSG;
	how = seating_share_parse(done);
	t->share = seating_share_parse(wanted);
	t->slices = how == SHARE_SLICES;
	return t->share && (t->slices || how == SHARE_TOGETHER) ? 0 : -EBADMSG;
}

int seating_read(struct seating *t, const char *line)
{
	int r, host, local, first, used = -1;
	struct seating_rank to = { 0 };

	if (*line == 'l')
		return read_devices(t, line);
	if (*line == 's')
		return read_share(t, line);
	if (sscanf(line, "place %d %d %d %d %n", &r, &host, &local, &first, &used) != 4 || used < 0 || r != t->ranks ||
	    r >= SEATING_RANKS || host < 0 || host >= SEATING_HOSTS || local < 0 || local >= SEATING_RANKS || first < 0 ||
	    first >= SEATING_DEVICES)
		return -EBADMSG;
	for (int k = 0; k < t->ranks; k++)
		if (seating_host(t, k) == host && t->rank[k].local == local)
			return -EBADMSG;
	to.host = host;
	to.local = local;
	to.first = first;
	line += used;
	for (int l = 0; l < SEATING_DEVICES; l++) {
		int device, n = -1;

		if (sscanf(line, "%d%n", &device, &n) != 1 || n < 0 || device < 0 || device >= SEATING_DEVICES ||
		    line[n] != (l + 1 < SEATING_DEVICES ? ',' : '\0'))
			return -EBADMSG;
		to.physical[l] = device;
		line += n + 1;
	}
	t->rank[t->ranks++] = to;
	return 0;
}
