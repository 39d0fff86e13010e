/* Memory that changes in every way that the kernel has: SIGUSR1 does SEED's next COUNT things
 * to it, and prints "round N HASH PAGE", where PAGE was written in that round; SIGUSR2 prints
 * "now HASH". A third argument: the number of a round that closes all descriptors but the first
 * and the socket. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define PAGES 3000ul

static uint64_t state;
static char *arena;

static size_t draw(size_t below)
{
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (size_t)((state >> 33) % below);
}

static void write_pages(size_t page, size_t count)
{
    /* Not where the program has taken the right away. */
    for (size_t k = page; k < page + count && k < PAGES; k++)
        if (mprotect(arena + k * PAGE, PAGE, PROT_READ | PROT_WRITE) == 0)
            memset(arena + k * PAGE, (int)draw(255) + 1, 1 + draw(PAGE));
}

static void map(size_t page, size_t count)
{
    if (page + count > PAGES) count = PAGES - page;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (mmap(arena + page * PAGE, count * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED)
        _exit(5);
}

static uint64_t hash(void)
{
    uint64_t sum = 14695981039346656037ull;
    for (size_t word = 0; word < PAGES * PAGE / 8; word++)
        sum = (sum ^ ((uint64_t *)arena)[word]) * 1099511628211ull;
    return sum;
}

static void change(void)
{
    size_t page = draw(PAGES), count = 1 + draw(60), to = draw(PAGES);
    char *at = arena + page * PAGE;
    if (page + count > PAGES) count = PAGES - page;
    switch (draw(9)) {
    case 0: case 1:
        write_pages(page, count);
        break;
    case 2: /* gone, and other memory in its place */
        munmap(at, count * PAGE);
        map(page, count);
        break;
    case 3:
        madvise(at, count * PAGE, MADV_DONTNEED);
        break;
    case 4: /* moved to the place of other memory; its own is new */
        if (to + count > PAGES || (to < page + count && page < to + count)) break;
        for (size_t k = 0; k < count; k++) {
            char *there = arena + (to + k) * PAGE;
            int how = MREMAP_MAYMOVE | MREMAP_FIXED;
            if (mremap(at + k * PAGE, PAGE, PAGE, how, there) == MAP_FAILED) _exit(6);
        }
        map(page, count);
        break;
    case 5:
        mprotect(at, count * PAGE, PROT_READ);
        break;
    case 6: { /* a copy, which writes; so does this process meanwhile */
        pid_t child = fork();
        if (child == 0) {
            write_pages(page, count);
            _exit(0);
        }
        write_pages(to, count);
        waitpid(child, NULL, 0);
        break;
    }
    case 7: { /* the kernel writes */
        int ends[2];
        char bytes[100];
        memset(bytes, (int)draw(255) + 1, sizeof bytes);
        mprotect(at, PAGE, PROT_READ | PROT_WRITE);
        if (pipe(ends) || write(ends[1], bytes, sizeof bytes) < 0) _exit(7);
        if (read(ends[0], at, sizeof bytes) < 0) _exit(7);
        close(ends[0]);
        close(ends[1]);
        break;
    }
    case 8: /* huge pages, if there are any */
        madvise(at, count * PAGE, draw(2) ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
        break;
    }
}

int main(int argc, char **argv)
{
    if (argc != 4) return 3;
    state = strtoull(argv[1], NULL, 10);
    int count = atoi(argv[2]);
    unsigned closing = (unsigned)atoi(argv[3]);
    arena = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (arena == MAP_FAILED) return 4;
    write_pages(0, PAGES / 2);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, NULL);
    printf("ready\n");
    fflush(stdout);
    for (unsigned round = 1;;) {
        int signal;
        sigwait(&set, &signal);
        if (signal == SIGUSR2) {
            printf("now %016lx\n", (unsigned long)hash());
        } else {
            for (int k = 0; k < count; k++) change();
            if (round == closing) syscall(SYS_close_range, 3, 199, 0);
            size_t page = draw(PAGES);
            write_pages(page, 1);
            printf("round %u %016lx %lx\n", round, (unsigned long)hash(),
                   (unsigned long)(arena + page * PAGE));
            round++;
        }
        fflush(stdout);
    }
}
