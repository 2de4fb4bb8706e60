/*
 * frames.c: sends UDP frames through a network device as fast as one process can, as a packet socket does it (packet(7)), and counts what
 * another device receives meanwhile: what the kernel takes and gives away for machines that it switches for.
 *
 *   gcc -O2 -o frames tests/bench/frames.c
 *   ./frames OUT-DEVICE IN-DEVICE SOURCE-MAC DESTINATION-MAC BYTES FLOWS SECONDS
 *
 * Prints received Mpps and bytes per frame. The first second does not count.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { BURST = 32, LARGEST = 9000 };

static uint8_t frames[BURST][LARGEST];

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

/* Frames that a device has received. */
static uint64_t received(const char *device)
{
	char path[128], text[32] = "";
	snprintf(path, sizeof path, "/sys/class/net/%s/statistics/rx_packets", device);
	FILE *file = fopen(path, "r");
	if (!file || !fgets(text, sizeof text, file))
		die(path);
	fclose(file);
	return strtoull(text, NULL, 10);
}

static void mac(uint8_t *to, const char *text)
{
	unsigned b[6];
	if (sscanf(text, "%x:%x:%x:%x:%x:%x", b, b + 1, b + 2, b + 3, b + 4, b + 5) != 6) {
		fprintf(stderr, "frames: %s is no MAC address\n", text);
		exit(2);
	}
	for (int i = 0; i < 6; i++)
		to[i] = b[i];
}

/* RFC 1071, over an even number of bytes. */
static uint16_t checksum(const uint8_t *bytes, int len)
{
	uint32_t sum = 0;
	for (int i = 0; i < len; i += 2)
		sum += bytes[i] << 8 | bytes[i + 1];
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

int main(int argc, char **argv)
{
	if (argc != 8) {
		fprintf(stderr, "usage: frames OUT-DEVICE IN-DEVICE SOURCE-MAC DESTINATION-MAC BYTES FLOWS SECONDS\n");
		return 2;
	}
	int bytes = atoi(argv[5]), flows = atoi(argv[6]), seconds = atoi(argv[7]);
	if (bytes < 60 || bytes > LARGEST || flows < 1 || flows > 60000 || seconds < 1) {
		fprintf(stderr, "frames: 60 to %d bytes, 1 to 60000 flows, a second or more\n", LARGEST);
		return 2;
	}
	int fd = socket(AF_PACKET, SOCK_RAW, 0), yes = 1;
	if (fd < 0)
		die("packet socket");
	if (setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &yes, sizeof yes))
		die("PACKET_QDISC_BYPASS");
	struct sockaddr_ll to = {.sll_family = AF_PACKET, .sll_ifindex = if_nametoindex(argv[1])};
	if (!to.sll_ifindex)
		die(argv[1]);
	if (bind(fd, (struct sockaddr *)&to, sizeof to))
		die("bind");

	struct mmsghdr messages[BURST] = {0};
	struct iovec parts[BURST];
	for (int i = 0; i < BURST; i++) {
		uint8_t *f = frames[i], *ip = f + 14, *udp = ip + 20;
		mac(f, argv[4]);
		mac(f + 6, argv[3]);
		f[12] = 8;
		ip[0] = 0x45;
		ip[2] = (bytes - 14) >> 8, ip[3] = bytes - 14;
		ip[8] = 64, ip[9] = 17;
		memcpy(ip + 12, (uint8_t[]){10, 0, 0, 1, 10, 0, 0, 2}, 8);
		uint16_t sum = checksum(ip, 20);
		ip[10] = sum >> 8, ip[11] = sum;
		udp[2] = 9000 >> 8, udp[3] = 9000 & 255;
		udp[4] = (bytes - 34) >> 8, udp[5] = bytes - 34;
		parts[i] = (struct iovec){f, bytes};
		messages[i].msg_hdr = (struct msghdr){.msg_iov = &parts[i], .msg_iovlen = 1};
	}
	double start = now(), begin = 0, at;
	uint64_t before = 0;
	uint32_t order = 1;
	while ((at = now()) < start + 1 + seconds) {
		if (!begin && at >= start + 1) {
			begin = at;
			before = received(argv[2]);
		}
		for (int i = 0; i < BURST; i++) {
			order = order * 1664525 + 1013904223; /* Numerical Recipes: flows in no order */
			uint16_t port = 1024 + (order >> 8) % flows;
			frames[i][34] = port >> 8, frames[i][35] = port;
		}
		/* What the device has no room for is lost, as on a wire. */
		(void)!sendmmsg(fd, messages, BURST, 0);
	}
	printf("%.3f\n", (received(argv[2]) - before) / (at - begin) / 1e6);
	return 0;
}
