/* ranks: 0 ; library: yes */
/* Storage that has much to do: a library for LD_PRELOAD. The first fsync of the job's coordinator
 * in the folder of its second checkpoint takes SLOW_SECONDS; then the file SLOW_SEEN is there.
 *     gcc -shared -fPIC -o slow_storage.so slow_storage.c -ldl */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is_coordinator(void)
{
    char words[4096];
    int fd = open("/proc/self/cmdline", O_RDONLY);
    ssize_t bytes = fd < 0 ? 0 : read(fd, words, sizeof words);
    if (fd >= 0)
        close(fd);
    return bytes > 0 && memmem(words, (size_t) bytes, "\0coordinator", 12) != NULL;
}

int fsync(int fd)
{
    int (*real)(int) = (int (*)(int)) dlsym(RTLD_NEXT, "fsync");
    const char *seconds = getenv("SLOW_SECONDS"), *seen = getenv("SLOW_SEEN");
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t bytes = readlink(link, path, sizeof path - 1);
    path[bytes > 0 ? bytes : 0] = 0;
    if (seconds && seen && strstr(path, "/checkpoint-2/") && access(seen,
            F_OK) && is_coordinator()) {
        FILE *file = fopen(seen, "w");
        if (!file || fclose(file))
            abort();
        sleep((unsigned) atoi(seconds));
    }
    return real(fd);
}
