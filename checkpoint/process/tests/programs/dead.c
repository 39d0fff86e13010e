/* Memory that is in use on both sides of memory that is not. Prints where the latter is, waits for
 * the file argv[1], and prints what has become of all three. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PART ((size_t)4 << 20)

static uint64_t sum(const unsigned char *from)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < PART; i++) sum = sum * 31 + from[i];
    return sum;
}

/* Mappings that a fork would leave empty, as the kernel shows them. */
static int wiped(void)
{
    int count = 0;
    char line[4096];
    FILE *file = fopen("/proc/self/smaps", "r");
    while (NULL != fgets(line, sizeof(line), file))
        count += 0 == strncmp(line, "VmFlags:", 8) && NULL != strstr(line, " wf");
    fclose(file);
    return count;
}

int main(int argc, char **argv)
{
    unsigned char *at = mmap(NULL, 3 * PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                             -1, 0);
    uint64_t state = 1;
    for (size_t i = 0; i < 3 * PART; i++) {
        state = state * 6364136223846793005u + 1;
        at[i] = (unsigned char)(state >> 33);
    }
    printf("dead=%zx-%zx\n", (size_t)(at + PART), (size_t)(at + 2 * PART));
    fflush(stdout);
    while (0 != access(argv[argc - 1], F_OK)) usleep(1000);
    printf("before %016lx\ndead %016lx\nbehind %016lx\nwiped %d\n", sum(at), sum(at + PART),
           sum(at + 2 * PART), wiped());
    memset(at + PART, 1, PART);
    printf("written %016lx\n", sum(at + PART));
    return 0;
}
