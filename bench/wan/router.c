/*
 * A router for measurements: packets between TUN devices, each delivered a fixed time after it has
 * left a link of a given rate.
 *
 *   router NAME...      one TUN device of each name; the machine of the nth has address 10.77.0.n
 *
 * It reads lines from standard input, "DELAY_US RATE_KBIT" (rate 0: no limit), and answers each with
 * "ok PACKETS BYTES DROPPED", the traffic since the line before. It ends when its input ends or a device
 * is removed.
 *
 * A source has one link towards the router. A packet starts on it when the packets before it are
 * through, takes its length over the rate, and arrives the delay later. So the packets of a source
 * arrive in the order they came, and a ring a source is all the queue there is. A packet that would
 * wait longer than QUEUE_NS for the link is dropped, as a real queue of that size would do.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { MAX_PORTS = 8, SLOTS = 16384, ROOM = 2048, BURST = 64 };
static const uint64_t QUEUE_NS = 100000000;

struct packet {
    uint64_t due;
    uint32_t target, length;
    unsigned char data[ROOM];
};

struct port {
    struct packet *ring; /* packets of this source, oldest at head */
    uint32_t head, tail; /* counted up for ever, taken modulo SLOTS */
    uint64_t link_free;  /* when the link is through with what it has */
    uint64_t last_due;
};

static struct port ports[MAX_PORTS];
static struct pollfd fds[MAX_PORTS + 1];
static uint32_t count;
static uint64_t delay_ns, rate_kbit, packets, bytes, dropped;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void fail(const char *what) {
    fprintf(stderr, "router: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void open_port(const char *name) {
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
    if (fd < 0) fail("/dev/net/tun");
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
    if (ioctl(fd, TUNSETIFF, &request) < 0) fail(name);
    ports[count].ring = calloc(SLOTS, sizeof(struct packet));
    if (ports[count].ring == NULL) fail("memory");
    fds[count++] = (struct pollfd){.fd = fd, .events = POLLIN};
}

/* Which port an IPv4 packet is for; `count` if for none. */
static uint32_t target_of(const unsigned char *data, ssize_t length) {
    if (length < 20 || data[0] >> 4 != 4) return count;
    if (data[16] != 10 || data[17] != 77 || data[18] != 0) return count;
    return data[19] >= 1 && data[19] <= count ? data[19] - 1u : count;
}

static void accept_packets(uint32_t source) {
    struct port *port = &ports[source];
    for (int i = 0; i < BURST; i++) {
        struct packet spare, *packet = &port->ring[port->tail % SLOTS];
        int full = port->tail - port->head == SLOTS;
        if (full) packet = &spare;
        ssize_t length = read(fds[source].fd, packet->data, ROOM);
        if (length < 0) {
            if (errno == EAGAIN || errno == EIO || errno == EINTR) return; /* EIO: device is down */
            fail("read");
        }
        uint32_t target = target_of(packet->data, length);
        if (target == count) continue;
        uint64_t now = now_ns();
        uint64_t start = port->link_free > now ? port->link_free : now;
        if (full || start - now > QUEUE_NS) {
            dropped++;
            continue;
        }
        port->link_free = start;
        if (rate_kbit) port->link_free += (uint64_t)length * 8u * 1000000u / rate_kbit;
        packet->due = port->link_free + delay_ns;
        /* A delay that was made shorter mustn't let a packet overtake. */
        if (packet->due < port->last_due) packet->due = port->last_due;
        port->last_due = packet->due;
        packet->target = target;
        packet->length = (uint32_t)length;
        port->tail++;
        packets++;
        bytes += (uint64_t)length;
    }
}

/* Delivers what is due; returns when the next packet is, UINT64_MAX if there is none. */
static uint64_t deliver(void) {
    uint64_t next = UINT64_MAX, now = now_ns();
    for (uint32_t i = 0; i < count; i++) {
        struct port *port = &ports[i];
        while (port->head != port->tail) {
            struct packet *packet = &port->ring[port->head % SLOTS];
            if (packet->due > now) {
                if (packet->due < next) next = packet->due;
                break;
            }
            /* A device that is down or full loses the packet, as any network may. */
            if (write(fds[packet->target].fd, packet->data, packet->length) < 0) {
                if (errno != EAGAIN && errno != EIO && errno != EINVAL) fail("write");
                dropped++;
            }
            port->head++;
        }
    }
    return next;
}

static void take_command(void) {
    char line[80];
    ssize_t length = read(STDIN_FILENO, line, sizeof line - 1);
    unsigned long long delay_us, kbit;
    if (length <= 0) exit(0);
    line[length] = 0;
    if (sscanf(line, "%llu %llu", &delay_us, &kbit) != 2) {
        fprintf(stderr, "router: expected DELAY_US RATE_KBIT\n");
        exit(1);
    }
    delay_ns = delay_us * 1000u;
    rate_kbit = kbit;
    printf("ok %llu %llu %llu\n", (unsigned long long)packets, (unsigned long long)bytes,
           (unsigned long long)dropped);
    fflush(stdout);
    packets = bytes = dropped = 0;
}

int main(int argc, char **argv) {
    if (argc < 3 || argc > MAX_PORTS + 1) {
        fprintf(stderr, "usage: router NAME... (2 to %d)\n", MAX_PORTS);
        return 1;
    }
    for (int i = 1; i < argc; i++) open_port(argv[i]);
    fds[count] = (struct pollfd){.fd = STDIN_FILENO, .events = POLLIN};
    /* A network doesn't wait until the computation beside it leaves a core free. */
    struct sched_param priority = {.sched_priority = 1};
    if (sched_setscheduler(0, SCHED_FIFO, &priority) < 0) perror("router: no real-time priority");
    prctl(PR_SET_TIMERSLACK, 1000ul, 0ul, 0ul, 0ul);
    puts("ready");
    fflush(stdout);
    for (;;) {
        uint64_t next = deliver(), now = now_ns(), wait = next > now ? next - now : 0;
        struct timespec time = {(time_t)(wait / 1000000000u), (long)(wait % 1000000000u)};
        int ready = ppoll(fds, count + 1, next == UINT64_MAX ? NULL : &time, NULL);
        if (ready < 0 && errno != EINTR) fail("ppoll");
        if (ready <= 0) continue;
        for (uint32_t i = 0; i < count; i++) {
            if (fds[i].revents & POLLERR) return 0; /* the devices were removed: the end */
            if (fds[i].revents & POLLIN) accept_packets(i);
        }
        if (fds[count].revents) take_command();
    }
}
