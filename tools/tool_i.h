/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tool_i.h - what the subcommands of `singvgpu` share: messages, numbers, places
 *
 * Functions return 0 (or the stated value) or -errno. Some also print the reason; their comments
 * say which.
 */
#ifndef TOOL_I_H
#define TOOL_I_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

/* Exit statuses of our own failures, as env(1) and timeout(1) have them. */
#define EXIT_USAGE	2
#define EXIT_OURS	125	/* singvgpu itself failed */
#define EXIT_NOEXEC	126	/* the command was found but cannot be executed */
#define EXIT_NOTFOUND	127

int run_main(int argc, char **argv);
int ps_main(int argc, char **argv);
int top_main(int argc, char **argv);
int report_main(int argc, char **argv);
int doctor_main(int argc, char **argv);
int trace_main(int argc, char **argv);
int warm_main(int argc, char **argv);
int store_main(int argc, char **argv);
int checkpoint_main(int argc, char **argv);
int restore_main(int argc, char **argv);
int migrate_main(int argc, char **argv);
int resize_main(int argc, char **argv);

/* ----------------------------------------------------------------------------- say.c */

/*
 * Prints the line "singvgpu: …" on stderr, in one write. Nothing here waits for a reader of stderr that
 * has stopped (message.h).
 */
void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The same, with ": " and the description of err (positive or negative errno) behind it. */
void say_errno(int err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Prints a usage error and where to find help. Returns EXIT_USAGE. */
int say_usage(const char *command, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* What takes a line, without its newline, as say() does: code that prints nothing gets one from its caller. */
typedef void tell_line(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Hands it whole lines, one after the other; NULL: none. */
void tell_lines(tell_line *tell, const char *text);

/* Prints lines as they are. */
void say_text(const char *text, size_t len);
/* Prints a picture that the next one replaces; false: it was left out, since the reader is slow. */
bool say_picture(const char *text, size_t len);
/* Before _exit() or exec: leaves a slow reader a second. A process that returns from main does it. */
void say_finish(void);

/* "64M", "1.5G", "4096" to bytes: units of 1024. 0 or -EINVAL, -ERANGE. */
int parse_size(const char *text, uint64_t *bytes);
/* A whole decimal number. 0 or -EINVAL, -ERANGE. */
int parse_int(const char *text, long least, long most, long *value);
/* Seconds with a fraction, to ms. 0 or -EINVAL, -ERANGE. */
int parse_seconds(const char *text, long *ms);

/* show_size: 1536 to "1.5K". show_count: units of 1000, for other quantities. Return buf[16]. */
char *show_size(char *buf, uint64_t bytes);
char *show_count(char *buf, uint64_t n);
char *show_age(char *buf, uint64_t seconds);

uint64_t now_ms(void);		/* CLOCK_MONOTONIC */
uint64_t wall_ns(void);		/* CLOCK_REALTIME */

/* ------------------------------------------------------------------------------ json.c */

struct json {
	FILE *out;
	int depth;
	bool some[16];		/* the open object or array at this depth has a member */
};

/* key is NULL within an array. Text that is not UTF-8 is written byte for byte as U+00XX. */
void json_open(struct json *j, const char *key, char kind);	/* '{' or '[' */
void json_close(struct json *j, char kind);			/* '}' or ']' */
void json_string(struct json *j, const char *key, const char *text);
void json_number(struct json *j, const char *key, double n);
void json_uint(struct json *j, const char *key, uint64_t n);
void json_int(struct json *j, const char *key, int64_t n);
void json_bool(struct json *j, const char *key, bool b);
void json_text(FILE *out, const char *text, size_t len);	/* "…" with escapes */

/* ---------------------------------------------------------------------------- places.c */

struct places {
	char *libdir;		/* the stand-ins: libcuda.so.1 … */
	char *proxy;		/* singvgpu-proxy */
	char *softcuda;		/* libsoftcuda.so */
	char *init;		/* singvgpu-init */
	bool given;		/* libdir is from $SINGVGPU_LIBDIR */
	bool built;		/* this program is in its build tree, not installed */
};

/* Finds these files beside this program, or at $SINGVGPU_LIBDIR and $SINGVGPU_PROXY. */
int places_find(struct places *p);
void places_free(struct places *p);

/* NVIDIA's own libcuda.so.1, not a stand-in of libdir; malloc'ed, or NULL. */
char *places_nvidia(const struct places *p);
/* The number of devices that NVIDIA's kernel driver shows; 0 without that driver. */
int places_nvidia_devices(void);

/* ---------------------------------------------------------------------------- family.c */

/*
 * Descendants of the calling process, which must be their subreaper, without the processes in
 * except[] and their descendants; an entry -pid leaves out that process alone. Pids are those of
 * the caller's namespace. family_count: returns the number, and puts the first few names in
 * names[].
 */
int family_count(const pid_t *except, int n_except, char *names, size_t size);
/* Sends sig to these descendants. Returns their number. */
int family_kill(const pid_t *except, int n_except, int sig);
/*
 * Living descendants of any process: kin[i][0], and the child of root's that it is or descends from, kin[i][1]. Returns
 * their number, at most `most`; 0 if /proc shows other pids than ours.
 */
int family_list(pid_t root, pid_t (*kin)[2], int most);
/* Our pid of the process in root's tree that has pid inner in root's namespace; 0: none. */
pid_t family_find(pid_t root, pid_t inner);
/* The command name of a process, or "?"; buf[32]. */
char *family_name(pid_t pid, char *buf);
/* The state letter of any process, 0 if there is no such process; parent may be NULL. */
char family_state(pid_t pid, pid_t *parent);
/* There is no such process, or it is a zombie. */
bool family_has_ended(pid_t pid);

#endif
