/* Where processes of a job listen: for each TCP socket of this host's processes that listens, but
 * those of Open MPI's own daemons, a line
 *     LISTENER <rank that looks> <process> <address>
 * Sockets are looked for while all ranks are in the job.
 * usage: listeners */
#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SOCKETS = 256 };
static struct {
    unsigned long inode;
    char address[INET6_ADDRSTRLEN];
} sockets[SOCKETS];
static int count;

static void read_table(const char *path, int family)
{
    char line[512], hex[33];
    unsigned port, state;
    unsigned long inode;
    FILE *table = fopen(path, "r");
    while (table && fgets(line, sizeof line, table)) {
        uint32_t words[4] = { 0 };
        if (4 != sscanf(line, " %*d: %32[0-9A-F]:%x %*[0-9A-F]:%*x %x %*s %*s %*s %*d %*d %lu", hex,
                        &port, &state, &inode)
            || 0x0A != state || SOCKETS == count)
            continue;
        for (int i = 0; i < (AF_INET6 == family ? 4 : 1); i++)
            sscanf(hex + 8 * i, "%8x", &words[i]);
        inet_ntop(family, words, sockets[count].address, sizeof sockets[count].address);
        sockets[count++].inode = inode;
    }
    if (table)
        fclose(table);
}

static void owners(int me, const char *pid)
{
    char path[300], target[64], name[32] = "?";
    snprintf(path, sizeof path, "/proc/%s/comm", pid);
    FILE *file = fopen(path, "r");
    if (!file || 1 != fscanf(file, "%31s", name))
        name[0] = '?';
    if (file)
        fclose(file);
    snprintf(path, sizeof path, "/proc/%s/fd", pid);
    DIR *all = opendir(path);
    for (struct dirent *one; all && (one = readdir(all));) {
        unsigned long inode;
        snprintf(path, sizeof path, "/proc/%s/fd/%.20s", pid, one->d_name);
        ssize_t length = readlink(path, target, sizeof target - 1);
        target[length > 0 ? length : 0] = 0;
        if (1 != sscanf(target, "socket:[%lu]", &inode))
            continue;
        for (int i = 0; i < count; i++)
            if (sockets[i].inode == inode && strcmp(name, "orted") && strcmp(name, "mpirun")
                && strcmp(name, "prted"))
                printf("LISTENER %d %s %s\n", me, name, sockets[i].address);
    }
    if (all)
        closedir(all);
}

int main(int argc, char **argv)
{
    int me;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Barrier(MPI_COMM_WORLD);
    read_table("/proc/self/net/tcp", AF_INET);
    read_table("/proc/self/net/tcp6", AF_INET6);
    DIR *all = opendir("/proc");
    for (struct dirent *one; all && (one = readdir(all));)
        if (isdigit((unsigned char) one->d_name[0]))
            owners(me, one->d_name);
    if (all)
        closedir(all);
    fflush(stdout);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
