/* One of two processes that take turns in shared memory: ROLE FILE. */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    if (argc != 3) return 3;
    unsigned role = (unsigned)atoi(argv[1]);
    int fd = open(argv[2], O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, 1 << 20) != 0) return 4;
    /* The two map it differently. */
    size_t offset = role * 4096, bytes = (1 << 20) - offset;
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
    close(fd);
    if (at == MAP_FAILED) return 5;
    atomic_uint *turn = (void *)(at + 500000 - offset);
    unsigned *sum = (void *)(at + 900000 - offset);
    printf("ready\n");
    fflush(stdout);
    for (unsigned i = 0; i < 15000; i++) {
        while (atomic_load(turn) % 2 != role) usleep(50);
        *sum = *sum * 31 + role + i;
        atomic_fetch_add(turn, 1);
    }
    while (atomic_load(turn) != 30000) usleep(50);
    printf("sum %u\n", *sum);
    return 0;
}
