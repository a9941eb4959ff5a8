/*
 * Hostile processes, to test what a tracing daemon does beside them. Each command prints "ready" and runs until it is
 * killed. Built as a library, this file is also a JVM's agent, whose options are a command: the JVM then does the same.
 *
 *   fake FILE COUNT SECONDS      maps FILE as code, COUNT times, as a JVM maps its libjvm.so. If SECONDS is not 0, replaces
 *                                itself by a new program (exec) every SECONDS seconds
 *   fakes FILE N COUNT SECONDS   N processes do the same
 *   flood N                      N processes with 200 mappings each sleep, and one maps code as fast as it can
 *   files FOLDER N               creates N files and maps each as code
 *   names N                      N threads change their names 1,000 times per second
 *   sparse N                     shows a JVM's readers N other threads ten times per second, each in 2 MB of memory that was
 *                                never used; only as an agent
 *   perf-map MEGABYTES           writes a perf map for this process, with control characters and long names
 *   place GROUP PROGRAM ARGS     creates a control group, enters it and runs a program
 *   groups GROUP                 creates control groups with a process in each, and removes them, in a loop
 *   requests PORT                holds 200 connections with half a request each, and replaces them in a loop
 *   passwords PORT               8 processes send requests with wrong passwords, in a loop
 *
 * requests and passwords connect from 127.0.0.2, so that the server can tell them from others.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void die(const char *what)
{
	perror(what);
	_exit(1);
}

/* Starts a process that ends with this one. Returns whether the caller is that process. */
static int in_child(void)
{
	pid_t pid = fork();
	if (pid < 0)
		die("fork");
	if (pid == 0)
		prctl(PR_SET_PDEATHSIG, 9);
	return pid == 0;
}

static void map_code(const char *path, long count)
{
	struct stat stat;
	int file = open(path, O_RDONLY | O_CLOEXEC);
	if (file < 0 || fstat(file, &stat))
		die(path);
	size_t size = stat.st_size < 32 << 20 ? stat.st_size : 32 << 20;
	while (count-- > 0)
		if (mmap(0, size, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0) == MAP_FAILED)
			die("mmap");
	close(file);
}

/* One process of `fakes`. */
static void fake(char **args)
{
	char *again[] = {"java", "fake", args[0], args[1], args[2], 0};
	map_code(args[0], atol(args[1]));
	if (atol(args[2]) == 0)
		return;
	sleep(atol(args[2]));
	execv("/proc/self/exe", again);
	die("exec");
}

static void fakes(char **args)
{
	char *own[] = {args[0], args[2], args[3]};
	for (long n = atol(args[1]); n > 0; n--)
		if (in_child()) {
			fake(own);
			for (;;)
				pause();
		}
}

static void *map_in_a_loop(void *unused)
{
	int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	for (;;)
		munmap(mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0), 4096);
	return unused;
}

static void start_thread(void *(*run)(void *))
{
	pthread_t thread;
	if (pthread_create(&thread, 0, run, 0))
		die("pthread_create");
}

static void flood(char **args)
{
	/* Alternating protections, because the kernel merges adjacent mappings that are alike. */
	for (int n = 0; n < 200; n++)
		mmap(0, 4096, n % 2 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (long n = atol(args[0]); n > 0; n--)
		if (in_child())
			for (;;)
				pause();
	start_thread(map_in_a_loop);
}

static void files(char **args)
{
	char name[4096];
	for (long n = 0; n < atol(args[1]); n++) {
		snprintf(name, sizeof name, "%s/code%ld.so", args[0], n);
		int file = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0755);
		if (file < 0 || ftruncate(file, 4096))
			die(name);
		if (mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0) == MAP_FAILED)
			die("mmap");
		close(file);
	}
}

static void *change_name(void *unused)
{
	char name[16];
	for (unsigned n = 0;; n++) {
		snprintf(name, sizeof name, "\033[%u;%d", n, gettid());
		prctl(PR_SET_NAME, name);
		usleep(1000);
	}
	return unused;
}

static void names(char **args)
{
	for (long n = atol(args[0]); n > 0; n--)
		start_thread(change_name);
}

static void perf_map(char **args)
{
	char path[64];
	snprintf(path, sizeof path, "/tmp/perf-%d.map", getpid());
	FILE *file = fopen(path, "w");
	if (!file)
		die(path);
	for (long n = 0; ftell(file) < atol(args[0]) << 20; n++)
		fprintf(file, "%lx ffffffffffffffff \033[%ld\001%0*ld\n", n * 16, n, n % 64 ? 40 : 100000, n);
	fclose(file);
}

static void enter(const char *group)
{
	char path[4096];
	/* Creates the parents, too. */
	snprintf(path, sizeof path, "%s/", group);
	for (char *at = path + 1; (at = strchr(at, '/')); at++) {
		*at = 0;
		mkdir(path, 0755);
		*at = '/';
	}
	strcat(path, "cgroup.procs");
	int file = open(path, O_WRONLY | O_CLOEXEC);
	if (file < 0 || write(file, "0", 1) != 1)
		die(path);
	close(file);
}

static void place(char **args)
{
	enter(args[0]);
	execvp(args[1], args + 1);
	die(args[1]);
}

static void groups(char **args)
{
	char path[4000];
	if (!in_child())
		return;
	for (unsigned n = 0;; n++) {
		snprintf(path, sizeof path, "%s/t%u.service", args[0], n);
		if (in_child()) {
			enter(path);
			_exit(0);
		}
		wait(0);
		rmdir(path);
	}
}

/* An entry of gHotSpotVMStructs, share/runtime/vmStructs.hpp. */
struct field {
	const char *type, *name, *type_string;
	int is_static;
	unsigned long offset;
	void *address;
};

static struct field *field(void *jvm, const char *type, const char *name)
{
	struct field **fields = dlsym(jvm, "gHotSpotVMStructs");
	for (struct field *f = fields ? *fields : 0; f && f->type; f++)
		if (!strcmp(f->type, type) && !strcmp(f->name, name))
			return f;
	die(name);
	return 0;
}

static struct {
	char list[256], *list_address;
	char **threads, *memory;
	unsigned long count;
} shown;

static void *show_other_threads(void *unused)
{
	const unsigned long region = 2 << 20, size = 16UL << 40;
	for (unsigned long at = 0;; usleep(100000))
		for (unsigned long n = 0; n < shown.count; n++, at = (at + region) % size)
			shown.threads[n] = shown.memory + at;
	return unused;
}

static void sparse(char **args)
{
	void *jvm = dlopen("libjvm.so", RTLD_NOW | RTLD_NOLOAD);
	struct field *list = field(jvm, "ThreadsSMRSupport", "_java_thread_list");
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	pthread_t thread;

	shown.count = atol(args[0]);
	shown.threads = calloc(shown.count, sizeof *shown.threads);
	shown.memory = mmap(0, 17UL << 40, PROT_READ, flags, -1, 0);
	if (!shown.threads || shown.memory == MAP_FAILED)
		die("sparse");
	shown.list_address = shown.list;
	*(unsigned *)(shown.list + field(jvm, "ThreadsList", "_length")->offset) = shown.count;
	*(char ***)(shown.list + field(jvm, "ThreadsList", "_threads")->offset) = shown.threads;
	char *page = (char *)((unsigned long)list & ~4095UL);
	if (mprotect(page, 8192, PROT_READ | PROT_WRITE))
		die("mprotect");
	list->address = &shown.list_address;
	if (pthread_create(&thread, 0, show_other_threads, 0))
		die("pthread_create");
}

/* Connects to the server, and sends a text. Returns the socket; -1 if the server refuses. */
static int send_to(int port, const char *text)
{
	struct sockaddr_in from = {.sin_family = AF_INET}, to = {.sin_family = AF_INET, .sin_port = htons(port)};
	int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	from.sin_addr.s_addr = inet_addr("127.0.0.2");
	to.sin_addr.s_addr = inet_addr("127.0.0.1");
	if (bind(connection, (void *)&from, sizeof from) || connect(connection, (void *)&to, sizeof to) ||
	    send(connection, text, strlen(text), MSG_NOSIGNAL) < 0) {
		close(connection);
		usleep(10000);
		return -1;
	}
	return connection;
}

static void requests(char **args)
{
	int held[200] = {0};
	if (!in_child())
		return;
	for (unsigned n = 0;; n = (n + 1) % 200) {
		if (held[n] > 0)
			close(held[n]);
		held[n] = send_to(atoi(args[0]), "GET /metrics HTTP/1.1\r\nHost: x\r\nX-");
		usleep(5000);
	}
}

static void passwords(char **args)
{
	char request[200], answer[4096];
	for (int n = 0; n < 8; n++) {
		if (!in_child())
			continue;
		for (unsigned guess = n;; guess += 8) {
			/* "alice:wro", and three bytes that differ. */
			snprintf(request, sizeof request,
				 "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
				 "Authorization: Basic YWxpY2U6d3Jv%04u\r\n\r\n", guess % 10000);
			int connection = send_to(atoi(args[0]), request);
			while (connection >= 0 && recv(connection, answer, sizeof answer, 0) > 0)
				;
			close(connection);
		}
	}
}

static const struct {
	const char *name;
	int arguments;
	void (*start)(char **);
} commands[] = {
	{"fake", 3, fake}, {"fakes", 4, fakes}, {"flood", 1, flood}, {"files", 2, files}, {"names", 1, names},
	{"sparse", 1, sparse},
	{"perf-map", 1, perf_map}, {"place", 2, place}, {"groups", 1, groups}, {"requests", 1, requests},
	{"passwords", 1, passwords},
};

static int start(int count, char **words)
{
	for (size_t n = 0; n < sizeof commands / sizeof *commands; n++)
		if (count > commands[n].arguments && !strcmp(words[0], commands[n].name)) {
			commands[n].start(words + 1);
			return 0;
		}
	fprintf(stderr, "attack: no command %s with %d arguments\n", count ? words[0] : "", count - 1);
	return 2;
}

int main(int argc, char **argv)
{
	prctl(PR_SET_PDEATHSIG, 9);
	if (start(argc - 1, argv + 1))
		return 2;
	puts("ready");
	fflush(stdout);
	for (;;)
		pause();
}

__attribute__((visibility("default"))) int Agent_OnLoad(void *vm, char *options, void *reserved)
{
	char *words[8], *rest = options;
	int count = 0;
	(void)vm, (void)reserved;
	while (count < 8 && (words[count] = strsep(&rest, " ")))
		count++;
	return start(count, words);
}
