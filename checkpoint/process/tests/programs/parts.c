/* Has a file of memory open, and a part of it mapped, until FILE.stop appears: FILE. All of it is
 * what it was. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 3 };

int main(int argc, char **argv)
{
    char stop[4096], page[PAGE];
    if (argc != 2) return 3;
    snprintf(stop, sizeof stop, "%s.stop", argv[1]);
    int fd = open(argv[1], O_RDWR | O_CREAT, 0600);
    if (fd < 0) return 4;
    for (int i = 0; i < PAGES; i++) {
        memset(page, 'a' + i, PAGE);
        if (write(fd, page, PAGE) != PAGE) return 5;
    }
    char *mapped = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, PAGE);
    if (mapped == MAP_FAILED) return 6;
    mapped[7] = 'x';
    printf("ready\n");
    fflush(stdout);
    while (access(stop, F_OK) != 0) usleep(1000);
    for (int i = 0; i < PAGES; i++) {
        if (pread(fd, page, PAGE, i * PAGE) != PAGE) return 7;
        printf("%c%c", page[0], page[7]);
    }
    mapped[8] = 'y';
    if (pread(fd, page, PAGE, PAGE) != PAGE) return 8;
    printf(" %c\n", page[8]);
    return 0;
}
