// SPDX-License-Identifier: Apache-2.0
/*
 * strays.c - programs without singvgpu, without a job: which files use CUDA, what is said of a program, and the notes
 * that a supervisor gets; and pipes that a command was started with, which others have, too
 */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "child.h"
#include "ckpt_i.h"
#include "ckpt_save.h"
#include "job.h"
#include "stray.h"
#include "strays.h"

#include "kselftest_harness.h"

static char dir[] = "/tmp/straysXXXXXX";

static void begin(void)
{
	if (!mkdtemp(dir) || chmod(dir, 0755) || chdir(dir))
		abort();
}

static void finish(void)
{
	char command[64];

	snprintf(command, sizeof(command), "/bin/rm -rf %s", dir);
	if (chdir("/") || system(command))
		abort();
}

static void write_program(const char *name, const void *bytes, size_t n, int mode)
{
	int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0700);

	if (write(fd, bytes, n) != (ssize_t)n || fchmod(fd, mode))
		abort();
	close(fd);
}

/* ------------------------------------------------------------------------------ programs */

#define SECTIONS 40

/* A program with sections, of which the last one is kernels'; and one that needs a library. */
static struct {
	Elf64_Ehdr e;
	Elf64_Shdr s[SECTIONS];
	char names[64];
} kernels, kernels_were;

static struct {
	Elf64_Ehdr e;
	Elf64_Phdr p[3];
	Elf64_Dyn d[4];
	char strings[64];
} needs, needs_were;

static void make_programs(void)
{
	const Elf64_Ehdr e = { .e_ident = { ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64 } };

	memset(&kernels, 0, sizeof(kernels));
	kernels.e = e;
	kernels.e.e_shoff = sizeof(e);
	kernels.e.e_shentsize = sizeof(*kernels.s);
	kernels.e.e_shnum = SECTIONS;
	kernels.e.e_shstrndx = 1;
	memcpy(kernels.names, "\0.text\0.nv_fatbin", 18);
	kernels.s[1] = (Elf64_Shdr){ .sh_offset = kernels.names - (char *)&kernels, .sh_size = 18 };
	kernels.s[SECTIONS - 1].sh_name = 7;
	kernels_were = kernels;
	memset(&needs, 0, sizeof(needs));
	needs.e = e;
	needs.e.e_phoff = sizeof(e);
	needs.e.e_phentsize = sizeof(*needs.p);
	needs.e.e_phnum = 3;
	/* The strings are loaded behind an address that is none of the file; the entry before them names one. */
	needs.p[0] = (Elf64_Phdr){ .p_type = PT_LOAD, .p_vaddr = 0x1000, .p_filesz = 16, .p_offset = 8 };
	needs.p[1] = (Elf64_Phdr){ .p_type = PT_LOAD, .p_vaddr = 0x400000, .p_filesz = sizeof(needs.strings),
				   .p_offset = needs.strings - (char *)&needs - 8 };
	needs.p[2] = (Elf64_Phdr){ .p_type = PT_DYNAMIC, .p_offset = (char *)needs.d - (char *)&needs, .p_filesz = sizeof(needs.d) };
	needs.d[0] = (Elf64_Dyn){ .d_tag = DT_NEEDED, .d_un.d_val = 1 };
	needs.d[1] = (Elf64_Dyn){ .d_tag = DT_NEEDED, .d_un.d_val = 11 };
	needs.d[2] = (Elf64_Dyn){ .d_tag = DT_STRTAB, .d_un.d_ptr = 0x400008 };
	memcpy(needs.strings, "\0libm.so.6\0libcudart.so.12", 27);
	needs_were = needs;
}

static bool uses(const void *program, size_t n)
{
	write_program("p", program, n, 0700);
	return stray_program(AT_FDCWD, "p");
}

TEST(a_program_with_kernels_uses_cuda)
{
	Elf64_Shdr *s;
	char *many;

	begin();
	make_programs();
#define USES(what) do { \
	what; \
	EXPECT_TRUE(uses(&kernels, sizeof(kernels))) \
		TH_LOG("%s", #what); \
	kernels = kernels_were; \
} while (0)
#define NOT(what) do { \
	what; \
	EXPECT_FALSE(uses(&kernels, sizeof(kernels))) \
		TH_LOG("%s", #what); \
	kernels = kernels_were; \
} while (0)
	USES();
	USES(memcpy(kernels.names + 7, ".nvFatBinSegment", 17); kernels.s[1].sh_size = 24);
	/* In each group that is read at once, and the last one of it. */
	for (int i = 2; i < SECTIONS - 1; i++)
		USES(kernels.s[SECTIONS - 1].sh_name = 0; kernels.s[i].sh_name = 7);
	NOT(kernels.s[SECTIONS - 1].sh_name = 1);
	NOT(kernels.s[SECTIONS - 1].sh_name = 8);
	NOT(kernels.s[SECTIONS - 1].sh_name = 18);	/* behind the names */
	NOT(kernels.s[SECTIONS - 1].sh_name = ~0u);
	NOT(kernels.s[1].sh_size = 16);			/* the names are cut off */
	NOT(kernels.s[1].sh_size = 0);
	NOT(kernels.s[1].sh_offset = ~0ull);
	NOT(kernels.s[1].sh_offset = sizeof(kernels));
	NOT(kernels.e.e_ident[EI_CLASS] = ELFCLASS32);
	NOT(kernels.e.e_ident[0] = 'x');
	NOT(kernels.e.e_shentsize--);
	/* The names are in a section behind the last one. */
	NOT(kernels.s[2].sh_name = 7; kernels.s[SECTIONS - 1] = kernels.s[1]; kernels.e.e_shnum--;
	    kernels.e.e_shstrndx = SECTIONS - 1);
	NOT(kernels.e.e_shstrndx = SECTIONS + 1);
	NOT(kernels.e.e_shoff = ~0ull - 100);
	NOT(kernels.e.e_shnum = 0);
	/* Names are read up to a bound. */
	USES(kernels.s[1].sh_size = 1 << 20);
	EXPECT_FALSE(uses(&kernels, sizeof(kernels.e) - 1));
	EXPECT_FALSE(uses(&kernels, sizeof(kernels.e) + SECTIONS * sizeof(*kernels.s) - 1));
#undef USES
#undef NOT
	/* So are sections: a file with more has other things behind its names, too. */
	many = calloc(1, sizeof(kernels) + 4097 * sizeof(*s));
	memcpy(many, &kernels, sizeof(kernels));
	s = (Elf64_Shdr *)(many + sizeof(kernels));
	s[1] = kernels.s[1];
	s[1].sh_size = 1 << 20;
	((Elf64_Ehdr *)many)->e_shoff = sizeof(kernels);
	((Elf64_Ehdr *)many)->e_shnum = 4096;
	s[4095].sh_name = 7;
	EXPECT_TRUE(uses(many, sizeof(kernels) + 4097 * sizeof(*s)));
	s[4096].sh_name = 7;
	s[4095].sh_name = 0;
	((Elf64_Ehdr *)many)->e_shnum = 4097;
	EXPECT_FALSE(uses(many, sizeof(kernels) + 4097 * sizeof(*s)));
	free(many);
	ASSERT_EQ(mkfifo("fifo", 0700), 0);
	EXPECT_FALSE(stray_program(AT_FDCWD, "fifo"));
	EXPECT_FALSE(stray_program(AT_FDCWD, "missing"));
	finish();
}

TEST(a_program_that_needs_its_libraries_uses_cuda)
{
	begin();
	make_programs();
#define USES(what) do { \
	what; \
	EXPECT_TRUE(uses(&needs, sizeof(needs))) \
		TH_LOG("%s", #what); \
	needs = needs_were; \
} while (0)
#define NOT(what) do { \
	what; \
	EXPECT_FALSE(uses(&needs, sizeof(needs))) \
		TH_LOG("%s", #what); \
	needs = needs_were; \
} while (0)
	USES();
	/* Strings behind what needs them, or before. */
	USES(needs.d[0] = needs_were.d[2]; needs.d[2] = needs_were.d[0]);
	USES(needs.p[2].p_filesz = 3 * sizeof(*needs.d));
	USES(needs.p[1].p_filesz = 9);
	NOT(needs.p[1].p_filesz = 8);
	NOT(needs.d[0] = needs_were.d[2]; needs.d[1].d_tag = DT_NULL; needs.d[2] = needs_were.d[1]);
	NOT(needs.d[2].d_tag = DT_NULL; needs.d[1].d_un.d_val += needs.strings - (char *)&needs);
	NOT(needs.p[2].p_filesz = 3 * sizeof(*needs.d) - 1);
	NOT(needs.d[1].d_tag = DT_RPATH);
	NOT(needs.d[1].d_tag = DT_NULL);
	NOT(needs.d[1].d_un.d_val = 1);
	NOT(needs.d[1].d_un.d_val = ~0ull);
	NOT(needs.d[2].d_un.d_ptr = 0x400000 + sizeof(needs.strings));
	NOT(needs.d[2].d_un.d_ptr = 0x3fffff);
	NOT(needs.p[1].p_type = PT_NOTE);
	NOT(needs.p[2].p_type = PT_NOTE);
	NOT(needs.p[2].p_offset = ~0ull);
	NOT(needs.e.e_phentsize++);
	NOT(needs.e.e_phnum = 2);
	NOT(needs.e.e_phoff = ~0ull);
	NOT(memcpy(needs.strings + 11, "xlibcudart", 10));
	NOT(memcpy(needs.strings + 11, "libcudarx", 9));
#undef USES
#undef NOT
	EXPECT_TRUE(stray_library("libcuda.so.1"));
	EXPECT_TRUE(stray_library("libnvrtc.so.13"));
	EXPECT_FALSE(stray_library("libcuda"));
	EXPECT_FALSE(stray_library("libc.so.6"));
	EXPECT_FALSE(stray_library(""));
	finish();
}

TEST(a_program_is_found_as_a_shell_does)
{
	char path[4096], little[16], want[64], list[256];

	begin();
	make_programs();
	ASSERT_EQ(mkdir("one", 0755) | mkdir("two", 0755), 0);
	write_program("one/p", "x", 1, 0600);
	write_program("two/p", "x", 1, 0700);
	write_program("here", "x", 1, 0700);
	snprintf(list, sizeof(list), "%s/missing:%s/one:%s/two", dir, dir, dir);
	setenv("PATH", list, 1);
	snprintf(want, sizeof(want), "%s/two/p", dir);
	EXPECT_TRUE(stray_find("p", path, sizeof(path)));
	EXPECT_STREQ(path, want);
	EXPECT_FALSE(stray_find("here", path, sizeof(path)));
	EXPECT_FALSE(stray_find("p", little, sizeof(little)));
	EXPECT_TRUE(stray_find("p", path, strlen(want) + 1));
	EXPECT_FALSE(stray_find("p", path, strlen(want)));
	/* An empty part is the folder where one is. */
	setenv("PATH", ":/missing", 1);
	EXPECT_TRUE(stray_find("here", path, sizeof(path)));
	EXPECT_STREQ(path, "here");
	setenv("PATH", "/missing:", 1);
	EXPECT_TRUE(stray_find("here", path, sizeof(path)));
	finish();
}

TEST(what_a_set_user_id_program_starts_is_named)
{
	char *argv[20] = { "sudo", "-u", "kernels", NULL };

	if (geteuid())
		SKIP(return, "other users' files need root");
	begin();
	make_programs();
	write_program("sudo", "x", 1, 0755);
	write_program("kernels", &kernels, sizeof(kernels), 0755);
	write_program("data", &kernels, sizeof(kernels), 0644);
	write_program("other", "x", 1, 0755);
#define DROPPED(owner, group, mode, want) do { \
	ASSERT_EQ(chown("sudo", owner, group) | chmod("sudo", mode), 0); \
	EXPECT_STREQ(stray_dropped(AT_FDCWD, "sudo", argv) ?: "none", want) \
		TH_LOG("%d:%d %o", owner, group, mode); \
} while (0)
	DROPPED(12345, 0, 0755, "none");
	DROPPED(12345, 0, 04755, "kernels");
	DROPPED(0, 0, 04755, "none");		/* it is ours: nothing is dropped */
	DROPPED(0, 12345, 02755, "kernels");
	DROPPED(0, 12345, 02745, "none");	/* that is no set-group-ID */
	DROPPED(0, 0, 02755, "none");
	DROPPED(12345, 0, 04755, "kernels");
	argv[2] = "data";			/* nobody can execute it: as root, some may */
	EXPECT_EQ(stray_dropped(AT_FDCWD, "sudo", argv), NULL);
	argv[2] = "other";
	EXPECT_EQ(stray_dropped(AT_FDCWD, "sudo", argv), NULL);
	argv[3] = "kernels";
	EXPECT_STREQ(stray_dropped(AT_FDCWD, "sudo", argv), "kernels");
	argv[2] = "-kernels";
	EXPECT_STREQ(stray_dropped(AT_FDCWD, "sudo", argv), "kernels");
	for (int i = 1; i < 18; i++)
		argv[i] = i == 15 ? "kernels" : "x";
	EXPECT_STREQ(stray_dropped(AT_FDCWD, "sudo", argv), "kernels");
	argv[15] = "x";
	argv[16] = "kernels";			/* more are not looked at */
	EXPECT_EQ(stray_dropped(AT_FDCWD, "sudo", argv), NULL);
	argv[0] = NULL;
	argv[15] = "kernels";
	EXPECT_EQ(stray_dropped(AT_FDCWD, "sudo", argv), NULL);
	EXPECT_EQ(stray_dropped(AT_FDCWD, "sudo", NULL), NULL);
	ASSERT_EQ(chown("kernels", 12345, 0) | chmod("kernels", 04755), 0);
	EXPECT_STREQ(stray_dropped(AT_FDCWD, "kernels", NULL), "kernels");
	ASSERT_EQ(mkdir("folder", 0755) | chown("folder", 12345, 0) | chmod("folder", 04755), 0);
	argv[0] = argv[1] = "kernels";
	EXPECT_EQ(stray_dropped(AT_FDCWD, "folder", argv), NULL);
#undef DROPPED
	finish();
}

/* ---------------------------------------------------------------------------- the notes */

TEST(records_and_sentences)
{
	static const struct { char kind; const char *says; } kinds[] = {
		{ STRAY_PRELOAD, "./a uses CUDA without singvgpu, " }, { STRAY_SOCKET, "no SINGVGPU_SOCKET" },
		{ STRAY_SETUID, "set-user-ID program is started with ./a" }, { STRAY_USER, "runs as another user" },
		{ STRAY_LOADED, "has not loaded" },
	};
	char record[STRAY_RECORD], name[400], text[1024];

	memset(name, 'n', sizeof(name));
	memcpy(name + 300, "end", 4);
	EXPECT_EQ(stray_record(record, STRAY_USER, "./a"), 6);
	EXPECT_EQ(memcmp(record, "\0O./a", 6), 0);
	/* Of a longer name its end. */
	EXPECT_EQ(stray_record(record, STRAY_USER, name), STRAY_RECORD);
	EXPECT_STREQ(record + 2, name + 303 - STRAY_NAME);
	EXPECT_EQ(stray_record(record, STRAY_USER, name + 303 - STRAY_NAME), STRAY_RECORD);
	for (int i = 0; i < 5; i++) {
		EXPECT_EQ(stray_sentence(text, sizeof(text), kinds[i].kind, "./a"), strlen(text));
		EXPECT_NE(strstr(text, kinds[i].says), NULL);
		EXPECT_NE(strstr(text, "./a"), NULL);
	}
	text[20] = 'x';
	EXPECT_EQ(stray_sentence(text, 20, STRAY_USER, "./a"), 19);
	EXPECT_EQ(strlen(text), 19);
	EXPECT_EQ(text[20], 'x');
	EXPECT_EQ(stray_sentence(text, sizeof(text), STRAY_BEGINS, "./a"), 0);
	EXPECT_EQ(stray_sentence(text, sizeof(text), '?', "./a"), 0);
}

static int lines_in(const char *file, const char *what)
{
	char line[2048];
	FILE *in = fopen(file, "r");
	int n = 0;

	while (in && fgets(line, sizeof(line), in))
		n += !!strstr(line, what);
	if (in)
		fclose(in);
	return n;
}

static int fifo;

static void tell(const char *bytes, size_t n)
{
	if (write(fifo, bytes, n) != (ssize_t)n)
		abort();
}

TEST(a_supervisor_is_told_of_each_once)
{
	struct job_options opt = { .command = (char *[]){ "/bin/true", NULL } };
	struct job job = { .opt = &opt };
	struct strays *s = calloc(1, sizeof(*s));
	char record[STRAY_RECORD + 8], name[300], path[64];
	struct pollfd end = { .events = POLLIN };
	uint64_t next;

	begin();
	snprintf(job.dir.path, sizeof(job.dir.path), "%s", dir);
	dup2(open("said", O_WRONLY | O_CREAT | O_APPEND, 0600), STDERR_FILENO);
	/* What was there, and leads elsewhere, is none of the job's. */
	write_program("victim", "", 0, 0600);
	ASSERT_EQ(symlink("victim", STRAY_FILE), 0);
	strays_start(s, &job);
	ASSERT_GE(s->fifo, 0);
	snprintf(path, sizeof(path), "%s/" STRAY_FILE, dir);
	fifo = open(path, O_WRONLY | O_NONBLOCK);
	ASSERT_GE(fifo, 0);
	strays_hear(s);
	/* In pieces, of one byte, too; and what only looks like a record. */
	tell("\0", 1);
	strays_hear(s);
	tell("P./five\0more\0P./ze", 18);
	strays_hear(s);
	tell("ro\0noneP./six\0", 14);
	strays_hear(s);
	EXPECT_EQ(lines_in("said", ": ./five uses CUDA"), 1);
	EXPECT_EQ(lines_in("said", ": ./zero uses CUDA"), 1);
	EXPECT_EQ(lines_in("said", ""), 2);
	ASSERT_EQ(truncate("said", 0), 0);
	s->n = 0;
	/* Between what is no record, and twice. */
	tell("rubbish\0P./", 11);
	strays_hear(s);
	EXPECT_EQ(lines_in("said", "singvgpu"), 0);
	tell("one\0\0P./one\0\0S./one\0\0\0x\0\0P\0\0P./two\x1b[2J\0", 39);
	strays_hear(s);
	EXPECT_EQ(lines_in("said", ": ./one uses CUDA"), 2);
	EXPECT_EQ(lines_in("said", "no SINGVGPU_SOCKET"), 1);
	EXPECT_EQ(lines_in("said", "./two?[2J uses CUDA"), 1);
	EXPECT_EQ(lines_in("said", ""), 3);
	/* Too long for a record: it is skipped, and what follows is heard. */
	memset(name, 'x', sizeof(name));
	for (int i = 0; i < 60; i++)
		tell(name, sizeof(name));
	tell("\0P./three\0", 10);
	strays_hear(s);
	EXPECT_EQ(lines_in("said", "./three uses CUDA"), 1);
	/* A record of all the room, and an end that is missing. */
	tell("\0P", 2);
	for (int i = 0; i < 60; i++)
		tell(name, sizeof(name));
	strays_hear(s);
	tell("\0\0P./four\0", 10);
	strays_hear(s);
	EXPECT_EQ(lines_in("said", "./four uses CUDA"), 1);
	/* The name that is told last is not told again, nor is one beyond the number that are kept. */
	for (int i = 0; i < 2 * STRAYS_TOLD; i++) {
		snprintf(name, sizeof(name), "./many%d", i);
		tell(record, stray_record(record, STRAY_PRELOAD, name));
		strays_hear(s);
	}
	EXPECT_EQ(s->n, STRAYS_TOLD);
	EXPECT_EQ(lines_in("said", ""), STRAYS_TOLD);
	/* A program of which nothing is known wants a look at once: no line. */
	next = s->next;
	EXPECT_GT(next, now_ms());
	EXPECT_GT(strays_step(s), 0);
	tell(record, stray_record(record, STRAY_BEGINS, "./sh"));
	strays_hear(s);
	EXPECT_LT(s->next, next);
	EXPECT_EQ(lines_in("said", "./sh"), 0);
	EXPECT_EQ(lines_in("victim", ""), 0);
	/* Nobody writes any more: it has no end. */
	close(fifo);
	end.fd = s->fifo;
	EXPECT_EQ(poll(&end, 1, 0), 0);
	strays_stop(s);
	EXPECT_EQ(s->fifo, -1);
	EXPECT_EQ(strays_step(s), -1);
	free(s);
	finish();
}

/* What starts the command has none of our libraries. */
TEST(the_command_itself_is_looked_at)
{
	char program[64];
	struct job_options opt = { .command = (char *[]){ program, "kernels", NULL } };
	struct job job = { .opt = &opt };
	struct strays *s = calloc(1, sizeof(*s));

	if (geteuid())
		SKIP(return, "other users' files need root");
	begin();
	make_programs();
	snprintf(job.dir.path, sizeof(job.dir.path), "%s", dir);
	dup2(open("said", O_WRONLY | O_CREAT | O_APPEND, 0600), STDERR_FILENO);
	write_program("sudo", "x", 1, 0755);
	write_program("kernels", &kernels, sizeof(kernels), 0755);
	ASSERT_EQ(chown("sudo", 12345, 0) | chmod("sudo", 04755), 0);
	for (int i = 0; i < 4; i++) {
		/* By its path; in PATH; not there; and a restored job's, which is not started. */
		if (i == 1 || i == 2)
			strcpy(program, i == 1 ? "sudo" : "missing");
		else
			snprintf(program, sizeof(program), "%s/sudo", dir);
		setenv("PATH", dir, 1);
		job.restore = i == 3 ? (void *)&job : NULL;
		strays_start(s, &job);
		strays_stop(s);
		EXPECT_EQ(lines_in("said", "is started with kernels"), i < 2)
			TH_LOG("%d", i);
		ASSERT_EQ(truncate("said", 0), 0);
	}
	free(s);
	finish();
}

/* -------------------------------------------------------------------------------- pipes.c */

/* Keeps of the two pipes in arg the first as 50 and the second as 51, and no other one. -1: there is none. */
static void have_pipes(void *arg, int *told)
{
	const int *pipes = arg;

	for (int i = 0; i < 2; i++)
		if (pipes[i] >= 0)
			dup2(pipes[i], 50 + i);
	*told = dup2(*told, 52);
	close_range(3, 49, 0);
	close_range(53, ~0u, 0);
	for (int i = 0; i < 2; i++)
		if (pipes[i] < 0)
			close(50 + i);
}

/* A child that has, of these two, the ones that are given as 50 and 51; and no other pipe. */
static pid_t with_pipes(int one, int two)
{
	return child_begin(have_pipes, (int[]){ one, two });
}

static const char *key_of(int fd, char key[64])
{
	char path[32];
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	n = readlink(path, key, 63);
	key[n < 0 ? 0 : n] = 0;
	return key;
}

TEST(pipes_that_others_have_are_refused)
{
	struct rundir_rank rank[2] = { { 0 } };
	struct save s = { .job = { .ranks = 2, .rank = rank } };
	struct why why = { 0 };
	char key[2][64], list[160], want[64];
	pid_t pids[2], other;
	int a[2], b[2], lowest;

	ASSERT_EQ(pipe(a) | pipe(b), 0);
	key_of(a[0], key[0]);
	key_of(b[0], key[1]);
	pids[0] = with_pipes(-1, -1);
	pids[1] = with_pipes(a[0], b[1]);
	other = with_pipes(-1, b[0]);
	/* Ours, the conductor's, are nobody's. */
	EXPECT_EQ(save_pipes(&s, pids, 2, &why), 0);
	lowest = dup(0);
	close(lowest);
	snprintf(list, sizeof(list), "%s,%s", key[0], key[1]);
	ASSERT_EQ(facts_add_option(&s.facts, "pipes", list), 0);
	EXPECT_EQ(save_pipes(&s, pids, 2, &why), -ENOTSUP);
	snprintf(want, sizeof(want), "process %d (", pids[1]);
	EXPECT_NE(strstr(why.text, want), NULL)
		TH_LOG("%s", why.text);
	EXPECT_NE(strstr(why.text, "descriptor 51 open"), NULL);
	EXPECT_NE(strstr(why.text, key[1]), NULL);
	snprintf(want, sizeof(want), "that process %d (", other);
	EXPECT_NE(strstr(why.text, want), NULL);
	/* The lowest free descriptor is what it was. */
	EXPECT_EQ(dup(0), lowest);
	close(lowest);
	/* Nobody of the job has it any more; or it is where a rank prints; or the other one has gone. */
	why_clear(&why);
	EXPECT_EQ(save_pipes(&s, pids, 1, &why), 0);
	strcpy(rank[1].stdio[2], key[1]);
	EXPECT_EQ(save_pipes(&s, pids, 2, &why), 0);
	*rank[1].stdio[2] = 0;
	EXPECT_EQ(save_pipes(&s, pids, 2, &why), -ENOTSUP);
	child_end(other);
	why_clear(&why);
	EXPECT_EQ(save_pipes(&s, pids, 2, &why), 0)
		TH_LOG("%s", why.text);
	child_end(pids[0]);
	child_end(pids[1]);
}

TEST_HARNESS_MAIN
