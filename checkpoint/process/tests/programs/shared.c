/* One of two processes that take turns in shared memory, until FILE.stop appears: ROLE FILE. Each
 * knows what the other must have left there. */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define BYTES (1 << 20)
#define OVER (1u << 31)

int main(int argc, char **argv)
{
    if (argc != 3) return 3;
    unsigned role = (unsigned)atoi(argv[1]);
    char stop[4096];
    snprintf(stop, sizeof stop, "%s.stop", argv[2]);
    int fd = open(argv[2], O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, BYTES) != 0) return 4;
    /* The two map it differently, and only one keeps it open. */
    size_t offset = role * 4096, bytes = BYTES - offset;
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
    if (at == MAP_FAILED) return 5;
    if (role == 1) close(fd);
    atomic_uint *turn = (void *)(at + 500000 - offset);
    unsigned *sum = (void *)(at + 900000 - offset);
    unsigned expected = 0, known = 0, now;
    printf("ready\n");
    fflush(stdout);
    do {
        while ((now = atomic_load(turn)) % 2 != role && now != OVER) usleep(50);
        if (now == OVER) break;
        for (; known < now; known++) expected = expected * 31 + known;
        if (*sum != expected) {
            printf("sum is wrong in turn %u\n", now);
            return 6;
        }
        *sum = expected * 31 + now;
        atomic_store(turn, role == 0 && access(stop, F_OK) == 0 ? OVER : now + 1);
    } while (atomic_load(turn) != OVER);
    printf("sum is right\n");
    return 0;
}
