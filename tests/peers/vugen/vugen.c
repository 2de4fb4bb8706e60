/*
 * vugen - a traffic generator and sink that stands for two virtual machines.
 *
 * It owns one or two DPDK ports (usually virtio-user devices connected to the vhost-user sockets of a switch), sends
 * prebuilt frames on one core as fast as the switch takes them, and receives, checks and counts what comes back.
 *
 *   vugen <EAL options> -- [options], see usage() below
 *
 * Port 0 is VM A (02:00:00:00:00:01, 10.0.0.1), port 1 is VM B (02:00:00:00:00:02, 10.0.0.2).
 * Flow i uses source port 1024 + (i mod 32768) and destination port 5001 + i / 32768 from A to B; B sends the same
 * 5-tuples reversed, so that a stateful switch sees established connections.
 * With --vxlan, port 1 is the switch's uplink instead: frames there carry VNI 100 between 192.168.50.1
 * (02:00:00:00:aa:01, the switch) and 192.168.50.2 (02:00:00:00:aa:02, this program, behind which VM B lives).
 *
 * A run has four parts: a paced learning part, in which every flow is seen at least twice in each direction; a warm-up
 * at full speed; the measured seconds; and a drain, until nothing arrives any more. What is printed for a second is
 * counted in exactly that second; the TOTAL lines count the whole run, so that what one port sent and the other did not
 * receive must be found in the switch's drop counters, to the packet.
 *
 * Exit status: 0; 1 cannot run; 4 a frame arrived damaged (--payload-check).
 */
#include <getopt.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <rte_byteorder.h>
#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_ether.h>
#include <rte_ip.h>
#include <rte_mbuf.h>
#include <rte_tcp.h>
#include <rte_udp.h>

#define BURST 32
#define MAX_SIZE 9000   /* of the VM's frame */
#define FRAME_ROOM 9216 /* holds the largest frame with everything around it */
#define SMALL_ROOM 2048 /* data room of an mbuf if frames fit */
#define MAX_SECS 3600
#define MAX_WATCH 64
#define OUTER_LEN 50 /* Ethernet + IPv4 + UDP + VXLAN */
#define L4_OFFSET 34 /* Ethernet + IPv4 without options */
#define LATENCY_SAMPLES 200000

#define TCP_SYN 0x02
#define TCP_ACK 0x10

enum direction { UNI, BIDI, REV, LAT, UPLINK };
static const char *const direction_name[] = {"uni", "bidi", "rev", "lat", "uplink"};

static struct {
	unsigned flows, size, secs, warm, queue_size, queues, learn_pps, mbufs, mbuf_cache, room, segments, seed;
	enum direction dir;
	bool check, payload_check, tcp, vxlan, sync, random, tx_csum, rx_csum;
	const char *json;
} opt = {
	.flows = 1, .size = 64, .secs = 5, .warm = 2, .queue_size = 256, .learn_pps = 200000,
	.mbufs = 4095, .mbuf_cache = 512, .segments = 1, .queues = 1, .seed = 1, .dir = UNI, .check = true,
};

/* One simulated VM (or the uplink). */
struct port {
	uint8_t frame[FRAME_ROOM]; /* what is sent, but for ports, pattern and TCP checksum */
	unsigned inner;            /* where the VM's frame starts: 0, or OUTER_LEN behind a VXLAN header */
	unsigned len;              /* length of what is sent */
	unsigned rx_inner, rx_len; /* the same for what is received */
	unsigned next_flow;
	uint32_t next_seq, expected_seq; /* --payload-check: sent and awaited sequence numbers */
	uint32_t tcp_sum;                /* unfolded checksum of frame with both ports zero */
	struct rte_mbuf *pending[BURST]; /* built, not yet taken by the switch */
	unsigned npending;
	uint16_t tx_queue, rx_queue; /* taken next */
	uint64_t tx, rx, rx_bytes, rx_bursts;
	uint64_t bad;       /* received frames that are not ours: address, protocol or length */
	uint64_t corrupt;   /* ours, but a byte changed on the way (--payload-check) */
	uint64_t lost;      /* sequence numbers skipped (--payload-check); drops under overload are normal */
	uint64_t reordered; /* frames that arrived after a later one (--payload-check) */
};

static struct port port[2];
static unsigned nports;
static struct rte_mempool *pool;
static unsigned l4_len, payload_offset;
static uint32_t *flow_order; /* --random: a permutation of the flows */
static uint8_t tcp_flags = TCP_ACK; /* what the next frames carry; only the learning part changes it */
static volatile sig_atomic_t stopping;

static void on_signal(int signum)
{
	(void)signum;
	stopping = 1;
}

/* ---- CPU time: is a second worth anything? ----------------------------------------------------------------------- */

static struct {
	unsigned tid;
	double start;
} watch[MAX_WATCH];
static unsigned nwatch;

static double own_cpu(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

/* Seconds a thread of any process has spent on a CPU; 0 when it is gone. */
static double thread_cpu(unsigned tid)
{
	char path[64];
	unsigned long long ns = 0;

	snprintf(path, sizeof(path), "/proc/%u/task/%u/schedstat", tid, tid);
	FILE *f = fopen(path, "r");
	if (f) {
		if (fscanf(f, "%llu", &ns) != 1)
			ns = 0;
		fclose(f);
	}
	return ns * 1e-9;
}

static void watch_start(void)
{
	for (unsigned i = 0; i < nwatch; i++)
		watch[i].start = thread_cpu(watch[i].tid);
}

/* CPU seconds of the busiest watched thread since watch_start(), or -1 when none is watched. */
static double watch_busiest(void)
{
	double busiest = nwatch ? 0 : -1;

	for (unsigned i = 0; i < nwatch; i++)
		busiest = RTE_MAX(busiest, thread_cpu(watch[i].tid) - watch[i].start);
	return busiest;
}

/* A stretch of time of which both threads' share of their cores is wanted. */
struct span {
	uint64_t tsc;
	double cpu;
};

static void span_start(struct span *s)
{
	watch_start();
	s->cpu = own_cpu();
	s->tsc = rte_rdtsc();
}

static double span_end(const struct span *s, double *own_share, double *watched_share)
{
	double secs = (double)(rte_rdtsc() - s->tsc) / rte_get_tsc_hz();

	*own_share = (own_cpu() - s->cpu) / secs;
	double busiest = watch_busiest();
	/* Reading /proc takes time too: relate it to the time at which it was read. */
	double now = (double)(rte_rdtsc() - s->tsc) / rte_get_tsc_hz();
	*watched_share = busiest < 0 ? -1 : RTE_MIN(busiest / now, 1.0);
	return secs;
}

/* ---- Frames ------------------------------------------------------------------------------------------------------ */

/* The k-th eight bytes of the payload of frame `seq` sent by `sender`. */
static inline uint64_t pattern_word(unsigned sender, uint32_t seq, unsigned k)
{
	uint64_t w = (seq + 1) * 0x9e3779b97f4a7c15ull + (k * 2 + sender + 1) * 0xd1b54a32d192ed03ull;

	return w ^ (w >> 29);
}

/* Payload: the sequence number, then the pattern up to the last byte. */
static void pattern_write(uint8_t *payload, unsigned len, unsigned sender, uint32_t seq)
{
	unsigned k = 0;

	memcpy(payload, &seq, sizeof(seq));
	payload += sizeof(seq);
	len -= sizeof(seq);
	for (; len >= 8; len -= 8, payload += 8) {
		uint64_t w = pattern_word(sender, seq, k++);
		memcpy(payload, &w, 8);
	}
	uint64_t w = pattern_word(sender, seq, k);
	memcpy(payload, &w, len);
}

static bool pattern_ok(const uint8_t *payload, unsigned len, unsigned sender, uint32_t *seq)
{
	unsigned k = 0;

	memcpy(seq, payload, sizeof(*seq));
	payload += sizeof(*seq);
	len -= sizeof(*seq);
	for (; len >= 8; len -= 8, payload += 8) {
		uint64_t w = pattern_word(sender, *seq, k++);
		if (memcmp(payload, &w, 8))
			return false;
	}
	uint64_t w = pattern_word(sender, *seq, k);
	return !memcmp(payload, &w, len);
}

static void set_mac(struct rte_ether_addr *a, uint8_t group, uint8_t last)
{
	memset(a, 0, sizeof(*a));
	a->addr_bytes[0] = 2;
	a->addr_bytes[4] = group;
	a->addr_bytes[5] = last;
}

static void fill_ipv4(struct rte_ipv4_hdr *ip, unsigned len, uint8_t proto, uint32_t src, uint32_t dst)
{
	ip->version_ihl = 0x45;
	ip->time_to_live = 64;
	ip->next_proto_id = proto;
	ip->total_length = rte_cpu_to_be_16(len);
	ip->src_addr = rte_cpu_to_be_32(src);
	ip->dst_addr = rte_cpu_to_be_32(dst);
	ip->hdr_checksum = rte_ipv4_cksum(ip);
}

/* Builds the frame that port p sends. */
static void build_frame(unsigned p)
{
	struct port *o = &port[p];
	uint8_t *d = o->frame;

	memset(d, 0, sizeof(o->frame));
	o->inner = opt.vxlan && p == 1 ? OUTER_LEN : 0;
	o->len = opt.size + o->inner;
	o->rx_inner = o->inner;
	o->rx_len = o->len;

	if (o->inner) {
		struct rte_ether_hdr *eth = (void *)d;
		struct rte_ipv4_hdr *ip = (void *)(eth + 1);
		struct rte_udp_hdr *udp = (void *)(ip + 1);
		uint8_t *vxlan = (uint8_t *)(udp + 1);

		set_mac(&eth->src_addr, 0xaa, 2);
		set_mac(&eth->dst_addr, 0xaa, 1);
		eth->ether_type = rte_cpu_to_be_16(RTE_ETHER_TYPE_IPV4);
		fill_ipv4(ip, o->len - 14, IPPROTO_UDP, RTE_IPV4(192, 168, 50, 2), RTE_IPV4(192, 168, 50, 1));
		udp->src_port = rte_cpu_to_be_16(51234);
		udp->dst_port = rte_cpu_to_be_16(4789);
		udp->dgram_len = rte_cpu_to_be_16(o->len - L4_OFFSET);
		vxlan[0] = 0x08; /* VNI valid */
		vxlan[6] = 100;
		d += OUTER_LEN;
	}

	struct rte_ether_hdr *eth = (void *)d;
	struct rte_ipv4_hdr *ip = (void *)(eth + 1);

	set_mac(&eth->src_addr, 0, 1 + p);
	set_mac(&eth->dst_addr, 0, 2 - p);
	eth->ether_type = rte_cpu_to_be_16(RTE_ETHER_TYPE_IPV4);
	fill_ipv4(ip, opt.size - 14, opt.tcp ? IPPROTO_TCP : IPPROTO_UDP, RTE_IPV4(10, 0, 0, 1) + p,
		  RTE_IPV4(10, 0, 0, 2) - p);
	if (opt.tcp) {
		struct rte_tcp_hdr *tcp = (void *)(ip + 1);

		/* Every data segment is the same one again: in the window of any tracker, whatever is dropped. */
		tcp->sent_seq = rte_cpu_to_be_32(1001);
		tcp->recv_ack = rte_cpu_to_be_32(1001);
		tcp->data_off = 5 << 4;
		tcp->tcp_flags = TCP_ACK;
		tcp->rx_win = rte_cpu_to_be_16(65535);
		o->tcp_sum = rte_ipv4_phdr_cksum(ip, 0) + rte_raw_cksum(tcp, opt.size - L4_OFFSET);
	} else {
		struct rte_udp_hdr *udp = (void *)(ip + 1);

		udp->dgram_len = rte_cpu_to_be_16(opt.size - L4_OFFSET); /* checksum 0: none */
	}
}

/* Everything that is not on the fastest path: pattern, and the TCP header. */
static void __rte_noinline finish_frame(unsigned p, uint8_t *d)
{
	struct port *o = &port[p];

	if (opt.payload_check)
		pattern_write(d + payload_offset, opt.size - payload_offset, p, o->next_seq++);
	if (opt.tcp) {
		struct rte_ipv4_hdr *ip = (void *)(d + 14);
		struct rte_tcp_hdr *tcp = (void *)(d + L4_OFFSET);

		if (opt.payload_check || tcp_flags != TCP_ACK) {
			if (tcp_flags & TCP_SYN) { /* handshake: numbers one before the data */
				tcp->sent_seq = rte_cpu_to_be_32(1000);
				tcp->recv_ack = tcp_flags & TCP_ACK ? rte_cpu_to_be_32(1001) : 0;
			}
			tcp->tcp_flags = tcp_flags;
			tcp->cksum = 0;
			tcp->cksum = opt.tx_csum ? rte_ipv4_phdr_cksum(ip, 0) : rte_ipv4_udptcp_cksum(ip, tcp);
		} else {
			uint32_t sum = o->tcp_sum + tcp->src_port + tcp->dst_port;

			sum = (sum & 0xffff) + (sum >> 16);
			sum = (sum & 0xffff) + (sum >> 16);
			tcp->cksum = ~sum;
		}
	}
}

/* Writes the next frame of port p to d. */
static inline void write_frame(uint8_t *d, unsigned p)
{
	struct port *o = &port[p];

	memcpy(d, o->frame, 64); /* constant size: inlined */
	if (o->len > 64)
		memcpy(d + 64, o->frame + 64, o->len - 64);
	d += o->inner;

	unsigned f = o->next_flow;
	o->next_flow = f + 1 < opt.flows ? f + 1 : 0;
	if (flow_order)
		f = flow_order[f];
	uint16_t client = rte_cpu_to_be_16(1024 + (f & 0x7fff)), server = rte_cpu_to_be_16(5001 + (f >> 15));
	*(uint16_t *)(d + L4_OFFSET) = p ? server : client;
	*(uint16_t *)(d + L4_OFFSET + 2) = p ? client : server;

	if (opt.tcp || opt.payload_check)
		finish_frame(p, d);
}

/* Spreads a frame over a chain of mbufs of about equal length: a descriptor chain in the ring. */
static bool __rte_noinline fill_chain(struct rte_mbuf *head, unsigned p)
{
	struct rte_mbuf *tail = head;
	uint8_t frame[FRAME_ROOM];
	unsigned len = port[p].len, done = 0;

	write_frame(frame, p);
	for (unsigned i = 0; i < opt.segments; i++) {
		unsigned upto = len * (i + 1) / opt.segments;

		if (i) {
			struct rte_mbuf *m = rte_pktmbuf_alloc(pool);

			if (!m)
				return false;
			tail->next = m;
			tail = m;
			head->nb_segs++;
		}
		memcpy(rte_pktmbuf_mtod(tail, uint8_t *), frame + done, upto - done);
		tail->data_len = upto - done;
		done = upto;
	}
	head->pkt_len = len;
	return true;
}

static inline bool fill_mbuf(struct rte_mbuf *m, unsigned p)
{
	if (opt.segments > 1) {
		if (!fill_chain(m, p))
			return false;
	} else {
		write_frame(rte_pktmbuf_mtod(m, uint8_t *), p);
		m->data_len = m->pkt_len = port[p].len;
	}
	if (opt.tx_csum) {
		m->ol_flags |= RTE_MBUF_F_TX_IPV4 | RTE_MBUF_F_TX_TCP_CKSUM;
		m->l2_len = 14;
		m->l3_len = 20;
		m->l4_len = 20;
	}
	return true;
}

/* ---- Sending and receiving --------------------------------------------------------------------------------------- */

/* Offers n new frames, or what the switch did not take last time. Returns how many it took. */
static inline unsigned send_burst(unsigned p, unsigned n)
{
	struct port *o = &port[p];

	if (!o->npending) {
		if (rte_pktmbuf_alloc_bulk(pool, o->pending, n))
			return 0;
		for (unsigned i = 0; i < n; i++) {
			if (unlikely(!fill_mbuf(o->pending[i], p))) { /* no mbuf for the chain: later */
				rte_pktmbuf_free_bulk(o->pending + i, n - i);
				break;
			}
			o->npending++;
		}
	}
	unsigned sent = rte_eth_tx_burst(p, o->tx_queue, o->pending, o->npending);
	if (sent == o->npending)
		o->tx_queue = (o->tx_queue + 1) % opt.queues;
	if (sent && sent < o->npending)
		memmove(o->pending, o->pending + sent, (o->npending - sent) * sizeof(o->pending[0]));
	o->npending -= sent;
	o->tx += sent;
	return sent;
}

/* Is it a frame of ours at all? Looks at one cache line, two behind a VXLAN header. */
static inline bool frame_ours(unsigned p, const struct rte_mbuf *m)
{
	const uint8_t *d = rte_pktmbuf_mtod(m, const uint8_t *);

	if (m->pkt_len != port[p].rx_len || m->data_len < RTE_MIN(m->pkt_len, 60u))
		return false;
	if (port[p].rx_inner) /* VXLAN's port, inner destination VM B */
		return d[36] == 0x12 && d[37] == 0xb5 && d[OUTER_LEN + 5] == 2;
	return d[5] == 1 + p && d[23] == (opt.tcp ? IPPROTO_TCP : IPPROTO_UDP);
}

/*
 * The checksum's sum over pseudo-header and segment, checksum included, is all ones. A receiver that negotiated
 * checksum offload (--rx-csum) may also be given the pseudo-header's sum alone.
 */
static bool tcp_sum_ok(const uint8_t *d)
{
	const struct rte_tcp_hdr *tcp = (const void *)(d + L4_OFFSET);
	uint32_t sum = rte_ipv4_phdr_cksum((const void *)(d + 14), 0);

	if (opt.rx_csum && tcp->cksum == sum)
		return true;
	sum += rte_raw_cksum(d + L4_OFFSET, opt.size - L4_OFFSET);
	return (sum & 0xffff) + (sum >> 16) == 0xffff;
}

/* Is every byte of the VM's frame what the other port sent? */
static bool frame_intact(unsigned p, const struct rte_mbuf *m)
{
	struct port *in = &port[p];
	const struct port *sender = &port[!p];
	uint8_t copy[FRAME_ROOM];
	const uint8_t *d = rte_pktmbuf_read(m, in->rx_inner, opt.size, copy);
	const uint8_t *sent = sender->frame + sender->inner;

	if (!d || memcmp(d, sent, L4_OFFSET)) /* Ethernet and IP header */
		return false;

	uint16_t src = rte_be_to_cpu_16(*(const uint16_t *)(d + L4_OFFSET));
	uint16_t dst = rte_be_to_cpu_16(*(const uint16_t *)(d + L4_OFFSET + 2));
	unsigned client = p ? src : dst, server = p ? dst : src;
	if (client < 1024 || client > 1024 + 0x7fff || server < 5001 ||
	    ((server - 5001) << 15 | (client - 1024)) >= opt.flows)
		return false;

	if (opt.tcp) {
		if (!tcp_sum_ok(d))
			return false;
	} else if (memcmp(d + L4_OFFSET + 4, sent + L4_OFFSET + 4, 4)) { /* UDP length and checksum */
		return false;
	}

	uint32_t seq;
	if (!pattern_ok(d + payload_offset, opt.size - payload_offset, !p, &seq))
		return false;
	int32_t ahead = seq - in->expected_seq;
	if (ahead < 0) {
		in->reordered++;
	} else {
		in->lost += ahead;
		in->expected_seq = seq + 1;
	}
	return true;
}

static inline unsigned receive_burst(unsigned p)
{
	struct port *o = &port[p];
	struct rte_mbuf *m[BURST];
	unsigned n = 0, good = 0;

	for (unsigned tries = 0; !n && tries < opt.queues; tries++) {
		n = rte_eth_rx_burst(p, o->rx_queue, m, BURST);
		o->rx_queue = (o->rx_queue + 1) % opt.queues;
	}
	if (!n)
		return 0;
	for (unsigned i = 0; i < n; i++) {
		if (opt.check && unlikely(!frame_ours(p, m[i]))) {
			o->bad++;
			continue;
		}
		if (opt.payload_check && unlikely(!frame_intact(p, m[i]))) {
			o->corrupt++;
			continue;
		}
		good++;
		o->rx_bytes += m[i]->pkt_len;
	}
	o->rx_bursts++;
	o->rx += good;
	rte_pktmbuf_free_bulk(m, n);
	return n;
}

/* ---- The parts of a run ------------------------------------------------------------------------------------------ */

static void receive_for(uint64_t ticks)
{
	uint64_t start = rte_rdtsc();

	do {
		for (unsigned p = 0; p < nports; p++)
			receive_burst(p);
	} while (rte_rdtsc() - start < ticks);
}

/* Slowly, so that nothing is lost: the switch learns addresses, every flow is set up in both directions. */
static void learn(void)
{
	uint64_t gap = rte_get_tsc_hz() / opt.learn_pps;
	unsigned steps = RTE_MAX(2 * opt.flows, 2000u);

	for (unsigned i = 0; i < steps && !stopping; i++) {
		bool handshake = opt.tcp && i < opt.flows; /* first pass: SYN, then SYN+ACK */

		for (unsigned p = 0; p < nports; p++) {
			if (handshake)
				tcp_flags = p ? TCP_SYN | TCP_ACK : TCP_SYN;
			send_burst(p, 1);
			tcp_flags = TCP_ACK;
			receive_for(gap / nports);
		}
	}
}

/* Lets the caller reset the switch's counters between warm-up and measurement: print a mark, await a line. */
static void synchronise(void)
{
	char c;

	printf("READY\n");
	fflush(stdout);
	if (opt.sync)
		while (read(STDIN_FILENO, &c, 1) == 1 && c != '\n')
			;
}

static int compare_double(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static FILE *json_open(void)
{
	FILE *f = opt.json ? fopen(opt.json, "w") : NULL;

	if (opt.json && !f) {
		perror(opt.json);
		exit(1);
	}
	if (f)
		fprintf(f,
			"{\"flows\": %u, \"size\": %u, \"dir\": \"%s\", \"proto\": \"%s\", \"vxlan\": %s, "
			"\"payload_check\": %s, \"tsc_hz\": %lu,\n \"seconds\": [",
			opt.flows, opt.size, direction_name[opt.dir], opt.tcp ? "tcp" : "udp",
			opt.vxlan ? "true" : "false", opt.payload_check ? "true" : "false",
			(unsigned long)rte_get_tsc_hz());
	return f;
}

/* Ends the summary and the file, after drain(). */
static void json_totals(FILE *f)
{
	if (!f)
		return;
	fprintf(f, "\"bad\": %lu, \"corrupt\": %lu, \"lost\": %lu, \"reordered\": %lu},\n \"ports\": [",
		(unsigned long)(port[0].bad + port[1].bad), (unsigned long)(port[0].corrupt + port[1].corrupt),
		(unsigned long)(port[0].lost + port[1].lost), (unsigned long)(port[0].reordered + port[1].reordered));
	for (unsigned p = 0; p < nports; p++) {
		const struct port *o = &port[p];

		fprintf(f,
			"%s\n  {\"tx\": %lu, \"rx\": %lu, \"bad\": %lu, \"corrupt\": %lu, \"lost\": %lu, "
			"\"reordered\": %lu}",
			p ? "," : "", (unsigned long)o->tx, (unsigned long)o->rx, (unsigned long)o->bad,
			(unsigned long)o->corrupt, (unsigned long)o->lost, (unsigned long)o->reordered);
	}
	fprintf(f, "]}\n");
	fclose(f);
}

static void print_check_result(void)
{
	printf(" bad=%lu", (unsigned long)(port[0].bad + port[1].bad));
	if (opt.payload_check)
		printf(" corrupt=%lu lost=%lu reordered=%lu", (unsigned long)(port[0].corrupt + port[1].corrupt),
		       (unsigned long)(port[0].lost + port[1].lost),
		       (unsigned long)(port[0].reordered + port[1].reordered));
	printf("\n");
}

/* Nothing is sent any more: receives until nothing has arrived for a while. Offers what was built but not taken. */
static void drain(void)
{
	uint64_t hz = rte_get_tsc_hz(), begin = rte_rdtsc(), last = begin;

	while (rte_rdtsc() - last < hz * 3 / 10 && rte_rdtsc() - begin < hz * 10) {
		for (unsigned p = 0; p < nports; p++) {
			if (port[p].npending && send_burst(p, BURST))
				last = rte_rdtsc();
			if (receive_burst(p))
				last = rte_rdtsc();
		}
	}
}

/* What each port sent and received in the whole run. */
static void print_totals(void)
{
	for (unsigned p = 0; p < nports; p++) {
		const struct port *o = &port[p];

		printf("TOTAL port=%u tx=%lu rx=%lu bad=%lu corrupt=%lu lost=%lu reordered=%lu\n", p,
		       (unsigned long)o->tx, (unsigned long)o->rx, (unsigned long)o->bad,
		       (unsigned long)o->corrupt, (unsigned long)o->lost, (unsigned long)o->reordered);
	}
}

/* One frame at a time from port 0 to port 1. */
static void measure_latency(FILE *json)
{
	static double us[LATENCY_SAMPLES];
	uint64_t hz = rte_get_tsc_hz();
	unsigned n = 0, lost = 0;
	double own, watched;
	struct span span;

	synchronise();
	span_start(&span);
	for (unsigned i = 0; i < LATENCY_SAMPLES && !stopping; i++) {
		uint64_t seen = port[1].rx, start = rte_rdtsc();

		while (!send_burst(0, 1) && !stopping)
			;
		while (port[1].rx == seen && rte_rdtsc() - start < hz / 1000)
			receive_burst(1);
		if (port[1].rx == seen)
			lost++;
		else
			us[n++] = (double)(rte_rdtsc() - start) * 1e6 / hz;
	}
	span_end(&span, &own, &watched);
	qsort(us, n, sizeof(us[0]), compare_double);
	double q[4] = {0};
	if (n) {
		q[0] = us[n / 2];
		q[1] = us[(uint64_t)n * 90 / 100];
		q[2] = us[(uint64_t)n * 99 / 100];
		q[3] = us[(uint64_t)n * 999 / 1000];
	}
	printf("RESULT lat one-way p50=%.2fus p90=%.2f p99=%.2f p99.9=%.2f lost=%u n=%u cpu=%.3f switch=%.3f", q[0],
	       q[1], q[2], q[3], lost, n, own, watched);
	print_check_result();
	if (json) {
		fprintf(json,
			"],\n \"summary\": {\"p50_us\": %.3f, \"p90_us\": %.3f, \"p99_us\": %.3f, \"p999_us\": %.3f, "
			"\"samples\": %u, \"timeouts\": %u, \"cpu\": %.4f, \"switch_cpu\": %.4f, ",
			q[0], q[1], q[2], q[3], n, lost, own, watched);
	}
}

/* Flat out until `end` (TSC). */
static void blast(uint64_t end)
{
	bool tx0 = opt.dir != REV, tx1 = nports > 1 && (opt.dir == BIDI || opt.dir == REV);
	bool rx1 = nports > 1, rx0 = opt.dir != UNI || nports == 1;

	while (rte_rdtsc() < end && !stopping) {
		for (unsigned i = 0; i < 16; i++) {
			if (tx0)
				send_burst(0, BURST);
			if (tx1)
				send_burst(1, BURST);
			if (rx1)
				receive_burst(1);
			if (rx0)
				receive_burst(0);
		}
	}
}

static void measure_throughput(FILE *json)
{
	static double mpps[MAX_SECS];
	uint64_t hz = rte_get_tsc_hz(), total_tx = 0, total_rx = 0;
	bool count_tx = opt.dir == UPLINK || nports == 1; /* nothing comes back: count what was taken */
	unsigned n = 0;

	blast(rte_rdtsc() + hz * opt.warm);
	synchronise();
	for (unsigned s = 1; s <= opt.secs && !stopping; s++) {
		uint64_t rx = port[0].rx + port[1].rx, tx = port[0].tx + port[1].tx;
		uint64_t bursts = port[0].rx_bursts + port[1].rx_bursts;
		double own, watched;
		struct span span;

		span_start(&span);
		blast(span.tsc + hz);
		double secs = span_end(&span, &own, &watched);

		rx = port[0].rx + port[1].rx - rx;
		tx = port[0].tx + port[1].tx - tx;
		bursts = port[0].rx_bursts + port[1].rx_bursts - bursts;
		total_rx += rx;
		total_tx += tx;
		double rx_mpps = rx / secs / 1e6, tx_mpps = tx / secs / 1e6;
		double per_burst = bursts ? (double)rx / bursts : 0;
		mpps[n++] = count_tx ? tx_mpps : rx_mpps;
		printf("  t=%u rx %.3f tx %.3f Mpps cpu %.3f switch %.3f rxburst %.1f\n", s, rx_mpps, tx_mpps, own,
		       watched, per_burst);
		fflush(stdout);
		if (json)
			fprintf(json,
				"%s\n  {\"t\": %u, \"rx_mpps\": %.4f, \"tx_mpps\": %.4f, \"cpu\": %.4f, "
				"\"switch_cpu\": %.4f, \"rx_burst\": %.2f}",
				s > 1 ? "," : "", s, rx_mpps, tx_mpps, own, watched, per_burst);
	}
	qsort(mpps, n, sizeof(mpps[0]), compare_double);
	double min = n ? mpps[0] : 0, median = n ? mpps[n / 2] : 0, max = n ? mpps[n - 1] : 0;
	printf("RESULT %s flows=%u size=%u Mpps min %.3f med %.3f max %.3f", direction_name[opt.dir], opt.flows,
	       opt.size, min, median, max);
	print_check_result();
	if (json) {
		fprintf(json,
			"],\n \"summary\": {\"counted\": \"%s\", \"min\": %.4f, \"median\": %.4f, \"max\": %.4f, "
			"\"tx\": %lu, \"rx\": %lu, ",
			count_tx ? "tx" : "rx", min, median, max, (unsigned long)total_tx, (unsigned long)total_rx);
	}
}

/* ---- Set-up ------------------------------------------------------------------------------------------------------ */

static void usage(void)
{
	puts("vugen <EAL options> -- [options]\n"
	     "  --flows N        flows to cycle through (1)\n"
	     "  --random         cycle in a random order; --seed N chooses it (1)\n"
	     "  --size BYTES     frame size without FCS, 60 to 9000 (64)\n"
	     "  --room BYTES     data room of an mbuf (2048 if frames fit, else 9216); with mergeable buffers a small one\n"
	     "                   makes large frames arrive in several buffers, and leave in several descriptors\n"
	     "  --queues N       send by N queues in turn, receive by as many (1; 16 at most); frames overtake each other then\n"
	     "  --segments N     send each frame in at least N descriptors (1)\n"
	     "  --dir D          uni: port 0 to 1; bidi: both ways (sums); rev: port 1 to 0; lat: one-way latency,\n"
	     "                   one frame at a time; uplink: send on port 0, count what is taken (uni)\n"
	     "  --secs S         measured seconds (5)\n"
	     "  --warm S         seconds at full speed before (2)\n"
	     "  --vxlan          port 1 is an uplink that carries VXLAN (VNI 100)\n"
	     "  --tcp            TCP with a handshake per flow instead of UDP\n"
	     "  --tx-csum        leave TCP checksums to the switch or the receiver (virtio's partial checksum)\n"
	     "  --rx-csum        accept partial checksums\n"
	     "  --payload-check  sequence number and pattern in every frame, every byte verified (slower)\n"
	     "  --nocheck        do not look at received frames at all\n"
	     "  --watch TID,..   also print the core share of the busiest of these threads (the switch's)\n"
	     "  --json FILE      write seconds and summary there\n"
	     "  --sync           print READY before measuring and await a line on standard input\n"
	     "  --slow PPS       pace of the learning part, steps per second (200000)\n"
	     "  --qsz N          descriptors per queue (256)\n"
	     "  --mbufs N, --mbc N  mbufs (4095) and per-core mbuf cache (512)");
}

static unsigned number(const char *text, unsigned min, unsigned max, const char *what)
{
	char *end;
	unsigned long n = strtoul(text, &end, 10);

	if (!*text || *end || n < min || n > max) {
		fprintf(stderr, "%s: want a number from %u to %u, not \"%s\"\n", what, min, max, text);
		exit(1);
	}
	return n;
}

static void parse_options(int argc, char **argv)
{
	static const struct option options[] = {
		{"flows", 1, 0, 'f'}, {"size", 1, 0, 's'},    {"dir", 1, 0, 'd'},  {"secs", 1, 0, 't'},
		{"warm", 1, 0, 'w'},  {"qsz", 1, 0, 'q'},     {"nocheck", 0, 0, 'n'}, {"vxlan", 0, 0, 'v'},
		{"slow", 1, 0, 'l'},  {"mbufs", 1, 0, 'm'},   {"mbc", 1, 0, 'c'},  {"tcp", 0, 0, 'T'},
		{"json", 1, 0, 'j'},  {"watch", 1, 0, 'W'},   {"sync", 0, 0, 'S'}, {"payload-check", 0, 0, 'p'},
		{"help", 0, 0, 'h'},  {"random", 0, 0, 'r'},  {"seed", 1, 0, 'e'}, {"room", 1, 0, 'R'},
		{"segments", 1, 0, 'g'}, {"queues", 1, 0, 'Q'}, {"tx-csum", 0, 0, 'x'}, {"rx-csum", 0, 0, 'y'}, {0},
	};
	int c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (c) {
		case 'f': opt.flows = number(optarg, 1, 32768 * 60000u, "flows"); break;
		case 's': opt.size = number(optarg, 60, MAX_SIZE, "size"); break;
		case 'r': opt.random = true; break;
		case 'e': opt.seed = number(optarg, 0, ~0u, "seed"); break;
		case 'R': opt.room = number(optarg, 128, FRAME_ROOM, "room"); break;
		case 'Q': opt.queues = number(optarg, 1, 16, "queues"); break;
		case 'g': opt.segments = number(optarg, 1, 64, "segments"); break;
		case 'x': opt.tx_csum = true; break;
		case 'y': opt.rx_csum = true; break;
		case 't': opt.secs = number(optarg, 1, MAX_SECS, "secs"); break;
		case 'w': opt.warm = number(optarg, 0, MAX_SECS, "warm"); break;
		case 'q': opt.queue_size = number(optarg, 1, 32768, "qsz"); break;
		case 'l': opt.learn_pps = number(optarg, 1, 100000000, "slow"); break;
		case 'm': opt.mbufs = number(optarg, 512, 1 << 24, "mbufs"); break;
		case 'c': opt.mbuf_cache = number(optarg, 0, 512, "mbc"); break;
		case 'n': opt.check = false; break;
		case 'v': opt.vxlan = true; break;
		case 'T': opt.tcp = true; break;
		case 'S': opt.sync = true; break;
		case 'p': opt.payload_check = true; break;
		case 'j': opt.json = optarg; break;
		case 'd': {
			unsigned i = 0;
			while (i < RTE_DIM(direction_name) && strcmp(optarg, direction_name[i]))
				i++;
			if (i == RTE_DIM(direction_name)) {
				fprintf(stderr, "dir: uni, bidi, rev, lat or uplink\n");
				exit(1);
			}
			opt.dir = i;
			break;
		}
		case 'W':
			for (char *t = strtok(optarg, ","); t && nwatch < MAX_WATCH; t = strtok(NULL, ","))
				watch[nwatch++].tid = number(t, 1, 1u << 30, "watch");
			break;
		case 'h': usage(); exit(0);
		default: usage(); exit(1);
		}
	}
	l4_len = opt.tcp ? sizeof(struct rte_tcp_hdr) : sizeof(struct rte_udp_hdr);
	payload_offset = L4_OFFSET + l4_len;
	if (opt.payload_check && !opt.check) {
		fprintf(stderr, "--payload-check and --nocheck exclude each other\n");
		exit(1);
	}
	if ((opt.tx_csum || opt.rx_csum) && !(opt.tcp && opt.payload_check)) {
		fprintf(stderr, "--tx-csum and --rx-csum go with --tcp --payload-check\n");
		exit(1);
	}
	unsigned len = opt.size + (opt.vxlan ? OUTER_LEN : 0);
	if (!opt.room)
		opt.room = len <= SMALL_ROOM ? SMALL_ROOM : FRAME_ROOM;
	opt.segments = RTE_MAX(opt.segments, (len + opt.room - 1) / opt.room);
	if (opt.segments > len / 2) {
		fprintf(stderr, "%u segments are too many for %u bytes\n", opt.segments, len);
		exit(1);
	}
}

/* Fisher-Yates with a generator of its own (splitmix64): the same order for a seed everywhere. */
static bool shuffle_flows(void)
{
	uint64_t state = opt.seed;

	flow_order = malloc(opt.flows * sizeof(*flow_order));
	if (!flow_order)
		return false;
	for (unsigned i = 0; i < opt.flows; i++)
		flow_order[i] = i;
	for (unsigned i = opt.flows - 1; i > 0; i--) {
		uint64_t z = state += 0x9e3779b97f4a7c15ull;

		z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
		z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
		z ^= z >> 31;
		unsigned j = z % (i + 1);
		uint32_t other = flow_order[j];
		flow_order[j] = flow_order[i];
		flow_order[i] = other;
	}
	return true;
}

static bool start_port(unsigned p)
{
	struct rte_eth_conf conf = {0};
	struct rte_eth_dev_info info;
	unsigned len = RTE_MAX(port[p].len, port[p].rx_len);

	if (rte_eth_dev_info_get(p, &info))
		return false;
	if (len > 1514)
		conf.rxmode.mtu = len - 14;
	if (len > opt.room) {
		if (!(info.rx_offload_capa & RTE_ETH_RX_OFFLOAD_SCATTER)) {
			fprintf(stderr, "port %u: frames of %u bytes need --room %u or mergeable buffers\n", p, len, len);
			return false;
		}
		conf.rxmode.offloads |= RTE_ETH_RX_OFFLOAD_SCATTER;
	}
	if (opt.segments > 1)
		conf.txmode.offloads |= RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
	if (opt.tx_csum)
		conf.txmode.offloads |= RTE_ETH_TX_OFFLOAD_TCP_CKSUM;
	if (opt.rx_csum)
		conf.rxmode.offloads |= RTE_ETH_RX_OFFLOAD_TCP_CKSUM | RTE_ETH_RX_OFFLOAD_UDP_CKSUM;
	if (rte_eth_dev_configure(p, opt.queues, opt.queues, &conf))
		return false;
	for (unsigned q = 0; q < opt.queues; q++) {
		if (rte_eth_rx_queue_setup(p, q, opt.queue_size, 0, NULL, pool) ||
		    rte_eth_tx_queue_setup(p, q, opt.queue_size, 0, NULL))
			return false;
	}
	if (rte_eth_dev_start(p))
		return false;
	rte_eth_promiscuous_enable(p);
	return true;
}

static bool links_up(void)
{
	for (unsigned p = 0; p < nports; p++) {
		struct rte_eth_link link;

		if (rte_eth_link_get_nowait(p, &link) || !link.link_status)
			return false;
	}
	return true;
}

int main(int argc, char **argv)
{
	int n = rte_eal_init(argc, argv);

	if (n < 0)
		return 1;
	parse_options(argc - n, argv + n);
	signal(SIGINT, on_signal);
	signal(SIGTERM, on_signal);

	nports = rte_eth_dev_count_avail();
	if (nports < 1 || nports > 2 || (opt.dir != UPLINK && nports < 2)) {
		fprintf(stderr, "found %u ports; need two, or one for --dir uplink\n", nports);
		return 1;
	}
	if (opt.random && !shuffle_flows()) {
		fprintf(stderr, "no memory for %u flows\n", opt.flows);
		return 1;
	}
	pool = rte_pktmbuf_pool_create("frames", opt.mbufs, opt.mbuf_cache, 0, opt.room + RTE_PKTMBUF_HEADROOM, 0);
	if (!pool) {
		fprintf(stderr, "no memory for %u mbufs\n", opt.mbufs);
		return 1;
	}
	build_frame(0);
	build_frame(1);
	for (unsigned p = 0; p < nports; p++) {
		if (!start_port(p)) {
			fprintf(stderr, "port %u: set-up failed\n", p);
			return 1;
		}
	}
	for (unsigned i = 0; i < 100 && !links_up() && !stopping; i++)
		rte_delay_ms(100);
	if (!links_up())
		fprintf(stderr, "warning: a link is still down after 10 s\n");
	rte_delay_ms(500);

	FILE *json = json_open();
	learn();
	if (opt.dir == LAT)
		measure_latency(json);
	else
		measure_throughput(json);
	drain();
	print_totals();
	json_totals(json);
	fflush(stdout);

	for (unsigned p = 0; p < nports; p++)
		rte_eth_dev_stop(p);
	rte_eal_cleanup();
	free(flow_order);
	return port[0].corrupt + port[1].corrupt ? 4 : 0;
}
