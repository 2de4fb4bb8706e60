/*
 * copy.c: what it costs to copy frames between two processors' caches, and nothing else: the floor of any switch that copies a frame once.
 *
 *   gcc -O2 -march=native -pthread -o copy tests/bench/copy.c && ./copy [BYTES]     (two processors, 8 MiB of memory)
 *
 * Processor 0 does what a guest does: it writes frames, hands out empty buffers, reads the first line of what comes back, and uses buffers
 * again, the last one first. Processor 1 does what a switch must do: it copies each frame into an empty buffer. There are no
 * descriptors, no headers, no decisions. Prints the time stamp counter's cycles per frame for several ways to copy.
 */
#define _GNU_SOURCE
#include <immintrin.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { STRIDE = 2304, HEADROOM = 128, BUFFERS = 2048, QUEUE = 1024, RING = 256, BATCH = 32 };

struct queue {
	_Alignas(64) volatile uint32_t head;
	_Alignas(64) volatile uint32_t tail;
	_Alignas(64) uint16_t entries[QUEUE];
};

static uint8_t *pool;
static struct queue full, empty, sent, received;
static size_t bytes = 1400;
static volatile int stop;

static uint8_t *frame(uint16_t buffer) { return pool + (size_t)buffer * STRIDE + HEADROOM; }
static uint32_t used(struct queue *q)
{
	return __atomic_load_n(&q->head, __ATOMIC_ACQUIRE) - __atomic_load_n(&q->tail, __ATOMIC_ACQUIRE);
}
static void put(struct queue *q, const uint16_t *items, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		q->entries[(q->head + i) % QUEUE] = items[i];
	__atomic_store_n(&q->head, q->head + n, __ATOMIC_RELEASE);
}
static uint32_t take(struct queue *q, uint16_t *items, uint32_t most)
{
	uint32_t n = used(q);
	n = n < most ? n : most;
	for (uint32_t i = 0; i < n; i++)
		items[i] = q->entries[(q->tail + i) % QUEUE];
	__atomic_store_n(&q->tail, q->tail + n, __ATOMIC_RELEASE);
	return n;
}

static void pin(int cpu)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

static void *guest(void *unused)
{
	static uint8_t content[STRIDE];
	static uint16_t stack[BUFFERS];
	uint16_t some[BATCH];
	uint64_t read = 0;
	uint32_t left = 0;
	pin(0);
	while (left < BUFFERS) {
		stack[left] = left;
		left++;
	}
	while (!stop) {
		uint32_t n = take(&sent, some, BATCH);
		while (n)
			stack[left++] = some[--n];
		for (n = take(&received, some, BATCH); n; stack[left++] = some[n])
			read += *frame(some[--n]);
		if (used(&empty) + BATCH <= RING) {
			left -= BATCH;
			put(&empty, stack + left, BATCH);
		}
		if (used(&full) + BATCH <= RING) {
			left -= BATCH;
			for (uint32_t i = 0; i < BATCH; i++)
				memcpy(frame(stack[left + i]), content, bytes);
			put(&full, stack + left, BATCH);
		}
	}
	return (void *)(uintptr_t)read;
}

static void string(uint8_t *to, const uint8_t *from, size_t n)
{
	__asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n) : : "memory");
}
static void vectors(uint8_t *to, const uint8_t *from, size_t n)
{
	for (size_t i = 0; i + 32 <= n; i += 32)
		_mm256_storeu_si256((__m256i *)(to + i), _mm256_loadu_si256((const __m256i *)(from + i)));
	memcpy(to + n / 32 * 32, from + n / 32 * 32, n % 32);
}
static void past_the_caches(uint8_t *to, const uint8_t *from, size_t n)
{
	for (size_t i = 0; i + 32 <= n; i += 32)
		_mm256_stream_si256((__m256i *)(to + i), _mm256_loadu_si256((const __m256i *)(from + i)));
	memcpy(to + n / 32 * 32, from + n / 32 * 32, n % 32);
}

static const struct way {
	const char *name;
	void (*copy)(uint8_t *, const uint8_t *, size_t);
	int ahead; /* fetch the next frame, and the next buffer to write */
} ways[] = {
	{"string instruction", string, 0},  {"string instruction, fetching ahead", string, 1}, {"vectors", vectors, 0},
	{"vectors, fetching ahead", vectors, 1}, {"stores past the caches", past_the_caches, 0},
};
static const struct way *way;
static uint64_t cycles, frames;

static void *copier(void *unused)
{
	uint16_t from[BATCH], to[BATCH];
	pin(1);
	while (!stop) {
		uint32_t n = used(&full), room = used(&empty);
		n = n < room ? n : room;
		if (!n) {
			_mm_pause();
			continue;
		}
		uint64_t begin = __builtin_ia32_rdtsc();
		n = take(&full, from, n < BATCH ? n : BATCH);
		take(&empty, to, n);
		for (uint32_t i = 0; i < n; i++) {
			for (size_t at = 0; way->ahead && i + 1 < n && at < bytes; at += 64) {
				__builtin_prefetch(frame(from[i + 1]) + at, 0);
				__builtin_prefetch(frame(to[i + 1]) + at, 1);
			}
			way->copy(frame(to[i]), frame(from[i]), bytes);
		}
		if (way->copy == past_the_caches)
			_mm_sfence();
		put(&sent, from, n);
		put(&received, to, n);
		cycles += __builtin_ia32_rdtsc() - begin;
		frames += n;
	}
	return NULL;
}

int main(int argc, char **argv)
{
	if (argc > 1 && ((bytes = strtoul(argv[1], NULL, 10)) < 64 || bytes > STRIDE - HEADROOM)) {
		fprintf(stderr, "copy: 64 to %d bytes\n", STRIDE - HEADROOM);
		return 2;
	}
	pool = mmap(NULL, 8 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pool == MAP_FAILED || madvise(pool, 8 << 20, MADV_HUGEPAGE))
		perror("copy: huge pages");
	if (pool == MAP_FAILED)
		return 1;
	for (way = ways; way < ways + sizeof(ways) / sizeof(*ways); way++) {
		pthread_t a, b;
		struct timespec second = {1, 0};
		memset(pool, 1, 8 << 20);
		memset(&full, 0, sizeof(full)), memset(&empty, 0, sizeof(empty));
		memset(&sent, 0, sizeof(sent)), memset(&received, 0, sizeof(received));
		cycles = frames = stop = 0;
		if (pthread_create(&a, NULL, guest, NULL) || pthread_create(&b, NULL, copier, NULL))
			return 1;
		nanosleep(&second, NULL);
		stop = 1;
		pthread_join(a, NULL);
		pthread_join(b, NULL);
		printf("%zu bytes, %-35s %5.0f cycles per frame, %.2f million a second\n", bytes, way->name, (double)cycles / frames, frames / 1e6);
	}
	return 0;
}
